"""`dfmp2 batch`: many molecules; run them, plan them, see where they stand, collect their energies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.batch_display import duration
from dfmp2.cli.batch_run import run
from dfmp2.cli.console import Console
from dfmp2.errors import InputError
from dfmp2.io.text import printable

if TYPE_CHECKING:
    from dfmp2.batch.manifest import Batch


@click.group("batch", short_help="Run many molecules, restart them, see where they stand, collect their energies.")
def command() -> None:
    """Many molecules: isolated from each other, computed by several processes, never computed twice.

    A manifest is a TOML file: options of `dfmp2 run` (basis = "cc-pvdz"), output = "FOLDER", and one table [[item]]
    with molecule = "FILE.xyz" per molecule, which may have a name and options of its own.
    """


command.add_command(run)


def _manifest(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arguments of the commands that look at a batch."""
    for option in (
        click.option("--output", metavar="DIR", help="Folder of the results.  [default: that of the manifest]"),
        click.option("--root", metavar="DIR", help="Folder that the manifest's paths are relative to."),
        click.argument("manifest", metavar="MANIFEST.toml | OUTPUT"),
    ):
        function = option(function)
    return function


@command.command("status", short_help="Where every item stands.")
@_manifest
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(manifest: str, root: str | None, output: str | None, as_json: bool) -> None:
    """Say which items are complete, failed, pending or running, at any time, also while the batch runs."""
    from dfmp2.batch import ledger
    from dfmp2.batch.state import counts, look
    from dfmp2.io.batch import to_json

    batch = _load(manifest, root, output)
    rows = look(batch, ledger.read_ledger(batch))
    if as_json:
        click.echo(to_json(ledger.status(rows)), nl=False)
        return
    for row in rows:
        said = "" if row.exit_code is None else f" ({row.exit_code})" if row.exit_code else ""
        more = row.error or row.remark
        if row.status == "complete":
            more = f"E(MP2) = {row.numbers['mp2_total_energy']:.10f} Eh, {row.seconds or 0.0:.1f} s"
        click.echo(printable(f"{row.status + said:12s} {row.name:24s} {more[:200]}").rstrip())
    click.echo(", ".join(f"{number} {state}" for state, number in counts(rows).items()) + f"; {len(rows)} in all")


@command.command("plan", short_help="Predict the time of every item and fill shards evenly.")
@_manifest
@click.option("--shards", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Parts of the batch.")
@click.option("--scf-chain", is_flag=True, help="Keep pieces of a series together, as batch run --scf-chain does.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(manifest: str, root: str | None, output: str | None, shards: int, scf_chain: bool, as_json: bool) -> None:
    """Predict what every item costs and show the shards that `batch run --shard I/N` computes.

    The shards depend on manifest and molecules only. Times are those of this machine when `dfmp2 plan` or `dfmp2 run`
    has measured its rates, else of the machine the forecast was written on; one process, its default threads.
    """
    from dfmp2.batch.outlook import foresee
    from dfmp2.io.batch import to_json

    outlook = foresee(_load(manifest, root, output), shards, chained=scf_chain)
    if as_json:
        click.echo(to_json(outlook.to_dict()), nl=False)
        return
    for row in outlook.items:
        sizes = "will be refused" if row.nao is None else f"{row.nao} functions, {duration(row.seconds)}"
        click.echo(
            printable(f"shard {row.shard:<5d} {row.name:24s} {sizes}{'' if not row.error else ': ' + row.error}")
        )
    loads = outlook.loads
    click.echo(
        f"{len(outlook.items)} items in {shards} shard{'s' * (shards != 1)}: {duration(sum(loads))} in all, the "
        f"longest shard {duration(max(loads))}, the shortest {duration(min(loads))}"
        f"{'' if outlook.measured else ' (at built-in rates; dfmp2 plan MOLECULE measures those of this machine)'}"
    )


@command.command("collect", short_help="One table of all complete results.")
@_manifest
@click.option("-o", "table", required=True, metavar="TABLE.h5|.csv|.json", help="File to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--allow-mixed", is_flag=True, help="Also when the results were computed with different methods.")
def collect(
    manifest: str, root: str | None, output: str | None, table: str, overwrite: bool, allow_mixed: bool
) -> None:
    """Write energies and key numbers of all complete results into one table, after checking every file's hash.

    Results of different methods (basis, fitting sets, frozen core, precision, ...) are refused unless --allow-mixed is
    given, because their energies cannot be compared.
    """
    from dfmp2.batch.collection import collect_results
    from dfmp2.io.batch import write_rows
    from dfmp2.io.files import require_writable

    batch, target = _load(manifest, root, output), Path(table)
    if target.suffix not in (".h5", ".csv", ".json"):
        raise InputError(f"-o {table}: expected a name ending in .h5, .csv or .json")
    if target.suffix == ".h5" and target.parent.resolve() == batch.output.resolve():
        raise InputError(f"-o {table}: every .h5 in {batch.output} is the result of an item: name another folder")
    require_writable(target, overwrite=overwrite, option="-o")
    found = collect_results(batch, allow_mixed=allow_mixed)
    console = Console(quiet=False, log=None)
    for text in found.remarks:
        console.warning(text)
    write_rows(target, found.rows, found.notes, overwrite=overwrite)
    click.echo(f"{len(found.rows)} of {len(batch.items)} items -> {printable(table)}")


def _load(manifest: str, root: str | None, output: str | None) -> Batch:
    from dfmp2.batch.ledger import read_recorded
    from dfmp2.batch.manifest import read_manifest

    if Path(manifest).is_dir():
        if root is not None or output is not None:
            raise InputError(f"--root and --output belong to a manifest, and {manifest} is a folder: leave them out")
        return read_recorded(Path(manifest))
    folder = None if root is None else Path(root)
    return read_manifest(manifest, root=folder, output=None if output is None else Path(output))
