"""What the command line shows on stderr while a calculation runs, and its log file."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TextIO

import click

from dfmp2.cli import signals
from dfmp2.errors import InputError, ResourceError
from dfmp2.molecule.text import printable
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
        self._terminal = sys.stderr is not None and sys.stderr.isatty()  # None: it was closed at the start
        self._last = 0.0

    def stage(self, text: str) -> None:
        signals.check()
        self._line(text)

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        signals.check()
        self._line(f"  SCF {cycle:3d}  E = {energy:18.10f} Eh  change {change:9.1e}  gradient {gradient:8.1e}")

    def tiles(self, done: int, total: int) -> None:
        signals.check()
        now = time.monotonic()
        finished = done == total
        if self._terminal and not self._quiet:
            if finished or now - self._last >= BAR_EVERY:
                self._last = now
                filled = BAR_WIDTH * done // max(total, 1)
                bar = "#" * filled + "." * (BAR_WIDTH - filled)
                _show(f"\r  pairs [{bar}] {done}/{total}", nl=finished)
        elif now - self._last >= LINE_EVERY and (self._last or finished):
            self._line(f"  pairs {done}/{total}")
            self._last = now
        elif not self._last:
            self._last = now

    def warning(self, text: str) -> None:
        message = printable(f"warning: {text}")
        coloured = self._terminal and not os.environ.get("NO_COLOR")
        _show(click.style(message, fg="yellow") if coloured else message)
        self._write(message)

    def note(self, text: str) -> None:
        """A line for the user that is neither progress nor warning."""
        self._line(text)

    def error(self, text: str) -> None:
        """The message a run ends with, for the log; `dfmp2.cli.main` shows it."""
        self._write(printable(f"dfmp2: {text}"))

    def _line(self, text: str) -> None:
        text = printable(text)
        if not self._quiet:
            _show(text)
        self._write(text)

    def _write(self, text: str) -> None:
        if self._log is None:
            return
        try:
            print(text, file=self._log, flush=True)
        except OSError as error:
            log, self._log = self._log, None
            with contextlib.suppress(OSError):
                log.close()
            raise ResourceError(f"--log {log.name}: {error.strerror}: choose another file") from error


def _show(text: str, *, nl: bool = True) -> None:
    with contextlib.suppress(OSError):  # progress nobody can read is no reason to stop computing
        click.echo(text, err=True, nl=nl)


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
    try:
        if not file.parent.is_dir() or file.is_dir():
            raise InputError(f"--log {path}: expected a file in an existing folder")
        return open(file, "a", encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"--log {path}: cannot be written ({error.strerror}): choose another file") from error
