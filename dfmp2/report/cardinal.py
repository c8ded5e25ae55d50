"""Two-point extrapolation to the complete basis set, and which basis sets it may be used with.

    E_corr(CBS) = (X^3 E_corr(X) - Y^3 E_corr(Y)) / (X^3 - Y^3)

X = Y + 1 are the cardinal numbers of two correlation-consistent sets (Halkier et al., Chem. Phys. Lett. 286, 243
(1998)); the Hartree-Fock energy is that of the larger set.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SOURCE = "Halkier et al., Chem. Phys. Lett. 286, 243 (1998)"
_LETTERS = {"d": 2, "t": 3, "q": 4, "5": 5, "6": 6, "7": 7, "8": 8}
_CONSISTENT = re.compile(r"(?P<before>.*cc-pw?c?v)(?P<core>\(?)(?P<x>[dtq5678])(?P<after>(?:\+d\))?z.*)")


class Cardinal(NamedTuple):
    """A correlation-consistent set: its family, e.g. "aug-cc-pvXz", and its cardinal number."""

    family: str
    number: int


def cardinal(name: str) -> Cardinal | None:
    """Family and cardinal number of a basis name, None when it is not correlation consistent."""
    found = _CONSISTENT.fullmatch(name.strip().lower())
    if found is None:
        return None
    return Cardinal(f"{found['before']}{found['core']}X{found['after']}", _LETTERS[found["x"]])


def two_point(large: float, x: int, small: float, y: int) -> float:
    """Correlation energy at the basis-set limit, Eh, from those with cardinal numbers x > y, Eh."""
    return (x**3 * large - y**3 * small) / (x**3 - y**3)
