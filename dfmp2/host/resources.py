"""What the machine can give: memory, cores, disk. Linux files are read; elsewhere POSIX answers."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
import time
from pathlib import Path

_CGROUP_LIMITS = (  # (limit, usage) of version 2 and version 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
LARGE_BYTES = 10**6  # of an array that is given back when it is freed


def available_memory() -> int:
    """Bytes that can still be allocated without swapping, within the control group's limit."""
    free = _kilobytes("/proc/meminfo", "MemAvailable")
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit_file, usage_file in _CGROUP_LIMITS:
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None:
            free = min(free, max(0, limit - usage))
    return free


def usable_memory() -> int:
    """Bytes this process may hold in all where nobody says how many: what it has, and most of what
    is free."""
    return resident_memory() + int(0.9 * available_memory())


def resident_memory() -> int:
    """Resident bytes of this process now."""
    return _kilobytes("/proc/self/status", "VmRSS") or peak_resident_memory()


def peak_resident_memory() -> int:
    """Largest resident size of this process so far, bytes."""
    peak = _kilobytes("/proc/self/status", "VmHWM")
    if peak is not None:
        return peak
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def peak_of_process(pid: int) -> int | None:
    """Largest resident size of another process so far, bytes; None where it has ended or the system
    does not say."""
    return _kilobytes(f"/proc/{pid}/status", "VmHWM")


def return_memory() -> None:
    """Give what was freed back to the system: the C library keeps blocks of up to 32 MB for
    itself."""
    gc.collect()  # PySCF's objects refer to each other
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not the GNU library
        ctypes.CDLL(None).malloc_trim(0)


def keep_nothing_back() -> None:
    """Let arrays go back to the system when they are freed, from now on and in the whole process.

    The GNU C library learns from the first large array that is freed to keep blocks of up to 32 MB,
    for every thread by itself: half of a small budget. Setting the threshold of `mmap` ends that.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def restart_peak() -> None:
    """Let `peak_resident_memory` count from now on, so that a run in a long-lived process reports
    its own peak."""
    with contextlib.suppress(
        OSError
    ):  # not Linux, or forbidden: the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def usable_cores() -> int:
    """Threads a process should use: OMP_NUM_THREADS if set, else its cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return cores()


def cores() -> int:
    """Cores this process may use: affinity capped by the CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        found = len(os.sched_getaffinity(0))
    else:
        found = os.cpu_count() or 1
    quota = _words("/sys/fs/cgroup/cpu.max")
    if len(quota) == 2 and quota[0].isdigit():
        found = min(found, max(1, int(quota[0]) // int(quota[1])))
    return found


def free_disk(folder: Path) -> int:
    """Bytes free for this user on the file system that holds `folder`."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def _kilobytes(file: str, key: str) -> int | None:
    """Bytes that a line `KEY: NUMBER kB` of a system file says."""
    words = _words(file)
    if f"{key}:" in words:
        return int(words[words.index(f"{key}:") + 1]) * 1024
    return None


def _number(file: str) -> int | None:
    words = _words(file)
    if words and words[0].isdigit():
        return int(words[0])
    return None


def _words(file: str) -> list[str]:
    try:
        return Path(file).read_text().split()
    except OSError:
        return []


class Others:
    """What other processes use from here on."""

    def __init__(self) -> None:
        self._begun = self._now()

    def used(self) -> float:
        """Cores; 0 where the system does not say."""
        seconds, busy, own = (
            now - before for now, before in zip(self._now(), self._begun, strict=True)
        )
        return max(0.0, (busy - own) / seconds)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), busy_seconds(), sum(os.times()[:4])  # with processes waited for


def busy_seconds() -> float:
    """Processor seconds of the whole machine spent on anything but idling; 0 where the system does
    not say."""
    try:
        fields = [
            int(word)
            for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        ]
    except (OSError, ValueError):
        return 0.0
    # user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in the first
    # two
    return (sum(fields[:8]) - sum(fields[3:5])) / os.sysconf("SC_CLK_TCK")
