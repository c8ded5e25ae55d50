"""What the runs of a species of a reaction found, and what to know of it: its energy and gas, and
whether it is the stationary point that it is taken for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dfmp2.arrays import Array
from dfmp2.mp2.result import MP2Result
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.studies.degeneracy import DEGENERATE, may_be_degenerate
from dfmp2.studies.frequencies import rotational_symmetry
from dfmp2.studies.ideal_gas import GasConditions, thermochemistry, too_cold
from dfmp2.studies.species import Species, SpeciesCourse
from dfmp2.studies.task import Results
from dfmp2.studies.thermochemistry import scale_factor
from dfmp2.studies.vibrations import (
    MDYNE_PER_ANGSTROM,
    NOISE,
    masses,
    no_stationary_point,
    vibrations,
)
from dfmp2.units import counted_text


@dataclass(frozen=True, slots=True, eq=False)
class SpeciesResult:
    """The results for a species.

    Attributes
    ----------
    values : thermochemical values by name; {} without Hessians
    wavenumbers : (n,) cm^-1, scaled, negative if imaginary
    imaginary : number of modes whose curvature is negative beyond the noise
    """

    species: Species
    run: str
    result: MP2Result
    values: Mapping[str, Dataset]
    hessian: Array | None
    wavenumbers: Array | None
    imaginary: int
    symmetry: int

    @property
    def weight(self) -> float:
        """Its coefficient, negative for a reactant."""
        return float(self.species.coefficient)


def find_result(
    course: SpeciesCourse, conditions: GasConditions, results: Results, *, gas: bool
) -> SpeciesResult:
    """The results of a species whose runs are done; with its `gas` under these conditions."""
    result = results[course.final]
    molecule = result.molecule
    second = course.hessian(results)
    wavenumbers = None
    imaginary = 0
    if second is not None:
        modes = vibrations(molecule, second, np.zeros((len(second), 3)))
        options = result.options
        factor, _ = scale_factor(
            conditions.scale, result.method, options.basis, options.frozen_core
        )
        wavenumbers = modes.wavenumber * factor
        imaginary = int((modes.force_constant / MDYNE_PER_ANGSTROM < -NOISE).sum())
    species = course.species
    stored = species.stored.hessian if species.stored is not None else None
    symmetry, _ = rotational_symmetry(molecule, masses(molecule), species.symmetry, stored)
    values: Mapping[str, Dataset] = {}
    if gas:
        values = thermochemistry(
            molecule,
            result.total_energy,
            np.zeros(0) if wavenumbers is None else wavenumbers,
            conditions.temperature,
            conditions.pressure,
            symmetry,
            treated=conditions.low_modes,
        )
    return SpeciesResult(
        species=species,
        run=course.final,
        result=result,
        values=values,
        hessian=second,
        wavenumbers=wavenumbers,
        imaginary=imaginary,
        symmetry=symmetry,
    )


def omitted_modes(one: SpeciesResult) -> list[str]:
    """The imaginary modes, none of which is in the gas, cm^-1."""
    if one.wavenumbers is None:
        return []
    return [f"{-x:.1f}i" for x in one.wavenumbers if x < 0]


def notes_on_modes(one: SpeciesResult) -> list[str]:
    """What a Hessian says of the kind of a stationary point, if that is worth a word."""
    label = one.species.label
    notes = []
    imaginary = omitted_modes(one)[: one.imaginary]
    uncertain = omitted_modes(one)[one.imaginary :]
    elsewhere = [f"{label} is at {text}" for text in no_stationary_point(one.result)]
    modes = f"{counted_text(one.imaginary, 'imaginary mode')}, {', '.join(imaginary)} cm^-1"
    if one.imaginary and elsewhere:
        notes.append(f"{label} has {modes}, left out of its thermochemistry")
    elif one.imaginary == 1:
        notes.append(
            f"{label} is a transition state: its imaginary mode, {imaginary[0]} cm^-1, is left "
            "out of its thermochemistry; its energies above the reactants are barriers"
        )
    elif one.imaginary:
        notes.append(
            f"{label} is NO MINIMUM and no transition state: {modes}, left out of its "
            "thermochemistry"
        )
    elif one.species.transition_state:
        notes.append(f"{label} is NO TRANSITION STATE: it has no imaginary mode")
    if uncertain:
        notes.append(
            f"{label} has {counted_text(len(uncertain), 'mode')} whose curvature is zero within the "
            f"noise, {', '.join(uncertain)} cm^-1, left out of its thermochemistry"
        )
    return notes + elsewhere


def notes_on_gas(found: Sequence[SpeciesResult], gas: GasConditions) -> list[str]:
    """The conditions of the gas, and species for which its equations hold less well."""
    notes = []
    for one in found:
        molecule = one.result.molecule
        cold = too_cold(molecule, masses(molecule), gas.temperatures)
        notes += [f"{one.species.label} is {text}" for text in cold]
    degenerate = [one.species.label for one in found if may_be_degenerate(one.result.molecule)]
    if degenerate:
        notes.append(f"{', '.join(degenerate)}: {DEGENERATE}")
    state = gas.standard_state or f"{gas.pressure:g} Pa"
    if state == "1M":
        state = "1 mol/l"
    notes.append(f"H, S and G of ideal gases at {gas.temperature:g} K, standard state {state}")
    if gas.scale != 1.0:
        notes.append(f"wavenumbers scaled ({gas.scale})")
    if gas.low_modes.note:
        notes.append(gas.low_modes.note)
    return notes
