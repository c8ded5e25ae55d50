"""A run's own scratch folder, created when arrays go to disk and removed however the run ends.

    DIR/dfmp2-scratch-HOST-PID-RANDOM/   lock   *.raw

The owner holds a lock on `lock` while it lives; a killed process loses it, and the next run removes
the folder. A folder is removed only if it has such a name, belongs to this user and host, its
process is dead and its lock is free; only our own files are deleted in it, and never through a
symbolic link.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from dfmp2.errors import Dfmp2Error, InputError, Interrupted, Option, ResourceError
from dfmp2.errors.messages import Part
from dfmp2.host.arrays_on_disk import FileRegion
from dfmp2.host.files import disk_refusal
from dfmp2.host.resources import free_disk, is_alive
from dfmp2.units import format_bytes, told_apart

VARIABLE = "DFMP2_SCRATCH"
PREFIX = "dfmp2-scratch"
LOCK = "lock"
KEEPER = "checkpoint"  # file that names the checkpoint for which a folder is kept
SUFFIX = ".raw"
HEAD_BYTES = 8192  # of a checkpoint, which contain the name of its folder
# Bytes to leave free beyond the needs of the plan: directories, others' small files
RESERVE = 16 * 10**6

_NAME = re.compile(rf"{PREFIX}-(?P<host>[A-Za-z0-9_.]+)-(?P<pid>\d+)-[a-z0-9_]{{8}}")


def choose_root(given: str | None) -> Path:
    """The folder for scratch files: `--scratch`, else $DFMP2_SCRATCH, else $TMPDIR or the system's
    default.

    Raises
    ------
    InputError : the given path is not a folder
    """
    asked: tuple[tuple[Part, str | None], ...] = (
        (Option("scratch", given), given),
        (f"{VARIABLE} {os.environ.get(VARIABLE)}", os.environ.get(VARIABLE)),
    )
    for origin, name in asked:
        if name:
            folder = Path(name)
            if not folder.is_dir():
                raise InputError(
                    origin, ": there is no folder of this name: make it first, or name another one"
                )
            return folder.absolute()
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # no writable folder; matters only if this run needs one
        return Path(os.environ.get("TMPDIR") or "/tmp")


def require_space(root: Path, needed: int) -> None:
    """Raise if a folder cannot be written or has too little space.

    Raises
    ------
    ResourceError : names the folder, the space needed and the free space
    """
    try:
        free = free_disk(root)
        writable = os.access(root, os.W_OK | os.X_OK)
    except OSError as error:
        raise ResourceError(
            f"scratch folder {root}: {error.strerror}: name another one with ", Option("scratch")
        ) from error
    if not writable:
        raise ResourceError(
            f"scratch folder {root} cannot be written: name another one with ", Option("scratch")
        )
    if free < needed + RESERVE:
        wanted, available = told_apart("bytes", needed + RESERVE, free)
        raise ResourceError(
            (
                f"scratch folder {root}: {wanted} are needed, of which {format_bytes(RESERVE)} "
                f"have to stay free, and {available} are free: name a folder on a larger disk with "
            ),
            Option("scratch"),
            ", or allow more ",
            Option("memory"),
        )


def in_memory(root: Path) -> bool:
    """Whether the folder is on an in-memory file system; False if unknown."""
    try:
        device = os.stat(root).st_dev
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    types = [
        line.partition(" - ")[2].split()[0]
        for line in lines
        if line.split()[2] == number and " - " in line
    ]
    return bool(types) and types[-1] in ("tmpfs", "ramfs")


class Space:
    """Scratch space of one run; a context manager that leaves nothing behind.

    Parameters
    ----------
    root : parent of the run's own folder, which is created with the first array
    needed : bytes the run will write, checked on entry; 0 if everything fits into memory

    Attributes
    ----------
    folder : the run's own folder, None if not yet created
    """

    def __init__(self, root: Path, needed: int) -> None:
        self.root, self.needed = root, needed
        self.folder: Path | None = None
        self._lock = -1
        self._arrays: list[ScratchArray] = []
        self._kept = self._adopted = False

    @property
    def written(self) -> int:
        """Bytes written so far."""
        return sum(array.bytes_written for array in self._arrays)

    @property
    def read(self) -> int:
        """Bytes read so far."""
        return sum(array.bytes_read for array in self._arrays)

    def __enter__(self) -> Space:
        remove_stale(self.root)
        if self.needed:
            require_space(self.root, self.needed)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._kept and kind is not None and issubclass(kind, (KeyboardInterrupt, Interrupted)):
            for array in self._arrays:
                array.close(delete=False)
            self.folder = None
        self.close()

    def array(self, name: str, size: int, *, existing: bool = False) -> ScratchArray:
        """A new array of `size` numbers in its own file, or an existing one in an adopted folder.

        Raises
        ------
        ResourceError : the folder or file cannot be created
        """
        path = self.own_folder() / f"{name}{SUFFIX}"
        if self._adopted and not existing:
            path.unlink(missing_ok=True)  # left by the stopped run
        array = ScratchArray(self, path, existing=existing)
        self._arrays.append(array)
        return array

    def own_folder(self) -> Path:
        """The run's own folder, created if necessary.

        Raises
        ------
        ResourceError : the folder cannot be created
        """
        if self.folder is None:
            try:
                self.folder = Path(
                    tempfile.mkdtemp(prefix=f"{PREFIX}-{_host()}-{os.getpid()}-", dir=self.root)
                )
            except OSError as error:
                raise self.failure(error) from error
            self._lock = _locked(self.folder)
        return self.folder

    def keep(self, checkpoint: str) -> None:
        """Keep the folder if this run is stopped, as long as the file `checkpoint` refers to it."""
        with contextlib.suppress(OSError):  # if this cannot be recorded, the folder is removed
            (self.own_folder() / KEEPER).write_bytes(os.fsencode(os.path.abspath(checkpoint)))
            self._kept = True

    def adopt(self, folder: Path) -> bool:
        """Take over the folder of a stopped run; false if it is gone or in use."""
        lock = _taken_over(folder) if self.folder is None else -1
        if lock < 0:
            return False
        self.folder, self._lock, self._kept, self._adopted = folder, lock, True, True
        return True

    def close(self) -> None:
        """Remove everything; signals that arrive meanwhile take effect afterwards."""
        stopped: BaseException | None = None
        while True:
            try:
                self._remove()
                break
            except (KeyboardInterrupt, Interrupted) as signal:
                stopped = signal
        if stopped is not None:
            raise stopped

    def failure(self, error: OSError | str) -> ResourceError:
        """The error for a failed access to the folder, with the space needed and left."""
        if isinstance(error, OSError):
            kind, reason = disk_refusal(error), error.strerror
        else:
            kind, reason = ResourceError, error
        try:
            free = f"{format_bytes(free_disk(self.root))} are free now"
        except OSError:
            free = "the free space is unknown"
        return kind(
            (
                f"scratch folder {self.root}: {reason}: the run needs "
                f"{format_bytes(self.needed)} there, {format_bytes(self.written)} had been "
                f"written and {free}: name a folder on a larger disk with "
            ),
            Option("scratch"),
            ", or allow more ",
            Option("memory"),
        )

    def _remove(self) -> None:
        for array in self._arrays:
            array.close()
        if self.folder is not None:
            remove_folder(self.folder)
            self.folder, self._kept = None, False
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            os.close(lock)


class Room(NamedTuple):
    """Where the SCF integrals are stored, and how much of them may be held in memory.

    Attributes
    ----------
    space : scratch space of the run
    pair_bytes : bytes of raw integrals per block of pairs when they are made (at least one shell)
    read_bytes : bytes of all blocks of fitting functions together when they are read (at least a
        few rows)
    """

    space: Space
    pair_bytes: int
    read_bytes: int


class ScratchArray(FileRegion):
    """A flat float64 array in its own file, created by `Space.array`."""

    def __init__(self, space: Space, path: Path, *, existing: bool) -> None:
        self._space, self._path = space, path
        if existing:
            flags = os.O_RDONLY | os.O_NOFOLLOW
        else:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            super().__init__(os.open(path, flags | os.O_CLOEXEC, 0o600), 0, path.name)
        except OSError as error:
            raise space.failure(error) from error

    def failure(self, error: OSError | None) -> Dfmp2Error:
        """As in Region, with the space needed and left."""
        if error is None:
            return self._space.failure(f"{self._name} is shorter than what was written to it")
        return self._space.failure(error)

    def close(self, *, delete: bool = True) -> None:
        """Close and delete the file; may be called repeatedly."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            if delete:
                self._path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove our files and then the folder, which stays if it contains files of others."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, or no longer our folder
        return
    try:
        ours = [name for name in os.listdir(handle) if _is_ours(name)]
        for name in sorted(ours, key=lambda name: name == LOCK):  # the lock last
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_ours(name: str) -> bool:
    """Whether a file in a scratch folder is named as ours are."""
    return name in (LOCK, KEEPER) or name.endswith(SUFFIX)


