"""Harmonic vibrations of a molecule from its Hessian, and the rotations that put it onto itself.

    (1 - R R^T) M^-1/2 H M^-1/2 (1 - R R^T) L_k = w_k^2 L_k                                                         (1)
    mu_k = 1 / sum_i L_ik^2 / m_i                          reduced mass of the displacement L_ik / sqrt(m_i)       (2)
    A_k = N_A / (12 e_0 c^2) |sum_i (d mu / d x_i) L_ik / sqrt(m_i)|^2                infrared intensity           (3)

R: translations and rotations of the whole, orthonormal and weighted with masses, six of them, five
where all atoms lie on a line. Masses are those of the most abundant isotopes
(`dfmp2.molecule.elements`) where no others are given. Source: Wilson, Decius, Cross, Molecular
Vibrations (McGraw-Hill, 1955). What follows for a gas is in `dfmp2.studies.ideal_gas`.

Below: what kind of stationary point a geometry is, by the signs of the curvatures of its Hessian.

A minimum has no negative one, a transition state has one, a saddle point of order n has n.
Curvatures are those along the vibrations, per length of the displacement of all atoms; without the
rigid motions, and without what is constrained: there, with g = sum_i l_i dc_i, the Hessian is that
of the energy along the constraints,

    H - sum_i l_i d^2 c_i        l_i: multipliers of the constrained coordinates c_i                                (1)

Differences of gradients leave some noise in a curvature, so one that is smaller than NOISE has no
sign. Gradients of an SCF that has converged to 1e-11 Eh are off by 3e-8 Eh/bohr at most (H2O, NH2,
H2CO, Ne2 against 1e-13 Eh). At displacements of 0.005 bohr that leaves up to 6e-6 Eh/bohr^2. NOISE
of 1e-5 Eh/bohr^2 is a wavenumber of 16 cm^-1 where one hydrogen moves, and of 4 cm^-1 where two
neon atoms do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.molecule.elements import mass
from dfmp2.molecule.molecule import Molecule
from dfmp2.units import BOHR_PER_ANGSTROM, WAVENUMBER_PER_HARTREE, counted_text, quantity

Array = NDArray[np.float64]

# CODATA 2018
ELECTRON_MASSES_PER_U = 1822.888486209
MDYNE_PER_ANGSTROM = 15.56893119  # of 1 Eh/bohr^2
INTENSITY = 974.8802  # km/mol for 1 e^2/u: N_A e^2 / (12 e_0 c^2 u)
ON_A_LINE = 0.01  # bohr from the axis, of every atom of a linear molecule
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
    InputError
        An element has none.
    """
    return np.array([mass(symbol) for symbol in molecule.symbols])


def vibrations(
    molecule: Molecule,
    hessian: Array,
    dipole_derivatives: Array,
    constraints: Array | None = None,
    weights: Array | None = None,
) -> Vibrations:
    """The vibrations of a molecule; among point charges, where it cannot move freely, all 3 natom
    motions.

    Parameters
    ----------
    hessian : array
        (3 natom, 3 natom) Eh/bohr^2, symmetric.
    dipole_derivatives : array
        (3 natom, 3) e.
    constraints : (m, 3 natom) array, optional
        Derivatives of coordinates that cannot change; the vibrations are those that leave them
        alone.
    weights : (natom,) array, optional
        Masses of the atoms, u; those of the most abundant isotopes where they are left out.
    """
    if weights is None:
        weights = masses(molecule)
    rigid = np.zeros((3 * molecule.natom, 0))
    if molecule.point_charges is None:
        rigid = rigid_motions(molecule, weights)
    weights = np.repeat(weights, 3)
    weighted = hessian / np.sqrt(np.outer(weights, weights))
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


