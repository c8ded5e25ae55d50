"""What a calculation reports while it runs; the default keeps quiet except for warnings.

Functions below never print: they call a `Listener`. The command line passes one that writes to
stderr, a notebook or a service can pass its own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Block = TypeVar("Block")


class Listener:
    """Receives events of a run; subclass and override what is of interest."""

    def stage(self, text: str) -> None:
        """A stage begins (basis, SCF, integrals, pair energies, check)."""

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        """An SCF iteration has ended; energies and gradient norm in Eh."""

    def tiles(self, done: int, total: int) -> None:
        """`done` of `total` pairs are evaluated."""

    def warning(self, text: str) -> None:
        """Something the user should know before trusting the number."""
        warnings.warn(text, stacklevel=3)


class Silent(Listener):
    """Hears nothing, warnings either: somebody else repeats them, or they are of no interest."""

    def warning(self, text: str) -> None:
        pass


class Collector(Listener):
    """Passes events on and keeps the warnings for the result."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.warnings: list[str] = []
        self.stage = listener.stage  # type: ignore[method-assign]
        self.scf_cycle = listener.scf_cycle  # type: ignore[method-assign]
        self.tiles = listener.tiles  # type: ignore[method-assign]

    def warning(self, text: str) -> None:
        self.warnings.append(text)
        self._listener.warning(text)


class Stopwatch:
    """Wall time per named stage, in seconds; a stage within another one is not charged to that."""

    def __init__(self) -> None:
        self._started = self._mark = time.perf_counter()
        self._stages: list[str] = []
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Add the time spent in the block to `stage`."""
        self._charge()
        self._stages.append(stage)
        try:
            yield
        finally:
            self._charge()
            self._stages.pop()

    def during(self, stage: str, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks of a generator; the time that each takes to be made is added to `stage`."""
        while True:
            with self(stage):
                block = next(blocks, None)
            if block is None:
                return
            yield block

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._stages:
            stage = self._stages[-1]
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._mark
        self._mark = now

    @property
    def total(self) -> float:
        """Seconds since the stopwatch was made."""
        return time.perf_counter() - self._started
