"""Correlation-consistent basis sets by name: family and cardinal number."""

from __future__ import annotations

import re
from typing import NamedTuple

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
