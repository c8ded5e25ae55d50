"""Progress of a calculation on stderr and in a log file.

On a terminal the last line is rewritten with the current stage, its progress and the time left,
every second even without events. Elsewhere, with --verbose and in the log, lines are added: one for
each stage and SCF iteration, and one every LINE_EVERY seconds during long steps.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

import click

from dfmp2.cli import signals
from dfmp2.errors import InputError, ResourceError
from dfmp2.host.files import describe_space, require_unprotected
from dfmp2.molecule.text import printable
from dfmp2.output.document import DOUBTS, displayed_width, joined_words
from dfmp2.progress import Listener

BAR_WIDTH = 30
LINE_EVERY = 30.0  # s between progress lines if they are not rewritten
BAR_EVERY = 0.1  # s between redraws of the bar
TICK = 1.0  # s after which the last line is rewritten even without events
SHORT = 5.0  # s; a shorter time left is not shown as a number
# Never broken across lines: a command with its options and files, an equation with its unit, an
# arrow with the next word, E(MP2, total), and any other word.
UNBROKEN = re.compile(
    r"dfmp2 [a-z]+(?=\s)(?: (?:--?[a-z][\w-]*(?: [^\s-][^\s;]*)?|[^\s;,]*[./][^\s;,]*))*\S*"
    r"|(?:\w+\([^()]+\)|\S+) = \S*[^\s,;](?: [A-Za-z][\w/]*\b)?\S*"
    r"|-> \S+"
    r"|\w+\([^()]+\)\S*"
    r"|\S+"
)
LOOKED_AT = 4096  # bytes of an existing log; HDF5, archives and pictures have a zero byte there
HANGING = "    "  # before continuation lines
HEADING = re.compile(r"^.+(?=\n-{10,}$)", re.MULTILINE)
NUMBER = re.compile(r"-?\d[\d.]*(?:e[-+]\d+)?")  # the only difference between warnings of one kind
WARNED = re.compile(r"^warning:", re.MULTILINE)
# Marks failures and imaginary modes in the output of commands.
FAILED = re.compile(
    r"^failure:|\bFAILED\b|\bfailed(?: with code \d+| \(\d+\)|: exit code \d+)|\b[1-9]\d* failed\b"
    rf"|\b(?:{'|'.join(DOUBTS)}|not converged|NOT FINISHED|INCOMPLETE)\b"
    r"|\bIMAGINARY\b|(?<!\b0 )\bimaginary(?: modes?)?\b|\b\d+\.\d+i\b",
    re.MULTILINE,
)


class Console(Listener):
    """Progress on stderr: a rewritten line on a terminal, sparse lines otherwise; warnings always.

    As a context it redraws that line every second, and removes it at the end.

    Parameters
    ----------
    quiet : show nothing but warnings
    log : file that also receives every line, or None
    several : show no iterations and stages of single runs, and only the first of warnings that
        differ only in numbers; the log gets everything
    passing : on a terminal show stages and iterations only while they last; notes stay
    """

    def __init__(
        self,
        *,
        quiet: bool,
        log: TextIO | None,
        several: bool = False,
        passing: bool = False,
    ) -> None:
        self._quiet = quiet
        self._several = several
        self._log = log
        self._terminal = is_terminal(sys.stderr)
        self._live = self._terminal and not quiet
        self._stages_pass = passing and self._live
        self._stage = ""  # the current one, if shown while it lasts
        self._parts = ""  # progress of the current stage
        # Times of the start of the stage, last redraw, last line
        self._since = self._drawn = self._line_at = time.monotonic()
        self._said = -LINE_EVERY  # when a line last showed the time left
        self._left: tuple[float, float] | None = None  # when it was reported, seconds left
        self._kinds: set[str] = set()  # kinds of warnings already shown
        self._shown = 0  # characters of the rewritten line
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Console:
        if self._live:
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_to(self, log: TextIO) -> None:
        """Also append every line from now on to a file."""
        self._log = log

    def close(self) -> None:
        """Remove progress from the screen."""
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()
        self._erase()

    def stage(self, text: str) -> None:
        signals.check_signals()
        self._begin()
        if self._stages_pass:
            self._passing(text)
            self._stage, self._parts = printable(text), ""
        else:
            self._line(text + self._now_and_then())

    def substage(self, text: str) -> None:
        if not self._several:
            self.stage(text)
            return
        signals.check_signals()
        self._begin()
        self._passing(text)

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        signals.check_signals()
        self._parts = ""
        numbers = (
            f"  SCF {cycle:3d}  E = {energy:18.10f} Eh  change {change:9.1e}  gradient "
            f"{gradient:8.1e}"
        )
        if self._several or self._stages_pass:
            self._passing(numbers)
        else:
            self._line(numbers + self._now_and_then())

    def step(self, done: int, total: int, what: str) -> None:
        signals.check_signals()
        now, finished = time.monotonic(), done == total
        if self._live and (finished or now - self._drawn >= BAR_EVERY):
            filled = BAR_WIDTH * done // max(total, 1)
            bar = f"  {what} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done}/{total}"
            with self._lock:
                self._draw(bar + ("" if finished else self._remaining()))
                self._parts = "" if finished else bar
        if now - self._line_at >= LINE_EVERY:
            line = f"  {what} {done}/{total}{self._now_and_then()}"
            if self._live:
                self._write(line)
                self._line_at = now
            else:
                self._line(line)

    def time_left(self, seconds: float | None) -> None:
        if seconds is None:
            self._left = None
        else:
            self._left = (time.monotonic(), seconds)

    def warning(self, text: str) -> None:
        message = printable(f"warning: {text}")
        kind = NUMBER.sub("", text)
        if self._several and kind in self._kinds:  # the report counts the runs that gave it
            self._write(message)
            return
        self._kinds.add(kind)
        shown = fitted(message, sys.stderr)
        if takes_colour(sys.stderr):
            shown = click.style(shown, fg="yellow")
        self._put(shown)
        self._write(message)

    def note(self, text: str) -> None:
        """Show a line that is neither progress nor warning."""
        self._begin()
        self._line(text)

    def show(self, text: str) -> None:
        """Print part of the result on standard output."""
        with self._lock:
            self._erase()
            click.echo(text)

    def record(self, text: str) -> None:
        """Add a line to the log only, because it is shown elsewhere."""
        self._write(printable(text))

    def finish(self, text: str) -> None:
        """Log what the command is about to print, and remove progress from the screen."""
        self.close()
        self._write(text)

    def _begin(self) -> None:
        """Begin a stage."""
        self._stage = self._parts = ""
        self._since = time.monotonic()

    def _remaining(self, least: float = 0.0) -> str:
        """The time left, in words; "" if unknown or less than `least` s."""
        if self._left is None:
            return ""
        told, seconds = self._left
        seconds -= time.monotonic() - told
        return f", {about(seconds)} left" if seconds > least else ""

    def _now_and_then(self) -> str:
        """As `_remaining`, for a permanent line: only if worth showing and not shown recently."""
        now = time.monotonic()
        if self._live or now - self._said < LINE_EVERY:
            said = ""
        else:
            said = self._remaining(LINE_EVERY)
        self._said = now if said else self._said
        return said

    def _tick(self) -> None:
        while not self._over.wait(TICK / 2):
            with self._lock:
                if time.monotonic() - self._drawn >= TICK and not self._over.is_set():
                    self._draw_status()

    def _draw_status(self) -> None:
        """Show the progress or elapsed time of the current stage, and the time left."""
        spent = int(time.monotonic() - self._since)
        lasting = f"{self._stage}  {spent // 60}:{spent % 60:02d}"
        self._draw((self._parts or lasting) + self._remaining())

    def _draw(self, text: str) -> None:
        """Rewrite the last line."""
        text = text[: max(20, _columns(sys.stderr) - 1)]  # a line that wraps cannot be rewritten
        _show("\r" + text.ljust(self._shown), nl=False)
        self._shown, self._drawn = len(text), time.monotonic()

    def _erase(self) -> None:
        with self._lock:
            if self._shown:
                # and the ^C that a terminal may have added
                width = min(self._shown + len("^C"), _columns(sys.stderr) - 1)
                _show("\r" + " " * width + "\r", nl=False)
                self._shown = 0

    def _put(self, text: str) -> None:
        """Print a line above the rewritten one."""
        with self._lock:
            status = self._shown
            self._erase()
            _show(text)
            if status:
                self._draw_status()

    def _line(self, text: str) -> None:
        text = printable(text)
        if not self._quiet:
            self._put(fitted(text, sys.stderr))
        self._write(text)
        self._line_at = time.monotonic()

    def _passing(self, text: str) -> None:
        """Add a line to the log, and show it on a terminal until the next event."""
        text = printable(text)
        if self._live:
            with self._lock:
                self._parts = text
                self._draw(text)
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
            raise ResourceError(
                f"--log {log.name}: {error.strerror}: "
                f"{describe_space(Path(log.name).parent, len(text))}: choose another file"
            ) from error


def about(seconds: float) -> str:
    """A time left in readable form, rounded to its accuracy."""
    if seconds < SHORT:
        return "a few seconds"
    if seconds < 90:
        return f"about {5 * round(seconds / 5)} s"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min"
    if seconds < 36000:
        return f"about {seconds / 3600:.1f} h"
    return f"about {seconds / 3600:.0f} h"


def is_terminal(stream: TextIO | None) -> bool:
    """Whether lines of a stream can be rewritten; None means that it was closed at the start."""
    return stream is not None and stream.isatty()


def takes_colour(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that shows colours, and the user wants them."""
    return is_terminal(stream) and not without_colour()


