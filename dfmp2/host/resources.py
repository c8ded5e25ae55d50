"""Resources of the machine: memory, cores, disk; read from Linux system files, elsewhere from
POSIX.

Each process gets one accelerator, by variables that make only its own device visible.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from dfmp2.errors import InputError, Option

CONTROL_GROUPS = "/proc/self/cgroup"  # those of this process: NUMBER:CONTROLLERS:PATH


class _Controller(NamedTuple):
    """The memory controller of control groups: its name, folder, and files in that of a group.

    `cached` is what `memory.stat` calls the part of the usage that the system can take back.
    """

    name: str
    folder: str
    limit: str
    usage: str
    cached: str


_CONTROLLERS = (  # of version 2 and version 1
    _Controller("", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    _Controller(
        name="memory",
        folder="/sys/fs/cgroup/memory",
        limit="memory.limit_in_bytes",
        usage="memory.usage_in_bytes",
        cached="total_inactive_file",
    ),
)

_PAGE_REPORTING = "/sys/module/page_reporting/parameters/page_reporting_order"
HUGE_PAGE_ORDER = 9  # 2 MB

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
LARGE_BYTES = 10**6  # of an array that is returned to the system when freed


def available_memory() -> int:
    """Bytes that can still be allocated without swapping, within the limits of the control group
    and of those it is in."""
    free = _kilobytes("/proc/meminfo", "MemAvailable")
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = _words(CONTROL_GROUPS)
    for controller in _CONTROLLERS:
        for group in _folders(controller.name, controller.folder, groups):
            limit = _number(f"{group}/{controller.limit}")
            usage = _number(f"{group}/{controller.usage}")
            if limit is not None and usage is not None:
                cached = _after(f"{group}/memory.stat", controller.cached) or 0
                free = min(free, max(0, limit - usage + cached))
    return free


def memory_limits(groups: Sequence[str]) -> list[str]:
    """Files with a limit on the memory of a process, there or not; `groups` are the words of its
    CONTROL_GROUPS."""
    return [
        f"{folder}/{controller.limit}"
        for controller in _CONTROLLERS
        for folder in _folders(controller.name, controller.folder, groups)
    ]


def _folders(controller: str, top: str, groups: Sequence[str]) -> Iterator[str]:
    """Folders of the control group of a process and of all that it is in, below `top`; in a
    container only the last one may be there, which then is that of its group."""
    path = "/"
    for group in groups:
        match = re.fullmatch(r"\d+:([^:]*):(/.*)", group)
        if match is not None and controller in match[1].split(","):
            path = match[2]
    while path != "/":
        yield f"{top}{path}"
        path = os.path.dirname(path)
    yield top


def usable_memory() -> int:
    """Default limit for the memory of this process, bytes: what it has, and most of the free
    memory."""
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


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def peak_of_process(pid: int) -> int | None:
    """Largest resident size of another process so far, bytes; None if it has ended or the system
    does not tell."""
    return _kilobytes(f"/proc/{pid}/status", "VmHWM")


def return_memory() -> None:
    """Return freed memory to the system, because the C library retains blocks of up to 32 MB."""
    gc.collect()  # PySCF's objects refer to each other
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not the GNU C library
        ctypes.CDLL(None).malloc_trim(0)


class Collections:
    """Garbage collections of this process.

    Attributes
    ----------
    few : whether `exclude_existing` was called; Python would have to count the objects (10 ms for
        100,000)
    """

    few: ClassVar[bool] = False


def exclude_existing() -> None:
    """From now on, exclude existing objects from garbage collection, which would take most of the
    time of small molecules."""
    gc.freeze()
    Collections.few = True


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Exclude existing objects from garbage collection meanwhile, unless some are excluded
    already."""
    if Collections.few or gc.get_freeze_count():
        yield
        return
    exclude_existing()
    try:
        yield
    finally:
        gc.unfreeze()
        Collections.few = False


