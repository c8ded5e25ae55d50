"""Molecules on springs, whose gradients take no time, for studies with many gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from dfmp2.errors import Interrupted
from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options, make_options
from dfmp2.progress import Silent
from dfmp2.scf.reference import StartOrbitals
from dfmp2.studies import task

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
CHARGES = np.array([-0.6, 0.3, 0.3, 0.0])  # e, of the dipole moment
STOPPED = Interrupted("stopped")

Energy = Callable[[np.ndarray], float]  # Eh, of places (natom, 3) in bohr


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


def network(rest: np.ndarray, place: np.ndarray) -> float:
    """Energy of springs between all atoms, which are at rest in one geometry, Eh."""
    one, other = np.triu_indices(len(place), 1)
    lengths = np.linalg.norm(place[one] - place[other], axis=1)
    at_rest = np.linalg.norm(rest[one] - rest[other], axis=1)
    return float(0.2 * ((lengths / at_rest - 1) ** 2).sum())


def slopes(place: np.ndarray, energy: Energy = springs) -> np.ndarray:
    """Gradient of an energy, (natom, 3) Eh/bohr, by differences."""
    step = 1e-4
    found = np.zeros(place.shape)
    for k in np.ndindex(place.shape):
        moved = np.zeros(place.shape)
        moved[k] = step
        found[k] = (energy(place + moved) - energy(place - moved)) / (2 * step)
    return found


def second_derivatives(place: np.ndarray, energy: Energy = springs) -> np.ndarray:
    """Second derivatives of an energy, (3 natom, 3 natom) Eh/bohr^2, by differences."""
    step = 1e-3
    moves = step * np.eye(place.size).reshape(-1, *place.shape)
    found = np.zeros((place.size, place.size))
    for (a, one), (b, other) in product(enumerate(moves), repeat=2):
        for first, second in product((1, -1), repeat=2):
            found[a, b] += first * second * energy(place + first * one + second * other)
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
    lower, higher, saddle = sorted(turns, key=lambda k: energies[k])
    order = (lower, saddle, higher)
    return [float(tilts[k]) for k in order], [float(energies[k]) for k in order]


TEMPLATES: dict[Any, MP2Result] = {}


def template_of(molecule: Molecule) -> MP2Result:
    """A result of these atoms at some geometry, with all that a file needs."""
    atoms = molecule.symbols, molecule.charge, molecule.multiplicity
    if atoms not in TEMPLATES:
        free = replace(molecule, point_charges=None)
        TEMPLATES[atoms] = mp2_gradient(free, ON_SPRINGS, listener=Silent()).result
    return TEMPLATES[atoms]


def run_of(
    molecule: Molecule,
    options: Options = ON_SPRINGS,
    energy: Energy = springs,
    start: StartOrbitals | None = None,
) -> MP2Result:
    """A run with this energy, its gradient, and a dipole moment of CHARGES."""
    template = template_of(molecule)
    place = molecule.coordinates
    reference = replace(
        template.reference,
        scf_total_energy=energy(place)
        + template.reference.scf_total_energy
        - template.total_energy,
        start=start.origin if start else template.reference.start,
    )
    charges = CHARGES[: len(place)]
    return replace(
        template,
        molecule=molecule,
        options=options,
        reference=reference,
        gradient=replace(template.gradient, mp2_total_gradient=slopes(place, energy)),
        properties=replace(template.properties, relaxed_dipole=charges @ place[: len(charges)]),
    )


def on_springs(
    patch: pytest.MonkeyPatch,
    start: Molecule,
    energy: Energy = springs,
    *,
    stop: int = 0,
    error: BaseException = STOPPED,
) -> list[Molecule]:
    """Replace MP2 energies and gradients of studies by these, and every plan by that of the first
    geometry; the `stop`-th request raises the error. Yields the requested geometries."""
    asked: list[Molecule] = []
    planned = task._planned(task.Step("start", "start", start, ON_SPRINGS))

    def compute(
        molecule: Molecule, options: Options, *, start: StartOrbitals | None = None, **_: object
    ) -> MP2Result:
        if len(asked) + 1 == stop:
            raise error
        asked.append(molecule)
        return run_of(molecule, options, energy, start)

    for study in ("optimize", "frequencies", "reaction_path"):
        patch.setattr(f"dfmp2.studies.{study}.certified_gradient", compute)
    patch.setattr("dfmp2.mp2.energy.mp2_energy", compute)
    patch.setattr(task, "_planned", lambda *_: planned)
    return asked
