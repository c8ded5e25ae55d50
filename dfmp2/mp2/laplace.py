"""The opposite-spin energy of MP2 by a Laplace transform, in N^4 operations.

    1/x = int_0^inf exp(-t x) dt ~ sum_k w_k exp(-t_k x),   x = D_ia + D_jb,   D_ia = e_a - e_i                      (1)
    X^s_PQ(t) = sum_ia B_iaP B_iaQ exp(-t D_ia)                              for each spin s                         (2)
    E_OS = - sum_ia,jb (ia|jb)^2 / x ~ - sum_k w_k sum_PQ X^alpha_PQ(t_k) X^beta_PQ(t_k)                             (3)

Almloef, Chem. Phys. Lett. 181, 319 (1991); SOS-MP2: Jung, Lochan, Dutoi, Head-Gordon, J. Chem.
Phys. 121, 9793 (2004); quadratures fitted to the range of x: Takatsuka, Ten-no, Hackbusch, J. Chem.
Phys. 129, 044112 (2008). Here the quadrature minimises the relative error of Eq. 1: all terms of
Eq. 3 have one sign, so a relative error of at most d in each makes an error of at most d |E_OS| in
the sum, which is a bound, not an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import NumericalError, Option
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.response import groups, orbital_energy_differences, weighted_products
from dfmp2.mp2.result import Quadrature
from dfmp2.progress import Listener

MOST_POINTS = 40
VECTORS = 32  # random vectors to estimate the size of the energy
ROUGH = 0.02  # relative error of the quadrature for that estimate
CLOSEST = 1e-12  # relative errors below this drown in rounding
LONGEST = 0.5  # largest change of a logarithm in one step of Newton's method
SEEN = 24  # points between two zeros of the error where it is evaluated
LEVEL = 1.5  # ratio of the error's largest and smallest maximum that is good enough


@dataclass(frozen=True, slots=True, eq=False)
class ExponentialSum:
    """A sum of exponentials, sum_k w_k exp(-t_k x), that approximates 1/x on a range.

    Attributes
    ----------
    t, w : (points,) exponents, 1/Eh, and factors, 1/Eh
    error : largest relative deviation on the range
    """

    t: Array
    w: Array
    error: float


def opposite_spin_energy(
    b: Sequence[Any],
    spaces: Sequence[ActiveSpace],
    factor: float,
    tolerance: float,
    held: int,
    workers: int,
    listener: Listener,
) -> Quadrature:
    """E_OS, Eq. 3, unscaled, with enough points that `factor` times its error is below the
    tolerance.

    Parameters
    ----------
    b : sequence
        (nocc, nvir, naux) float64 per spin, Eh^1/2, in memory or on disk.
    factor : float
        Factor of E_OS in the correlation energy.
    tolerance : float
        Largest error of the correlation energy, Eh.
    held : int
        Bytes available for X if B is on disk.
    workers : int
        Number of threads.

    Raises
    ------
    NumericalError
        No quadrature of up to MOST_POINTS points is accurate enough.
    """
    gaps = [orbital_energy_differences(space) for space in spaces]
    if not all(gap.size for gap in gaps):
        return Quadrature(energy=0.0, points=0, lowest=0.0, highest=0.0, error=0.0)
    lowest, highest = (
        math.fsum(float(end(gap)) for gap in (gaps[0], gaps[-1])) for end in (np.min, np.max)
    )
    factor = abs(factor)
    wanted = tolerance / (factor * _size(b, gaps, quadrature(lowest, highest, ROUGH)))
    while True:
        rule = quadrature(lowest, highest, wanted)
        factors = [partial(_decay, float(t)) for t in rule.t]
        energy = 0.0
        products = weighted_products(b, spaces, factors, held, workers, joined=False)
        for number, (weight, matrices) in enumerate(
            zip(rule.w.tolist(), products, strict=True), start=1
        ):
            energy -= weight * float(np.vdot(matrices[0], matrices[-1]))
            listener.step(number, len(rule.t), "points of the Laplace transform")
        if not math.isfinite(energy):
            raise NumericalError(
                f"the opposite-spin energy is {energy}: the orbitals or integrals hold NaN or "
                "infinite numbers; check the geometry and the basis, then report this"
            )
        error = factor * rule.error * abs(energy) / (1.0 - rule.error)
        if error <= tolerance:
            return Quadrature(
                energy=energy, points=len(rule.t), lowest=lowest, highest=highest, error=error
            )
        wanted = 0.5 * rule.error * tolerance / error


def _size(b: Sequence[Any], gaps: Sequence[Array], rule: ExponentialSum) -> float:
    """|E_OS|, Eq. 3, Eh, slightly too large, estimated with random sign vectors z: X_PQ^alpha
    X_PQ^beta is the mean of X^a z X^b z.

    It affects only the number of points. Hutchinson, Commun. Stat. Simul. Comput. 19, 433 (1990).
    """
    z = np.random.default_rng(0).choice([-1.0, 1.0], (b[0].shape[2], VECTORS))
    products = []
    for tensor, gap in zip(b, gaps, strict=True):
        product = np.zeros((tensor.shape[2], len(rule.t), VECTORS))
        for i0, group in groups(tensor):
            factors = _decay(rule.t, gap[i0 : i0 + len(group), :, None])
            product += np.tensordot(
                group, factors[..., None] * (group @ z)[:, :, None, :], ((0, 1), (0, 1))
            )
        products.append(product)
    energy = float(np.einsum("k,pkz,pkz->", rule.w, products[0], products[-1])) / VECTORS
    return (1.0 + 5.0 * ROUGH) * abs(energy) + np.finfo(float).tiny


def _decay(t: float | Array, gaps: Array) -> Array:
    return np.asarray(np.exp(-t * gaps))


def quadrature(lowest: float, highest: float, error: float) -> ExponentialSum:
    """The shortest rule for 1/x on lowest <= x <= highest, Eh, with this relative error.

    Raises
    ------
    NumericalError
        It would have more than MOST_POINTS points, or the error is below what float64 allows.
    """
    for p, found in _fitted(math.log(max(highest / lowest, 1.01))):
        if found <= error:
            t, w = np.exp(p) / lowest
            return ExponentialSum(t, w, found)
    raise NumericalError(
        (
            f"no sum of {MOST_POINTS} exponentials is 1/x from {lowest:.3g} to {highest:.3g}"
            f" Eh within {error:.1e}: use a larger "
        ),
        Option("tolerance"),
        ", or ",
        Option("method", "sos-mp2"),
        ", which needs none",
    )


def _fitted(length: float) -> Iterator[tuple[Array, float]]:
    """ln t and ln w, (2, k), of rules for 1 <= x <= exp(length), k = 1, 2, ..., and their relative
    errors.

    A rule of k points is exact at 2k values of x; Newton's method finds it, starting from the
    previous rule stretched to k points. These values are then moved until the error between them is
    about equally large everywhere, as in the best rule.
    """
    places, rule, smallest = _spread(2), np.empty((2, 0)), np.inf
    for k in range(1, MOST_POINTS + 1):
        start = _guess(rule, k, length, places)
        more_places = np.interp(
            _spread(2 * k), np.r_[0.0, _spread(places.size), 1.0], np.r_[0.0, places, 1.0]
        )
        best, levelled, levelled_places = _levelled(start, more_places, length)
        if best < smallest:
            smallest, rule, places = best, levelled, levelled_places
            # Between the evaluated points it is slightly larger
            yield (rule, max(1.01 * smallest, CLOSEST))


def _guess(rule: Array, k: int, length: float, places: Array) -> Array:
    """A rule of k points to start from, (2, k), from the previous one.

    Parameters
    ----------
    places : (2,) values of ln x / length at which a rule of one point is exact
    """
    if k == 1:  # two equations with a closed-form solution
        x, y = np.exp(length * places)
        t = math.log(y / x) / (y - x)
        return np.array([[math.log(t)], [t * x - math.log(x)]])
    if rule.shape[1] == 1:
        shift = (length / 4 + 0.5) * np.linspace(-1.0, 1.0, k)
        return np.asarray(rule + shift - np.array([[0.0], [0.5]]))
    start = np.array([_stretched(row, k) for row in rule])
    start[1] += math.log(rule.shape[1] / k)
    return start


def _levelled(start: Array, places: Array, length: float) -> tuple[float, Array, Array]:
    """The smallest error of a rule whose exact values are moved to level its errors, the rule and
    these values, as ln x / length; infinite if Newton's method fails."""
    best = np.inf, start, places
    for _ in range(4):
        start, residual = _newton(np.exp(length * places), start)
        ends = np.r_[0.0, places, 1.0]
        seen = np.exp(length * np.linspace(ends[:-1], ends[1:], SEEN))
        deviations = np.abs(1.0 - _terms(seen.T.ravel(), start).sum(axis=1))
        errors = deviations.reshape(-1, SEEN).max(axis=1)
        largest = float(errors.max())
        if not residual < 0.1 * largest:
            break
        if largest < best[0]:
            best = largest, start, places
        if largest < LEVEL * errors.min() or largest < CLOSEST:
            break
        widths = np.diff(ends) * (np.exp(np.log(errors).mean()) / errors) ** 0.4
        places = np.cumsum(widths / widths.sum())[:-1]
    return best


