"""Harmonic vibrations of a molecule from its Hessian, and its rotational symmetry.

    (1 - R R^T) M^-1/2 H M^-1/2 (1 - R R^T) L_k = w_k^2 L_k                                                         (1)
    mu_k = 1 / sum_i L_ik^2 / m_i                          reduced mass of the displacement L_ik / sqrt(m_i)       (2)
    A_k = N_A / (12 e_0 c^2) |sum_i (d mu / d x_i) L_ik / sqrt(m_i)|^2                infrared intensity           (3)

R contains the orthonormal, mass-weighted translations and rotations, six of them, or five for a
linear molecule. Masses default to those of the most abundant isotopes (`dfmp2.molecule.elements`).
Source: Wilson, Decius, Cross, Molecular Vibrations (McGraw-Hill, 1955). For the gas see
`dfmp2.studies.ideal_gas`.

The signs of the curvatures of the Hessian determine the kind of stationary point.

A minimum has no negative curvature, a transition state one, and a saddle point of order n has n.
Curvatures are taken along the vibrations, per length of the displacement of all atoms, excluding
rigid motions and constrained coordinates; with constraints, where g = sum_i l_i dc_i, the Hessian
is that of the energy along the constraints,

    H - sum_i l_i d^2 c_i        l_i: multipliers of the constrained coordinates c_i                                (1)

Differences of gradients leave some noise in a curvature, so values below NOISE have no definite
sign. Gradients from an SCF converged to 1e-11 Eh are off by at most 3e-8 Eh/bohr (H2O, NH2, H2CO,
Ne2 against 1e-13 Eh), which at displacements of 0.005 bohr amounts to up to 6e-6 Eh/bohr^2. NOISE
of 1e-5 Eh/bohr^2 corresponds to 16 cm^-1 for one moving hydrogen, and to 4 cm^-1 for two neon
atoms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import Command, NumericalError, Option
from dfmp2.gradients.result import GradientResult
from dfmp2.molecule.elements import mass
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.units import (
    BOHR_PER_ANGSTROM,
    WAVENUMBER_PER_HARTREE,
    counted_text,
    quantity,
    told_apart,
)

# CODATA 2018
ELECTRON_MASSES_PER_U = 1822.888486209
MDYNE_PER_ANGSTROM = 15.56893119  # in 1 Eh/bohr^2
INTENSITY = 974.8802  # km/mol for 1 e^2/u: N_A e^2 / (12 e_0 c^2 u)
DEPENDENT = 1e-6  # threshold for constraints and rigid motions, which are normalised
# bohr between an atom and its equivalent after a rotation, or the axis of a linear molecule;
# optimised geometries are not exact
SAME_PLACE = 0.05


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Vibrations:
    """Harmonic vibrations, lowest first, as arrays (n,).

    Attributes
    ----------
    displacements : (n, natom, 3), normalised atomic displacements
    removed : number of motions projected out; without constraints the rigid ones: 6, 5 for a linear
        molecule, 0 in a field
    """

    wavenumber: Array = quantity("cm^-1", "harmonic, negative where imaginary")
    ir_intensity: Array = quantity("km/mol", "infrared intensity, relaxed dipole moments")
    reduced_mass: Array = quantity("u", "of the normalised displacement")
    force_constant: Array = quantity("mdyn/angstrom", "of the vibration")
    displacements: Array
    removed: int


def masses(molecule: Molecule) -> Array:
    """Masses of the most abundant isotopes, (natom,), u.

    Raises
    ------
    InputError
        An element has no mass.
    """
    return np.array([mass(symbol) for symbol in molecule.symbols])


def vibrations(
    molecule: Molecule,
    hessian: Array,
    dipole_derivatives: Array,
    constraints: Array | None = None,
    weights: Array | None = None,
) -> Vibrations:
    """The vibrations of a molecule; among point charges, all 3 natom motions, because it cannot
    move freely.

    Parameters
    ----------
    hessian : array
        (3 natom, 3 natom) Eh/bohr^2, symmetric.
    dipole_derivatives : array
        (3 natom, 3) e.
    constraints : (m, 3 natom) array, optional
        Derivatives of fixed coordinates; only vibrations that leave these unchanged are returned.
    weights : (natom,) array, optional
        Masses of the atoms, u; by default those of the most abundant isotopes.
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
    displacements = (modes * np.sqrt(reduced)).T  # (n, 3 natom)
    largest = np.take_along_axis(displacements, _largest(displacements), axis=1)
    displacements = displacements * np.sign(largest)
    return Vibrations(
        wavenumber=roots * WAVENUMBER_PER_HARTREE,
        displacements=displacements.reshape(-1, molecule.natom, 3),
        reduced_mass=reduced,
        force_constant=squares * reduced * MDYNE_PER_ANGSTROM,
        ir_intensity=INTENSITY * (slopes**2).sum(axis=0),  # Eq. 3
        removed=excluded.shape[1],
    )


