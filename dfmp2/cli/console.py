"""What the command line shows on stderr while a calculation runs, and its log file."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TextIO

import click

from dfmp2.errors import InputError, ResourceError
from dfmp2.progress import Listener

BAR_WIDTH = 30
LINE_EVERY = 10.0  # s between progress lines when stderr is no terminal
BAR_EVERY = 0.1  # s between redraws of the bar


class Console(Listener):
    """Progress on stderr: a bar on a terminal, sparse lines otherwise; warnings always.

    Parameters
    ----------
    quiet : show nothing but warnings
    log : file that receives every line as well, or None
    """

    def __init__(self, *, quiet: bool, log: TextIO | None) -> None:
        self._quiet = quiet
        self._log = log
        self._bar = sys.stderr.isatty() and not quiet
        self._last = 0.0

    def stage(self, text: str) -> None:
        self._line(text)

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self._line(f"  SCF {cycle:3d}  E = {energy:18.10f} Eh  change {change:9.1e}  gradient {gradient:8.1e}")

    def tiles(self, done: int, total: int) -> None:
        now = time.monotonic()
        finished = done == total
        if self._bar:
            if finished or now - self._last >= BAR_EVERY:
                self._last = now
                filled = BAR_WIDTH * done // max(total, 1)
                bar = "#" * filled + "." * (BAR_WIDTH - filled)
                click.echo(f"\r  pairs [{bar}] {done}/{total}", err=True, nl=finished)
        elif now - self._last >= LINE_EVERY and (self._last or finished):
            self._line(f"  pairs {done}/{total}")
            self._last = now
        elif not self._last:
            self._last = now

    def warning(self, text: str) -> None:
        message = f"warning: {text}"
        click.echo(click.style(message, fg="yellow") if colour() else message, err=True)
        self._write(message)

    def note(self, text: str) -> None:
        """A line for the user that is neither progress nor warning."""
        self._line(text)

    def _line(self, text: str) -> None:
        if not self._quiet:
            click.echo(text, err=True)
        self._write(text)

    def _write(self, text: str) -> None:
        if self._log is not None:
            print(text, file=self._log, flush=True)


def colour() -> bool:
    """Whether stderr may be coloured: a terminal, and NO_COLOR is not set."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def open_log(path: str | None) -> TextIO | None:
    """Open a log file for appending.

    Raises
    ------
    InputError : its folder does not exist or it is a folder
    ResourceError : it cannot be written
    """
    if path is None:
        return None
    file = Path(path)
    if not file.parent.is_dir() or file.is_dir():
        raise InputError(f"--log {path}: expected a file in an existing folder")
    try:
        return open(file, "a", encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"--log {path}: cannot be written ({error.strerror}): choose another file") from error
