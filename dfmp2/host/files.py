"""Write files atomically: to a temporary file beside the target, flushed to disk and renamed.

A symbolic link or a write-protected file is neither replaced nor written through.

Only one process at a time works on a result: it holds an exclusive lock on `.NAME.lock` beside it,
which ends with the process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dfmp2.errors import DiskFull, InputError, Option, ResourceError, ResultExists, ResultFileError
from dfmp2.errors.messages import joined
from dfmp2.host.provenance import installed_version
from dfmp2.host.resources import free_disk, is_alive
from dfmp2.units import format_bytes, told_apart

NO_FILE = (0, 0)

OUTPUT = Option("output")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
LEAST_FREE = 10_000  # bytes; no file with a result is smaller
# Endings of files that hold text
TEXT = re.compile(
    r"\.(csv|dat|extxyz|html?|inp|json|log|md|mol|molden|out|pdb|sdf|svg|toml|txt|xyz)",
    re.IGNORECASE,
)


def put(target: Path, content: bytes, *, overwrite: bool = True) -> None:
    """Write `content` to `target`; after any failure or interrupt the old file is unchanged, with
    nothing left beside it.

    Raises
    ------
    FileExistsError : the target exists and `overwrite` is false
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
    """Rename the finished file `part` to `target`; if the system cannot rename without replacing,
    `part` remains as well.

    Raises
    ------
    FileExistsError : the target exists and `overwrite` is false
    OSError : the disk fails, the folder cannot be written, or the target may not be replaced
    """
    if overwrite:
        require_replaceable(target)
        os.replace(part, target)
    else:
        _rename_new(part, target)


def require_replaceable(target: Path) -> None:
    """Raise PermissionError for a symbolic link, and for a write-protected file even if this user
    may write any file."""
    if target.is_symlink():
        raise PermissionError(errno.EACCES, "it is a symbolic link", str(target))
    require_unprotected(target)


def require_unprotected(target: Path) -> None:
    """Raise PermissionError for a write-protected file."""
    if target.exists() and not (target.stat().st_mode & 0o222 and os.access(target, os.W_OK)):
        raise PermissionError(errno.EACCES, "it is write-protected", str(target))


def beside(target: Path) -> Path:
    """A unique name in the same folder."""
    return target.with_name(f"{_beginning(target)}{uuid.uuid4().hex[:12]}")


def _beginning(target: Path) -> str:
    """What the names of `beside` begin with."""
    return f".{target.name[:200]}.part-"


def remove_parts(*targets: Path) -> None:
    """Remove what processes left that were killed while they wrote these files, whose lock this
    process holds. Each folder is listed once: it may hold the results of a large batch."""
    for folder in {target.parent for target in targets}:
        beginnings = tuple(_beginning(target) for target in targets if target.parent == folder)
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(beginnings):
                    with contextlib.suppress(OSError):
                        os.unlink(folder / name)


