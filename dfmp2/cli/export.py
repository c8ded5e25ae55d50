"""`dfmp2 export`: a stored result in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dfmp2.cli import signals

if TYPE_CHECKING:
    from dfmp2.result import MP2Result

NAMES = ("molden", "trexio", "qcschema", "xyz")  # of `dfmp2.export.FORMATS`, which --help need not import


@click.command("export", short_help="Write a stored result for another program.")
@click.argument("result")
@click.option("--to", type=click.Choice(NAMES), required=True, help="Format of the new file.")
@click.option("-o", "--output", metavar="FILE", help="File to write.  [default: STEM with the format's ending, here]")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--run", metavar="NAME", help="One run of a study (interaction, cbs, scan).")
@click.option("--schema-version", type=click.Choice(["1", "2"]), help="Of --to qcschema.  [default: 1]")
def command(
    result: str, to: str, output: str | None, overwrite: bool, run: str | None, schema_version: str | None
) -> None:
    """Write the stored result RESULT (.h5) in the format of another program.

    molden: orbitals and basis up to g functions. trexio: the wave function with its core potentials. qcschema: a
    QCSchema AtomicResult. xyz: geometry and energies.
    """
    from dfmp2.errors import InputError
    from dfmp2.export import FORMATS, export
    from dfmp2.export.qcschema import qcschema
    from dfmp2.io.files import require_writable, write_atomically

    if schema_version is not None and to != "qcschema":
        raise InputError(f"--schema-version belongs to --to qcschema, not to --to {to}: leave it out")
    stem = Path(result).name.removesuffix(".h5").removesuffix(".dfmp2") + ("" if run is None else f".{Path(run).name}")
    target = Path(f"{stem}{FORMATS[to].ending}" if output is None else output)
    stored = _read(result, run)
    if target.exists() and target.samefile(result):
        raise InputError(f"--output {target} is the result itself: name another file")
    content = export(stored, to) if schema_version is None else qcschema(stored, int(schema_version))
    require_writable(target, overwrite=overwrite)
    signals.check()
    signals.settle()
    write_atomically(target, content, overwrite=overwrite)
    click.echo(f"dfmp2 export: {to} -> {target} ({FORMATS[to].holds})")


def _read(result: str, run: str | None) -> MP2Result:
    """A stored result, or one of those of a study."""
    from dfmp2.errors import InputError
    from dfmp2.io import hdf5
    from dfmp2.io.study import read_study

    if run is None:
        return hdf5.read(result)
    runs = read_study(result).runs
    if run not in runs:
        raise InputError(f"--run {run}: {result} holds {', '.join(runs) or 'no run'}: name one of these")
    return runs[run]
