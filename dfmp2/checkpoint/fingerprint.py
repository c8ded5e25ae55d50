"""Whose a checkpoint is: short texts that name everything on which the last bit of a result depends."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from dfmp2.basis import BasisSet
from dfmp2.errors import ForeignCheckpoint
from dfmp2.molecule import Molecule
from dfmp2.record import StartOrbitals

SHOWN = 40  # characters of a value in a message


def geometry(molecule: Molecule) -> str:
    """SHA-256 of labels and coordinates (their bits)."""
    digest = hashlib.sha256(" ".join(molecule.labels).encode())
    digest.update(molecule.coordinates.astype("<f8").tobytes())
    return digest.hexdigest()


def point_charges(molecule: Molecule) -> str:
    """SHA-256 of the point charges around it (their bits)."""
    if molecule.point_charges is None:
        return "none"
    return hashlib.sha256(molecule.point_charges.astype("<f8").tobytes()).hexdigest()


def basis(given: BasisSet | None) -> str:
    """SHA-256 of exponents, coefficients and core potentials; the name does not count."""
    if given is None:
        return "none"
    text = " ".join(f"{symbol} {element.sha256}" for symbol, element in sorted(given.elements.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def start_orbitals(start: StartOrbitals | None) -> str:
    """SHA-256 of coefficients and occupations."""
    if start is None:
        return "atomic densities"
    return hashlib.sha256(start.mo_coeff.tobytes() + start.mo_occ.tobytes()).hexdigest()


def require_same(there: Mapping[str, str], here: Mapping[str, str], path: str) -> None:
    """Refuse the checkpoint of another calculation.

    Raises
    ------
    ForeignCheckpoint : names what differs
    """
    different = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if different:
        said = ", ".join(_difference(name, there.get(name, "none"), here.get(name, "none")) for name in different)
        raise ForeignCheckpoint(
            f"{path} belongs to another calculation: {said}: give the same molecule and options, or delete it to "
            "start what it belongs to from the beginning"
        )


def _difference(name: str, there: str, here: str) -> str:
    """Name and both values where people can read them; a hash says nothing."""
    short = max(len(there), len(here)) <= SHOWN
    return f"{name} ({there} there, {here} here)" if short else f"{name} differs"
