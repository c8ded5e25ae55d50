"""Frozen-core dialects: how many of the lowest orbitals each program leaves uncorrelated.

"Frozen core" means different orbitals in different programs (sodium: 1 in PySCF and ORCA, 5 in
Psi4), so a result states dialect and count. Ghost atoms have no core. Orbitals that an effective
core potential has replaced are subtracted, down to zero.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from dfmp2.errors import InputError, Option
from dfmp2.errors.messages import N
from dfmp2.molecule.elements import atomic_number
from dfmp2.molecule.molecule import Molecule
from dfmp2.units import counted_text

# dialect -> (last atomic number, core orbitals of an atom up to it), in ascending order.
CORE_ORBITALS: dict[str, tuple[tuple[int, int], ...]] = {
    # PySCF 2.14, pyscf/data/elements.py, chemcore_atm.
    "pyscf": (
        (4, 0),
        (12, 1),
        (30, 5),
        (38, 9),
        (48, 14),
        (70, 18),
        (80, 23),
        (103, 34),
        (112, 50),
        (118, 55),
    ),
    # ORCA 6.0 manual, "Frozen Core Options", default table (there in electrons); none beyond Cn.
    "orca": (
        (4, 0),
        (12, 1),
        (30, 5),
        (38, 9),
        (48, 14),
        (70, 18),
        (80, 23),
        (103, 34),
        (112, 50),
    ),
    # Psi4 1.11, libmints/basisset.cc, n_frozen_core with freeze_core true: the previous noble gas,
    # and from Hf and Rf on also the 14 f electrons.
    "psi4": (
        (2, 0),
        (10, 1),
        (18, 5),
        (36, 9),
        (54, 18),
        (71, 27),
        (86, 34),
        (103, 43),
        (118, 50),
    ),
}
ALIASES = {"auto": "pyscf"}  # the integrals are PySCF's, so its table is the default
# Electrons in the closed shells below period 1, 2, ...
NOBLE_GASES = (0, 2, 10, 18, 36, 54, 86, 118)

_NUMBER = re.compile(r"[+-]?[0-9]{1,4000}")


@dataclass(frozen=True, slots=True)
class FrozenCore:
    """Orbitals left uncorrelated.

    Attributes
    ----------
    orbitals : number of lowest occupied orbitals frozen, of each spin
    dialect : "none", "pyscf", "psi4", "orca" or "explicit" (a number was given)
    per_element : (symbol, orbitals of one such atom) in order of appearance; () unless from a table
    note : what a reader should know about the count, or ""
    """

    orbitals: int
    dialect: str
    per_element: tuple[tuple[str, int], ...] = ()
    note: str = ""


def count_core(symbol: str, dialect: str, ecp_electrons: int) -> int:
    """Core orbitals of one neutral atom, minus those that its core potential has replaced.

    Parameters
    ----------
    symbol : element symbol
    dialect : "none", "auto" (pyscf), "psi4", "orca" or "pyscf"
    ecp_electrons : electrons replaced by the core potential, 0 for none

    Raises
    ------
    InputError : unknown dialect, or an element missing in its table
    """
    if dialect == "none":
        return 0
    table = CORE_ORBITALS.get(ALIASES.get(dialect, dialect))
    if table is None:
        raise InputError(
            Option("frozen_core", dialect[:40]),
            ": expected none, auto, pyscf, psi4, orca or a whole number of orbitals",
        )
    row = bisect_left(table, (atomic_number(symbol), -1))
    if row == len(table):
        raise InputError(
            (
                f"the {ALIASES.get(dialect, dialect)} table has no frozen core for {symbol}: "
                "pass the number of orbitals, "
            ),
            Option("frozen_core", N),
            ", or none",
        )
    return max(table[row][1] - ecp_electrons // 2, 0)


def frozen_core_count(
    molecule: Molecule, dialect: str, ecp_electrons: Mapping[str, int], nalpha: int, nbeta: int
) -> FrozenCore:
    """Number of orbitals to freeze in a molecule.

    Parameters
    ----------
    dialect : "none", "auto" (pyscf), "psi4", "orca", "pyscf", or a number of orbitals per spin
    ecp_electrons : symbol -> electrons replaced by its core potential; a missing one means none
    nalpha, nbeta : explicit electrons of each spin

    Raises
    ------
    InputError : unknown dialect, an element without a table entry, or nothing left to correlate
    """
    chosen = dialect.strip().lower()
    if chosen == "none":
        return FrozenCore(0, "none")
    if _NUMBER.fullmatch(chosen):
        orbitals = int(chosen)
        if orbitals < 0:
            raise InputError(
                Option("frozen_core", chosen[:40]), ": expected 0 or more orbitals per spin"
            )
        named = Option("frozen_core", chosen[:40])
        _require_correlated(molecule, named, orbitals, nalpha, nbeta)
        return FrozenCore(orbitals, "explicit")
    real = molecule.real_symbols
    per_element = {
        symbol: count_core(symbol, chosen, ecp_electrons.get(symbol, 0))
        for symbol in dict.fromkeys(real)
    }
    chosen = ALIASES.get(chosen, chosen)
    if chosen == "psi4":
        orbitals, note = _psi4_orbitals(molecule, real, ecp_electrons)
    else:
        orbitals = sum(per_element[symbol] for symbol in real)
        note = ""
    _require_correlated(molecule, f"the {chosen} frozen core", orbitals, nalpha, nbeta)
    return FrozenCore(
        orbitals=orbitals, dialect=chosen, per_element=tuple(per_element.items()), note=note
    )


def _psi4_orbitals(
    molecule: Molecule, real: tuple[str, ...], ecp_electrons: Mapping[str, int]
) -> tuple[int, str]:
    """Psi4's count, in electrons, with its rule for cations without valence electrons (Li+, Na+).

    That rule considers the whole molecule and correlates one shell, once, the one below the
    heaviest period: two distant Li+ keep one of their two core orbitals. Psi4 goes below zero if a
    core potential has already replaced that shell; since a negative count is meaningless, the count
    here stops at zero.
    """
    cores = {symbol: 2 * count_core(symbol, "psi4", 0) for symbol in real}
    frozen = sum(max(cores[symbol] - ecp_electrons.get(symbol, 0), 0) for symbol in real)
    valence = sum(atomic_number(symbol) - cores[symbol] for symbol in real) - molecule.charge
    if valence > 0 or frozen == 0:
        return frozen // 2, ""
    period = bisect_left(NOBLE_GASES, max(atomic_number(symbol) for symbol in real))
    kept = max(frozen - (NOBLE_GASES[period - 1] - NOBLE_GASES[period - 2]), 0) // 2
    freed = frozen // 2 - kept
    return kept, (
        f"Psi4's rule for cations: no valence electron would be left, so {freed} core "
        f"orbital{' is' if freed == 1 else 's are'} correlated"
    )


def _require_correlated(
    molecule: Molecule, who: Option | str, orbitals: int, nalpha: int, nbeta: int
) -> None:
    if orbitals == 0:
        return
    if orbitals >= nalpha:
        raise InputError(
            who,
            (
                f" freezes {orbitals} of the {nalpha} occupied orbitals of "
                f"{molecule.formula} and leaves no electron to correlate (N >= nocc): pass "
            ),
            Option("frozen_core", N),
            f" with N below {nalpha}, or ",
            Option("frozen_core", "none"),
        )
    if orbitals > nbeta:
        raise InputError(
            who,
            (
                f" freezes {counted_text(orbitals, 'orbital')} of each spin, but "
                f"{molecule.formula} has only {counted_text(nbeta, 'beta electron')}: pass "
            ),
            Option("frozen_core", N),
            f" with N up to {nbeta}, or ",
            Option("frozen_core", "none"),
        )


def dialect_warning(
    core: FrozenCore, molecule: Molecule, ecp_electrons: Mapping[str, int], nalpha: int, nbeta: int
) -> str | None:
    """What to tell the user if a dialect's count differs from that of other programs; None if they
    agree."""
    if core.dialect in ("none", "explicit"):
        return None
    counts = {}
    for dialect in CORE_ORBITALS:
        with suppress(InputError):  # that dialect has no answer for this molecule
            counts[dialect] = frozen_core_count(
                molecule, dialect, ecp_electrons, nalpha, nbeta
            ).orbitals
    if len(set(counts.values())) < 2:
        return None
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    return (
        f"programs freeze different numbers of orbitals for this molecule: {listed}; used: "
        f"{core.orbitals}"
    )
