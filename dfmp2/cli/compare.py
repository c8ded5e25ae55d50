"""`dfmp2 compare`: recompute a stored result from scratch and print the differences."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import click

from dfmp2.cli.console import Console
from dfmp2.cli.options import AS_JSON, QUIET, options_of, prepare_libraries
from dfmp2.errors import ComparisonFailed, InputError

if TYPE_CHECKING:
    from dfmp2.mp2.result import Check, MP2Result


@click.command("compare")
@click.argument("result")
@click.option(
    "--with",
    "program",
    type=click.Choice(["pyscf", "psi4"]),
    default="pyscf",
    show_default=True,
    help="Program that recomputes it; psi4 must be on PATH.",
)
@click.option("--exact", is_flag=True, help="Without fitting sets: conventional SCF and four-centre MP2 in PySCF.")
@click.option(
    "--tolerance",
    type=float,
    metavar="EH",
    help="Largest difference allowed; with --exact, per atom.  [default: 1e-06; with --exact 1e-03]",
)
@options_of("threads")
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop Psi4 after this time.  [default: never]")
@AS_JSON
@QUIET
def command(
    result: str,
    program: str,
    exact: bool,
    tolerance: float | None,
    threads: int | None,
    timeout: float | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Recompute RESULT (.h5) from scratch: SCF, then the program's own DF-MP2, with the stored basis sets.

    Both use the fitting sets of the run. --exact uses none: its differences are the fitting errors of this molecule.
    Exit code 8 when an energy differs by more than --tolerance, 6 when there is no Psi4 or it fails, 7 when the
    four-centre integrals do not fit into memory.
    """
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise InputError(f"--tolerance {tolerance}: expected a finite number above zero")
    if timeout is not None and not 0 < timeout < math.inf:
        raise InputError(f"--timeout {timeout}: expected seconds above zero")
    if timeout is not None and program == "pyscf":
        raise InputError("--timeout stops Psi4, but the comparison is with PySCF: add --with psi4, or leave it out")
    if exact and program != "pyscf":
        raise InputError(f"--exact is computed by PySCF only: leave out --with {program}")
    count = prepare_libraries(threads)
    from dfmp2.output import hdf5
    from dfmp2.validation.compare import FITTING_TOLERANCE, TOLERANCE, recompute, recompute_exact

    stored = hdf5.read(result)
    console = Console(quiet=quiet, log=None)
    allowed = tolerance or (FITTING_TOLERANCE if exact else TOLERANCE)
    if exact:
        check = recompute_exact(stored, allowed, count, console)
    else:
        check = recompute(stored, allowed, count, console, program=program, timeout=timeout)
    _show(stored, check, "exact" if exact else program, allowed, as_json=as_json)
    if not check.passed:
        about = _suspect(stored, check) if exact else _reason(stored, check, program)
        unit = "Eh per atom" if exact else "Eh"
        raise ComparisonFailed(
            f"{result}: {check.program} differs by {check.largest_difference:.1e} Eh, "
            f"more than --tolerance {allowed:.1e} {unit}{about}"
        )
    if not as_json:
        click.echo(_agreement(stored, check, allowed, exact=exact))


def _show(stored: MP2Result, check: Check, column: str, tolerance: float, *, as_json: bool) -> None:
    """The energies side by side, a table or one JSON object."""
    rows = {  # theirs, difference
        "scf_total_energy": (check.scf_total_energy, check.scf_difference),
        "mp2_same_spin_correlation_energy": (check.same_spin, check.same_spin_difference),
        "mp2_opposite_spin_correlation_energy": (check.opposite_spin, check.opposite_spin_difference),
        "mp2_correlation_energy": (check.same_spin + check.opposite_spin, check.correlation_difference),
    }
    energies = {name: {"stored": getattr(stored, name), column: x, "difference": d} for name, (x, d) in rows.items()}
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
    head = column if column == "exact" else check.program.split()[0]
    click.echo(f"{'energy / Eh':<38}{'stored':>20}{head:>20}{'difference':>12}")
    for name, found in energies.items():
        click.echo(f"{name:<38}{found['stored']:>20.10f}{found[column]:>20.10f}{found['difference']:>12.1e}")


def _agreement(stored: MP2Result, check: Check, tolerance: float, *, exact: bool) -> str:
    """The last line of a comparison that passed, with what it could not see."""
    if not exact:
        shared = "fitting sets" if stored.scf_fitting is not None else "MP2 fitting set"
        return f"agrees with {check.program} within {tolerance:.1e} Eh, with the same {shared} (--exact uses none)"
    return (
        f"fitting errors per atom: {_per_atom(stored, check.scf_difference)} Eh in E(SCF), "
        f"{_per_atom(stored, check.correlation_difference)} Eh in E(corr); within {tolerance:.1e} Eh "
        f"({check.program}, four-centre integrals, SCF from the stored orbitals)"
    )


def _suspect(stored: MP2Result, check: Check) -> str:
    """Which energy is off without fitting sets, and which set is to blame."""
    from dfmp2.mp2.result import describe

    if not abs(check.scf_difference) <= check.allowed:
        energy = f"; E(SCF) is off by {_per_atom(stored, check.scf_difference)} Eh per atom"
        if stored.scf_fitting is None:
            return f"{energy} although it was computed without a fitting set: report it, please"
        return (
            f"{energy}: suspect the SCF fitting set ({describe(stored.scf_fitting)}): choose another one with "
            "--scf-auxbasis, or --scf conventional"
        )
    return (
        f"; E(corr) is off by {_per_atom(stored, check.correlation_difference)} Eh per atom (same spin "
        f"{_per_atom(stored, check.same_spin_difference)}, opposite spin "
        f"{_per_atom(stored, check.opposite_spin_difference)}): suspect the MP2 fitting set "
        f"({describe(stored.mp2_fitting)}): choose another one with --auxbasis"
    )


def _reason(stored: MP2Result, check: Check, program: str) -> str:
    """What a difference of the SCF energies says."""
    from dfmp2.validation.compare import TOLERANCE

    if abs(check.scf_difference) <= max(check.allowed, TOLERANCE):
        return ""
    lower = "lower" if check.scf_difference > 0 else "higher"
    if program == "pyscf":
        return (
            f"; its SCF energy is {lower}, also from the stored orbitals, which were converged with --scf-conv-tol "
            f"{stored.options.scf_conv_tol:.1e}"
        )
    return f"; its SCF energy is {lower}, so the two may have found different SCF solutions"


def _per_atom(stored: MP2Result, energy: float) -> str:
    return f"{energy / max(1, stored.molecule.ghost.count(False)):+.1e}"
