"""Point charges around a molecule: validated numbers, and their energy with its nuclei.

    V(r) = -sum_k q_k / |r - R_k|  per electron        E = sum_A sum_k Z_A q_k / |R_A - R_k|  with the nuclei

Z is the nuclear charge minus the electrons that an effective core potential replaces; ghosts do not
contribute. The energy of the charges with each other is a constant of the surroundings and is left
out, as in PySCF and Psi4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import InputError
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM, told_apart

MAX_POSITION = 1e4  # bohr, as for atoms
MAX_CHARGE = 1e3  # e; larger than that of any nucleus, so a larger value is a shifted column
# Bohr; a core orbital is larger, and nothing that a charge represents (an atom, an ion) comes this
# close to a nucleus.
LEAST_DISTANCE = 0.1 * BOHR_PER_ANGSTROM
# Bohr; shorter than any bond to hydrogen except that in H2
SUSPICIOUS_DISTANCE = 0.8 * BOHR_PER_ANGSTROM
BLOCK = 2**20  # distances in memory at once: 8 MB


def checked(given: Any, scale: float = 1.0) -> Array:
    """A read-only copy of point charges, (n, 4): x, y, z in bohr, charge in e.

    Parameters
    ----------
    scale : bohr per unit of the given x, y, z

    Raises
    ------
    InputError : not rows of four finite numbers, or an unreasonable value
    """
    try:
        charges = np.array(given, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"point charges are not numbers ({error}): expected rows of x, y, z and charge"
        ) from error
    if charges.ndim != 2 or charges.shape[1] != 4 or not len(charges):
        raise InputError(
            f"point charges have shape {charges.shape}: expected (n, 4), rows of x, y, z and charge"
        )
    charges[:, :3] *= scale
    # These comparisons are false for NaN, so one test finds NaN, infinity and nonsense.
    sound = (np.abs(charges[:, :3]) < MAX_POSITION).all(axis=1) & (
        np.abs(charges[:, 3]) < MAX_CHARGE
    )
    if not sound.all():
        number = int(np.flatnonzero(~sound)[0])
        x, y, z, q = charges[number]
        raise InputError(
            f"point charge {number + 1} is {q:g} e at ({x:g}, {y:g}, {z:g}) bohr: expected finite "
            f"coordinates below {MAX_POSITION:g} bohr and a charge below {MAX_CHARGE:g} e; check "
            "the columns and the units"
        )
    charges += 0.0  # turns -0.0 into 0.0, so that equal fields have equal bits
    charges.setflags(write=False)
    return charges


def too_near(
    points: Array, symbols: Sequence[str], ghost: Sequence[bool], charges: Array, least: float
) -> str:
    """Description of a charge that is closer than `least` bohr to a nucleus; "" if there is none.

    Parameters
    ----------
    points : (natom, 3) bohr
    symbols, ghost : of the atoms; ghosts have no nucleus
    charges : (m, 4)
    """
    real = np.flatnonzero(~np.array(ghost))
    for first, distance in _distances(points[real], charges):
        charge, place = divmod(int(distance.argmin()), len(real))
        if distance[charge, place] < least:
            apart, _ = told_apart(
                ".3f", float(distance[charge, place]) * ANGSTROM_PER_BOHR, least * ANGSTROM_PER_BOHR
            )
            atom = int(real[place])
            return (
                f"point charge {first + charge + 1} is {apart} angstrom from atom "
                f"{atom + 1} {symbols[atom]}"
            )
    return ""


def nuclear_energy(points: Array, nuclear_charges: Array, charges: Array) -> float:
    """Energy of nuclei in the potential of point charges, Eh.

    Parameters
    ----------
    points : (n, 3) bohr
    nuclear_charges : (n,) e
    charges : (m, 4)
    """
    return sum(
        float(charges[first : first + len(distance), 3] @ (1.0 / distance @ nuclear_charges))
        for first, distance in _distances(points, charges)
    )


def _distances(points: Array, charges: Array) -> Iterator[tuple[int, Array]]:
    """Index of the first charge of each block, and its distances (charge, point) in bohr."""
    step = max(1, BLOCK // max(1, len(points)))
    for first in range(0, len(charges), step):
        block = charges[first : first + step, None, :3]
        yield first, np.sqrt(((block - points[None]) ** 2).sum(axis=2))
