"""`dfmp2 batch`: many molecules; plan them, check their state, collect their energies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.batch_run import batch_run, folder_options, item_lines, status_json
from dfmp2.cli.console import Console, conclude, styled
from dfmp2.cli.help import AnnouncedCommand, CommandGroup
from dfmp2.cli.options import AS_JSON, MOST_WORKERS, OVERWRITE
from dfmp2.cli.submit import batch_submit
from dfmp2.molecule.text import printable
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.execution.manifest import Batch

# Keys of `dfmp2.output.dataset.WRITERS`, repeated so that --help need not import it.
DATASETS = ("extxyz", "h5", "parquet", "csv", "json", "ase.db")


@click.group(
    "batch",
    cls=CommandGroup,
    no_args_is_help=False,
    short_help="Run many molecules, restart them, check their state, collect their energies.",
)
def batch_command() -> None:
    """Many molecules: isolated from each other, computed by several processes, none twice.

    A manifest is a TOML file: options of `dfmp2 run` (basis = "cc-pvdz"), output = "FOLDER", and
    one table [[item]] with molecule = "FILE" (as of dfmp2 run) per molecule, which may have a name
    and options of its own.
    """


def _of_a_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add MANIFEST or OUTPUT, --output and --root to a command, which receives them as one
    `batch`."""

    @functools.wraps(function)
    def with_batch(manifest: str, root: str | None, output: str | None, **options: Any) -> Any:
        from dfmp2.execution.manifest import read_batch

        return function(batch=read_batch(manifest, root=root, output=output), **options)

    return folder_options(click.argument("manifest", metavar="MANIFEST.toml | OUTPUT")(with_batch))


@batch_command.command("status", short_help="Show the state of every item.")
@_of_a_batch
@AS_JSON
def status(batch: Batch, as_json: bool) -> None:
    """Say which items are complete, failed, pending or running, at any time, also while the batch
    runs."""
    from dfmp2.execution.items import look_items, said_energy
    from dfmp2.output.table import rows_json

    rows = look_items(batch)
    counts_and_items = status_json(rows)
    if as_json:
        click.echo(rows_json(counts_and_items), nl=False)
        return
    for item, row in zip(batch.items, rows, strict=True):
        state = row.status
        if row.exit_code:
            state += f" ({row.exit_code})"
        if row.status == "complete":
            parts = [said_energy(item, row), f"{row.seconds or 0.0:.1f} s"]
            remark = ", ".join(filter(None, parts))
        else:
            remark = row.error or row.remark
        click.echo(styled(item_lines(state, row.name, remark)))
    counts = [
        f"{number} {state}"
        for state, number in counts_and_items.items()
        if state not in ("total", "items")
    ]
    click.echo(styled(f"{', '.join(counts)}; {len(rows)} in all"))


@batch_command.command(
    "plan", cls=AnnouncedCommand, short_help="Predict the time of every item and of every shard."
)
@_of_a_batch
@click.option(
    "--shards",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Parts of the batch.",
)
@click.option(
    "--scf-chain",
    is_flag=True,
    help="Keep pieces of a series together, as batch run --scf-chain does.",
)
@AS_JSON
def batch_plan(batch: Batch, shards: int, scf_chain: bool, as_json: bool) -> None:
    """Predict what every item costs and show the shards that `batch run --shard I/N` computes.

    The shards depend on manifest and molecules only. Times are those of this machine when `dfmp2
    plan` or `dfmp2 run` has measured its rates, else of the machine the forecast was written on;
    one process, its default threads.
    """
    from dfmp2.execution.batch import foresee_shards
    from dfmp2.output.table import rows_json

    outlook = foresee_shards(batch, shards, chained=scf_chain)
    if as_json:
        click.echo(rows_json(outlook), nl=False)
        return
    for row in outlook["items"]:
        if row["nao"] is None:
            sizes = "will be refused"
        else:
            sizes = f"{row['nao']} functions, {duration(row['seconds'])}"
        if row["error"]:
            sizes += f": {row['error']}"
        click.echo(item_lines(f"shard {row['shard']}", row["name"], sizes))
    loads = [shard["seconds"] for shard in outlook["shards"]]
    remark = ""
    if not outlook["measured"]:
        remark = " (at built-in rates; dfmp2 plan MOLECULE measures those of this machine)"
    conclude(
        f"{counted_text(outlook['total'], 'item')} in {counted_text(shards, 'shard')}: "
        f"{duration(sum(loads))} in all, the longest shard {duration(max(loads))}, the shortest "
        f"{duration(min(loads))}{remark}"
    )


@batch_command.command("collect", short_help="One table or data set of all complete results.")
@_of_a_batch
@click.option("-o", "table", required=True, metavar="FILE", help="Table.h5, .csv, .json, or data.")
@click.option(
    "--to",
    type=click.Choice(DATASETS),
    help="Data set: energies, forces, dipole moments.  [default: a table of energies]",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    default=1,
    show_default=True,
    help="Number of processes that read results.",
)
@click.option(
    "--split", metavar="A:B:C", help="Files for training, validation and test, by hash of names."
)
@click.option("--duplicates", is_flag=True, help="Keep equal geometries in a data set.")
@click.option("--uncertified", is_flag=True, help="Keep results whose certificate fails.")
@OVERWRITE
@click.option(
    "--allow-mixed",
    is_flag=True,
    help="Allow results of different methods in one table.",
)
def batch_collect(
    batch: Batch, table: str, to: str | None, split: str | None, overwrite: bool, **how: Any
) -> None:
    """Write energies and key numbers of all complete results into one table, or with --to a data
    set for machine learning, after checking every file's hash.

    Results of different methods (basis, fitting sets, frozen core, precision, ...) are refused
    unless --allow-mixed is given, because their energies cannot be compared. Equal geometries and
    results whose certificates fail are reported and left out of a data set. --split 8:1:1 writes
    FILE.train, .validation and .test in front of the ending.
    """
    from dfmp2.execution.collect import Destination

    destination = Destination.chosen(batch.output, table, to, split, overwrite=overwrite)
    for line in destination.collect(batch, Console(quiet=False, log=None).warning, **how):
        conclude(printable(line))


def duration(seconds: float) -> str:
    """A duration in readable form."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


batch_command.add_command(batch_run)
batch_command.add_command(batch_submit)
