"""What a calculation reports while it runs; by default only warnings appear.

The code never prints: it calls a `Listener`. The command line passes one that writes to stderr; a
notebook or a service can pass its own.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

Block = TypeVar("Block")
# Packages in the call stack between a warning and the user's code
NOT_THE_CALLER = {"dfmp2", "contextlib", "ase"}


class Listener:
    """Receives events of a run; override the methods you need in a subclass."""

    def stage(self, text: str) -> None:
        """A stage begins (basis, SCF, integrals, pair energies, check)."""

    def substage(self, text: str) -> None:
        """A stage of one of several runs begins; by default treated as any stage."""
        self.stage(text)

    def note(self, text: str) -> None:
        """A note about the run that is not a stage; by default treated as a stage."""
        self.stage(text)

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        """An SCF iteration has ended; energies and gradient norm in Eh."""

    def step(self, done: int, total: int, what: str) -> None:
        """`done` of `total` parts of the present stage are finished; `what` names the parts, such
        as integrals or pairs."""

    def spent(self, stage: str, begin: float, end: float) -> None:
        """The stopwatch has charged this interval to a stage (`Timings`), in s of
        `time.perf_counter`."""

    def time_left(self, seconds: float | None) -> None:
        """Approximate seconds left for the whole task, None if unknown.

        Called before the event on which the estimate is based.
        """

    def warning(self, text: str) -> None:
        """Something the user should know before trusting the result."""
        level, frame = 1, sys._getframe()
        while (
            frame.f_back is not None
            and frame.f_globals.get("__name__", "").partition(".")[0] in NOT_THE_CALLER
        ):
            level, frame = level + 1, frame.f_back
        warnings.warn(text, stacklevel=level)


class LoggingListener(Listener):
    """Passes stages and warnings to a standard-library logger, for services and scripts.

    Parameters
    ----------
    logger : logging.Logger
        Receives stages at level INFO, iterations and steps at DEBUG, warnings at WARNING; by
        default the logger "dfmp2".
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("dfmp2")

    def stage(self, text: str) -> None:
        self._logger.info("%s", text)

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self._logger.debug("SCF %d: %.10f Eh, gradient %.1e", cycle, energy, gradient)

    def step(self, done: int, total: int, what: str) -> None:
        self._logger.debug("%s: %d of %d", what, done, total)

    def warning(self, text: str) -> None:
        self._logger.warning("%s", text)


class Silent(Listener):
    """Ignores all events, also warnings, which are repeated elsewhere or of no interest."""

    def warning(self, text: str) -> None:
        pass


class Relay(Listener):
    """Passes events on; the base of listeners that handle some of them."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def stage(self, text: str) -> None:
        self._listener.stage(text)

    def substage(self, text: str) -> None:
        self._listener.substage(text)

    def note(self, text: str) -> None:
        self._listener.note(text)

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self._listener.scf_cycle(cycle, energy, change, gradient)

    def step(self, done: int, total: int, what: str) -> None:
        self._listener.step(done, total, what)

    def spent(self, stage: str, begin: float, end: float) -> None:
        self._listener.spent(stage, begin, end)

    def time_left(self, seconds: float | None) -> None:
        self._listener.time_left(seconds)

    def warning(self, text: str) -> None:
        self._listener.warning(text)


class Wordless(Relay):
    """Passes on progress but no texts, for one of very many calculations."""

    def stage(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        pass

    def warning(self, text: str) -> None:
        pass


def counted_blocks(
    blocks: Iterator[tuple[int, int, Block]], total: int, listener: Listener
) -> Iterator[tuple[int, int, Block]]:
    """Blocks (begin, end, ...) of integrals with `total` rows; reports each to the listener once it
    has been used."""
    for block in blocks:
        yield block
        listener.step(block[1], total, "integrals")


class Forecast(Protocol):
    """Estimates the time left (`dfmp2.planning.time`)."""

    def cycle(self, cycle: int, gradient: float) -> None:
        """An SCF iteration has ended."""

    def step(self, done: int, total: int) -> None:
        """Parts of the present stage are finished."""

    def left(self) -> float | None:
        """Seconds left, None if unknown."""


class Collector(Relay):
    """Keeps the warnings for the result, and reports the time left once there is a forecast."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.warnings: list[str] = []
        self.forecast: Forecast | None = None

    def stage(self, text: str) -> None:
        self._tell()
        super().stage(text)

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        if self.forecast is not None:
            self.forecast.cycle(cycle, gradient)
        self._tell()
        super().scf_cycle(cycle, energy, change, gradient)

    def step(self, done: int, total: int, what: str) -> None:
        if self.forecast is not None:
            self.forecast.step(done, total)
        self._tell()
        super().step(done, total, what)

    def warning(self, text: str) -> None:
        self.warnings.append(text)
        super().warning(text)

    def _tell(self) -> None:
        if self.forecast is not None:
            self.time_left(self.forecast.left())


class Stopwatch:
    """Wall time per named stage, in seconds; a nested stage is not charged to the outer one.

    Parameters
    ----------
    listener : notified of each interval that is charged
    """

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener or Listener()
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
        """The blocks of a generator; the time to produce each is added to `stage`."""
        while True:
            with self(stage):
                block = next(blocks, None)
            if block is None:
                return
            yield block

    def elapsed(self, *stages: str) -> float:
        """Seconds spent in some stages so far, including one in progress."""
        if self._stages and self._stages[-1] in stages:
            running = time.perf_counter() - self._mark
        else:
            running = 0.0
        return sum(self.seconds.get(stage, 0.0) for stage in stages) + running

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._stages:
            stage = self._stages[-1]
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._mark
            self._listener.spent(stage, self._mark, now)
        self._mark = now

    @property
    def total(self) -> float:
        """Seconds since the stopwatch was created."""
        return time.perf_counter() - self._started
