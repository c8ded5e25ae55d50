"""Bonds, angles and contacts of a molecule, from the distances of its atoms
(`dfmp2.molecule.elements.bonds`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dfmp2.molecule.elements import bonds, internal_coordinate
from dfmp2.molecule.molecule import Molecule, hill_formula
from dfmp2.units import ANGSTROM_PER_BOHR

Bond = tuple[tuple[int, int], float]
Angle = tuple[tuple[int, int, int], float]


@dataclass(frozen=True, slots=True)
class Structure:
    """Bonds, angles and contacts of a geometry; atoms count from 0.

    Attributes
    ----------
    bonds : tuple of ((i, j), length)
        In angstrom.
    angles : tuple of ((i, j, k), angle)
        Between two bonds that meet at j, degrees.
    contacts : tuple of ((i, j), distance)
        For each fragment its atom closest to another fragment, angstrom; empty for one fragment.
    """

    bonds: tuple[Bond, ...]
    angles: tuple[Angle, ...]
    contacts: tuple[Bond, ...]


def structure(molecule: Molecule) -> Structure:
    """Bonds, angles and contacts of the real atoms."""
    places = molecule.coordinates * ANGSTROM_PER_BOHR
    pairs = bonds(molecule.symbols, places, molecule.ghost)
    lengths = tuple(((i, j), internal_coordinate(places[[i, j]])) for i, j in pairs)
    partners: dict[int, list[int]] = {atom: [] for atom in range(molecule.natom)}
    for i, j in pairs:
        partners[i].append(j)
        partners[j].append(i)
    angles = []
    for middle, around in partners.items():
        for i, k in combinations(sorted(around), 2):
            angle = math.degrees(internal_coordinate(places[[i, middle, k]]))
            angles.append(((i, middle, k), angle))
    return Structure(lengths, tuple(angles), _contacts(places, bonded_parts(molecule)))


def bonded_parts(molecule: Molecule) -> list[tuple[int, ...]]:
    """Sets of real atoms, from 0, that are connected by bonds: each in ascending order, the sets
    ordered by their first atom."""
    pairs = bonds(molecule.symbols, molecule.coordinates * ANGSTROM_PER_BOHR, molecule.ghost)
    return connected([atom for atom, ghost in enumerate(molecule.ghost) if not ghost], pairs)


def connected(atoms: Iterable[int], pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Sets of atoms that are connected by pairs, as in `bonded_parts`."""
    part = {atom: {atom} for atom in atoms}
    for i, j in pairs:
        if part[i] is not part[j]:
            part[i] |= part[j]
            for atom in part[j]:
                part[atom] = part[i]
    return sorted({tuple(sorted(atoms)) for atoms in part.values()})


def rotation_onto(places: np.ndarray, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The rotation R (3, 3) for which places @ R.T is closest to the target (W. Kabsch, Acta Cryst.
    A32, 922 (1976)).

    Parameters
    ----------
    places, target : (natom, 3) arrays
        Relative to their centres.
    weights : (natom,) array
        Weights of the squared distances.
    """
    left, _, right = np.linalg.svd((weights[:, None] * target).T @ places)
    if np.linalg.det(left @ right) < 0:
        left[:, 2] *= -1
    return np.asarray(left @ right)


def fragment_formulas(molecule: Molecule) -> str:
    """Formulas of the separate fragments, joined by plus signs, such as "CH3 + Cl"."""
    return " + ".join(
        hill_formula(molecule.symbols[atom] for atom in part) for part in bonded_parts(molecule)
    )


def _contacts(places: np.ndarray, parts: list[tuple[int, ...]]) -> tuple[Bond, ...]:
    """The shortest distance from each fragment to the others, each pair of atoms once; `places` in
    angstrom."""
    found: dict[tuple[int, int], float] = {}
    for part in parts:
        outside = sorted(atom for other in parts if other != part for atom in other)
        if not outside:
            return ()
        gaps = np.linalg.norm(places[list(part), None] - places[None, outside], axis=2)
        row, column = np.unravel_index(gaps.argmin(), gaps.shape)
        i, j = sorted((part[row], outside[column]))
        found[i, j] = float(gaps[row, column])
    return tuple(sorted(found.items()))