def keep_nothing_back() -> None:
    """From now on, in the whole process, return the memory of freed arrays to the system.

    After the first large array is freed, the GNU C library retains blocks of up to 32 MB per
    thread, which may be half of a small budget. Setting the threshold of `mmap` prevents that.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def gives_memory_back() -> bool:
    """Whether this is a virtual machine that gives free huge pages back to its host."""
    order = _number(_PAGE_REPORTING)
    return order is not None and order <= HUGE_PAGE_ORDER


def restart_peak() -> None:
    """Restart `peak_resident_memory`, so that a run in a long-lived process reports its own
    peak."""
    # Not Linux, or not permitted: the peak is that of the whole process
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def usable_cores() -> int:
    """Number of threads a process should use: OMP_NUM_THREADS if set, otherwise its cores."""
    return threads_asked_for(os.environ.get("OMP_NUM_THREADS", "")) or cores()


def threads_asked_for(text: str) -> int:
    """The number of threads in a value of OMP_NUM_THREADS, the first of a list; 0 if it is none."""
    first = text.split(",")[0].strip()
    if not first.isdecimal():
        return 0
    return int(first)


def allowed_cores() -> int:
    """Number of cores in the affinity of this process, whatever its CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores() -> int:
    """Number of cores this process may use: its affinity, limited by the CPU quota."""
    quota = cpu_quota(_words)
    if quota is None:
        return allowed_cores()
    return min(allowed_cores(), max(1, int(quota)))


def cpu_quota(words: Callable[[str], list[str]]) -> float | None:
    """Cores that the control group of this process and those it is in leave it; None for no limit.

    Parameters
    ----------
    words : the words in a system file, none if it cannot be read
    """
    groups = words(CONTROL_GROUPS)
    quotas = [words(f"{folder}/cpu.max") for folder in _folders("", "/sys/fs/cgroup", groups)]
    for folder in _folders("cpu", "/sys/fs/cgroup/cpu", groups):  # version 1
        quotas.append(words(f"{folder}/cpu.cfs_quota_us") + words(f"{folder}/cpu.cfs_period_us"))
    shares = [
        int(quota[0]) / int(quota[1]) for quota in quotas if len(quota) == 2 and quota[0].isdigit()
    ]
    return min(shares, default=None)


def free_disk(folder: Path) -> int:
    """Bytes free for this user on the file system that holds `folder`."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def _kilobytes(file: str, key: str) -> int | None:
    """Bytes from a line `KEY: NUMBER kB` of a system file."""
    number = _after(file, f"{key}:")
    return None if number is None else number * 1024


def _after(file: str, key: str) -> int | None:
    """The number after a word of a system file."""
    words = _words(file)
    if key in words:
        return int(words[words.index(key) + 1])
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
    """Processor use of other processes from now on."""

    def __init__(self) -> None:
        self._begun = self._now()

    def used(self) -> float:
        """Cores used on average; 0 if the system does not tell."""
        seconds, busy, own = (
            now - before for now, before in zip(self._now(), self._begun, strict=True)
        )
        return max(0.0, (busy - own) / seconds)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), busy_seconds(), sum(os.times()[:4])  # including child processes


def busy_seconds() -> float:
    """Busy processor seconds of the whole machine; 0 if the system does not tell."""
    try:
        fields = [
            int(word)
            for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        ]
    except (OSError, ValueError):
        return 0.0
    # user, nice, system, idle, iowait, irq, softirq, steal; the rest is included in the first two
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
    """Variables that assign a worker its device, based on those of this process or on the machine's
    device folders.

    Raises
    ------
    InputError : fewer Trainium cores than workers, since a core belongs to one process
    """
    if backend in ("cuda", "cuda-tf32", "auto"):
        if CUDA in environment:
            cards = _names(environment[CUDA])
        else:
            cards = _numbered(nvidia, ".*")
        return {CUDA: cards[worker % len(cards)]} if cards else {}
    if backend not in ("nki", "nki-xla"):
        return {}
    if environment.get(NEURON):
        cores = _ranges(environment[NEURON])
    else:
        cores = _numbered(devices, r"neuron\d+", CORES_PER_CHIP)
    if not cores:
        return {}
    if len(cores) < workers:
        raise InputError(
            Option("workers", workers),
            f": there are {len(cores)} NeuronCores and a core serves one process: use at most ",
            Option("workers", len(cores)),
        )
    return {NEURON: cores[worker]}


def _names(text: str) -> list[str]:
    """Names of devices: numbers, or identifiers such as GPU-8f2c...; -1 ends the list."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if "-1" in names:
        return names[: names.index("-1")]
    return names


def _numbered(folder: Path, pattern: str, each: int = 1) -> list[str]:
    """Numbers of the devices in a folder, `each` per file that matches the pattern."""
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
