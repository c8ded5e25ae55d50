"""Basis functions and core potentials of one element from the Basis Set Exchange.

The package `basis-set-exchange` is optional and large: it is imported when PySCF lacks something.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from dfmp2.basis import ElementBasis
from dfmp2.elements import atomic_number
from dfmp2.reference.basis_names import squash
from dfmp2.reference.basis_shells import nested_tuples, tidy_shells
from dfmp2.reference.shield import no_imports_from_working_directory


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
    exchange, number = basis_set_exchange(), str(atomic_number(symbol))
    listed = exchange_index().get(key)
    if exchange is None or listed is None:
        return None
    version = listed["latest_version"]
    if number not in listed["versions"][version]["elements"]:
        return None
    data = exchange.get_basis(listed["display_name"], elements=[number])["elements"][number]
    if not data.get("electron_shells"):
        return None
    source = f"basis-set-exchange {exchange.__version__}: {listed['display_name']}, revision {version}"
    ecp = _exchange_potential(data)
    return ElementBasis(
        symbol=symbol,
        name=str(listed["display_name"]).lower(),
        source=source,
        shells=tidy_shells([shell for group in data["electron_shells"] for shell in _exchange_shells(group)]),
        ecp=ecp,
        ecp_source=source if ecp else None,
    )


def _exchange_shells(group: Mapping[str, Any]) -> list[list[Any]]:
    """A group of primitives: one general contraction, or one shell per l of an SP group."""
    momenta, columns = group["angular_momentum"], group["coefficients"]
    contractions = [[c] for c in columns] if len(momenta) > 1 else [columns]
    return [
        [momentum, *([float(x) for x in row] for row in zip(group["exponents"], *part, strict=True))]
        for momentum, part in zip(momenta, contractions, strict=True)
    ]


def _exchange_potential(data: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Core potential in PySCF's form: per projector the terms by power of r; the local part is l = -1."""
    potentials = data.get("ecp_potentials", [])
    if not potentials:
        return None
    local = max(p["angular_momentum"][0] for p in potentials)  # the highest l is the local part
    projectors = []
    for p in potentials:
        momentum = int(p["angular_momentum"][0])
        by_power: list[list[tuple[float, float]]] = [[] for _ in range(max(p["r_exponents"]) + 1)]
        for power, *term in zip(p["r_exponents"], p["gaussian_exponents"], p["coefficients"][0], strict=True):
            by_power[power].append((float(term[0]), float(term[1])))
        projectors.append((-1 if momentum == local else momentum, nested_tuples(by_power)))
    return int(data["ecp_electrons"]), tuple(sorted(projectors, key=lambda projector: projector[0]))
