"""Arrays on disk: flat float64 arrays accessed by position, and B(i,a,P) stored in one of them.

B is written raw by blocks of fitting functions and fitted in place by groups of orbitals. A group
of occupied orbitals i0:i1 owns a range of the file. Raw integrals are stored there in consecutive
pieces (i1-i0, nvir, p1-p0); the fit reads the pieces of a group, solves, and writes the group back
as (i1-i0, nvir, naux). Afterwards the file holds (nocc, nvir, naux) in C order.

Tensors (n, width, naux) can be written by rows and read by blocks of fitting functions, or vice
versa:

    in memory     one array
    on disk       blocks of fitting functions one after another, each (n, width, functions) in C order

A block is thus contiguous in the file, and a row is contiguous within each block.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import Dfmp2Error, ResultFileError
from dfmp2.host.files import disk_refusal
from dfmp2.host.resources import return_memory
from dfmp2.host.threads import each

if TYPE_CHECKING:
    from dfmp2.host.scratch import Space

FLOAT64 = 8
PIECE_ELEMENTS = 1 << 17  # of raw integrals read at a time: 1 MB


class FileRegion:
    """Numbers in an open file, little-endian like the hosts; several threads may read and write at
    once.

    Parameters
    ----------
    descriptor : file descriptor
    offset : offset of the first number, bytes
    name : file name, for errors

    Attributes
    ----------
    bytes_read, bytes_written : so far; slightly too low if threads collided
    """

    def __init__(self, descriptor: int, offset: int, name: str) -> None:
        self._descriptor, self._offset, self._name = descriptor, offset, name
        self.bytes_read = self.bytes_written = 0

    def write(self, start: int, values: Array) -> None:
        """Store `values` of any shape, in C order, beginning at number `start`.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        if not values.size:
            return
        left = np.ascontiguousarray(values).reshape(-1).data.cast("B")
        place = self._offset + FLOAT64 * start
        try:
            while left:
                count = os.pwrite(self._descriptor, left, place)
                left, place = left[count:], place + count
        except OSError as error:
            raise self.failure(error) from error
        self.bytes_written += values.nbytes

    def read(self, start: int, out: Array) -> None:
        """Fill the C-ordered array `out` with the numbers from `start` on.

        Raises
        ------
        ResourceError : the disk fails
        ResultFileError : the file has become shorter
        """
        if not out.size:
            return
        left = out.reshape(-1).data.cast("B")
        place = self._offset + FLOAT64 * start
        try:
            while left:
                count = os.preadv(self._descriptor, [left], place)
                if not count:
                    raise self.failure(None)
                left, place = left[count:], place + count
        except OSError as error:
            raise self.failure(error) from error
        self.bytes_read += out.nbytes

    def failure(self, error: OSError | None) -> Dfmp2Error:
        """The error for a failed access; None means that the file ends too soon."""
        if error is None:
            return ResultFileError(f"{self._name} has become shorter: prepare it again")
        return disk_refusal(error)(
            f"cannot read or write {self._name}: {error.strerror}: check the disk"
        )


