"""Molecules on springs, whose gradients take no time, for studies with many gradients."""

from __future__ import annotations

from dataclasses import replace

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
CHARGES = np.array([-0.6, 0.3, 0.3, 0.0])  # of the dipole moment


def springs(place: np.ndarray) -> float:
    """Energy of one or two bonds from the first atom and the angle between them, all springs, Eh;
    the straight geometry is a second-order saddle point."""
    arms = place[1:] - place[0]
    bonds = np.linalg.norm(arms, axis=1)
    energy = 0.25 * ((bonds - BOND) ** 2).sum()
    if len(arms) == 2:
        energy += 0.1 * (arms[0] @ arms[1] / bonds.prod() - np.cos(ANGLE)) ** 2
    return float(energy)


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

    for study in ("optimize", "frequencies"):
        patch.setattr(f"dfmp2.studies.{study}.certified_gradient", compute)
    return asked
