"""`dfmp2 run`: from an xyz file to a checked DF-MP2 energy in an HDF5 file."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from dfmp2 import threads as thread_settings
from dfmp2.cli.console import Console, open_log
from dfmp2.errors import ComparisonFailed
from dfmp2.resources import usable_cores

BACKENDS = ["auto", "cpu", "torch", "cuda", "nki", "nki-xla", "nki-simulator", "nki-interpreter"]


@click.command("run", short_help="Compute the DF-MP2 energy of a molecule.")
@click.argument("molecule")
@click.option("--basis", required=True, metavar="NAME", help="Orbital basis, e.g. cc-pvdz.")
@click.option("--charge", type=int, help="Total charge.  [default: comment line of the file, else 0]")
@click.option("--multiplicity", type=int, help="2S+1.  [default: comment line of the file, else 1]")
@click.option(
    "--units", type=click.Choice(["angstrom", "bohr"]), default="angstrom", show_default=True, help="Of the file."
)
@click.option(
    "--reference",
    type=click.Choice(["auto", "rhf", "uhf"]),
    default="auto",
    show_default=True,
    help="auto: RHF for singlets, UHF otherwise.",
)
@click.option(
    "--scf",
    type=click.Choice(["df", "conventional"]),
    default="df",
    show_default=True,
    help="Density-fitted or four-centre integrals in the SCF.",
)
@click.option("--scf-auxbasis", metavar="NAME", help="Coulomb-exchange fitting set.  [default: partner of --basis]")
@click.option(
    "--scf-conv-tol",
    type=float,
    default=1e-10,
    show_default=True,
    metavar="EH",
    help="SCF energy change; the gradient must fall below 0.1 sqrt of it.",
)
@click.option("--scf-max-cycles", type=int, default=100, show_default=True, help="Limit on all SCF iterations.")
@click.option("--scf-from", metavar="FILE", help="Start orbitals: PySCF chkfile or earlier result.")
@click.option(
    "--stability",
    type=click.Choice(["auto", "full", "off"]),
    default="auto",
    show_default=True,
    help="Check that the SCF solution is a minimum (auto: frontier orbitals).",
)
@click.option(
    "--auxbasis", metavar="NAME", help="MP2 fitting set, or auto (even-tempered).  [default: partner of --basis]"
)
@click.option(
    "--frozen-core",
    default="none",
    show_default=True,
    metavar="none|auto|psi4|orca|pyscf|N",
    help="Orbitals left uncorrelated.",
)
@click.option(
    "--frozen-virtual", type=int, default=0, show_default=True, metavar="N", help="Highest virtuals left out."
)
@click.option("--os-scale", type=float, help="Opposite-spin factor of a custom scaled energy.")
@click.option("--ss-scale", type=float, help="Same-spin factor of a custom scaled energy.")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True, help="See dfmp2 backends.")
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp64", "mixed"]),
    default="auto",
    show_default=True,
    help="Of the pair energies.",
)
@click.option(
    "--tolerance",
    type=float,
    default=1e-7,
    show_default=True,
    metavar="EH",
    help="Largest estimated precision error accepted.",
)
@click.option("--memory", metavar="SIZE", help="Peak memory of the process, e.g. 8GB or 8GiB.  [default: what is free]")
@click.option("--threads", type=int, help="Threads of this process.  [default: usable cores]")
@click.option("--allow-small-gap", is_flag=True, help="Go on with a HOMO-LUMO gap below 0.02 Eh.")
@click.option("--output", metavar="FILE.h5", help="Result file.  [default: STEM.dfmp2.h5 here]")
@click.option("--overwrite", is_flag=True, help="Replace an existing result file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the report.")
@click.option("--quiet", is_flag=True, help="Print only the last line, and warnings.")
@click.option("--log", metavar="FILE", help="Append progress and report to a file.")
@click.option("--check", is_flag=True, help="Also run PySCF's own DF-MP2 on the same orbitals.")
def command(
    molecule: str,
    charge: int | None,
    multiplicity: int | None,
    units: str,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    log: str | None,
    **options: Any,
) -> None:
    """Compute the DF-MP2 energy of MOLECULE, an xyz file or - for standard input.

    The report goes to stdout, progress and warnings to stderr, everything to an HDF5 file.
    """
    from dfmp2.options import Options

    chosen = Options(**options)
    # Before NumPy and PySCF start their thread pools.
    thread_settings.set_environment(chosen.threads or usable_cores())
    from dfmp2.io.xyz import read_xyz

    read = read_xyz(molecule, units=units, charge=charge, multiplicity=multiplicity)
    target = Path(output or f"{read.molecule.name}.dfmp2.h5")
    with contextlib.ExitStack() as stack:
        handle = open_log(log)
        console = Console(quiet=quiet, log=stack.enter_context(handle) if handle else None)
        _compute(read, chosen, target, console, overwrite=overwrite, as_json=as_json, quiet=quiet, log=handle)


def _compute(
    read: Any, options: Any, target: Path, console: Console, *, overwrite: bool, as_json: bool, quiet: bool, log: Any
) -> None:
    from dfmp2.io.files import require_writable

    require_writable(target, overwrite=overwrite, expected_bytes=10**6)
    molecule = read.molecule
    console.note(
        f"{molecule.name}: {molecule.formula}, charge {molecule.charge} ({read.charge_from}), "
        f"multiplicity {molecule.multiplicity} ({read.multiplicity_from})"
    )
    from dfmp2.api import run_options
    from dfmp2.io import hdf5
    from dfmp2.io.json import to_json
    from dfmp2.io.report import last_line, report

    result = run_options(molecule, options, listener=console, command=shlex.join(["dfmp2", *sys.argv[1:]]))
    hdf5.write(result, target, overwrite=overwrite)
    text, ending = report(result), last_line(result, str(target))
    if log is not None:
        print(text + ending, file=log)
    if as_json:
        click.echo(to_json(result), nl=False)
    else:
        click.echo(ending if quiet else text + ending)
    if result.check is not None and not result.check.passed:
        raise ComparisonFailed(
            f"PySCF's DF-MP2 differs by {result.check.largest_difference:.1e} Eh, more than the allowed "
            f"{result.check.allowed:.1e} Eh; the result was written to {target}"
        )
