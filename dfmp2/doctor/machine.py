"""Cores, thread settings, BLAS, memory and clock."""

from __future__ import annotations

import ctypes
import re
import resource
import time
from pathlib import Path

from dfmp2 import resources
from dfmp2.doctor.finding import OK, WARN, Finding, Surroundings
from dfmp2.units import format_bytes

LITTLE_MEMORY = 2 * 10**9  # bytes; libraries and the smallest run hold 110 MB
OVERRIDDEN = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")  # a run sets them to 1 itself
PINNING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
QUOTA = "/sys/fs/cgroup/cpu.max"  # version 2 of the control groups, which a run looks at
MEMORY_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
UNLIMITED = 1 << 60  # what version 1 of the control groups calls no limit
LARGEST_SKEW = 5.0  # s between this clock and that of the disk
DAY = 86400.0  # s


def cpu_quota(s: Surroundings) -> float | None:
    """Cores the control group allows, None for no limit."""
    quota = s.words(QUOTA)
    if len(quota) != 2:
        quota = [*s.words("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), *s.words("/sys/fs/cgroup/cpu/cpu.cfs_period_us")]
    if len(quota) != 2 or not all(part.isdigit() for part in quota) or int(quota[1]) == 0:
        return None
    return int(quota[0]) / int(quota[1])


def check_threads(s: Surroundings) -> Finding:
    """Will a run use the cores it may use, and no more?"""
    quota = cpu_quota(s)
    usable = s.cores if quota is None else min(s.cores, max(1, int(quota)))
    limit = "no quota" if quota is None else f"quota {quota:g}"
    detail = f"{usable} usable ({s.cores} by affinity, {limit})"
    problems = [*_asked_threads(s, usable), *_pinned_threads(s)]
    if "OMP_NUM_THREADS" not in s.environ and usable < s.cores and len(s.words(QUOTA)) != 2:
        problems.append((f"a run would start {s.cores}", f"export OMP_NUM_THREADS={usable}"))
    if problems:
        texts, fixes = zip(*problems, strict=True)
        return Finding("threads", WARN, f"{detail}; {'; '.join(texts)}", "; ".join(fixes))
    set_to = [f"{name}={s.environ[name]}" for name in OVERRIDDEN if s.environ.get(name, "1") != "1"]
    return Finding("threads", OK, detail + (f"; a run overrides {', '.join(set_to)}" if set_to else ""))


def _asked_threads(s: Surroundings, usable: int) -> list[tuple[str, str]]:
    """(problem, fix) of OMP_NUM_THREADS, which a run takes as its number of threads."""
    asked = s.environ.get("OMP_NUM_THREADS")
    if asked is None:
        return []
    first = asked.split(",")[0].strip()
    if not first.isdigit() or int(first) < 1:
        return [(f"OMP_NUM_THREADS={asked} is no number", "unset OMP_NUM_THREADS")]
    if int(first) > usable:
        return [(f"OMP_NUM_THREADS={asked} is more", f"export OMP_NUM_THREADS={usable}")]
    if int(first) < usable:
        return [(f"OMP_NUM_THREADS={asked} is fewer", f"unset OMP_NUM_THREADS, or run with --threads {usable}")]
    return []


def _pinned_threads(s: Surroundings) -> list[tuple[str, str]]:
    """(problem, fix) of variables that bind OpenMP threads: workers inherit the one core of the main thread."""
    names = [name for name in PINNING if s.environ.get(name, "false").lower() not in ("false", "disabled", "none")]
    if not names:
        return []
    shown = ", ".join(f"{name}={s.environ[name]}" for name in names)
    return [(f"{shown} may pin all workers to one core", f"unset {' '.join(names)}")]


def check_blas() -> Finding:
    """Which BLAS is loaded, and does every OpenBLAS let itself be set to one thread?"""
    from dfmp2 import provenance, threads

    with threads.limited(1):
        libraries = [(Path(path).name, *_openblas(path)) for path in loaded_libraries("openblas")]
    detail = f"NumPy: {provenance.blas()}"
    if libraries:
        detail += "; loaded: " + ", ".join(f"{name} ({config})" for name, config, _ in libraries)
    stubborn = [name for name, _, count in libraries if count != 1]
    if stubborn:
        return Finding(
            "BLAS",
            WARN,
            f"{detail}; {', '.join(stubborn)} cannot be set to one thread",
            "export OPENBLAS_NUM_THREADS=1",
        )
    return Finding("BLAS", OK, detail)


def loaded_libraries(name: str) -> list[str]:
    """Paths of the shared libraries of this process with `name` in their file name."""
    try:
        text = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return sorted({path for path in re.findall(r"(/\S+)", text) if name in Path(path).name and ".so" in path})


def _openblas(path: str) -> tuple[str, int | None]:
    """(version and processor type, threads) of an OpenBLAS; None where it does not tell."""
    library = ctypes.CDLL(path)
    for pattern in ("openblas_{}", "scipy_openblas_{}", "scipy_openblas_{}64_", "openblas_{}64_"):
        config, count = (getattr(library, pattern.format(f"get_{what}"), None) for what in ("config", "num_threads"))
        if config is not None and count is not None:
            config.restype = ctypes.c_char_p
            words = (config() or b"").decode(errors="replace").split()
            told = [w for w in words if w[:1].isdigit() or w in words[-2:-1] or w.startswith("MAX_THREADS")]
            return " ".join(told) or "OpenBLAS", int(count())
    return "unknown build", None


def check_memory(s: Surroundings, available: int | None = None) -> Finding:
    """Is there memory, within the limits of control group and shell?"""
    free = resources.available_memory() if available is None else available
    limits = [int(w[0]) for file in MEMORY_LIMITS if (w := s.words(file)) and w[0].isdigit() and int(w[0]) < UNLIMITED]
    address = resource.getrlimit(resource.RLIMIT_AS)[0]
    detail = f"{format_bytes(free)} available"
    detail += f", control group limit {format_bytes(min(limits))}" if limits else ", no control group limit"
    if address != resource.RLIM_INFINITY:
        return Finding(
            "memory",
            WARN,
            f"{detail}; the shell limits addresses to {format_bytes(address)}, which counts reserved memory as used",
            "ulimit -v unlimited, and limit runs with --memory",
        )
    if free < LITTLE_MEMORY:
        return Finding("memory", WARN, detail, "larger molecules need more: end other programs or raise the limit")
    return Finding("memory", OK, detail)


def check_clock(disk_time: float | None, installed: float, now: float | None = None) -> Finding:
    """Is the clock plausible, and does the disk of the working directory have the same?

    Parameters
    ----------
    disk_time : modification time of a file just written, s since 1970; None if none could be written
    installed : modification time of this program, s since 1970
    now : s since 1970
    """
    now = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if installed > now + DAY:
        detail = f"{shown}, but dfmp2 was installed {(installed - now) / DAY:.0f} days later"
        return Finding("clock", WARN, detail, "set the clock (date, chrony, ntpd)")
    if disk_time is not None and abs(disk_time - now) > LARGEST_SKEW:
        ahead = "ahead of" if disk_time > now else "behind"
        return Finding(
            "clock",
            WARN,
            f"{shown}; the disk of the working directory is {abs(disk_time - now):.0f} s {ahead} it",
            "synchronise the clocks of this machine and the file server (chrony, ntpd)",
        )
    return Finding("clock", OK, shown)
