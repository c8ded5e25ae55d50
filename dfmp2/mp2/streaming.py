"""Pair terms from B on disk: two sets of occupied orbitals in memory, the next one on its way.

Tiles are those of a run in memory, so the numbers are the same to the last bit. For each set of rows I
that fits, tiles within I are done first; then sets of columns J pass by, J + 1 being read while the
tiles I x J are computed:

    for I:  read I;  tiles (I, I);  for J > I:  [ read J + 1 | tiles (I, J) ]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, Operand, PairTerms, Tile
from dfmp2.mp2.summation import put_ordered
from dfmp2.scratch.space import prefetched
from dfmp2.scratch.tensor import StoredTensor

Cut = tuple[int, int]
DTYPES: dict[str, type[np.float32] | type[np.float64]] = {"fp64": np.float64, "mixed": np.float32}


class Visit(NamedTuple):
    """Rows begin:end are read. Some of their tiles, `mine`, lie `inside` them; columns pass for the others."""

    begin: int
    end: int
    mine: list[Tile]
    inside: list[Tile]
    passing: list[Cut]


@dataclass(frozen=True, slots=True, eq=False)
class StoredOperand:
    """One spin's B on disk and its orbital energies; takes the place of an Operand.

    Attributes
    ----------
    b : (nocc, nvir, naux) on disk, Eh^1/2
    eps_occ, eps_vir, precision : as of Operand
    held : bytes of B that may be in memory, of both operands together
    order : of the fitting functions in float32, (naux,); None in float64
    """

    b: StoredTensor
    eps_occ: NDArray[np.float64]
    eps_vir: NDArray[np.float64]
    precision: str
    held: int
    order: NDArray[np.intp] | None

    def read(self, i0: int, i1: int, out: NDArray[Any]) -> None:
        """Fill `out`, (i1-i0, nvir, naux) in C order, with orbitals i0:i1 as the precision wants them."""
        if self.order is None:
            self.b.read(i0, i1, out)
            return
        for i in range(i0, i1):
            put_ordered(self.b.orbital(i), self.order, out[i - i0])

    @property
    def row_bytes(self) -> int:
        """Bytes of one occupied orbital in memory."""
        return self.b.shape[1] * self.b.shape[2] * np.dtype(DTYPES[self.precision]).itemsize


def batches(
    backend: Backend, left: StoredOperand, right: StoredOperand, tiles: list[Tile]
) -> Iterator[tuple[Operand, Operand, dict[Tile, Tile]]]:
    """Resident operands, and for each tile of the batch (in their own numbering) the tile it stands for.

    What is yielded is valid until the next is taken.
    """
    same = left is right
    wide = _widest(tiles)
    found = visits(tiles, left.held, left.row_bytes, right.row_bytes, same=same)
    longest = max((visit.end - visit.begin for visit in found), default=0)
    # One buffer, columns at either end of the rows, so that both are one operand where the spins are the same.
    edge = wide if same and len(_columns(tiles)) > 1 else 0
    buffer = _buffer(left, longest + 2 * edge)
    others = [] if same else [_buffer(right, wide) for _ in range(2)]
    for begin, end, mine, inside, passing in found:
        span = end - begin
        left.read(begin, end, buffer[edge : edge + span])
        if inside:
            operand = _put(backend, left, buffer[edge : edge + span], [(begin, end)])
            yield operand, operand, {_shifted(tile, begin, begin): tile for tile in inside}

        places = others or [buffer[:edge], buffer[edge + span : edge + span + edge]]

        def load(k: int, passing: list[Cut] = passing, places: list[Any] = places) -> Any:
            j0, j1 = passing[k]
            right.read(j0, j1, places[k % 2][: j1 - j0])
            return places[k % 2][: j1 - j0]

        for k, columns in enumerate(prefetched(load, len(passing))):
            j0, j1 = passing[k]
            batch = [tile for tile in mine if (tile.j0, tile.j1) == (j0, j1) and tile not in inside]
            if not same:
                near, far = (
                    _put(backend, left, buffer[:span], [(begin, end)]),
                    _put(backend, right, columns, [(j0, j1)]),
                )
                shifts = begin, j0
            elif k % 2 == 0:  # columns, what is left of their place, rows
                near = far = _put(backend, left, buffer[: edge + span], [(j0, j1), (0, edge - j1 + j0), (begin, end)])
                shifts = begin - edge, j0
            else:
                near = far = _put(backend, left, buffer[edge : edge + span + j1 - j0], [(begin, end), (j0, j1)])
                shifts = begin, j0 - span
            yield near, far, {_shifted(tile, *shifts): tile for tile in batch}


def visits(tiles: list[Tile], held: int, left_row: int, right_row: int, *, same: bool) -> list[Visit]:
    """In which order B is read.

    Parameters
    ----------
    held : bytes of B that may be in memory
    left_row, right_row : bytes of an occupied orbital of either side
    same : whether both sides are one spin
    """
    room = held - 2 * _widest(tiles) * right_row
    found = []
    for rows in _sets(_rows(tiles), room // max(1, left_row)):
        begin, end = rows[0][0], rows[-1][1]
        mine = [tile for tile in tiles if begin <= tile.i0 and tile.i1 <= end]
        inside = [tile for tile in mine if same and begin <= tile.j0 and tile.j1 <= end]
        passing = sorted({(tile.j0, tile.j1) for tile in mine} - {(tile.j0, tile.j1) for tile in inside})
        found.append(Visit(begin, end, mine, inside, passing))
    return found


def original(local: dict[Tile, Tile], results: Iterator[tuple[Tile, PairTerms]]) -> Iterator[tuple[Tile, PairTerms]]:
    """Results of a batch with the tiles they stand for."""
    for tile, terms in results:
        yield local[tile], terms


def _put(backend: Backend, operand: StoredOperand, b: Any, cuts: list[Cut]) -> Operand:
    """A resident operand of the orbitals in `cuts`, in this order; on the host its B is `b` itself."""
    eps_occ = np.concatenate([operand.eps_occ[start:stop] for start, stop in cuts])
    return backend.put(b, eps_occ, operand.eps_vir, operand.precision)


def _buffer(operand: StoredOperand, rows: int) -> Any:
    # Zeros: a place that is not filled yet goes through `put` with the rest.
    return np.zeros((rows, *operand.b.shape[1:]), dtype=DTYPES[operand.precision])


def _sets(cuts: list[Cut], most: int) -> list[list[Cut]]:
    """Neighbouring cuts put together while they span at most `most` orbitals; one cut at least."""
    sets: list[list[Cut]] = []
    for cut in cuts:
        if sets and cut[1] - sets[-1][0][0] <= most:
            sets[-1].append(cut)
        else:
            sets.append([cut])
    return sets


def _widest(tiles: list[Tile]) -> int:
    return max((cut[1] - cut[0] for cut in _columns(tiles)), default=0)


def _rows(tiles: list[Tile]) -> list[Cut]:
    return sorted({(tile.i0, tile.i1) for tile in tiles})


def _columns(tiles: list[Tile]) -> list[Cut]:
    return sorted({(tile.j0, tile.j1) for tile in tiles})


def _shifted(tile: Tile, rows: int, columns: int) -> Tile:
    return Tile(tile.i0 - rows, tile.i1 - rows, tile.j0 - columns, tile.j1 - columns, tile.diagonal)
