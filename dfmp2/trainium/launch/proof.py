"""Records of what actually ran: programs, launches, times, bytes.

Compilation is timed separately from launches, and the first launch of a program separately from
later ones. Unverified on hardware.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Proof:
    """Counts for one process.

    Attributes
    ----------
    launches : kernel launches
    compiled : programs compiled by this run; cache_hits : programs found in the cache
    compile_seconds, load_seconds : s; first_seconds : of the first launch of each program;
        later_seconds : of the others
    uploads, bytes_up, bytes_down : transfers
    """

    launches: int = 0
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
        """Count and time a successful launch."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.launches += 1
        if program in self._seen:
            self.later_seconds += seconds
        else:
            self._seen.add(program)
            self.first_seconds += seconds

    def describe(self) -> dict[str, str]:
        """The counts as text, for the record."""
        return {
            "programs": f"{len(self._seen)} launched, {self.compiled} compiled now, "
            f"{self.cache_hits} found in the cache",
            "compile time": f"{self.compile_seconds:.3f} s compiling, {self.load_seconds:.3f} s loading",
            "launch time": f"{self.first_seconds:.4f} s in first launches of a program, "
            f"{self.later_seconds:.4f} s in others",
            "transfers": f"{self.uploads} uploads, {self.bytes_up} bytes up, {self.bytes_down} "
            "bytes down",
        }
