"""The coordinate of a scan: which bond, angle, torsion or distance between fragments tells its geometries apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dfmp2.covalent_radii import bonds
from dfmp2.molecule import Molecule
from dfmp2.units import ANGSTROM_PER_BOHR

MOVED = 2e-3  # angstrom; a bond that changes less is taken as rigid
TURNED = 0.2  # degree
MOST_ATOMS = 150  # in larger molecules the geometries are only counted

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Values of a coordinate, one per geometry.

    Attributes
    ----------
    name : e.g. "distance H1-H2"
    unit : "angstrom" or "degree"
    values : one per geometry, all distinct
    others : other coordinates of the same kind change as well
    """

    name: str
    unit: str
    values: tuple[float, ...]
    others: bool


def find_coordinate(molecules: Sequence[Molecule]) -> Coordinate | None:
    """The coordinate that changes most, bonds before angles before torsions before fragments.

    Parameters
    ----------
    molecules : the same atoms in the same order

    Returns
    -------
    None when no coordinate takes another value at every geometry
    """
    if molecules[0].natom > MOST_ATOMS:
        return None
    frames = [molecule.coordinates * ANGSTROM_PER_BOHR for molecule in molecules]
    first = molecules[0]
    # A bond that breaks in the course of the scan is one all the same.
    joined = sorted({pair for frame in frames for pair in bonds(first.symbols, frame, first.ghost)})
    label = [f"{symbol}{k}" for k, symbol in enumerate(first.labels, start=1)]
    neighbours: dict[int, list[int]] = {k: [] for k in range(first.natom)}
    for i, j in joined:
        neighbours[i].append(j)
        neighbours[j].append(i)
    angles = [(i, k, j) for k, around in neighbours.items() for i, j in combinations(sorted(around), 2)]
    torsions = [(a, i, j, b) for i, j in joined for a in neighbours[i] for b in neighbours[j] if len({a, i, j, b}) == 4]
    kinds = (
        ("distance", "angstrom", MOVED, [(name, [_distance(f, *name) for f in frames]) for name in joined]),
        ("angle", "degree", TURNED, [(name, [_angle(f, *name) for f in frames]) for name in angles]),
        ("torsion", "degree", TURNED, [(name, _unwound([_torsion(f, *name) for f in frames])) for name in torsions]),
    )
    for kind, unit, least, candidates in kinds:
        moving = [(name, values) for name, values in candidates if max(values) - min(values) > least]
        if moving:
            name, values = max(moving, key=lambda one: round(max(one[1]) - min(one[1]), 6))
            return _distinct(f"{kind} {'-'.join(label[k] for k in name)}", unit, values, len(moving) > 1)
    return _between_fragments(frames, joined, first, label)


def _between_fragments(
    frames: list[Array], joined: list[tuple[int, int]], molecule: Molecule, label: list[str]
) -> Coordinate | None:
    """The distance between the nearest atoms (in the first geometry) of two fragments."""
    fragment = list(range(molecule.natom))
    for i, j in joined:
        fragment = [min(fragment[i], fragment[j]) if f in (fragment[i], fragment[j]) else f for f in fragment]
    apart = [(i, j) for i, j in combinations(range(molecule.natom), 2) if fragment[i] != fragment[j]]
    moving = [(i, j) for i, j in apart if np.ptp([_distance(f, i, j) for f in frames]) > MOVED]
    if not moving:
        return None
    i, j = min(moving, key=lambda pair: _distance(frames[0], *pair))
    return _distinct(f"distance {label[i]}-{label[j]}", "angstrom", [_distance(f, i, j) for f in frames], False)


def _distinct(name: str, unit: str, values: list[float], others: bool) -> Coordinate | None:
    if len({round(value, 5) for value in values}) < len(values):
        return None
    return Coordinate(name, unit, tuple(values), others)


def _distance(frame: Array, i: int, j: int) -> float:
    return float(np.linalg.norm(frame[i] - frame[j]))


def _angle(frame: Array, i: int, k: int, j: int) -> float:
    u, v = frame[i] - frame[k], frame[j] - frame[k]
    return math.degrees(math.atan2(float(np.linalg.norm(np.cross(u, v))), float(u @ v)))


def _torsion(frame: Array, a: int, i: int, j: int, b: int) -> float:
    u, axis, v = frame[i] - frame[a], frame[j] - frame[i], frame[b] - frame[j]
    m, n = np.cross(u, axis), np.cross(axis, v)
    return math.degrees(math.atan2(float(np.cross(m, n) @ axis) / float(np.linalg.norm(axis)), float(m @ n)))


def _unwound(values: list[float]) -> list[float]:
    """Torsions without jumps of 360 degrees from one geometry to the next."""
    return [float(value) for value in np.degrees(np.unwrap(np.radians(values)))]