def rigid_motions(molecule: Molecule, weights: Array) -> Array:
    """R of Eq. 1: translations and rotations, (3 natom, 6), orthonormal and weighted with masses
    (natom,), u; (3 natom, 5) on a line."""
    centred, axes = principal_axes(molecule, weights)
    if on_a_line(molecule):
        centred = np.outer(centred @ axes[2], axes[2])
    motions = [np.tile(axis, (len(weights), 1)) for axis in np.eye(3)]
    motions += [np.cross(axis, centred) for axis in axes[: 2 if on_a_line(molecule) else 3]]
    vectors = np.stack([(np.sqrt(weights)[:, None] * motion).ravel() for motion in motions], axis=1)
    return np.asarray(np.linalg.qr(vectors)[0])


def on_a_line(molecule: Molecule) -> bool:
    """Whether all atoms lie on one line."""
    centred, axes = principal_axes(molecule, masses(molecule))
    away = centred - np.outer(centred @ axes[2], axes[2])
    return bool(np.linalg.norm(away, axis=1).max() < ON_A_LINE)


def principal_axes(molecule: Molecule, weights: Array) -> tuple[Array, Array]:
    """Positions about the centre of mass (natom, 3) in bohr, and the principal axes as rows, that
    of the smallest moment of inertia last.

    Parameters
    ----------
    weights : (natom,) array
        Masses, u.
    """
    centred = molecule.coordinates - weights @ molecule.coordinates / weights.sum()
    spread = np.einsum("a,ax,ay->xy", weights, centred, centred)
    return centred, np.linalg.eigh(spread)[1].T


def symmetry_number(molecule: Molecule, weights: Array | None = None) -> int:
    """Number of rotations, the identity included, that put like atoms in each other's places.

    A rotation is fixed by where it puts two atoms that are not on a line with the centre; on a line
    there is none but the one that turns it round. An atom has one.

    Parameters
    ----------
    weights : (natom,) array, optional
        Masses, u: isotopes are not alike. Those of the most abundant ones where they are left out.
    """
    if molecule.natom == 1:
        return 1
    if weights is None:
        weights = masses(molecule)
    centred, axes = principal_axes(molecule, weights)
    if on_a_line(molecule):
        return 1 + _maps(weights, centred, -np.outer(centred @ axes[2], axes[2]))
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
        same = bool(weights[i] == weights[j])
        return same and abs(distance[i] - distance[j]) < SAME_PLACE

    frame, count = _frame(centred[first], centred[second]), 0
    for i in filter(lambda k: alike(first, k), range(molecule.natom)):
        for j in filter(lambda k: alike(second, k), range(molecule.natom)):
            if i != j and abs(gaps[i, j] - gaps[first, second]) < SAME_PLACE:
                rotation = _frame(centred[i], centred[j]).T @ frame
                count += _maps(weights, centred, centred @ rotation.T)
    return count


def _frame(first: Array, second: Array) -> Array:
    """Right-handed orthonormal rows: along the first vector, in the plane of both, and normal to
    it."""
    x = first / np.linalg.norm(first)
    z = np.cross(first, second)
    z = z / np.linalg.norm(z)
    return np.stack([x, np.cross(z, x), z])


def _maps(weights: Array, places: Array, moved: Array) -> bool:
    """Whether every atom that was moved is where one of its mass is."""
    gaps = np.linalg.norm(moved[:, None] - places[None], axis=2)
    same = weights[:, None] == weights[None]
    return bool(((gaps < SAME_PLACE) & same).any(axis=1).all())


# --- kinds of stationary points -------------------------------------------------------------------

NOISE = 1e-5  # Eh/bohr^2
AWAY = 0.1 * BOHR_PER_ANGSTROM  # bohr; how far the atom that moves most goes along imaginary modes
IN_A_PLANE = 0.01  # bohr from the plane, of every atom of a planar molecule


