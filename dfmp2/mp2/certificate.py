"""Pair energies to a tolerance: in mixed precision with a certificate, in float64 where that fails.

"fp64" uses no float32 anywhere. "mixed" refuses a result whose estimated error exceeds the tolerance;
"auto" repeats the step in float64 and says so.

The certificate redoes a stratified sample of pairs in float64 and estimates the error. The rounding error of
a pair grows with its energy. So the pairs of each channel are sorted by the size of their energy and cut into
strata of equal total energy, and evenly spaced pairs of each are recomputed: the large pairs nearly all, the
many small ones rarely. With N_h pairs and n_h samples in stratum h, and d the weighted difference mixed -
float64 of a pair,

    bias = sum_h N_h mean_h(d),    variance = sum_h N_h^2 (1 - n_h/N_h) s_h^2 / n_h,
    estimate = |bias| + 2 sqrt(variance)

(Cochran, Sampling Techniques, 3rd ed. (1977), sections 5.3 and 5.5). Small molecules are redone
completely: the estimate is then the exact difference. An estimate above the tolerance is made again from
a sample EFFORT times as large, since a small sample overestimates the bias as often as not, and all pairs
in float64 would cost far more.

Float32 adds up fitting functions in the order of growing weight:

    (ia|jb) = sum_P B_iaP B_jbP

A sum that is large already loses the small contributions that follow, one by one, below its last digit, and the
integrals come out too small on average. Added in the order of growing sum_ia B_iaP^2, the small ones meet before the
large ones come. Float64 needs no order. Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002),
section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends import registry
from dfmp2.backends.base import Backend, PairTerms, Source, Tile
from dfmp2.errors import NumericalError
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.threads import each
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.pairs import Elsewhere, OnTile, TileKey, evaluate, pair_energies
from dfmp2.mp2.result import Array, Certificate, PairEnergies
from dfmp2.planning.sizes import FRACTION, LEAST_SAMPLED, SAMPLED
from dfmp2.progress import Listener


def pair_energies_to_tolerance(
    b: Sequence[Any],
    spaces: list[ActiveSpace],
    backend: Backend,
    precision: str,
    tolerance: float,
    listener: Listener,
    held: int = 0,
    threads: int = 1,
    done: Mapping[TileKey, PairTerms] | None = None,
    on_tile: OnTile = lambda key, terms: None,
    elsewhere: Elsewhere | None = None,
) -> tuple[PairEnergies, str, Certificate | None]:
    """Pair energies, the precision they were really computed in, and the certificate.

    Parameters
    ----------
    b : fitted integrals (nocc, nvir, naux) float64 per spin, Eh^1/2, in memory, all of them on disk, or all on the
        device in float32 with what they are made of
    spaces : active space per spin
    precision : "fp64", "mixed" or "auto"
    tolerance : largest accepted estimate of the precision error, Eh
    held : bytes of B on disk that may be in memory at a time
    threads : for rounding B
    done, on_tile, elsewhere : as in `dfmp2.mp2.pairs.pair_energies`

    Raises
    ------
    NumericalError : the estimate exceeds the tolerance, and the precision is "mixed" or the device has no float64
    """

    def progress(reached: int, total: int) -> None:
        listener.step(reached, total, "pairs")

    host = registry.exact(backend)  # the backend itself, if it has float64
    exact = operands(b, spaces, host, "fp64", held, threads)
    if precision == "fp64":
        return pair_energies(exact, backend, progress, 0, done, on_tile, elsewhere), "fp64", None
    mixed = operands(b, spaces, backend, "mixed", held, threads)
    pairs = pair_energies(mixed, backend, progress, 0, done, on_tile, elsewhere)
    certificate = certify(pairs, exact, host, tolerance)
    if certificate.accepted:
        return pairs, "mixed", certificate
    found = (
        f"the estimated precision error {certificate.correlation_error:.1e} Eh exceeds the tolerance {tolerance:.1e} Eh"
    )
    if host is not backend:
        route = "--transform host, " if _on_device(b) else ""
        raise NumericalError(
            f"{found}, and --backend {backend.name} has no float64: use {route}--backend cpu or a larger --tolerance"
        )
    if precision == "mixed":
        raise NumericalError(
            f"{found}: use --precision auto (repeats in float64), --precision fp64 or a larger --tolerance"
        )
    listener.warning(f"{found}: the pair energies are repeated in float64")
    pairs = pair_energies(exact, backend, progress, 1, done, on_tile, elsewhere)
    return pairs, "fp64", replace(certificate, repeated_in_fp64=True)


def operands(
    b: Sequence[Any], spaces: list[ActiveSpace], backend: Backend, precision: str, held: int, threads: int
) -> list[Source]:
    """B of each spin as the backend takes it in that precision, "fp64" or "mixed"; others as above."""
    on_device = _on_device(b)
    order = None if on_device or precision == "fp64" else summation_order(b)

    def operand(tensor: Any, space: ActiveSpace) -> Source:
        energies = space.eps_occ, space.eps_vir
        if on_device:
            made: Source = tensor.at(precision)
            return made
        if isinstance(tensor, StoredTensor):
            from dfmp2.mp2.streaming import StoredOperand

            return StoredOperand(tensor, *energies, precision, held, order)
        return backend.put(tensor if order is None else rounded(tensor, order, threads), *energies, precision)

    return [operand(tensor, space) for tensor, space in zip(b, spaces, strict=True)]


def _on_device(b: Sequence[Any]) -> bool:
    return not all(isinstance(tensor, np.ndarray | StoredTensor) for tensor in b)


def summation_order(b: Sequence[Any]) -> NDArray[np.intp]:
    """Fitting functions by growing weight, the same for all spins; wherever B lies, the same numbers.

    Parameters
    ----------
    b : (nocc, nvir, naux) float64 per spin, in memory or on disk
    """
    weights = np.zeros(b[0].shape[2])
    for tensor in b:
        nocc = tensor.shape[0]
        for i in np.unique(np.linspace(0, nocc - 1, min(nocc, SAMPLED)).round().astype(int)):
            rows = tensor[i]
            weights += np.einsum("ap,ap->p", rows, rows)
    return np.argsort(weights, kind="stable")


def rounded(b: Array, order: NDArray[np.intp], threads: int) -> NDArray[np.float32]:
    """B, (nocc, nvir, naux), in float32 with its fitting functions in this order."""
    single = np.empty(b.shape, np.float32)
    each(len(b), lambda i: np.take(b[i].astype(np.float32), order, axis=1, out=single[i], mode="clip"), threads)
    return single


STRATA = 8
SIGMAS = 2.0
EFFORT = 4
HOPELESS = 10.0  # times the tolerance: no larger sample will bring the estimate down that far


def certify(pairs: PairEnergies, exact: Sequence[Source], backend: Backend, tolerance: float) -> Certificate:
    """Estimate the precision error of `pairs` against float64.

    Parameters
    ----------
    pairs : pair energies from mixed precision, Eh
    exact : the same spin spaces in float64, resident, on disk or untransformed
    backend : device that redoes the sample in float64
    tolerance : largest accepted estimate of the correlation energy's error, Eh

    Returns
    -------
    Certificate with estimates per component, Eh
    """
    found = _estimated(pairs, exact, backend, tolerance, 1)
    if found.accepted or found.sampled == found.pairs or found.correlation_error > HOPELESS * tolerance:
        return found
    return _estimated(pairs, exact, backend, tolerance, EFFORT)


def _estimated(
    pairs: PairEnergies, exact: Sequence[Source], backend: Backend, tolerance: float, effort: int
) -> Certificate:
    """As `certify`, from a sample `effort` times the usual one."""
    restricted = len(exact) == 1
    channels = [(0, 0)] if restricted else [(0, 0), (1, 1), (0, 1)]
    sampled = total = 0
    worst = 0.0
    moments = np.zeros((2, 3))  # rows: bias, variance; columns: same spin, opposite spin, both
    for channel in channels:
        same, opposite = _stored(pairs, channel, restricted)
        rows, columns = _pair_list(same if same is not None else opposite, mirrored=same is not None)
        weight = np.where((rows != columns) & (same is not None), 2.0, 1.0)
        size = sum(np.abs(m[rows, columns]) for m in (same, opposite) if m is not None)
        strata = _strata(np.asarray(size))
        picks = _sample(strata, effort * max(LEAST_SAMPLED, math.ceil(FRACTION * rows.size)))
        tiles = [
            Tile(int(rows[k]), int(rows[k]) + 1, int(columns[k]), int(columns[k]) + 1, False)
            for pick in picks
            for k in pick
        ]
        redone = _redo(backend, exact, channel, tiles, restricted)
        for stratum, pick in zip(strata, picks, strict=True):
            if not pick.size:
                continue
            ij = rows[pick], columns[pick]
            reference = np.array([redone[i, j] for i, j in zip(*ij, strict=True)])  # (n, 2): same, opposite
            mixed = np.stack([np.zeros(pick.size) if m is None else m[ij] for m in (same, opposite)], axis=1)
            d = (mixed - reference) * weight[pick, None]
            d = np.column_stack([d, d.sum(axis=1)])
            moments += _moments(d, stratum.size)
            worst = max(worst, float(np.abs(d[:, 2]).max()))
            sampled += pick.size
        total += rows.size
    estimates = np.abs(moments[0]) + SIGMAS * np.sqrt(moments[1])
    return Certificate(
        pairs=int(total),
        sampled=int(sampled),
        correlation_error=float(estimates[2]),
        same_spin_error=float(estimates[0]),
        opposite_spin_error=float(estimates[1]),
        largest_pair_error=worst,
        tolerance=tolerance,
        repeated_in_fp64=False,
    )


def _stored(
    pairs: PairEnergies, channel: tuple[int, int], restricted: bool
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """(same-spin, opposite-spin) matrices that a channel contributes to."""
    if restricted:
        return pairs.same_spin[0], pairs.opposite_spin
    if channel[0] == channel[1]:
        return pairs.same_spin[channel[0]], None
    return None, pairs.opposite_spin


def _pair_list(matrix: NDArray[np.float64] | None, *, mirrored: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    if matrix is None:
        raise TypeError("a channel has at least one matrix")
    if mirrored:
        return np.triu_indices(matrix.shape[0])
    rows, columns = np.indices(matrix.shape)
    return rows.ravel(), columns.ravel()


def _strata(size: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Pairs by falling energy, cut into strata of equal total energy (some may be empty)."""
    order = np.argsort(-size, kind="stable")
    share = np.cumsum(size[order])
    if not share.size or share[-1] == 0.0:
        return [order]
    cuts = np.searchsorted(share, share[-1] * np.arange(1, STRATA) / STRATA)
    return np.split(order, cuts)


