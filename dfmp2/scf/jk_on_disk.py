"""Fitted SCF integrals on disk: the builder of J and K (`dfmp2.scf.jk`) for what does not fit into memory.

B_P,mn is written by blocks of pairs, m in a range of shells with all n <= m: each holds all P, so the
fit is local to it. It is read back by blocks of P, the next one fetched while J and K of the present
one are built. On disk: pair blocks one after another, each (naux, columns) in C order, so that both
ways of access are long contiguous runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.host.arrays_on_disk import FLOAT64
from dfmp2.host.resources import return_memory
from dfmp2.host.scratch import Room, ScratchArray
from dfmp2.host.threads import prefetched
from dfmp2.integrals.metric import MetricFactor, factorise
from dfmp2.integrals.screening import PairList
from dfmp2.integrals.three_center import coulomb_metric, pair_integrals
from dfmp2.scf.jk import FittedIntegrals, Progress, coulomb_exchange, fit_in_place

Array = NDArray[np.float64]

BUFFERS = 2  # blocks of P in memory: the one in use and the one on its way


@dataclass(frozen=True, slots=True)
class PairBlock:
    """Columns c0:c1 of B, made from shells first:last, which reach over the packed pairs t0:t1."""

    first: int
    last: int
    c0: int
    c1: int
    t0: int
    t1: int


class DiskIntegrals(FittedIntegrals):
    """PySCF's density-fitting object with B on disk; same interface as FittedIntegrals.

    Parameters
    ----------
    mole, auxmole : PySCF molecules carrying the orbital and the fitting functions
    threads : workers
    room : disk and memory it may use
    progress : as of FittedIntegrals

    Raises
    ------
    ResourceError : the disk is full or fails, from `build` and `get_jk`
    """

    def __init__(
        self, mole: Any, auxmole: Any, threads: int, room: Room, progress: Progress = lambda done, total: None
    ) -> None:
        super().__init__(mole, auxmole, threads, progress)
        self._room = room
        self._naux = 0
        self._blocks = pair_blocks(mole, self.pairs, int(auxmole.nao), room.pair_bytes)

    def build(self) -> DiskIntegrals:
        """Write B to disk, unless it is there."""
        if self._cderi is None:
            factor = factorise(coulomb_metric(self.auxmol), overwrite=True)
            self._naux = factor.naux
            stored = self._room.space.array("scf", factor.naux * len(self.pairs.columns))
            for block in self._blocks:
                stored.write(
                    factor.naux * block.c0,
                    _fitted(self.mol, self.auxmol, self.pairs, block, factor, self.threads),
                )
                self._progress(block.c1, len(self.pairs.columns))
            self._cderi = stored
            return_memory()
        return self

    def discard(self) -> None:
        """Delete the file."""
        if self._cderi is not None:
            self._cderi.close()
            self._cderi = None

    def get_naoaux(self) -> int:
        """Fitting functions left."""
        self.build()
        return self._naux

    def loop(self, blksize: int | None = None) -> Iterator[Array]:
        """Blocks of packed triangles, for PySCF's own builder."""
        for block in self.rows():
            step = len(block) if blksize is None else max(1, int(blksize))
            for start in range(0, len(block), step):
                yield self.pairs.expand(block[start : start + step])

    def matrices(self, occupied: list[Array]) -> tuple[Array, Array]:
        """J and K of each spin, summed block by block of fitting functions."""
        nao = len(occupied[0])
        j, k = (np.zeros((len(occupied), nao, nao)) for _ in range(2))
        for block in self.rows():
            part = coulomb_exchange(block, self.pairs, occupied, self.threads, single=self.single)
            j += part[0]
            k += part[1]
        return j, k

    def rows(self) -> Iterator[Array]:
        """B in blocks of fitting functions, (n, ncolumn) float64; each is valid until the next is taken."""
        stored: ScratchArray = self.build()._cderi
        row = FLOAT64 * max(1, len(self.pairs.columns))
        step = min(self._naux, max(self.threads, self._room.read_bytes // (BUFFERS * row)))
        widest = max((block.c1 - block.c0 for block in self._blocks), default=0)
        buffers = [np.empty((step, len(self.pairs.columns))) for _ in range(BUFFERS)]
        piece = np.empty(min(step, PIECE_ROWS) * widest)

        def load(number: int) -> Array:
            p0 = number * step
            count = min(step, self._naux - p0)
            target = buffers[number % BUFFERS][:count]
            for block in self._blocks:
                columns = block.c1 - block.c0
                for start in range(0, count, PIECE_ROWS):
                    rows = min(PIECE_ROWS, count - start)
                    part = piece[: rows * columns].reshape(rows, columns)
                    stored.read(self._naux * block.c0 + (p0 + start) * columns, part)
                    target[start : start + rows, block.c0 : block.c1] = part
            return target

        yield from prefetched(load, -(-self._naux // step) if step else 0)


PIECE_ROWS = 16  # of B read at a time: long runs, small buffer


def pair_blocks(mole: Any, pairs: PairList, naux: int, pair_bytes: int) -> list[PairBlock]:
    """Cut the rows m of the packed triangle into blocks of at most `pair_bytes` of raw integrals.

    Parameters
    ----------
    naux : fitting functions
    """
    edges = [int(x) for x in mole.ao_loc_nr()]
    most = max(1, pair_bytes // (FLOAT64 * max(1, naux)))
    blocks, first = [], 0
    for last in range(1, len(edges)):
        begin = _triangle(edges[first])
        if last + 1 < len(edges) and _triangle(edges[last + 1]) - begin <= most:
            continue
        end = _triangle(edges[last])
        c0, c1 = (int(x) for x in np.searchsorted(pairs.columns, (begin, end)))
        blocks.append(PairBlock(first, last, c0, c1, begin, end))
        first = last
    return blocks


def _fitted(mole: Any, auxmole: Any, pairs: PairList, block: PairBlock, factor: MetricFactor, threads: int) -> Array:
    """B of a block of pairs, (naux, columns) float64."""
    raw = pair_integrals(mole, auxmole, block.first, block.last)
    if block.c1 - block.c0 < block.t1 - block.t0:
        raw = _compressed(raw, pairs.columns[block.c0 : block.c1] - block.t0)
    if not factor.triangular:
        return np.asarray(factor.factor.T @ raw)
    fit_in_place(raw, factor.factor, threads)
    return raw


def _compressed(raw: Array, columns: NDArray[np.intp]) -> Array:
    """Some columns of a C-ordered array, in its own memory: row by row, a shorter row never reaches the next one."""
    flat, count = raw.reshape(-1), len(columns)
    for row, values in enumerate(raw):
        flat[row * count : (row + 1) * count] = values[columns]
    return flat[: len(raw) * count].reshape(len(raw), count)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2
