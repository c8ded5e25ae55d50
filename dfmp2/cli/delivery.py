"""What `run`, `prepare` and `energy` have in common: what is found where a file goes, how it is written and shown."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from dfmp2.cli import signals
from dfmp2.cli.console import Console
from dfmp2.cli.output import Display
from dfmp2.errors import ComparisonFailed, InputError, ResultFileError
from dfmp2.io.text import printable

if TYPE_CHECKING:
    from dfmp2.io.xyz import XyzFile


@dataclass(frozen=True, slots=True)
class Shown:
    """A display, with the file that is written and the log opened."""

    target: Path
    display: Display
    log: TextIO | None


def command_line() -> str:
    """The command line, for the record."""
    return printable(shlex.join(["dfmp2", *sys.argv[1:]]))


def introduction(read: XyzFile) -> str:
    """What is about to be computed, and where charge and multiplicity come from."""
    molecule = read.molecule
    return (
        f"{molecule.name}: {molecule.formula}, charge {molecule.charge} ({read.charge_from}), "
        f"multiplicity {molecule.multiplicity} ({read.multiplicity_from})"
    )


def require_distinct(files: Mapping[str, str | None]) -> None:
    """Refuse to write a result or a log over something the run reads."""
    seen: dict[object, str] = {}
    for option, path in files.items():
        if path is not None and (other := seen.setdefault(_identity(path), option)) != option:
            raise InputError(f"{option} {path} is the file given as {other}: name another file")


def _identity(path: str) -> object:
    """The same for two names of one file, links included."""
    try:
        status = os.stat(path)
    except OSError:  # not there yet
        return os.path.normpath(path)
    return status.st_dev, status.st_ino


def deliver(compute: Callable[[Any], Any], console: Console, shown: Shown) -> None:
    """Compute a result, with a checkpoint beside it meanwhile, write it and show it.

    Parameters
    ----------
    compute : journal -> result

    Raises
    ------
    ComparisonFailed : the check that was asked for; the result is written all the same
    """
    from dfmp2.io import hdf5
    from dfmp2.io.checkpoint import checkpointing

    target, display = shown.target, shown.display

    def ready() -> None:
        _require_writable(target, overwrite=display.overwrite)

    with checkpointing(target, resume=display.resume, note=console.note, warn=console.warning, ready=ready) as kept:
        signals.finish_first(kept.journal)
        result = compute(kept.journal)
        signals.check()
        signals.settle()  # what is complete is written, whatever comes: between rename and message is no way back
        try:
            hdf5.write(result, target, overwrite=display.overwrite)
        except ResultFileError:  # another process was faster: there is a result, and nothing to go on from
            kept.complete()
            raise
        kept.complete()
    show(result, shown)
    if result.check is not None and not result.check.passed:
        raise ComparisonFailed(
            f"PySCF's DF-MP2 differs by {result.check.largest_difference:.1e} Eh, more than the allowed "
            f"{result.check.allowed:.1e} Eh; the result was written to {target}"
        )


def require_place(target: Path) -> None:
    """Refuse a place where no result can be written; a file that is there is refused when nothing else is wrong."""
    _require_writable(target, overwrite=True)


def _require_writable(target: Path, *, overwrite: bool) -> None:
    from dfmp2.io.files import require_writable

    require_writable(target, overwrite=overwrite, expected_bytes=10**6)


def unfinished(target: Path) -> bool:
    """Whether there is a checkpoint, which is newer than a result that it is about to replace."""
    from dfmp2.io.checkpoint import checkpoint_of

    return os.path.lexists(checkpoint_of(target))


def answer(read: Callable[[Path], Any], molecule: Any, options: Any, console: Console, shown: Shown) -> Any:
    """What an earlier run has completed, None when it is to be computed.

    Parameters
    ----------
    read : reads the target and checks it

    Raises
    ------
    ResultFileError, InputError : it is damaged, or of another calculation, and may not be replaced
    """
    from dfmp2.identity import require_answer
    from dfmp2.io.checkpoint import CheckpointFile

    target = shown.target
    if not os.path.lexists(target):
        return None
    try:
        found = read(target)
        require_answer(found, molecule, options, str(target))
    except (InputError, ResultFileError) as error:
        if not shown.display.overwrite:
            raise
        console.warning(f"{error}: it will be replaced")
        return None
    console.note(f"{target} is complete: nothing is computed")
    file = CheckpointFile(target)
    try:
        if file.claim() is None:  # of a run that was killed between its last two steps
            file.remove()
    finally:
        file.close()
    return found


def show(result: Any, shown: Shown) -> None:
    """Print a result as it was asked for, and put it into the log."""
    from dfmp2.io.json import to_json
    from dfmp2.io.report import last_line, report

    text, ending = report(result), last_line(result, str(shown.target))
    if shown.log is not None:
        print(text + ending, file=shown.log)
    if shown.display.as_json:
        click.echo(to_json(result), nl=False)
    else:
        click.echo(ending if shown.display.quiet else text + ending)
