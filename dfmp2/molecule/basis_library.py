"""Numbers of a basis set from its name: from PySCF's data files, else from the Basis Set Exchange.

Each element is resolved separately, to explicit shells with their origin. For fitting sets, see
`dfmp2.fitting.sets`.

PySCF's `gto.basis.load` would first look for a file of the set's name in the working directory.
Here a name is only looked up in PySCF's alias table, which leads to a file inside its package.

The package `basis-set-exchange` is optional and large: it is imported only if PySCF lacks
something.

A set made for a core potential is useless without it, yet some of PySCF's files contain only the
functions. Such an element counts as missing (`_is_complete`) instead of being treated with all its
electrons.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from dfmp2.errors import InputError, Option
from dfmp2.molecule.basis import (
    BasisSet,
    ElementBasis,
    kind,
    nested_tuples,
    normalise,
    purpose,
    readable,
    squash,
    tidy_shells,
    to_pyscf,
)
from dfmp2.molecule.elements import atomic_number
from dfmp2.molecule.pyscf_shield import no_imports_from_working_directory, pyscf_version, shielded

# Sets whose core potential PySCF keeps in another file: (set, set with the potential or None if
# PySCF has none, first Z that needs it). minao and qavg-vszps are unsuitable for MP2 from that Z
# on.
SEPARATE_POTENTIALS: tuple[tuple[str, str | None, int], ...] = (
    (r"ccpwcv([dtq5])zpp", r"ccpv\1zpp", 1),
    (r"ccecp(he|reg|28|36|)(aug)?ccpv[dtq56]z", r"ccecp\1", 1),
    (r"bfdv[dtq5]z", "bfd", 1),
    (r"def2mtzvpp?", None, 37),
    (r"ccpv[dt]zppnr", None, 1),
    (r"minao", None, 39),
    (r"qavgvszps", None, 3),
)

INSTALL_EXCHANGE = "pip install 'dfmp2[bse]'"

# Families defined as additions to another set: (family, elements it takes from the other set, other
# set). H and He have no core functions; -PP sets begin at Cu; heavy-aug has no diffuse functions on
# H.
_LEFT_TO: tuple[tuple[str, range, str], ...] = (
    (r"(aug)?ccpw?cv([dtq56])z", range(1, 3), r"\1ccpv\2z"),
    (r"(aug)?ccp(w?c|)v([dtq5])zpp", range(1, 29), r"\1ccp\2v\3z"),
    (r"heavyaug(ccpv[dtq56]z)", range(1, 3), r"\1"),
    (r"heavyaug(ccpv[dtq56]z)", range(3, 119), r"aug\1"),
)

# Sets with many elements, suggested if another set lacks an element of the molecule; the first few
# that fit are named.
COVERING = (
    "def2-svp",
    "def2-tzvp",
    "cc-pvdz-pp",
    "cc-pvtz-pp",
    "x2c-svpall",
    "ano-rcc-mb",
    "ano-rcc",
    "sto-3g",
)
MOST_NAMED = 3

_POPLE = re.compile(r"(\d)(\d{2,3})(\+{0,2})g(?:\*{1,2}|\(((?:\d?[a-z])+)(?:,((?:\d?[a-z])+))?\))")


def resolve_orbital(name: str, symbols: Sequence[str]) -> BasisSet:
    """Orbital basis for some elements, with the effective core potentials that belong to it.

    Parameters
    ----------
    name : name of a set, in any usual spelling
    symbols : element symbols; a ghost is given by its element, and the caller must leave out its
        core potential

    Raises
    ------
    InputError : not a name, an unknown set, a fitting set, or a set that lacks one of the elements
    """
    key = normalise(name)
    with shielded():
        if kind(key) is not None:
            raise InputError(
                Option("basis", name),
                f": this is {purpose(key)}, expected an orbital basis such as cc-pvdz",
            )
        require_known(key, name, Option("basis"), fitting=False)
        elements = {}
        for symbol in dict.fromkeys(symbols):
            element = _orbital_element(key, symbol)
            if element is None:
                raise InputError(
                    Option("basis", name), f": {lacks(key, symbol)}; {_others(symbols, symbol)}"
                )
            elements[symbol] = element
    return BasisSet(role="orbital", name=name, elements=elements)


def load_pyscf_element(name: str, symbol: str) -> list[Any]:
    """Shells of one element from PySCF's own data files, in PySCF's form.

    Raises
    ------
    InputError : PySCF has no such set or element
    """
    with shielded():
        element = find_pyscf_element(normalise(name), symbol)
    if element is None:
        raise InputError(f"PySCF's data files have no functions of {name!r} for {symbol}")
    return to_pyscf(element)


def _others(symbols: Iterable[str], symbol: str) -> str:
    """Sets to suggest if one lacks an element: those of `COVERING` that have all elements."""
    wanted = [symbol, *dict.fromkeys(symbols)]
    names = []
    for name in COVERING:
        if all(_orbital_element(normalise(name), one) is not None for one in wanted):
            names.append(name)
        if len(names) == MOST_NAMED:
            break
    if not names:
        return f"choose one that covers {symbol}"
    return f"{' or '.join(names)} has them"


def _orbital_element(key: str, symbol: str) -> ElementBasis | None:
    for candidate in _with_left_to(key, symbol):
        if element := find_element(candidate, symbol):
            return element
    return None


def _with_left_to(key: str, symbol: str) -> Iterator[str]:
    """The set itself, then the sets from which its family takes the element."""
    yield key
    for pattern, numbers, other in _LEFT_TO:
        if (match := re.fullmatch(pattern, key)) and atomic_number(symbol) in numbers:
            yield from _with_left_to(match.expand(other), symbol)


def require_known(key: str, name: str, option: Option, *, fitting: bool) -> None:
    """Raise for a name unknown to all libraries, with similar names."""
    if any(is_known(other) for symbol in ("H", "C") for other in _with_left_to(key, symbol)):
        return
    if exchange_would_help(key):
        raise InputError(
            option.of(name),
            f": PySCF {pyscf_version()} has no such set, the Basis Set Exchange has: "
            f"{INSTALL_EXCHANGE}",
        )
    close = nearest(name, known_names(fitting=fitting).values())
    example = "cc-pvdz-ri" if fitting else "cc-pvdz"
    advice = f"check the spelling (an example is {example})"
    if close:
        advice = f"did you mean {' or '.join(close)}?"
    raise InputError(option.of(name), f": no basis set of this name is known; {advice}")


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Up to three names closest to a misspelt one; none if all differ too much.

    An extra, missing or wrong letter, or two letters swapped, count as one difference each; parts
    between hyphens may be in another order, as in ri-cc-pvdz.
    """
    wrong, wrong_parts = squash(name), _in_order(name)
    most = max(1, len(wrong) // 4)
    found: dict[str, int] = {}
    for known in sorted(set(names)):
        right = squash(known)
        if abs(len(right) - len(wrong)) <= most:
            found[known] = min(
                edits(wrong, right), edits(wrong_parts, _in_order(known)) + (wrong != right)
            )
    least = min(found.values(), default=most + 1)
    if least > most:
        return []
    return [known for known, count in found.items() if count == least][:MOST_NAMED]


def _in_order(name: str) -> str:
    """A name with its parts between hyphens in alphabetical order."""
    return "".join(sorted(re.findall(r"[a-z0-9+*(),]+", name.lower())))


def edits(wrong: str, right: str) -> int:
    """Smallest number of single letters inserted, deleted, replaced or swapped with the next one.

    Source: Damerau, Commun. ACM 7, 171 (1964), without further edits of swapped letters.
    """
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, letter in enumerate(wrong, start=1):
        above, row = row, [i, *[0] * len(right)]
        for j, other in enumerate(right, start=1):
            row[j] = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other))
            swapped = i > 1 and j > 1 and letter == right[j - 2] and wrong[i - 2] == other
            if swapped:
                row[j] = min(row[j], before[j - 2] + 1)
        before = above
    return row[-1]


