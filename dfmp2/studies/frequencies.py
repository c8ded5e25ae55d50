"""Harmonic frequencies by central differences of gradients, with infrared intensities and
thermochemistry.

    H_ij = [g_i(x + d e_j) - g_i(x - d e_j)] / 2 d, made symmetric        d mu / d x_j likewise

One run at the geometry given, then two for each coordinate of each atom, which need each other not
at all: they start from the orbitals of the first and may be computed by other processes. What
follows from the Hessian is in `dfmp2.studies.vibrations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, NumericalError
from dfmp2.errors.messages import Command, Option, plain
from dfmp2.gradients.gradient import GradientResult, certified_gradient
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import MOST_RUNS, Column, Study
from dfmp2.studies.ideal_gas import ROOM, GasConditions, require_between, thermochemistry
from dfmp2.studies.runs import CarryOutKeywords, carry_out, without_densities
from dfmp2.studies.task import Failures, Numbers, Results, Step, Task
from dfmp2.studies.vibrations import (
    Vibrations,
    masses,
    on_a_line,
    symmetry_number,
    vibrations,
)

Array = NDArray[np.float64]

DISPLACEMENT = 0.005  # bohr
LEAST_DISPLACEMENT, MOST_DISPLACEMENT = 1e-4, 0.1
LARGEST_GRADIENT = 1e-3  # Eh/bohr, of an atom at a geometry that passes for a stationary point
SMALL_ENOUGH = 1e-11  # Eh; convergence of the SCF, whose errors are divided by the displacement
REFERENCE = "reference"


def harmonic_frequencies(
    molecule: Molecule,
    options: Options,
    gas: GasConditions = ROOM,
    *,
    displacement: float = DISPLACEMENT,
    allow_gradient: bool = False,
    **how: Unpack[CarryOutKeywords],
) -> Study:
    """Harmonic frequencies at the geometry of `molecule`.

    Parameters
    ----------
    options : the SCF converges to 1e-11 Eh at least
    gas : of one temperature and one pressure
    displacement : of each coordinate, bohr
    allow_gradient : go on at a geometry that is no stationary point
    how : as of `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study; its table has one row per vibration (imaginary ones negative), its arrays are `hessian`
    (3 natom, 3 natom), Eh/bohr^2, `normal_modes` (n, natom, 3) and `dipole_derivatives` (3 natom,
    3), e; its values the thermochemistry

    Raises
    ------
    InputError : one atom, ghosts, more runs than a study takes
    NumericalError : the gradient is not small
    Dfmp2Error : of a run
    """
    displacement = plain(displacement)
    require_between(
        "displacement", (displacement,), LEAST_DISPLACEMENT / 2, MOST_DISPLACEMENT, "bohr"
    )
    gas.require_single("the gas")
    _require_vibrations(molecule)
    options = replace(options, scf_conv_tol=min(options.scf_conv_tol, SMALL_ENOUGH))
    reference = Step(REFERENCE, "the geometry given", molecule, options)

    def then(results: Results) -> Iterator[Sequence[Step]]:
        if not allow_gradient:
            require_stationary(results[REFERENCE])
        yield displaced(reference, displacement)

    def evaluate(results: Results, _failures: Failures, complete: bool) -> Numbers:
        return _numbers(molecule, gas, displacement, results, complete=complete)

    what = f"frequencies of {molecule.name} ({molecule.formula})"
    task = Task(
        "frequencies",
        what,
        molecule,
        options,
        [reference],
        evaluate,
        then=then,
        compute=gradient_alone,
        free=("precision", "tolerance"),  # of the pair energies; amplitudes are in float64
    )
    return carry_out(task, **how)


def gradient_alone(*arguments: Any, **more: Any) -> MP2Result:
    """As `dfmp2.gradients.gradient.certified_gradient`, without the densities: of 6 natom + 1 runs they
    would fill memory and file."""
    return without_densities(certified_gradient(*arguments, **more))


def _require_vibrations(molecule: Molecule) -> None:
    if molecule.natom < 2:
        raise InputError(
            f"{molecule.formula} is one atom and has no vibrations; ",
            Command("run"),
            " computes its energy",
        )
    if any(molecule.ghost):
        raise InputError("ghost atoms have no mass, so no vibrations: leave them out")
    if 6 * molecule.natom >= MOST_RUNS:
        raise InputError(
            f"{molecule.natom} atoms take {6 * molecule.natom + 1} gradients, and a study holds at "
            f"most {MOST_RUNS}: compute a smaller molecule, of up to {(MOST_RUNS - 1) // 6} atoms"
        )
    masses(molecule)


def require_stationary(result: MP2Result) -> None:
    """Refuse a geometry that is neither minimum nor saddle point.

    Raises
    ------
    NumericalError : an atom has a large gradient
    """
    largest = largest_gradient(result)
    if not largest <= LARGEST_GRADIENT:
        raise NumericalError(
            (
                f"the gradient of an atom is {largest:.1e} Eh/bohr, more than "
                f"{LARGEST_GRADIENT:g}: frequencies are those of a stationary point: give the "
                "geometry that "
            ),
            Command("optimize"),
            " has found, or ",
            Option("allow_gradient", True),
        )


def largest_gradient(result: MP2Result) -> float:
    """Length of the largest gradient of an atom, Eh/bohr."""
    return float(np.linalg.norm(GradientResult(result).gradient, axis=1).max())


def no_stationary_point(result: MP2Result) -> list[str]:
    """A sentence on a geometry that is no stationary point; none where it may be one."""
    if result.gradient is None or largest_gradient(result) <= LARGEST_GRADIENT:
        return []
    return [
        f"NO STATIONARY POINT: the gradient of an atom is {largest_gradient(result):.1e} Eh/bohr"
    ]


# --- differences ----------------------------------------------------------------------------------


def displaced(reference: Step, displacement: float, prefix: str = "") -> list[Step]:
    """Two steps for every coordinate of every atom, that start from the orbitals of the reference.

    Parameters
    ----------
    reference : Step
        At the geometry itself.
    displacement : float
        Bohr.
    prefix : str
        Of the names of the steps, where a study has several Hessians.
    """
    molecule, steps = reference.molecule, []
    for atom in range(molecule.natom):
        for axis, letter in enumerate("xyz"):
            for sign, word in ((1, "plus"), (-1, "minus")):
                moved = np.array(molecule.coordinates)
                moved[atom, axis] += sign * displacement
                steps.append(
                    Step(
                        name=f"{prefix}{word}-{atom + 1:03d}-{letter}",
                        who=f"{molecule.symbols[atom]} {atom + 1}, {letter} {'+-'[sign < 0]} "
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
    """(3 natom, 3 natom) float64, Eh/bohr^2, symmetric, from the results of the steps of
    `displaced`."""
    gradients = {
        name: GradientResult(run).gradient.ravel() for name, run in _moved(results, prefix)
    }
    rows = _differences(molecule, gradients, displacement)
    return (rows + rows.T) / 2


def _moved(results: Mapping[str, MP2Result], prefix: str = "") -> list[tuple[str, MP2Result]]:
    """The results of the steps of `displaced`, with their names without the prefix."""
    words = (f"{prefix}plus-", f"{prefix}minus-")
    return [
        (name.removeprefix(prefix), run) for name, run in results.items() if name.startswith(words)
    ]


def _differences(molecule: Molecule, values: Mapping[str, Array], displacement: float) -> Array:
    """(3 natom, n) central differences of arrays (n,)."""
    places = [f"{atom + 1:03d}-{letter}" for atom in range(molecule.natom) for letter in "xyz"]
    return np.stack(
        [(values[f"plus-{at}"] - values[f"minus-{at}"]) / (2 * displacement) for at in places]
    )


# --- numbers --------------------------------------------------------------------------------------


def _numbers(
    molecule: Molecule,
    gas: GasConditions,
    displacement: float,
    results: Results,
    *,
    complete: bool,
) -> Numbers:
    settings: dict[str, object] = {
        "temperature": gas.temperature,
        "pressure": gas.pressure,
        "displacement": displacement,
        "symbols": list(molecule.symbols),
    }
    notes = [
        f"central differences of gradients, displacement {displacement:g} bohr; "
        "harmonic, not scaled",
        "masses of the most abundant isotopes: "
        + ", ".join(f"{s} {_mass(molecule, s)}" for s in molecule.elements),
    ]
    if not complete:
        return Numbers(settings, notes)
    moved = dict(_moved(results))
    second = hessian(molecule, moved, displacement)
    dipoles = _differences(
        molecule,
        {name: GradientResult(run).properties.relaxed_dipole for name, run in moved.items()},
        displacement,
    )
    modes = vibrations(molecule, second, dipoles)
    first = results[REFERENCE]
    settings["rigid_motions_removed"] = modes.removed
    notes += no_stationary_point(first)
    notes += _imaginary(molecule, modes)
    values = {"total_energy": Dataset(first.total_energy, "hartree", "at the geometry given")}
    if molecule.point_charges is None:
        symmetry = gas.symmetry or symmetry_number(molecule)
        settings["symmetry_number"] = symmetry
        chosen = "counted"
        if gas.symmetry:
            chosen = "given"
        notes.append(f"{_shape(molecule)}, rotational symmetry number {symmetry} ({chosen})")
        values |= thermochemistry(
            molecule,
            first.total_energy,
            modes.wavenumber,
            gas.temperature,
            gas.pressure,
            symmetry,
        )
        if modes.wavenumber[0] < 0:
            notes.append("imaginary modes are no part of the thermochemistry")
    else:
        notes.append(
            "among point charges the molecule cannot move freely: all its motions are listed, "
            "there is no gas"
        )
    numbers = tuple(float(k + 1) for k in range(len(modes.wavenumber)))
    table = {"mode": Column(numbers, "", "number of the vibration")} | {
        field.name: Column(
            tuple(getattr(modes, field.name).tolist()),
            field.metadata["units"],
            field.metadata["description"],
        )
        for field in fields(modes)
        if field.metadata
    }
    arrays = {
        "hessian": Dataset(
            second, "hartree/bohr^2", "second derivatives of the energy (3 natom, 3 natom)"
        ),
        "normal_modes": Dataset(
            modes.displacements, "", "normalised displacements of the atoms (n, natom, 3)"
        ),
        "dipole_derivatives": Dataset(
            dipoles, "elementary charge", "of the relaxed dipole moment (3 natom, 3)"
        ),
    }
    return Numbers(settings, notes, values, table, arrays)


def _mass(molecule: Molecule, symbol: str) -> str:
    return f"{masses(molecule)[molecule.symbols.index(symbol)]:.9g}"


def _shape(molecule: Molecule) -> str:
    if on_a_line(molecule):
        return "linear molecule"
    return "non-linear molecule"


def _imaginary(molecule: Molecule, modes: Vibrations) -> list[str]:
    """A line for every imaginary mode: its wavenumber, and the atoms that move most."""
    lines = []
    for number, (wavenumber, moves) in enumerate(
        zip(modes.wavenumber, modes.displacements, strict=True), start=1
    ):
        if wavenumber < 0:
            lengths = np.linalg.norm(moves, axis=1)
            order = [
                int(atom)
                for atom in np.argsort(-lengths, kind="stable")
                if lengths[atom] > lengths.max() / 2
            ]
            named = ", ".join(f"{molecule.symbols[atom]}{atom + 1}" for atom in order[:4])
            lines.append(
                f"IMAGINARY mode {number}: {abs(wavenumber):.1f}i cm^-1, mostly of {named}"
            )
    return lines
