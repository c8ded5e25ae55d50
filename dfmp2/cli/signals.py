"""Ctrl-C and SIGTERM: stop the work wherever it is, and say so in one line.

The handler raises in whatever Python code is running. Callbacks of the interpreter (`__del__`, weak
references) drop an exception, and the creation of a class wraps it in a RuntimeError; so the signal is
remembered: `check` raises again at the next event of the run, and `dfmp2.cli.main` asks `received`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from dfmp2.errors import Interrupted

LINES = {  # signal -> (message, exit code)
    signal.SIGINT: ("interrupted (Ctrl-C): nothing was written", 130),
    signal.SIGTERM: ("terminated (SIGTERM): nothing was written; run it again", Interrupted.exit_code),
}

_received: list[signal.Signals] = []
_kept: list[str] = []  # what a stopped command leaves behind, the last one counts
_deferred: list[bool] = []
_journals: list[Stoppable] = []
_repeated: list[bool] = []
_finishing: list[bool] = []  # a signal has come, and the run is on its way to a safe point
PATIENCE = 7.0  # s to come to the next safe point; then the run stops where it is, with what was saved before
STOPPED_TWICE = 130


class Stoppable(Protocol):
    """A run that saves its state now and then (`dfmp2.checkpoint.journal`)."""

    saved: bool
    saving: bool

    @property
    def path(self) -> str:
        """Name of its checkpoint."""

    def ask_to_stop(self) -> bool:
        """Stop at the next safe point; false when there is none."""


def listen() -> None:
    """Raise KeyboardInterrupt on Ctrl-C and `Interrupted` on SIGTERM from here on."""
    _received.clear()
    _kept.clear()
    _deferred.clear()
    _journals.clear()
    _finishing.clear()
    _repeated.clear()
    for number in LINES:
        signal.signal(number, _remember)
    signal.signal(signal.SIGALRM, _out_of_patience)
    sys.unraisablehook = _unraisable


def settle() -> None:
    """Ignore both from here on: a complete result is being written, or the one line that says why there is none."""
    for number in (*LINES, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)


def finish_first(journal: Stoppable) -> None:
    """Let a run that has a checkpoint come to its next safe point, from here on; a second signal stops it at once."""
    _journals.append(journal)


def once() -> None:
    """Take further signals for the same one while the run comes to its safe point: torchrun repeats what it gets."""
    _repeated.append(True)


def check() -> None:
    """Raise again what the interpreter has dropped."""
    if _received and not _finishing:
        _raise(_received[0])


def received() -> tuple[str, int] | None:
    """Message and exit code of the first signal that came, None if there was none."""
    return _line(_received[0]) if _received else None


def leave(text: str) -> None:
    """Say `text` instead of "nothing was written" when the command is stopped from here on: it can go on from that."""
    _kept.append(text)


@contextmanager
def deferred() -> Iterator[None]:
    """Let a file be replaced in the block: what comes meanwhile is raised at its end."""
    _deferred.append(True)
    try:
        yield
    finally:
        _deferred.pop()
    check()


def _line(number: signal.Signals) -> tuple[str, int]:
    message, code = LINES[number]
    left = _kept[-1:]
    if _journals and _journals[-1].saved:
        left.append(f"{_journals[-1].path} holds what was {'done' if len(_received) == 1 else 'saved before'}")
    if not left:
        return message, code
    if len(_received) > 1:
        return f"stopped at once by a second signal: {' and '.join(left)}", STOPPED_TWICE
    what = message.partition(":")[0]
    return f"{what}: {' and '.join(left)}; the same command with --resume goes on", Interrupted.exit_code


def _remember(number: int, _frame: FrameType | None) -> None:
    if _finishing and _repeated:
        return
    _received.append(signal.Signals(number))
    if _deferred or (len(_received) > 1 and _saving()):
        return  # the file is complete in a moment, and the first signal ends the run then
    if _journals and len(_received) == 1 and _journals[-1].ask_to_stop():
        _finishing.append(True)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        return
    _finishing.clear()
    _raise(_received[0])


def _out_of_patience(_number: int, _frame: FrameType | None) -> None:
    _finishing.clear()
    if not (_deferred or _saving()):
        check()


def _saving() -> bool:
    """Whether a checkpoint is being written."""
    return bool(_journals) and _journals[-1].saving


def _raise(number: signal.Signals) -> None:
    if number == signal.SIGINT and not (_journals and _journals[-1].saved and len(_received) == 1):
        raise KeyboardInterrupt
    raise Interrupted(_line(number)[0])


def _unraisable(report: Any) -> None:
    if not _received:
        sys.__unraisablehook__(report)
