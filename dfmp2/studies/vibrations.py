"""Harmonic vibrations of a molecule from its Hessian, and what follows for a gas of it.

    (1 - R R^T) M^-1/2 H M^-1/2 (1 - R R^T) L_k = w_k^2 L_k                                                         (1)
    mu_k = 1 / sum_i L_ik^2 / m_i                          reduced mass of the displacement L_ik / sqrt(m_i)       (2)
    A_k = N_A / (12 e_0 c^2) |sum_i (d mu / d x_i) L_ik / sqrt(m_i)|^2                infrared intensity           (3)

R: translations and rotations of the whole, orthonormal and weighted with masses, six of them, five
where all atoms lie on a line. Masses are those of the most abundant isotopes
(`dfmp2.molecule.elements`). Source: Wilson, Decius, Cross, Molecular Vibrations (McGraw-Hill,
1955). The thermochemistry (ideal gas, rigid rotor, harmonic oscillator) is that of
`pyscf.hessian.thermo`, with these masses and a rotational symmetry number that is counted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.molecule.elements import mass
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.output.hdf5 import Dataset
from dfmp2.units import WAVENUMBER_PER_HARTREE, quantity

Array = NDArray[np.float64]

# CODATA 2018
ELECTRON_MASSES_PER_U = 1822.888486209
MDYNE_PER_ANGSTROM = 15.56893119  # of 1 Eh/bohr^2
INTENSITY = 974.8802  # km/mol for 1 e^2/u: N_A e^2 / (12 e_0 c^2 u)
JOULE_PER_MOL = 2625499.6394799  # of 1 Eh
ON_A_LINE = 0.01  # bohr from the axis, of every atom of a linear molecule
MOTIONS = {"translation": "trans", "rotation": "rot", "vibration": "vib", "electrons": "elec"}
DEPENDENT = 1e-6  # of constraints and rigid motions, which are of length 1
# bohr between an atom and the place of its like after a rotation; optimised geometries are not
# exact
SAME_PLACE = 0.05


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Vibrations:
    """Harmonic vibrations, lowest first: arrays (n,) in their unit.

    Attributes
    ----------
    displacements : (n, natom, 3), normalised, of the atoms
    removed : motions that were projected out, without constraints the rigid ones: 6, 5 on a line, 0
        in a field
    """

    wavenumber: Array = quantity("cm^-1", "harmonic, negative where imaginary")
    ir_intensity: Array = quantity("km/mol", "infrared intensity, relaxed dipole moments")
    reduced_mass: Array = quantity("u", "of the normalised displacement")
    force_constant: Array = quantity("mdyn/angstrom", "of the vibration")
    displacements: Array
    removed: int


def masses(molecule: Molecule) -> Array:
    """(natom,) u.

    Raises
    ------
    InputError : an element has none
    """
    return np.array([mass(symbol) for symbol in molecule.symbols])


def vibrations(
    molecule: Molecule,
    hessian: Array,
    dipole_derivatives: Array,
    constraints: Array | None = None,
) -> Vibrations:
    """The vibrations of a molecule; among point charges, where it cannot move freely, all 3 natom
    motions.

    Parameters
    ----------
    hessian : (3 natom, 3 natom) Eh/bohr^2, symmetric
    dipole_derivatives : (3 natom, 3) e
    constraints : (m, 3 natom) array, optional
        Derivatives of coordinates that cannot change; the vibrations are those that leave them
        alone.
    """
    weights = np.repeat(masses(molecule), 3)
    weighted = hessian / np.sqrt(np.outer(weights, weights))
    if molecule.point_charges is not None:
        rigid = np.zeros((len(weights), 0))
    else:
        rigid = rigid_motions(molecule)
    if constraints is None:
        excluded = rigid
    else:
        excluded = _held(constraints / np.sqrt(weights), rigid)
    space = np.linalg.qr(excluded, mode="complete")[0][:, excluded.shape[1] :]  # all but R
    squares, inside = np.linalg.eigh(space.T @ weighted @ space)  # Eq. 1, Eh/(bohr^2 u)
    modes = (space @ inside) / np.sqrt(weights)[:, None]
    reduced = 1.0 / (modes**2).sum(axis=0)  # Eq. 2
    slopes = dipole_derivatives.T @ modes
    roots = np.sign(squares) * np.sqrt(np.abs(squares) / ELECTRON_MASSES_PER_U)
    displacements = (modes * np.sqrt(reduced)).T.reshape(-1, molecule.natom, 3)
    largest = np.take_along_axis(
        displacements.reshape(len(squares), -1), _largest(displacements), axis=1
    )
    return Vibrations(
        wavenumber=roots * WAVENUMBER_PER_HARTREE,
        displacements=displacements * np.sign(largest)[:, :, None],
        reduced_mass=reduced,
        force_constant=squares * reduced * MDYNE_PER_ANGSTROM,
        ir_intensity=INTENSITY * (slopes**2).sum(axis=0),  # Eq. 3
        removed=excluded.shape[1],
    )


def _held(constraints: Array, rigid: Array) -> Array:
    """(3 natom, n) orthonormal: what changes a constraint, and the rigid motions that change none.

    Parameters
    ----------
    constraints : (m, 3 natom) array
        Their derivatives, weighted with masses.
    rigid : (3 natom, 6) array
        R of Eq. 1, or fewer columns.
    """
    _, sizes, rows = np.linalg.svd(constraints, full_matrices=False)
    changing = rows[sizes > DEPENDENT * sizes.max()].T
    _, sizes, mixtures = np.linalg.svd(changing.T @ rigid)
    sizes = np.pad(sizes, (0, len(mixtures) - len(sizes)))
    free = rigid @ mixtures[sizes < DEPENDENT].T
    return np.hstack([changing, free])


def _largest(displacements: Array) -> Any:
    """(n, 1) place of the largest component of each mode, which is given the sign +."""
    rows = np.abs(displacements.reshape(len(displacements), -1))
    return np.argmax(rows.round(6), axis=1)[:, None]


def rigid_motions(molecule: Molecule) -> Array:
    """R of Eq. 1: translations and rotations, (3 natom, 6), orthonormal and weighted; (3 natom, 5)
    on a line."""
    weights, centred, axes = _principal(molecule)
    if on_a_line(molecule):
        centred = np.outer(centred @ axes[2], axes[2])
    motions = [np.tile(axis, (len(weights), 1)) for axis in np.eye(3)]
    motions += [np.cross(axis, centred) for axis in axes[: 2 if on_a_line(molecule) else 3]]
    vectors = np.stack([(np.sqrt(weights)[:, None] * motion).ravel() for motion in motions], axis=1)
    return np.asarray(np.linalg.qr(vectors)[0])


def on_a_line(molecule: Molecule) -> bool:
    """Whether all atoms lie on one line."""
    _, centred, axes = _principal(molecule)
    away = centred - np.outer(centred @ axes[2], axes[2])
    return bool(np.linalg.norm(away, axis=1).max() < ON_A_LINE)


def _principal(molecule: Molecule) -> tuple[Array, Array, Array]:
    """Masses, positions about their centre (natom, 3) in bohr, and the principal axes as rows, that
    of the smallest moment of inertia last."""
    weights = masses(molecule)
    centred = molecule.coordinates - weights @ molecule.coordinates / weights.sum()
    spread = np.einsum("a,ax,ay->xy", weights, centred, centred)
    return weights, centred, np.linalg.eigh(spread)[1].T


def symmetry_number(molecule: Molecule) -> int:
    """Number of rotations, the identity included, that put like atoms in each other's places.

    A rotation is fixed by where it puts two atoms that are not on a line with the centre; on a line
    there is none but the one that turns it round.
    """
    _, centred, axes = _principal(molecule)
    if on_a_line(molecule):
        return 1 + _maps(molecule, centred, -np.outer(centred @ axes[2], axes[2]))
    distance = np.linalg.norm(centred, axis=1)
    gaps = np.linalg.norm(centred[:, None] - centred[None], axis=2)
    pairs = [
        (i, j, np.linalg.norm(np.cross(centred[i], centred[j])))
        for i in range(molecule.natom)
        for j in range(molecule.natom)
        if i != j
    ]
    first, second, _ = max(pairs, key=lambda pair: pair[2])

    def alike(i: int, j: int) -> bool:
        same = molecule.symbols[i] == molecule.symbols[j]
        return same and abs(distance[i] - distance[j]) < SAME_PLACE

    frame, count = _frame(centred[first], centred[second]), 0
    for i in filter(lambda k: alike(first, k), range(molecule.natom)):
        for j in filter(lambda k: alike(second, k), range(molecule.natom)):
            if i != j and abs(gaps[i, j] - gaps[first, second]) < SAME_PLACE:
                rotation = _frame(centred[i], centred[j]).T @ frame
                count += _maps(molecule, centred, centred @ rotation.T)
    return count


def _frame(first: Array, second: Array) -> Array:
    """Right-handed orthonormal rows: along the first vector, in the plane of both, and normal to
    it."""
    x, z = first / np.linalg.norm(first), np.cross(first, second)
    z = z / np.linalg.norm(z)
    return np.stack([x, np.cross(z, x), z])


def _maps(molecule: Molecule, places: Array, moved: Array) -> bool:
    """Whether every atom that was moved is where one of its element is."""
    symbols = np.array(molecule.symbols)
    gaps = np.linalg.norm(moved[:, None] - places[None], axis=2)
    return bool(((gaps < SAME_PLACE) & (symbols[:, None] == symbols[None])).any(axis=1).all())


@dataclass(frozen=True, slots=True)
class _Gas:
    """What `pyscf.hessian.thermo` asks of a mean field and of its molecule."""

    molecule: Molecule
    e_tot: float

    @property
    def mol(self) -> _Gas:
        return self

    @property
    def multiplicity(self) -> int:
        return self.molecule.multiplicity

    @property
    def _atom(self) -> list[tuple[str, list[float]]]:
        return [
            ("H", [0, 0, 0]),
            ("He", [1, 0, 0]),
            ("Li", [0, 2, 0]),
            ("Be", [0, 0, 3]),
        ]  # symmetry is counted here

    def atom_mass_list(self, isotope_avg: bool = True) -> Array:
        return masses(self.molecule)

    def atom_coords(self) -> Array:
        """Exactly on a line where it is linear: PySCF then sees that it is."""
        _, centred, axes = _principal(self.molecule)
        if not on_a_line(self.molecule):
            return centred
        return np.stack([*np.zeros((2, len(centred))), centred @ axes[2]], axis=1)


def thermochemistry(
    molecule: Molecule,
    energy: float,
    wavenumbers: Array,
    temperature: float,
    pressure: float,
    symmetry: int,
) -> dict[str, Dataset]:
    """Quantities of one mole of ideal gas, by name with unit and description; imaginary modes are
    left out.

    Shares of motions end in their names: the zero-point energy is one of vibration, the total
    energy one of electrons, and p V = R T of the enthalpy one of translation.

    Parameters
    ----------
    energy : total energy, Eh
    wavenumbers : cm^-1, negative for imaginary ones
    temperature, pressure : K and Pa
    symmetry : rotational symmetry number
    """
    with shielded():
        from pyscf.hessian import thermo

        per_root = WAVENUMBER_PER_HARTREE / np.sqrt(
            ELECTRON_MASSES_PER_U
        )  # cm^-1 of 1 (Eh/(bohr^2 u))^1/2
        found = thermo.thermo(_Gas(molecule, energy), wavenumbers / per_root, temperature, pressure)
    kilojoules = JOULE_PER_MOL / 1000
    turned = _GAS_CONSTANT * np.log(symmetry)
    entropy = found["S_tot"][0] * JOULE_PER_MOL - turned
    enthalpy = found["H_tot"][0]
    gibbs = enthalpy - temperature * entropy / JOULE_PER_MOL
    zero_point = found["ZPE"][0]
    gas = f"ideal gas at {temperature:g} K and {pressure:g} Pa"
    values = {
        "temperature": Dataset(temperature, "K", "of the gas"),
        "pressure": Dataset(pressure, "Pa", "of the gas"),
        "zero_point_energy": Dataset(zero_point, "hartree", "of the harmonic vibrations"),
        "zero_point_energy_kj_per_mol": Dataset(
            zero_point * kilojoules, "kJ/mol", "of the harmonic vibrations"
        ),
        "total_energy_at_0_kelvin": Dataset(
            found["E_0K"][0], "hartree", "total energy and zero-point energy"
        ),
        "gibbs_energy": Dataset(gibbs, "hartree", gas),
        "gibbs_energy_kj_per_mol": Dataset(gibbs * kilojoules, "kJ/mol", gas),
        "gibbs_energy_correction": Dataset(
            gibbs - energy, "hartree", f"Gibbs energy less total energy, {gas}"
        ),
        "gibbs_energy_correction_kj_per_mol": Dataset(
            (gibbs - energy) * kilojoules, "kJ/mol", f"Gibbs energy less total energy, {gas}"
        ),
        "internal_energy": Dataset(found["E_tot"][0], "hartree", gas),
        "enthalpy": Dataset(enthalpy, "hartree", gas),
        "entropy": Dataset(entropy, "J/(mol K)", gas),
        "heat_capacity": Dataset(
            found["Cp_tot"][0] * JOULE_PER_MOL, "J/(mol K)", f"at constant pressure, {gas}"
        ),
        "heat_capacity_at_constant_volume": Dataset(
            found["Cv_tot"][0] * JOULE_PER_MOL, "J/(mol K)", f"at constant volume, {gas}"
        ),
    }
    for motion, key in MOTIONS.items():
        about = f"share of {motion}, {gas}"
        share = found[f"S_{key}"][0] * JOULE_PER_MOL
        if motion == "rotation":
            share -= turned
        capacity = found[f"Cv_{key}"][0] * JOULE_PER_MOL
        values[f"internal_energy_{motion}"] = Dataset(found[f"E_{key}"][0], "hartree", about)
        values[f"enthalpy_{motion}"] = Dataset(found[f"H_{key}"][0], "hartree", about)
        values[f"entropy_{motion}"] = Dataset(share, "J/(mol K)", about)
        values[f"heat_capacity_at_constant_volume_{motion}"] = Dataset(capacity, "J/(mol K)", about)
    return values


_GAS_CONSTANT = 8.31446261815324  # J/(mol K)
