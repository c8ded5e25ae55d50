"""The correlation energy of the direct random-phase approximation, in N^4 operations.

    Q_PQ(w) = sum_s sum_ia B_iaP B_iaQ 2 D_ia / (D_ia^2 + w^2),   D_ia = e_a - e_i                                   (1)
    E_c = 1/(2 pi) int_0^inf dw Tr [ ln(1 + Q(w)) - Q(w) ]                                                           (2)

s runs over both spins; without exchange in the response, the orbital pairs of all spins add up.
Eshuis, Yarkony, Furche, J. Chem. Phys. 132, 234114 (2010). As there, w = a cot(u) with equal steps
in u: the integrand is a smooth periodic function of u, so n points converge exponentially and are a
subset of 2n points. n is doubled until the error is small. The error decays about like that of the
second-order terms with i = j and a = b, which have poles at w = +-i D,

    r(n) = sum_ia (ia|ia)^2 / D_ia [(D_ia - a) / (D_ia + a)]^2n                                                      (3)

but neither sum reveals its own error. The last changes d(n/2) and d(n/4) of the energy stand for
the errors of half and a quarter of the points, and the error is taken as SAFETY r(n) max[ d(n/2) /
r(n/2), d(n/4) / r(n/4) ].

The grid error of a functional is measured on orbitals of a finer grid:

    dE_c = E_c[C, e] - E_c[C U, e']                                                            (4)

C U and e' are one step towards these orbitals (`dfmp2.scf.grid_error`). B is rebuilt, and the
frequencies are those of E_c, so that the quadrature error cancels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.errors import NumericalError, Option
from dfmp2.host.scratch import Space
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.calculation import NOTHING, BuildB, Calculation
from dfmp2.mp2.response import orbital_energy_differences, weighted_products
from dfmp2.mp2.result import GridCertificate, Quadrature
from dfmp2.progress import Listener
from dfmp2.scf.grid_error import on_finer_grid
from dfmp2.scf.reference import Reference
from dfmp2.units import told_apart

LAST = 1024  # points of the longest sum
# The number of points is a multiple of this: the shortest of three sums has a quarter of those
# predicted to suffice
STEP = 4
FEWEST = 24  # predicted number of points, at least
SCALES = 24  # values of a that are tried
# Twice the largest error observed, relative to Eq. 3 with the changes (O2, b3lyp orbitals)
SAFETY = 40.0
# Eh per correlated orbital of a spin; good enough an energy to predict errors with
USUAL = 0.1


def correlation_energy(
    b: Sequence[Any],
    spaces: Sequence[ActiveSpace],
    tolerance: float,
    held: int,
    workers: int,
    listener: Listener,
) -> Quadrature:
    """E_c, Eq. 2.

    Parameters
    ----------
    b : sequence
        (nocc, nvir, naux) float64 per spin, Eh^1/2, in memory or on disk.
    tolerance : float
        Largest error, Eh.
    held : int
        Bytes available for Q if B is on disk.
    workers : int
        Number of threads.

    Raises
    ------
    NumericalError
        An occupied orbital lies above a virtual one, or LAST points are not enough.
    """
    spins = [
        (one, space) for one, space in zip(b, spaces, strict=True) if space.nocc and space.nvir
    ]
    if not spins:
        return Quadrature(energy=0.0, points=0, lowest=0.0, highest=0.0, error=0.0)
    gaps = [orbital_energy_differences(space) for _, space in spins]
    lowest = float(np.min([np.min(gap) for gap in gaps]))
    if lowest <= 0.0:
        raise NumericalError(
            f"the smallest e_a - e_i is {lowest:.6f} Eh and must be positive for ",
            Option("method", "drpa"),
            ": the reference is not a ground state (try ",
            Option("scf_from"),
            " with better orbitals)",
        )
    scale, enough, envelope = _grid(spins, gaps, tolerance)
    occupation = _occupation(b)
    total = 0.0
    before = change = math.inf
    points = enough // STEP
    angles = np.arange(1, points + 1) * (math.pi / (2 * points))
    while points <= LAST:
        total += _weighted_sum(spins, occupation, angles, scale, held, workers, listener)
        energy = total / (4 * points)  # steps of pi / (2 n), and 1/(2 pi) of Eq. 2
        earlier = change
        change = abs(energy - before)
        error = change
        if math.isfinite(earlier):
            error = SAFETY * max(
                change * _fallen(envelope, points, points // 2),
                earlier * _fallen(envelope, points, points // 4),
            )
        if not math.isfinite(energy):
            break
        if error <= tolerance:
            return Quadrature(
                energy=energy,
                points=points,
                lowest=lowest,
                highest=float(np.max([np.max(gap) for gap in gaps])),
                error=error,
                scale=scale,
            )
        before = energy
        points *= 2
        angles = np.arange(1, points, 2) * (math.pi / (2 * points))  # between those already used
    uncertain, most = told_apart(".1e", error, tolerance)
    raise NumericalError(
        (
            f"{points // 2} frequencies leave the RPA correlation energy uncertain by "
            f"{uncertain} Eh, more than "
        ),
        Option("tolerance", most),
        f": allow more, or look at the smallest e_a - e_i, {lowest:.4f} Eh",
    )


def at_points(
    b: Sequence[Any],
    spaces: Sequence[ActiveSpace],
    quadrature: Quadrature,
    held: int,
    workers: int,
    listener: Listener,
) -> float:
    """E_c with the frequencies of another sum, Eh, so that the quadrature error cancels in the
    difference.

    Parameters
    ----------
    b, spaces, held, workers, listener
        As in `correlation_energy`.
    quadrature : Quadrature
        The other sum, for nearly the same orbitals.
    """
    spins = [
        (one, space) for one, space in zip(b, spaces, strict=True) if space.nocc and space.nvir
    ]
    if not spins or not quadrature.scale:
        return 0.0
    points = quadrature.points
    angles = np.arange(1, points + 1) * (math.pi / (2 * points))
    total = _weighted_sum(spins, _occupation(b), angles, quadrature.scale, held, workers, listener)
    return total / (4 * points)


def _occupation(b: Sequence[Any]) -> float:
    """Electrons per occupied orbital, from the number of spins in B."""
    return 2.0 / len(b)


def _weighted_sum(
    spins: Sequence[tuple[Any, ActiveSpace]],
    occupation: float,
    angles: NDArray[np.floating[Any]],
    scale: float,
    held: int,
    workers: int,
    listener: Listener,
) -> float:
    """Sum over the angles u of a / sin^2 u times Tr [ln(1 + Q) - Q], Eh."""
    total = 0.0
    weights = np.where(np.isclose(angles, math.pi / 2), 0.5, 1.0) * scale / np.sin(angles) ** 2
    factors = [partial(_response, occupation, scale / math.tan(u)) for u in angles.tolist()]
    tensors = [one for one, _ in spins]
    kept = [space for _, space in spins]
    products = weighted_products(tensors, kept, factors, held, workers, joined=True)
    for number, (weight, (matrix,)) in enumerate(
        zip(weights.tolist(), products, strict=True), start=1
    ):
        total += weight * _log_det_less_trace(matrix)
        listener.step(number, angles.size, "frequencies")
    return total


def _response(occupation: float, frequency: float, gaps: Array) -> Array:
    """2 D / (D^2 + w^2), times the electrons per orbital."""
    return occupation * 2.0 * gaps / (gaps**2 + frequency**2)


def _fallen(envelope: Callable[[int], float], points: int, fewer: int) -> float:
    """r(points) / r(fewer), at most 1; 1 if r(fewer) is 0."""
    before = envelope(fewer)
    if before:
        return min(1.0, envelope(points) / before)
    return 1.0


def _grid(
    spins: Sequence[tuple[Any, ActiveSpace]], gaps: Sequence[Array], tolerance: float
) -> tuple[float, int, Callable[[int], float]]:
    """The scale a of the frequencies, Eh, the number of points that should suffice by Eq. 3, and
    r(n) of Eq. 3 as a function."""
    d = np.concatenate([gap.ravel() for gap in gaps])
    shares = np.concatenate(
        [
            np.einsum("ap,ap->a", tensor[i], tensor[i]) ** 2
            for tensor, space in spins
            for i in range(space.nocc)
        ]
    )
    shares = shares / d
    wanted = tolerance / (USUAL * sum(space.nocc for _, space in spins))
    scales = np.geomspace(d.min(), d.max(), SCALES)
    if not shares.any():
        rates = []
    else:
        rates = [((d - a) / (d + a)) ** (2 * STEP) for a in scales]
    terms = [shares / shares.sum() for _ in rates]
    points, left = 0, [math.inf]
    while terms and min(left) > wanted and points < LAST:
        points += STEP
        for term, rate in zip(terms, rates, strict=True):
            term *= rate
        left = [float(term.sum()) for term in terms]
    a = float(scales[int(np.argmin(left))])
    return a, max(points, FEWEST), lambda n: float(shares @ np.abs((d - a) / (d + a)) ** (2 * n))


def _log_det_less_trace(matrix: Array) -> float:
    """Tr [ln(1 + Q) - Q]; Q is overwritten."""
    from scipy.linalg.lapack import dpotrf

    trace = float(np.trace(matrix))
    matrix[np.diag_indices_from(matrix)] += 1.0
    # .T gives Fortran order, and Q is symmetric
    factor, info = dpotrf(matrix.T, lower=False, clean=False, overwrite_a=True)
    if info == 0:
        return 2.0 * math.fsum(np.log(np.diagonal(factor))) - trace
    return math.nan


def grid_certificate(
    calculation: Calculation, reference: Reference, quadrature: Quadrature, build_b: BuildB
) -> GridCertificate:
    """The error of the integration grid in E_c, Eq. 4.

    Parameters
    ----------
    calculation : Calculation
        The calculation, after its own B was released.
    reference : Reference
        Reference with the measured error of its grid.
    quadrature : Quadrature
        E_c of the reference.
    build_b : callable
        Builds B of a reference (`dfmp2.mp2.energy`).
    """
    begun = time.perf_counter()
    calculation.listener.stage("error of the integration grid in E(corr)")
    moved = on_finer_grid(reference)
    memory = calculation.plan.memory
    scratch = 0 if memory.mp2_fits_in_core else memory.mp2_disk
    with Space(calculation.setup.scratch, scratch) as space:
        again = replace(calculation, space=space, checkpoint=NOTHING)
        fitted = build_b(again, moved)
        with calculation.clock("pair_energies"):
            energy = at_points(
                fitted.b,
                again.spaces(moved),
                quadrature,
                held=memory.tensor_bytes,
                workers=calculation.setup.active,
                listener=calculation.listener,
            )
    return GridCertificate(quadrature.energy - energy, time.perf_counter() - begun)
