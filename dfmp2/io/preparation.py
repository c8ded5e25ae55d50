"""A prepared file (`dfmp2.io.prepared`) while it is made: beside its target, locked, gone unless it is finished.

    .NAME.part-RANDOM    /b/{alpha, beta} first, allocated as a whole and filled past HDF5; then the rest

The process that makes it holds a lock on it; a killed one loses the lock, and the next to make a file of the same name
removes what it has left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.counting import Counter, each
from dfmp2.disk import beside, move
from dfmp2.errors import ResourceError
from dfmp2.fitting import orbital_groups
from dfmp2.io.files import require_writable, settled
from dfmp2.io.prepared import SPINS, Group, numbers_hash, store
from dfmp2.prepared import Prepared
from dfmp2.scratch.dataset import allocate
from dfmp2.scratch.region import Region
from dfmp2.scratch.tensor import StoredTensor

OVERHEAD = 2_000_000  # bytes of the file beside B and the orbitals, generously: bases, input

Shape = tuple[int, int, int]
Tensor = NDArray[np.float64] | StoredTensor


class PreparedFile:
    """Where `dfmp2.parts.prepare` puts what it makes (a `dfmp2.prepared.Target`); a context manager.

    Parameters
    ----------
    target : the file that is there in the end
    overwrite : replace one that is there already
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        self._target, self._overwrite = target, overwrite
        self._part: Path | None = None
        self._descriptor = -1
        self._regions: dict[str, Region] = {}
        self._room: list[Shape] = []
        self._placed: list[StoredTensor] = []
        self._digests: list[list[Group]] = []

    def __enter__(self) -> PreparedFile:
        require_writable(self._target, overwrite=True)  # one that is there is refused when its size is known
        _remove_abandoned(self._target)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def require(self, size: int) -> None:
        """Refuse a file that is there, and a disk on which `size` bytes of B find no room.

        Raises
        ------
        ResultExists, ResourceError
        """
        require_writable(self._target, overwrite=self._overwrite, expected_bytes=size + OVERHEAD)

    def place(self, shapes: list[tuple[int, int]], naux: int) -> list[StoredTensor]:
        """Room in the file for B of each spin, which is then made there.

        Parameters
        ----------
        shapes : (nocc, nvir) per spin
        """
        self._room = [(nocc, nvir, naux) for nocc, nvir in shapes]
        self._begin(self._room)
        self._placed = [
            StoredTensor(self, name, shape, orbital_groups(*shape), signed=True)
            for name, shape in zip(SPINS, self._room, strict=False)
        ]
        return list(self._placed)

    def array(self, name: str, size: int, *, existing: bool = False) -> Region:
        """The numbers of one spin in the file."""
        return self._regions[name]

    def fill(self, b: list[Any], workers: int) -> None:
        """Store B of each spin, (nocc, nvir, naux) float64, unless it was made in its place.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        groups = [orbital_groups(*tensor.shape) for tensor in b]
        if self._placed and [tensor.shape for tensor in b] == self._room:
            hashes = [tensor.digests for tensor in self._placed]
        else:  # made in memory; or an eigenvalue cut has left less of it than there was room for
            kept, self._part, before, self._descriptor = self._part, None, self._descriptor, -1
            try:
                self._begin([tensor.shape for tensor in b])
                hashes = [
                    self._copied(name, tensor, cuts, workers)
                    for name, tensor, cuts in zip(SPINS, b, groups, strict=False)
                ]
            finally:
                _discard(kept, before)
        self._digests = [
            [Group(i0, i1, digest) for (i0, i1), digest in zip(cuts, found, strict=True)]
            for cuts, found in zip(groups, hashes, strict=True)
        ]

    def seal(self, prepared: Prepared) -> None:
        """Store everything else, and see that it is on disk.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        with _reported(self._target):
            with h5py.File(self._part, "r+", locking=False) as handle:
                store(handle, prepared, self._digests)
            os.fsync(self._descriptor)

    def publish(self) -> None:
        """Give the file its name.

        Raises
        ------
        ResultFileError : the target appeared meanwhile and may not be replaced
        ResourceError : the folder cannot be written
        """
        if self._part is None:
            raise ValueError("nothing was prepared")
        with settled(self._target):
            move(self._part, self._target, overwrite=self._overwrite)
            self._drop()

    def _begin(self, shapes: list[Shape]) -> None:
        """A new file with room for tensors of these shapes."""
        with _reported(self._target):
            self._part, self._descriptor = _made(self._target)
            with h5py.File(self._part, "w", locking=False) as handle:
                offsets = [
                    _allocated(handle.require_group("b"), name, shape)
                    for name, shape in zip(SPINS, shapes, strict=False)
                ]
        name = str(self._target)
        self._regions = {
            spin: Region(self._descriptor, offset, name) for spin, offset in zip(SPINS, offsets, strict=False)
        }

    def _copied(self, name: str, tensor: Tensor, cuts: list[tuple[int, int]], workers: int) -> tuple[str, ...]:
        """Hashes of the groups of a tensor, which are written to the file."""
        row, hashes = tensor.shape[1] * tensor.shape[2], [""] * len(cuts)

        def copy(number: int) -> None:
            i0, i1 = cuts[number]
            if isinstance(tensor, StoredTensor):
                rows = np.empty((i1 - i0, *tensor.shape[1:]))
                tensor.read(i0, i1, rows)
            else:
                rows = tensor[i0:i1]
            self._regions[name].write(i0 * row, rows)
            hashes[number] = numbers_hash(rows)

        each(Counter(len(cuts)).take, copy, workers)
        return tuple(hashes)

    def _drop(self) -> None:
        part, descriptor = self._part, self._descriptor
        self._part, self._descriptor = None, -1
        _discard(part, descriptor)


def _allocated(group: h5py.Group, name: str, shape: Shape) -> int:
    """Where B of one spin will lie."""
    offset = allocate(group, name, shape)
    for key, text in (("units", "hartree^1/2"), ("description", "fitted integrals B (nocc, nvir, naux)")):
        group[name].attrs[key] = np.bytes_(text)
    return offset


def _made(target: Path) -> tuple[Path, int]:
    """A new empty file beside the target, and the descriptor that holds its lock."""
    while True:
        part = beside(target)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):  # somebody took it for abandoned before it was locked
            if os.path.samestat(os.fstat(descriptor), os.stat(part)):
                return part, descriptor
        os.close(descriptor)


def _discard(part: Path | None, descriptor: int) -> None:
    if part is not None:
        with contextlib.suppress(OSError):
            part.unlink()
    if descriptor >= 0:
        os.close(descriptor)


def _remove_abandoned(target: Path) -> None:
    """Remove what killed processes of this user have left beside the target: files whose lock nobody holds."""
    pattern = glob.escape(str(target.parent / f".{target.name[:200]}.part-")) + "*"
    for name in glob.glob(pattern):
        with contextlib.suppress(OSError):
            descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name)
            finally:
                os.close(descriptor)


@contextmanager
def _reported(target: Path) -> Iterator[None]:
    """Say in our words what the system or HDF5 refuses."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: what HDF5 makes of a disk that fills up on closing
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error).splitlines()[0][:200]
        if number == errno.ENOSPC:
            reason += ": free some space or choose another folder with --output"
        raise ResourceError(f"cannot write {target}: {reason}: nothing was changed") from error
