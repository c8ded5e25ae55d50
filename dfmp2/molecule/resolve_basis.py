"""From the name of an orbital basis to the numbers.

Each element is resolved on its own, from PySCF's data files or the Basis Set Exchange
(`basis_library`), to explicit shells with their origin. Fitting sets: `fitting_sets`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dfmp2.errors import InputError
from dfmp2.molecule import basis_library as library
from dfmp2.molecule.basis import BasisSet, ElementBasis, kind, normalise, purpose, readable, to_pyscf
from dfmp2.molecule.basis_library import find_pyscf_element
from dfmp2.molecule.elements import atomic_number
from dfmp2.molecule.pyscf_shield import pyscf_version, shielded

INSTALL_EXCHANGE = "pip install 'dfmp2[bse]'"

# Families defined as additions to another set: (family, elements it leaves to the other set, other set).
# Core functions mean nothing for H and He; -PP sets begin at Cu; heavy-aug has no diffuse functions on H.
_LEFT_TO: tuple[tuple[str, range, str], ...] = (
    (r"(aug)?ccpw?cv([dtq56])z", range(1, 3), r"\1ccpv\2z"),
    (r"(aug)?ccp(w?c|)v([dtq5])zpp", range(1, 29), r"\1ccp\2v\3z"),
    (r"heavyaug(ccpv[dtq56]z)", range(1, 3), r"\1"),
    (r"heavyaug(ccpv[dtq56]z)", range(3, 119), r"aug\1"),
)


def resolve_orbital(name: str, symbols: Sequence[str]) -> BasisSet:
    """Orbital basis of some elements, with the effective core potentials that belong to it.

    Parameters
    ----------
    name : name of a set, in any usual spelling
    symbols : element symbols; a ghost is given by its element, and it is the caller's part to leave out
        its core potential

    Raises
    ------
    InputError : not a name, no such set, a fitting set, or a set without one of the elements
    """
    key = normalise(name)
    with shielded():
        if kind(key) is not None:
            raise InputError(f"--basis {name}: this is {purpose(key)}, expected an orbital basis such as cc-pvdz")
        require_known(key, name, "--basis", fitting=False)
        elements = {symbol: _orbital_element(key, symbol) for symbol in dict.fromkeys(symbols)}
    return BasisSet(role="orbital", name=name, elements=elements)


def load_pyscf_element(name: str, symbol: str) -> list[Any]:
    """Shells of one element from PySCF's data files alone, in PySCF's form.

    Raises
    ------
    InputError : PySCF has no such set or element
    """
    with shielded():
        element = find_pyscf_element(normalise(name), symbol)
    if element is None:
        raise InputError(f"PySCF's data files have no functions of {name!r} for {symbol}")
    return to_pyscf(element)


# --- orbital basis ----------------------------------------------------------------------------------


def _orbital_element(key: str, symbol: str) -> ElementBasis:
    for candidate in _with_left_to(key, symbol):
        if element := library.find_element(candidate, symbol):
            return element
    raise InputError(f"--basis {lacks(key, symbol)}; choose one that covers {symbol}")


def _with_left_to(key: str, symbol: str) -> Iterator[str]:
    """The set itself, then the sets its family leaves the element to."""
    yield key
    for pattern, numbers, other in _LEFT_TO:
        if (match := re.fullmatch(pattern, key)) and atomic_number(symbol) in numbers:
            yield from _with_left_to(match.expand(other), symbol)


# --- messages ---------------------------------------------------------------------------------------


def require_known(key: str, name: str, option: str, *, fitting: bool) -> None:
    """Refuse a name no library has, with similar names."""
    if any(library.is_known(other) for other in _family(key)):
        return
    if library.exchange_would_help(key):
        raise InputError(
            f"{option} {name}: PySCF {pyscf_version()} has no such set, the Basis Set Exchange has: {INSTALL_EXCHANGE}"
        )
    names = library.known_names(fitting=fitting)
    close = difflib.get_close_matches(key, names, n=3, cutoff=0.6)
    advice = f"did you mean {_any_of(names[match] for match in close)}?" if close else "check the spelling"
    example = "cc-pvdz-ri" if fitting else "cc-pvdz"
    raise InputError(f"{option} {name}: no basis set of this name is known; {advice} (an example is {example})")


def _family(key: str) -> set[str]:
    return {other for symbol in ("H", "C") for other in _with_left_to(key, symbol)}


def lacks(key: str, symbol: str) -> str:
    """What is missing, and whether the Basis Set Exchange may have it."""
    text = f"{_readable_name(key)} has no functions for {symbol}"
    if library.exchange_would_help(key):
        return f"{text} in PySCF {pyscf_version()}; the Basis Set Exchange may have them: {INSTALL_EXCHANGE}"
    if kind(key) is None and find_pyscf_element(key, symbol):
        return f"{text} that can be used, because the core potential they were made for is missing"
    return text


def _readable_name(key: str) -> str:
    """A set's name as its library spells it."""
    names = library.known_names(fitting=kind(key) is not None)
    return names.get(key, readable(key))


def _any_of(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
