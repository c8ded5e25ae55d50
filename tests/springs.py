"""Molecules on springs, whose gradients take no time, for studies with many gradients."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from dfmp2.errors import Interrupted
from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options, make_options
from dfmp2.progress import Silent

ON_SPRINGS = make_options(
    basis="sto-3g",
    scf_auxbasis="def2-universal-jkfit",
    auxbasis="def2-svp-ri",
    precision="fp64",
    stability="off",
    threads=1,
)
BOND, ANGLE = 1.8, 1.9  # bohr, rad: at the minimum of `springs`
HANDED = 1e-3  # Eh; three bonds on one side of their first atom are lower by it than on the other
CHARGES = np.array([-0.6, 0.3, 0.3, 0.0])  # of the dipole moment


def springs(place: np.ndarray) -> float:
    """Energy of one to three bonds from the first atom and the angles between them, all springs,
    Eh; the straight geometry of two is a second-order saddle point, and there is a first-order one
    between the two pyramids of three."""
    arms = place[1:] - place[0]
    bonds = np.linalg.norm(arms, axis=1)
    energy = 0.25 * ((bonds - BOND) ** 2).sum()
    directions = arms / bonds[:, None]
    for one, other in combinations(directions, 2):
        energy += 0.1 * (one @ other - np.cos(ANGLE)) ** 2
    if len(arms) == 3:
        energy += HANDED * np.linalg.det(directions)
    return float(energy)


def second_derivatives(place: np.ndarray) -> np.ndarray:
    """Second derivatives of `springs`, (3 natom, 3 natom) Eh/bohr^2, by differences."""
    step = 1e-3
    moves = step * np.eye(place.size).reshape(-1, *place.shape)
    found = np.zeros((place.size, place.size))
    for (a, one), (b, other) in product(enumerate(moves), repeat=2):
        for first, second in product((1, -1), repeat=2):
            found[a, b] += first * second * springs(place + first * one + second * other)
    return found / (4 * step**2)


def pyramid(tilt: float) -> np.ndarray:
    """Places of four atoms with bonds of length BOND, all at an angle `tilt` to an axis."""
    turns = np.arange(3) * 2 * np.pi / 3
    around = np.sin(tilt) * np.array([np.cos(turns), np.sin(turns)])
    arms = np.column_stack((*around, np.full(3, np.cos(tilt))))
    return BOND * np.vstack((np.zeros(3), arms))


def pyramids() -> tuple[list[float], list[float]]:
    """Tilts of the lower pyramid, the saddle point and the higher pyramid, and their energies."""
    tilts = np.linspace(0.5, np.pi - 0.5, 40001)
    # Of equal directions: cos(angle) = 1 - 3/2 sin^2, determinant = (27/4)^1/2 sin^2 cos
    square = np.sin(tilts) ** 2
    angles = 0.3 * (1 - 1.5 * square - np.cos(ANGLE)) ** 2
    energies = angles + HANDED * np.sqrt(6.75) * square * np.cos(tilts)
    turns = np.flatnonzero(np.diff(np.sign(np.diff(energies)))) + 1
    found = sorted(turns, key=lambda k: energies[k])
    lower, higher, saddle = found
    order = (lower, saddle, higher)
    return [float(tilts[k]) for k in order], [float(energies[k]) for k in order]


def on_springs(patch: pytest.MonkeyPatch, start: Molecule, stop: int = 0) -> list[Molecule]:
    """Replace MP2 gradients by those of `springs` until the `stop`-th request; yields the requested
    geometries."""
    template = mp2_gradient(start, ON_SPRINGS, listener=Silent()).result
    asked: list[Molecule] = []

    def compute(molecule: Molecule, options: Options, **_: object) -> MP2Result:
        if stop and len(asked) + 1 == stop:
            raise Interrupted("stopped")
        asked.append(molecule)
        place, step = molecule.coordinates, 1e-4
        slopes = np.zeros(place.shape)
        for k in np.ndindex(place.shape):
            moved = np.zeros(place.shape)
            moved[k] = step
            slopes[k] = (springs(place + moved) - springs(place - moved)) / (2 * step)
        energy = template.reference.scf_total_energy + springs(place) - template.total_energy
        return replace(
            template,
            molecule=molecule,
            options=options,
            reference=replace(template.reference, scf_total_energy=energy),
            gradient=replace(template.gradient, mp2_total_gradient=slopes),
            properties=replace(template.properties, relaxed_dipole=CHARGES[: len(place)] @ place),
        )

    for study in ("optimize", "frequencies", "reaction_path"):
        patch.setattr(f"dfmp2.studies.{study}.certified_gradient", compute)
    return asked