def _held(constraints: Array, rigid: Array) -> Array:
    """Orthonormal motions (3 natom, n): those that change a constraint, and the rigid motions that
    do not.

    Parameters
    ----------
    constraints : (m, 3 natom) array
        Their mass-weighted derivatives.
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
    """Indices (n, 1) of the largest component of each mode (n, 3 natom), which is made positive."""
    return np.argmax(np.abs(displacements).round(6), axis=1)[:, None]


def rigid_motions(molecule: Molecule, weights: Array) -> Array:
    """R of Eq. 1: orthonormal translations and rotations weighted with masses (natom,), u; (3
    natom, 6), or (3 natom, 5) for a linear molecule."""
    centred, axes = principal_axes(molecule, weights)
    if on_a_line(molecule):
        centred = np.outer(centred @ axes[2], axes[2])
    motions = [np.tile(axis, (len(weights), 1)) for axis in np.eye(3)]
    motions += [np.cross(axis, centred) for axis in axes[: 2 if on_a_line(molecule) else 3]]
    vectors = np.stack([(np.sqrt(weights)[:, None] * motion).ravel() for motion in motions], axis=1)
    return np.asarray(np.linalg.qr(vectors)[0])


def on_a_line(molecule: Molecule, tolerance: float = SAME_PLACE) -> bool:
    """Whether all atoms lie on one line, none farther from it than the tolerance, bohr."""
    return farthest_from_axis(molecule) < tolerance


def farthest_from_axis(molecule: Molecule) -> float:
    """Distance of the outermost atom from the axis of the smallest moment of inertia, bohr."""
    centred, axes = principal_axes(molecule, masses(molecule))
    away = centred - np.outer(centred @ axes[2], axes[2])
    return float(np.linalg.norm(away, axis=1).max())


def principal_axes(molecule: Molecule, weights: Array) -> tuple[Array, Array]:
    """Positions relative to the centre of mass (natom, 3) in bohr, and the principal axes as rows,
    with that of the smallest moment of inertia last.

    Parameters
    ----------
    weights : (natom,) array
        Masses, u.
    """
    centred = molecule.coordinates - weights @ molecule.coordinates / weights.sum()
    spread = np.einsum("a,ax,ay->xy", weights, centred, centred)
    return centred, np.linalg.eigh(spread)[1].T


def symmetry_number(molecule: Molecule, weights: Array | None = None) -> int:
    """Rotational symmetry number: the number of rotations, including the identity, that map like
    atoms onto each other.

    A rotation is determined by the images of two atoms not collinear with the centre; for a linear
    molecule only its reversal is possible. An atom has the number 1.

    Parameters
    ----------
    weights : (natom,) array, optional
        Masses, u, by default those of the most abundant isotopes; different isotopes are not alike.
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
        return bool(weights[i] == weights[j]) and abs(distance[i] - distance[j]) < SAME_PLACE

    frame, count = _frame(centred[first], centred[second]), 0
    for i in filter(lambda k: alike(first, k), range(molecule.natom)):
        for j in filter(lambda k: alike(second, k), range(molecule.natom)):
            if i != j and abs(gaps[i, j] - gaps[first, second]) < SAME_PLACE:
                rotation = _frame(centred[i], centred[j]).T @ frame
                count += _maps(weights, centred, centred @ rotation.T)
    return count


def _frame(first: Array, second: Array) -> Array:
    """A right-handed orthonormal frame as rows: along the first vector, in the plane of both, and
    normal to it."""
    x = first / np.linalg.norm(first)
    z = np.cross(first, second)
    z = z / np.linalg.norm(z)
    return np.stack([x, np.cross(z, x), z])


def _maps(weights: Array, places: Array, moved: Array) -> bool:
    """Whether every moved atom coincides with an atom of the same mass."""
    gaps = np.linalg.norm(moved[:, None] - places[None], axis=2)
    same = weights[:, None] == weights[None]
    return bool(((gaps < SAME_PLACE) & same).any(axis=1).all())


# --- kinds of stationary points -------------------------------------------------------------------

NOISE = 1e-5  # Eh/bohr^2
LARGEST_GRADIENT = 1e-3  # Eh/bohr, on an atom at an accepted stationary point
AWAY = 0.1 * BOHR_PER_ANGSTROM  # bohr; largest displacement of an atom along imaginary modes
KEPT = 0.01  # bohr; largest distance from a line or plane that forces do not leave


