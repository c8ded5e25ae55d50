"""`dfmp2 compare`: a result recomputed by another program."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import click

from dfmp2.cli.console import Console, conclude
from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import (
    AS_JSON,
    QUIET,
    options_of,
    prepare_libraries,
)
from dfmp2.errors import ComparisonFailed, InputError

if TYPE_CHECKING:
    from dfmp2.mp2.result import MP2Result
    from dfmp2.validation.compare import Comparison


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
        conclude(_agreement(stored, check, allowed, exact=exact))


def _show(
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
