"""The Hessian in the file of a study, and the same for the molecule that is asked about now.

A Hessian turns with the molecule: with R the rotation that brings the stored geometry as near to the
new one as possible, H = R H' R^T for each pair of atoms.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError
from dfmp2.errors.messages import Command, Message, Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import rotation_onto
from dfmp2.output.study import Study, read_study
from dfmp2.studies.frequencies import DISPLACEMENT, REFERENCE, hessian
from dfmp2.units import ANGSTROM_PER_BOHR

Array = NDArray[np.float64]

FARTHEST = 0.5 / ANGSTROM_PER_BOHR  # bohr that an atom may be away for a Hessian to be a start
OPTION = Option("start_hessian")


@dataclass(frozen=True, slots=True, eq=False)
class StartHessian:
    """A Hessian, and what it is of.

    Attributes
    ----------
    path : str
        The file.
    molecule : Molecule
        At the geometry of the Hessian.
    hessian : (3 natom, 3 natom) array
        Eh/bohr^2.
    level : str
        Method and basis.
    """

    path: str
    molecule: Molecule
    hessian: Array
    level: str

    def turned_to(self, molecule: Molecule, farthest: float = FARTHEST) -> Array:
        """The Hessian for a molecule that lies elsewhere, (3 natom, 3 natom) Eh/bohr^2.

        Parameters
        ----------
        molecule : Molecule
        farthest : float, optional
            Bohr that an atom may be away after the rotation.

        Raises
        ------
        InputError : it is of other atoms, another charge or multiplicity, other point charges, or
            another geometry
        """
        for what, stored, asked in (
            ("atoms", " ".join(self.molecule.symbols), " ".join(molecule.symbols)),
            ("charge", self.molecule.charge, molecule.charge),
            ("multiplicity", self.molecule.multiplicity, molecule.multiplicity),
        ):
            if stored != asked:
                raise InputError(
                    OPTION.of(self.path),
                    f": {what} {stored} there, {asked} here: give the Hessian of this molecule",
                )
        if molecule.point_charges is not None or self.molecule.point_charges is not None:
            raise InputError(
                OPTION.of(self.path),
                ": in the field of point charges a Hessian does not turn with the molecule: leave "
                "it out",
            )
        before = self.molecule.coordinates - self.molecule.coordinates.mean(axis=0)
        now = molecule.coordinates - molecule.coordinates.mean(axis=0)
        rotation = rotation_onto(before, now, np.ones(molecule.natom))
        away = float(np.linalg.norm(now - before @ rotation.T, axis=1).max())
        if away > farthest:
            raise InputError(
                OPTION.of(self.path),
                f": an atom is {away * ANGSTROM_PER_BOHR:.2f} angstrom away from where it is here, "
                f"and {farthest * ANGSTROM_PER_BOHR:.2f} is allowed: give a Hessian of this "
                "geometry",
            )
        turn = np.kron(np.eye(molecule.natom), rotation)
        return turn @ self.hessian @ turn.T


def read_start_hessian(path: str | os.PathLike[str]) -> StartHessian:
    """The Hessian of `dfmp2 frequencies`, of a transition state that was looked for, of an
    optimisation with --verify, or of a reaction path.

    Raises
    ------
    InputError : the study has none, or one along constraints
    ResultFileError : no study, or damaged
    """
    study = read_study(Path(path))
    if study.kind == "optimization" and study.settings.get("constraints"):
        raise InputError(
            OPTION.of(str(path)), ": its Hessian is one along constraints: give one without them"
        )
    found = _stored(study)
    if found is None:
        raise InputError(
            OPTION.of(str(path)),
            f": this {study.kind} holds no Hessian: give a file of ",
            Command("frequencies"),
            " or of ",
            Command("optimize"),
            Message(" with ", Option("transition_state", True)),
        )
    molecule, second = found
    options = next(iter(study.runs.values())).options
    level = f"{options.correlation.level}/{options.basis}"
    return StartHessian(str(path), molecule, second, level)


def _stored(study: Study) -> tuple[Molecule, Array] | None:
    """Geometry and Hessian, None where there is none."""
    if "hessian" in study.arrays:
        stored = np.array(study.arrays["hessian"].value, dtype=np.float64)
        places = {"frequencies": REFERENCE, "irc": "transition-state"}
        if study.kind in places:
            return study.runs[places[study.kind]].molecule, stored
        return study.last, stored
    # A transition state that was looked for has the runs of the Hessian that it began with.
    results = study.results
    if study.kind == "optimization" and "plus-001-x" in results:
        first = results[study.settings["path"][0]].molecule
        if all(f"minus-{atom + 1:03d}-z" in results for atom in range(first.natom)):
            return first, hessian(first, results, DISPLACEMENT)
    return None
