"""From the name of a basis set to the numbers: orbital basis, SCF fitting set, MP2 fitting set.

Each element is resolved on its own, from PySCF's data files or the Basis Set Exchange
(`basis_library`), to explicit shells with their origin. Fitting sets not named by the user follow from
the set each element's orbital functions came from (`fitting_sets`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dfmp2.basis import BasisSet, ElementBasis
from dfmp2.elements import atomic_number
from dfmp2.errors import InputError
from dfmp2.reference import basis_library as library
from dfmp2.reference.basis_names import (
    FITTING_KINDS,
    GENERATED,
    is_mp2_fitting_set,
    kind,
    normalise,
    purpose,
    readable,
    squash,
)
from dfmp2.reference.basis_shells import tidy_shells, to_pyscf, to_pyscf_ecp
from dfmp2.reference.fitting_sets import UNIVERSAL_JK, find_partners
from dfmp2.reference.library_exchange import find_exchange_element
from dfmp2.reference.library_pyscf import find_pyscf_element
from dfmp2.reference.shield import pyscf_version, shielded

__all__ = [
    "is_mp2_fitting_set",
    "load_pyscf_element",
    "normalise",
    "resolve_fitting",
    "resolve_orbital",
    "to_pyscf",
    "to_pyscf_ecp",
]

INSTALL_EXCHANGE = "pip install 'dfmp2[bse]'"
OPTIONS = {"ri": "--auxbasis", "jk": "--scf-auxbasis"}
FITTING_NAMES = {"ri": "MP2 fitting set", "jk": "SCF fitting set"}

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
        _require_known(key, name, "--basis", fitting=False)
        elements = {symbol: _orbital_element(key, symbol) for symbol in dict.fromkeys(symbols)}
    return BasisSet(role="orbital", name=name, elements=elements)


def resolve_fitting(role: str, name: str | None, orbital: BasisSet, symbols: Sequence[str]) -> BasisSet:
    """Fitting set of some elements for the SCF or for MP2.

    Parameters
    ----------
    role : "jk" (SCF) or "ri" (MP2)
    name : None for the partner of the orbital basis, "auto" for an even-tempered set generated from it,
        else the name of a fitting set of any kind (see `is_mp2_fitting_set`)
    orbital : resolved orbital basis
    symbols : element symbols

    Raises
    ------
    InputError : no partner is known, no such set, an orbital basis, or a set without one of the elements
    """
    if role not in OPTIONS:
        raise ValueError(f"role {role!r}: expected 'jk' or 'ri'")
    unique = list(dict.fromkeys(symbols))
    with shielded():
        if name is None:
            elements = {symbol: _partner(role, orbital.elements[symbol]) for symbol in unique}
        elif (key := normalise(name)) == GENERATED:
            elements = _even_tempered(orbital, unique)
        else:
            _require_fitting(role, key, name)
            elements = {symbol: _named_fitting(role, key, symbol) for symbol in unique}
    return BasisSet(role=role, name="default" if name is None else name, elements=elements)


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
    raise InputError(f"--basis {_lacks(key, symbol)}; choose one that covers {symbol}")


def _with_left_to(key: str, symbol: str) -> Iterator[str]:
    """The set itself, then the sets its family leaves the element to."""
    yield key
    for pattern, numbers, other in _LEFT_TO:
        if (match := re.fullmatch(pattern, key)) and atomic_number(symbol) in numbers:
            yield from _with_left_to(match.expand(other), symbol)


# --- fitting sets -----------------------------------------------------------------------------------


def _partner(role: str, orbital: ElementBasis) -> ElementBasis:
    """Default fitting set of one element, from the set its orbital functions came from."""
    partners = find_partners(orbital.name)
    if partners:
        names = partners.jk if role == "jk" else partners.ri
    else:
        names = (UNIVERSAL_JK,) if role == "jk" else library.exchange_partners(squash(orbital.name))
    generate = f"{OPTIONS[role]} {GENERATED} generates an even-tempered one"
    if not names:
        raise InputError(
            f"no {FITTING_NAMES[role]} is known for {orbital.name} ({orbital.symbol}): name one with {OPTIONS[role]}, "
            f"or {generate}"
        )
    keys = [squash(name) for name in names]
    # PySCF's files first for all candidates: the choice must not depend on what else is installed
    for find in (find_pyscf_element, find_exchange_element):
        for key in keys:
            if element := find(key, orbital.symbol):
                return element
    raise InputError(f"the {FITTING_NAMES[role]} of {orbital.name}, {_lacks(keys[0], orbital.symbol)}; {generate}")


def _named_fitting(role: str, key: str, symbol: str) -> ElementBasis:
    element = library.find_element(key, symbol)
    if element is None:
        raise InputError(f"{OPTIONS[role]} {_lacks(key, symbol)}; {OPTIONS[role]} {GENERATED} generates a set")
    return element


def _require_fitting(role: str, key: str, name: str) -> None:
    if kind(key) in FITTING_KINDS:
        _require_known(key, name, OPTIONS[role], fitting=True)
        return
    if kind(key) is None and not library.is_known(key):
        _require_known(key, name, OPTIONS[role], fitting=True)
    partners = find_partners(key)
    names = (partners.jk if role == "jk" else partners.ri) if partners else ()
    example = UNIVERSAL_JK if role == "jk" else "cc-pvdz-ri"
    advice = f"its {FITTING_NAMES[role]} is {names[0]}" if names else f"expected a fitting set such as {example}"
    raise InputError(f"{OPTIONS[role]} {name}: this is {purpose(key)}, not a fitting set; {advice}")


def _even_tempered(orbital: BasisSet, symbols: Sequence[str]) -> dict[str, ElementBasis]:
    """Even-tempered fitting sets by the AutoAux recipe, from the orbital exponents alone.

    Its error in E(corr) stays below 30 microhartree for the hydrides tried from DZ to QZ; the older
    recipe of `pyscf.df.aug_etb` loses 400 at QZ for lack of high angular momenta.

    Source: G. L. Stoychev, A. A. Auer, F. Neese, J. Chem. Theory Comput. 13, 554 (2017).
    """
    from pyscf import df, gto

    mole = gto.Mole()
    mole.verbose = 0
    mole.unit = "Bohr"
    mole.atom = [[symbol, (20.0 * place, 0.0, 0.0)] for place, symbol in enumerate(symbols)]
    mole.basis = {symbol: to_pyscf(orbital.elements[symbol]) for symbol in symbols}
    mole.spin = None  # any: only the exponents count
    mole.build(dump_input=False, parse_arg=False)
    generated = df.autoaux(mole)
    recipe = f"even-tempered (AutoAux of PySCF {pyscf_version()})"
    return {
        symbol: ElementBasis(
            symbol=symbol,
            name=f"{GENERATED}({orbital.elements[symbol].name})",
            source=f"{recipe}, generated from {orbital.elements[symbol].name}",
            shells=tidy_shells(generated[symbol]),
        )
        for symbol in symbols
    }


# --- messages ---------------------------------------------------------------------------------------


def _require_known(key: str, name: str, option: str, *, fitting: bool) -> None:
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


def _lacks(key: str, symbol: str) -> str:
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
