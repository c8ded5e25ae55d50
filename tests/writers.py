"""Faults of the system in whatever writes files: full disks, I/O errors, short writes, at every step."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from dfmp2.io import files

Fault = tuple[str, int]  # the step that fails, and how

FAULTS: tuple[Fault, ...] = (
    ("open", errno.EACCES),
    ("open", errno.EROFS),
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("short write", errno.ENOSPC),
    ("flush", errno.EDQUOT),
    ("fsync", errno.EIO),
    ("fsync", errno.ENOSPC),
    ("rename", errno.EIO),
    ("rename", errno.ENOSPC),
)


class _Failing(io.BytesIO):
    """A file on a disk that fails; what was accepted is on it."""

    def __init__(self, path: Path, fault: Fault) -> None:
        super().__init__()
        self._file = open(path, "xb")  # noqa: SIM115 - closed with this one
        self._step, self._number = fault

    def write(self, content: Any) -> int:
        if self._step == "write":
            raise OSError(self._number, os.strerror(self._number))
        if self._step == "short write":
            self._file.write(bytes(content[: len(content) // 2]))
            self._file.flush()
            raise OSError(self._number, os.strerror(self._number))
        return self._file.write(content)

    def flush(self) -> None:
        if self._step == "flush":
            raise OSError(self._number, os.strerror(self._number))
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


@contextmanager
def failing(fault: Fault, only: Callable[[str], bool] = lambda name: True) -> Iterator[list[str]]:
    """Let every file written in the block fail at one step; yields the names of the files that met the fault.

    Parameters
    ----------
    only : of a file's name: whether it is on the bad disk
    """
    step, number = fault
    met: list[str] = []
    descriptors: set[int] = set()

    def opened(path: Any, mode: str = "r", **named: Any) -> Any:
        if "x" not in mode or not only(Path(path).name):
            handle = open(path, mode, **named)  # noqa: SIM115 - the caller's
            descriptors.discard(handle.fileno())  # the number of a bad one before, used again
            return handle
        if step == "open":
            met.append(Path(path).name)
            raise OSError(number, os.strerror(number), str(path))
        if step in ("write", "short write", "flush"):
            met.append(Path(path).name)
            return _Failing(Path(path), fault)
        handle = open(path, mode, **named)  # noqa: SIM115 - the caller's
        descriptors.add(handle.fileno())
        return handle

    def broken(original: Callable[..., Any], name: Callable[..., str | None]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found = name(*given)
            if found is None:
                return original(*given, **named)
            met.append(found)
            raise OSError(number, os.strerror(number), found)

        return call

    def of_fsync(descriptor: int) -> str | None:
        return "fsync" if step == "fsync" and descriptor in descriptors else None

    def of_rename(part: Any, target: Any) -> str | None:
        return str(target) if step == "rename" and only(Path(part).name) else None

    with (
        mock.patch.object(files, "open", opened, create=True),
        mock.patch.object(os, "fsync", broken(os.fsync, of_fsync)),
        mock.patch.object(os, "replace", broken(os.replace, of_rename)),
        mock.patch.object(os, "link", broken(os.link, of_rename)),
    ):
        yield met
