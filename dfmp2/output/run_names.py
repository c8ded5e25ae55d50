"""Names of the runs of a Hessian, at geometries with one coordinate displaced.

    plus-001-x, minus-001-x    x of atom 1, upwards and downwards

A study with other runs or several Hessians writes a prefix before them: `LABEL:` of a species of a
reaction, `hessian-` and `hessian-2-` of a geometry that was found.
"""

from __future__ import annotations

import re
from typing import NamedTuple

AXES = "xyz"
SIGNS = {"plus": 1, "minus": -1}
OF_FOUND = "hessian-"  # prefix of the Hessian of a geometry that a search has found
DISPLACED = re.compile(rf"(?:.*:)?(?:{OF_FOUND}(?:\d+-)?)?(?:plus|minus)-\d{{3,}}-[xyz]")


class Displaced(NamedTuple):
    """A run with one displaced coordinate.

    Attributes
    ----------
    name : str
        With its prefix.
    atom, axis : int
        From 0.
    sign : int
        1 or -1.
    """

    name: str
    atom: int
    axis: int
    sign: int


def displaced_runs(natom: int, prefix: str = "") -> list[Displaced]:
    """The runs of a Hessian: by atom and axis, upwards before downwards."""
    return [
        Displaced(f"{prefix}{word}-{atom + 1:03d}-{letter}", atom, axis, sign)
        for atom in range(natom)
        for axis, letter in enumerate(AXES)
        for word, sign in SIGNS.items()
    ]


def is_displaced(name: str) -> bool:
    """Whether a run is at a displaced geometry."""
    return DISPLACED.fullmatch(name) is not None
