"""Covalent radii: which atoms a drawing joins, and whether a geometry looks read in the wrong unit.

Two atoms count as bonded when they are nearer than BOND times the sum of their radii. A drawing, the names of
coordinates and a warning depend on it, no energy does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dfmp2.elements import SYMBOLS
from dfmp2.units import BOHR_PER_ANGSTROM

# Angstrom, hydrogen to curium: Cordero et al., Dalton Trans. 2832 (2008), table 2 (low spin, sp3 carbon).
COVALENT = (
    *(0.31, 0.28),
    *(1.28, 0.96, 0.84, 0.76, 0.71, 0.66, 0.57, 0.58),
    *(1.66, 1.41, 1.21, 1.11, 1.07, 1.05, 1.02, 1.06),
    *(2.03, 1.76, 1.70, 1.60, 1.53, 1.39, 1.39, 1.32, 1.26, 1.24, 1.32, 1.22, 1.22, 1.20, 1.19, 1.20, 1.20, 1.16),
    *(2.20, 1.95, 1.90, 1.75, 1.64, 1.54, 1.47, 1.46, 1.42, 1.39, 1.45, 1.44, 1.42, 1.39, 1.39, 1.38, 1.39, 1.40),
    *(2.44, 2.15, 2.07, 2.04, 2.03, 2.01, 1.99, 1.98, 1.98, 1.96, 1.94, 1.92, 1.92, 1.89, 1.90, 1.87, 1.87),
    *(1.75, 1.70, 1.62, 1.51, 1.44, 1.41, 1.36, 1.36, 1.32, 1.45, 1.46, 1.48, 1.40, 1.50, 1.50),
    *(2.60, 2.21, 2.15, 2.06, 2.00, 1.96, 1.90, 1.87, 1.80, 1.69),
)
HEAVIEST = 1.69  # angstrom, for the elements beyond, of which none was measured
BOND = 1.25
SHORTEST, LONGEST = 0.6, 1.35  # bonds, in sums of the radii; N2 has 0.77 and F2 1.24
UNBOUND = ("He", "Ne", "Ar", "Kr", "Xe", "Rn")  # nothing need be near them
ROWS = 256  # of the distance matrix held at once


def radius(symbol: str) -> float:
    """Covalent radius of an element, angstrom."""
    place = SYMBOLS.index(symbol)
    return COVALENT[place] if place < len(COVALENT) else HEAVIEST


def bonds(symbols: tuple[str, ...], positions: NDArray[np.float64], ghost: tuple[bool, ...]) -> list[tuple[int, int]]:
    """Pairs i < j of real atoms that are bonded.

    Parameters
    ----------
    positions : (natom, 3) float64, angstrom
    """
    reach = np.array([radius(symbol) for symbol in symbols])
    found = []
    for i in range(len(symbols)):
        gaps = np.linalg.norm(positions[i + 1 :] - positions[i], axis=1)
        for j in np.flatnonzero(gaps < BOND * (reach[i] + reach[i + 1 :])) + i + 1:
            if not (ghost[i] or ghost[j]):
                found.append((i, int(j)))
    return found


def unit_doubt(symbols: tuple[str, ...], positions: NDArray[np.float64], ghost: tuple[bool, ...]) -> str:
    """What speaks for coordinates read in the wrong unit, for people; "" where nothing does.

    Two atoms are too near for any bond; or none is near enough to any other, and in bohr some would be. Atoms further
    apart, atoms beside a molecule, and noble gases are what the user wanted.

    Parameters
    ----------
    positions : (natom, 3) float64, angstrom
    """
    real = np.flatnonzero(~np.array(ghost))
    if real.size < 2:
        return ""
    points, reach = positions[real], np.array([radius(symbols[atom]) for atom in real])
    near, length = np.empty(real.size, dtype=np.intp), np.empty(real.size)  # nearest atom, in sums of the radii
    for start in range(0, real.size, ROWS):
        rows = slice(start, start + ROWS)
        ratio = np.linalg.norm(points[rows, None] - points, axis=2) / (reach[rows, None] + reach)
        ratio[np.arange(len(ratio)), np.arange(len(ratio)) + start] = np.inf
        near[rows] = ratio.argmin(axis=1)
        length[rows] = ratio.min(axis=1)
    bound = np.array([symbols[atom] not in UNBOUND for atom in real])
    if length.min() < SHORTEST:
        first, so = int(length.argmin()), "if the file was read in bohr and is in angstrom, leave out --units bohr"
    elif bound.any() and LONGEST < length[bound].min() < LONGEST * BOHR_PER_ANGSTROM:
        first = int(np.flatnonzero(bound)[length[bound].argmin()])
        so = "no atom is bonded; if the file was read in angstrom and is in bohr, give --units bohr"
    else:
        return ""
    i, j = sorted((int(real[first]), int(real[near[first]])))
    return (
        f"atoms {i + 1} {symbols[i]} and {j + 1} {symbols[j]} are {np.linalg.norm(positions[i] - positions[j]):.3f} "
        f"angstrom apart, {length[first]:.2f} times the sum of their covalent radii: {so}"
    )
