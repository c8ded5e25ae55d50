"""`dfmp2 batch`: many molecules; run them, plan them, see where they stand, collect their energies."""

from __future__ import annotations

from pathlib import Path

import click

from dfmp2.cli.batch_manifest import load_manifest, manifest_arguments
from dfmp2.cli.batch_plan import plan
from dfmp2.cli.batch_run import run
from dfmp2.cli.batch_submit import submit
from dfmp2.cli.console import Console
from dfmp2.errors import InputError
from dfmp2.io.text import printable


@click.group("batch", short_help="Run many molecules, restart them, see where they stand, collect their energies.")
def command() -> None:
    """Many molecules: isolated from each other, computed by several processes, never computed twice.

    A manifest is a TOML file: options of `dfmp2 run` (basis = "cc-pvdz"), output = "FOLDER", and one table [[item]]
    with molecule = "FILE.xyz" per molecule, which may have a name and options of its own.
    """


command.add_command(run)
command.add_command(plan)
command.add_command(submit)


@command.command("status", short_help="Where every item stands.")
@manifest_arguments
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(manifest: str, root: str | None, output: str | None, as_json: bool) -> None:
    """Say which items are complete, failed, pending or running, at any time, also while the batch runs."""
    from dfmp2.batch import ledger
    from dfmp2.batch.state import counts, look
    from dfmp2.io.batch import to_json

    batch = load_manifest(manifest, root, output)
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


@command.command("collect", short_help="One table of all complete results.")
@manifest_arguments
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

    batch, target = load_manifest(manifest, root, output), Path(table)
    if target.suffix not in (".h5", ".csv", ".json"):
        raise InputError(f"-o {table}: expected a name ending in .h5, .csv or .json")
    if target.suffix == ".h5" and target.parent.resolve() == batch.output.resolve():
        raise InputError(f"-o {table}: every .h5 in {batch.output} is the result of an item: name another folder")
    found = collect_results(batch, allow_mixed=allow_mixed)
    require_writable(target, overwrite=overwrite, option="-o")
    console = Console(quiet=False, log=None)
    for text in found.remarks:
        console.warning(text)
    write_rows(target, found.rows, found.notes, overwrite=overwrite)
    click.echo(f"{len(found.rows)} of {len(batch.items)} items -> {printable(table)}")
