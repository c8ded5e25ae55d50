"""Pair terms from B on disk: two sets of occupied orbitals in memory, the next one on its way.

Tiles are those of a run in memory, so the numbers are the same to the last bit. For each set of rows I
that fits, tiles within I are done first; then sets of columns J pass by, J + 1 being read while the
tiles I x J are computed:

    for I:  read I;  tiles (I, I);  for J > I:  [ read J + 1 | tiles (I, J) ]

Float32 adds up fitting functions in the order of growing weight:

    (ia|jb) = sum_P B_iaP B_jbP

A sum that is large already loses the small contributions that follow, one by one, below its last digit, and the
integrals come out too small on average. Added in the order of growing sum_ia B_iaP^2, the small ones meet before the
large ones come. Float64 needs no order. Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002),
section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, Operand, Tile
from dfmp2.backends.tiling import Cut, _widest, visits
from dfmp2.host.arrays_on_disk import prefetched
from dfmp2.host.tensor_on_disk import StoredTensor
from dfmp2.host.workers import each
from dfmp2.planning.sizes import SAMPLED

DTYPES: dict[str, type[np.float32] | type[np.float64]] = {"fp64": np.float64, "mixed": np.float32}


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
    edge = wide if same and any(visit.passing for visit in found) else 0
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


def _put(backend: Backend, operand: StoredOperand, b: Any, cuts: list[Cut]) -> Operand:
    """A resident operand of the orbitals in `cuts`, in this order; on the host its B is `b` itself."""
    eps_occ = np.concatenate([operand.eps_occ[start:stop] for start, stop in cuts])
    return backend.put(b, eps_occ, operand.eps_vir, operand.precision)


def _buffer(operand: StoredOperand, rows: int) -> Any:
    # Zeros: a place that is not filled yet goes through `put` with the rest.
    return np.zeros((rows, *operand.b.shape[1:]), dtype=DTYPES[operand.precision])


def _shifted(tile: Tile, rows: int, columns: int) -> Tile:
    return Tile(tile.i0 - rows, tile.i1 - rows, tile.j0 - columns, tile.j1 - columns, tile.diagonal)


Array = NDArray[np.float64]
Index = NDArray[np.intp]


def summation_order(b: Sequence[Array | StoredTensor]) -> Index:
    """Fitting functions by growing weight, the same for all spins; wherever B lies, the same numbers.

    Parameters
    ----------
    b : (nocc, nvir, naux) float64 per spin
    """
    weights = np.zeros(b[0].shape[2])
    for tensor in b:
        nocc = tensor.shape[0]
        for i in np.unique(np.linspace(0, nocc - 1, min(nocc, SAMPLED)).round().astype(int)):
            rows = tensor.orbital(i) if isinstance(tensor, StoredTensor) else tensor[i]
            weights += np.einsum("ap,ap->p", rows, rows)
    return np.argsort(weights, kind="stable")


def rounded(b: Array, order: Index, threads: int) -> NDArray[np.float32]:
    """B, (nocc, nvir, naux), in float32 with its fitting functions in this order."""
    single = np.empty(b.shape, np.float32)
    each(len(b), lambda i: put_ordered(b[i], order, single[i]), threads)
    return single


def put_ordered(rows: Array, order: Index, out: NDArray[np.float32]) -> None:
    """B of one occupied orbital, (nvir, naux), rounded and in this order, into `out`."""
    np.take(rows.astype(np.float32), order, axis=1, out=out, mode="clip")
