"""Write files so that a reader never sees half of one: beside the target, flushed to disk,
renamed.

Below: one process at a time works on a result: an exclusive lock on `.NAME.lock` beside it, which ends
with the process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from dfmp2.errors import DiskFull, InputError, ResourceError, ResultExists, ResultFileError
from dfmp2.errors.messages import Option
from dfmp2.host.resources import free_disk, is_alive
from dfmp2.units import format_bytes

NO_FILE = (0, 0)

OUTPUT = Option("output")
LEAST_FREE = 10**6  # bytes of disk without which nothing is begun


def put(target: Path, content: bytes, *, overwrite: bool = True) -> None:
    """Write `content` to `target`; on any failure or interrupt the old file is there still, and
    nothing beside it.

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
    """Give the finished file `part` its name; where the system cannot rename without replacing,
    `part` stays as well.

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


def disk_refusal(error: OSError) -> type[ResourceError]:
    """DiskFull where nothing can be written to the disk any more, else ResourceError."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return DiskFull
    return ResourceError


def require_writable(
    target: Path, *, overwrite: bool, expected_bytes: int = LEAST_FREE, option: Option = OUTPUT
) -> None:
    """Check, before any computing, that `target`, named with `option`, can be written; leaves
    nothing behind.

    Commands ask twice: for the place (`overwrite` true) at once, for a file that is there when
    nothing else is wrong.

    Raises
    ------
    InputError : the folder does not exist, or the target is a folder or a device
    ResultExists : the target exists and `overwrite` is false
    ResourceError : the folder is not writable or the disk is too full
    """
    folder = target.parent
    try:
        if not folder.is_dir():
            raise InputError(
                option.of(str(target)),
                f": there is no folder {folder}: make it first, or name another one",
            )
        if target.is_dir() or (target.exists() and not target.is_file()):
            raise InputError(option.of(str(target)), ": not a regular file: name a file to write")
        taken = os.path.lexists(target) and not overwrite
        probe = beside(target)
        probe.touch(exist_ok=False)
        probe.unlink()
        free = free_disk(folder)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(
                option.of(f"{target.name[:40]}..."), ": the file name is too long"
            ) from error
        raise disk_refusal(error)(
            f"cannot write into {folder}: {error.strerror}: choose another folder with ", option
        ) from error
    if taken:
        raise ResultExists(
            f"{target} already exists: ",
            Option("overwrite", True),
            " replaces it, ",
            option,
            " names another file",
        )
    if free < expected_bytes:
        raise DiskFull(
            f"the disk of {folder} has {format_bytes(free)} free and about "
            f"{format_bytes(expected_bytes)} are needed: free some space or choose another "
            "folder with ",
            option,
        )


def make_folder(folder: Path, option: Option = OUTPUT) -> None:
    """Make a folder, and those above it.

    Raises
    ------
    ResourceError : it cannot be made
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_refusal(error)(
            f"cannot create the folder {folder}: {error.strerror}: choose another ", option
        ) from error


def write_atomically(target: Path, content: bytes, *, overwrite: bool) -> None:
    """Put `content` into `target`, all or nothing; on any failure or interrupt nothing is left.

    Raises
    ------
    ResultExists : the target appeared meanwhile and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    with settled(target):
        put(target, content, overwrite=overwrite)


