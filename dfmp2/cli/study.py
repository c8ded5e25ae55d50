"""What the commands that run several calculations share: their options, their file, their report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli import signals
from dfmp2.cli.console import Console
from dfmp2.cli.libraries import prepare_libraries
from dfmp2.cli.output import Display, output_options, shown_by
from dfmp2.errors import Dfmp2Error, InputError
from dfmp2.io.text import printable
from dfmp2.resources import usable_cores

if TYPE_CHECKING:
    from dfmp2.io.study import Study
    from dfmp2.options import Options
    from dfmp2.studies.keeper import Keeper

study_options = output_options(
    "File with all runs",
    "STEM.KIND.h5",
    "Go on: finished runs from the file, the one in progress from its checkpoint.",
)


def chosen_options(options: dict[str, Any]) -> Options:
    """Options of the runs; sets the thread environment before NumPy and PySCF start their thread pools."""
    from dfmp2.options import Options

    chosen = Options(**options)
    prepare_libraries(chosen.threads or usable_cores())
    return chosen


def run_study(
    compute: Callable[[Keeper, Console], Study],
    target: Path,
    display: Display,
    read: tuple[str, ...],
    *,
    beside: Mapping[str, Path] | None = None,
    finish: Callable[[Study], str] | None = None,
    ending: Callable[[Study], str],
) -> Study:
    """Check the file, compute, print.

    Parameters
    ----------
    compute : the study itself
    target : its file
    read : files the command reads, which must not be the file it writes
    beside : files that `finish` writes, by the option that names them
    finish : writes what else there is to write and returns a plot in characters
    ending : the last line
    """
    from dfmp2.io.files import require_writable
    from dfmp2.io.study_report import report, to_json
    from dfmp2.studies.keeper import Keeper

    require_another(str(target), *read)
    require_writable(target, overwrite=True, expected_bytes=10**6)  # one that is there: `Keeper`
    with shown_by(display) as (console, log):
        left = f"finished runs are in {target}"

        @contextlib.contextmanager
        def undisturbed() -> Any:
            with signals.deferred():
                yield
                signals.leave(left)

        keeper = Keeper(
            target,
            overwrite=display.overwrite,
            resume=display.resume,
            beside=beside,
            undisturbed=undisturbed,
            finishing=signals.finish_first,
        )
        if keeper.written:
            signals.leave(left)
        try:
            study = compute(keeper, console)
            signals.check()
            signals.settle()
            figure = finish(study) if finish else ""
        except Dfmp2Error as error:
            advice = f" (finished runs are in {target}; --resume goes on)" if keeper.written else ""
            console.error(f"{error}{advice}")
            if keeper.written and not isinstance(error, InputError):
                raise type(error)(f"{error}{advice}") from error
            raise
        last = f"{ending(study)} -> {printable(str(target))}"
        text = report(study, figure)
        if log is not None:
            print(text + last, file=log)
        if display.as_json:
            click.echo(to_json(study), nl=False)
        else:
            click.echo(last if display.quiet else text + last)
    return study


def require_another(output: str, *read: str, option: str = "--output") -> None:
    """Refuse to write over something the command reads."""
    for path in read:
        if path != "-" and os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path):
            raise InputError(f"{option} {output} is the file given as input: name another file")
