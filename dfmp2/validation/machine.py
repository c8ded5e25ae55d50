"""What figures were measured on, how quiet it was, and the spread of repeated measurements."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import Any

from dfmp2.host import provenance, resources
from dfmp2.host.resources import Others
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
            f"machine: {self.processor}, {self.cores} usable cores, {format_bytes(self.memory)}; "
            f"{platform.platform()}",
            f"versions: {versions}",
            f"date: {self.date}; load average {self.load:.2f}; others used {self.busy:.2f} cores "
            "before the start",
        ]


def watch(listener: Listener | None = None) -> Machine:
    """Look at the machine for a second in which nothing of ours runs; tell the listener where it is
    not quiet."""
    others = Others()
    time.sleep(WATCHED)
    busy = others.used()
    if listener is not None and busy > QUIET:
        listener.warning(
            f"other processes keep {busy:.2f} cores busy: times are too long; use a quiet machine"
        )
    return Machine(
        processor=_processor(),
        cores=resources.usable_cores(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        versions={
            "dfmp2": provenance.version(),
            "Python": platform.python_version(),
            **{
                name: found
                for name in LIBRARIES
                if (found := provenance.installed_version(name)) is not None
            },
            "BLAS of NumPy": provenance.blas(),
        },
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        load=os.getloadavg()[0],
        busy=busy,
    )


class Meter:
    """The machine, and what other processes use while this one measures."""

    def __init__(self, listener: Listener) -> None:
        self.machine, self._listener, self._others = watch(listener), listener, Others()

    def record(self) -> dict[str, Any]:
        """Machine, load, and cores that others kept busy since the meter was made (0 where the
        system does not say)."""
        foreign = self._others.used()
        if foreign > QUIET:
            self._listener.warning(
                f"meanwhile others used {foreign:.2f} cores: the rates are too low"
            )
        load = os.getloadavg()[0]
        return {
            "machine": asdict(self.machine),
            "load_average_after": load,
            "foreign_cores": foreign,
        }


def header(record: dict[str, Any]) -> list[str]:
    """What `Meter.record` found, as lines."""
    return [
        *(
            part
            for line in Machine(**record["machine"]).lines()
            for part in wrap(line, 80, subsequent_indent="  ")
        ),
        f"load average at the end {record['load_average_after']:.2f} (our own work included)",
        f"others used {record['foreign_cores']:.2f} cores meanwhile",
    ]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float

    def show(self, digits: int = 2) -> str:
        """Median and range, e.g. "1.26 (1.20-1.31)"; the median alone when they are the same."""
        middle, low, high = (f"{value:.{digits}f}" for value in (self.median, self.low, self.high))
        if low == high:
            return middle
        return f"{middle} ({low}-{high})"


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of one or more values."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Spread of ours/theirs, measurement k with measurement k: what slows both at the same time
    cancels."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if named:
        return named[0]
    return platform.processor() or platform.machine()
