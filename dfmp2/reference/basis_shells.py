"""Shells and core potentials as values: PySCF's nested lists with the numbers in tuples.

Shells are ((l, (exponent, c1, c2, ...), ...), ...) with exponents in bohr^-2. A potential is
(core electrons, ((l, (terms of r^0, terms of r^1, ...)), ...)) with terms (exponent, coefficient);
l = -1 is the local part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dfmp2.basis import ElementBasis


def tidy_shells(shells: Iterable[Any]) -> tuple[Any, ...]:
    """Shells from PySCF's form, sorted by l, without primitives no function uses.

    The order of functions within one l is kept. A spinor set (kappa other than 0) gives ().
    """
    tidy = []
    for momentum, *rows in shells:
        if rows and isinstance(rows[0], int):  # kappa; 0 stands for both spinors of l, the usual functions
            if rows[0] != 0:
                return ()
            rows = rows[1:]
        kept = tuple(tuple(float(x) for x in row) for row in rows if any(row[1:]))
        if kept:
            tidy.append((int(momentum), *kept))
    return tuple(sorted(tidy, key=lambda shell: shell[0]))


def nested_tuples(nested: Any) -> Any:
    """Lists within lists as tuples."""
    return tuple(nested_tuples(item) for item in nested) if isinstance(nested, list | tuple) else nested


def to_pyscf(element: ElementBasis) -> list[Any]:
    """Shells as PySCF takes them in `Mole.basis`: [[l, [exponent, c1, ...], ...], ...]."""
    return [[shell[0], *(list(row) for row in shell[1:])] for shell in element.shells]


def to_pyscf_ecp(element: ElementBasis) -> list[Any]:
    """Core potential as PySCF takes it in `Mole.ecp`; [] if the element has none."""
    potential: list[Any] = _nested_lists(element.ecp or ())
    return potential


def _nested_lists(nested: Any) -> Any:
    return [_nested_lists(item) for item in nested] if isinstance(nested, tuple) else nested
