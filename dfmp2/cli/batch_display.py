"""What `dfmp2 batch run` shows while it works, and how it listens to Ctrl-C and SIGTERM."""

from __future__ import annotations

import math
import signal
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from dfmp2.cli.console import Console

if TYPE_CHECKING:
    from dfmp2.batch.state import Row

EVERY_LINE = 100  # items up to which each has its line
LINE_EVERY = 5.0  # s between lines of complete items in a larger batch
LONGEST_MESSAGE = 300
TOGETHER = 1.0  # s within which two SIGTERM are one: a scheduler sends it to all processes, and its script passes it on


class Display:
    """Lines on stderr; the first signal asks the batch to stop, as `stop_asked` says, the second to stop at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._signals = 0
        self._signalled = -math.inf
        self._last = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Display:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop_asked(self) -> int:
        """Number of signals so far."""
        return self._signals

    def note(self, text: str) -> None:
        """A line."""
        self._console.note(text)

    def item(self, row: Row, done: int, total: int, left: float | None) -> None:
        """An item has ended."""
        place = f"[{done}/{total}] {row.name}"
        if row.status == "failed":
            message = (row.error or "")[:LONGEST_MESSAGE]
            self._console.warning(f"{place}: failed with code {row.exit_code}: {message}")
            return
        now = time.monotonic()
        if total > EVERY_LINE and done != total and now - self._last < LINE_EVERY:
            return
        self._last = now
        energy = row.numbers.get("mp2_total_energy")
        said = row.status if energy is None else f"E(MP2) = {energy:.10f} Eh"
        remaining = "" if left is None or done == total else f"; {duration(left)} left"
        self._console.note(f"{place}: {said}, {row.seconds or 0.0:.1f} s{remaining}")

    def _count(self, number: int, _frame: FrameType | None) -> None:
        before, self._signalled = self._signalled, time.monotonic()
        if number != signal.SIGTERM or self._signalled - before > TOGETHER:
            self._signals += 1


def duration(seconds: float) -> str:
    """Time as people say it."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
