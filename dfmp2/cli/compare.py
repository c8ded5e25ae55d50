"""`dfmp2 compare`: recompute a stored result with PySCF or Psi4 from scratch and print the differences."""

from __future__ import annotations

import json
import math

import click

from dfmp2 import threads as thread_settings
from dfmp2.cli.console import Console
from dfmp2.errors import ComparisonFailed, InputError
from dfmp2.resources import usable_cores

TOLERANCE = 1e-6  # Eh; two converged SCFs and two MP2 implementations agree to much less


@click.command("compare", short_help="Recompute a stored result with PySCF or Psi4 and print the differences.")
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
    "--tolerance", type=float, default=TOLERANCE, show_default=True, metavar="EH", help="Largest difference allowed."
)
@click.option("--threads", type=int, help="Threads of the program.  [default: usable cores]")
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop Psi4 after this time.  [default: never]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(
    result: str,
    program: str,
    tolerance: float,
    threads: int | None,
    timeout: float | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Recompute RESULT (.h5) from scratch: SCF, then the program's own DF-MP2, with the stored basis sets.

    Exit code 8 when an energy differs by more than --tolerance, 6 when there is no Psi4 or it fails.
    """
    if not tolerance > 0:
        raise InputError(f"--tolerance {tolerance}: expected a number above zero")
    if threads is not None and threads < 1:
        raise InputError(f"--threads {threads}: expected a whole number, 1 or more")
    if timeout is not None and not 0 < timeout < math.inf:
        raise InputError(f"--timeout {timeout}: expected seconds above zero")
    if timeout is not None and program == "pyscf":
        raise InputError("--timeout stops Psi4, but the comparison is with PySCF: add --with psi4, or leave it out")
    count = threads or usable_cores()
    thread_settings.set_environment(count)
    from dfmp2.io import hdf5
    from dfmp2.recompute import recompute

    stored = hdf5.read(result)
    check = recompute(stored, tolerance, count, Console(quiet=quiet, log=None), program=program, timeout=timeout)
    rows = (
        ("scf_total_energy", stored.scf_total_energy, check.scf_total_energy, check.scf_difference),
        (
            "mp2_same_spin_correlation_energy",
            stored.mp2_same_spin_correlation_energy,
            check.same_spin,
            check.same_spin_difference,
        ),
        (
            "mp2_opposite_spin_correlation_energy",
            stored.mp2_opposite_spin_correlation_energy,
            check.opposite_spin,
            check.opposite_spin_difference,
        ),
        (
            "mp2_correlation_energy",
            stored.mp2_correlation_energy,
            check.same_spin + check.opposite_spin,
            check.correlation_difference,
        ),
    )
    if as_json:
        table = {name: {"stored": ours, program: theirs, "difference": d} for name, ours, theirs, d in rows}
        payload = {"program": check.program, "tolerance": tolerance, "passed": check.passed, "energies": table}
        click.echo(json.dumps(payload, indent=2))
    else:
        click.echo(f"{'energy / Eh':<38}{'stored':>20}{check.program.split()[0]:>20}{'difference':>12}")
        for name, ours, theirs, difference in rows:
            click.echo(f"{name:<38}{ours:>20.10f}{theirs:>20.10f}{difference:>12.1e}")
    if not check.passed:
        message = (
            f"{result}: {check.program} differs by {check.largest_difference:.1e} Eh, "
            f"more than --tolerance {tolerance:.1e} Eh"
        )
        if abs(check.scf_difference) > max(tolerance, TOLERANCE):
            lower = "lower" if check.scf_difference > 0 else "higher"
            message += f"; its SCF energy is {lower}, so the two may have found different SCF solutions"
        raise ComparisonFailed(message)
    if not as_json:
        click.echo(f"agrees with {check.program} within {tolerance:.1e} Eh")
