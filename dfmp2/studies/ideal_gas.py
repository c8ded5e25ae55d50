"""Energy, entropy and heat capacity of one mole of an ideal gas of rigid rotors and harmonic
oscillators.

    translation    S = R (5/2 + ln[(2 pi m k T / h^2)^(3/2) k T / p])     U = 3/2 R T
    rotation       S = R (3/2 + ln[sqrt(pi) prod_a (T / Q_a)^(1/2) / s])  U = 3/2 R T    Q_a = h^2 / (8 pi^2 I_a k)
    on a line      S = R (1 + ln[T / (Q s)])                              U = R T
    vibration      S = R sum_k [x_k / (e^x_k - 1) - ln(1 - e^-x_k)]       x_k = h c nu_k / (k T)
                   U = R T sum_k [x_k / 2 + x_k / (e^x_k - 1)]
    electrons      S = R ln(2 S + 1)                                      U = E

s is the rotational symmetry number (McQuarrie, Simon, Molecular Thermodynamics (University Science
Books, 1999), chapter 4). Modes of a few cm^-1 are not harmonic, and their entropy diverges as nu
goes to 0. Two corrections, of the entropy only, are available:

    grimme     w S_k + (1 - w) S_rotor,  w = 1 / (1 + (cutoff / nu)^4)      Chem. Eur. J. 18, 9955 (2012), Eqs. 3 to 8
               S_rotor = R (1/2 + ln sqrt(8 pi^3 I' k T / h^2)),  I' = I B / (I + B),  I = h / (8 pi^2 c nu),
               B = 1e-44 kg m^2
    truhlar    every nu below the cutoff is raised to it                    J. Phys. Chem. B 115, 14556 (2011)

Temperatures and pressures may be written as

    298.15                a value
    200,298.15            several
    200:400:5             FROM:TO:POINTS, both ends included
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import InputError, Option
from dfmp2.errors.messages import plain
from dfmp2.molecule.molecule import Molecule
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.studies.vibrations import (
    SAME_PLACE,
    farthest_from_axis,
    masses,
    on_a_line,
    principal_axes,
)

# CODATA 2018, SI
BOLTZMANN = 1.380649e-23
PLANCK = 6.62607015e-34
SPEED_OF_LIGHT = 299792458.0
GAS_CONSTANT = 8.31446261815324  # J/(mol K)
KILOGRAM_PER_U = 1.66053906660e-27
METRE_PER_BOHR = 0.529177210903e-10
JOULE_PER_MOL = 2625499.6394799  # in 1 Eh

MOTIONS = ("translation", "rotation", "vibration", "electrons")
TREATMENTS = ("harmonic", "grimme", "truhlar")  # of low modes
CUTOFF = 100.0  # cm^-1, default
LARGEST_CUTOFF = 1000.0  # cm^-1
GRIMME_MOMENT = 1e-44  # kg m^2, B above
GRIMME_POWER = 4
ROOM_TEMPERATURE = 298.15  # K
ATMOSPHERE = 101325.0  # Pa
STANDARD_STATES = {"1atm": ATMOSPHERE, "1bar": 100000.0, "1M": None}  # Pa; of 1 mol/l: R T
MOL_PER_CUBIC_METRE = 1000.0  # of 1 mol/l
HIGHEST_TEMPERATURE = 1e5  # K
HIGHEST_PRESSURE = 1e12  # Pa
MOST_VALUES = 1000
# bohr from the axis: a molecule that may be meant to be linear (HCN bent by 11 degrees)
ALMOST_LINEAR = 0.3
LARGEST_SYMMETRY = 60  # that of an icosahedron


@dataclass(frozen=True, slots=True)
class LowModes:
    """Treatment of the entropy of low-wavenumber modes.

    Attributes
    ----------
    treatment : str
        One of TREATMENTS.
    cutoff : float
        cm^-1.
    """

    treatment: str = "harmonic"
    cutoff: float = CUTOFF

    def __post_init__(self) -> None:
        if self.treatment not in TREATMENTS:
            raise InputError(
                Option("quasi_harmonic", self.treatment),
                f": expected one of {', '.join(TREATMENTS)}",
            )
        if not 0 < self.cutoff <= LARGEST_CUTOFF:
            raise InputError(
                Option("cutoff", self.cutoff),
                f": expected a wavenumber above 0 and up to {LARGEST_CUTOFF:g} cm^-1",
            )

    @property
    def note(self) -> str:
        """The remark about it in a report, "" for harmonic oscillators."""
        if self.treatment == "grimme":
            return (
                f"entropy of low modes: between oscillator and free rotor, cutoff {self.cutoff:g} "
                "cm^-1; S. Grimme, Chem. Eur. J. 18, 9955 (2012)"
            )
        if self.treatment == "truhlar":
            return (
                f"entropy of low modes: wavenumbers below {self.cutoff:g} cm^-1 raised to it; "
                "R. F. Ribeiro et al., J. Phys. Chem. B 115, 14556 (2011)"
            )
        return ""


HARMONIC = LowModes()


def low_modes(treatment: str | None, cutoff: float | None) -> LowModes:
    """The treatment of low modes; None means the harmonic oscillator and CUTOFF.

    Raises
    ------
    InputError : a cutoff without a treatment, an unknown treatment, or an invalid wavenumber
    """
    if treatment is None:
        if cutoff is not None:
            raise InputError(
                Option("cutoff", cutoff),
                " belongs to the entropy of low modes: add ",
                Option("quasi_harmonic", "grimme"),
                ", or leave it out",
            )
        return HARMONIC
    if cutoff is None:
        return LowModes(treatment)
    return LowModes(treatment, cutoff)


@dataclass(frozen=True, slots=True)
class GasConditions:
    """Conditions and options of the ideal gas derived from a Hessian.

    Attributes
    ----------
    temperatures : tuple of float
        K.
    pressures : tuple of float
        Pa, each combined with every temperature; () for that of the standard state.
    standard_state : str or None
        A key of STANDARD_STATES; None if pressures are given, or for 1 atm.
    scale : float or str
        Scale factor of the wavenumbers, or "auto" for the published one.
    low_modes : LowModes
        Correction of the entropy.
    isotopes : tuple of str
        Isotopes, e.g. "1=2H".
    symmetry : int or None
        Rotational symmetry number, None to count it.
    """

    temperatures: tuple[float, ...] = (ROOM_TEMPERATURE,)
    pressures: tuple[float, ...] = ()
    standard_state: str | None = None
    scale: float | str = 1.0
    low_modes: LowModes = HARMONIC
    isotopes: tuple[str, ...] = ()
    symmetry: int | None = None

    def __post_init__(self) -> None:
        if self.standard_state is not None:
            self._require_standard_state(self.standard_state)
        require_between("temperature", self.temperatures, 0.0, HIGHEST_TEMPERATURE, "K")
        if not self.pressures:
            object.__setattr__(self, "pressures", (self._standard_pressure(),))
        require_between("pressure", self.pressures, 0.0, HIGHEST_PRESSURE, "Pa")
        count = len(self.temperatures) * len(self.pressures)
        if not 1 <= count <= MOST_VALUES:
            raise InputError(
                Option("temperature"),
                f" and pressure make {count} pairs of values: expected 1 to {MOST_VALUES}",
            )
        object.__setattr__(self, "symmetry", plain(self.symmetry))
        require_symmetry_number(self.symmetry, Option("symmetry_number", self.symmetry))

    @property
    def temperature(self) -> float:
        """The first temperature, K."""
        return self.temperatures[0]

    @property
    def pressure(self) -> float:
        """The first pressure, Pa."""
        return self.pressures[0]

    def require_single(self, what: str) -> None:
        """Raise InputError if there are several, because `what` has only one temperature and
        pressure."""
        if len(self.temperatures) * len(self.pressures) > 1:
            raise InputError(
                Option("temperature"),
                ", ",
                Option("pressure"),
                f": one of each, {what} has one of both",
            )

    def require_usual(self, why: tuple[str | Option, ...], *, used: str | None = None) -> None:
        """Raise for conditions that have no effect, because no gas is derived.

        Parameters
        ----------
        why : tuple of str and Option
            Why there is no gas, and what makes one.
        used : str, optional
            Name of the one condition that has an effect nevertheless.

        Raises
        ------
        InputError : naming the first condition that is not the usual one
        """
        given = {
            "temperature": (self.temperature, ROOM.temperature),
            "standard_state": (self.standard_state, ROOM.standard_state),
            "pressure": (self.pressure, ROOM.pressure),
            "scale": (self.scale, ROOM.scale),
            "quasi_harmonic": (self.low_modes.treatment, ROOM.low_modes.treatment),
            "symmetry_number": (self.symmetry, ROOM.symmetry),
        }
        for name, (value, usual) in given.items():
            if value != usual and name != used:
                raise without_gas(Option(name, value), why)

    def _require_standard_state(self, state: str) -> None:
        """Raise InputError if `state` is not a standard state, or a pressure is given as well."""
        if self.pressures:
            raise InputError(
                Option("standard_state", state),
                " and ",
                Option("pressure", self.pressure),
                " both say how dense the gas is: choose one",
            )
        if state not in STANDARD_STATES:
            raise InputError(
                Option("standard_state", state),
                f": expected one of {', '.join(STANDARD_STATES)}",
            )

    def _standard_pressure(self) -> float:
        """Pressure of the standard state at the first temperature, Pa."""
        pressure = STANDARD_STATES[self.standard_state or "1atm"]
        if pressure is None:
            return MOL_PER_CUBIC_METRE * GAS_CONSTANT * self.temperature
        return pressure


def without_gas(option: Option, why: tuple[str | Option, ...]) -> InputError:
    """The error for an option of a gas where none is derived; `why` as in `require_usual`."""
    return InputError(option, " belongs to Gibbs energies, and ", *why)


def require_between(
    name: str, values: Sequence[float], least: float, most: float, unit: str
) -> None:
    """Raise unless all values are numbers above `least` and up to `most`.

    Raises
    ------
    InputError : for the first wrong one, as the value of the option `name`
    """
    for value in values:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least < value <= most:
            raise InputError(
                Option(name, value),
                f": expected a number above {least:g} and up to {most:g} {unit}",
            )


def make_conditions(
    *,
    temperature: str | float | Sequence[float],
    pressure: str | float | Sequence[float] | None,
    scale: float | str = 1.0,
    quasi_harmonic: str | None = None,
    cutoff: float | None = None,
    **others: Any,
) -> GasConditions:
    """The gas conditions from options as people write them.

    Parameters
    ----------
    temperature, pressure : str, float or sequence of float, optional
        As in `parse_values`; None for the pressure of the standard state.
    scale : float or str, optional
        A number, also as text, or "auto".
    quasi_harmonic, cutoff : optional
        As in `low_modes`.
    others
        Other fields of GasConditions.

    Raises
    ------
    InputError : an invalid value
    """
    pressures: tuple[float, ...] = ()
    if pressure is not None:
        pressures = parse_values(Option("pressure"), pressure)
    with suppress(TypeError, ValueError):  # anything else is a word, for `scale_factor`
        scale = float(plain(scale))
    return GasConditions(
        temperatures=parse_values(Option("temperature"), temperature),
        pressures=pressures,
        scale=scale,
        low_modes=low_modes(quasi_harmonic, cutoff),
        **others,
    )


def require_symmetry_number(symmetry: int | None, option: Option) -> None:
    """Raise unless `symmetry` is a valid rotational symmetry number or None, which means to count
    it.

    Raises
    ------
    InputError : not an integer from 1 to 60
    """
    if symmetry is None:
        return
    whole = isinstance(symmetry, int) and not isinstance(symmetry, bool)
    if not whole or not 1 <= symmetry <= LARGEST_SYMMETRY:
        raise InputError(option, f": expected a whole number from 1 to {LARGEST_SYMMETRY}")


def parse_values(option: Option, written: str | float | Sequence[float]) -> tuple[float, ...]:
    """The numbers in a text as above, in a sequence, or a single given number.

    Raises
    ------
    InputError : a part of the text is neither a number nor a range
    """
    written = plain(written)
    if isinstance(written, str):
        return _parse_text(option, written)
    if isinstance(written, Iterable):
        return tuple(_as_float(value) for value in written)
    return (_as_float(written),)


def _as_float(value: Any) -> Any:
    """An integer as a float, anything else unchanged."""
    value = plain(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _parse_text(option: Option, text: str) -> tuple[float, ...]:
    """The numbers in a text as above."""
    values: list[float] = []
    for part in text.split(","):
        words = part.split(":")
        try:
            if len(words) == 1:
                values.append(float(words[0]))
                continue
            first = float(words[0])
            last = float(words[1])
            count = int(words[2])
            if len(words) > 3 or not 2 <= count <= MOST_VALUES or not math.isfinite(first + last):
                raise ValueError
        except (ValueError, IndexError):
            raise InputError(
                option.of(text[:60]),
                ": expected numbers with commas between them, or a range FROM:TO:POINTS such as "
                f"200:400:5 of 2 to {MOST_VALUES} points",
            ) from None
        step = (last - first) / (count - 1)
        values += [round(first + step * k, 9) for k in range(count)]
    return tuple(values)


ROOM = GasConditions()  # at room temperature and 1 atm


@dataclass(frozen=True, slots=True)
class Shares:
    """Contribution of one motion to energy, entropy and heat capacity, J/mol and J/(mol K)."""

    energy: float
    entropy: float
    heat_capacity: float


def thermochemistry(
    molecule: Molecule,
    energy: float,
    wavenumbers: Array,
    temperature: float,
    pressure: float,
    symmetry: int,
    *,
    treated: LowModes = HARMONIC,
    weights: Array | None = None,
) -> dict[str, Dataset]:
    """Molar quantities of an ideal gas, by name with unit and description; imaginary modes are left
    out.

    Contributions carry the name of their motion as suffix: the zero-point energy belongs to
    vibration, the total energy to electrons, and the term p V = R T of the enthalpy to translation.

    Parameters
    ----------
    molecule : Molecule
        An atom has no wavenumbers.
    energy : float
        Total energy, Eh.
    wavenumbers : (n,) array
        cm^-1, negative for imaginary ones.
    temperature, pressure : float
        K and Pa.
    symmetry : int
        Rotational symmetry number.
    treated : LowModes
        Correction of the entropy of low modes.
    weights : (natom,) array, optional
        Masses of the atoms, u; by default those of the most abundant isotopes.
    """
    if weights is None:
        weights = masses(molecule)
    real = np.asarray(wavenumbers, dtype=np.float64)
    real = real[real > 0]
    zero_point = float(GAS_CONSTANT * _kelvin(real).sum() / 2)
    shares = {
        "translation": _translation(float(weights.sum()), temperature, pressure),
        "rotation": _rotation(molecule, weights, temperature, symmetry),
        "vibration": _vibration(real, temperature, treated),
        "electrons": Shares(
            energy * JOULE_PER_MOL, float(GAS_CONSTANT * np.log(molecule.multiplicity)), 0.0
        ),
    }
    volume_work = GAS_CONSTANT * temperature
    internal = sum(share.energy for share in shares.values()) / JOULE_PER_MOL
    enthalpy = internal + volume_work / JOULE_PER_MOL
    entropy = sum(share.entropy for share in shares.values())
    capacity = sum(share.heat_capacity for share in shares.values())
    gibbs = enthalpy - temperature * entropy / JOULE_PER_MOL
    gas = f"ideal gas at {temperature:g} K and {pressure:g} Pa"
    correction = f"Gibbs energy less total energy, {gas}"
    kilojoules = JOULE_PER_MOL / 1000
    of_vibrations = "of the harmonic vibrations"
    values = {
        "temperature": Dataset(temperature, "K", "of the gas"),
        "pressure": Dataset(pressure, "Pa", "of the gas"),
        "zero_point_energy": Dataset(zero_point / JOULE_PER_MOL, "hartree", of_vibrations),
        "zero_point_energy_kj_per_mol": Dataset(zero_point / 1000, "kJ/mol", of_vibrations),
        "total_energy_at_0_kelvin": Dataset(
            energy + zero_point / JOULE_PER_MOL, "hartree", "total energy and zero-point energy"
        ),
        "gibbs_energy": Dataset(gibbs, "hartree", gas),
        "gibbs_energy_kj_per_mol": Dataset(gibbs * kilojoules, "kJ/mol", gas),
        "gibbs_energy_correction": Dataset(gibbs - energy, "hartree", correction),
        "gibbs_energy_correction_kj_per_mol": Dataset(
            (gibbs - energy) * kilojoules, "kJ/mol", correction
        ),
        "internal_energy": Dataset(internal, "hartree", gas),
        "enthalpy": Dataset(enthalpy, "hartree", gas),
        "entropy": Dataset(entropy, "J/(mol K)", gas),
        "heat_capacity": Dataset(
            capacity + GAS_CONSTANT, "J/(mol K)", f"at constant pressure, {gas}"
        ),
        "heat_capacity_at_constant_volume": Dataset(
            capacity, "J/(mol K)", f"at constant volume, {gas}"
        ),
    }
    for motion, share in shares.items():
        about = f"share of {motion}, {gas}"
        own = share.energy / JOULE_PER_MOL
        with_work = own
        if motion == "translation":
            with_work += volume_work / JOULE_PER_MOL
        values[f"internal_energy_{motion}"] = Dataset(own, "hartree", about)
        values[f"enthalpy_{motion}"] = Dataset(with_work, "hartree", about)
        values[f"entropy_{motion}"] = Dataset(share.entropy, "J/(mol K)", about)
        values[f"heat_capacity_at_constant_volume_{motion}"] = Dataset(
            share.heat_capacity, "J/(mol K)", about
        )
    return values


def _translation(mass: float, temperature: float, pressure: float) -> Shares:
    """Contribution of translation for a molecule of `mass`, u."""
    heat = BOLTZMANN * temperature
    waves = (2 * np.pi * mass * KILOGRAM_PER_U * heat / PLANCK**2) ** 1.5  # 1/m^3
    entropy = GAS_CONSTANT * (2.5 + np.log(waves * heat / pressure))
    return Shares(1.5 * GAS_CONSTANT * temperature, float(entropy), 1.5 * GAS_CONSTANT)


def _rotation(molecule: Molecule, weights: Array, temperature: float, symmetry: int) -> Shares:
    if molecule.natom == 1:
        return Shares(0.0, 0.0, 0.0)
    turns = temperature / rotational_temperatures(molecule, weights)  # T / Q
    if len(turns) == 1:
        entropy = GAS_CONSTANT * (1.0 + np.log(turns[0] / symmetry))
        return Shares(GAS_CONSTANT * temperature, float(entropy), GAS_CONSTANT)
    entropy = GAS_CONSTANT * (1.5 + 0.5 * np.log(np.pi * turns.prod()) - np.log(symmetry))
    return Shares(1.5 * GAS_CONSTANT * temperature, float(entropy), 1.5 * GAS_CONSTANT)


def rotational_temperatures(molecule: Molecule, weights: Array) -> Array:
    """Rotational temperatures Q of the principal axes, K: three, one for a linear molecule, none
    for an atom.

    Parameters
    ----------
    weights : (natom,) array
        Masses, u.
    """
    if molecule.natom == 1:
        return np.empty(0)
    centred, axes = principal_axes(molecule, weights)
    along = (centred @ axes.T) ** 2  # squares of the positions along the axes, bohr^2
    moments = weights @ (along.sum(axis=1, keepdims=True) - along)
    if on_a_line(molecule):
        moments = moments[:1]
    moments = moments * KILOGRAM_PER_U * METRE_PER_BOHR**2
    return np.asarray(PLANCK**2 / (8 * np.pi**2 * moments * BOLTZMANN))


def too_cold(molecule: Molecule, weights: Array, temperatures: Sequence[float]) -> list[str]:
    """A sentence on temperatures too low for a classical rotor; empty if there are none.

    Parameters
    ----------
    weights : (natom,) array
        Masses, u.
    temperatures : sequence of float
        K.
    """
    largest = float(rotational_temperatures(molecule, weights).max(initial=0.0))
    if min(temperatures) >= largest:
        return []
    said = (
        f"TOO COLD: rotations are those of a classical rotor, which this molecule is not below "
        f"{largest:.1f} K: entropy and Gibbs energy at {min(temperatures):g} K are wrong"
    )
    away = farthest_from_axis(molecule)
    if SAME_PLACE <= away < ALMOST_LINEAR:
        said += (
            f". All atoms are within {away:.2f} bohr of a line, and up to {SAME_PLACE:g} the "
            "molecule counts as linear: optimise it more tightly, or put them on a line"
        )
    return [said]


def _vibration(wavenumbers: Array, temperature: float, low_modes: LowModes) -> Shares:
    x = _kelvin(wavenumbers) / temperature
    occupation = np.exp(-x) / -np.expm1(-x)
    energy = GAS_CONSTANT * temperature * (x * (0.5 + occupation)).sum()
    capacity = GAS_CONSTANT * (x**2 * np.exp(-x) / np.expm1(-x) ** 2).sum()
    entropies = vibrational_entropies(wavenumbers, temperature, low_modes)
    return Shares(float(energy), float(entropies.sum()), float(capacity))


def vibrational_entropies(wavenumbers: Array, temperature: float, low_modes: LowModes) -> Array:
    """Entropies (n,), J/(mol K), of modes with positive wavenumbers, cm^-1."""
    if low_modes.treatment == "truhlar":
        return _oscillator_entropies(np.maximum(wavenumbers, low_modes.cutoff), temperature)
    oscillators = _oscillator_entropies(wavenumbers, temperature)
    if low_modes.treatment == "harmonic":
        return oscillators
    moments = PLANCK / (8 * np.pi**2 * SPEED_OF_LIGHT * 100 * wavenumbers)  # kg m^2
    moments = moments * GRIMME_MOMENT / (moments + GRIMME_MOMENT)
    states = np.sqrt(8 * np.pi**3 * moments * BOLTZMANN * temperature) / PLANCK
    rotors = GAS_CONSTANT * (0.5 + np.log(states))
    share = 1.0 / (1.0 + (low_modes.cutoff / wavenumbers) ** GRIMME_POWER)
    return np.asarray(share * oscillators + (1.0 - share) * rotors)


def _oscillator_entropies(wavenumbers: Array, temperature: float) -> Array:
    """Harmonic-oscillator entropies (n,), J/(mol K)."""
    x = _kelvin(wavenumbers) / temperature
    occupation = np.exp(-x) / -np.expm1(-x)
    return np.asarray(GAS_CONSTANT * (x * occupation - np.log(-np.expm1(-x))))


def _kelvin(wavenumbers: Array) -> Array:
    """Vibrational temperatures h c nu / k, K, of wavenumbers in cm^-1."""
    return np.asarray(PLANCK * SPEED_OF_LIGHT * 100 * wavenumbers / BOLTZMANN)
