"""Orders of the functions of a spherical shell, as published for each file format.

Rows of `mo_coeff` are in PySCF's order: p as x, y, z (m = +1, -1, 0), other shells from m = -l to +l. Real solid
harmonics have one sign convention in all of them: m > 0 goes with cos(m phi), m < 0 with sin(|m| phi), both positive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Order = Callable[[int], list[int]]


def pyscf(momentum: int) -> list[int]:
    """m of each function of a shell in PySCF."""
    return [1, -1, 0] if momentum == 1 else list(range(-momentum, momentum + 1))


def cca(momentum: int) -> list[int]:
    """m of each function of a shell in QCSchema (CCA): -l to +l, p functions too."""
    return list(range(-momentum, momentum + 1))


def alternating(momentum: int) -> list[int]:
    """m of each function of a shell in TREXIO: 0, +1, -1, +2, -2, ..., p functions too (z, x, y)."""
    return [0, *(sign * m for m in range(1, momentum + 1) for sign in (1, -1))]


def molden(momentum: int) -> list[int]:
    """m of each function of a shell in Molden: p as x, y, z, other shells 0, +1, -1, +2, -2, ..."""
    return pyscf(1) if momentum == 1 else alternating(momentum)


def rows(momenta: Iterable[int], order: Order) -> NDArray[np.intp]:
    """Rows of `mo_coeff` in the order of a format: `mo_coeff[rows(momenta, molden)]`.

    Parameters
    ----------
    momenta : angular momentum of each shell, in the order of the rows
    order : one of the orders of this module

    Returns
    -------
    (nao,) int
    """
    places: list[int] = []
    for momentum in momenta:
        here = pyscf(momentum)
        first = len(places)
        places.extend(first + here.index(m) for m in order(momentum))
    return np.array(places, dtype=np.intp)
