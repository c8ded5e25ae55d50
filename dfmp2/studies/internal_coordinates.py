"""Internal coordinates of geomeTRIC, with our model of their Hessian.

Translation-rotation-internal coordinates: Wang, Song, J. Chem. Phys. 144, 214108 (2016). The model
Hessian is softer here: the force constant of a torsion about the bond jk is

    0.0023 - 0.07 (r_jk - r_cov)    Eh/rad^2, 0.0023 at least, lengths in bohr                                      (1)

(Schlegel, Theor. Chim. Acta 66, 333 (1984)); geomeTRIC has ten times as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dfmp2.molecule.elements import radius
from dfmp2.molecule.molecule import Molecule
from dfmp2.units import BOHR_PER_ANGSTROM

BETWEEN_FRAGMENTS = 0.02  # Eh/bohr^2, in the model; geomeTRIC has 0.05
# softest force constants of molecules, as fractions of those of the model
SOFTEST = {"Distance": 0.5, "Angle": 0.3, "LinearAngle": 0.1, "Dihedral": 0.2, "OutOfPlane": 0.2}
REDUNDANT = 1e-6  # of the metric of internal coordinates; smaller eigenvalues count as zero


def torsional_constant(molecule: Molecule, places: Any, j: int, k: int) -> float:
    """Force constant of Eq. 1, Eh/rad^2, for the bond between atoms j and k at `places` (natom, 3),
    bohr."""
    stretched = float(np.linalg.norm(places[j] - places[k])) - BOHR_PER_ANGSTROM * sum(
        radius(molecule.symbols[atom]) for atom in (j, k)
    )
    return 0.0023 - 0.07 * min(0.0, stretched)


def make_coordinates(
    molecule: Molecule, atoms: Any, origin: Molecule, constraints: str, *, connect: bool
) -> Any:
    """Internal coordinates of geomeTRIC, with our model of their Hessian.

    Parameters
    ----------
    atoms : geomeTRIC's molecule
    origin : the molecule whose coordinates are frozen
    constraints : in geomeTRIC's format, "" for none
    connect : connect all atoms by bonds

    Constraints are coordinates themselves. geomeTRIC's algorithms (conmethod) hold combinations that
    are the constraints at the first geometry only, or take nearly redundant coordinates.
    """
    from geometric.internal import DelocalizedInternalCoordinates, Dihedral
    from geometric.prepare import parse_constraints
    from scipy.linalg import block_diag

    class Coordinates(DelocalizedInternalCoordinates):  # type: ignore[misc]
        """Coordinates with constraints among them, and with our model of the Hessian."""

        def build_dlc_1(self, place: Any) -> None:
            """The constraints (first m columns of Vecs), and the eigenvectors of the metric of the
            other primitive coordinates, once the constraints are projected out."""
            metric = self.Prims.GMatrix(place)
            held = len(self.Prims.cPrims)  # geomeTRIC lists them first
            mixed = metric[held:, :held]
            free = metric[held:, held:] - mixed @ np.linalg.pinv(metric[:held, :held]) @ mixed.T
            weights, vectors = np.linalg.eigh(free)
            self.Vecs = block_diag(np.eye(held), vectors[:, weights > REDUNDANT])
            self.cDLC = list(range(held))
            self.rDLC: list[int] = []  # held in searches with rigid molecules
            self.Internals = [f"DLC {k + 1}" for k in range(self.Vecs.shape[1])]

        def calcGradProj(self, place: Any, gradient: Any) -> Any:  # noqa: N802
            """The gradient less its least-squares part along the constraints' derivatives."""
            held = constrained_directions(self, place)
            return gradient - held.T @ np.linalg.lstsq(held.T, gradient, rcond=None)[0]

        def guess_hessian(self, place: Any) -> Any:
            return self.model_hessian(place, BETWEEN_FRAGMENTS, {})

        def softest_hessian(self, place: Any, between: float) -> Any:
            """The model Hessian of the softest conceivable molecule: SOFTEST, and `between`
            fragments, Eh/bohr^2."""
            return self.model_hessian(place, between, SOFTEST)

        def model_hessian(self, place: Any, between: float, factors: Mapping[str, float]) -> Any:
            """The model with Eq. 1, `between` fragments, Eh/bohr^2, and factors by kind."""
            model = self.Prims.guess_hessian(place)
            for k, primitive in enumerate(self.Prims.Internals):
                kind = type(primitive).__name__
                if type(primitive) is Dihedral:
                    model[k, k] = torsional_constant(
                        molecule, place.reshape(-1, 3), primitive.b, primitive.c
                    )
                if len(self.Prims.frags) > 1 and kind.startswith(("Translation", "Rotation")):
                    model[k, k] = between
                else:
                    model[k, k] *= factors.get(kind, 1.0)
            metric = self.Prims.GMatrix(place)
            primitives = metric @ self.Vecs @ np.linalg.pinv(self.Vecs.T @ metric @ self.Vecs)
            return primitives.T @ model @ primitives

    objects, values = None, None
    if constraints.strip():
        objects, (values, *_) = parse_constraints(atoms, constraints)
        place = origin.coordinates.ravel()
        for k, held in enumerate(objects):
            if values[k] is None:  # geomeTRIC would take that of `atoms`
                values[k] = held.value(place)
    return Coordinates(
        atoms,
        build=True,
        connect=connect,
        addcart=False,
        constraints=objects,
        cvals=values,
        conmethod=1,
    )


def constrained_directions(coordinates: Any, place: Any) -> Any:
    """First derivatives (m, 3 natom) of the constrained coordinates at `place` (3 natom,)."""
    places = place.reshape(-1, 3)
    return np.array([one.derivative(places).ravel() for one in coordinates.Prims.cPrims])
