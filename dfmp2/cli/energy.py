"""`dfmp2 energy`: the pair energies of a file that `dfmp2 prepare` has written."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from dfmp2.cli.calculation import options_of, refused
from dfmp2.cli.console import Console, open_log
from dfmp2.cli.delivery import Shown, answer, command_line, deliver, require_distinct, show, unfinished
from dfmp2.cli.libraries import prepare_libraries
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
    ["charge", "multiplicity", "units", *BEFORE_PAIRS],
    "belongs to dfmp2 prepare, which has already been done: leave it out here, or prepare another file with it",
)
@refused(["transform"], "is no choice here: dfmp2 prepare has made B on the host")
@click.option("--output", metavar="FILE.h5", help="Result file.  [default: STEM.dfmp2.h5 here]")
@click.option("--overwrite", is_flag=True, help="Replace an existing result file.")
@click.option("--resume", is_flag=True, help="Go on from OUTPUT.checkpoint; print a result that is complete.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the report.")
@click.option("--quiet", is_flag=True, help="Print only the last line, and warnings.")
@click.option("--log", metavar="FILE", help="Append progress and report to a file.")
@click.option("--check", is_flag=True, help="Also run PySCF's own DF-MP2 on the same orbitals.")
def command(
    prepared: str,
    output: str | None,
    overwrite: bool,
    resume: bool,
    as_json: bool,
    quiet: bool,
    log: str | None,
    **options: Any,
) -> None:
    """Compute the pair energies of a prepared file: no SCF, no integrals, on any backend.

    The result is that of dfmp2 run, in fp64 to the last bit where the number of threads is the same.
    """
    prepare_libraries(options["threads"] or usable_cores())
    from dfmp2.io.prepared import opened
    from dfmp2.prepared import options_for

    with contextlib.ExitStack() as stack:
        require_distinct({"--from": prepared, "--log": log})
        handle = open_log(log)
        console = Console(quiet=quiet, log=stack.enter_context(handle) if handle else None)
        try:
            source = stack.enter_context(opened(prepared))
            molecule = source.prepared.molecule
            chosen = options_for(source.prepared, options)
            target = Path(f"{molecule.name}.dfmp2.h5" if output is None else output)
            require_distinct({"--from": prepared, "--output": str(target), "--log": log})
            shown = Shown(target, as_json, quiet, handle)
            stored = None
            if resume and not (overwrite and unfinished(target)):
                from dfmp2.io.verified import read_verified

                stored = answer(read_verified, molecule, chosen, console, target, overwrite=overwrite)
            if stored is not None:
                show(stored, shown)
            else:
                _compute(source, chosen, console, shown, overwrite=overwrite, resume=resume)
        except Dfmp2Error as error:
            console.error(str(error))
            raise


def _compute(source: Any, options: Any, console: Console, shown: Shown, *, overwrite: bool, resume: bool) -> None:
    from dfmp2.io.files import require_writable

    require_writable(shown.target, overwrite=overwrite, expected_bytes=10**6)
    molecule, made = source.prepared.molecule, source.prepared.provenance
    console.note(
        f"{molecule.name}: {molecule.formula}, charge {molecule.charge}, multiplicity {molecule.multiplicity}; "
        f"prepared on {made.host}, {made.created}"
    )
    from dfmp2.api import energy_of

    def compute(journal: Any) -> Any:
        return energy_of(source, options, listener=console, command=command_line(), journal=journal)

    deliver(compute, console, shown, overwrite=overwrite, resume=resume)