def lacks(key: str, symbol: str) -> str:
    """What is missing, and whether the Basis Set Exchange may have it."""
    name = known_names(fitting=kind(key) is not None).get(key, readable(key))
    text = f"{name} has no functions for {symbol}"
    if exchange_would_help(key):
        return (
            f"{text} in PySCF {pyscf_version()}; the Basis Set Exchange may have them: "
            f"{INSTALL_EXCHANGE}"
        )
    if kind(key) is None and find_pyscf_element(key, symbol):
        return f"{text} that can be used, because the core potential they were made for is missing"
    return text


@cache
def find_pyscf_element(key: str, symbol: str) -> ElementBasis | None:
    """Element of a set from PySCF's data files, with its core potential if found there; None if
    PySCF lacks it."""
    for entry in pyscf_entries(key, symbol):
        parts = [_pyscf_shells(part, symbol) for part in entry]
        if all(parts):
            shells = tidy_shells([shell for part in parts for shell in part])
        else:
            shells = ()
        if shells:
            ecp, file = _pyscf_potential(key, symbol, entry)
            origin = f"PySCF {pyscf_version()}: "
            return ElementBasis(
                symbol=symbol,
                name=pyscf_name(key),
                source=origin + " + ".join(entry),
                shells=shells,
                ecp=ecp,
                ecp_source=origin + file if ecp else None,
            )
    return None


