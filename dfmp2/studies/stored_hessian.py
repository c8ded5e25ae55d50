"""The Hessian in the file of a study: for a gas, or to start from it at a geometry near its own.

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
from dfmp2.errors.messages import Command, Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import rotation_onto
from dfmp2.mp2.result import MP2Result
from dfmp2.output.study import Study, is_study, read_study
from dfmp2.studies.frequencies import DISPLACEMENT, REFERENCE, hessian
from dfmp2.studies.vibrations import Vibrations, vibrations
from dfmp2.units import ANGSTROM_PER_BOHR

Array = NDArray[np.float64]

FARTHEST = 0.5 / ANGSTROM_PER_BOHR  # bohr that an atom may be away for a Hessian to be a start
TRANSITION_STATE = "transition-state"  # run of a reaction path
OPTION = Option("start_hessian")


@dataclass(frozen=True, slots=True, eq=False)
class StoredHessian:
    """A Hessian, and what it is of.

    Attributes
    ----------
    path : str
        The file, for messages.
    result : MP2Result
        At the geometry of the Hessian.
    hessian : (3 natom, 3 natom) array
        Eh/bohr^2.
    dipole_derivatives : (3 natom, 3) array or None
        e; None where the file has none.
    constrained : bool
        It is the Hessian along constraints.
    at_start : bool
        It is that of the geometry that a search began with, no stationary point.
    """

    path: str
    result: MP2Result
    hessian: Array
    dipole_derivatives: Array | None = None
    constrained: bool = False
    at_start: bool = False

    @property
    def molecule(self) -> Molecule:
        """At the geometry of the Hessian."""
        return self.result.molecule

    def vibrations(self, weights: Array) -> Vibrations:
        """The vibrations with these masses (natom,), u."""
        slopes = self.dipole_derivatives
        if slopes is None:
            slopes = np.zeros((len(self.hessian), 3))
        return vibrations(self.molecule, self.hessian, slopes, weights=weights)

    def require_gas(self) -> None:
        """Refuse a Hessian of which no gas can be made.

        Raises
        ------
        InputError : it is of no stationary point, along constraints, or among point charges
        """
        if self.at_start:
            raise InputError(
                f"{self.path}: the Hessian is that of the geometry that the search began with: ",
                Command("frequencies"),
                " of the geometry that was found computes another",
            )
        if self.constrained:
            raise InputError(
                f"{self.path}: the Hessian is that along constraints, so there is no free molecule: ",
                Command("frequencies"),
                " of an unconstrained geometry makes a gas",
            )
        if self.molecule.point_charges is not None:
            raise InputError(
                f"{self.path}: among point charges the molecule cannot move freely, so there is no "
                "gas: ",
                Command("frequencies"),
                " of the molecule alone makes one",
            )

    def turned_to(self, molecule: Molecule, farthest: float = FARTHEST) -> Array:
        """The Hessian for a molecule that lies elsewhere, (3 natom, 3 natom) Eh/bohr^2.

        Parameters
        ----------
        molecule : Molecule
        farthest : float, optional
            Bohr that an atom may be away after the rotation.

        Raises
        ------
        InputError : it is one along constraints, of other atoms, another charge or multiplicity,
            other point charges, or another geometry
        """
        if self.constrained:
            raise InputError(
                OPTION.of(self.path),
                ": its Hessian is one along constraints: give one without them",
            )
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


def read_hessian(path: str | os.PathLike[str]) -> StoredHessian:
    """The Hessian in the file of a study; the caller checks that it fits what it is to be used for.

    Raises
    ------
    InputError : no such file, or one without a Hessian
    ResultFileError : it is damaged
    """
    file = Path(path)
    if file.exists() and not is_study(file):
        raise InputError(
            f"{path} holds no Hessian: expected a file of ",
            Command("frequencies"),
            ", which computes one, or of ",
            Command("optimize"),
            " with ",
            Option("verify", True),
        )
    return hessian_of(read_study(file), str(path))


def hessian_of(study: Study, path: str) -> StoredHessian:
    """The Hessian of a study; errors name its file.

    Raises
    ------
    InputError : it has none
    """
    constrained = bool(study.settings.get("constraints"))
    if "hessian" in study.arrays:
        slopes = study.arrays.get("dipole_derivatives")
        dipole_derivatives = None
        if slopes is not None:
            dipole_derivatives = slopes.value
        return StoredHessian(
            path=path,
            result=_result_at_hessian(study),
            hessian=np.array(study.arrays["hessian"].value, dtype=np.float64),
            dipole_derivatives=dipole_derivatives,
            constrained=constrained,
        )
    # A transition state that was looked for has the runs of the Hessian that it began with.
    results = study.results
    if study.kind == "optimization" and "plus-001-x" in results:
        first = results[study.settings["path"][0]]
        natom = first.molecule.natom
        if all(f"minus-{atom + 1:03d}-z" in results for atom in range(natom)):
            return StoredHessian(
                path=path,
                result=first,
                hessian=hessian(first.molecule, results, DISPLACEMENT),
                constrained=constrained,
                at_start=True,
            )
    state = ""
    if not study.complete:
        state = ", for it is not complete: the command that began it goes on"
    raise InputError(
        f"{path} is a study of kind {study.kind} without a Hessian{state}: ",
        Command("frequencies"),
        " computes one",
    )


def _result_at_hessian(study: Study) -> MP2Result:
    """The run at the geometry of the Hessian."""
    if study.kind == "optimization":
        return list(study.path.values())[-1]
    if study.kind == "irc":
        return study.runs[TRANSITION_STATE]
    return study.runs[REFERENCE]
