"""What it can do here, how well, how fast: `dfmp2 doctor`, `methods`, `backends`, `validate`,
`compare`, `bench`.

And `completion`, of names by the shell.
"""

from __future__ import annotations

import getpass
import json
import math
import os
import re
import socket
import sys
import tempfile
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from dfmp2.cli.console import Console
from dfmp2.cli.help import AnnouncedCommand, GroupedCommand
from dfmp2.cli.options import (
    AS_JSON,
    OVERWRITE,
    QUIET,
    as_one,
    options_of,
    prepare_libraries,
)
from dfmp2.errors import ComparisonFailed, InputError, ResourceError
from dfmp2.errors.messages import Option
from dfmp2.host.resources import usable_cores
from dfmp2.host.threads import set_environment
from dfmp2.molecule.text import printable
from dfmp2.options import parse_bytes
from dfmp2.output.document import counted_text

if TYPE_CHECKING:
    from dfmp2.mp2.result import MP2Result
    from dfmp2.validation.compare import Comparison
    from dfmp2.validation.doctor import Diagnosis
    from dfmp2.validation.tables import QuantityRow
    from dfmp2.validation.validate import Session

REPORT = """What I typed:

What I expected:

What came instead, with the message:

Installation, by dfmp2 doctor --report:"""
SHORT = {  # of the energies that compare prints
    "scf_total_energy": "E(SCF)",
    "functional_energy": "E(functional)",
    "mp2_same_spin_correlation_energy": "same spin",
    "mp2_opposite_spin_correlation_energy": "opposite spin",
    "mp2_correlation_energy": "E(corr)",
    "mp2_doubles_energy": "doubles",
    "mp2_singles_energy": "singles",
    "same_spin_correlation_energy": "same spin",
    "opposite_spin_correlation_energy": "opposite spin",
    "hf_total_energy": "E(HF)",
    "rpa_correlation_energy": "E(RPA)",
}
SHELLS = ("bash", "zsh", "fish")
# zsh completes nothing without it
START = "whence compdef >/dev/null || { autoload -Uz compinit && compinit; }\n"
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command("doctor", cls=GroupedCommand)
@AS_JSON
@click.option(
    "--report", is_flag=True, help="Print a text for a bug report, without private paths."
)
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, report: bool) -> None:
    """Check installation, machine and working directory; one fix line per problem.

    Ends with a real run of a tiny molecule. Exit code 0 when the default run works, else the one it
    would have.
    """
    if as_json and report:
        raise InputError("--json and --report: choose one of them")
    from dfmp2.validation.doctor import Surroundings, examine, exit_code

    surroundings = Surroundings()
    set_environment(usable_cores())  # as a run does, before NumPy and PySCF are loaded
    findings = []
    with Console(quiet=as_json or report, log=None) as console:
        for finding in examine(surroundings):
            findings.append(finding)
            if not (as_json or report):
                console.show(_finding_text(finding))
    code = exit_code(findings)
    if as_json:
        checks = [
            {name: getattr(found, name) for name in ("name", "status", "detail", "fix")}
            for found in findings
        ]
        click.echo(json.dumps({"works": code == 0, "exit_code": code, "checks": checks}, indent=2))
        ctx.exit(code)
    if report:
        lines = [
            f"- {found.status} {found.name}: {printable(without_paths(found.detail))}"
            for found in findings
        ]
        click.echo("\n".join([REPORT, *lines]))
        ctx.exit(code)
    warnings = sum(finding.status == "warn" for finding in findings)
    if code == 0:
        verdict = "the default run works"
    else:
        verdict = f"the default run does not work (exit code {code})"
    click.echo(f"dfmp2 doctor: {verdict}, {counted_text(warnings, 'warning')}")
    ctx.exit(code)


def _finding_text(finding: Diagnosis) -> str:
    """The lines of one check."""
    says = [finding.detail, *([f"fix: {finding.fix}"] if finding.fix else [])]
    lines = [
        line for text in says for line in textwrap.wrap(printable(text), 54, break_on_hyphens=False)
    ]
    head = f"{click.style(f'{finding.status:<5}', fg=COLOURS[finding.status])}{finding.name:<21}{lines[0]}"
    return "\n".join([head, *(f"{'':26}{line}" for line in lines[1:])])


