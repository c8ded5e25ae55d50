"""Words that name an atom: symbols, atomic numbers, and ghosts as different programs write them."""

from __future__ import annotations

import re

from dfmp2.errors import InputError
from dfmp2.molecule.elements import SYMBOLS, element_symbol, normalise_symbol
from dfmp2.molecule.text import shown

DUMMIES = {"x", "xx", "du", "dummy", "bq", "q", "0"}

# A number needs a separator: Bq1 and ghost1 are the first of several dummy atoms or ghosts
_SYMBOL = "[a-z]{1,2}[0-9]*"  # possibly with a label, which is refused
_GHOST = re.compile(
    rf"(?i)@(.+)|gh\((.+)\)|ghost[-_:]([0-9]+)|(?:ghost[-_:]?|x-|bq-?)({_SYMBOL})"
    rf"|({_SYMBOL}|[0-9]+)(?::|-bq)"
)
_LABEL = re.compile(r"([A-Za-z]{1,2})[^A-Za-z].*|[0-9]+([A-Za-z]{1,2})")  # C1, H_a, 13C


def without_ghost_mark(word: str) -> tuple[str, bool]:
    """The symbol in a word, and whether the word marks a ghost."""
    ghost = _GHOST.fullmatch(word)
    if ghost is None:
        return word, False
    (symbol,) = filter(None, ghost.groups())
    return symbol, True


def read_symbol(word: str) -> tuple[str, bool]:
    """The element that a word names, and whether it is a ghost.

    Raises
    ------
    InputError : it names no element, or a dummy atom
    """
    inner, ghost = without_ghost_mark(word)
    if inner.lower() in DUMMIES:
        raise InputError(
            f"{shown(word)} is a dummy atom: remove it and lower the count, or write @O for a "
            "ghost O"
        )
    if re.fullmatch("[0-9]{1,3}", inner):
        return element_symbol(int(inner)), ghost
    label = _LABEL.fullmatch(inner)
    if label:
        plain = (label[1] or label[2]).capitalize()
    else:
        plain = ""
    if plain in SYMBOLS:
        mark = "@" if ghost else ""
        raise InputError(f"{shown(word)} is a label or isotope, not a symbol: write {mark}{plain}")
    return normalise_symbol(inner), ghost
