"""Basis sets as explicit values: the exponents themselves, where they came from, and their hash.

A name such as ``cc-pvdz`` is resolved once (`dfmp2.reference.basis`); from then on the numbers
travel, so that a result can be recomputed when a library changes what the name means.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ElementBasis:
    """Basis functions (and effective core potential) of one element.

    Attributes
    ----------
    symbol : element symbol, e.g. "O"
    name : name of the set the functions come from, e.g. "cc-pvdz-jkfit"
    source : library, version and file or entry, e.g. "PySCF 2.14.0: cc-pvdz-jkfit.dat"
    shells : PySCF's internal format as nested tuples: (l, (exponent, c1, c2, ...), ...) per shell;
        exponents in bohr^-2
    ecp : PySCF's internal format as nested tuples (ncore, ((l, terms), ...)), or None
    ecp_source : origin of `ecp`, or None
    """

    symbol: str
    name: str
    source: str
    shells: tuple[Any, ...]
    ecp: tuple[Any, ...] | None = None
    ecp_source: str | None = None

    @property
    def ecp_electrons(self) -> int:
        """Number of electrons replaced by the effective core potential."""
        return int(self.ecp[0]) if self.ecp else 0

    @property
    def sha256(self) -> str:
        """Hash of the numbers alone (17 significant digits), independent of name and source."""
        return hashlib.sha256(json.dumps([self.shells, self.ecp]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class BasisSet:
    """One basis for a molecule, element by element.

    Attributes
    ----------
    role : "orbital", "jk" (SCF fitting set) or "ri" (MP2 fitting set)
    name : what was asked for, or "default" when the set was chosen from the orbital basis
    elements : symbol -> ElementBasis
    errors : symbol -> what a fitting set misses for one atom, Eh (`dfmp2.reference.fitting_error`); {} where unknown
    """

    role: str
    name: str
    elements: Mapping[str, ElementBasis]
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def ecp_electrons(self) -> dict[str, int]:
        """Electrons replaced by the effective core potential, per element."""
        return {symbol: element.ecp_electrons for symbol, element in self.elements.items()}

    def error_of(self, symbols: Iterable[str]) -> float | None:
        """What a fitting set misses for these atoms one by one, Eh; None where that was not measured."""
        found = [self.errors.get(symbol) for symbol in symbols]
        known = [error for error in found if error is not None]
        return math.fsum(known) if known and len(known) == len(found) else None

    def describe(self) -> list[str]:
        """One line per distinct (set, source): name, elements, origin, for the report."""
        groups: dict[tuple[str, str], list[str]] = {}
        for symbol, element in self.elements.items():
            groups.setdefault((element.name, element.source), []).append(symbol)
        return [f"{name} for {' '.join(symbols)} ({source})" for (name, source), symbols in groups.items()]