def _rename_new(part: Path, target: Path) -> None:
    """Rename without replacing: a hard link fails when the name is taken."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:  # file system without hard links
        if target.exists():
            raise FileExistsError(errno.EEXIST, "exists", str(target)) from None
        os.replace(part, target)


def disk_refusal(error: OSError) -> type[ResourceError]:
    """DiskFull if the disk has no more space, otherwise ResourceError."""
    if error.errno in (*NO_SPACE, errno.EROFS):
        return DiskFull
    return ResourceError


def write_failure(
    target: Path,
    error: OSError,
    needed: int | None = None,
    option: Option = OUTPUT,
    *,
    discarded: int = 0,
) -> ResourceError:
    """The error for a file that cannot be written, with the space needed and left where the disk is
    full.

    Parameters
    ----------
    target : the file
    needed : bytes to be written, None if unknown
    option : what names the file
    discarded : bytes of the unfinished file, which will be free again
    """
    if error.errno not in NO_SPACE:
        return disk_refusal(error)(
            f"cannot write {target}: {error.strerror}: nothing was changed; choose another folder "
            "with ",
            option,
        )
    return DiskFull(
        f"cannot write {target}: {error.strerror}: "
        f"{describe_space(target.parent, needed, discarded)}: nothing was changed; free some space "
        "or choose another folder with ",
        option,
    )


def describe_space(folder: Path, needed: int | None, discarded: int = 0) -> str:
    """The space that is needed and free on the full disk of a folder."""
    wanted = "an unknown amount is needed"
    if needed is not None:
        wanted = f"{format_bytes(needed)} are needed"
    try:
        free = free_disk(folder) + discarded
    except OSError:
        return f"{wanted} and the free space is unknown"
    if needed is None:
        return f"{wanted} and {format_bytes(free)} are free"
    wanted, available = told_apart("bytes", needed, free)
    text = f"{wanted} are needed and {available} are free"
    if free >= needed:
        text += ", but a quota or the number of files is exhausted"
    return text


def require_writable(
    target: Path, *, overwrite: bool, expected_bytes: int = LEAST_FREE, option: Option = OUTPUT
) -> None:
    """Check, before any computing, that `target`, given by `option`, can be written; leaves nothing
    behind.

    Raises
    ------
    InputError, ResourceError : as in `require_place`
    ResultExists : the target exists and `overwrite` is false
    ResourceError : the target is a symbolic link or write-protected
    """
    require_all_writable([(option, target)], overwrite=overwrite, expected_bytes=expected_bytes)


def require_all_writable(
    targets: Sequence[tuple[Option, Path]],
    *,
    overwrite: bool,
    expected_bytes: int = LEAST_FREE,
) -> None:
    """Check several files, each with the option that gives it, as `require_writable` checks one;
    those that exist are named together."""
    for option, target in targets:
        require_place(target, expected_bytes=expected_bytes, option=option)
    there = [(option, file) for option, file in targets if os.path.lexists(file)]
    if there and not overwrite:
        files = joined([str(file) for _, file in there], last=" and ")
        options = joined(list(dict.fromkeys(option for option, _ in there)), last=" and ")
        if len(there) == 1:
            raise ResultExists(
                files,
                " already exists: ",
                Option("overwrite", True),
                " replaces it, ",
                options,
                " names another file",
            )
        raise ResultExists(
            files,
            " already exist: ",
            Option("overwrite", True),
            " replaces them; name others with ",
            options,
        )
    for option, target in there:
        try:
            require_replaceable(target)
        except PermissionError as error:
            raise write_failure(target, error, option=option) from error


def require_place(
    target: Path, *, expected_bytes: int = LEAST_FREE, option: Option = OUTPUT
) -> None:
    """Check that a file can be created where `target` is; commands do so at once, and look at an
    existing file after all other checks.

    Raises
    ------
    InputError : the folder does not exist, or the target is a folder or a device
    ResourceError : the folder is not writable or the disk is too full
    """
    folder = target.parent
    try:
        _require_regular(target, option)
        _create_probe(target)
        free = free_disk(folder)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(
                option.of(f"{target.name[:40]}..."), ": the file name is too long"
            ) from error
        if disk_refusal(error) is DiskFull and error.errno != errno.EROFS:
            raise write_failure(target, error, expected_bytes, option) from error
        raise disk_refusal(error)(
            f"cannot write into {folder}: {error.strerror}: choose another folder with ", option
        ) from error
    if free < expected_bytes:
        available, needed = told_apart("bytes", free, expected_bytes)
        raise DiskFull(
            f"the disk of {folder} has {available} free and at least {needed} are needed: free some "
            "space or choose another folder with ",
            option,
        )


def require_hdf5_name(target: Path) -> None:
    """Raise InputError if an output in HDF5 has the name of a text file."""
    if TEXT.fullmatch(target.suffix):
        raise InputError(
            OUTPUT.of(str(target)), ": the file is HDF5, not text: expected a name ending in .h5"
        )


def _require_regular(target: Path, option: Option) -> None:
    """Raise for a file in a folder that does not exist, and for a folder or a device."""
    if not target.parent.is_dir():
        raise InputError(
            option.of(str(target)),
            f": there is no folder {target.parent}: make it first, or name another one",
        )
    if target.is_dir() or (target.exists() and not target.is_file()):
        raise InputError(option.of(str(target)), ": not a regular file: name a file to write")


def _create_probe(target: Path) -> None:
    """Create and remove an empty file in the folder of `target`, for the error if that fails."""
    probe = beside(target)
    probe.touch(exist_ok=False)
    probe.unlink()


def folder_refusal(folder: Path) -> OSError | None:
    """Why no file can be created in a folder; None if that is possible, or if its disk is full."""
    try:
        _create_probe(folder / "probe")
    except OSError as error:
        if error.errno not in NO_SPACE:
            return error
    return None


def make_folder(folder: Path, option: Option = OUTPUT) -> None:
    """Create a folder and its parents.

    Raises
    ------
    ResourceError : it cannot be created
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_refusal(error)(
            f"cannot create the folder {folder}: {error.strerror}: choose another ", option
        ) from error


def write_atomically(
    target: Path, content: bytes, *, overwrite: bool, option: Option = OUTPUT
) -> None:
    """Write `content` to `target`, all or nothing; failures and interrupts leave nothing behind.

    Parameters
    ----------
    option : what names the target

    Raises
    ------
    ResultExists : the target has appeared meanwhile and `overwrite` is false
    ResourceError : the disk is full or the folder cannot be written
    """
    with settled(target, len(content), option):
        put(target, content, overwrite=overwrite)


