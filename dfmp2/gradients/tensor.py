"""Tensors (n, width, naux) that are written one way and read another: by rows, or by blocks of
fitting functions.

    in memory     one array
    on disk       blocks of fitting functions one after another, each (n, width, functions) in C order

so that a block is one run of the file, and a row one run in each block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.host.scratch import Space

Array = NDArray[np.float64]


class ScratchTensor:
    """Numbers float64 in memory or in scratch space.

    Parameters
    ----------
    shape : (n, width, naux)
    blocks : ranges of fitting functions, covering 0..naux once
    space : scratch space they go to, None for memory
    name : of the file
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        blocks: list[tuple[int, int]],
        space: Space | None,
        name: str,
    ):
        self.shape, self.blocks = shape, blocks
        self._array: Array = np.empty(0)
        if space is None:
            self._array = np.empty(shape)
        self._file: Any = None if space is None else space.array(name, int(np.prod(shape)))

    def rows(self, i: int) -> Array:
        """(width, naux) of one i; in memory the numbers themselves, which may be overwritten."""
        if self._file is None:
            return np.asarray(self._array[i])
        rows = np.empty(self.shape[1:])
        for p0, p1 in self.blocks:
            part = np.empty((self.shape[1], p1 - p0))
            self._file.read(self._place(p0, p1, i), part)
            rows[:, p0:p1] = part
        return rows

    def put_rows(self, i: int, rows: Array) -> None:
        """Store (width, naux) of one i."""
        if self._file is None:
            self._array[i] = rows
        else:
            for p0, p1 in self.blocks:
                self._file.write(self._place(p0, p1, i), np.ascontiguousarray(rows[:, p0:p1]))

    def block(self, p0: int, p1: int) -> Array:
        """(n, width, p1-p0) of one of the blocks."""
        if self._file is None:
            return np.asarray(self._array[:, :, p0:p1])
        found = np.empty((*self.shape[:2], p1 - p0))
        self._file.read(self._place(p0, p1, 0), found)
        return found

    def put_block(self, p0: int, p1: int, values: Array) -> None:
        """Store (n, width, p1-p0) of one of the blocks."""
        if self._file is None:
            self._array[:, :, p0:p1] = values
        else:
            self._file.write(self._place(p0, p1, 0), np.ascontiguousarray(values))

    def discard(self) -> None:
        """Free the memory, or delete the file."""
        self._array = np.empty(0)
        if self._file is not None:
            self._file.close()

    def _place(self, p0: int, p1: int, i: int) -> int:
        """Where the numbers of i begin in a block."""
        n, width, _ = self.shape
        return n * width * p0 + i * width * (p1 - p0)
