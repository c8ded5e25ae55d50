"""`dfmp2 validate`: comparison with energies of other programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.console import Console, conclude
from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import (
    AS_JSON,
    OVERWRITE,
    QUIET,
    as_one,
    options_of,
    prepare_libraries,
)
from dfmp2.errors import ComparisonFailed, InputError
from dfmp2.options import parse_bytes
from dfmp2.units import counted_text

if TYPE_CHECKING:
    from dfmp2.molecule.molecule import Molecule
    from dfmp2.mp2.result import MP2Result
    from dfmp2.options import Options
    from dfmp2.validation.tables import QuantityRow
    from dfmp2.validation.validate import Session


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected entries: the values of --table, --only, --tag and --slow."""

    table: str
    only: tuple[str, ...]
    tags: tuple[str, ...]
    slow: bool

    @property
    def chosen(self) -> bool:
        """Whether entries were selected, in which case every value is printed."""
        return bool(self.only or self.tags)


@dataclass(frozen=True, slots=True)
class TableOutput:
    """Where a table is written and in which form: the values of the output options."""

    output: str | None
    overwrite: bool
    as_json: bool
    as_markdown: bool
    quiet: bool


@click.command("validate", cls=AnnouncedCommand)
@click.option(
    "--table",
    type=click.Choice(["main", "trnsci"]),
    default="main",
    show_default=True,
    help="trnsci: the published rows of trnblas, with its fitting set and with proper ones.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Entries whose name matches (* and ?, or a part of it).",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="Entries with this tag; repeat it for more than one.",
)
@click.option("--slow", is_flag=True, help="Also entries of more than about 20 seconds or 2 GB.")
@options_of("backend", "precision", "memory", "threads")
@click.option(
    "--against",
    metavar="PROGRAMS",
    help="Recompute the references with pyscf, psi4 or pyscf,psi4 instead of quoting.",
)
@click.option("--require-all", is_flag=True, help="A skipped entry is a failure.")
@click.option("-o", "--output", metavar="FILE.h5", help="Also write the table to an HDF5 file.")
@OVERWRITE
@AS_JSON
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown tables.")
@QUIET
@as_one("selection", Selection)
@as_one("shown", TableOutput)
def validate_command(
    selection: Selection,
    shown: TableOutput,
    backend: str,
    precision: str,
    memory: str | None,
    threads: int | None,
    against: str | None,
    require_all: bool,
) -> None:
    """Compute what was published with other programs and compare, entry by entry.

    A line for each entry, with the difference that is closest to what is allowed; with --only or
    --tag a line for each value. Exit code 8 if a difference is larger than its entry allows.
    """
    if shown.as_json and shown.as_markdown:
        raise InputError("--json and --markdown: choose one of them")
    prepare_libraries(threads)
    from dfmp2.host.files import require_writable
    from dfmp2.studies.coordinate import Constraints
    from dfmp2.studies.geometric_search import Search
    from dfmp2.studies.optimize import minimum
    from dfmp2.validation import entries, tables
    from dfmp2.validation.validate import Other, Session, validate

    chosen = entries.select_entries(
        entries.load_entries(selection.table), selection.only, selection.tags, slow=selection.slow
    )
    budget = None if memory is None else parse_bytes(memory)

    def optimize(
        molecule: Molecule, options: Options, *, constraints: str, **how: Any
    ) -> MP2Result:
        return minimum(molecule, options, search=Search(Constraints(text=constraints)), **how)

    session = Session(backend, precision, budget, threads, optimize)
    programs: list[str] = []
    if against is not None:
        programs = [name.strip().lower() for name in against.split(",")]
    others = [Other(program, session) for program in dict.fromkeys(programs)]
    if shown.output is not None:
        require_writable(Path(shown.output), overwrite=shown.overwrite)
    as_text = not (shown.as_json or shown.as_markdown)
    rows: list[QuantityRow] = []
    with Console(quiet=shown.quiet, log=None) as console:
        console.note(
            f"{counted_text(len(chosen), 'entry', 'entries')} on {session.backend.name} "
            f"({session.reason}), precision {session.precision}"
        )
        if as_text and selection.chosen:
            console.show(tables.HEADER)
        for count, entry_rows in enumerate(validate(chosen, session, others), start=1):
            rows += entry_rows
            if as_text and selection.chosen:
                console.show("\n".join(tables.lines_of(entry_rows)))
            elif as_text:
                console.show(tables.line_of_entry(entry_rows))
            console.step(count, len(chosen), "entries")
    if session.repeated:
        console.warning(
            f"{session.repeated} calculations were too far off in mixed precision and repeated in "
            "float64"
        )
    _show_validation(rows, session, selection.table, shown)
    _require_passed(rows, require_all=require_all)


def _show_validation(
    rows: list[QuantityRow], session: Session, table: str, shown: TableOutput
) -> None:
    """Print the rows in the requested form, and write them to the requested file.

    Parameters
    ----------
    table : str
        Name of the table of entries.
    """
    from dfmp2.host.provenance import version
    from dfmp2.output.study import write_table
    from dfmp2.validation import tables

    backend = session.backend.name
    if shown.as_json:
        values = tables.rows_to_dict(rows, backend, session.precision)
        click.echo(json.dumps(values, indent=2, allow_nan=False))
    elif shown.as_markdown:
        click.echo(tables.markdown(rows, table))
    else:
        conclude(f"\n{tables.validation_summary(rows)}")
    if shown.output is None:
        return
    settings = {
        "table": table,
        "backend": backend,
        "precision": session.precision,
        "creator_version": version(),
    }
    write_table(
        Path(shown.output),
        "validation",
        tables.columns(rows),
        settings,
        overwrite=shown.overwrite,
    )


def _require_passed(rows: list[QuantityRow], *, require_all: bool) -> None:
    """Raise if a comparison failed, or nothing was compared.

    Parameters
    ----------
    require_all : bool
        Whether a skipped entry counts as failed.

    Raises
    ------
    ComparisonFailed
    """
    from dfmp2.validation import tables

    counts = tables.tally(rows)
    if counts["failed"]:
        raise ComparisonFailed(
            f"{counts['failed']} of {len(rows)} values differ by more than their entries allow: "
            f"{', '.join(dict.fromkeys(row.id for row in rows if row.status == tables.FAIL))}"
        )
    if counts["skipped"] and (require_all or not counts["passed"]):
        reason = "--require-all" if require_all else "nothing was compared"
        raise ComparisonFailed(
            f"{counts['skipped']} of {len(rows)} values are skipped ({reason}), for the reasons "
            "given with them"
        )
