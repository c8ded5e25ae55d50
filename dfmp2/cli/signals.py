"""Ctrl-C and SIGTERM: stop the work wherever it is, and say so in one line.

The handler raises in whatever Python code is running. Callbacks of the interpreter (`__del__`, weak
references) drop an exception, and the creation of a class wraps it in a RuntimeError; so the signal is
remembered: `check` raises again at the next event of the run, and `dfmp2.cli.main` asks `received`.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

from dfmp2.errors import Interrupted

LINES = {  # signal -> (message, exit code)
    signal.SIGINT: ("interrupted (Ctrl-C): nothing was written", 130),
    signal.SIGTERM: ("terminated (SIGTERM): nothing was written; run it again", Interrupted.exit_code),
}

_received: list[signal.Signals] = []


def listen() -> None:
    """Raise KeyboardInterrupt on Ctrl-C and `Interrupted` on SIGTERM from here on."""
    _received.clear()
    for number in LINES:
        signal.signal(number, _remember)
    sys.unraisablehook = _unraisable


def settle() -> None:
    """Ignore both from here on: a complete result is being written, or the one line that says why there is none."""
    for number in LINES:
        signal.signal(number, signal.SIG_IGN)


def check() -> None:
    """Raise again what the interpreter has dropped."""
    if _received:
        _raise(_received[0])


def received() -> tuple[str, int] | None:
    """Message and exit code of the first signal that came, None if there was none."""
    return LINES[_received[0]] if _received else None


def _remember(number: int, _frame: FrameType | None) -> None:
    _received.append(signal.Signals(number))
    _raise(_received[0])


def _raise(number: signal.Signals) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Interrupted(LINES[number][0])


def _unraisable(report: Any) -> None:
    if not _received:
        sys.__unraisablehook__(report)
