"""The options that say where a file goes and what is shown: shared by every command that writes what it computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TextIO

import click

from dfmp2.cli.calculation import with_options
from dfmp2.cli.console import Console, open_log


@dataclass(frozen=True, slots=True)
class Display:
    """Where a result goes and how it is shown: the values of the options of output."""

    output: str | None
    overwrite: bool
    resume: bool
    as_json: bool
    quiet: bool
    log: str | None


def output_options(
    file: str, default: str, resume: str = "Go on from OUTPUT.checkpoint; print a result that is complete."
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of output, which it gets as one `display`.

    Parameters
    ----------
    file : what it writes
    default : its name where none is given
    resume : what it does when it goes on
    """
    options = (
        click.option("--output", metavar="FILE.h5", help=f"{file}.  [default: {default} here]"),
        click.option("--overwrite", is_flag=True, help="Replace an existing file."),
        click.option("--resume", is_flag=True, help=resume),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the report."),
        click.option("--quiet", is_flag=True, help="Print only the last line, and warnings."),
        click.option("--log", metavar="FILE", help="Append progress and report to a file."),
    )

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(**values: Any) -> Any:
            return command(display=Display(*map(values.pop, Display.__slots__)), **values)

        return with_options(options, gathered)

    return give


@contextmanager
def shown_by(display: Display) -> Iterator[tuple[Console, TextIO | None]]:
    """Progress on stderr and in the log, and the log itself, which is open meanwhile."""
    log = open_log(display.log)
    with log or nullcontext():
        yield Console(quiet=display.quiet, log=log), log
