"""Arrays on disk: flat float64 HDF5 datasets in a run's scratch folder, with every byte counted.

    read, write: numbers [start, start + n) of a dataset of fixed length, contiguous in its file

HDF5 releases the interpreter while it reads, so a thread can fetch the next block during a computation.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import Interrupted, ResourceError
from dfmp2.host.resources import free_disk
from dfmp2.host.scratch import SUFFIX, keep_for, make_folder, remove_folder, remove_stale, require_space, take_over
from dfmp2.units import format_bytes

Array = NDArray[np.float64]
Loaded = TypeVar("Loaded")

FLOAT64 = 8


class Space:
    """Scratch space of one run; a context manager that leaves nothing behind.

    Parameters
    ----------
    root : folder to make the run's own folder in; nothing is made before the first array
    needed : bytes the run will write, checked on entry; 0 when all fits into memory

    Attributes
    ----------
    written, read : bytes so far
    folder : the run's own folder, None while there is none
    """

    def __init__(self, root: Path, needed: int) -> None:
        self.root, self.needed = root, needed
        self.written = self.read = 0
        self.folder: Path | None = None
        self._lock: int | None = None
        self._arrays: list[StoredArray] = []
        self._kept = False

    def __enter__(self) -> Space:
        remove_stale(self.root)
        if self.needed:
            require_space(self.root, self.needed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept and kind is not None and issubclass(kind, (KeyboardInterrupt, Interrupted)):
            self.leave()
        self.close()

    def keep(self, checkpoint: str) -> bool:
        """Leave the folder behind if this run is stopped, for the one that goes on from the file `checkpoint`.

        Returns
        -------
        False when its files cannot be made ready for that
        """
        if self.folder is None:
            return False
        try:
            for array in self._arrays:
                array.flush()
            keep_for(self.folder, checkpoint)
        except (OSError, RuntimeError):  # what HDF5 raises when it cannot flush
            return False
        self._kept = True
        return True

    def adopt(self, folder: Path) -> bool:
        """Take the folder that a stopped run has left; false when it is gone or somebody else has it."""
        if self.folder is not None:
            return False
        lock = take_over(folder)
        if lock is None:
            return False
        self.folder, self._lock, self._kept = folder, lock, True
        return True

    def leave(self) -> None:
        """Close everything and delete nothing."""
        while self._arrays:
            self._arrays.pop().close(delete=False)
        self.folder = None

    def close(self) -> None:
        """Remove everything; a signal that comes meanwhile is raised afterwards."""
        stopped: BaseException | None = None
        while True:
            try:
                self._remove()
                break
            except (KeyboardInterrupt, Interrupted) as signal:
                stopped = signal
        if stopped is not None:
            raise stopped

    def array(self, name: str, size: int, *, existing: bool = False) -> StoredArray:
        """A new array of `size` numbers in a file of its own, or one of an adopted folder.

        Raises
        ------
        ResourceError : the folder or the file cannot be made
        """
        array = StoredArray(self, self.own_folder() / f"{name}{SUFFIX}", size, existing=existing)
        self._arrays.append(array)
        return array

    def own_folder(self) -> Path:
        """The run's own folder, made if there is none yet.

        Raises
        ------
        ResourceError : it cannot be made
        """
        if self.folder is None:
            self.folder, self._lock = make_folder(self.root)
        return self.folder

    def refuse(self, reason: object) -> ResourceError:
        """The error for a failed access to the folder, with the space needed and left."""
        try:
            free = f"{format_bytes(free_disk(self.root))} are free now"
        except OSError:
            free = "the free space is unknown"
        return ResourceError(
            f"scratch folder {self.root}: {reason}: the run needs {format_bytes(self.needed)} there, "
            f"{format_bytes(self.written)} had been written and {free}: name a folder on a larger disk with --scratch, "
            "or allow more --memory"
        )

    def _remove(self) -> None:
        while self._arrays:
            self._arrays[-1].close()
            self._arrays.pop()
        if self.folder is not None:
            remove_folder(self.folder)
            self.folder, self._kept = None, False
        if self._lock is not None:
            lock, self._lock = self._lock, None
            os.close(lock)


class StoredArray:
    """A flat array of float64 numbers on disk; made by `Space.array`."""

    def __init__(self, space: Space, path: Path, size: int, *, existing: bool = False) -> None:
        self._space, self._path, self.size = space, path, size
        self._waiting = False
        try:
            # Nobody else opens the file, and some file systems of clusters have no locks.
            self._file = h5py.File(path, "r" if existing else "x", locking=False)
            self._data: Any = self._file["b"] if existing else self._file.create_dataset("b", (size,), dtype=np.float64)
        except OSError as error:
            raise space.refuse(_reason(error)) from error

    def write(self, start: int, values: Array) -> None:
        """Store C-ordered `values` of any shape from number `start` on.

        Raises
        ------
        ResourceError : the disk is full or fails
        """
        self._waiting = True
        try:
            self._data[start : start + values.size] = values.reshape(-1)
        except OSError as error:
            raise self._space.refuse(_reason(error)) from error
        self._space.written += FLOAT64 * values.size

    def read(self, start: int, out: Array) -> None:
        """Fill the C-ordered array `out` with the numbers from `start` on.

        Raises
        ------
        ResourceError : the disk fails
        """
        try:
            self._require_length(start + out.size)
            if out.size:
                self._data.read_direct(out.reshape(-1), np.s_[start : start + out.size])
        except OSError as error:
            raise self._space.refuse(_reason(error)) from error
        self._space.read += FLOAT64 * out.size

    def _require_length(self, stop: int) -> None:
        """Refuse a file that somebody has cut short: HDF5 would give zeros beyond its end."""
        end = (self._data.id.get_offset() or 0) + FLOAT64 * stop
        handle = self._file.id.get_vfd_handle()
        if self._waiting:  # small writes wait in HDF5's buffer
            self._waiting = False
            self._file.flush()
        if os.fstat(handle).st_size < end:
            raise OSError(0, f"{self._path.name} is shorter than what was written to it")

    def flush(self) -> None:
        """Give everything to the system, so that another process can read it."""
        if self._file:  # not closed
            self._waiting = False
            self._file.flush()

    def close(self, *, delete: bool = True) -> None:
        """Close and delete the file; harmless when repeated."""
        with contextlib.suppress(OSError, RuntimeError):  # what could not be flushed to a full disk is not wanted
            self._file.close()
        if not delete:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()


def prefetched(load: Callable[[int], Loaded], count: int) -> Iterator[Loaded]:
    """load(0), load(1), ...: each is fetched by a thread while the caller works on the one before.

    `load(k)` must leave what `load(k - 1)` returned as it is.
    """
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(load, 0) if count else None
        for k in range(count):
            if coming is None:
                return
            present = coming.result()
            coming = pool.submit(load, k + 1) if k + 1 < count else None
            yield present


def _reason(error: OSError) -> str:
    """What the system said, without HDF5's account of where."""
    text = str(error)
    if error.errno:
        return os.strerror(error.errno)
    if "error message = '" in text:
        return text.split("error message = '")[1].split("'")[0]
    return text
