"""Pair energies to a given tolerance: in mixed precision with a certificate, else in float64.

"fp64" uses no float32 anywhere. "mixed" rejects a result whose error may exceed the tolerance.
"auto" then recomputes in float64 as many of the largest pairs as bring the error below it, or all
pairs if that would be many, and reports it.

The certificate recomputes a random sample of pairs in float64 and bounds the error of the sum over
all pairs. The sample is fixed before any difference is seen: the number of pairs follows from the
problem size (`planning.sizes.sampled_pairs`), the strata from the mixed-precision energies, and the
draw from a stored seed. An integral (ia|jb) is rounded by an amount that hardly depends on its size,
so the rounding error of a pair, a sum of their squares, grows with the root of its energy. The
pairs of each channel are divided into strata of equal total root of the energy, and equally many
are drawn from each: a large share of the few large pairs, a small share of the many small ones.
With N_h pairs and n_h drawn in stratum h, d the weighted difference mixed - float64 of a pair, e
its energy and E the known sum of all e,

    D = sum_h N_h mean_h(d)      X = sum_h N_h mean_h(e)      R = D / X      error = R E
    V = sum_h v_h,   v_h = N_h (N_h - n_h) s_h^2 / n_h        s_h^2: variance of d - R e in the stratum
    nu = V^2 / sum_h v_h^2 / (n_h - 1)                        |error| <= |R E| + t_nu(0.975) sqrt(V)

The bound is the endpoint of the 95 % confidence interval that is farther from zero. It is exact if
every pair is recomputed, as in small molecules, or if all pairs are off by the same factor.
Sources: Cochran, Sampling Techniques, 3rd ed. (1977), chapter 5 (strata) and chapter 6 (the ratio R
of all strata combined); degrees of freedom: Satterthwaite, Biometrics Bull. 2, 110 (1946). An error
has one sign, so t_nu(0.95) would do if differences were normal; 0.975 allows for those that are
not, in strata of a dozen pairs (for the coverage, see docs/explanation/certificate.md).

Float32 adds up fitting functions in order of increasing weight:

    (ia|jb) = sum_P B_iaP B_jbP

A partial sum that is already large loses the small contributions that follow, each below its last
digit, so the integrals come out too small on average. In order of increasing sum_ia B_iaP^2, the
small contributions are added up before the large ones. Float64 needs no order. Source: Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.backends import registry
from dfmp2.backends.base import Backend, Tile, TileSource
from dfmp2.errors import Message, NumericalError, Option
from dfmp2.mp2.pairs import (
    Elsewhere,
    PairEnergies,
    PairOperands,
    TileStore,
    evaluate,
    pair_energies,
)
from dfmp2.mp2.result import Certificate
from dfmp2.planning.sizes import sampled_pairs
from dfmp2.progress import Listener
from dfmp2.units import told_apart


def pair_energies_to_tolerance(
    operands: PairOperands,
    backend: Backend,
    precision: str,
    tolerance: float,
    listener: Listener,
    store: TileStore | None = None,
    elsewhere: Elsewhere | None = None,
) -> tuple[PairEnergies, str, Certificate | None]:
    """Pair energies, the precision they were actually computed in, and the certificate.

    Parameters
    ----------
    operands : PairOperands
        The fitted integrals of each spin.
    backend : Backend
    precision : str
        "fp64", "mixed" or "auto".
    tolerance : float
        Largest accepted bound on the precision error of E(corr), Eh.
    listener : Listener
    store : TileStore, optional
        Supplies the tiles that are finished and receives all others.
    elsewhere : callable, optional
        Computes tiles in other processes.

    Returns
    -------
    pairs : PairEnergies
    precision : str
        "fp64" or "mixed".
    certificate : Certificate or None
        None in float64.

    Raises
    ------
    NumericalError
        The bound exceeds the tolerance, and the precision is "mixed" or the device has no
        float64.
    """

    def progress(reached: int, total: int) -> None:
        listener.step(reached, total, "pairs")

    host = registry.float64_backend(backend)  # the backend itself, if it has float64
    exact = operands.on(host, "fp64")
    if precision == "fp64":
        return pair_energies(exact, backend, progress, 0, store, elsewhere), "fp64", None
    pairs = pair_energies(operands.on(backend, "mixed"), backend, progress, 0, store, elsewhere)
    certificate = certify_precision(pairs, exact, host, tolerance)
    if certificate.accepted:
        return pairs, "mixed", certificate
    error, most = told_apart(".1e", certificate.correlation_error, tolerance)
    excess = f"the precision error may be {error} Eh, which exceeds the tolerance {most} Eh"
    if host is not backend or precision == "mixed":
        raise _too_imprecise(excess, operands, backend, alone=host is not backend)
    largest = largest_pairs(pairs, certificate)
    if largest is not None:
        count = sum(int(chosen.sum()) for chosen in largest.values())
        listener.stage(
            f"{excess}: the {count} largest of {certificate.pairs} pairs are repeated in float64"
        )
        repeat_pairs(pairs, partial(_redo, host, exact), largest)
        second = certify_precision(pairs, exact, host, tolerance, largest)
        if second.accepted:
            return pairs, "mixed", second
    listener.warning(f"{excess}: the pair energies are repeated in float64")
    pairs = pair_energies(exact, backend, progress, 1, store, elsewhere)
    return pairs, "fp64", replace(certificate, repeated_in_fp64=True)


def _too_imprecise(
    excess: str, operands: PairOperands, backend: Backend, *, alone: bool
) -> NumericalError:
    """The error for pair energies that may not be repeated in float64; `alone` if the backend has
    none."""
    if not alone:
        return NumericalError(
            f"{excess}: use ",
            Option("precision", "auto"),
            " (repeats in float64), ",
            Option("precision", "fp64"),
            " or a larger ",
            Option("tolerance"),
        )
    route = Message()
    if operands.on_device:
        route = Message(Option("transform", "host"), ", ")
    return NumericalError(
        f"{excess}, and ",
        Option("backend", backend.name),
        " has no float64: use ",
        route,
        Option("backend", "cpu"),
        " or a larger ",
        Option("tolerance"),
    )


SEED = 1946  # of every first draw, so that the same pair energies always get the same certificate
# Part of the tolerance at which the bound is aimed when the largest pairs are repeated; the bound
# comes from another sample, and scatters
AIM = 0.6
MOST_REPEATED = 0.4  # of the pairs; beyond this, repeating all takes little longer and is certain
STRATA = 4
QUANTILE = 0.975
# Strata per factor of two in pair energy: pairs that are equal but for rounding share a stratum
STEPS = 64

Channel = tuple[int, int]
Chosen = dict[Channel, NDArray[np.bool_]]  # selected pairs of each channel
Redo = Callable[[Channel, NDArray[np.intp], NDArray[np.intp]], Array]


def certify_precision(
    pairs: PairEnergies,
    exact: Sequence[TileSource],
    backend: Backend,
    tolerance: float,
    known: Chosen | None = None,
) -> Certificate:
    """Bound the precision error of `pairs` from a sample recomputed in float64.

    Parameters
    ----------
    pairs : PairEnergies
        Pair energies from mixed precision, Eh.
    exact : sequence of TileSource
        The same spin spaces in float64, resident, on disk or untransformed.
    backend : Backend
        Device that recomputes the sample in float64.
    tolerance : float
        Largest accepted bound on the error of the correlation energy, Eh.
    known : Chosen, optional
        Pairs that are in float64 already; the others are sampled in a separate draw.
    """
    return bound_errors(pairs, partial(_redo, backend, exact), tolerance, SEED + bool(known), known)


def largest_pairs(pairs: PairEnergies, certificate: Certificate) -> Chosen | None:
    """The largest pairs to recompute so that the bound falls to AIM times the tolerance.

    None if these are more than MOST_REPEATED of all. The error of a pair grows with its energy.
    """
    channels = _channels(pairs)
    size = np.concatenate([np.abs(one.energies().sum(axis=1)) * one.weight for one in channels])
    share = 1 - AIM * certificate.tolerance / certificate.correlation_error
    order = np.argsort(-size, kind="stable")
    count = 1 + int(np.searchsorted(np.cumsum(size[order]), share * size.sum()))
    if not count <= MOST_REPEATED * size.size:
        return None
    picked = np.split(
        np.isin(np.arange(size.size), order[:count]),
        np.cumsum([one.rows.size for one in channels])[:-1],
    )
    return {one.channel: part for one, part in zip(channels, picked, strict=True)}


def repeat_pairs(pairs: PairEnergies, redo: Redo, chosen: Chosen) -> None:
    """Replace the mixed-precision energies of the chosen pairs with the float64 energies from
    `redo`."""
    for one in _channels(pairs):
        rows = one.rows[chosen[one.channel]]
        columns = one.columns[chosen[one.channel]]
        energies = redo(one.channel, rows, columns)
        for matrix, values in zip((one.same, one.opposite), energies.T, strict=True):
            if matrix is not None:
                matrix[rows, columns] = values
                if one.same is not None:
                    matrix[columns, rows] = values


def bound_errors(
    pairs: PairEnergies, redo: Redo, tolerance: float, seed: int = SEED, known: Chosen | None = None
) -> Certificate:
    """The certificate of `pairs`, from float64 energies computed by `redo`.

    Parameters
    ----------
    redo : Redo
        Takes a channel (spins of i and j) and n pairs; returns their energies (n, 2): same spin,
        opposite spin, Eh.
    seed : int
        Seed of the draw.
    known : Chosen, optional
        Pairs that are in float64 already.

    Returns
    -------
    Certificate with a bound per component, Eh; NaN, and not accepted, if an energy is NaN
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    strata: list[
        tuple[int, Array, Array]
    ] = []  # pairs; differences and energies of those drawn (n, 3): SS, OS, both
    energy, total, redone = np.zeros(3), 0, 0
    for one in _channels(pairs):
        if known is None:
            rest = np.ones(one.rows.size, dtype=np.bool_)
        else:
            rest = ~known[one.channel]
        rows = one.rows[rest]
        columns = one.columns[rest]
        weight = one.weight[rest, None]
        mixed = one.energies()[rest]
        e = _with_sum(mixed * weight)
        drawn = _draw(_strata(np.abs(e[:, 2])), sampled_pairs(rows.size), generator)
        chosen = np.concatenate([np.empty(0, np.intp), *(pick for _, pick in drawn)])
        d = np.zeros_like(e)
        d[chosen] = _with_sum(
            (mixed[chosen] - redo(one.channel, rows[chosen], columns[chosen])) * weight[chosen]
        )
        strata += [(population, d[pick], e[pick]) for population, pick in drawn]
        total = total + rest.size
        redone = redone + rest.size - rows.size
        energy += e.sum(axis=0)
    same_spin, opposite_spin, correlation = _bounds(strata, energy).tolist()
    differences = np.concatenate([np.zeros((0, 3)), *(d for _, d, _ in strata)])
    return Certificate(
        pairs=total,
        sampled=redone + len(differences),
        correlation_error=correlation,
        same_spin_error=same_spin,
        opposite_spin_error=opposite_spin,
        largest_pair_error=float(np.abs(differences[:, 2]).max(initial=0.0)),
        tolerance=tolerance,
        repeated_in_fp64=False,
        seed=seed,
    )


