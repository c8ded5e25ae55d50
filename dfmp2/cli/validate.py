"""`dfmp2 validate` and `compare`: published energies, or a stored result, beside other programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
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
from dfmp2.options import Options, parse_bytes
from dfmp2.units import counted_text, told_apart

if TYPE_CHECKING:
    from dfmp2.molecule.molecule import Molecule
    from dfmp2.mp2.result import MP2Result
    from dfmp2.validation.compare import Comparison
    from dfmp2.validation.entries import ReferenceEntry
    from dfmp2.validation.tables import QuantityRow
    from dfmp2.validation.validate import Other, Session


# Energies that the fitting set of the SCF enters alone
OF_THE_SCF_SET = ("scf_total_energy", "hf_total_energy", "functional_energy")


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
    from dfmp2.host.files import require_hdf5_name, require_writable
    from dfmp2.validation import entries
    from dfmp2.validation.validate import Other, Session

    chosen = entries.select_entries(
        entries.load_entries(selection.table), selection.only, selection.tags, slow=selection.slow
    )
    budget = None if memory is None else parse_bytes(memory)
    session = Session(backend, precision, budget, threads, _optimize)
    programs: list[str] = []
    if against is not None:
        programs = [name.strip().lower() for name in against.split(",")]
    others = [Other(program, session) for program in dict.fromkeys(programs)]
    if shown.output is not None:
        require_hdf5_name(Path(shown.output))
        require_writable(Path(shown.output), overwrite=shown.overwrite)
    rows = _compare_entries(chosen, session, others, shown, each_value=selection.chosen)
    _show_validation(rows, session, selection.table, shown)
    _require_passed(rows, require_all=require_all)


def _optimize(molecule: Molecule, options: Options, *, constraints: str, **how: Any) -> MP2Result:
    """The result at the minimum under constraints in geomeTRIC's format."""
    from dfmp2.studies.coordinate import Constraints
    from dfmp2.studies.geometric_search import Search
    from dfmp2.studies.optimize import minimum

    return minimum(molecule, options, search=Search(Constraints(text=constraints)), **how)


def _compare_entries(
    chosen: Sequence[ReferenceEntry],
    session: Session,
    others: Sequence[Other],
    shown: TableOutput,
    *,
    each_value: bool,
) -> list[QuantityRow]:
    """Compare the entries and print each as soon as it is known, unless JSON or Markdown follows.

    Parameters
    ----------
    each_value : bool
        Whether to print a line for each value instead of one for each entry.
    """
    from dfmp2.validation import tables
    from dfmp2.validation.validate import validate

    as_text = not (shown.as_json or shown.as_markdown)
    rows: list[QuantityRow] = []
    with Console(quiet=shown.quiet, log=None) as console:
        console.note(
            f"{counted_text(len(chosen), 'entry', 'entries')} on {session.backend.name} "
            f"({session.reason}), precision {session.precision}"
        )
        if as_text and each_value:
            console.show(tables.HEADER)
        for count, entry_rows in enumerate(validate(chosen, session, others), start=1):
            rows += entry_rows
            if as_text and each_value:
                console.show("\n".join(tables.lines_of(entry_rows)))
            elif as_text:
                console.show(tables.line_of_entry(entry_rows))
            console.step(count, len(chosen), "entries")
    if session.repeated:
        console.warning(
            f"{session.repeated} calculations were too far off in mixed precision and repeated in "
            "float64"
        )
    return rows


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


