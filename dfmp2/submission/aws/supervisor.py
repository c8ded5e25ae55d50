"""A command in a container: it is asked to stop when the container is, and saved from time to time.

AWS Batch sends SIGTERM and ends the container 30 s later. `dfmp2 batch run` stops within 10 s, what remains is for the
last copy to S3.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from dfmp2.errors import Dfmp2Error, Interrupted, ResourceError
from dfmp2.submission.aws.spot import SpotNotice

TICK = 0.2  # s between two looks
KILLED = 128  # the exit code of a command that a signal ended is this and the signal's number


class Supervisor:
    """Runs commands one after the other; SIGTERM and SIGINT are theirs while it is entered."""

    def __init__(self) -> None:
        self._asked = self._told = False
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}
        self._notice = SpotNotice()

    def __enter__(self) -> Supervisor:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise `Interrupted` if the container was asked to stop."""
        if self._asked:
            raise Interrupted("terminated (SIGTERM): the next attempt goes on")

    def run(self, command: Sequence[str], save: Callable[[], object], every: float) -> int:
        """Exit code of a command.

        Parameters
        ----------
        save : called every so often, and once when the command has ended
        every : s

        Raises
        ------
        Interrupted : before it began, or what it did could not be saved
        """
        self.check()
        # A session of its own: a signal reaches it once, from here.
        child = self._child = subprocess.Popen(command, start_new_session=True)
        self._tell()  # if it came while the command began
        due = time.monotonic() + every
        while child.poll() is None:
            if not self._asked and self._notice.given():
                say("this Spot instance will be taken back: stopping, so that another one goes on")
                self._stop()
            if time.monotonic() >= due:
                _try(save)
                due = time.monotonic() + every
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(TICK)
        code, self._child = child.returncode, None
        try:
            save()
        except ResourceError as error:
            raise Interrupted(f"{error}; what did not arrive is computed again by the next attempt") from error
        return code if code >= 0 else KILLED - code

    def _stop(self, *_: object) -> None:
        """Pass it on at once, also while files are copied."""
        self._asked = True
        self._tell()

    def _tell(self) -> None:
        """Once: a second SIGTERM would stop `dfmp2 batch run` where it is, and may follow the notice within seconds."""
        if self._asked and not self._told and self._child is not None:
            self._told = True
            self._child.terminate()


def say(text: str) -> None:
    """A line in the job's log."""
    print(f"dfmp2: {text}", file=sys.stderr, flush=True)


def _try(save: Callable[[], object]) -> None:
    try:
        save()
    except Dfmp2Error as error:
        say(f"warning: {error}; it is tried again")