def without_paths(text: str) -> str:
    """The text with the last name of an absolute path only, and without the names of folders here,
    user and host."""
    known = {
        os.getcwd(),
        os.path.expanduser("~"),
        sys.prefix,
        tempfile.gettempdir(),
        str(Path(__file__).parents[2]),
    }
    for place in sorted(known - {"/"}, key=len, reverse=True):
        text = text.replace(place, "...")
    for name in (getpass.getuser(), socket.gethostname()):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "...", text)
    return re.sub(r"(?<![\w.])/(?:[^\s,;:'\"()]*/)+(?=[^\s,;:'\"()])", ".../", text)


@click.command("backends", cls=GroupedCommand)
@AS_JSON
def backends(as_json: bool) -> None:
    """List the backends and why each of them can or cannot be used here."""
    from dfmp2.backends.registry import BACKENDS

    rows = ((row.name, row.description, row.probe()) for row in BACKENDS)
    if as_json:
        table = {
            name: {"description": text, "available": why is None, "reason": why}
            for name, text, why in rows
        }
        click.echo(json.dumps(table, indent=2))
        return
    for name, text, why in rows:  # each as it is found: libraries are loaded
        click.echo(f"{name:<17}{'available' if why is None else 'unavailable':<13}{text}")
        if why is not None:
            click.echo(textwrap.fill(why, 80, initial_indent=" " * 17, subsequent_indent=" " * 17))


@click.command("methods", cls=GroupedCommand)
@AS_JSON
def methods(as_json: bool) -> None:
    """List the methods of --method: the factors of their two spin components, what they are for,
    their sources."""
    from dfmp2.double_hybrids import table
    from dfmp2.options import METHODS
    from dfmp2.output.json import json_value

    if as_json:
        hybrids = {name: asdict(row) for name, row in table().items() if not row.unavailable}
        for row in hybrids.values():
            row["source"] = f"doi {row['doi']}"
        rows = {name: asdict(one) for name, one in METHODS.items()} | hybrids
        click.echo(json.dumps(json_value(rows), indent=2))
        return
    for one in METHODS.values():
        short = f"{one.opposite_spin:.3g} E(OS) + {one.same_spin:.3g} E(SS)"
        if one.kind in ("rpa", "none"):
            factors = one.formula
        else:
            factors = short
        click.echo(f"{one.name:<13}{factors:<25}{one.says}")
        click.echo(
            textwrap.fill(one.source, 80, initial_indent=" " * 13, subsequent_indent=" " * 13)
        )
    click.echo("RHF, UHF and ROHF references (drpa: RHF, UHF, RKS, UKS; ks: RKS, UKS)")
    _list_double_hybrids()
    click.echo("cost: occ^2 virt^2 fit; of sos-laplace and drpa occ virt fit^2 for each point")


