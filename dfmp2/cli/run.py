"""`dfmp2 run`: from an xyz file to a checked DF-MP2 energy in an HDF5 file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dfmp2.cli import ranks as membership
from dfmp2.cli.calculation import calculation_options
from dfmp2.cli.console import Console
from dfmp2.cli.delivery import (
    Shown,
    answer,
    command_line,
    deliver,
    introduction,
    require_distinct,
    require_place,
    show,
    unfinished,
)
from dfmp2.cli.libraries import prepare_libraries
from dfmp2.cli.output import Display, output_options, shown_by
from dfmp2.errors import Dfmp2Error
from dfmp2.ranks.place import here
from dfmp2.ranks.team import ALONE, Team
from dfmp2.resources import usable_cores


@click.command("run", short_help="Compute the DF-MP2 energy of a molecule.")
@click.argument("molecule")
@calculation_options
@output_options("Result file", "STEM.dfmp2.h5")
@click.option("--check", is_flag=True, help="Also run PySCF's own DF-MP2 on the same orbitals and fitting set.")
@click.option("--ranks", type=int, metavar="N", help="Processes on this host; torchrun starts them, also on others.")
@click.option(
    "--max-restarts", type=int, default=0, metavar="K", help="Start the ranks again when one dies.  [default: 0]"
)
def command(
    molecule: str,
    charge: int | None,
    multiplicity: int | None,
    units: str,
    point_charges: str | None,
    point_charge_units: str,
    display: Display,
    ranks: int | None,
    max_restarts: int,
    **options: Any,
) -> None:
    """Compute the DF-MP2 energy of MOLECULE, an xyz file or - for standard input.

    The report goes to stdout, progress and warnings to stderr, everything to an HDF5 file.
    """
    from dfmp2.options import Options

    chosen = Options(**options)
    code = membership.launched(ranks, max_restarts, molecule)
    if code is not None:
        raise click.exceptions.Exit(code)
    place = here()
    prepare_libraries(chosen.threads or (place.threads if place else usable_cores()))
    team = membership.enlist(place, chosen.backend) if place else ALONE
    if team.rank:
        _follow(chosen, team)
        return
    restarted = membership.restarted()
    from dfmp2.io.point_charges import read_point_charges
    from dfmp2.io.xyz import read_xyz

    read = read_xyz(molecule, units=units, charge=charge, multiplicity=multiplicity)
    read = replace(read, molecule=read.molecule.in_field(read_point_charges(point_charges, point_charge_units)))
    target = Path(f"{read.molecule.name}.dfmp2.h5" if display.output is None else display.output)
    require_distinct({"MOLECULE": molecule, "--output": str(target), "--log": display.log})
    require_distinct({"--scf-from": chosen.scf_from, "--log": display.log})
    require_distinct({"--point-charges": point_charges, "--output": str(target), "--log": display.log})
    with shown_by(display) as (console, log):
        try:
            shown = Shown(target, replace(display, resume=display.resume or restarted), log)
            stored, overwrite = None, display.overwrite
            if (display.resume or (restarted and not overwrite)) and not (overwrite and unfinished(target)):
                from dfmp2.io.verified import read_verified

                stored = answer(read_verified, read.molecule, chosen, console, shown)
            if stored is not None:
                show(stored, shown)
            else:
                _compute(read, chosen, console, shown, team)
        except Dfmp2Error as error:
            said, _ = membership.verdict(str(error), error.exit_code)
            if said is not None:
                console.error(said)
            raise


def _follow(options: Any, team: Team) -> None:
    """What ranks do that neither read nor write."""
    from dfmp2.api import run_options
    from dfmp2.ranks import shared_molecule

    run_options(shared_molecule.hear(team), options, listener=membership.Silent(), team=team)


def _compute(read: Any, options: Any, console: Console, shown: Shown, team: Team) -> None:
    require_place(shown.target)
    molecule = read.molecule
    console.note(introduction(read))
    from dfmp2.api import run_options
    from dfmp2.ranks import shared_molecule

    def compute(journal: Any) -> Any:
        shared_molecule.tell(team, molecule)
        return run_options(molecule, options, listener=console, command=command_line(), journal=journal, team=team)

    deliver(compute, console, shown)
