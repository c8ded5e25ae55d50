"""`dfmp2 derive`: other scalings and a larger frozen core from stored pair energies, without a new run."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from dfmp2.cli import signals
from dfmp2.cli.console import Console
from dfmp2.errors import InputError


@click.command("derive", short_help="Energies with a larger frozen core or other scaling, without a new run.")
@click.argument("result")
@click.option(
    "--frozen-core",
    metavar="none|auto|psi4|orca|pyscf|N",
    help="Orbitals left uncorrelated; at least those that were.  [default: as stored]",
)
@click.option("--os-scale", type=float, help="Opposite-spin factor of a custom scaled energy.")
@click.option("--ss-scale", type=float, help="Same-spin factor of a custom scaled energy.")
@click.option("--output", metavar="FILE.h5", help="Store the derived result.  [default: print it only]")
@click.option("--overwrite", is_flag=True, help="Replace an existing output file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the report.")
@click.option("--quiet", is_flag=True, help="Print only the last line, and warnings.")
# Known, so that a change of them is refused with its reason.
@click.option("--basis", hidden=True)
@click.option("--reference", hidden=True)
@click.option("--relativity", hidden=True)
@click.option("--scf", hidden=True)
@click.option("--scf-auxbasis", hidden=True)
@click.option("--auxbasis", hidden=True)
@click.option("--frozen-virtual", type=int, hidden=True)
@click.option("--precision", hidden=True)
def command(result: str, output: str | None, overwrite: bool, as_json: bool, quiet: bool, **changes: Any) -> None:
    """Energies that follow from the stored pair energies of RESULT (.h5): exact, in no time.

    The report always holds MP2, SCS-MP2 and SOS-MP2; --os-scale and --ss-scale add a scaling of your own.
    Another basis, fitting set, reference, precision or virtual space, and a smaller frozen core, need a new run.
    """
    from dfmp2.derivation import derive
    from dfmp2.io import hdf5
    from dfmp2.io.files import require_writable
    from dfmp2.io.json import to_json
    from dfmp2.io.report import last_line, report

    if overwrite and output is None:
        raise InputError("--overwrite replaces the file of --output, which was not given: add it, or leave it out")
    content = hdf5.verify(result)
    stored = hdf5.read(result)
    if output is not None:
        _require_another(result, output)
    derived = derive(
        stored,
        origin=f"{Path(result).name}, content {content[:16]}",
        command=f"{shlex.join(['dfmp2', *sys.argv[1:]])} (content SHA-256 {content})",
        listener=Console(quiet=quiet, log=None),
        **changes,
    )
    if output is not None:
        require_writable(Path(output), overwrite=overwrite, expected_bytes=2 * Path(result).stat().st_size)
        signals.check()
        signals.settle()
        hdf5.write(derived, output, overwrite=overwrite)
    ending = last_line(derived, output or "(not stored; --output FILE.h5 does)")
    if as_json:
        click.echo(to_json(derived), nl=False)
    else:
        click.echo(ending if quiet else report(derived) + ending)


def _require_another(result: str, output: str) -> None:
    if os.path.exists(output) and os.path.samefile(result, output):
        raise InputError(f"--output {output} is the result it is derived from: name another file")
