"""`dfmp2 prepare`: everything up to the pair energies, into a file that `dfmp2 energy` goes on from."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dfmp2.cli import signals
from dfmp2.cli.calculation import options_of, refused
from dfmp2.cli.console import Console
from dfmp2.cli.delivery import Shown, answer, command_line, introduction, require_distinct, unfinished
from dfmp2.cli.libraries import prepare_libraries
from dfmp2.cli.output import Display, output_options, shown_by
from dfmp2.errors import Dfmp2Error, ResultFileError
from dfmp2.options import BEFORE_PAIRS, BOTH_PARTS, PAIRS
from dfmp2.resources import usable_cores

STATE = ("charge", "multiplicity", "units", "point_charges", "point_charge_units")


@click.command("prepare", short_help="SCF, integrals and B of a molecule into a file, without pair energies.")
@click.argument("molecule")
@options_of(*STATE, *BEFORE_PAIRS, *BOTH_PARTS)
@refused(PAIRS, "belongs to dfmp2 energy, which computes the pair energies: leave it out here")
@refused(["transform"], "is no choice here: dfmp2 prepare makes B on the host")
@output_options(
    "Prepared file", "STEM.prepared.h5", "Go on from OUTPUT.checkpoint; leave a file that is complete as it is."
)
def command(
    molecule: str,
    charge: int | None,
    multiplicity: int | None,
    units: str,
    point_charges: str | None,
    point_charge_units: str,
    display: Display,
    **options: Any,
) -> None:
    """SCF, integrals and fitted tensor B of MOLECULE (an xyz file or - for standard input) into a file.

    dfmp2 energy --from FILE.h5 computes the pair energies, here or on another machine.
    """
    from dfmp2.options import Options

    chosen = Options(**options)
    prepare_libraries(chosen.threads or usable_cores())
    from dfmp2.io.point_charges import read_point_charges
    from dfmp2.io.xyz import read_xyz

    read = read_xyz(molecule, units=units, charge=charge, multiplicity=multiplicity)
    read = replace(read, molecule=read.molecule.in_field(read_point_charges(point_charges, point_charge_units)))
    target = Path(f"{read.molecule.name}.prepared.h5" if display.output is None else display.output)
    require_distinct({"MOLECULE": molecule, "--output": str(target), "--log": display.log})
    require_distinct({"--scf-from": chosen.scf_from, "--log": display.log})
    require_distinct({"--point-charges": point_charges, "--output": str(target), "--log": display.log})
    with shown_by(display) as (console, log):
        try:
            shown = Shown(target, display, log)
            found = None
            if display.resume and not (display.overwrite and unfinished(target)):
                found = answer(_verified, read.molecule, chosen, console, shown)
            if found is None:
                found = _compute(read, chosen, console, shown)
            _show(found, shown)
        except Dfmp2Error as error:
            console.error(str(error))
            raise


def _compute(read: Any, options: Any, console: Console, shown: Shown) -> Any:
    from dfmp2.io.preparation import PreparedFile

    molecule, target, display = read.molecule, shown.target, shown.display
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(PreparedFile(target, overwrite=display.overwrite))
        console.note(introduction(read))
        from dfmp2.api import prepare_options
        from dfmp2.io.checkpoint import checkpointing

        kept = stack.enter_context(
            checkpointing(target, resume=display.resume, note=console.note, warn=console.warning)
        )
        signals.finish_first(kept.journal)
        found = prepare_options(molecule, options, file, listener=console, command=command_line(), journal=kept.journal)
        signals.check()
        signals.settle()  # between rename and message is no way back
        try:
            file.publish()
        except ResultFileError:  # another process was faster
            kept.complete()
            raise
        kept.complete()
        return found


def _verified(path: Path) -> Any:
    """What a prepared file holds, after checking all of its hashes."""
    from dfmp2.io.prepared import opened

    with opened(path) as source:
        source.check()
        return source.prepared


def _show(found: Any, shown: Shown) -> None:
    from dfmp2.io.prepared_report import last_line, report, to_json

    path = os.fspath(shown.target)
    text, ending = report(found, path), last_line(found, path)
    if shown.log is not None:
        print(text + ending, file=shown.log)
    if shown.display.as_json:
        click.echo(to_json(found), nl=False)
    else:
        click.echo(ending if shown.display.quiet else text + ending)
