"""A range of a file as a flat array of float64 numbers, read and written past the library that made the file.

HDF5 tells where a contiguous dataset lies; here its bytes are moved by position, in the order the file has them, so
that several threads may do so at once and arrays of any shape may pass. Little-endian, as the hosts are.
"""

from __future__ import annotations

import os
from typing import Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import ResourceError, ResultFileError


def allocate(group: h5py.Group, name: str, shape: tuple[int, ...]) -> int:
    """Room in an open file for float64 numbers of any content, contiguous; the place of the first one, bytes."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    made = h5py.h5d.create(group.id, name.encode(), h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple(shape), layout)
    return int(made.get_offset() or 0)


Array = NDArray[np.float64]

FLOAT64 = 8
CHUNK = 1 << 20  # bytes read at a time: what a read costs in memory beside its target


class Numbers(Protocol):
    """A flat array of float64 numbers on disk."""

    def write(self, start: int, values: Array) -> None:
        """Store C-ordered `values` of any shape from number `start` on."""

    def read(self, start: int, out: Array) -> None:
        """Fill the C-ordered array `out` with the numbers from `start` on."""


class Region:
    """Numbers in an open file.

    Parameters
    ----------
    descriptor : of the file, which the caller keeps open
    offset : of the first number, bytes
    name : of the file, for errors

    Attributes
    ----------
    bytes_read, bytes_written : so far; a little less where threads met
    """

    def __init__(self, descriptor: int, offset: int, name: str) -> None:
        self._descriptor, self._offset, self._name = descriptor, offset, name
        self.bytes_read = self.bytes_written = 0

    def write(self, start: int, values: Array) -> None:
        """Store C-ordered `values` of any shape from number `start` on.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        if not values.size:
            return
        left, place = np.ascontiguousarray(values).data.cast("B"), self._offset + FLOAT64 * start
        self.bytes_written += len(left)
        try:
            while left:
                count = os.pwrite(self._descriptor, left, place)
                left, place = left[count:], place + count
        except OSError as error:
            raise ResourceError(f"cannot write {self._name}: {error.strerror}: nothing was changed") from error

    def read(self, start: int, out: Array) -> None:
        """Fill the C-ordered array `out` with the numbers from `start` on.

        Raises
        ------
        ResourceError : the disk fails
        ResultFileError : the file is shorter than it was
        """
        if not out.size:
            return
        left, place = out.reshape(-1).data.cast("B"), self._offset + FLOAT64 * start
        self.bytes_read += len(left)
        try:
            while left:
                part = os.pread(self._descriptor, min(len(left), CHUNK), place)
                if not part:
                    raise ResultFileError(f"{self._name} has become shorter: prepare it again")
                left[: len(part)] = part
                left, place = left[len(part) :], place + len(part)
        except OSError as error:
            raise ResourceError(f"cannot read {self._name}: {error.strerror}: check the disk") from error