def _list_double_hybrids() -> None:
    """Print the table of double hybrids, RKS and UKS, a line or two each."""
    from dfmp2.double_hybrids import DISPERSIONS, table

    click.echo(
        "\ndouble hybrids, RKS and UKS: exact exchange, factors, dispersion, source,\n"
        "checked against"
    )
    for name, row in table().items():
        if row.unavailable:
            text = f"{row.title} not available: {row.unavailable}; doi {row.doi}"
        else:
            short, long, omega = row.exact_exchange
            if not omega:
                exchange = f"{short:.3g}"
            else:
                exchange = f"{short:.3g} to {long:.3g} ({omega:g}/bohr)"
            corrections = [title for key, title in DISPERSIONS.items() if row.parameters_in(key)]
            text = (
                f"{row.title}: {exchange} K, {row.opposite_spin:.4g} E(OS) + {row.same_spin:.4g} "
                f"E(SS), {' or '.join(corrections) or 'no dispersion'}; doi {row.doi}; "
                f"{row.checked}"
            )
            if row.energy:
                text += f"; energy {row.energy}, orbitals {row.scf}"
            if row.p86:
                text += f"; P86 with {row.p86}"
        click.echo(
            textwrap.fill(
                f"{name:<19}{text}", 80, subsequent_indent=" " * 19, break_on_hyphens=False
            )
        )
    click.echo("custom-dh          --xc, --os-scale and --ss-scale of your own\n")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries are validated: the values of --table, --only, --tag and --slow."""

    table: str
    only: tuple[str, ...]
    tags: tuple[str, ...]
    slow: bool


@dataclass(frozen=True, slots=True)
class TableOutput:
    """Where a table goes and in which form: the values of the options of output."""

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
@click.option("--output", metavar="FILE.h5", help="Also write the table to an HDF5 file.")
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
    """Compute what other programs published and compare, entry by entry.

    Exit code 8 when a difference is larger than its entry allows.
    """
    if shown.as_json and shown.as_markdown:
        raise InputError("--json and --markdown: choose one of them")
    prepare_libraries(threads)
    from dfmp2.host.files import require_writable
    from dfmp2.studies.optimize import minimum
    from dfmp2.validation import entries, tables
    from dfmp2.validation.validate import Other, Session, validate

    chosen = entries.select_entries(
        entries.load_entries(selection.table), selection.only, selection.tags, slow=selection.slow
    )
    if memory is None:
        budget = None
    else:
        budget = parse_bytes(memory)
    session = Session(backend, precision, budget, threads, minimum)
    programs: list[str] = []
    if against is not None:
        programs = [name.strip().lower() for name in against.split(",")]
    others = [Other(program, session) for program in dict.fromkeys(programs)]
    if shown.output is not None:
        require_writable(Path(shown.output), overwrite=shown.overwrite, expected_bytes=10**6)
    as_text = not (shown.as_json or shown.as_markdown)
    rows: list[QuantityRow] = []
    with Console(quiet=shown.quiet, log=None) as console:
        console.note(
            f"{len(chosen)} entries on {session.backend.name} ({session.reason}), "
            f"{session.precision}"
        )
        if as_text:
            console.show(tables.HEADER)
        for count, entry_rows in enumerate(validate(chosen, session, others), start=1):
            rows += entry_rows
            if as_text:
                console.show("\n".join(tables.lines_of(entry_rows)))
            statuses = ", ".join(sorted({row.status for row in entry_rows}))
            console.note(f"[{count}/{len(chosen)}] {entry_rows[0].id}: {statuses}")
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
    """Print the rows as asked for, and write them to the file that was asked for.

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
        click.echo(f"\n{tables.validation_summary(rows)}")
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
    """Raise where a comparison failed, or nothing was compared.

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
            "see those that fail"
        )
    if counts["skipped"] and (require_all or not counts["passed"]):
        if require_all:
            reason = "--require-all"
        else:
            reason = "nothing was compared"
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
    of this molecule. PySCF's MP2 is compared with; kappa-MP2, dRPA and ROHF are written out over
    PySCF's integrals. Psi4 has MP2 alone. Exit code 8 when an energy differs by more than
    --tolerance, 6 when there is no Psi4 or it fails, 7 when the four-centre integrals do not fit
    into memory.
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
    with Console(quiet=quiet, log=None) as console:
        if exact:
            check = recompute_exact(stored, allowed, count, console)
        else:
            check = recompute(stored, allowed, count, console, program=program, timeout=timeout)
    _show(stored, check, "exact" if exact else program, allowed, as_json=as_json)
    if not check.passed:
        if exact:
            about = _suspect(stored, check)
        else:
            about = _reason(stored, check, program)
        unit = "Eh per atom" if exact else "Eh"
        raise ComparisonFailed(
            f"{result}: {check.program} differs by {check.largest_difference:.1e} Eh, "
            f"more than --tolerance {allowed:.1e} {unit}{about}"
        )
    if not as_json:
        click.echo(_agreement(stored, check, allowed, exact=exact))


def _show(
    stored: MP2Result, check: Comparison, column: str, tolerance: float, *, as_json: bool
) -> None:
    """The energies side by side, a table or one JSON object."""
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
        label = SHORT.get(name, f"E({stored.options.correlation.title})")
        click.echo(f"{label:<15}{values}")


def _agreement(stored: MP2Result, check: Comparison, tolerance: float, *, exact: bool) -> str:
    """The last line of a comparison that passed, with what it could not see."""
    if not exact:
        if stored.scf_fitting is not None:
            shared = "fitting sets"
        else:
            shared = "MP2 fitting set"
        return f"agrees with {check.program} within {tolerance:.1e} Eh, same {shared}"
    return (
        f"fitting errors per atom: {_per_atom(stored, check.scf_difference)} Eh in E(SCF), "
        f"{_per_atom(stored, check.correlation_difference)} Eh in E(corr); within {tolerance:.1e} "
        "Eh"
    )


def _suspect(stored: MP2Result, check: Comparison) -> str:
    """Which energy is off without fitting sets, and which set is to blame."""
    if not abs(check.scf_difference) <= check.allowed:
        energy = f"; E(SCF) is off by {_per_atom(stored, check.scf_difference)} Eh per atom"
        if stored.scf_fitting is None:
            return f"{energy} although it was computed without a fitting set: report it, please"
        return (
            f"{energy}: suspect the SCF fitting set ({stored.scf_fitting.names}): choose "
            "another one with --scf-auxbasis, or --scf conventional"
        )
    if stored.options.correlation.plain:
        parts = (
            f" (same spin {_per_atom(stored, check.same_spin_difference)}, opposite spin "
            f"{_per_atom(stored, check.opposite_spin_difference)})"
        )
    else:
        parts = ""
    return (
        f"; E(corr) is off by {_per_atom(stored, check.correlation_difference)} Eh per "
        f"atom{parts}: suspect the MP2 fitting set ({stored.mp2_fitting.names}): choose "
        "another one with --auxbasis"
    )


def _reason(stored: MP2Result, check: Comparison, program: str) -> str:
    """What a difference of the SCF energies says."""
    from dfmp2.validation.compare import TOLERANCE

    if abs(check.scf_difference) <= max(check.allowed, TOLERANCE):
        return ""
    if check.scf_difference > 0:
        lower = "lower"
    else:
        lower = "higher"
    if program == "pyscf":
        return (
            f"; its SCF energy is {lower}, also from the stored orbitals, which were converged "
            f"with --scf-conv-tol {stored.options.scf_conv_tol:.1e}"
        )
    return f"; its SCF energy is {lower}, so the two may have found different SCF solutions"


def _per_atom(stored: MP2Result, energy: float) -> str:
    return f"{energy / max(1, stored.molecule.ghost.count(False)):+.1e}"


@dataclass(frozen=True, slots=True)
class PairStep:
    """The benchmark of the pair energies: the values of the options that belong to --shape."""

    shape: str | None
    precision: str | None
    memory: str | None
    backend: tuple[str, ...]

    def require_unset(self) -> None:
        """Raise InputError where one of the options beside --shape is given."""
        for name in ("precision", "memory", "backend"):
            if getattr(self, name):
                raise InputError(f"--{name} does not belong to --gemm: leave it out")

    def precisions(self) -> list[str]:
        """fp64, mixed, or both.

        Raises
        ------
        InputError : another name
        """
        listed = self.precision or "fp64,mixed"
        names = [name.strip().lower() for name in listed.split(",")]
        for name in names:
            if name not in ("fp64", "mixed"):
                raise InputError(
                    f"--precision {name!r}: expected fp64 or mixed, or both with a comma between "
                    "them"
                )
        return list(dict.fromkeys(names))

    def budget(self) -> int | None:
        """--memory in bytes."""
        if self.memory is None:
            return None
        return parse_bytes(self.memory)


@click.command("bench", cls=AnnouncedCommand)
@click.option(
    "--shape",
    metavar="NAME",
    help="Pair step: small, medium or large, the shapes of trnblas.",
)
@click.option(
    "--gemm", is_flag=True, help="Matrix products of NumPy and PyTorch; rates kept for plan."
)
@click.option("--precision", metavar="LIST", help="--shape: fp64, mixed; with commas.  [both]")
@click.option("--repeats", type=int, default=3, show_default=True, help="Runs of each.")
@options_of("memory", "threads")
@click.option(
    "--backend",
    multiple=True,
    metavar="NAME",
    help="--shape: cpu, torch, cuda; repeat it.  [all there are]",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Also write JSON; - prints it in place of the tables.",
)
@OVERWRITE
@QUIET
@as_one("pair_step", PairStep)
def bench(
    pair_step: PairStep,
    gemm: bool,
    repeats: int,
    threads: int | None,
    json_file: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Measure. Choose --shape or --gemm.

    Exit code 8 when the energy of a shape differs by more than its precision explains, 6 when a
    backend is missing.
    """
    if gemm and pair_step.shape is not None:
        raise InputError("--shape and --gemm: give exactly one of --shape NAME, --gemm")
    if not gemm and pair_step.shape is None:
        raise InputError("nothing to measure was named: give exactly one of --shape NAME, --gemm")
    if gemm:
        pair_step.require_unset()
    if repeats < 1:
        raise InputError(f"--repeats {repeats}: expected a whole number, 1 or more")
    precisions = pair_step.precisions()
    count = prepare_libraries(threads)
    from dfmp2.host.files import require_writable, write_atomically
    from dfmp2.validation import bench as benchmarks

    budget = pair_step.budget()
    target = None
    if json_file is not None and json_file != "-":
        target = Path(json_file)
        require_writable(target, overwrite=overwrite, expected_bytes=10**6, option=Option("json"))
    with Console(quiet=quiet, log=None) as console:
        if pair_step.shape is None:
            results = benchmarks.measure_products(count, repeats, console)
            text = benchmarks.products_text(results)
        else:
            results = benchmarks.measure_shape(
                pair_step.shape,
                list(pair_step.backend),
                precisions,
                repeats=repeats,
                count=count,
                memory=budget,
                listener=console,
            )
            text = benchmarks.shape_text(results)
    as_json = json.dumps(results, indent=2, allow_nan=False) + "\n"
    if target is not None:
        write_atomically(target, as_json.encode(), overwrite=overwrite)
    if json_file == "-":
        click.echo(as_json, nl=False)
    else:
        click.echo(text, nl=False)
    if pair_step.shape is not None:
        benchmarks.judge(results)