def remove_kept(folder: Path) -> None:
    """Remove a folder left by a stopped run, unless it is in use."""
    lock = _taken_over(folder)
    if lock >= 0:
        remove_folder(folder)
        os.close(lock)


def remove_stale(root: Path) -> list[str]:
    """Remove folders left on this host by dead processes of this user; returns their names."""
    removed = []
    try:
        entries = sorted(os.listdir(root))
    except OSError:
        return []
    for match in filter(None, map(_NAME.fullmatch, entries)):
        name, folder = match[0], root / match[0]
        if match["host"] != _host() or is_alive(int(match["pid"])) or _is_kept(folder):
            continue
        remove_kept(folder)
        if not os.path.lexists(folder):
            removed.append(name)
    return removed


def _is_kept(folder: Path) -> bool:
    """Whether a checkpoint still refers to the folder."""
    try:
        with open(folder / KEEPER, "rb") as keeper:
            checkpoint = os.fsdecode(keeper.read(HEAD_BYTES))
        with open(checkpoint, "rb") as file:
            return os.fsencode(folder.name) in file.read(HEAD_BYTES)
    except (OSError, ValueError):
        return False


def _taken_over(folder: Path) -> int:
    """Take the lock of a folder left by a dead process of this user; returns its descriptor, or -1
    if that fails."""
    try:
        status = os.stat(folder, follow_symlinks=False)
    except OSError:
        return -1
    if (
        not _NAME.fullmatch(folder.name)
        or not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
    ):
        return -1
    return _locked(folder)


def _locked(folder: Path) -> int:
    """Take the lock of a folder; returns its descriptor, or -1 if it is held by another process or
    locks are unsupported."""
    try:
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return -1
    return lock


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", platform.node()) or "localhost"
