"""One process at a time works on a result: an exclusive lock on `.NAME.lock` beside it, which ends
with the process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from dfmp2.errors import ResourceError, ResultFileError
from dfmp2.host.files import disk_refusal

PATIENCE = 0.3  # s: another process that only looks who holds a lock has it for a moment
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
    other = acquire(target)
    if other is not None:
        raise ResultFileError(f"{target} is being computed by {other}: wait for it, or stop it")
    try:
        yield
    finally:
        release(target)


def acquire(target: Path) -> Holder | None:
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
        lock.acquire(timeout=PATIENCE, poll_interval=PATIENCE / 10)
        locks.append(lock)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        path.write_text(
            json.dumps(asdict(Holder(os.getpid(), socket.gethostname(), since))), encoding="utf-8"
        )
    except Timeout:
        return _read(path)
    except OSError as error:
        release(target)
        raise disk_refusal(error)(
            f"cannot write into {path.parent}: {error.strerror}: nothing was changed"
        ) from error
    return None


def release(target: Path) -> None:
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


def discard(target: Path) -> None:
    """Remove the lock file that a dead process has left."""
    with contextlib.suppress(ResourceError):
        if lock_file(target).exists() and acquire(target) is None:
            release(target)


def holder(target: Path) -> Holder | None:
    """The living process that holds the lock of `target`, or None."""
    path = lock_file(target)
    if _held.get(_key(path)):
        return _read(path)
    if not path.exists():
        return None
    try:
        with FileLock(path, timeout=0, thread_local=False):
            return None
    except Timeout:
        return _read(path)
    except OSError:  # a folder that cannot be written: nobody can hold the lock either
        return None


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