def without_colour() -> bool:
    """Whether the user does not want colours, or the terminal does not support them."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def conclude(text: str) -> None:
    """Print the closing text of a command on standard output, in lines that fit a terminal."""
    click.echo(styled(fitted(text, sys.stdout)))


def drop_stdout() -> None:
    """Discard buffered output, so that the interpreter does not fail on it at exit."""
    if sys.stdout is None:
        return
    with contextlib.suppress(io.UnsupportedOperation):  # a stream in memory
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def styled(report: str) -> str:
    """A report with bold headings, warnings in yellow, failures and imaginary modes in red, if
    standard output supports colour."""
    if not takes_colour(sys.stdout):
        return report
    report = WARNED.sub(lambda match: click.style(match[0], fg="yellow"), report)
    report = FAILED.sub(lambda match: click.style(match[0], fg="red"), report)
    return HEADING.sub(lambda match: click.style(match[0], bold=True), report)


def fitted(text: str, stream: TextIO) -> str:
    """A text with lines broken between words to fit the terminal, but never inside a path or a
    command; unchanged if the stream is not a terminal."""
    if not is_terminal(stream):
        return text
    width = _columns(stream)
    return "\n".join(line for whole in text.split("\n") for line in _broken(whole, width))


def _broken(text: str, width: int) -> list[str]:
    """The parts of a line that is wider than a terminal."""
    if displayed_width(text) <= width:
        return [text]
    indent = text[: len(text) - len(text.lstrip())]
    return joined_words(UNBROKEN.findall(text), width, indent, indent + HANGING) or [""]


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _show(text: str, *, nl: bool = True) -> None:
    with contextlib.suppress(OSError):  # failing to show progress must not stop the computation
        click.echo(text, err=True, nl=nl)


def require_log(path: str) -> None:
    """Raise for a file to which no log can be appended, without creating it.

    Raises
    ------
    InputError : its folder does not exist, or it is a folder or holds something else than text
    ResourceError : it is protected, or cannot be read
    """
    file = Path(path)
    try:
        if not file.parent.is_dir() or file.is_dir():
            raise InputError(f"--log {path}: expected a file in an existing folder")
        if file.is_file():
            require_unprotected(file)
            with open(file, "rb") as stream:
                if b"\0" in stream.read(LOOKED_AT):
                    raise InputError(
                        f"--log {path}: holds no text, so nothing is appended to it: name another "
                        "file"
                    )
    except OSError as error:
        raise _unwritable_log(path, error) from error


def open_log(path: str) -> TextIO:
    """Open a log file for appending.

    Raises
    ------
    InputError : as from `require_log`
    ResourceError : the log cannot be written
    """
    require_log(path)
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise _unwritable_log(path, error) from error


def _unwritable_log(path: str, error: OSError) -> ResourceError:
    return ResourceError(f"--log {path}: cannot be written ({error.strerror}): choose another file")