class ChannelPairs(NamedTuple):
    """The pairs of a channel: the matrices it contributes to, and for each its indices and
    weight."""

    channel: Channel
    same: Array | None
    opposite: Array | None
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    weight: Array

    def energies(self) -> Array:
        """Same spin and opposite spin (n, 2), Eh."""
        found = np.zeros((self.rows.size, 2))
        for column, matrix in enumerate((self.same, self.opposite)):
            if matrix is not None:
                found[:, column] = matrix[self.rows, self.columns]
        return found


def _channels(pairs: PairEnergies) -> list[ChannelPairs]:
    """All pairs: i <= j within a spin, where (i, j) also stands for (j, i), and all pairs of alpha
    with beta."""
    within = [
        (same, pairs.opposite_spin if len(pairs.same_spin) == 1 else None)
        for same in pairs.same_spin
    ]
    found = []
    for spin, (same, opposite) in enumerate(within):
        rows, columns = np.triu_indices(len(same))
        found.append(
            ChannelPairs(
                channel=(spin, spin),
                same=same,
                opposite=opposite,
                rows=rows,
                columns=columns,
                weight=np.where(rows == columns, 1.0, 2.0),
            )
        )
    if len(within) == 2:
        rows, columns = (x.ravel() for x in np.indices(pairs.opposite_spin.shape))
        found.append(
            ChannelPairs(
                channel=(0, 1),
                same=None,
                opposite=pairs.opposite_spin,
                rows=rows,
                columns=columns,
                weight=np.ones(rows.size),
            )
        )
    return found


