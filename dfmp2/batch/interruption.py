"""SIGTERM in a worker: come to the next safe point where there is a checkpoint, else stop wherever it is.

Never between a result and its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import Interrupted
from dfmp2.progress import Listener

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
TEXT = "terminated (SIGTERM)"
OOM_SCORE_ADJ = 100  # of 1000, <linux/oom.h>: a worker counts as if it held a tenth of the memory more
PATIENCE = 6.0  # s to come to the next safe point


class Interruption:
    """Raises `Interrupted` on SIGTERM while entered; Ctrl-C is the parent's business and ignored.

    The interpreter drops what is raised in some of its callbacks, so the signal is remembered and raised again at the
    next event of the run.
    """

    def __init__(self) -> None:
        self._received = False
        self._holding = self._finishing = False
        self._journal: Journal | None = None

    def __enter__(self) -> Interruption:
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGALRM, self._lose_patience)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def check(self) -> None:
        """Raise `Interrupted` if the signal has come and no safe point is waited for."""
        if self._received and not self._finishing:
            raise Interrupted(TEXT)

    @contextmanager
    def finishing(self, journal: Journal) -> Iterator[None]:
        """Let the run that `journal` saves come to its next safe point in the block."""
        self._journal = journal
        try:
            yield
        finally:
            self._journal, self._finishing = None, False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let files be replaced in the block; `check` tells what came meanwhile."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def listener(self) -> Listener:
        """Of a run that stops when the signal has come; its warnings are in its result."""
        return _Watching(self)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._received = True
        if self._holding or self._finishing:
            return
        if self._journal is not None and self._journal.ask_to_stop():
            self._finishing = True
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            return
        raise Interrupted(TEXT)

    def _lose_patience(self, _number: int, _frame: FrameType | None) -> None:
        self._finishing = False
        if not self._holding:
            self.check()


class _Watching(Listener):
    def __init__(self, interruption: Interruption) -> None:
        self._check = interruption.check

    def stage(self, text: str) -> None:
        self._check()

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self._check()

    def tiles(self, done: int, total: int) -> None:
        self._check()

    def warning(self, text: str) -> None:
        """Kept in the result."""


def die_with_parent(parent: int) -> None:
    """Have the system send SIGTERM when the parent dies; where it cannot, the end of standard input stops the worker.

    Parameters
    ----------
    parent : its process number as it knows it; 1 when it is all that runs in a container

    Raises
    ------
    Interrupted : the parent is dead already
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise Interrupted(TEXT)


def first_to_be_killed() -> None:
    """Have the system's out-of-memory killer choose a worker, which costs an item, before the parent of them all."""
    adjustment = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):  # not on Linux, or not allowed
        adjustment.write_text(str(max(OOM_SCORE_ADJ, int(adjustment.read_text()))))
