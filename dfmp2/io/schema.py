"""The layout of a result file: which value of a result lives where, in which unit, and what it means.

    /mol, /scf/{e_tot, mo_energy, mo_occ, mo_coeff}   PySCF's checkpoint layout, loadable by PySCF
    /dfmp2/input/...                                  molecule and options
    /dfmp2/bases/{orbital, scf_fitting, mp2_fitting}  exponents, origin, hashes
    /dfmp2/{run, reference, stability, solutions, sizes, diagnostics, certificate, check, timings, memory,
            storage, provenance, preparation}/...              the records of `dfmp2.record`, field by field
    /dfmp2/pairs/...                                  unscaled pair energies
    /dfmp2/energies/...                               totals, derived from the above for other readers

A record's fields carry their unit and description themselves; this module turns them into datasets
and back. Changing any name, type or unit here raises SCHEMA_VERSION.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from dfmp2.basis import BasisSet, ElementBasis
from dfmp2.record import (
    Certificate,
    Check,
    Diagnostics,
    Memory,
    Preparation,
    Provenance,
    Ranks,
    Reference,
    Sizes,
    Stability,
    Storage,
    Timings,
)
from dfmp2.solutions import Solutions

SCHEMA_VERSION = 1
PREPARED = "dfmp2_prepared_version"  # attribute of a file of `dfmp2 prepare` (dfmp2.io.prepared)

HIGHEST_MOMENTUM = 12  # of a shell; what PySCF's integral library can take

RECORDS: dict[str, type] = {
    "reference": Reference,
    "stability": Stability,
    "solutions": Solutions,
    "sizes": Sizes,
    "diagnostics": Diagnostics,
    "certificate": Certificate,
    "check": Check,
    "timings": Timings,
    "predicted": Timings,
    "memory": Memory,
    "storage": Storage,
    "ranks": Ranks,
    "provenance": Provenance,
    "preparation": Preparation,
}
OPTIONAL_RECORDS = ("stability", "solutions", "certificate", "check", "storage", "ranks", "preparation")
OF_REFERENCE = ("stability", "solutions")  # records that belong to that of the reference
ELSEWHERE = ("mo_coeff", "mo_energy", "mo_occ", *OF_REFERENCE)  # fields of Reference with a place of their own

ENERGIES = (
    "scf_total_energy",
    "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_energy",
    "mp2_correlation_energy",
    "mp2_total_energy",
    "scs_mp2_correlation_energy",
    "sos_mp2_correlation_energy",
    "scaled_mp2_correlation_energy",
)


class Item(NamedTuple):
    """A dataset: its value, unit and description."""

    value: Any
    units: str
    description: str


def record_items(group: str, record: Any) -> dict[str, Item]:
    """Datasets of a record, by path; fields that are None are left out."""
    items = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if value is None or field.name in ELSEWHERE:
            continue
        items[f"dfmp2/{group}/{field.name}"] = Item(value, field.metadata["units"], field.metadata["description"])
    return items


def record_values(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments of a record from what was read, each turned into the field's own type; None may be absent.

    Raises
    ------
    KeyError, TypeError, ValueError : something is missing or of another type
    """
    hints = get_type_hints(kind)
    return {
        field.name: _as_type(hints[field.name], stored[field.name])
        for field in fields(kind)
        if field.name not in ELSEWHERE and (field.name in stored or field.default is not None)
    }


def option_values(stored: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Constructor arguments of Options; what an older file lacks keeps its default."""
    hints = get_type_hints(kind)
    return {
        field.name: _as_type(hints[field.name], stored[field.name])
        for field in fields(kind)
        if stored.get(field.name) is not None
    }


def basis_items(place: str, basis: BasisSet) -> dict[str, Item]:
    """Datasets of a basis: its names, its numbers as JSON, and the hash of each element."""
    elements = {
        symbol: {"name": e.name, "source": e.source, "shells": e.shells, "ecp": e.ecp, "ecp_source": e.ecp_source}
        for symbol, e in basis.elements.items()
    }
    at = f"dfmp2/bases/{place}"
    items = {
        f"{at}/role": Item(basis.role, "", "orbital, jk (SCF fitting) or ri (MP2 fitting)"),
        f"{at}/name": Item(basis.name, "", "name that was asked for"),
        f"{at}/elements": Item(
            json.dumps(elements), "", "JSON: symbol -> name, source, shells (exponents in bohr^-2), ecp"
        ),
        f"{at}/sha256": Item(
            tuple(f"{symbol} {e.sha256}" for symbol, e in basis.elements.items()),
            "",
            "hash of exponents and coefficients",
        ),
    }
    if basis.errors:
        values = np.array([*basis.errors.values()])
        items[f"{at}/fitting_error"] = Item(values, "hartree", "error for one atom of each element")
    return items


def basis_from(stored: Mapping[str, Any]) -> BasisSet:
    """A basis from its datasets.

    Raises
    ------
    KeyError, TypeError, ValueError : it is damaged, or its numbers do not have their hash
    """
    elements = {
        str(symbol): ElementBasis(
            symbol=str(symbol),
            name=str(e["name"]),
            source=str(e["source"]),
            shells=_nested_tuple(e["shells"]),
            ecp=None if e["ecp"] is None else _nested_tuple(e["ecp"]),
            ecp_source=e["ecp_source"],
        )
        for symbol, e in json.loads(stored["elements"]).items()
    }
    for element in elements.values():
        _require_numbers(element)
    hashes = tuple(f"{symbol} {e.sha256}" for symbol, e in elements.items())
    if hashes != tuple(stored["sha256"]):
        raise ValueError("the hash of a basis does not belong to its numbers")
    errors = [float(error) for error in stored.get("fitting_error", ())]  # none in files of dfmp2 0.1
    if not all(map(math.isfinite, errors)) or len(errors) not in (0, len(elements)):
        raise ValueError("the fitting errors of a basis do not belong to its elements")
    return BasisSet(str(stored["role"]), str(stored["name"]), elements, dict(zip(elements, errors, strict=False)))


def _require_numbers(element: ElementBasis) -> None:
    """Refuse a basis that is not numbers in their places: it goes to PySCF as it is, whose parsers take text."""
    core, channels = element.ecp or (0, ())
    momenta = [*(shell[0] for shell in element.shells), *(momentum + 1 for momentum, _ in channels)]
    primitives = [row for shell in element.shells for row in shell[1:]]
    terms = [term for _, powers in channels for power in powers for term in power]
    numbers = [x for row in (*primitives, *terms) for x in row]
    sound = (
        element.shells
        and isinstance(core, int)
        and all(momentum in range(HIGHEST_MOMENTUM + 1) for momentum in momenta)
        and all(len(shell) > 1 for shell in element.shells)
        and all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)
        and all(len(row) > 1 and row[0] > 0 for row in primitives)
        and all(len(term) > 1 for term in terms)
    )
    if not sound:
        raise ValueError(f"the basis of {element.symbol} is not made of shells of numbers")


def _nested_tuple(value: Any) -> Any:
    return tuple(_nested_tuple(item) for item in value) if isinstance(value, list) else value


def _as_type(hint: Any, value: Any) -> Any:
    """A stored value as the annotated type of its field."""
    text = str(hint)
    if text.startswith("tuple"):
        kind = next(kind for kind in (str, float, int) if kind.__name__ in text)
        return tuple(kind(x) for x in value)
    for kind in (bool, int, float, str):
        if hint is kind or text.startswith(f"{kind.__name__} |"):
            return kind(value)
    return np.asarray(value)
