"""What the machine can give: memory, cores, disk. Linux files are read; elsewhere POSIX answers.

Below: one accelerator per process: which devices there are, and the variables that show a process only
its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from dfmp2.errors import InputError
from dfmp2.errors.messages import Option

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
    # Not Linux, or forbidden: the peak is that of the whole process
    with contextlib.suppress(OSError):
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


# --- accelerators ---------------------------------------------------------------------------------

CUDA, NEURON = "CUDA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES"
CORES_PER_CHIP = 2  # of Trainium1 (AWS Neuron documentation, "Trn1 architecture")
NVIDIA = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")


def pinning(
    backend: str,
    worker: int,
    workers: int,
    environment: Mapping[str, str] = os.environ,
    *,
    nvidia: Path = NVIDIA,
    devices: Path = DEVICES,
) -> dict[str, str]:
    """Variables that give a worker its device, from those of this process or folders that list the
    machine's devices.

    Raises
    ------
    InputError : fewer Trainium cores than workers; a core belongs to one process
    """
    if backend in ("cuda", "cuda-tf32", "auto"):
        if CUDA in environment:
            cards = _names(environment[CUDA])
        else:
            cards = _numbered(nvidia, ".*")
        if cards:
            return {CUDA: cards[worker % len(cards)]}
        return {}
    if backend not in ("nki", "nki-xla"):
        return {}
    given = environment.get(NEURON)
    if given:
        cores = _ranges(given)
    else:
        cores = _numbered(devices, r"neuron\d+", CORES_PER_CHIP)
    if cores and len(cores) < workers:
        raise InputError(
            Option("workers", workers),
            f": there are {len(cores)} NeuronCores and a core serves one process: use at most ",
            Option("workers", len(cores)),
        )
    return {NEURON: cores[worker]} if cores else {}


def _names(text: str) -> list[str]:
    """Devices as they are named: numbers, or identifiers such as GPU-8f2c...; -1 ends the list."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if "-1" in names:
        return names[: names.index("-1")]
    return names


def _numbered(folder: Path, pattern: str, each: int = 1) -> list[str]:
    """Numbers of the devices of a folder, `each` for each file that is named so."""
    found = [path for path in folder.glob("*") if re.fullmatch(pattern, path.name)]
    return [str(number) for number in range(each * len(found))]


def _ranges(text: str) -> list[str]:
    """Cores of "0-3" or "0,2,5-7"."""
    cores: list[str] = []
    for part in _names(text):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"{NEURON} is {text!r}: expected cores such as 0-3 or 0,1")
        cores += map(str, range(int(match[1]), int(match[2] or match[1]) + 1))
    return cores
