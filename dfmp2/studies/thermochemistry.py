"""Thermochemistry of a stored Hessian: other temperatures, pressures, isotopes, scaled wavenumbers,
entropies of low modes. No gradient is computed.

The Hessian depends on no mass. Wavenumbers and the moments of inertia follow from it and the masses
asked for (`dfmp2.studies.vibrations`), the gas from both (`dfmp2.studies.ideal_gas`).

    298.15                a value
    200,298.15            several
    200:400:5             FROM:TO:POINTS, both ends included
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError
from dfmp2.errors.messages import Command, Option, plain
from dfmp2.host.provenance import version
from dfmp2.molecule.isotopes import isotope_masses
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study, is_study, read_study
from dfmp2.studies.ideal_gas import HARMONIC, JOULE_PER_MOL, MOTIONS, LowModes, thermochemistry
from dfmp2.studies.scale_factors import scale_factor
from dfmp2.studies.vibrations import Vibrations, on_a_line, symmetry_number, vibrations

Array = NDArray[np.float64]

REFERENCE = "reference"
MOST_VALUES = 1000
HIGHEST_TEMPERATURE = 1e5  # K
HIGHEST_PRESSURE = 1e12  # Pa
ROOM_TEMPERATURE = 298.15  # K
ATMOSPHERE = 101325.0  # Pa
LARGEST_SYMMETRY = 60  # of an icosahedron
LARGEST_GRADIENT = 1e-3  # Eh/bohr, of an atom at a geometry that passes for a stationary point


@dataclass(frozen=True, slots=True, eq=False)
class StoredHessian:
    """What a file says of the curvature at a stationary point.

    Attributes
    ----------
    result : MP2Result
        At the geometry of the Hessian.
    hessian : (3 natom, 3 natom) array
        Eh/bohr^2.
    dipole_derivatives : (3 natom, 3) array or None
        e; None where the file has none.
    """

    result: MP2Result
    hessian: Array
    dipole_derivatives: Array | None

    @property
    def molecule(self) -> Molecule:
        """At the geometry of the Hessian."""
        return self.result.molecule

    def vibrations(self, weights: Array) -> Vibrations:
        """The vibrations with these masses (natom,), u."""
        slopes = self.dipole_derivatives
        if slopes is None:
            slopes = np.zeros((len(self.hessian), 3))
        return vibrations(self.molecule, self.hessian, slopes, weights=weights)


@dataclass(frozen=True, slots=True)
class GasConditions:
    """What gas is made of a stored Hessian.

    Attributes
    ----------
    temperatures, pressures : tuple of float
        K and Pa; every temperature at every pressure.
    scale : float or str
        Of the wavenumbers, or "auto" for the published one.
    low_modes : LowModes
        Correction of the entropy.
    isotopes : tuple of str
        As "1=2H".
    symmetry : int or None
        Rotational symmetry number, None to count it.
    """

    temperatures: tuple[float, ...] = (ROOM_TEMPERATURE,)
    pressures: tuple[float, ...] = (ATMOSPHERE,)
    scale: float | str = 1.0
    low_modes: LowModes = HARMONIC
    isotopes: tuple[str, ...] = ()
    symmetry: int | None = None

    def __post_init__(self) -> None:
        for name, values, highest, unit in (
            ("temperature", self.temperatures, HIGHEST_TEMPERATURE, "K"),
            ("pressure", self.pressures, HIGHEST_PRESSURE, "Pa"),
        ):
            for value in values:
                if not 0 < value <= highest:
                    raise InputError(
                        Option(name, value),
                        f": expected a number above 0 and up to {highest:g} {unit}",
                    )
        count = len(self.temperatures) * len(self.pressures)
        if not 1 <= count <= MOST_VALUES:
            raise InputError(
                Option("temperature"),
                f" and pressure make {count} pairs of values: expected 1 to {MOST_VALUES}",
            )
        require_symmetry_number(self.symmetry, Option("symmetry_number", self.symmetry))


def require_symmetry_number(symmetry: int | None, option: Option) -> None:
    """Refuse what is no rotational symmetry number; None stands for the one that is counted.

    Raises
    ------
    InputError : no whole number from 1 to 60
    """
    if symmetry is None:
        return
    if isinstance(symmetry, bool) or not isinstance(symmetry, int):
        raise InputError(option, ": expected a whole number from 1 to 60")
    if not 1 <= symmetry <= LARGEST_SYMMETRY:
        raise InputError(option, ": expected a whole number from 1 to 60")


def parse_values(option: Option, given: str | float | Sequence[float]) -> tuple[float, ...]:
    """The numbers in a text as above, or those of a sequence.

    Raises
    ------
    InputError : a part is neither a number nor a range
    """
    given = plain(given)
    if isinstance(given, int | float):
        return (float(given),)
    if not isinstance(given, str):
        return tuple(float(value) for value in given)
    values: list[float] = []
    for part in given.split(","):
        words = part.split(":")
        try:
            if len(words) == 1:
                values.append(float(words[0]))
                continue
            first, last, count = float(words[0]), float(words[1]), int(words[2])
            if len(words) > 3 or not 2 <= count <= MOST_VALUES or not math.isfinite(first + last):
                raise ValueError
        except (ValueError, IndexError):
            raise InputError(
                option.of(given[:60]),
                ": expected numbers with commas between them, or a range FROM:TO:POINTS such as "
                f"200:400:5 of 2 to {MOST_VALUES} points",
            ) from None
        step = (last - first) / (count - 1)
        values += [round(first + step * k, 9) for k in range(count)]
    return tuple(values)


def read_hessian(path: str | Path) -> StoredHessian:
    """The Hessian in a file of `frequencies`, `optimize --verify` or `thermo`.

    Raises
    ------
    InputError : no such file, or one without a Hessian
    ResultFileError : it is damaged
    """
    if Path(path).exists() and not is_study(path):
        raise InputError(
            f"{path} holds no Hessian: expected a file of ",
            Command("frequencies"),
            ", which computes one, or of ",
            Command("optimize"),
            " with ",
            Option("verify", True),
        )
    return hessian_of(read_study(path), path)


def hessian_of(study: Study, path: str | Path) -> StoredHessian:
    """The Hessian of a study; errors name its file.

    Raises
    ------
    InputError : it has none, or none of a free molecule
    """
    if "hessian" not in study.arrays:
        state = ""
        if not study.complete:
            state = ", for it is not complete: the command that began it goes on"
        raise InputError(
            f"{path} is a study of kind {study.kind} without a Hessian{state}: ",
            Command("frequencies"),
            " computes one",
        )
    if study.settings.get("constraints"):
        raise InputError(
            f"{path}: the Hessian is that along constraints, so there is no free molecule: ",
            Command("frequencies"),
            " of an unconstrained geometry makes a gas",
        )
    if study.kind == "optimization":
        result = list(study.path.values())[-1]
    else:
        result = study.runs[REFERENCE]
    if result.molecule.point_charges is not None:
        raise InputError(
            f"{path}: among point charges the molecule cannot move freely, so there is no gas: ",
            Command("frequencies"),
            " of the molecule alone makes one",
        )
    slopes = study.arrays.get("dipole_derivatives")
    dipole_derivatives = None
    if slopes is not None:
        dipole_derivatives = slopes.value
    return StoredHessian(result, study.arrays["hessian"].value, dipole_derivatives)


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
    InputError : isotopes, or a scale factor that there is not
    """
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
    if result.gradient is not None:
        largest = float(np.linalg.norm(result.gradient.total_gradient, axis=1).max())
        if largest > LARGEST_GRADIENT:
            notes.append(f"NO STATIONARY POINT: the gradient of an atom is {largest:.1e} Eh/bohr")
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
