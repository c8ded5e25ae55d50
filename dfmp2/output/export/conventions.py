"""Conventions in which file formats differ: the order of functions in a spherical shell, and the
terms of a core potential.

Rows of `mo_coeff` are in PySCF's order. Real solid harmonics have one sign convention in all
formats: m > 0 goes with cos(m phi), m < 0 with sin(|m| phi), both positive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from dfmp2.molecule.basis import ElementBasis
from dfmp2.mp2.result import MP2Result

Order = Callable[[int], list[int]]  # angular momentum -> m of each function of a shell
LOCAL = -1  # angular momentum of the local channel in a stored core potential


def pyscf(momentum: int) -> list[int]:
    """PySCF: -l to +l, but p functions as x, y, z."""
    if momentum == 1:
        return [1, -1, 0]
    return cca(momentum)


def cca(momentum: int) -> list[int]:
    """QCSchema: -l to +l, p functions too."""
    return list(range(-momentum, momentum + 1))


def alternating(momentum: int) -> list[int]:
    """TREXIO: 0, +1, -1, +2, -2, ..., p functions too (z, x, y)."""
    return [0, *(sign * m for m in range(1, momentum + 1) for sign in (1, -1))]


def molden_conventions(momentum: int) -> list[int]:
    """Molden: 0, +1, -1, +2, -2, ..., but p functions as x, y, z."""
    return pyscf(1) if momentum == 1 else alternating(momentum)


def rows(momenta: Iterable[int], order: Order) -> NDArray[np.intp]:
    """Row indices that reorder `mo_coeff` for a format: `mo_coeff[rows(momenta,
    molden_conventions)]`."""
    places: list[int] = []
    for momentum in momenta:
        first = len(places)
        places.extend(first + pyscf(momentum).index(m) for m in order(momentum))
    return np.array(places, dtype=np.intp)


def core_electrons(result: MP2Result) -> list[int]:
    """Number of electrons that a core potential replaces on each atom; 0 for a ghost."""
    molecule, replaced = result.molecule, result.orbital_basis.ecp_electrons
    return [
        0 if ghost else replaced[symbol]
        for symbol, ghost in zip(molecule.symbols, molecule.ghost, strict=True)
    ]


def local_momentum(element: ElementBasis) -> int:
    """The angular momentum that denotes the local channel of a core potential: one above the
    highest of the others."""
    if element.ecp:
        return max([momentum for momentum, _ in element.ecp[1]], default=LOCAL) + 1
    return 0


def core_terms(element: ElementBasis) -> Iterator[tuple[int, int, float, float]]:
    """Terms coefficient * r^(power - 2) * exp(-exponent * r^2): (momentum, power, exponent,
    coefficient)."""
    for momentum, powers in element.ecp[1] if element.ecp else ():
        for power, terms in enumerate(powers):
            for exponent, coefficient, *_ in terms:  # the rest is spin-orbit coupling
                yield (
                    local_momentum(element) if momentum == LOCAL else momentum,
                    power,
                    exponent,
                    coefficient,
                )
