"""What the figures were measured on, and how quiet it was."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata, util
from pathlib import Path

from dfmp2 import provenance, resources
from dfmp2.bench.launcher import busy_seconds
from dfmp2.product_rates import QUIET
from dfmp2.units import format_bytes

WATCHED = 1.0  # s the machine is watched before anything is timed
BUSY = QUIET  # cores used by others, above which figures are called disturbed
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
        if self.busy <= BUSY:
            return []
        return [
            f"other processes keep {self.busy:.2f} cores busy: times are too long and ratios uncertain; measure on a "
            "quiet machine"
        ]


class Meter:
    """Counts what other processes use while we work in this one."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), busy_seconds(), time.process_time()

    def foreign(self) -> float:
        """Cores that others kept busy since the meter was made; 0 where the system does not say."""
        wall, busy, own = self._start
        elapsed = time.perf_counter() - wall
        return max(0.0, busy_seconds() - busy - (time.process_time() - own)) / elapsed


def disturbance(foreign: float) -> list[str]:
    """A warning when others used that many cores meanwhile."""
    return [] if foreign <= BUSY else [f"meanwhile others used {foreign:.2f} cores: the rates are too low"]


def watch() -> Machine:
    """Look at the machine for a second, in which nothing of ours runs."""
    before, start = busy_seconds(), time.perf_counter()
    time.sleep(WATCHED)
    busy = (busy_seconds() - before) / (time.perf_counter() - start)
    installed = [name for name in LIBRARIES if util.find_spec(name) is not None]
    return Machine(
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
        load=load_average(),
        busy=busy,
    )


def load_average() -> float:
    """Average number of runnable processes in the last minute."""
    return os.getloadavg()[0]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
