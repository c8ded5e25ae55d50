"""What kind of stationary point a geometry is, by the signs of the curvatures of its Hessian.

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

import numpy as np
from numpy.typing import NDArray

from dfmp2.molecule.molecule import Molecule
from dfmp2.output.document import counted_text
from dfmp2.studies.vibrations import MDYNE_PER_ANGSTROM, Vibrations, on_a_line, vibrations
from dfmp2.units import BOHR_PER_ANGSTROM

Array = NDArray[np.float64]

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