def _newton(x: Array, p: Array) -> tuple[Array, float]:
    """The rule that is exact at x, (2k,), from a guess (2, k), and its largest relative error at
    x."""
    before = np.inf
    for _ in range(30):
        terms = _terms(x, p)
        residual = 1.0 - terms.sum(axis=1)
        size = float(np.abs(residual).max())
        if not math.isfinite(size) or size < 1e-14 or 0.5 * before < size < 1e-10:
            break
        before = size
        jacobian = np.hstack([-terms * np.outer(x, np.exp(p[0])), terms])
        step = np.linalg.lstsq(jacobian, residual, rcond=1e-16)[0].reshape(p.shape)
        p = p + step * min(1.0, LONGEST / float(np.abs(step).max()))
    return p[:, np.argsort(p[0])], size


def _terms(x: Array, p: Array) -> Array:
    """x w_k exp(-t_k x), whose sum over k should be 1."""
    t, w = np.exp(p)
    return np.asarray(x[:, None] * np.exp(-np.outer(x, t)) * w)


def _spread(n: int) -> Array:
    """Zeros of a Chebyshev polynomial on the interval [0, 1]."""
    return np.asarray(0.5 - 0.5 * np.cos(np.pi * (np.arange(n) + 0.5) / n))


def _stretched(row: Array, k: int) -> Array:
    """k values on the curve through fewer points, extended by straight lines."""
    old, new = ((np.arange(n) + 0.5) / n for n in (row.size, k))
    found = np.interp(new, old, row)
    for end, next_one in ((0, 1), (-1, -2)):
        slope = (row[end] - row[next_one]) / (old[end] - old[next_one])
        found[end] = row[end] + slope * (new[end] - old[end])
    return found