@dataclass(frozen=True, slots=True, eq=False)
class StationaryPoint:
    """A geometry with vanishing gradient, and its Hessian.

    Attributes
    ----------
    molecule : Molecule
        The molecule at this geometry.
    hessian : (3 natom, 3 natom) array
        Eh/bohr^2; with constraints, as in Eq. 1.
    modes : Vibrations
        Lowest first.
    """

    molecule: Molecule
    hessian: Array
    modes: Vibrations

    @property
    def curvatures(self) -> Array:
        """Curvatures along the modes, (n,), Eh/bohr^2."""
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
        """The kind: minimum, transition state, or saddle point of order n."""
        if self.imaginary == 0:
            return "minimum"
        if self.imaginary == 1:
            return "transition state"
        return f"saddle point of order {self.imaginary}"

    @property
    def lines(self) -> list[str]:
        """Lines for a report: the lowest modes, and anything uncertain."""
        numbers = self.modes.wavenumber
        shown = ", ".join(_wavenumber(x) for x in numbers[: max(3, self.imaginary)])
        said = [f"{self.kind}: {counted_text(self.imaginary, 'imaginary mode')} of {len(numbers)}"]
        if len(numbers):  # else the constraints leave none
            said[0] += f"; lowest: {shown} cm^-1"
        if self.flat:
            said.append(
                f"{counted_text(self.flat, 'mode')} with a curvature below {NOISE:g} Eh/bohr^2, "
                "the noise of the differences: neither sign is certain"
            )
        return said

    def sides(self, kept: int) -> tuple[Array, Array]:
        """Two geometries (natom, 3), bohr, displaced in opposite directions along the imaginary
        modes.

        Parameters
        ----------
        kept : int
            The number of lowest imaginary modes that are wanted and not followed.
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
    """The stationary point at the geometry of `molecule`.

    Parameters
    ----------
    hessian : (3 natom, 3 natom) array
        Eh/bohr^2, of the energy.
    gradient : (natom, 3) array
        Eh/bohr, of the energy.
    constraints : ((m, 3 natom) array, (m, 3 natom, 3 natom) array), optional
        First and second derivatives of the constrained coordinates.
    """
    none = np.zeros((3 * molecule.natom, 3))
    if constraints is None:
        return StationaryPoint(molecule, hessian, vibrations(molecule, hessian, none))
    first, second = constraints
    multipliers = np.linalg.lstsq(first.T, gradient.ravel(), rcond=None)[0]
    along = hessian - np.einsum("c,cij->ij", multipliers, second)  # Eq. 1
    return StationaryPoint(molecule, along, vibrations(molecule, along, none, first))


FOR_FREQUENCIES = (
    "frequencies are those of a stationary point: give the geometry that ",
    Command("optimize"),
    " has found, or ",
    Option("allow_gradient", True),
)


def require_stationary(
    result: MP2Result,
    advice: tuple[str | Command | Option, ...] = FOR_FREQUENCIES,
    *,
    goes_on: bool = True,
) -> None:
    """Raise unless the geometry is a stationary point.

    Parameters
    ----------
    advice : why it has to be one, and what to do
    goes_on : whether the command can continue at this geometry with other options

    Raises
    ------
    NumericalError : an atom has a large gradient
    """
    largest = largest_gradient(result)
    if not largest <= LARGEST_GRADIENT:
        found, most = told_apart(".1e", largest, LARGEST_GRADIENT)
        error = NumericalError(
            f"the gradient of an atom is {found} Eh/bohr, more than {most}: ", *advice
        )
        error.goes_on = goes_on
        raise error


def largest_gradient(result: MP2Result) -> float:
    """Length of the largest gradient of an atom, Eh/bohr."""
    return float(np.linalg.norm(GradientResult(result).gradient, axis=1).max())


def no_stationary_point(result: MP2Result) -> list[str]:
    """A sentence on a geometry that is not a stationary point; empty if it may be one."""
    if result.gradient is None or largest_gradient(result) <= LARGEST_GRADIENT:
        return []
    return [
        f"NO STATIONARY POINT: the gradient of an atom is {largest_gradient(result):.1e} Eh/bohr"
    ]


def symmetry_kept(molecule: Molecule) -> str:
    """Either "linear" or "planar" if all atoms are on a line or in a plane and forces cannot change
    that; otherwise "".

    Two atoms are always collinear and three coplanar; point charges can break either.
    """
    if molecule.natom < 3 or molecule.point_charges is not None:
        return ""
    if on_a_line(molecule, KEPT):
        return "linear"
    centred = molecule.coordinates - molecule.coordinates.mean(axis=0)
    normal = np.linalg.svd(centred)[2][2]
    if molecule.natom > 3 and abs(centred @ normal).max() < KEPT:
        return "planar"
    return ""


def _wavenumber(value: float) -> str:
    """The wavenumber as text, e.g. "1595.2", or "812.4i" if imaginary."""
    return f"{-value:.1f}i" if value < 0 else f"{value:.1f}"