@contextmanager
def settled(target: Path) -> Iterator[None]:
    """Put something into `target` in the block, and see that the system has it on disk.

    Raises
    ------
    ResultExists : the target appeared meanwhile
    ResourceError : the disk is full or the folder cannot be written
    """
    try:
        yield
    except FileExistsError as error:
        raise ResultExists(
            f"{target} was written by another process meanwhile: name another file"
        ) from error
    except OSError as error:
        raise disk_refusal(error)(
            f"cannot write {target}: {error.strerror}: nothing was changed"
        ) from error
    try:
        _sync_folder(target.parent)
    except OSError as error:
        raise disk_refusal(error)(
            f"{target} was written, but the system cannot confirm that it is on the disk: "
            f"{error.strerror}"
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of change of a file, NO_FILE when there is none."""
    try:
        status = path.stat()
    except OSError:
        return NO_FILE
    return status.st_size, status.st_mtime_ns


# --- locks ----------------------------------------------------------------------------------------

PATIENCE = 0.3  # s: another process that only looks who holds a lock has it for a moment
UNNAMED = 3.0  # s: which is longer on a busy machine; nobody who computes is named meanwhile
LARGEST = 4096  # bytes of a lock file

_held: dict[
    tuple[int, str], list[FileLock]
] = {}  # (process, lock file) -> its lock, once for each time it was taken


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock: its number, its machine, and since when (ISO 8601)."""

    pid: int
    host: str
    since: str

    def computes(self) -> bool:
        """Whether it is known and may be alive, rather than a process that only looks."""
        return self.pid > 0 and (self.host != socket.gethostname() or is_alive(self.pid))

    def __str__(self) -> str:
        if self.pid:
            return f"process {self.pid} on {self.host}, since {self.since}"
        return "another process"


def lock_file(target: Path) -> Path:
    """Where the lock of a result lies."""
    return target.with_name(f".{target.name.removesuffix('.h5')}.lock")


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock of `target` in the block.

    Raises
    ------
    ResultFileError : another process holds it
    ResourceError : the folder cannot be written
    """
    other = acquire_lock(target)
    if other is not None:
        raise ResultFileError(f"{target} is being computed by {other}: wait for it, or stop it")
    try:
        yield
    finally:
        release_lock(target)


def acquire_lock(target: Path) -> Holder | None:
    """Take the lock of `target` for this process, which may take it several times.

    Returns
    -------
    None when it was taken, else the process that holds it

    Raises
    ------
    ResourceError : the folder cannot be written
    """
    path = lock_file(target)
    locks = _held.setdefault(_key(path), [])
    if locks:
        locks.append(locks[0])
        return None
    lock = FileLock(path, thread_local=False)
    try:
        other = _take(lock, path, PATIENCE)
        if other is not None:
            return other
        locks.append(lock)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        path.write_text(
            json.dumps(asdict(Holder(os.getpid(), socket.gethostname(), since))), encoding="utf-8"
        )
    except OSError as error:
        release_lock(target)
        raise disk_refusal(error)(
            f"cannot write into {path.parent}: {error.strerror}: nothing was changed"
        ) from error
    return None


def release_lock(target: Path) -> None:
    """Give the lock back, if this process holds it."""
    path = lock_file(target)
    locks = _held.get(_key(path), [])
    if locks:
        lock = locks.pop()
        if not locks:
            with contextlib.suppress(OSError):
                # while it is held: whoever has opened it meanwhile sees that it has lost its name
                path.unlink()
            lock.release()


def discard_lock(target: Path) -> None:
    """Remove the lock file that a dead process has left."""
    with contextlib.suppress(ResourceError):
        if lock_file(target).exists() and acquire_lock(target) is None:
            release_lock(target)


def lock_holder(target: Path) -> Holder | None:
    """The living process that holds the lock of `target`, or None."""
    path = lock_file(target)
    if _held.get(_key(path)):
        return _read(path)
    if not path.exists():
        return None
    lock = FileLock(path, thread_local=False)
    try:
        other = _take(lock, path, 0)
        if other is None and not path.stat().st_size:
            path.unlink()  # it names nobody: this look has made it, as the holder left
    except OSError:  # it is gone, or its folder cannot be written: nobody can hold it then
        return None
    finally:
        lock.release()
    return other


def _take(lock: FileLock, path: Path, patience: float) -> Holder | None:
    """The process that has a lock; None where this one has taken it, within `patience` seconds or
    the longer ones for those that only look."""
    other = None
    for seconds in (patience, UNNAMED):
        try:
            lock.acquire(timeout=seconds, poll_interval=PATIENCE / 10)
            return None
        except Timeout:
            other = _read(path)
        if other.computes():
            break
    return other


def _key(path: Path) -> tuple[int, str]:
    return os.getpid(), os.path.abspath(path)


def _read(path: Path) -> Holder:
    """What a lock file says."""
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.loads(stream.read(LARGEST))
        return Holder(int(value["pid"]), str(value["host"])[:200], str(value["since"])[:200])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return Holder(0, "", "")
