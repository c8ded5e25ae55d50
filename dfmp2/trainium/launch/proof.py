"""Proof of what ran: programs, launches, times, bytes, and the device's own counters.

Compilation is timed apart from launches, and the first launch of a program apart from the later
ones. The device counts inferences itself (sysfs `inference_count` per core): its counts before and
after are stored as they were read, because older drivers update them late. Unverified on hardware.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dfmp2.trainium.launch.environment import HERE

COUNTERS = "sys/devices/virtual/neuron_device"


@dataclass(slots=True)
class Proof:
    """Counts of one process.

    Attributes
    ----------
    launches : kernel launches; programs : different compiled programs launched
    compiled : programs compiled by this run; cache_hits : found compiled
    compile_seconds, load_seconds : s; first_seconds : of the first launch of each program;
        later_seconds : of the others
    uploads, bytes_up, bytes_down : transfers
    """

    launches: int = 0
    programs: int = 0
    compiled: int = 0
    cache_hits: int = 0
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    first_seconds: float = 0.0
    later_seconds: float = 0.0
    uploads: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    _seen: set[object] = field(default_factory=set, repr=False)

    @contextmanager
    def launch(self, program: object) -> Iterator[None]:
        """Count and time a launch that succeeds."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.launches += 1
        if program in self._seen:
            self.later_seconds += seconds
        else:
            self._seen.add(program)
            self.programs += 1
            self.first_seconds += seconds

    def describe(self) -> dict[str, str]:
        """The counts as texts, for the record."""
        return {
            "kernel launches": str(self.launches),
            "programs": f"{self.programs} launched, {self.compiled} compiled now, "
            f"{self.cache_hits} found in the cache",
            "compile time": f"{self.compile_seconds:.3f} s compiling, {self.load_seconds:.3f} s loading",
            "launch time": f"{self.first_seconds:.4f} s in first launches of a program, "
            f"{self.later_seconds:.4f} s in others",
            "transfers": f"{self.uploads} uploads, {self.bytes_up} bytes up, {self.bytes_down} "
            "bytes down",
        }


def inferences() -> dict[str, int]:
    """The devices' own counts of inferences by core, such as {"neuron0/neuron_core1": 36}; empty
    where unreadable."""
    folder = HERE.root / COUNTERS
    found = {}
    for file in sorted(folder.glob("neuron*/neuron_core*/stats/other_info/inference_count")):
        text = HERE.text(f"/{file.relative_to(HERE.root)}")
        if text.isdigit():
            found["/".join(file.relative_to(folder).parts[:2])] = int(text)
    return found


def counted(before: dict[str, int], after: dict[str, int]) -> str:
    """How the counters moved, in one line."""
    if not before or not after:
        return "not readable"
    moved = [
        f"{core} {before.get(core, 0)} -> {count}"
        for core, count in after.items()
        if count != before.get(core)
    ]
    return ", ".join(moved) or "did not move"
