"""What a calculation reports while it runs; the default keeps quiet except for warnings.

Functions below never print: they call a `Listener`. The command line passes one that writes to
stderr, a notebook or a service can pass its own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


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
    """Wall time per named stage, in seconds."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Add the time spent in the block to `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    @property
    def total(self) -> float:
        """Seconds since the stopwatch was made."""
        return time.perf_counter() - self._started
