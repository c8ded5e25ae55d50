"""The Hessian of a geometry by central differences of gradients.

    H_ij = [g_i(x + d e_j) - g_i(x - d e_j)] / 2 d, made symmetric

Two runs for each coordinate of each atom start from the orbitals of the run at the geometry itself;
they are independent of each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import Command, InputError, Option
from dfmp2.gradients.result import GradientResult
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.run_names import AXES, displaced_runs
from dfmp2.output.study import MOST_RUNS
from dfmp2.studies.task import Step, expanded
from dfmp2.units import counted_text

DISPLACEMENT = 0.005  # bohr
SMALL_ENOUGH = 1e-11  # Eh; SCF convergence, because errors are divided by the displacement

Said = tuple[str | Command | Option, ...]  # parts of a message
# advice to those whose first Hessian leaves no room for a search
BY_FREQUENCIES: Said = (
    ", or give the Hessian of ",
    Command("frequencies"),
    " of this geometry as ",
    Option("start_hessian"),
)


def for_differences(options: Options) -> Options:
    """The options with an SCF that is tight enough for differences of gradients."""
    return replace(options, scf_conv_tol=min(options.scf_conv_tol, SMALL_ENOUGH))


def displaced(reference: Step, displacement: float, prefix: str = "") -> list[Step]:
    """Two steps for every coordinate of every atom, starting from the orbitals of the reference.

    Parameters
    ----------
    reference : Step
        The step at the undisplaced geometry.
    displacement : float
        Bohr.
    prefix : str
        Prefix of the step names, if a study has several Hessians.
    """
    molecule = reference.molecule
    steps = []
    for name, atom, axis, sign in displaced_runs(molecule.natom, prefix):
        moved = np.array(molecule.coordinates)
        moved[atom, axis] += sign * displacement
        steps.append(
            Step(
                name=name,
                who=f"{molecule.symbols[atom]} {atom + 1}, {AXES[axis]} {'+-'[sign < 0]} "
                f"{displacement:g} bohr",
                molecule=replace(molecule, coordinates=moved),
                options=reference.options,
                start=reference.name,
                passing=True,
            )
        )
    return steps


def hessian(
    molecule: Molecule, results: Mapping[str, MP2Result], displacement: float, prefix: str = ""
) -> Array:
    """The symmetric Hessian, (3 natom, 3 natom) float64, Eh/bohr^2, from the results of the steps
    of `displaced`."""
    runs = [results[one.name] for one in displaced_runs(molecule.natom, prefix)]
    gradients = [GradientResult(run).gradient.ravel() for run in runs]
    rows = central_differences(gradients, displacement)
    return (rows + rows.T) / 2


def central_differences(values: Sequence[Array], displacement: float) -> Array:
    """Central differences (3 natom, n) of arrays (n,) in the order of `displaced_runs`."""
    pairs = zip(values[::2], values[1::2], strict=True)
    return np.stack([(plus - minus) / (2 * displacement) for plus, minus in pairs])


def require_room(
    first: Step, *, hessians: int, geometries: int, about: Said, steps: str, instead: Said
) -> None:
    """Raise if Hessians and other geometries of a molecule may take more runs than a study holds.

    Parameters
    ----------
    first : Step
        One of its geometries.
    hessians, geometries : int
        How many Hessians are computed, and the most of other geometries.
    about, steps, instead : Said and str
        In the message: what needs the Hessians, the steps allowed, and what to do other than allow
        fewer.

    Raises
    ------
    InputError : what the Hessians take
    """
    natom = first.molecule.natom
    runs_of_step = len(expanded(first))
    gradients = hessians * 6 * natom * runs_of_step
    if gradients + runs_of_step * geometries > MOST_RUNS:
        raise InputError(
            *about,
            f"{counted_text(hessians, 'Hessian')} of {natom} atoms: {gradients} gradients, and "
            f"with {steps} that is more than the {MOST_RUNS} runs of a study: allow fewer with ",
            Option("max_steps"),
            *instead,
        )
