"""`dfmp2 run`: from an xyz file to a checked DF-MP2 energy in an HDF5 file."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click

from dfmp2 import threads as thread_settings
from dfmp2.cli import signals
from dfmp2.cli.calculation import calculation_options
from dfmp2.cli.console import Console, open_log
from dfmp2.errors import ComparisonFailed, Dfmp2Error, InputError, ResultFileError
from dfmp2.io.text import printable
from dfmp2.resources import usable_cores


@click.command("run", short_help="Compute the DF-MP2 energy of a molecule.")
@click.argument("molecule")
@calculation_options
@click.option("--output", metavar="FILE.h5", help="Result file.  [default: STEM.dfmp2.h5 here]")
@click.option("--overwrite", is_flag=True, help="Replace an existing result file.")
@click.option("--resume", is_flag=True, help="Go on from OUTPUT.checkpoint; print a result that is complete.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the report.")
@click.option("--quiet", is_flag=True, help="Print only the last line, and warnings.")
@click.option("--log", metavar="FILE", help="Append progress and report to a file.")
@click.option("--check", is_flag=True, help="Also run PySCF's own DF-MP2 on the same orbitals.")
def command(
    molecule: str,
    charge: int | None,
    multiplicity: int | None,
    units: str,
    output: str | None,
    overwrite: bool,
    resume: bool,
    as_json: bool,
    quiet: bool,
    log: str | None,
    **options: Any,
) -> None:
    """Compute the DF-MP2 energy of MOLECULE, an xyz file or - for standard input.

    The report goes to stdout, progress and warnings to stderr, everything to an HDF5 file.
    """
    from dfmp2.options import Options

    chosen = Options(**options)
    # Before NumPy and PySCF start their thread pools.
    thread_settings.set_environment(chosen.threads or usable_cores())
    from dfmp2.io.xyz import read_xyz

    read = read_xyz(molecule, units=units, charge=charge, multiplicity=multiplicity)
    target = Path(f"{read.molecule.name}.dfmp2.h5" if output is None else output)
    _require_distinct({"MOLECULE": molecule, "--output": str(target), "--log": log})
    _require_distinct({"--scf-from": chosen.scf_from, "--log": log})
    with contextlib.ExitStack() as stack:
        handle = open_log(log)
        console = Console(quiet=quiet, log=stack.enter_context(handle) if handle else None)
        try:
            shown = Shown(target, as_json, quiet, handle)
            stored = None
            if resume and not (overwrite and _unfinished(target)):
                stored = _stored(read.molecule, chosen, console, target, overwrite=overwrite)
            if stored is not None:
                _show(stored, shown)
            else:
                _compute(read, chosen, console, shown, overwrite=overwrite, resume=resume)
        except Dfmp2Error as error:
            console.error(str(error))
            raise


def _require_distinct(files: Mapping[str, str | None]) -> None:
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


@dataclass(frozen=True, slots=True)
class Shown:
    """Where a result goes and how it is shown."""

    target: Path
    as_json: bool
    quiet: bool
    log: TextIO | None


def _compute(read: Any, options: Any, console: Console, shown: Shown, *, overwrite: bool, resume: bool) -> None:
    from dfmp2.io.files import require_writable

    target = shown.target
    require_writable(target, overwrite=overwrite, expected_bytes=10**6)
    molecule = read.molecule
    console.note(
        f"{molecule.name}: {molecule.formula}, charge {molecule.charge} ({read.charge_from}), "
        f"multiplicity {molecule.multiplicity} ({read.multiplicity_from})"
    )
    from dfmp2.api import run_options
    from dfmp2.io import hdf5
    from dfmp2.io.checkpoint import checkpointing

    command = printable(shlex.join(["dfmp2", *sys.argv[1:]]))
    with checkpointing(target, resume=resume, note=console.note, warn=console.warning) as kept:
        signals.finish_first(kept.journal)
        result = run_options(molecule, options, listener=console, command=command, journal=kept.journal)
        signals.check()
        signals.settle()  # what is complete is written, whatever comes: between rename and message is no way back
        try:
            hdf5.write(result, target, overwrite=overwrite)
        except ResultFileError:  # another process was faster: there is a result, and nothing to go on from
            kept.complete()
            raise
        kept.complete()
    _show(result, shown)
    if result.check is not None and not result.check.passed:
        raise ComparisonFailed(
            f"PySCF's DF-MP2 differs by {result.check.largest_difference:.1e} Eh, more than the allowed "
            f"{result.check.allowed:.1e} Eh; the result was written to {target}"
        )


def _unfinished(target: Path) -> bool:
    """Whether there is a checkpoint, which is newer than a result that it is about to replace."""
    from dfmp2.io.checkpoint import checkpoint_of

    return os.path.lexists(checkpoint_of(target))


def _stored(molecule: Any, options: Any, console: Console, target: Path, *, overwrite: bool) -> Any:
    """The result that an earlier run has completed, None when it is to be computed.

    Raises
    ------
    ResultFileError, InputError : it is damaged, or of another calculation, and may not be replaced
    """
    from dfmp2.identity import require_answer
    from dfmp2.io.checkpoint import CheckpointFile
    from dfmp2.io.verified import read_verified

    if not os.path.lexists(target):
        return None
    try:
        result = read_verified(target)
        require_answer(result, molecule, options, str(target))
    except (InputError, ResultFileError) as error:
        if not overwrite:
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
    return result


def _show(result: Any, shown: Shown) -> None:
    from dfmp2.io.json import to_json
    from dfmp2.io.report import last_line, report

    text, ending = report(result), last_line(result, str(shown.target))
    if shown.log is not None:
        print(text + ending, file=shown.log)
    if shown.as_json:
        click.echo(to_json(result), nl=False)
    else:
        click.echo(ending if shown.quiet else text + ending)
