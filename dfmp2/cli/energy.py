"""`dfmp2 prepare` and `dfmp2 energy`: one molecule in two parts, which need not share a machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli import signals
from dfmp2.cli.options import (
    OF_THE_MOLECULE,
    Display,
    Given,
    one_molecule,
    options_of,
    output_options,
    prepare_libraries,
    print_report,
    refused,
)
from dfmp2.cli.run import (
    command_line,
    completed,
    compute_result,
    introduction,
    logged,
    publish,
    require_distinct,
    require_distinct_files,
)
from dfmp2.options import BEFORE_PAIRS, BOTH_PARTS, PAIRS

if TYPE_CHECKING:
    from dfmp2.cli.console import Console
    from dfmp2.mp2.result import MP2Result


@click.command("prepare", short_help="SCF, integrals and B of a molecule into a file, without pair energies.")
@one_molecule(*BEFORE_PAIRS, *BOTH_PARTS)
@refused(PAIRS, "belongs to dfmp2 energy, which computes the pair energies: leave it out here")
@refused(["transform"], "is no choice here: dfmp2 prepare makes B on the host")
@output_options(
    "Prepared file", "STEM.prepared.h5", "Go on from OUTPUT.checkpoint; leave a file that is complete as it is."
)
def prepare(given: Given, display: Display) -> None:
    """SCF, integrals and fitted tensor B of MOLECULE (an xyz file or - for standard input) into a file.

    dfmp2 energy --from FILE.h5 computes the pair energies, here or on other machines.
    """
    chosen, read = given.chosen(), given.read()
    target = Path(f"{read.molecule.name}.prepared.h5" if display.output is None else display.output)
    require_distinct_files(given, target, display)
    from dfmp2.output import prepared as two_parts
    from dfmp2.output.checkpoint import checkpointing
    from dfmp2.output.json import prepared_json
    from dfmp2.output.text import prepared_last_line, prepared_report

    with logged(display) as (console, log):
        found = completed(target, display, console, two_parts.verified, (read.molecule, chosen))
        if found is None:
            file = two_parts.PreparedFile(target, overwrite=display.overwrite)
            console.note(introduction(read))
            with (
                checkpointing(target, resume=display.resume, note=console.note, warn=console.warning) as kept,
                file,
            ):
                signals.finish_first(kept)
                found = two_parts.prepare(
                    read.molecule, chosen, file, listener=console, command=command_line(), checkpoint=kept
                )
                publish(file.publish, kept)
        path = os.fspath(target)
        print_report(
            display, log, prepared_report(found, path), prepared_last_line(found, path), lambda: prepared_json(found)
        )


@click.command("energy", short_help="Pair energies of a file that dfmp2 prepare has written.")
@click.option("--from", "prepared", required=True, metavar="PREPARED.h5", help="File of dfmp2 prepare.")
@options_of(*PAIRS)
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp64", "mixed"]),
    help="Of the pair energies.  [default: as it was prepared, auto where nothing was said]",
)
@options_of("memory", "scratch", "threads")
@refused(
    [*OF_THE_MOLECULE, *BEFORE_PAIRS],
    "belongs to dfmp2 prepare, which has already been done: leave it out here, or prepare another file with it",
)
@refused(["transform"], "is no choice here: dfmp2 prepare has made B on the host")
@output_options("Result file", "STEM.dfmp2.h5")
def energy(prepared: str, display: Display, **options: Any) -> None:
    """Compute the pair energies of a prepared file: no SCF, no integrals, on any backend.

    The result is that of dfmp2 run, in fp64 to the last bit where the number of threads is the same.
    """
    prepare_libraries(options["threads"])
    from dfmp2.output import prepared as two_parts

    require_distinct({"--from": prepared, "--log": display.log})
    with logged(display) as (console, log), two_parts.opened(prepared) as source:
        molecule, made = source.prepared.molecule, source.prepared.provenance
        chosen = two_parts.options_for(source.prepared, options)
        target = Path(f"{molecule.name}.dfmp2.h5" if display.output is None else display.output)
        require_distinct({"--from": prepared, "--output": str(target), "--log": display.log})
        begun = (
            f"{molecule.name}: {molecule.formula}, charge {molecule.charge}, multiplicity {molecule.multiplicity}; "
            f"prepared on {made.host}, {made.created}"
        )

        def compute(console: Console, checkpoint: Any) -> MP2Result:
            return two_parts.energy(source, chosen, listener=console, command=command_line(), checkpoint=checkpoint)

        compute_result(target, display, console, log, (molecule, chosen), begun, compute)