@click.command("compare", cls=AnnouncedCommand)
@click.argument("result")
@click.option(
    "--with",
    "program",
    type=click.Choice(["pyscf", "psi4"]),
    default="pyscf",
    show_default=True,
    help="Program that recomputes it; psi4 must be on PATH.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="Without fitting sets: conventional SCF and four-centre integrals in PySCF.",
)
@click.option(
    "--tolerance",
    type=float,
    metavar="EH",
    help="Largest difference allowed; with --exact, per atom.  [default: 1e-06; with --exact "
    "1e-03]",
)
@options_of("threads")
@click.option(
    "--timeout", type=float, metavar="SECONDS", help="Stop Psi4 after this time.  [default: never]"
)
@AS_JSON
@QUIET
def compare_command(
    result: str,
    program: str,
    exact: bool,
    tolerance: float | None,
    threads: int | None,
    timeout: float | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Recompute RESULT (.h5) from scratch: SCF, then the method, with the stored basis sets.

    Both use the fitting sets of the run. --exact uses none: its differences are the fitting errors
    of this molecule. Kohn-Sham and MP2 are compared with PySCF's; kappa-MP2, dRPA and ROHF with sums
    over PySCF's integrals. Psi4 repeats MP2 and double hybrids, except those of the XYG3 type and
    those with range separation. Exit code 8 if an energy differs by more than --tolerance, 6 if
    Psi4 is missing or fails, 7 if the four-centre integrals do not fit into memory.
    """
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise InputError(f"--tolerance {tolerance}: expected a finite number above zero")
    if timeout is not None and not 0 < timeout < math.inf:
        raise InputError(f"--timeout {timeout}: expected seconds above zero")
    if timeout is not None and program == "pyscf":
        raise InputError(
            "--timeout stops Psi4, but the comparison is with PySCF: add --with psi4, or leave it "
            "out"
        )
    if exact and program != "pyscf":
        raise InputError(f"--exact is computed by PySCF only: leave out --with {program}")
    count = prepare_libraries(threads)
    from dfmp2.output import hdf5
    from dfmp2.validation.compare import FITTING_TOLERANCE, TOLERANCE, recompute, recompute_exact

    stored = hdf5.read(result)
    allowed = tolerance or (FITTING_TOLERANCE if exact else TOLERANCE)
    with Console(quiet=quiet, log=None, passing=True) as console:
        if exact:
            check = recompute_exact(stored, allowed, count, console)
        else:
            check = recompute(stored, allowed, count, console, program=program, timeout=timeout)
    _show_comparison(stored, check, "exact" if exact else program, allowed, as_json=as_json)
    if not check.passed:
        if exact:
            about = _suspect(stored, check)
        else:
            about = _reason(stored, check, program)
        unit = "Eh per atom" if exact else "Eh"
        differs, most = told_apart(".1e", check.largest_difference, allowed)
        raise ComparisonFailed(
            f"{result}: {check.program} differs by {differs} Eh, "
            f"more than --tolerance {most} {unit}{about}"
        )
    if not as_json:
        conclude(_agreement(stored, check, allowed, exact=exact))


def _show_comparison(
    stored: MP2Result, check: Comparison, column: str, tolerance: float, *, as_json: bool
) -> None:
    """Print the energies side by side, as a table or one JSON object."""
    from dfmp2.validation.tables import ENERGIES

    energies = {
        energy.name: {
            "stored": energy.stored,
            column: energy.theirs,
            "difference": energy.difference,
        }
        for energy in check.energies
    }
    if as_json:
        payload = {
            "program": check.program,
            "tolerance": tolerance,
            "allowed": check.allowed,
            "passed": check.passed,
            "energies": energies,
        }
        click.echo(json.dumps(payload, indent=2))
        return
    if column == "exact":
        head = column
    else:
        head = check.program.split()[0]
    click.echo(f"{'energy / Eh':<15}{'stored':>20}{head:>20}{'difference':>12}")
    for name, found in energies.items():
        values = f"{found['stored']:>20.10f}{found[column]:>20.10f}{found['difference']:>12.1e}"
        label = ENERGIES.get(name, f"E({stored.options.correlation.title})")
        if name == "mp2_correlation_energy" and "correlation_energy" in energies:
            label = "unscaled sum"  # of both components, besides the E(corr) of the method
        click.echo(f"{label:<15}{values}")


def _agreement(stored: MP2Result, check: Comparison, tolerance: float, *, exact: bool) -> str:
    """The last line of a passed comparison, with its limitations."""
    alone = stored.options.correlation.kind == "none"
    if not exact:
        if stored.scf_fitting is not None and not alone:
            shared = ", same fitting sets"
        elif stored.scf_fitting is not None:
            shared = ", same SCF fitting set"
        elif not alone:
            shared = ", same MP2 fitting set"
        else:
            shared = ""
        return f"agrees with {check.program} within {tolerance:.1e} Eh{shared}"
    errors = [f"{_per_atom(stored, check.scf_difference)} Eh in E(SCF)"]
    if not alone:
        errors.append(f"{_per_atom(stored, check.correlation_difference)} Eh in E(corr)")
    return f"fitting errors per atom: {', '.join(errors)}; within {tolerance:.1e} Eh"


def _suspect(stored: MP2Result, check: Comparison) -> str:
    """The energy that is off without fitting sets, and the set responsible."""
    from dfmp2.validation.tables import ENERGIES

    for of_scf in (one for one in check.energies if one.name in OF_THE_SCF_SET):
        if abs(of_scf.difference) <= check.allowed:
            continue
        off = _per_atom(stored, of_scf.difference)
        energy = f"; {ENERGIES[of_scf.name]} is off by {off} Eh per atom"
        if stored.scf_fitting is None:
            return f"{energy} although it was computed without a fitting set: report it, please"
        return (
            f"{energy}: suspect the SCF fitting set ({stored.scf_fitting.names}): choose "
            "another one with --scf-auxbasis, or --scf conventional"
        )
    parts = ""
    if stored.options.correlation.plain:
        same, opposite = (
            _per_atom(stored, check.named(f"mp2_{spin}_spin_correlation_energy").difference)
            for spin in ("same", "opposite")
        )
        parts = f" (same spin {same}, opposite spin {opposite})"
    return (
        f"; E(corr) is off by {_per_atom(stored, check.correlation_difference)} Eh per "
        f"atom{parts}: suspect the MP2 fitting set ({stored.mp2_fitting.names}): choose "
        "another one with --auxbasis"
    )


def _reason(stored: MP2Result, check: Comparison, program: str) -> str:
    """The explanation of a difference in SCF energies."""
    from dfmp2.validation.compare import TOLERANCE

    if abs(check.scf_difference) <= max(check.allowed, TOLERANCE):
        return ""
    lower = "lower" if check.scf_difference > 0 else "higher"
    if program == "pyscf":
        return (
            f"; its SCF energy is {lower}, also from the stored orbitals, which were converged "
            f"with --scf-conv-tol {stored.options.scf_conv_tol:.1e}"
        )
    return f"; its SCF energy is {lower}, so the two may have found different SCF solutions"


def _per_atom(stored: MP2Result, energy: float) -> str:
    return f"{energy / max(1, stored.molecule.ghost.count(False)):+.1e}"
