"""How fast a scratch folder is: one file written and read back, past the system's cache of files.

The system keeps what was written in memory and would answer a read at once, so both ways go around it where the file
system can (O_DIRECT); elsewhere what was written is forced to disk and dropped from the cache before it is read.
Measured once per host and folder and kept by `dfmp2.host.cache`.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from dfmp2.errors import ResourceError
from dfmp2.host import cache
from dfmp2.host.scratch import SUFFIX, make_folder, remove_folder, require_space

CHUNK = 8 << 20  # bytes per access, a multiple of every block size that O_DIRECT asks for
SIZE = 48 * CHUNK  # 403 MB
LONGEST = 8.0  # s each way; what a slow disk has not done by then is left out
DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Speed of a scratch folder, bytes per second; `date` of the measurement, ISO 8601, "" for the built-in rates."""

    write: float = 1.6e9
    read: float = 1.2e9
    date: str = ""


BUILT_IN = DiskRates()


def load(root: Path) -> DiskRates | None:
    """Rates of a folder measured earlier on this host, or None."""
    stored = cache.load(_key(root))
    try:
        return None if stored is None else DiskRates(float(stored["write"]), float(stored["read"]), str(stored["date"]))
    except (KeyError, TypeError, ValueError):
        return None  # of another version, or damaged: as if it had never been measured


def measure(root: Path, size: int | None = None) -> DiskRates:
    """Write and read a file in a folder, a second or so, and store the rates.

    Parameters
    ----------
    size : of the file, bytes; None for SIZE

    Raises
    ------
    ResourceError : the folder cannot be written or has too little space
    """
    size = size or SIZE
    require_space(root, size)
    folder, lock = make_folder(root)
    try:
        path = folder / f"speed{SUFFIX}"  # such a file is removed with the folder, also by the next run
        try:
            write, read = _rates(path, size, DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL or not DIRECT:
                raise
            path.unlink(missing_ok=True)
            write, read = _rates(path, size, 0)  # a file system without direct access
    except OSError as error:
        raise ResourceError(
            f"scratch folder {root}: {error.strerror} while its speed was measured: name another one with --scratch"
        ) from error
    finally:
        remove_folder(folder)
        os.close(lock)
    found = DiskRates(write, read, datetime.now(UTC).isoformat(timespec="seconds"))
    cache.store(_key(root), asdict(found))
    return found


def _rates(path: Path, size: int, flags: int) -> tuple[float, float]:
    """Bytes per second written, `fsync` included, and read."""
    with mmap.mmap(-1, CHUNK) as buffer:  # begins at a page, as direct access needs
        buffer[:] = os.urandom(CHUNK)  # a file system may compress zeros
        handle = os.open(path, os.O_CREAT | os.O_RDWR | flags, 0o600)
        try:
            start = time.perf_counter()
            written = 0
            while written < size and time.perf_counter() - start < LONGEST:
                written += os.write(handle, buffer)
            os.fsync(handle)
            writing = time.perf_counter() - start
            if not flags and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(handle, 0, os.SEEK_SET)
            start = time.perf_counter()
            read = 0
            while read < written and time.perf_counter() - start < LONGEST:
                count = os.readv(handle, [buffer])
                if not count:
                    raise OSError(errno.EIO, "the file is shorter than what was written")
                read += count
            return written / writing, read / (time.perf_counter() - start)
        finally:
            os.close(handle)


def _key(root: Path) -> str:
    return cache.key(f"scratch {root.resolve()}", ())
