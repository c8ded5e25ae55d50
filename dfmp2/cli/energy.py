"""`dfmp2 energy`: the pair energies of a file that `dfmp2 prepare` has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dfmp2.cli.calculation import options_of, refused
from dfmp2.cli.console import Console
from dfmp2.cli.delivery import Shown, answer, command_line, deliver, require_distinct, require_place, show, unfinished
from dfmp2.cli.libraries import prepare_libraries
from dfmp2.cli.output import Display, output_options, shown_by
from dfmp2.errors import Dfmp2Error
from dfmp2.options import BEFORE_PAIRS, PAIRS
from dfmp2.resources import usable_cores

MACHINE = ("memory", "scratch", "threads")


@click.command("energy", short_help="Pair energies of a file that dfmp2 prepare has written.")
@click.option("--from", "prepared", required=True, metavar="PREPARED.h5", help="File of dfmp2 prepare.")
@options_of(*PAIRS)
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp64", "mixed"]),
    help="Of the pair energies.  [default: as it was prepared, auto where nothing was said]",
)
@options_of(*MACHINE)
@refused(
    ["charge", "multiplicity", "units", "point_charges", "point_charge_units", *BEFORE_PAIRS],
    "belongs to dfmp2 prepare, which has already been done: leave it out here, or prepare another file with it",
)
@refused(["transform"], "is no choice here: dfmp2 prepare has made B on the host")
@output_options("Result file", "STEM.dfmp2.h5")
@click.option("--check", is_flag=True, help="Also run PySCF's own DF-MP2 on the same orbitals and fitting set.")
def command(prepared: str, display: Display, **options: Any) -> None:
    """Compute the pair energies of a prepared file: no SCF, no integrals, on any backend.

    The result is that of dfmp2 run, in fp64 to the last bit where the number of threads is the same.
    """
    prepare_libraries(options["threads"] or usable_cores())
    from dfmp2.io.prepared import opened
    from dfmp2.prepared import options_for

    require_distinct({"--from": prepared, "--log": display.log})
    with shown_by(display) as (console, log):
        try:
            with opened(prepared) as source:
                molecule = source.prepared.molecule
                chosen = options_for(source.prepared, options)
                target = Path(f"{molecule.name}.dfmp2.h5" if display.output is None else display.output)
                require_distinct({"--from": prepared, "--output": str(target), "--log": display.log})
                shown = Shown(target, display, log)
                stored = None
                if display.resume and not (display.overwrite and unfinished(target)):
                    from dfmp2.io.verified import read_verified

                    stored = answer(read_verified, molecule, chosen, console, shown)
                if stored is not None:
                    show(stored, shown)
                else:
                    _compute(source, chosen, console, shown)
        except Dfmp2Error as error:
            console.error(str(error))
            raise


def _compute(source: Any, options: Any, console: Console, shown: Shown) -> None:
    require_place(shown.target)
    molecule, made = source.prepared.molecule, source.prepared.provenance
    console.note(
        f"{molecule.name}: {molecule.formula}, charge {molecule.charge}, multiplicity {molecule.multiplicity}; "
        f"prepared on {made.host}, {made.created}"
    )
    from dfmp2.api import energy_of

    def compute(journal: Any) -> Any:
        return energy_of(source, options, listener=console, command=command_line(), journal=journal)

    deliver(compute, console, shown)