def allocate(group: h5py.Group, name: str, shape: tuple[int, ...]) -> int:
    """Allocate contiguous, uninitialised float64 numbers in an open HDF5 file; returns the offset
    of the first, bytes."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    made = h5py.h5d.create(
        group.id, name.encode(), h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple(shape), layout
    )
    return int(made.get_offset() or 0)


class StoredTensor:
    """Fitted integrals of one spin on disk.

    Parameters
    ----------
    array : space for its numbers, or existing fitted numbers
    shape : (nocc, nvir, naux)
    groups : [(i0, i1)], covering all occupied orbitals in order
    signed : whether to compute the SHA-256 of each fitted group

    Attributes
    ----------
    digests : SHA-256 of each fitted group, in order; empty unless `signed`
    """

    def __init__(
        self,
        array: FileRegion,
        shape: tuple[int, int, int],
        groups: list[tuple[int, int]],
        *,
        signed: bool = False,
    ) -> None:
        self.shape = shape
        self._signed = signed
        self._groups = groups
        self._digests: dict[int, str] = {}
        self._pieces: list[tuple[int, int]] = []
        self._array = array

    @property
    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each fitted group, in order."""
        return tuple(self._digests[i0] for i0, _ in self._groups if i0 in self._digests)

    def agrees(self, digests: Sequence[str]) -> bool:
        """Whether the numbers on disk match these hashes; reads them once."""
        if len(digests) != len(self._groups):
            return False
        for (i0, i1), digest in zip(self._groups, digests, strict=True):
            if numbers_hash(self._rows(i0, i1)) != digest:
                return False
            self._digests[i0] = digest
        return True

    def add(self, p0: int, p1: int, part: Array) -> None:
        """Store raw integrals of fitting functions p0:p1, (p1-p0, nocc, nvir)."""
        _, nvir, naux = self.shape
        for i0, i1 in self._groups:
            self._array.write(
                i0 * nvir * naux + p0 * (i1 - i0) * nvir, part[:, i0:i1].transpose(1, 2, 0)
            )
        self._pieces.append((p0, p1))

    def fit(self, solve: Callable[[Array], Array], workers: int, *, shrinks: bool) -> StoredTensor:
        """Replace the raw integrals of each group with solve(rows), rows (count, naux) C-ordered.

        Parameters
        ----------
        workers : number of groups in memory at a time
        shrinks : whether rows may become shorter; groups are then processed in order, so that none
            is overwritten before it is read
        """
        return_memory()  # the integrals are complete
        if not shrinks:
            each(len(self._groups), lambda number: self._fit(solve, *self._groups[number]), workers)
            return self
        length = self.shape[2]
        for i0, i1 in self._groups:
            length = self._fit(solve, i0, i1, parts=8)
        if not self._groups:  # a spin without electrons
            length = int(solve(np.empty((0, length))).shape[1])
        self.shape = (*self.shape[:2], length)
        return self

    def read(self, i0: int, i1: int, out: Array) -> None:
        """Fill `out`, (i1-i0, nvir, naux) float64 in C order, with orbitals i0:i1."""
        if out.dtype != np.float64:
            raise TypeError(f"expected float64, got {out.dtype}")
        self._array.read(i0 * self.shape[1] * self.shape[2], out)

    def __getitem__(self, i: int) -> Array:
        """B of one occupied orbital, (nvir, naux), as for an array in memory."""
        return np.asarray(self._rows(i, i + 1)[0])

    def _rows(self, i0: int, i1: int) -> Array:
        out = np.empty((i1 - i0, *self.shape[1:]))
        self.read(i0, i1, out)
        return out

    def _fit(self, solve: Callable[[Array], Array], i0: int, i1: int, parts: int = 1) -> int:
        """Fit a group, with its rows in `parts` parts; returns the new length of a row."""
        _, nvir, naux = self.shape
        rows = self._raw_rows(i0, i1)
        digest, place, length = hashlib.sha256(), 0, naux
        step = max(1, -(-len(rows) // parts))
        for start in range(0, len(rows), step):
            fitted = solve(rows[start : start + step])
            length = int(fitted.shape[1])
            self._array.write(i0 * nvir * length + place, fitted)
            place += fitted.size
            if self._signed:
                digest.update(np.ascontiguousarray(fitted).data)
        if self._signed:
            self._digests[i0] = digest.hexdigest()
        return length

    def _raw_rows(self, i0: int, i1: int) -> Array:
        """Rows of a group before it is fitted, (rows, naux), which lie on disk in pieces of fitting
        functions."""
        _, nvir, naux = self.shape
        count = (i1 - i0) * nvir
        rows = np.empty((count, naux))
        for p0, p1 in self._pieces:
            step = max(1, PIECE_ELEMENTS // (p1 - p0))
            for start in range(0, count, step):
                piece = np.empty((min(step, count - start), p1 - p0))
                self._array.read(i0 * nvir * naux + p0 * count + start * (p1 - p0), piece)
                rows[start : start + len(piece), p0:p1] = piece
        return rows


def numbers_hash(rows: Array) -> str:
    """SHA-256 of the bytes of an array in C order."""
    return hashlib.sha256(np.ascontiguousarray(rows).data).hexdigest()


# --- tensors written by rows and read by blocks ---------------------------------------------------


class ScratchTensor:
    """A float64 tensor in memory or scratch space.

    Parameters
    ----------
    shape : (n, width, naux)
    blocks : ranges of fitting functions that cover 0..naux once
    space : scratch space for the numbers, None for memory
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
        self._file: Any = None
        if space is None:
            self._array = np.empty(shape)
        else:
            self._file = space.array(name, int(np.prod(shape)))

    def rows(self, i: int) -> Array:
        """(width, naux) of one i; in memory this is a view, which may be overwritten."""
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
        """Offset of the numbers of i in a block."""
        n, width, _ = self.shape
        return n * width * p0 + i * width * (p1 - p0)