def _sample(strata: list[NDArray[np.intp]], wanted: int) -> list[NDArray[np.intp]]:
    """About `wanted` pairs, shared out equally; what a small stratum cannot use goes to the others."""
    picks = []
    for left, stratum in zip(range(len(strata), 0, -1), strata, strict=True):  # the small strata come first
        share = min(stratum.size, math.ceil(wanted / left))
        picks.append(stratum[np.linspace(0, stratum.size - 1, share).round().astype(np.intp)])
        wanted -= share
    return picks


def _redo(
    backend: Backend,
    exact: Sequence[Source],
    channel: tuple[int, int],
    tiles: list[Tile],
    restricted: bool,
) -> dict[tuple[int, int], tuple[float, float]]:
    """(same-spin, opposite-spin) float64 energies of single pairs."""
    left, right = (exact[s] for s in channel)
    redone = {}
    for tile, terms in evaluate(backend, left, right, tiles):
        direct = float(terms.direct[0, 0])
        exchange = 0.0 if terms.exchange is None else float(terms.exchange[0, 0])
        same = 0.0 if tile.i0 == tile.j0 else direct - exchange  # as in `dfmp2.mp2.pairs`
        if restricted:
            energies = (same, direct)
        elif channel[0] == channel[1]:
            energies = (0.5 * same, 0.0)
        else:
            energies = (0.0, direct)
        redone[tile.i0, tile.j0] = energies
    return redone


def _moments(d: NDArray[np.float64], population: int) -> NDArray[np.float64]:
    """Bias and variance of the stratum's total, from its sampled differences d (n, 3)."""
    n = d.shape[0]
    spread = d.var(axis=0, ddof=1) if n > 1 else np.zeros(d.shape[1])
    return np.stack([population * d.mean(axis=0), population**2 * (1 - n / population) * spread / n])
