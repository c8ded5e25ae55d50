"""Where an element of a basis set comes from: PySCF's own files, else the Basis Set Exchange.

A set made for a core potential is useless without it, yet some of PySCF's files hold the functions
only. Such an element counts as missing (`_is_complete`) rather than being run with all its electrons.
"""

from __future__ import annotations

import re

from dfmp2.basis import ElementBasis
from dfmp2.elements import atomic_number
from dfmp2.reference.basis_names import kind
from dfmp2.reference.library_exchange import basis_set_exchange, exchange_index, find_exchange_element
from dfmp2.reference.library_pyscf import (
    SEPARATE_POTENTIALS,
    exchange_listing,
    find_pyscf_element,
    pyscf_entries,
    pyscf_index,
    pyscf_name,
)

_SHARPEST = 0.5  # least s exponent over Z^2 of an all-electron set; STO-2G, the softest, has 0.6


def find_element(key: str, symbol: str) -> ElementBasis | None:
    """Functions (and core potential) of an element in a set, from PySCF, else the Basis Set Exchange.

    Parameters
    ----------
    key : normalised name (`basis_names.normalise`)
    symbol : element symbol, also for a ghost: leaving its potential out is the caller's part
    """
    element = find_pyscf_element(key, symbol)
    if element is None or not _is_complete(key, element):
        element = find_exchange_element(key, symbol)
    return element if element is not None and _is_complete(key, element) else None


def is_known(key: str) -> bool:
    """Whether one of the libraries at hand has the set, for whatever elements."""
    return bool(pyscf_entries(key, "C")) or key in exchange_index()


def known_names(*, fitting: bool) -> dict[str, str]:
    """Key -> readable name of all fitting (or orbital) sets of the libraries at hand."""
    names = {key: str(entry["display_name"]).lower() for key, entry in exchange_index().items()}
    names |= {key: pyscf_name(key) for key in pyscf_index()}
    return {key: name for key, name in names.items() if (kind(key) is not None) == fitting}


def exchange_would_help(key: str) -> bool:
    """Whether the Basis Set Exchange has the set but is not installed."""
    return basis_set_exchange() is None and key in exchange_listing()


def exchange_partners(key: str) -> tuple[str, ...]:
    """MP2 fitting set the Basis Set Exchange names for an orbital set; () if none."""
    _, _, partners = exchange_listing().get(key, (key, (), {}))
    partner = partners.get("rifit") or exchange_index().get(key, {}).get("auxiliaries", {}).get("rifit")
    return (str(partner),) if partner else ()


def _is_complete(key: str, element: ElementBasis) -> bool:
    """Whether the functions can carry all electrons the element has left beside its core potential."""
    if element.ecp is not None or kind(key) is not None:
        return True
    number = atomic_number(element.symbol)
    if any(re.fullmatch(pattern, key) and number >= first for pattern, _, first in SEPARATE_POTENTIALS):
        return False
    if number in exchange_listing().get(key, (key, (), {}))[1]:
        return False
    sharpest = max((row[0] for shell in element.shells if shell[0] == 0 for row in shell[1:]), default=0.0)
    return bool(sharpest >= _SHARPEST * number**2)
