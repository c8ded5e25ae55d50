"""Thermochemistry from a stored Hessian: other temperatures, pressures, isotopes, scaled
wavenumbers, entropies of low modes. No gradient is computed.

The Hessian does not depend on masses. Wavenumbers and moments of inertia follow from it and the
requested masses (`dfmp2.studies.vibrations`), and the gas from both (`dfmp2.studies.ideal_gas`).

Published scale factors of harmonic wavenumbers are listed by method and basis set.

They apply to zero-point energies, unlike those for fundamentals (0.95 and less), because
thermochemistry needs correct zero-point and thermal energies. They were fitted to all-electron
Hartree-Fock or frozen-core MP2 with four-centre integrals, which differ from density-fitted ones by
less than the last digit.

Source: the database of the Truhlar group, version 5, https://comp.chem.umn.edu/freqscale; Alecu,
Zheng, Zhao, Truhlar, J. Chem. Theory Comput. 6, 2872 (2010).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime

from dfmp2.arrays import Array
from dfmp2.errors import InputError, Option
from dfmp2.errors.messages import plain
from dfmp2.host.provenance import version
from dfmp2.molecule.elements import isotope_masses
from dfmp2.mp2.composite import CompositeResult
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.studies.degeneracy import DEGENERATE, may_be_degenerate
from dfmp2.studies.frequencies import (
    REFERENCE,
    StoredHessian,
    rotational_symmetry,
)
from dfmp2.studies.ideal_gas import (
    JOULE_PER_MOL,
    MOTIONS,
    GasConditions,
    thermochemistry,
    too_cold,
)
from dfmp2.studies.vibrations import Vibrations, no_stationary_point, on_a_line


def make_thermochemistry(
    stored: StoredHessian, conditions: GasConditions, command: str = "dfmp2.studies"
) -> Study:
    """The thermochemistry of a stored Hessian.

    Returns
    -------
    Study whose values are those at the first temperature and pressure, named as in `frequencies`,
    with a table row for each pair of them, and the arrays `wavenumber`, `scaled_wavenumber`,
    `ir_intensity`, `reduced_mass`, `force_constant`, `normal_modes`, `masses` and the stored ones

    Raises
    ------
    InputError : unknown isotopes or scale factor, or a Hessian from which no gas can be derived
    """
    stored.require_gas()
    molecule = stored.molecule
    result = stored.result
    weights, notes = isotope_masses(molecule, conditions.isotopes)
    modes = stored.vibrations(weights)
    options = result.options
    basis = options.basis
    if isinstance(result, CompositeResult):
        basis = result.orbital_basis.name
    factor, source = scale_factor(conditions.scale, result.method, basis, options.frozen_core)
    scaled = modes.wavenumber * factor
    symmetry, counted = rotational_symmetry(molecule, weights, conditions.symmetry, stored)
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
    shape = "linear" if on_a_line(molecule) else "non-linear"
    notes.append(f"{shape} molecule, rotational symmetry number {symmetry} ({counted})")
    if factor == 1.0:
        notes.append("wavenumbers are harmonic and not scaled")
    else:
        notes.append(f"wavenumbers are harmonic, scaled by {factor:g} ({source})")
    if conditions.low_modes.note:
        notes.append(conditions.low_modes.note)
    notes += too_cold(molecule, weights, conditions.temperatures)
    if may_be_degenerate(molecule):
        notes.append(DEGENERATE)
    notes += left_out_modes(modes)
    notes += no_stationary_point(result)
    values = {"total_energy": Dataset(result.total_energy, "hartree", "at the stored geometry")}
    settings = {
        "name": molecule.name,
        "basis": basis,
        "symbols": list(molecule.symbols),
        "symmetry_number": symmetry,
        "scale_factor": factor,
        "scale_factor_source": source,
        "quasi_harmonic": conditions.low_modes.treatment,
        "cutoff": conditions.low_modes.cutoff,
        "isotopes": list(conditions.isotopes),
    }
    runs = {REFERENCE: result}
    if isinstance(result, CompositeResult):
        runs = {f"{REFERENCE}-{part.name}": run for part, run in result.parts}
        settings["parts"] = [part.stored() for part, _ in result.parts]
    return Study(
        kind="thermochemistry",
        title=f"thermochemistry of {molecule.described}, {result.level}",
        settings=settings,
        notes=tuple(notes),
        values=values | gases[0],
        table=_table(gases, result.total_energy),
        runs=runs,
        complete=True,
        version=version(),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        arrays=_arrays(stored, modes, scaled, weights),
    )


def left_out_modes(modes: Vibrations) -> list[str]:
    """A sentence on the imaginary modes, which are left out of the gas; empty if there are none."""
    imaginary = [f"{-value:.1f}i" for value in modes.wavenumber if value < 0]
    if not imaginary:
        return []
    return [f"IMAGINARY modes are left out of the thermochemistry: {', '.join(imaginary)} cm^-1"]


def _table(gases: Sequence[dict[str, Dataset]], energy: float) -> dict[str, Column]:
    """A row for each gas: differences from the total energy, and the entropy with its
    contributions."""

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


# --- scale factors --------------------------------------------------------------------------------

AUTO = "auto"
CITATION = (
    "Truhlar group, version 5; Alecu, Zheng, Zhao, Truhlar, J. Chem. Theory Comput. 6, 2872 (2010)"
)
LEAST, MOST = 0.5, 1.5
FACTORS = {  # (method, basis) -> factor
    ("mp2", "6-31g*"): 0.964,
    ("mp2", "6-31g**"): 0.958,
    ("mp2", "6-31+g**"): 0.968,
    ("mp2", "6-311g**"): 0.970,
    ("mp2", "cc-pvdz"): 0.977,
    ("mp2", "cc-pvtz"): 0.975,
}
OTHER_NAMES = {  # of basis sets, alternative names
    "6-31g(d)": "6-31g*",
    "6-31g(d,p)": "6-31g**",
    "6-31+g(d,p)": "6-31+g**",
    "6-311g(d,p)": "6-311g**",
}


def scale_factor(
    asked: float | str, method: str, basis: str, frozen_core: str
) -> tuple[float, str]:
    """The scale factor of harmonic wavenumbers, and its source.

    Parameters
    ----------
    asked : float or str
        A factor, or AUTO for the published one.
    method, basis, frozen_core : str
        Options with which the Hessian was, or will be, computed.

    Raises
    ------
    InputError : an invalid factor, or none is published
    """
    option = Option("scale", asked)
    if asked == AUTO:
        name = basis.lower()
        name = OTHER_NAMES.get(name, name)
        core = ""
        if frozen_core in ("none", "0"):
            core = " with all electrons correlated"
        found = FACTORS.get((method, name))
        if found is None or core:
            known = ", ".join(f"{of.upper()}/{within}" for of, within in FACTORS)
            raise InputError(
                option,
                f": no factor is published for {method}/{name}{core} (frozen core: {known}): give "
                "a number, or leave it out",
            )
        return found, CITATION
    try:
        factor = float(plain(asked))
    except (TypeError, ValueError):
        factor = 0.0
    if not LEAST <= factor <= MOST:
        raise InputError(option, f": expected a number from {LEAST:g} to {MOST:g}, or {AUTO}")
    return factor, "given"
