"""Pair energies: evaluate the tiles on a backend and turn the collected pair terms into energies.

Restricted:    e_OS(i,j) = direct_ij                 e_SS(i,j) = direct_ij - exchange_ij
Unrestricted:  e_OS(i,j) = direct_ij over alpha i, beta j
               e_SS(i,j) = (direct_ij - exchange_ij) / 2 within alpha and within beta

e_SS(i,i) is 0 by symmetry, and stored as 0 in every precision. Each energy component is the sum
over the whole matrix; the half loop i <= j is mirrored.
Source: Szabo and Ostlund, Modern Quantum Chemistry (1996), section 6.5; DF form: Weigend et al.,
Chem. Phys. Lett. 294, 143 (1998).

A backend takes B in float64 or rounded to float32, from memory or from disk. If B is on disk, two
sets of occupied orbitals are in memory while the next one is read. The tiles are those of a run in
memory, so the numbers are the same to the last bit. For each set of rows I that fits, the tiles
within I are done first; then sets of columns J pass by, J + 1 being read while the tiles I x J are
computed:

    for I:  read I;  tiles (I, I);  for J > I:  [ read J + 1 | tiles (I, J) ]
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.backends import tiling
from dfmp2.backends.base import (
    NUMPY_TYPES,
    Backend,
    Batch,
    Limits,
    Operand,
    PairTerms,
    Tile,
    TileSource,
)
from dfmp2.backends.tiling import Cut, visits, widest
from dfmp2.errors import NumericalError
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.threads import each, prefetched, worker_pool
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.planning.sizes import SAMPLED


@dataclass(frozen=True, eq=False)
class PairEnergies:
    """Unscaled pair energies of the active occupied orbitals, Eh; each component is the sum of its
    matrix.

    opposite_spin : (nocc_alpha, nocc_beta)
    same_spin : one (nocc, nocc) matrix (restricted) or two (alpha-alpha, beta-beta)
    summed : whether both are (1, 1) sums, because no pairs were kept
    """

    opposite_spin: Array
    same_spin: tuple[Array, ...]
    summed: bool = False

    @cached_property
    def opposite_spin_energy(self) -> float:
        """E_OS, Eh."""
        return math.fsum(self.opposite_spin.flat)

    @cached_property
    def same_spin_energy(self) -> float:
        """E_SS, Eh."""
        return math.fsum(value for matrix in self.same_spin for value in matrix.flat)

    @property
    def correlation_energy(self) -> float:
        """E_OS + E_SS, Eh."""
        return self.same_spin_energy + self.opposite_spin_energy

    def channels(self) -> dict[str, Array]:
        """Matrices by name: opposite_spin, same_spin or same_spin_alpha and same_spin_beta; empty
        for NO_PAIRS, or if only sums are known."""
        if not self.same_spin or self.summed:
            return {}
        names = ["same_spin"]
        if len(self.same_spin) == 2:
            names = ["same_spin_alpha", "same_spin_beta"]
        return {
            "opposite_spin": self.opposite_spin,
            **dict(zip(names, self.same_spin, strict=True)),
        }


NO_PAIRS = PairEnergies(np.empty((0, 0)), ())  # for a method whose energy is a `Quadrature`


def evaluate(
    backend: Backend, left: TileSource, right: TileSource, tiles: list[Tile]
) -> Generator[tuple[Tile, PairTerms], None, None]:
    """Yield tiles with their terms as they finish; each entry has its own place, so order is free.

    Close it (`contextlib.closing`) if you may leave it early: no tile is started after that.
    """
    for near, far, local in left.batches(backend, right, tiles) if tiles else ():
        with closing(_resident(backend, near, far, list(local))) as results:
            for tile, terms in results:
                yield local[tile], terms


def _resident(
    backend: Backend, left: Operand, right: Operand, tiles: list[Tile]
) -> Generator[tuple[Tile, PairTerms], None, None]:
    """Evaluate tiles of resident operands; every idle worker takes the next tile."""
    workers = backend.limits.workers
    if workers == 1:
        begun: deque[tuple[Tile, Callable[[], PairTerms]]] = deque()
        for tile in tiles:
            begun.append((tile, backend.begin(left, right, tile)))
            if len(begun) > backend.limits.queued:
                first, finish = begun.popleft()
                yield first, finish()
        for first, finish in begun:
            yield first, finish()
        return
    with worker_pool(workers) as pool:
        futures = {pool.submit(backend.pair_terms, left, right, tile): tile for tile in tiles}
        for future in as_completed(futures):
            yield futures[future], future.result()


Progress = Callable[[int, int], None]
TileKey = tuple[int, int, int, Tile]  # pass (1 repeats all in float64), spins of i and j, tile
Results = Generator[tuple[TileKey, PairTerms], None, None]
Elsewhere = Callable[[list[TileKey]], Results]


class TileStore(Protocol):
    """Keeps the pair terms of finished tiles, as a checkpoint does."""

    tiles: dict[TileKey, PairTerms]

    def add_tile(self, key: TileKey, terms: PairTerms) -> None:
        """Take a finished tile; an exception raised here ends the work."""


def number_of_pairs(orbitals: Sequence[int]) -> int:
    """Number of orbital pairs, from the number of occupied orbitals of one spin or each."""
    pairs = sum(n * (n + 1) // 2 for n in orbitals)
    if len(orbitals) == 2:
        pairs += orbitals[0] * orbitals[1]
    return pairs


def tile_keys(shapes: Sequence[tuple[int, int, int]], limits: Limits, number: int) -> list[TileKey]:
    """All tiles of a pass: alpha, beta, alpha with beta; the largest ones of each first.

    Parameters
    ----------
    shapes : sequence of tuple[int, int, int]
        (nocc, nvir, naux) of B per spin.
    limits : Limits
        Limits of the backend.
    """
    rows = [nvir * naux for _, nvir, naux in shapes]
    keys = [
        (number, s, s, tile)
        for s, b in enumerate(shapes)
        for tile in tiling.triangle(b[0], limits, rows[s])
    ]
    if len(shapes) == 2:
        keys += [
            (number, 0, 1, tile)
            for tile in tiling.rectangle(shapes[0][0], shapes[1][0], limits, max(rows))
        ]
    return keys


def evaluate_keys(backend: Backend, operands: Sequence[TileSource], keys: list[TileKey]) -> Results:
    """Yield the tiles of one pass with their terms as they finish, one spin pair after the other;
    close it as for `evaluate`."""
    for number, i, j in dict.fromkeys(key[:3] for key in keys):
        wanted = [key[3] for key in keys if key[1:3] == (i, j)]
        with closing(evaluate(backend, operands[i], operands[j], wanted)) as results:
            for tile, terms in results:
                yield (number, i, j, tile), terms


def pair_energies(
    operands: Sequence[TileSource],
    backend: Backend,
    progress: Progress = lambda done, total: None,
    number: int = 0,
    store: TileStore | None = None,
    elsewhere: Elsewhere | None = None,
) -> PairEnergies:
    """Same-spin and opposite-spin pair energies of one (restricted) or two (alpha, beta) spin
    spaces.

    Parameters
    ----------
    operands : sequence of TileSource
        One or two spin spaces, resident in `backend` or loaded from a source.
    backend : Backend
    progress : callable, optional
        Called with (pairs done, all pairs) after every tile.
    number : int, optional
        Number of the pass over all pairs, part of the keys of tiles.
    store : TileStore, optional
        Its tiles are not computed again; it receives all others.
    elsewhere : callable, optional
        Computes tiles in other processes; tiles that it leaves out are computed here.

    Returns
    -------
    PairEnergies, float64, Eh

    Raises
    ------
    NumericalError
        A pair term is NaN or infinite; the pair is named.
    """
    matrices = _empty_matrices([operand.eps_occ.size for operand in operands])
    shapes = [(operand.eps_occ.size, *operand.b.shape[1:]) for operand in operands]
    left = dict.fromkeys(tile_keys(shapes, backend.limits, number))
    total = sum(tiling.pairs_in(key[3]) for key in left)
    if store is not None:
        for key in [key for key in left if key in store.tiles]:
            _place(matrices[key[1:3]], store.tiles[key], key[3])
            del left[key]
    reached = total - sum(tiling.pairs_in(key[3]) for key in left)
    for source in (elsewhere, lambda keys: evaluate_keys(backend, operands, keys)):
        if source is None or not left:
            continue
        with closing(source(list(left))) as results:
            for key, terms in results:
                _place(matrices[key[1:3]], terms, key[3])
                del left[key]
                reached += tiling.pairs_in(key[3])
                progress(reached, total)
                if store is not None:
                    store.add_tile(key, terms)
    if len(operands) == 1:
        same_spin = _same_spin(matrices[0, 0], 1.0)
        return _checked(PairEnergies(_unsigned(matrices[0, 0].direct), (same_spin,)))
    both = tuple(_same_spin(matrices[s, s], 0.5) for s in (0, 1))
    return _checked(PairEnergies(_unsigned(matrices[0, 1].direct), both))


def _empty_matrices(sizes: Sequence[int]) -> dict[tuple[int, int], PairTerms]:
    """Zero terms of all pairs of each channel (spins of i and j), from the numbers of occupied
    orbitals."""
    matrices = {}
    for spin, nocc in enumerate(sizes):
        matrices[spin, spin] = PairTerms(np.zeros((nocc, nocc)), np.zeros((nocc, nocc)))
    if len(sizes) == 2:
        matrices[0, 1] = PairTerms(np.zeros(tuple(sizes)), None)
    return matrices


def _place(matrices: PairTerms, terms: PairTerms, tile: Tile) -> None:
    """Put the values of a tile into the matrices; within one spin, i <= j gives both triangles."""
    i0, i1, j0, j1, diagonal = tile
    for matrix, values in zip(matrices, terms, strict=True):
        if matrix is None or values is None:
            continue
        if diagonal:
            values = values + np.triu(values, 1).T
        elif matrices.exchange is not None:
            matrix[j0:j1, i0:i1] = values.T
        matrix[i0:i1, j0:j1] = values


def _checked(pairs: PairEnergies) -> PairEnergies:
    for label, matrix in pairs.channels().items():
        bad = np.argwhere(~np.isfinite(matrix))
        if bad.size:
            i, j = bad[0] + 1
            raise NumericalError(
                f"the {label} energy of active occupied pair ({i}, {j}) is {matrix[i - 1, j - 1]}: "
                "the orbitals or integrals hold NaN or infinite numbers; check the geometry and "
                "the basis, then report this"
            )
    return pairs


def _same_spin(terms: PairTerms, factor: float) -> NDArray[np.float64]:
    """Same-spin pair energies of one spin space."""
    energies = factor * (terms.direct - cast(Array, terms.exchange))
    # direct_ii = exchange_ii; NaN and infinity remain, to be detected
    np.einsum("ii->i", energies)[:] *= 0.0
    return _unsigned(energies)


def _unsigned(energies: NDArray[np.float64]) -> NDArray[np.float64]:
    """The energies with 0 for -0, which results from a vanishing integral."""
    return energies + 0.0


# --- fitted integrals as a backend takes them -----------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PairOperands:
    """B of each spin, wherever it is stored.

    Attributes
    ----------
    b : sequence
        (nocc, nvir, naux) float64 per spin, Eh^1/2, all in memory or on disk; or float32 on the
        device, together with the arrays they are made from.
    spaces : sequence of ActiveSpace
        One per spin.
    stream_bytes : int
        Bytes of B that may be in memory at a time if it is on disk.
    threads : int
        Number of workers that round B.
    """

    b: Sequence[Any]
    spaces: Sequence[ActiveSpace]
    stream_bytes: int = 0
    threads: int = 1

    @property
    def on_device(self) -> bool:
        """Whether B was built on the device."""
        return not all(isinstance(tensor, np.ndarray | StoredTensor) for tensor in self.b)

    def on(self, backend: Backend, precision: str) -> list[TileSource]:
        """B of each spin as the backend takes it.

        Parameters
        ----------
        backend : Backend
        precision : str
            "fp64" or "mixed".
        """
        if self.on_device:
            return [tensor.at(precision) for tensor in self.b]
        order = summation_order(self.b) if precision != "fp64" else None
        sources: list[TileSource] = []
        for tensor, space in zip(self.b, self.spaces, strict=True):
            if isinstance(tensor, StoredTensor):
                sources.append(
                    StoredOperand(
                        b=tensor,
                        eps_occ=space.eps_occ,
                        eps_vir=space.eps_vir,
                        precision=precision,
                        held=self.stream_bytes,
                        order=order,
                    )
                )
                continue
            if order is not None:
                tensor = rounded(tensor, order, self.threads)
            sources.append(backend.put(tensor, space.eps_occ, space.eps_vir, precision))
        return sources


@dataclass(frozen=True, slots=True, eq=False)
class StoredOperand:
    """B of one spin on disk and its orbital energies; used in place of an Operand.

    Attributes
    ----------
    b : (nocc, nvir, naux) on disk, Eh^1/2
    eps_occ, eps_vir, precision : as in Operand
    held : bytes of B that may be in memory, both operands together
    order : order of the fitting functions in float32, (naux,); None in float64
    """

    b: StoredTensor
    eps_occ: NDArray[np.float64]
    eps_vir: NDArray[np.float64]
    precision: str
    held: int
    order: NDArray[np.intp] | None

    def read(self, i0: int, i1: int, out: NDArray[Any]) -> None:
        """Read orbitals i0:i1 into `out`, (i1-i0, nvir, naux) in C order, in its precision and
        order."""
        if self.order is None:
            self.b.read(i0, i1, out)
            return
        for i in range(i0, i1):
            np.take(self.b[i].astype(np.float32), self.order, axis=1, out=out[i - i0], mode="clip")

    @property
    def row_bytes(self) -> int:
        """Bytes of one occupied orbital in memory."""
        return self.b.shape[1] * self.b.shape[2] * np.dtype(NUMPY_TYPES[self.precision]).itemsize

    def batches(self, backend: Backend, right: StoredOperand, tiles: list[Tile]) -> Iterator[Batch]:
        """As in `dfmp2.backends.base.TileSource`."""
        same = self is right
        wide = widest(tiles)
        found = visits(tiles, self.held, self.row_bytes, right.row_bytes, same=same)
        longest = max((visit.end - visit.begin for visit in found), default=0)
        # One buffer with columns on both sides of the rows, so that they form one operand if the
        # spins are the same.
        edge = wide if same and any(visit.passing for visit in found) else 0
        buffer = self._buffer(longest + 2 * edge)
        others = [] if same else [right._buffer(wide) for _ in range(2)]
        for begin, end, mine, inside, passing in found:
            span = end - begin
            self.read(begin, end, buffer[edge : edge + span])
            if inside:
                operand = self._put(backend, buffer[edge : edge + span], [(begin, end)])
                yield operand, operand, {tile.shifted(begin, begin): tile for tile in inside}

            places = others or [buffer[:edge], buffer[edge + span : edge + span + edge]]

            def load(k: int, passing: list[Cut] = passing, places: list[Any] = places) -> Any:
                j0, j1 = passing[k]
                right.read(j0, j1, places[k % 2][: j1 - j0])
                return places[k % 2][: j1 - j0]

            for k, columns in enumerate(prefetched(load, len(passing))):
                j0, j1 = passing[k]
                batch = [
                    tile for tile in mine if (tile.j0, tile.j1) == (j0, j1) and tile not in inside
                ]
                if not same:
                    near = self._put(backend, buffer[:span], [(begin, end)])
                    far = right._put(backend, columns, [(j0, j1)])
                    shifts = begin, j0
                elif k % 2 == 0:  # columns, the unused rest of their part, rows
                    cuts = [(j0, j1), (0, edge - j1 + j0), (begin, end)]
                    near = far = self._put(backend, buffer[: edge + span], cuts)
                    shifts = begin - edge, j0
                else:
                    near = far = self._put(
                        backend, buffer[edge : edge + span + j1 - j0], [(begin, end), (j0, j1)]
                    )
                    shifts = begin, j0 - span
                yield near, far, {tile.shifted(*shifts): tile for tile in batch}

    def _put(self, backend: Backend, b: Any, cuts: list[Cut]) -> Operand:
        """A resident operand of the orbitals in `cuts`, in this order; on the host, its B is `b`
        itself."""
        eps_occ = np.concatenate([self.eps_occ[start:stop] for start, stop in cuts])
        operand: Operand = backend.put(b, eps_occ, self.eps_vir, self.precision)
        return operand

    def _buffer(self, rows: int) -> Any:
        # Zeros, because parts that are not filled yet go through `put` with the rest
        return np.zeros((rows, *self.b.shape[1:]), dtype=NUMPY_TYPES[self.precision])


def summation_order(b: Sequence[Any]) -> NDArray[np.intp]:
    """Fitting functions by increasing weight, in one order for all spins; the result does not
    depend on where B is stored.

    Parameters
    ----------
    b : sequence
        (nocc, nvir, naux) float64 per spin, in memory or on disk.
    """
    weights = np.zeros(b[0].shape[2])
    for tensor in b:
        nocc = tensor.shape[0]
        for i in np.unique(np.linspace(0, nocc - 1, min(nocc, SAMPLED)).round().astype(int)):
            rows = tensor[i]
            weights += np.einsum("ap,ap->p", rows, rows)
    return np.argsort(weights, kind="stable")


def rounded(b: Array, order: NDArray[np.intp], threads: int) -> NDArray[np.float32]:
    """B, (nocc, nvir, naux), in float32 with its fitting functions in the given order."""
    single = np.empty(b.shape, np.float32)
    each(
        len(b),
        lambda i: np.take(b[i].astype(np.float32), order, axis=1, out=single[i], mode="clip"),
        threads,
    )
    return single