@click.command("completion", cls=GroupedCommand)
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.option("--install", is_flag=True, help="Write the script and let the shell load it.")
def completion(shell: str | None, install: bool) -> None:
    """Print what lets SHELL (default: that of $SHELL) complete names; --install puts it in place.

    bash and zsh get one line at the end of ~/.bashrc or ~/.zshrc that loads the script from
    ~/.local/share/dfmp2, fish a file in ~/.config/fish/completions. A second time changes nothing.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name in SHELLS:
        kind = get_completion_class(name)
    else:
        kind = None
    if kind is None:
        raise InputError(
            f"the shell of $SHELL is {name or 'not set'}: name one of {', '.join(SHELLS)}"
        )
    from dfmp2.cli.main import cli

    script = (START if name == "zsh" else "") + kind(cli, {}, "dfmp2", "_DFMP2_COMPLETE").source()
    if not install:
        click.echo(script, nl=False)
        return
    from dfmp2.host.files import write_atomically

    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    if name == "fish":
        place = settings / "fish/completions/dfmp2.fish"
    else:
        place = data / f"dfmp2/completion.{name}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, script.encode(), overwrite=True)
        if name != "fish":
            start, line = Path.home() / f".{name}rc", f'source "{place}"  # completion of dfmp2\n'
            if start.exists():
                text = start.read_text()
            else:
                text = ""
            if line not in text:
                with open(start, "a", encoding="utf-8") as file:
                    file.write(line if not text or text.endswith("\n") else f"\n{line}")
    except OSError as error:
        reason = f"{error.filename or place}: {error.strerror}"
        raise ResourceError(
            f"cannot install the completion: {reason}: print it without --install"
        ) from error
    click.echo(f"dfmp2 completion: {place}; a new {name} completes names")
