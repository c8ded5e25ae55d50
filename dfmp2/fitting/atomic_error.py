"""The fitting error of one atom: the deviation of a fitting set from exact four-centre integrals,
known before any molecule is computed.

    SCF   1/2 (J_fit - J | D) - 1/4 (K_fit - K | D)
    MP2   E2[(ia|jb)_fit] - E2[(ia|jb)]
          E2 = sum_ijab w_i w_j (ia|jb) [2 (ia|jb) - (ib|ja)] / (D_ia + D_jb)     D_ia = -max(e_a - e_i, LEAST_GAP)

D, i (weight w_i, half its occupation) and a belong to the neutral atom, converged with occupations
averaged over each shell, whose integrals are radial (`dfmp2.fitting.spherical_atom`). (Start
orbitals would be cheaper, but have inner nodes that the basis of a core potential lacks: sound sets
for Sn to Xe then appear wrong by up to 5e-3 Eh.) All electrons are correlated. Pairs of the survey
(`scripts/survey_fitting.py`) are looked up in `atomic_errors.tsv`; others are measured once and
kept in the host's cache. Both are keyed by the hash of the numbers, so that a library's change of a
set is noticed.
"""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dfmp2.errors import InputError, Option
from dfmp2.host import cache as host_cache
from dfmp2.molecule.basis import BasisSet, ElementBasis
from dfmp2.molecule.elements import atomic_number
from dfmp2.molecule.mole import build_auxiliary, build_mole
from dfmp2.molecule.molecule import Molecule

if TYPE_CHECKING:
    from dfmp2.fitting.spherical_atom import Factor, Shells

LARGEST = 1e-3  # Eh per atom; most sets stay below 2e-4
# Eh; orbital energies may cross in a spherical open-shell atom, but not in molecules
LEAST_GAP = 0.4
SURVEY = Path(__file__).with_name("atomic_errors.tsv")
DIGITS = 16  # of the hash; two of 10^4 pairs collide with a probability of 1e-12


@cache
def fitting_error(role: str, orbital: ElementBasis, fitting: ElementBasis) -> float:
    """Fitting error in the energy of one atom, Eh, from the survey, else from this host's cache,
    else measured now.

    Parameters
    ----------
    role : "jk" (SCF) or "ri" (MP2)
    orbital, fitting : sets of the same element
    """
    name = fitting_error_key(role, orbital, fitting)
    known = surveyed(name)
    if known is not None:
        return known
    entry = f"fitting error of the converged atom {name}"
    stored = (host_cache.load_cached(entry) or {}).get("error")
    if isinstance(stored, float):
        return stored
    error = measure_fitting_error(role, orbital, fitting)
    host_cache.store_cached(
        entry, {"error": error, "sets": f"{orbital.symbol} {orbital.name} {fitting.name}"}
    )
    return error


def fitting_error_key(role: str, orbital: ElementBasis, fitting: ElementBasis) -> str:
    """Key of an error: element, role, and the numbers of both sets."""
    text = f"{role} {orbital.symbol} {orbital.sha256} {fitting.sha256}"
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def surveyed(name: str) -> float | None:
    """Error in the survey for a key, Eh, or None; rows are element, orbital set, role, fitting set,
    error, key."""
    text = _survey()
    end = text.find(f"\t{name}\n")
    if end < 0:
        return None
    return float(text[text.rindex("\t", 0, end) + 1 : end])


@cache
def _survey() -> str:
    return SURVEY.read_text(encoding="ascii")


def measure_fitting_error(role: str, orbital: ElementBasis, fitting: ElementBasis) -> float:
    """The error relative to four-centre integrals of the neutral atom, Eh; takes about a tenth of a
    second.

    Raises
    ------
    InputError : the orbital set has too few functions for the neutral atom
    """
    from dfmp2.fitting import spherical_atom

    atom, mole, shells = _converged(orbital)
    auxmole = build_auxiliary(mole, atom, BasisSet(role, fitting.name, {orbital.symbol: fitting}))

    def energy(factor: Factor) -> float:
        if role == "jk":
            return spherical_atom.coulomb_exchange_energy(shells, factor)
        return spherical_atom.second_order_energy(shells, factor, LEAST_GAP)

    return energy(spherical_atom.fitted_potential(auxmole)) - energy(spherical_atom.exact_potential)


@lru_cache(maxsize=1)  # used for both roles, one after the other
def _converged(orbital: ElementBasis) -> tuple[Molecule, Any, list[Shells]]:
    """The neutral atom, its PySCF molecule, and its shells; raises as above."""
    from dfmp2.fitting import spherical_atom

    atom = Molecule((orbital.symbol,), np.zeros((1, 3)))
    electrons = atomic_number(orbital.symbol) - orbital.ecp_electrons
    atom = atom.with_state(0, 1 + electrons % 2)  # only the parity of the count matters
    mole = build_mole(atom, BasisSet("orbital", orbital.name, {orbital.symbol: orbital}), 0)
    too_few = InputError(
        (
            f"{orbital.name} has too few functions for the electrons of a neutral "
            f"{orbital.symbol} atom: choose another "
        ),
        Option("basis"),
    )
    try:
        shells = spherical_atom.atomic_hartree_fock(mole)
    except (AssertionError, IndexError) as error:  # from PySCF, which fills shells that are missing
        raise too_few from error
    held = sum(
        (2 * momentum + 1) * shell.occupations.sum() for momentum, shell in enumerate(shells)
    )
    if round(held) != electrons:
        raise too_few
    return atom, mole, shells
