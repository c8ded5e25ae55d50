"""`dfmp2 gradient`: energy, gradient and relaxed densities of one molecule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfmp2.cli.options import ALL, Display, Given, one_molecule, output_options
from dfmp2.cli.run import command_line, compute_result, introduction, logged, require_distinct_files
from dfmp2.errors import ResultFileError

if TYPE_CHECKING:
    from dfmp2.cli.console import Console
    from dfmp2.mp2.result import MP2Result


@click.command("gradient")
@one_molecule(*ALL, "check")
@output_options("Result file, with the gradient", "STEM.gradient.h5")
def gradient(given: Given, display: Display) -> None:
    """Compute energy, gradient, relaxed densities and dipole moment of MOLECULE (an xyz file or - for standard input).

    With --os-scale or --ss-scale the gradient is that of the scaled energy. --check also compares it with energies
    along one direction. Exit code 8 where the gradient's certificate fails.
    """
    chosen, read = given.chosen(), given.read()
    target = display.target(f"{read.molecule.name}.gradient.h5")
    require_distinct_files(given, target, display)

    def compute(console: Console, checkpoint: Any) -> MP2Result:
        from dfmp2.interop.python import gradient_options

        options: dict[str, Any] = {"listener": console, "command": command_line(), "checkpoint": checkpoint}
        return gradient_options(read.molecule, chosen, **options).result

    with logged(display) as console:
        question = read.molecule, chosen
        compute_result(target, display, console, question, introduction(read), compute, _with_gradient)


def _with_gradient(path: Path) -> MP2Result:
    """The stored result, whose hash is right.

    Raises
    ------
    ResultFileError : it is damaged, or an energy alone
    """
    from dfmp2.output.hdf5 import read_verified

    result = read_verified(path)
    if result.gradient is None:
        raise ResultFileError(f"{path} holds an energy without its gradient: name another file, or --overwrite it")
    return result
