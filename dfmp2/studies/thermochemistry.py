"""Thermochemistry of a stored Hessian: other temperatures, pressures, isotopes, scaled wavenumbers,
entropies of low modes. No gradient is computed.

The Hessian depends on no mass. Wavenumbers and the moments of inertia follow from it and the masses
asked for (`dfmp2.studies.vibrations`), the gas from both (`dfmp2.studies.ideal_gas`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from dfmp2.host.provenance import version
from dfmp2.molecule.isotopes import isotope_masses
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.studies.frequencies import REFERENCE, no_stationary_point
from dfmp2.studies.ideal_gas import JOULE_PER_MOL, MOTIONS, GasConditions, thermochemistry
from dfmp2.studies.scale_factors import scale_factor
from dfmp2.studies.stored_hessian import StoredHessian
from dfmp2.studies.vibrations import Vibrations, on_a_line, symmetry_number

Array = NDArray[np.float64]


def make_thermochemistry(
    stored: StoredHessian, conditions: GasConditions, command: str = "dfmp2.studies"
) -> Study:
    """The gas of a stored Hessian.

    Returns
    -------
    Study; its values are those of the first temperature and pressure, named as of `frequencies`,
    its table has a row for each pair of them, its arrays are `wavenumber`, `scaled_wavenumber`,
    `ir_intensity`, `reduced_mass`, `force_constant`, `normal_modes`, `masses` and what was stored

    Raises
    ------
    InputError : isotopes, or a scale factor that there is not; a Hessian that makes no gas
    """
    stored.require_gas()
    molecule = stored.molecule
    result = stored.result
    weights, notes = isotope_masses(molecule, conditions.isotopes)
    modes = stored.vibrations(weights)
    options = result.options
    factor, source = scale_factor(
        conditions.scale, result.method, options.basis, options.frozen_core
    )
    scaled = modes.wavenumber * factor
    symmetry, counted = conditions.symmetry, "given"
    if symmetry is None:
        symmetry, counted = symmetry_number(molecule, weights), "counted"
    gases = [
        thermochemistry(
            molecule,
            result.total_energy,
            scaled,
            temperature,
            pressure,
            symmetry,
            treated=conditions.low_modes,
            weights=weights,
        )
        for temperature in conditions.temperatures
        for pressure in conditions.pressures
    ]
    shape = "non-linear"
    if on_a_line(molecule):
        shape = "linear"
    notes.append(f"{shape} molecule, rotational symmetry number {symmetry} ({counted})")
    if factor == 1.0:
        notes.append("wavenumbers are harmonic and not scaled")
    else:
        notes.append(f"wavenumbers are harmonic, scaled by {factor:g} ({source})")
    if conditions.low_modes.note:
        notes.append(conditions.low_modes.note)
    notes += left_out_modes(modes)
    notes += no_stationary_point(result)
    values = {"total_energy": Dataset(result.total_energy, "hartree", "at the stored geometry")}
    return Study(
        kind="thermochemistry",
        title=f"thermochemistry of {molecule.name} ({molecule.formula}), {result.level}",
        settings={
            "name": molecule.name,
            "basis": result.options.basis,
            "symbols": list(molecule.symbols),
            "symmetry_number": symmetry,
            "scale_factor": factor,
            "scale_factor_source": source,
            "quasi_harmonic": conditions.low_modes.treatment,
            "cutoff": conditions.low_modes.cutoff,
            "isotopes": list(conditions.isotopes),
        },
        notes=tuple(notes),
        values=values | gases[0],
        table=_table(gases, result.total_energy),
        runs={REFERENCE: result},
        complete=True,
        version=version(),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        arrays=_arrays(stored, modes, scaled, weights),
    )


def left_out_modes(modes: Vibrations) -> list[str]:
    """A sentence on the imaginary modes, which are no part of the gas; none without any."""
    imaginary = [f"{-value:.1f}i" for value in modes.wavenumber if value < 0]
    if not imaginary:
        return []
    return [f"IMAGINARY modes are no part of the thermochemistry: {', '.join(imaginary)} cm^-1"]


def _table(gases: Sequence[dict[str, Dataset]], energy: float) -> dict[str, Column]:
    """A row for each gas: differences from the total energy, entropy and its shares."""

    def column(name: str) -> list[float]:
        return [float(gas[name].value) for gas in gases]

    def above(name: str) -> list[float]:
        return [(value - energy) * JOULE_PER_MOL / 1000 for value in column(name)]

    capacity = "at constant pressure"
    table = {
        "temperature": Column(column("temperature"), "K", "of the gas"),
        "pressure": Column(column("pressure"), "Pa", "of the gas"),
        "gibbs_energy": Column(column("gibbs_energy"), "hartree", "Gibbs energy"),
        "enthalpy_correction": Column(above("enthalpy"), "kJ/mol", "H less total energy"),
        "gibbs_energy_correction": Column(above("gibbs_energy"), "kJ/mol", "G less total energy"),
        "entropy": Column(column("entropy"), "J/(mol K)", "of the gas"),
        "heat_capacity": Column(column("heat_capacity"), "J/(mol K)", capacity),
    }
    for motion in MOTIONS:
        name = f"entropy_{motion}"
        table[name] = Column(column(name), "J/(mol K)", f"share of {motion}")
    return table


def _arrays(
    stored: StoredHessian, modes: Vibrations, scaled: Array, weights: Array
) -> dict[str, Dataset]:
    arrays = {
        field.name: Dataset(
            getattr(modes, field.name), field.metadata["units"], field.metadata["description"]
        )
        for field in fields(modes)
        if field.metadata
    }
    if stored.dipole_derivatives is None:
        del arrays["ir_intensity"]
    else:
        about = "of the relaxed dipole moment (3 natom, 3)"
        arrays["dipole_derivatives"] = Dataset(
            stored.dipole_derivatives, "elementary charge", about
        )
    about = "second derivatives of the energy (3 natom, 3 natom)"
    return arrays | {
        "scaled_wavenumber": Dataset(scaled, "cm^-1", "harmonic, times the scale factor"),
        "masses": Dataset(weights, "u", "of the atoms (natom)"),
        "normal_modes": Dataset(
            modes.displacements, "", "normalised displacements of the atoms (n, natom, 3)"
        ),
        "hessian": Dataset(stored.hessian, "hartree/bohr^2", about),
    }
