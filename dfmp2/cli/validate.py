"""`dfmp2 validate`: hold this installation against energies that other programs published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dfmp2.cli.console import Console
from dfmp2.cli.options import AS_JSON, OVERWRITE, QUIET, options_of, prepare_libraries
from dfmp2.errors import ComparisonFailed, InputError
from dfmp2.options import parse_bytes

if TYPE_CHECKING:
    from dfmp2.validation.tables import Row


@click.command("validate")
@click.option(
    "--table",
    type=click.Choice(["main", "trnsci"]),
    default="main",
    show_default=True,
    help="trnsci: the published rows of trnblas, with its fitting set and with proper ones.",
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Entries whose name matches (* and ?, or a part of it).")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Entries with this tag; repeat it for more than one.")
@click.option("--slow", is_flag=True, help="Also entries of more than about 20 seconds or 2 GB.")
@options_of("backend", "precision", "memory", "threads")
@click.option(
    "--against", metavar="PROGRAMS", help="Recompute the references with pyscf, psi4 or pyscf,psi4 instead of quoting."
)
@click.option("--require-all", is_flag=True, help="A skipped entry is a failure.")
@click.option("--output", metavar="FILE.h5", help="Also write the table to an HDF5 file.")
@OVERWRITE
@AS_JSON
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown tables.")
@QUIET
def command(
    table: str,
    only: tuple[str, ...],
    tags: tuple[str, ...],
    slow: bool,
    backend: str,
    precision: str,
    memory: str | None,
    threads: int | None,
    against: str | None,
    require_all: bool,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    as_markdown: bool,
    quiet: bool,
) -> None:
    """Compute what other programs published and compare, entry by entry.

    Exit code 8 when a difference is larger than its entry allows.
    """
    if as_json and as_markdown:
        raise InputError("--json and --markdown: choose one of them")
    prepare_libraries(threads)
    from dfmp2.host.files import require_writable
    from dfmp2.host.provenance import version
    from dfmp2.output.study import write_table
    from dfmp2.validation import entries, tables
    from dfmp2.validation.validate import Other, Session, validate

    chosen = entries.select(entries.load(table), only, tags, slow=slow)
    target = None if output is None else Path(output)
    session = Session(backend, precision, None if memory is None else parse_bytes(memory), threads)
    programs = [] if against is None else [name.strip().lower() for name in against.split(",")]
    others = [Other(program, session) for program in dict.fromkeys(programs)]
    if target is not None:
        require_writable(target, overwrite=overwrite, expected_bytes=10**6)
    console = Console(quiet=quiet, log=None)
    name = session.backend.name
    console.note(f"{len(chosen)} entries on {name} ({session.reason}), {session.precision}")
    plain = not (as_json or as_markdown)
    if plain:
        click.echo(tables.HEADER)
    rows: list[Row] = []
    for count, found in enumerate(validate(chosen, session, others), start=1):
        rows += found
        if plain:
            click.echo("\n".join(map(tables.line, found)))
        console.note(f"[{count}/{len(chosen)}] {found[0].id}: {', '.join(sorted({row.status for row in found}))}")
    if session.repeated:
        console.warning(f"{session.repeated} calculations were too far off in mixed precision and repeated in float64")
    if as_json:
        click.echo(json.dumps(tables.to_dict(rows, name, session.precision), indent=2, allow_nan=False))
    else:
        click.echo(tables.markdown(rows, table) if as_markdown else f"\n{tables.summary(rows)}")
    if target is not None:
        written = {"table": table, "backend": name, "precision": session.precision, "creator_version": version()}
        write_table(target, "validation", tables.columns(rows), written, overwrite=overwrite)
    counts = tables.tally(rows)
    if counts.failed:
        raise ComparisonFailed(
            f"{counts.failed} of {counts.total} values differ by more than their entries allow: see those that fail"
        )
    if counts.skipped and (require_all or not counts.passed):
        why = "--require-all" if require_all else "nothing was compared"
        raise ComparisonFailed(
            f"{counts.skipped} of {counts.total} values are skipped ({why}), for the reasons given with them"
        )