@cache
def exchange_listing() -> Mapping[str, Any]:
    """Key -> (name, Z with core potential, partners): the table of the Basis Set Exchange's sets
    that is used without the package."""
    from pyscf.gto import mole

    return {squash(entry[0]): entry for entry in getattr(mole, "BSE_META", {}).values()}


@cache
def pyscf_index() -> Mapping[str, tuple[tuple[str, ...], ...]]:
    """Key -> entries, each the files (relative to the data folder) or modules that make up the set.

    More than one entry means that PySCF has the set under two spellings with different elements.
    """
    from pyscf.gto.basis import ALIAS

    index: dict[str, tuple[tuple[str, ...], ...]] = {}
    for alias, value in ALIAS.items():
        entry = (value,) if isinstance(value, str) else tuple(value)
        key = squash(alias)
        if entry not in index.get(key, ()):
            index[key] = (*index.get(key, ()), entry)
    return index


def pyscf_entries(key: str, symbol: str) -> tuple[tuple[str, ...], ...]:
    """Entries of a set; Pople sets such as 6-31G(2df,p) are composed from their polarisation
    functions."""
    entries = pyscf_index().get(key, ())
    if match := _POPLE.fullmatch(key):
        first, rest, plus, heavy, light = match.groups()
        if heavy is None:  # * and **
            heavy, light = "d", "p" if key.endswith("**") else ""
        if symbol in ("H", "He"):
            needed = light or ""
        else:
            needed = heavy
        files = [
            f"pople-basis/{first}-{rest}G-polarization-{one}.dat"
            for one in re.findall(r"\d?[a-z]", needed)
        ]
        if all((_data_folder() / file).is_file() for file in files):
            entries += tuple(
                (*base, *files) for base in pyscf_index().get(f"{first}{rest}{plus}g", ())
            )
    return entries


def pyscf_name(key: str) -> str:
    """Readable name: the published one of an orbital set, the file name of a fitting set, or else
    the key."""
    if kind(key) is None and (listed := exchange_listing().get(key)):
        return str(listed[0]).lower()
    for entry in pyscf_index().get(key, ()):
        stem = re.split(r"[/\\.]", entry[-1].removesuffix(".dat"))[-1].lower().replace("_", "-")
        if entry in pyscf_index().get(squash(stem), ()):
            return readable(squash(stem)) if stem[0].isdigit() else stem  # 6-31Gs.dat holds 6-31g*
    return readable(key)


def _data_folder() -> Path:
    from pyscf.gto import basis

    return Path(basis.__file__).parent


def _pyscf_shells(part: str, symbol: str) -> list[Any]:
    """Shells of an element from one file or module, in PySCF's form; [] if it lacks the element."""
    from pyscf.gto.basis import parse_nwchem
    from pyscf.lib.exceptions import BasisNotFoundError

    if not part.endswith(".dat"):
        return list(getattr(importlib.import_module("pyscf.gto.basis." + part), symbol, ()))
    try:
        # optimize=False, as PySCF itself does, keeps the order of the functions
        return list(parse_nwchem.load(str(_data_folder() / part), symbol, False))
    except BasisNotFoundError:
        return []


def _pyscf_potential(
    key: str, symbol: str, entry: tuple[str, ...]
) -> tuple[tuple[Any, ...] | None, str]:
    """Core potential of an element and the file that contains it."""
    from pyscf.gto.basis import parse_nwchem_ecp
    from pyscf.lib.exceptions import BasisNotFoundError

    files = list(entry)
    for pattern, other, _ in SEPARATE_POTENTIALS:
        if other is not None and (match := re.fullmatch(pattern, key)):
            files += [
                file
                for potential in pyscf_index().get(match.expand(other), ())
                for file in potential
            ]
    for file in files:
        if file.endswith(".dat"):
            try:
                ecp = parse_nwchem_ecp.load(str(_data_folder() / file), symbol)
            except BasisNotFoundError:
                continue
            if ecp:
                return (int(ecp[0]), nested_tuples(ecp[1])), file
    return None, ""


def basis_set_exchange() -> ModuleType | None:
    """The package, or None if it is not installed."""
    if loaded := sys.modules.get("basis_set_exchange"):
        return loaded
    try:
        with no_imports_from_working_directory():
            return importlib.import_module("basis_set_exchange")
    except ModuleNotFoundError:
        return None


def exchange_index() -> Mapping[str, Any]:
    """Key -> metadata of each set; empty without the package."""
    exchange = basis_set_exchange()
    return {} if exchange is None else _exchange_metadata(exchange)


@cache
def _exchange_metadata(exchange: ModuleType) -> dict[str, Any]:
    return {squash(entry["display_name"]): entry for entry in exchange.get_metadata().values()}


