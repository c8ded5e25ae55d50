"""Ctrl-C and SIGTERM: stop the work at once, with a one-line message.

A run that has a checkpoint on disk first finishes its SCF iteration or tile, saves it, and exits
with 75. The handler raises in whatever Python code is running. Since callbacks of the interpreter
(`__del__`, weak references) drop exceptions, and class creation wraps them in a RuntimeError, the
signal is remembered: `check_signals` raises again at the next event of the run, and
`dfmp2.cli.main` calls `received`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from dfmp2.cli.early import LINES
from dfmp2.errors import STOPPED, Interrupted

if TYPE_CHECKING:
    from dfmp2.output.checkpoint import FileCheckpoint

# s allowed to finish the iteration or tile; then the run stops at once, with the last checkpoint
PATIENCE = 7.0


@dataclass
class _State:
    """Signals and state since `listen`.

    received : signals, in order
    left : what a stopped command leaves behind in addition to a checkpoint
    run : the checkpoint of a run, which may be on disk
    deferring : whether a file is being replaced
    finishing : whether the run is finishing its iteration or tile
    """

    received: list[signal.Signals] = field(default_factory=list)
    left: str = ""
    run: FileCheckpoint | None = None
    deferring: bool = False
    finishing: bool = False

    @property
    def saving(self) -> bool:
        """Whether a file is being written that will be complete in a moment."""
        return self.deferring or (self.run is not None and self.run.saving)


_state = _State()


@contextmanager
def as_before() -> Iterator[None]:
    """Restore signal handlers at the end of the block, because other programs may call the command
    line."""
    handlers = {number: signal.getsignal(number) for number in (*LINES, signal.SIGALRM)}
    hook = sys.unraisablehook
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None: not installed by Python, which cannot restore it
                signal.signal(number, handler)
        sys.unraisablehook = hook


def listen() -> None:
    """From now on, raise KeyboardInterrupt on Ctrl-C and `Interrupted` on SIGTERM."""
    global _state
    _state = _State()
    for number in LINES:
        signal.signal(number, _remember)
    signal.signal(signal.SIGALRM, _out_of_patience)
    sys.unraisablehook = _unraisable


def settle_signal() -> None:
    """Ignore both signals from now on, while a complete result or the error message is being
    written."""
    for number in (*LINES, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)


def commit() -> None:
    """Raise a pending signal; ignore further ones, because a complete result is being written."""
    check_signals()
    settle_signal()


def finish_first(run: FileCheckpoint) -> None:
    """Let a run with a checkpoint finish its iteration or tile; a second signal stops it at once.

    Raises
    ------
    Interrupted, KeyboardInterrupt : a signal arrived while the previous run ended
    """
    if _state.finishing:
        _state.finishing = False
        check_signals()
    _state.run = run


def leave(text: str) -> None:
    """From now on, report `text` instead of "nothing was written" if the command is stopped,
    because it can be resumed."""
    _state.left = text


def check_signals() -> None:
    """Raise again a signal whose exception the interpreter dropped."""
    if _state.received and not _state.finishing:
        _raise()


def received() -> tuple[str, int] | None:
    """Message and exit code of the first signal received, None if there was none."""
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
    """Context for replacing a file, which leaves what `left` says; signals that arrive meanwhile
    are raised at its end."""
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
        return  # the file will be complete in a moment, and the first signal then ends the run
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
