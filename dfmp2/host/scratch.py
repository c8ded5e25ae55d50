"""A run's own scratch folder: made when arrays go to disk, gone when the run ends, however it ends.

    DIR/dfmp2-scratch-HOST-PID-START-RANDOM/   lock   *.h5

The owner holds a lock on `lock` while it lives; a killed process loses it, and the next run removes
the folder. Removed is only what bears such a name, belongs to this user and this host, whose process
is dead and whose lock is free; of its content only files of ours, never through a symbolic link.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import stat
import tempfile
import uuid
from pathlib import Path

from dfmp2.errors import InputError, ResourceError
from dfmp2.host.resources import free_disk
from dfmp2.units import format_bytes

VARIABLE = "DFMP2_SCRATCH"
PREFIX = "dfmp2-scratch"
LOCK = "lock"
KEEPER = "checkpoint"  # file that names the checkpoint which a folder is kept for
SUFFIX = ".h5"
HEAD_BYTES = 8192  # of a checkpoint: where it names its folder
RESERVE = 16 * 10**6  # bytes to leave free beside what the plan needs: file headers, directories, others' small files

_NAME = re.compile(rf"{PREFIX}-(?P<host>[A-Za-z0-9_.]+)-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{{8}}")


def choose_root(given: str | None) -> Path:
    """The folder scratch goes to: `--scratch`, else $DFMP2_SCRATCH, else $TMPDIR or what the system uses for it.

    Raises
    ------
    InputError : a folder that was named is none
    """
    for origin, name in (("--scratch", given), (VARIABLE, os.environ.get(VARIABLE))):
        if name:
            folder = Path(name)
            if not folder.is_dir():
                raise InputError(f"{origin} {name}: there is no such folder: make it first, or name another one")
            return folder.absolute()
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # no folder can be written; it matters only if this run needs one
        return Path(os.environ.get("TMPDIR") or "/tmp")


def require_space(root: Path, needed: int) -> None:
    """Refuse a folder that cannot be written or has too little space.

    Raises
    ------
    ResourceError : names the folder, the space needed and the space that is free
    """
    try:
        free = free_disk(root)
        writable = os.access(root, os.W_OK | os.X_OK)
    except OSError as error:
        raise ResourceError(f"scratch folder {root}: {error.strerror}: name another one with --scratch") from error
    if not writable:
        raise ResourceError(f"scratch folder {root} cannot be written: name another one with --scratch")
    if free < needed + RESERVE:
        raise ResourceError(
            f"scratch folder {root}: {format_bytes(needed)} are needed and {format_bytes(free)} are free: name a "
            "folder on a larger disk with --scratch, or allow more --memory"
        )


def in_memory(root: Path) -> bool:
    """Whether the folder is on a file system that keeps its files in memory; False where that cannot be told."""
    try:
        device = os.stat(root).st_dev
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    types = [line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == number and " - " in line]
    return bool(types) and types[-1] in ("tmpfs", "ramfs")


def make_folder(root: Path) -> tuple[Path, int]:
    """A new folder for this process, and the descriptor that holds its lock.

    Raises
    ------
    ResourceError : it cannot be made
    """
    name = f"{PREFIX}-{_host()}-{os.getpid()}-{_started(os.getpid()) or 0}-{uuid.uuid4().hex[:8]}"
    folder = root / name
    try:
        folder.mkdir(mode=0o700)
        try:
            lock = os.open(folder / LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            folder.rmdir()
            raise
    except OSError as error:
        raise ResourceError(
            f"cannot make a scratch folder in {root}: {error.strerror}: name another one with --scratch"
        ) from error
    with contextlib.suppress(OSError):  # a file system without locks: name and process number have to do
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, lock


def remove_folder(folder: Path) -> None:
    """Remove our files and then the folder; what somebody else put there stays, and so does the folder then."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, or no longer a folder of ours
        return
    try:
        for name in sorted(os.listdir(handle), key=lambda name: name == LOCK):  # the lock last
            with contextlib.suppress(OSError):
                if (name in (LOCK, KEEPER) or name.endswith(SUFFIX)) and stat.S_ISREG(
                    os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
                ):
                    os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)
    with contextlib.suppress(OSError):
        folder.rmdir()


def keep_for(folder: Path, checkpoint: str) -> None:
    """Let a folder outlive its process as long as the file `checkpoint` names it.

    Raises
    ------
    OSError : it cannot be written
    """
    (folder / KEEPER).write_bytes(os.fsencode(os.path.abspath(checkpoint)))


def is_kept(folder: Path) -> bool:
    """Whether a checkpoint still names the folder."""
    try:
        with open(folder / KEEPER, "rb") as keeper:
            checkpoint = os.fsdecode(keeper.read(HEAD_BYTES))
        with open(checkpoint, "rb") as file:
            return os.fsencode(folder.name) in file.read(HEAD_BYTES)
    except (OSError, ValueError):
        return False


def take_over(folder: Path) -> int | None:
    """The descriptor that holds the lock of a folder a dead process left, None when that cannot be had."""
    match = _NAME.fullmatch(folder.name)
    try:
        status = os.stat(folder, follow_symlinks=False)
        if match is None or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return None
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def remove_stale(root: Path) -> list[str]:
    """Remove folders that dead processes of this user left on this host; returns their names."""
    removed = []
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:
        return []
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match is None or match["host"] != _host():
            continue
        with contextlib.suppress(OSError):  # removed by another run at the same time
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            if _alive(int(match["pid"]), int(match["start"])) or not _unlocked(Path(entry.path)):
                continue
            if is_kept(Path(entry.path)):
                continue
            remove_folder(Path(entry.path))
            if not os.path.lexists(entry.path):
                removed.append(entry.name)
    return removed


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", platform.node()) or "localhost"


def _started(pid: int) -> int | None:
    """When a process began, clock ticks since the machine started: tells it from a later one of the same number."""
    try:
        # The name in parentheses may hold anything; the 22nd field is the 20th after it.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _alive(pid: int, start: int) -> bool:
    if Path("/proc/self/stat").exists():
        return start in (_started(pid), 0) and Path(f"/proc/{pid}").exists()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _unlocked(folder: Path) -> bool:
    """Whether nobody holds the lock; a folder that has none yet is left to whoever is making it, unless it is old."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # its process is dead, and it holds nothing: remove_folder takes empty ones
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
