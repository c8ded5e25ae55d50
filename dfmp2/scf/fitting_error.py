"""Fitting error of one atom: what a fitting set misses of exact four-centre integrals, before any molecule is computed.

    SCF   1/2 (J_fit - J | D) - 1/4 (K_fit - K | D)
    MP2   E2[(ia|jb)_fit] - E2[(ia|jb)]
          E2 = sum_ijab w_i w_j (ia|jb) [2 (ia|jb) - (ib|ja)] / (D_ia + D_jb)     D_ia = -max(e_a - e_i, LEAST_GAP)

D, i (weight w_i, half its occupation) and a belong to the neutral atom, converged with occupations averaged over each
shell. (Start orbitals would be cheaper, but have inner nodes that the basis of a core potential lacks: they find sound
sets of Sn to Xe off by up to 5e-3 Eh.) All electrons are correlated. Errors that only arise between atoms are not seen.

Pairs of the survey (`scripts/survey_fitting.py`) are looked up in `fitting_errors.tsv`, others are measured once and
kept in the host's cache. Both go by the hash of the numbers, so that a library that changes a set is noticed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError
from dfmp2.host import cache as host_cache
from dfmp2.molecule.basis import BasisSet, ElementBasis
from dfmp2.molecule.elements import atomic_number
from dfmp2.molecule.mole import build_auxiliary, build_mole
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.scf.guess import start_density

Array = NDArray[np.float64]

LARGEST = 1e-3  # Eh per atom; most sets stay below 2e-4
LEAST_GAP = 0.4  # Eh; orbital energies of a spherical open-shell atom may cross, those of molecules stay apart
MEMORY = 10**9  # bytes for PySCF to plan with; integrals of up to 160 functions fit
SURVEY = Path(__file__).with_name("fitting_errors.tsv")
DIGITS = 16  # of the hash; two of 10^4 pairs agree with a chance of 1e-12


@cache
def fitting_error(role: str, orbital: ElementBasis, fitting: ElementBasis) -> float:
    """Error of the energy of one atom, Eh, from the survey, else this host's cache, else measured now.

    Parameters
    ----------
    role : "jk" (SCF) or "ri" (MP2)
    orbital, fitting : of the same element
    """
    name = key(role, orbital, fitting)
    known = surveyed(name)
    if known is not None:
        return known
    entry = f"fitting error of the converged atom {name}"
    stored = host_cache.load(entry)
    if stored is not None and isinstance(stored.get("error"), float):
        return float(stored["error"])
    error = measure(role, orbital, fitting)
    host_cache.store(entry, {"error": error, "sets": f"{orbital.symbol} {orbital.name} {fitting.name}"})
    return error


def key(role: str, orbital: ElementBasis, fitting: ElementBasis) -> str:
    """What an error belongs to: element, role, and the numbers of both sets."""
    text = f"{role} {orbital.symbol} {orbital.sha256} {fitting.sha256}"
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def surveyed(name: str) -> float | None:
    """Error that the survey has under a key, Eh; rows are element, orbital set, role, fitting set, error, key."""
    text = _survey()
    end = text.find(f"\t{name}\n")
    return None if end < 0 else float(text[text.rindex("\t", 0, end) + 1 : end])


@cache
def _survey() -> str:
    return SURVEY.read_text(encoding="ascii")


def measure(role: str, orbital: ElementBasis, fitting: ElementBasis) -> float:
    """The error against four-centre integrals of the neutral atom, Eh; milliseconds to seconds."""
    exact = _four_centre(orbital)
    auxmole = build_auxiliary(exact.mole, exact.atom, BasisSet(role, fitting.name, {orbital.symbol: fitting}))
    with shielded():
        from pyscf import lib

        from dfmp2.integrals.screening import every_pair
        from dfmp2.scf.jk import coulomb_exchange, fitted_integrals

        pairs = every_pair(exact.mole.nao)
        b = fitted_integrals(exact.mole, auxmole, pairs, 1)
        if role == "jk":
            j, k = coulomb_exchange(b, pairs, [exact.occupied * np.sqrt(2 * exact.weights)], 1)
            return float(np.vdot(j - exact.coulomb, exact.density) / 2 - np.vdot(k - exact.exchange, exact.density) / 4)
        half = np.einsum("pmn,mi->pin", lib.unpack_tril(b), exact.occupied, optimize=True)
        fitted = (half @ exact.empty).reshape(len(b), -1)
        return _second_order(fitted.T @ fitted, exact.gaps, exact.weights) - exact.second_order


@dataclass(frozen=True, slots=True, eq=False)
class _FourCentre:
    """What the four-centre integrals of an atom say.

    Attributes
    ----------
    density, coulomb, exchange : D, J and K, (nao, nao)
    occupied, empty : orbitals, (nao, nocc) and (nao, nvir)
    gaps : (nocc, nvir) Eh, at least LEAST_GAP; weights : (nocc,) half the occupations
    second_order : E2, Eh
    """

    atom: Molecule
    mole: Any
    density: Array
    coulomb: Array
    exchange: Array
    occupied: Array
    empty: Array
    gaps: Array
    weights: Array
    second_order: float


@lru_cache(maxsize=1)  # for both roles, one after the other
def _four_centre(orbital: ElementBasis) -> _FourCentre:
    """The spherical atom, converged with four-centre integrals.

    Raises
    ------
    InputError : the orbital set has too few functions for the neutral atom
    """
    atom = Molecule((orbital.symbol,), np.zeros((1, 3)))
    electrons = atomic_number(orbital.symbol) - orbital.ecp_electrons
    atom = atom.with_state(0, 1 + electrons % 2)  # only says that the count is even or odd
    mole = build_mole(atom, BasisSet("orbital", orbital.name, {orbital.symbol: orbital}), MEMORY)
    with shielded():
        from pyscf import ao2mo
        from pyscf.scf.atom_hf import AtomSphAverageRHF

        mf = AtomSphAverageRHF(mole)
        too_few = InputError(
            f"{orbital.name} has too few functions for the electrons of a neutral {orbital.symbol} atom: choose "
            "another --basis"
        )
        try:
            mf.kernel(start_density(mole, "rhf"))
        except (AssertionError, IndexError) as error:  # of PySCF, which fills shells that are not there
            raise too_few from error
        if round(float(mf.mo_occ.sum())) != electrons:
            raise too_few
        order = np.argsort(mf.mo_occ == 0, kind="stable")
        coeff, energy, occupation = mf.mo_coeff[:, order], mf.mo_energy[order], mf.mo_occ[order]
        nocc = np.count_nonzero(occupation)
        occupied, empty = coeff[:, :nocc], coeff[:, nocc:]
        weights = occupation[:nocc] / 2
        gaps = np.maximum(energy[nocc:] - energy[:nocc, None], LEAST_GAP)
        density = mf.make_rdm1()
        coulomb, exchange = mf.get_jk(mole, density)
        second_order = 0.0
        if gaps.size:  # a minimal basis of a noble gas has no empty orbital
            integrals = mole if mf._eri is None else mf._eri  # by way of the disk where they do not fit
            exact = ao2mo.general(integrals, (occupied, empty, occupied, empty), compact=False)
            second_order = _second_order(exact, gaps, weights)
    return _FourCentre(atom, mole, np.asarray(density), coulomb, exchange, occupied, empty, gaps, weights, second_order)


def _second_order(integrals: Array, gaps: Array, weights: Array) -> float:
    """E2 of the module's equation, Eh, one occupied orbital i at a time."""
    nocc, nvir = gaps.shape
    total = 0.0
    for i, rows in enumerate(integrals.reshape(nocc, nvir, nocc, nvir)):  # a, j, b
        scaled = rows * weights[:, None] / (gaps[i][:, None, None] + gaps[None])
        total -= weights[i] * float(np.vdot(scaled, 2 * rows - rows.transpose(2, 1, 0)))
    return total
