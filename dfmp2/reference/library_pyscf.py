"""Basis functions and core potentials of one element from PySCF's own data files.

PySCF's `gto.basis.load` would look for a file of the set's name in the working directory first. Here a
name is looked up in PySCF's alias table, which leads to a file inside its package, and nowhere else.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dfmp2.basis import ElementBasis
from dfmp2.reference.basis_names import kind, readable, squash
from dfmp2.reference.basis_shells import nested_tuples, tidy_shells
from dfmp2.reference.shield import pyscf_version

# Sets whose core potential PySCF keeps in another file: (set, set with the potential or None if PySCF
# has none, first Z that needs it). minao and qavg-vszps are no basis sets for MP2 beyond that Z.
SEPARATE_POTENTIALS: tuple[tuple[str, str | None, int], ...] = (
    (r"ccpwcv([dtq5])zpp", r"ccpv\1zpp", 1),
    (r"ccecp(he|reg|28|36|)(aug)?ccpv[dtq56]z", r"ccecp\1", 1),
    (r"bfdv[dtq5]z", "bfd", 1),
    (r"def2mtzvpp?", None, 37),
    (r"ccpv[dt]zppnr", None, 1),
    (r"minao", None, 39),
    (r"qavgvszps", None, 3),
)

_POPLE = re.compile(r"(\d)(\d{2,3})(\+{0,2})g(?:\*{1,2}|\(((?:\d?[a-z])+)(?:,((?:\d?[a-z])+))?\))")


@cache
def find_pyscf_element(key: str, symbol: str) -> ElementBasis | None:
    """Element of a set from PySCF's data files, with the core potential found there; None if PySCF lacks it."""
    for entry in pyscf_entries(key, symbol):
        parts = [_pyscf_shells(part, symbol) for part in entry]
        shells = tidy_shells([shell for part in parts for shell in part]) if all(parts) else ()
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
    """Key -> (name, Z with core potential, partners): what PySCF knows of the Basis Set Exchange without having it."""
    from pyscf.gto import mole

    return {squash(entry[0]): entry for entry in getattr(mole, "BSE_META", {}).values()}


@cache
def pyscf_index() -> Mapping[str, tuple[tuple[str, ...], ...]]:
    """Key -> entries, each the files (relative to the data folder) or modules that make up the set.

    More than one entry: PySCF has the set under two spellings with different elements.
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
    """Entries of a set, with Pople sets such as 6-31G(2df,p) composed from their polarisation functions."""
    entries = pyscf_index().get(key, ())
    if match := _POPLE.fullmatch(key):
        first, rest, plus, heavy, light = match.groups()
        if heavy is None:  # * and **
            heavy, light = "d", "p" if key.endswith("**") else ""
        needed = (light or "") if symbol in ("H", "He") else heavy
        files = [f"pople-basis/{first}-{rest}G-polarization-{one}.dat" for one in re.findall(r"\d?[a-z]", needed)]
        if all((_data_folder() / file).is_file() for file in files):
            entries += tuple((*base, *files) for base in pyscf_index().get(f"{first}{rest}{plus}g", ()))
    return entries


def pyscf_name(key: str) -> str:
    """Readable name: the published one of an orbital set, the file name of a fitting set, else the key."""
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
    """Shells of an element in one file or module, in PySCF's form; [] if it lacks the element."""
    from pyscf.gto.basis import parse_nwchem
    from pyscf.lib.exceptions import BasisNotFoundError

    if not part.endswith(".dat"):
        module = importlib.import_module("pyscf.gto.basis." + part)
        return list(getattr(module, symbol, ()))
    try:
        # optimize=False: the form PySCF itself uses, which keeps the order of the functions
        return list(parse_nwchem.load(str(_data_folder() / part), symbol, False))
    except BasisNotFoundError:
        return []


def _pyscf_potential(key: str, symbol: str, entry: tuple[str, ...]) -> tuple[tuple[Any, ...] | None, str]:
    """Core potential of an element and the file it is in."""
    from pyscf.gto.basis import parse_nwchem_ecp
    from pyscf.lib.exceptions import BasisNotFoundError

    files = list(entry)
    for pattern, other, _ in SEPARATE_POTENTIALS:
        if other is not None and (match := re.fullmatch(pattern, key)):
            files += [file for potential in pyscf_index().get(match.expand(other), ()) for file in potential]
    for file in files:
        if file.endswith(".dat"):
            try:
                ecp = parse_nwchem_ecp.load(str(_data_folder() / file), symbol)
            except BasisNotFoundError:
                continue
            if ecp:
                return (int(ecp[0]), nested_tuples(ecp[1])), file
    return None, ""
