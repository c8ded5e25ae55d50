"""The fitted integrals as a backend takes them: in float64 or rounded to float32, from memory or
from disk.

If B is on disk, two sets of occupied orbitals are in memory while the next one is read. The tiles
are those of a run in memory, so the numbers are the same to the last bit. For each set of rows I
that fits, the tiles within I are done first; then sets of columns J pass by, J + 1 being read while
the tiles I x J are computed:

    for I:  read I;  tiles (I, I);  for J > I:  [ read J + 1 | tiles (I, J) ]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.backends.base import NUMPY_TYPES, Backend, Batch, Operand, Tile, TileSource
from dfmp2.backends.tiling import Cut, visits, widest
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.threads import each, prefetched
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.planning.sizes import SAMPLED


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