def _strata(size: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Pairs divided by size into strata of equal total root of the size, large ones first; pairs of
    equal size stay together.

    Sizes are compared in steps of 1 %, so that the last digits, which differ between backends, do
    not move a pair.
    """
    steps = np.round(-STEPS * np.log2(np.maximum(size, np.finfo(float).tiny)))
    levels, level = np.unique(steps, return_inverse=True)
    share = np.cumsum(np.bincount(level, minlength=levels.size) * 2.0 ** (-levels / (2 * STEPS)))
    before = np.concatenate([[0.0], share[:-1]])  # of the total, in larger pairs
    stratum = (STRATA * before / share[-1:]).astype(np.intp)[level]
    return [np.flatnonzero(stratum == h) for h in np.unique(stratum)]


def _draw(
    strata: list[NDArray[np.intp]], wanted: int, generator: np.random.Generator
) -> list[tuple[int, NDArray[np.intp]]]:
    """Size of each stratum and the pairs drawn from it at random, equally many; what a small
    stratum cannot supply is drawn from the others.

    Every pair has one random number, whatever its stratum, and the smallest numbers of a stratum
    are drawn.
    """
    numbers = generator.random(sum(stratum.size for stratum in strata))
    drawn = []
    for left, stratum in zip(range(len(strata), 0, -1), sorted(strata, key=len), strict=True):
        share = min(stratum.size, -(-wanted // left))
        drawn.append((stratum.size, stratum[np.argsort(numbers[stratum], kind="stable")[:share]]))
        wanted -= share
    return drawn


def _redo(
    backend: Backend,
    exact: Sequence[TileSource],
    channel: Channel,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
) -> Array:
    """(same-spin, opposite-spin) float64 energies (n, 2) of single pairs, Eh."""
    left, right = (exact[s] for s in channel)
    tiles = [
        Tile(i, i + 1, j, j + 1, False)
        for i, j in zip(rows.tolist(), columns.tolist(), strict=True)
    ]
    redone = {}
    for tile, terms in evaluate(backend, left, right, tiles):
        direct = float(terms.direct[0, 0])
        exchange = 0.0 if terms.exchange is None else float(terms.exchange[0, 0])
        same = 0.0 if tile.i0 == tile.j0 else direct - exchange  # as in `dfmp2.mp2.pairs`
        if len(exact) == 1:
            redone[tile] = (same, direct)
        elif channel[0] == channel[1]:
            redone[tile] = (0.5 * same, 0.0)
        else:
            redone[tile] = (0.0, direct)
    return np.array([redone[tile] for tile in tiles]).reshape(-1, 2)


def _with_sum(components: Array) -> Array:
    """Same spin and opposite spin (n, 2), and their sum: (n, 3)."""
    return np.column_stack([components, components.sum(axis=1)])


def _bounds(strata: list[tuple[int, Array, Array]], energy: Array) -> Array:
    """Endpoints, farther from zero, of the 95 % confidence intervals (3,), Eh.

    Parameters
    ----------
    strata : list of tuple[int, array, array]
        Number of pairs, and the differences d and energies e of those drawn, (n, 3), Eh.
    energy : array
        Sums of e over all pairs (3,), Eh.
    """
    from scipy.special import stdtrit

    found, known = np.zeros(3), np.zeros(3)
    for population, d, e in strata:
        found += population * d.mean(axis=0)
        known += population * e.mean(axis=0)
    ratio = np.divide(found, known, out=np.zeros(3), where=known != 0.0)
    variance, squares = np.zeros(3), np.zeros(3)
    for population, d, e in strata:
        n = len(d)
        if n < population:
            part = population * (population - n) * (d - ratio * e).var(axis=0, ddof=1) / n
            variance += part
            squares += part**2 / (n - 1)
    freedom = np.divide(variance**2, squares, out=np.ones(3), where=squares > 0.0)
    bounds: Array = np.abs(found + ratio * (energy - known)) + stdtrit(freedom, QUANTILE) * np.sqrt(
        variance
    )
    return bounds