def find_exchange_element(key: str, symbol: str) -> ElementBasis | None:
    """Element of a set from the Basis Set Exchange; None if it or the package is missing."""
    exchange = basis_set_exchange()
    number = str(atomic_number(symbol))
    listed = exchange_index().get(key)
    if exchange is None or listed is None:
        return None
    version = listed["latest_version"]
    if number not in listed["versions"][version]["elements"]:
        return None
    data = exchange.get_basis(listed["display_name"], elements=[number])["elements"][number]
    if not data.get("electron_shells"):
        return None
    source = (
        f"basis-set-exchange {exchange.__version__}: {listed['display_name']}, revision {version}"
    )
    ecp = _exchange_potential(data)
    return ElementBasis(
        symbol=symbol,
        name=str(listed["display_name"]).lower(),
        source=source,
        shells=tidy_shells(
            [shell for group in data["electron_shells"] for shell in _exchange_shells(group)]
        ),
        ecp=ecp,
        ecp_source=source if ecp else None,
    )


def _exchange_shells(group: Mapping[str, Any]) -> list[list[Any]]:
    """A group of primitives: one general contraction, or one shell per l of an SP group."""
    momenta, columns = group["angular_momentum"], group["coefficients"]
    if len(momenta) > 1:
        contractions = [[c] for c in columns]
    else:
        contractions = [columns]
    return [
        [
            momentum,
            *([float(x) for x in row] for row in zip(group["exponents"], *part, strict=True)),
        ]
        for momentum, part in zip(momenta, contractions, strict=True)
    ]


def _exchange_potential(data: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Core potential in PySCF's form: terms of each projector by power of r; the local part has l =
    -1."""
    potentials = data.get("ecp_potentials", [])
    if not potentials:
        return None
    local = max(p["angular_momentum"][0] for p in potentials)  # the highest l is the local part
    projectors = []
    for p in potentials:
        momentum = int(p["angular_momentum"][0])
        by_power: list[list[tuple[float, float]]] = [[] for _ in range(max(p["r_exponents"]) + 1)]
        for power, *term in zip(
            p["r_exponents"], p["gaussian_exponents"], p["coefficients"][0], strict=True
        ):
            by_power[power].append((float(term[0]), float(term[1])))
        projectors.append((-1 if momentum == local else momentum, nested_tuples(by_power)))
    return int(data["ecp_electrons"]), tuple(sorted(projectors, key=lambda projector: projector[0]))


_SHARPEST = 0.5  # least s exponent over Z^2 of an all-electron set; STO-2G, the softest, has 0.6


def find_element(key: str, symbol: str) -> ElementBasis | None:
    """Functions (and core potential) of an element in a set, from PySCF or else the Basis Set
    Exchange.

    Parameters
    ----------
    key : normalised name (`dfmp2.molecule.basis.normalise`)
    symbol : element symbol, also for a ghost, whose potential the caller must leave out
    """
    element = find_pyscf_element(key, symbol)
    if element is None or not _is_complete(key, element):
        element = find_exchange_element(key, symbol)
    if element is not None and _is_complete(key, element):
        return element
    return None


def is_known(key: str) -> bool:
    """Whether one of the available libraries has the set, for any element."""
    return bool(pyscf_entries(key, "C")) or key in exchange_index()


def known_names(*, fitting: bool) -> dict[str, str]:
    """Key -> readable name of all fitting (or orbital) sets in the installed libraries."""
    names = {key: str(entry["display_name"]).lower() for key, entry in exchange_index().items()}
    names |= {key: pyscf_name(key) for key in pyscf_index()}
    return {key: name for key, name in names.items() if (kind(key) is not None) == fitting}


def exchange_would_help(key: str) -> bool:
    """Whether the Basis Set Exchange has the set but is not installed."""
    return basis_set_exchange() is None and key in exchange_listing()


def exchange_partners(key: str) -> tuple[str, ...]:
    """MP2 fitting set that the Basis Set Exchange names for an orbital set; () if none."""
    _, _, partners = exchange_listing().get(key, (key, (), {}))
    partner = partners.get("rifit") or exchange_index().get(key, {}).get("auxiliaries", {}).get(
        "rifit"
    )
    return (str(partner),) if partner else ()


def _is_complete(key: str, element: ElementBasis) -> bool:
    """Whether the functions can describe all electrons of the element that its core potential does
    not replace."""
    if element.ecp is not None or kind(key) is not None:
        return True
    number = atomic_number(element.symbol)
    if any(
        re.fullmatch(pattern, key) and number >= first for pattern, _, first in SEPARATE_POTENTIALS
    ):
        return False
    if number in exchange_listing().get(key, (key, (), {}))[1]:
        return False
    sharpest = max(
        (row[0] for shell in element.shells if shell[0] == 0 for row in shell[1:]), default=0.0
    )
    return bool(sharpest >= _SHARPEST * number**2)
