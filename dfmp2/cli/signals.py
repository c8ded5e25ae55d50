"""Ctrl-C and SIGTERM: stop the work wherever it is, and say so in one line.

A run that has a checkpoint on disk comes to the end of its SCF iteration or tile first, saves it,
and ends with 75. The handler raises in whatever Python code is running. Callbacks of the
interpreter (`__del__`, weak references) drop an exception, and the creation of a class wraps it in
a RuntimeError; so the signal is remembered: `check` raises again at the next event of the run, and
`dfmp2.cli.main` asks `received`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from dfmp2.errors import STOPPED, Interrupted

if TYPE_CHECKING:
    from dfmp2.output.checkpoint import FileCheckpoint

LINES = {  # signal -> (message, exit code)
    signal.SIGINT: ("interrupted (Ctrl-C): nothing was written", STOPPED),
    signal.SIGTERM: (
        "terminated (SIGTERM): nothing was written; run it again",
        Interrupted.exit_code,
    ),
}
# s to the end of the iteration or tile; then the run stops where it is, with what was saved before
PATIENCE = 7.0


@dataclass
class _State:
    """What has come since `listen`.

    received : signals, in order
    left : what a stopped command leaves behind beside a checkpoint
    run : the checkpoint of a run, which may be on disk
    deferring : whether a file is being replaced
    finishing : whether the run is on its way to the end of its iteration or tile
    """

    received: list[signal.Signals] = field(default_factory=list)
    left: str = ""
    run: FileCheckpoint | None = None
    deferring: bool = False
    finishing: bool = False

    @property
    def saving(self) -> bool:
        """Whether a file is being written that is complete in a moment."""
        return self.deferring or (self.run is not None and self.run.saving)


_state = _State()


@contextmanager
def as_before() -> Iterator[None]:
    """Put handlers of signals back at the end of the block: the command line may be called by a
    program of others."""
    handlers = {number: signal.getsignal(number) for number in (*LINES, signal.SIGALRM)}
    hook = sys.unraisablehook
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None: one that Python has not installed and cannot put back
                signal.signal(number, handler)
        sys.unraisablehook = hook


def listen() -> None:
    """Raise KeyboardInterrupt on Ctrl-C and `Interrupted` on SIGTERM from here on."""
    global _state
    _state = _State()
    for number in LINES:
        signal.signal(number, _remember)
    signal.signal(signal.SIGALRM, _out_of_patience)
    sys.unraisablehook = _unraisable


def settle_signal() -> None:
    """Ignore both from here on: a complete result is being written, or the one line that says why
    there is none."""
    for number in (*LINES, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)


def commit() -> None:
    """Raise what has come; ignore what comes from here on, because a complete result is being
    written."""
    check_signals()
    settle_signal()


def finish_first(run: FileCheckpoint) -> None:
    """Let a run finish its iteration or tile where it has a checkpoint; a second signal stops it at
    once.

    Raises
    ------
    Interrupted, KeyboardInterrupt : a signal has come while the run before ended
    """
    if _state.finishing:
        _state.finishing = False
        check_signals()
    _state.run = run


def leave(text: str) -> None:
    """Say `text` instead of "nothing was written" when the command is stopped from here on: it can
    go on from that."""
    _state.left = text


def check_signals() -> None:
    """Raise again what the interpreter has dropped."""
    if _state.received and not _state.finishing:
        _raise()


def received() -> tuple[str, int] | None:
    """Message and exit code of the first signal that came, None if there was none."""
    if not _state.received:
        return None
    twice = len(_state.received) > 1
    message, code = LINES[_state.received[0]]
    left = [_state.left] if _state.left else []
    if _state.run is not None and _state.run.saved:
        left.append(f"{_state.run.path} holds what was {'saved before' if twice else 'done'}")
    if not left:
        return message, code
    if twice:
        return f"stopped at once by a second signal: {' and '.join(left)}", STOPPED
    what = message.partition(":")[0]
    return (
        f"{what}: {' and '.join(left)}; repeat the command to continue",
        Interrupted.exit_code,
    )


@contextmanager
def deferred(left: str) -> Iterator[None]:
    """Let a file be replaced in the block, which leaves what `left` says: what comes meanwhile is
    raised at its end."""
    _state.deferring = True
    try:
        yield
        leave(left)
    finally:
        _state.deferring = False
    check_signals()


def _remember(number: int, _frame: FrameType | None) -> None:
    _state.received.append(signal.Signals(number))
    first = len(_state.received) == 1
    if _state.deferring or (not first and _state.saving):
        return  # the file is complete in a moment, and the first signal ends the run then
    if first and _state.run is not None and _state.run.ask_to_stop():
        _state.finishing = True
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        return
    _state.finishing = False
    _raise()


def _out_of_patience(_number: int, _frame: FrameType | None) -> None:
    _state.finishing = False
    if not _state.saving:
        check_signals()


def _raise() -> None:
    message, code = received() or ("", 0)
    if code == Interrupted.exit_code:
        raise Interrupted(message)
    raise KeyboardInterrupt


def _unraisable(report: Any) -> None:
    if not _state.received:
        sys.__unraisablehook__(report)