@contextmanager
def settled(target: Path, needed: int | None = None, option: Option = OUTPUT) -> Iterator[None]:
    """Context in which `target` is written, after which it is flushed to disk.

    Parameters
    ----------
    needed : bytes to be written, None if unknown
    option : what names the target

    Raises
    ------
    ResultExists : the target has appeared meanwhile
    ResourceError : the disk is full or the folder cannot be written
    """
    try:
        yield
    except FileExistsError as error:
        raise ResultExists(
            f"{target} was written by another process meanwhile: name another file"
        ) from error
    except OSError as error:
        raise write_failure(target, error, needed, option) from error
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


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or holds no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def stamp(path: Path) -> tuple[int, int]:
    """Size and modification time of a file, NO_FILE if there is none."""
    try:
        status = path.stat()
    except OSError:
        return NO_FILE
    return status.st_size, status.st_mtime_ns


# --- locks ----------------------------------------------------------------------------------------

PATIENCE = 0.3  # s; a process that only checks who holds a lock takes it briefly
UNNAMED = 3.0  # s; longer on a busy machine, while no computing process is named
LARGEST = 4096  # bytes of a lock file

_held: dict[
    tuple[int, str], list[FileLock]
] = {}  # (process, lock file) -> its lock, repeated for each time it was taken


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock: its id, its machine, and since when (ISO 8601)."""

    pid: int
    host: str
    since: str

    def computes(self) -> bool:
        """Whether it is a known process that may be alive, rather than one that only checks the
        lock."""
        return self.pid > 0 and (self.host != socket.gethostname() or is_alive(self.pid))

    def __str__(self) -> str:
        if self.pid:
            return f"process {self.pid} on {self.host}, since {self.since}"
        return "another process"


def lock_file(target: Path) -> Path:
    """Path of the lock file of a result."""
    return target.with_name(f".{target.name.removesuffix('.h5')}.lock")


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock of `target` during the block.

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
    None if it was taken, otherwise the process that holds it

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
        path.write_text(json.dumps(asdict(_this_process())), encoding="utf-8")
    except OSError as error:
        release_lock(target)
        raise write_failure(path, error, LARGEST) from error
    return None


def release_lock(target: Path) -> None:
    """Release the lock, if this process holds it."""
    path = lock_file(target)
    locks = _held.get(_key(path))
    if not locks:
        return
    lock = locks.pop()
    if not locks:
        with contextlib.suppress(OSError):
            # while it is held, so that others who have opened it see that it lost its name
            path.unlink()
        lock.release()


def discard_lock(target: Path) -> None:
    """Remove the lock file left by a dead process."""
    with contextlib.suppress(ResourceError):
        if lock_file(target).exists() and acquire_lock(target) is None:
            release_lock(target)


def lock_holder(target: Path) -> Holder | None:
    """The live process that holds the lock of `target`, or None."""
    path = lock_file(target)
    if _held.get(_key(path)):
        return _read(path)
    if not path.exists():
        return None
    lock = FileLock(path, thread_local=False)
    try:
        other = _take(lock, path, 0)
        if other is None and not path.stat().st_size:
            path.unlink()  # it names nobody: this check created it just as the holder left
    except OSError:  # it is gone, or its folder cannot be written, so nobody can hold it
        return None
    finally:
        lock.release()
    return other


def _take(lock: FileLock, path: Path, patience: float) -> Holder | None:
    """Try to take a lock; returns its holder, or None if it was taken within `patience` seconds, or
    longer if the holder only checks the lock."""
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


def _this_process() -> Holder:
    """This process, as the holder of a lock from now on."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return Holder(pid=os.getpid(), host=socket.gethostname(), since=since)


def _key(path: Path) -> tuple[int, str]:
    return os.getpid(), os.path.abspath(path)


def _read(path: Path) -> Holder:
    """The content of a lock file."""
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.loads(stream.read(LARGEST))
        return Holder(int(value["pid"]), str(value["host"])[:200], str(value["since"])[:200])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return Holder(0, "", "")


# --- measurements on this host --------------------------------------------------------------------

# They are stored between runs in `calibration.json` in `$XDG_CACHE_HOME/dfmp2`, or `~/.cache/dfmp2`: a
# JSON object whose keys consist of machine, versions and quantity; values are objects of numbers and
# texts.


def cache_key(what: str, libraries: Sequence[str]) -> str:
    """Key of a measurement on this machine with the installed versions of the libraries, "absent"
    if missing."""
    versions = [f"{library}-{installed_version(library) or 'absent'}" for library in libraries]
    return f"{platform.node()} {platform.machine()} {what} {' '.join(versions)}"


def load_cached(name: str) -> dict[str, Any] | None:
    """The value of a key, None if it was never stored or the file cannot be read."""
    value = read_json(cache_file()).get(name)
    return value if isinstance(value, dict) else None


def store_cached(name: str, value: Mapping[str, Any]) -> None:
    """Store a value; if the folder cannot be written, it will only be measured again."""
    file = cache_file()
    content = json.dumps({**read_json(file), name: dict(value)}, indent=1)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        put(file, content.encode())


def cache_file() -> Path:
    """Path of the file."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "dfmp2" / "calibration.json"
