"""`dfmp2 compare`: recompute a stored result with PySCF from scratch and print the differences."""

from __future__ import annotations

import json

import click

from dfmp2 import threads as thread_settings
from dfmp2.cli.console import Console
from dfmp2.errors import ComparisonFailed, InputError
from dfmp2.resources import usable_cores

TOLERANCE = 1e-6  # Eh; two converged SCFs and two MP2 implementations agree to much less


@click.command("compare", short_help="Recompute a stored result with PySCF and print the differences.")
@click.argument("result")
@click.option(
    "--tolerance", type=float, default=TOLERANCE, show_default=True, metavar="EH", help="Largest difference allowed."
)
@click.option("--threads", type=int, help="Threads of this process.  [default: usable cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(result: str, tolerance: float, threads: int | None, as_json: bool, quiet: bool) -> None:
    """Recompute RESULT (.h5) with PySCF: SCF from scratch, then PySCF's own DF-MP2."""
    if not tolerance > 0:
        raise InputError(f"--tolerance {tolerance}: expected a number above zero")
    if threads is not None and threads < 1:
        raise InputError(f"--threads {threads}: expected a whole number, 1 or more")
    count = threads or usable_cores()
    thread_settings.set_environment(count)
    from dfmp2.io import hdf5
    from dfmp2.recompute import recompute

    stored = hdf5.read(result)
    check = recompute(stored, tolerance, count, Console(quiet=quiet, log=None))
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
        table = {name: {"stored": ours, "pyscf": theirs, "difference": d} for name, ours, theirs, d in rows}
        payload = {"program": check.program, "tolerance": tolerance, "passed": check.passed, "energies": table}
        click.echo(json.dumps(payload, indent=2))
    else:
        click.echo(f"{'energy / Eh':<38}{'stored':>20}{check.program.split()[0]:>20}{'difference':>12}")
        for name, ours, theirs, difference in rows:
            click.echo(f"{name:<38}{ours:>20.10f}{theirs:>20.10f}{difference:>12.1e}")
    if not check.passed:
        raise ComparisonFailed(
            f"{result}: {check.program} differs by {check.largest_difference:.1e} Eh, "
            f"more than --tolerance {tolerance:.1e} Eh"
        )
    if not as_json:
        click.echo(f"agrees with {check.program} within {tolerance:.1e} Eh")
