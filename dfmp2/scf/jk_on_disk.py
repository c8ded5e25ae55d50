"""Fitted SCF integrals on disk: the builder of J and K (`dfmp2.scf.jk`) for integrals that do not
fit into memory.

B_P,mn is written in blocks of pairs, m in a range of shells with all n <= m: each block holds all
P, so its fit is local. It is read back in blocks of P, the next one being fetched while J and K of
the present one are built. The file holds the pair blocks one after another, each (naux, columns) in
C order, so that both kinds of access use long contiguous runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.host.arrays_on_disk import FLOAT64
from dfmp2.host.resources import return_memory
from dfmp2.host.scratch import Room, ScratchArray
from dfmp2.host.threads import prefetched, shares
from dfmp2.integrals.metric import factorise
from dfmp2.integrals.screening import PairBlock, PairList, ends_of, pair_groups
from dfmp2.integrals.three_center import coulomb_metric, pair_integrals
from dfmp2.scf.jk import (
    JKFitting,
    Progress,
    accumulated,
    column_squares,
    fit_columns,
    rows_at_a_time,
)

BUFFERS = 2  # blocks of P in memory: one in use and one being read


class DiskIntegrals(JKFitting):
    """PySCF's density-fitting object with B on disk; same interface as JKFitting.

    Parameters
    ----------
    mole, auxmole : PySCF molecules with the orbital and the fitting functions
    threads : number of workers
    room : disk and memory it may use
    progress, pairs : as in JKFitting

    Raises
    ------
    ResourceError : the disk is full or fails, from `build` and `get_jk`
    """

    def __init__(
        self,
        mole: Any,
        auxmole: Any,
        threads: int,
        room: Room,
        progress: Progress = lambda done, total: None,
        pairs: PairList | None = None,
    ) -> None:
        super().__init__(mole, auxmole, threads, progress, pairs)
        self._room = room
        self._blocks = pair_groups(
            mole, self.pairs, room.pair_bytes // (FLOAT64 * int(auxmole.nao))
        )
        self._groups = pair_groups(mole, self.pairs)

    def _like(self, mole: Any, auxmole: Any) -> DiskIntegrals:
        """A builder of the same kind for other integrals, in its own file."""
        return DiskIntegrals(
            mole, auxmole, self.threads, self._room, progress=self._progress, pairs=self.pairs
        )

    def build(self) -> DiskIntegrals:
        """Write B to disk, unless it exists."""
        if self._cderi is None:
            factor = factorise(coulomb_metric(self.auxmol), overwrite=True)
            self._naux = factor.naux
            stored = self._room.space.array(self.name, factor.naux * len(self.pairs.columns))
            self.squares = np.empty(len(self.pairs.columns))
            for block in self._blocks:
                groups = [
                    group for group in self._groups if block.first <= group.first < block.last
                ]
                raw = _integrals(self.mol, self.auxmol, self.pairs, block)
                fitted = fit_columns(raw, factor, ends_of(groups), self.threads)
                self.squares[block.c0 : block.c1] = column_squares(fitted)
                stored.write(factor.naux * block.c0, fitted)
                del raw, fitted
                self._progress(block.c1, len(self.pairs.columns))
            self._cderi = stored
            self.operations[0] += factor.naux**2 * len(self.pairs.columns)
            return_memory()
        return self

    def discard(self) -> None:
        """Delete the file, and the long-range one."""
        if self._cderi is not None:
            self._cderi.close()
            self._cderi = None
        for builder in self._long_range.values():
            builder.discard()

    def get_naoaux(self) -> int:
        """Number of fitting functions kept."""
        self.build()
        return self._naux

    def matrices(
        self, occupied: list[Array], *, exchange: bool = True, rows: bool = False
    ) -> tuple[Array, Array]:
        """J and K of each spin, bit for bit those from integrals in memory."""
        self.build()
        how = self._products(exchange, rows)
        self._count(occupied, how)
        ranges = shares(self._naux, self.threads)
        few, _ = rows_at_a_time(self.pairs, occupied)
        step = max(few, self._most() // self.threads // few * few)
        count = max(-(-(stop - start) // step) for start, stop in ranges)
        cuts = [
            [
                (min(start + k * step, stop), min(start + (k + 1) * step, stop))
                for start, stop in ranges
            ]
            for k in range(count)
        ]
        read = self._read(cuts)
        j, k = accumulated(read, self._naux, self.pairs, occupied, self.threads, how)
        return j, self._whole(k, occupied, how)

    def _most(self) -> int:
        """Number of fitting functions that may be in memory at a time."""
        return self._room.read_bytes // (BUFFERS * FLOAT64 * max(1, len(self.pairs.columns)))

    def _read(self, cuts: list[list[tuple[int, int]]]) -> Iterator[list[Array]]:
        """Ranges of fitting functions, several at a time, (n, ncolumn) each; valid until the next
        are requested."""
        most = max((sum(p1 - p0 for p0, p1 in ranges) for ranges in cuts), default=0)
        widest = max((block.c1 - block.c0 for block in self._blocks), default=0)
        buffers = [np.empty((most, len(self.pairs.columns))) for _ in range(BUFFERS)]
        piece = np.empty(min(most, PIECE_ROWS) * widest)

        def load(number: int) -> list[Array]:
            ends = np.cumsum([0, *(p1 - p0 for p0, p1 in cuts[number])])
            targets = [buffers[number % BUFFERS][begin:end] for begin, end in pairwise(ends)]
            for target, (p0, _) in zip(targets, cuts[number], strict=True):
                self._fill(target, p0, piece)
            return targets

        yield from prefetched(load, len(cuts))

    def _fill(self, target: Array, p0: int, piece: Array) -> None:
        """Read B of fitting functions from p0 on, (n, ncolumn), through a small buffer."""
        stored: ScratchArray = self._cderi
        for block in self._blocks:
            columns = block.c1 - block.c0
            for start in range(0, len(target), PIECE_ROWS):
                rows = min(PIECE_ROWS, len(target) - start)
                part = piece[: rows * columns].reshape(rows, columns)
                stored.read(self._naux * block.c0 + (p0 + start) * columns, part)
                target[start : start + rows, block.c0 : block.c1] = part


PIECE_ROWS = 16  # of B read at a time: long runs, small buffer


def _integrals(mole: Any, auxmole: Any, pairs: PairList, block: PairBlock) -> Array:
    """(Q|mn) of a block of pairs, (naux, columns) float64."""
    raw = pair_integrals(mole, auxmole, block.first, block.last)
    if block.c1 - block.c0 < block.t1 - block.t0:
        raw = _compressed(raw, pairs.columns[block.c0 : block.c1] - block.t0)
    return raw


def _compressed(raw: Array, columns: NDArray[np.intp]) -> Array:
    """Some columns of a C-ordered array, moved within its own memory: row by row, a shorter row
    never reaches the next one."""
    flat, count = raw.reshape(-1), len(columns)
    for row, values in enumerate(raw):
        flat[row * count : (row + 1) * count] = values[columns]
    return flat[: len(raw) * count].reshape(len(raw), count)
