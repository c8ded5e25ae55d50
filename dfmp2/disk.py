"""Put a file on disk as a whole: beside its place, flushed, renamed; a reader never sees half of it."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path


def put(target: Path, content: bytes, *, overwrite: bool = True) -> None:
    """Write `content` to `target`; on any failure or interrupt the old file is there still, and nothing beside it.

    Raises
    ------
    FileExistsError : the target is there and `overwrite` is false
    OSError : the disk is full or fails, or the folder cannot be written
    """
    part = beside(target)
    try:
        with open(part, "xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        move(part, target, overwrite=overwrite)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def move(part: Path, target: Path, *, overwrite: bool) -> None:
    """Give the finished file `part` its name; where the system cannot rename without replacing, `part` stays as well.

    Raises
    ------
    FileExistsError : the target is there and `overwrite` is false
    OSError : the disk fails, or the folder cannot be written
    """
    if overwrite:
        os.replace(part, target)
    else:
        _rename_new(part, target)


def beside(target: Path) -> Path:
    """A name in the same folder that nobody else uses."""
    return target.with_name(f".{target.name[:200]}.part-{uuid.uuid4().hex[:12]}")


def _rename_new(part: Path, target: Path) -> None:
    """Rename without replacing: a hard link fails when the name is taken."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if target.exists():
            raise FileExistsError(errno.EEXIST, "exists", str(target)) from None
        os.replace(part, target)