@dataclass(frozen=True, slots=True, eq=False)
class StationaryPoint:
    """A geometry, where the gradient vanishes, with its Hessian.

    Attributes
    ----------
    molecule : Molecule
        At this geometry.
    hessian : (3 natom, 3 natom) array
        Eh/bohr^2, as Eq. 1 has it where there are constraints.
    modes : Vibrations
        Lowest first.
    """

    molecule: Molecule
    hessian: Array
    modes: Vibrations

    @property
    def curvatures(self) -> Array:
        """(n,) Eh/bohr^2 along the modes."""
        return self.modes.force_constant / MDYNE_PER_ANGSTROM

    @property
    def imaginary(self) -> int:
        """Number of modes whose curvature is negative beyond the noise."""
        return int((self.curvatures < -NOISE).sum())

    @property
    def flat(self) -> int:
        """Number of modes whose curvature is too small to have a sign."""
        return int((abs(self.curvatures) <= NOISE).sum())

    @property
    def kind(self) -> str:
        """minimum, transition state, or saddle point of order n."""
        if self.imaginary == 0:
            return "minimum"
        if self.imaginary == 1:
            return "transition state"
        return f"saddle point of order {self.imaginary}"

    @property
    def lines(self) -> list[str]:
        """What is to be said of it: the lowest modes, and what is not certain."""
        numbers = self.modes.wavenumber
        shown = ", ".join(_wavenumber(x) for x in numbers[: max(3, self.imaginary)])
        said = [
            f"{self.kind}: {counted_text(self.imaginary, 'imaginary mode')} of {len(numbers)}; "
            f"lowest: {shown} cm^-1"
        ]
        if self.flat:
            said.append(
                f"{counted_text(self.flat, 'mode')} with a curvature below {NOISE:g} Eh/bohr^2, "
                "the noise of the differences: neither sign is certain"
            )
        return said

    def sides(self, kept: int) -> tuple[Array, Array]:
        """Two geometries (natom, 3), bohr, away from here along the imaginary modes.

        Parameters
        ----------
        kept : int
            The number of imaginary modes that are wanted, lowest first, and not followed.
        """
        move = self.modes.displacements[kept : self.imaginary].sum(axis=0)
        move *= AWAY / np.linalg.norm(move, axis=1).max()
        return self.molecule.coordinates + move, self.molecule.coordinates - move


def stationary_point(
    molecule: Molecule,
    hessian: Array,
    gradient: Array,
    constraints: tuple[Array, Array] | None = None,
) -> StationaryPoint:
    """The kind of the stationary point that `molecule` is at.

    Parameters
    ----------
    hessian : (3 natom, 3 natom) array
        Eh/bohr^2, of the energy.
    gradient : (natom, 3) array
        Eh/bohr, of the energy.
    constraints : ((m, 3 natom) array, (m, 3 natom, 3 natom) array), optional
        First and second derivatives of the coordinates that are constrained.
    """
    none = np.zeros((3 * molecule.natom, 3))
    if constraints is None:
        return StationaryPoint(molecule, hessian, vibrations(molecule, hessian, none))
    first, second = constraints
    multipliers = np.linalg.lstsq(first.T, gradient.ravel(), rcond=None)[0]
    along = hessian - np.einsum("c,cij->ij", multipliers, second)  # Eq. 1
    return StationaryPoint(molecule, along, vibrations(molecule, along, none, first))


def symmetry_kept(molecule: Molecule) -> str:
    """linear or planar where forces cannot change it: all atoms on a line or in a plane; ""
    elsewhere.

    Two atoms are always on a line, and three in a plane; point charges can push atoms out of it.
    """
    if molecule.natom < 3 or molecule.point_charges is not None:
        return ""
    if on_a_line(molecule):
        return "linear"
    centred = molecule.coordinates - molecule.coordinates.mean(axis=0)
    normal = np.linalg.svd(centred)[2][2]
    if molecule.natom > 3 and abs(centred @ normal).max() < IN_A_PLANE:
        return "planar"
    return ""


def _wavenumber(value: float) -> str:
    """As "1595.2", and "812.4i" where it is imaginary."""
    if value < 0:
        return f"{-value:.1f}i"
    return f"{value:.1f}"
