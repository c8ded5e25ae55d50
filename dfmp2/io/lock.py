"""One process at a time works on a result: a lock file beside it says which, and a dead process holds nothing.

    .NAME.lock    {"pid": 4711, "host": "node7", "boot": "3f0c...", "started": "813025", "since": "2026-11-21T09:..."}

A process is known by its number and its start time, so that a number the system has given to another process later
is not taken for it. A process of another machine cannot be looked up: its lock counts while it is touched now and then
(`refresh`). Ages are differences of times that the file system itself gave, so that clocks need not agree.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from dfmp2.errors import ResourceError

REFRESH_EVERY = 20.0  # s between two touches of a lock that is held
FORGOTTEN = 300.0  # s without a touch after which the lock of another machine's process is void
LARGEST = 4096  # bytes of a lock file


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock.

    Attributes
    ----------
    pid, host : process number and machine
    boot : identity of the machine's present start, "" where the system has none
    started : start time of the process in the system's units, "" where it is not known
    since : when the lock was taken, ISO 8601
    """

    pid: int
    host: str
    boot: str
    started: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


def lock_file(target: Path) -> Path:
    """Where the lock of a result lies."""
    return target.with_name(f".{target.name.removesuffix('.h5')}.lock")


def acquire(target: Path) -> Holder | None:
    """Take the lock of `target` for this process; the lock of a dead process is taken over.

    Returns
    -------
    None when it was taken, else the living process that holds it

    Raises
    ------
    ResourceError : the folder cannot be written
    """
    path = lock_file(target)
    try:
        with _one_at_a_time(path.parent):
            other = holder(target)
            if other is not None:
                return other
            part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
            try:
                part.write_text(json.dumps(asdict(_this_process())), encoding="utf-8")
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot write into {path.parent}: {error.strerror}: nothing was changed") from error
    return None


def release(target: Path) -> None:
    """Give up the lock, if this process holds it."""
    path = lock_file(target)
    with contextlib.suppress(OSError), _one_at_a_time(path.parent):
        found = _read(path)
        this = _this_process()
        if found is not None and (found.pid, found.host, found.started) == (this.pid, this.host, this.started):
            path.unlink()


def discard(target: Path) -> None:
    """Remove the lock that a dead process left."""
    path = lock_file(target)
    with contextlib.suppress(OSError), _one_at_a_time(path.parent):
        if holder(target) is None:
            path.unlink(missing_ok=True)


def refresh(target: Path) -> None:
    """Show processes of other machines that the holder still lives."""
    with contextlib.suppress(OSError):
        os.utime(lock_file(target))


def holder(target: Path) -> Holder | None:
    """The living process that holds the lock of `target`, or None."""
    path = lock_file(target)
    found = _read(path)
    if found is None:
        return None
    if found.host == socket.gethostname() and found.boot == _boot():
        return found if _lives(found) else None
    return None if _age(path) > FORGOTTEN else found


def _read(path: Path) -> Holder | None:
    """What a lock file says, None when there is none or it says nothing."""
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.loads(stream.read(LARGEST))
        texts = (str(value[name])[:200] for name in ("host", "boot", "started", "since"))
        return Holder(int(value["pid"]), *texts)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _this_process() -> Holder:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return Holder(os.getpid(), socket.gethostname(), _boot(), _started(os.getpid()), since)


def _lives(process: Holder) -> bool:
    try:
        os.kill(process.pid, 0)
    except PermissionError:
        pass  # somebody else's, so it lives
    except (OSError, OverflowError):
        return False
    return _started(process.pid) == process.started


def _started(pid: int) -> str:
    """Start time of a process, "" where it cannot be found out and "ended" for one that only waits to be buried."""
    try:
        # The second field is the program's name in parentheses, which may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if fields[0] in "ZX" else fields[19]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _age(path: Path) -> float:
    """Seconds since a file was touched, by the clock of the file system it lies on."""
    probe = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        probe.touch(exist_ok=False)
        return probe.stat().st_mtime - path.stat().st_mtime
    except OSError:
        return 0.0  # a folder that cannot be written: nobody can take the lock either
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine out while a lock changes hands; the system ends it with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:  # file systems without such locks: what remains is a gap of microseconds
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF):
                raise
        yield
    finally:
        os.close(descriptor)
