"""What figures were measured on, how quiet it was, and the spread of repeated measurements."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata, util
from pathlib import Path

from dfmp2.host import provenance, resources
from dfmp2.progress import Listener
from dfmp2.units import format_bytes

WATCHED = 1.0  # s the machine is watched before anything is timed
QUIET = 0.1  # cores used by other processes, above which figures are called disturbed
LIBRARIES = ("numpy", "scipy", "pyscf", "torch")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and its state when the measurement began.

    Attributes
    ----------
    processor, cores, memory : model, cores this process may use, bytes
    versions : of dfmp2, Python and the libraries; of NumPy's BLAS
    date : UTC, ISO 8601
    load : load average of the last minute
    busy : cores that other processes kept busy while nothing of ours ran
    """

    processor: str
    cores: int
    memory: int
    versions: dict[str, str]
    date: str
    load: float
    busy: float

    def lines(self) -> list[str]:
        """The header of a report."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [
            f"machine: {self.processor}, {self.cores} usable cores, {format_bytes(self.memory)}; {platform.platform()}",
            f"versions: {versions}",
            f"date: {self.date}; load average {self.load:.2f}; others used {self.busy:.2f} cores before the start",
        ]

    def warnings(self) -> list[str]:
        """What makes the figures doubtful from the start."""
        if self.busy <= QUIET:
            return []
        return [
            f"other processes keep {self.busy:.2f} cores busy: times are too long and ratios uncertain; measure on a "
            "quiet machine"
        ]


def watch(listener: Listener | None = None) -> Machine:
    """Look at the machine for a second in which nothing of ours runs; tell the listener where it is not quiet."""
    before, start = busy_seconds(), time.perf_counter()
    time.sleep(WATCHED)
    busy = (busy_seconds() - before) / (time.perf_counter() - start)
    installed = [name for name in LIBRARIES if util.find_spec(name) is not None]
    found = Machine(
        processor=_processor(),
        cores=resources.usable_cores(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        versions={
            "dfmp2": provenance.version(),
            "Python": platform.python_version(),
            **{name: metadata.version(name) for name in installed},
            "BLAS of NumPy": provenance.blas(),
        },
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        load=os.getloadavg()[0],
        busy=busy,
    )
    if listener is not None:
        for warning in found.warnings():
            listener.warning(warning)
    return found


class Meter:
    """Counts what other processes use while this one works."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), busy_seconds(), time.process_time()

    def foreign(self, listener: Listener) -> float:
        """Cores that others kept busy since the meter was made, with a warning; 0 where the system does not say."""
        wall, busy, own = self._start
        elapsed = time.perf_counter() - wall
        found = max(0.0, busy_seconds() - busy - (time.process_time() - own)) / elapsed
        if found > QUIET:
            listener.warning(f"meanwhile others used {found:.2f} cores: the rates are too low")
        return found


def busy_seconds() -> float:
    """Processor seconds of the whole machine spent on anything but idling; 0 where the system does not say."""
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return 0.0
    # user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in the first two
    return (sum(fields[:8]) - sum(fields[3:5])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float

    def show(self, digits: int = 2) -> str:
        """Median and range, e.g. "1.26 (1.20-1.31)"; the median alone when they are the same."""
        middle, low, high = (f"{value:.{digits}f}" for value in (self.median, self.low, self.high))
        return middle if low == high else f"{middle} ({low}-{high})"


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of one or more values."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Spread of ours/theirs, measurement k with measurement k: what slows both at the same time cancels."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
