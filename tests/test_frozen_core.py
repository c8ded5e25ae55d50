"""Frozen-core counts against PySCF's table and function, ORCA's manual and Psi4's test suite."""

from __future__ import annotations

import numpy as np
import pytest
from pyscf import gto
from pyscf.data import elements as pyscf_elements

from dfmp2.elements import SYMBOLS
from dfmp2.errors import InputError
from dfmp2.frozen_core import FrozenCore, count_core, dialect_differences, frozen_core_count
from dfmp2.molecule import Molecule

# ORCA 6.0 manual, "Frozen Core Options", default number of frozen core ELECTRONS, row by row.
ORCA_ELECTRONS = {
    "H He Li Be": 0,
    "B C N O F Ne Na Mg": 2,
    "Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn": 10,
    "Ga Ge As Se Br Kr Rb Sr": 18,
    "Y Zr Nb Mo Tc Ru Rh Pd Ag Cd": 28,
    "In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb": 36,
    "Lu Hf Ta W Re Os Ir Pt Au Hg": 46,
    "Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr": 68,
    "Rf Db Sg Bh Hs Mt Ds Rg Cn": 100,
}


def chain(*symbols: str, charge: int = 0, ghost: tuple[bool, ...] = ()) -> Molecule:
    """Atoms 6 bohr apart."""
    points = np.arange(float(len(symbols)))[:, None] * np.array([[0.0, 0.0, 6.0]])
    return Molecule(symbols, points, ghost, charge)


def count(molecule: Molecule, dialect: str, ecp: dict[str, int] | None = None) -> FrozenCore:
    electrons = molecule.electrons(ecp or {})
    return frozen_core_count(molecule, dialect, ecp or {}, (electrons + 1) // 2, electrons // 2)


def test_pyscf_table() -> None:
    assert [count_core(symbol, "pyscf", 0) for symbol in SYMBOLS] == pyscf_elements.chemcore_atm[1:119]
    assert [count_core(symbol, "auto", 0) for symbol in SYMBOLS] == pyscf_elements.chemcore_atm[1:119]


def test_orca_table() -> None:
    listed = {symbol: electrons // 2 for row, electrons in ORCA_ELECTRONS.items() for symbol in row.split()}
    assert len(listed) == 112
    assert {symbol: count_core(symbol, "orca", 0) for symbol in listed} == listed


@pytest.mark.parametrize(
    ("row", "orbitals"),
    [
        ("H He", 0),
        ("Li Be B Ne", 1),  # a noble gas counts the one before it
        ("Na Mg Al Ar", 5),
        ("K Ca Sc Zn Ga Kr", 9),
        ("Rb Sr Ag I Xe", 18),
        ("Cs Ba La Lu", 27),
        ("Hf Au Hg Tl Rn", 34),  # 54 electrons of Xe and 14 f electrons
        ("Fr Ac Lr", 43),
        ("Rf Cn Og", 50),
    ],
)
def test_psi4_table(row: str, orbitals: int) -> None:
    assert {count_core(symbol, "psi4", 0) for symbol in row.split()} == {orbitals}


@pytest.mark.parametrize(
    ("row", "ecp", "pyscf", "orca", "psi4"),
    [
        ("Li Be", 0, 0, 0, 1),
        ("B C N O F Ne", 0, 1, 1, 1),
        ("Na Mg", 0, 1, 1, 5),
        ("Al Si P S Cl Ar", 0, 5, 5, 5),
        ("K Ca", 0, 5, 5, 9),
        ("Sc Fe Zn", 0, 5, 5, 9),
        ("Ga Br Kr", 0, 9, 9, 9),
        ("I Sb Xe", 28, 4, 4, 4),
        ("Rb Sr", 28, 0, 0, 4),  # more in the potential than in the tables of PySCF and ORCA: never below zero
        ("Au Hg", 60, 0, 0, 4),
        ("Pb", 60, 4, 4, 4),
    ],
)
def test_dialects_differ_as_documented(row: str, ecp: int, pyscf: int, orca: int, psi4: int) -> None:
    for symbol in row.split():
        assert [count_core(symbol, dialect, ecp) for dialect in ("pyscf", "orca", "psi4")] == [pyscf, orca, psi4]


@pytest.mark.parametrize(
    ("atoms", "ecp", "charge"),
    [
        ("Li H", {}, 0),
        ("Na Cl", {}, 0),
        ("I H", {"I": 28}, 0),
        ("Au H", {"Au": 60}, 0),
        ("Xe Ne", {"Xe": 28}, 0),
        ("Rb F", {"Rb": 28}, 0),
        ("Fe", {}, 2),
    ],
)
def test_pyscf_dialect_is_chemcore(atoms: str, ecp: dict[str, int], charge: int) -> None:
    molecule = chain(*atoms.split(), charge=charge)
    geometry = list(zip(molecule.symbols, molecule.coordinates.tolist(), strict=True))
    mol = gto.M(
        atom=geometry,
        basis={symbol: [[0, [1.0, 1.0]]] for symbol in molecule.symbols},
        ecp={symbol: [electrons, [[-1, [[], [], [[1.0, 0.0]]]]]] for symbol, electrons in ecp.items()},
        charge=charge,
        spin=None,
        unit="bohr",
        verbose=0,
    )
    assert count(molecule, "pyscf", ecp).orbitals == pyscf_elements.chemcore(mol)


def test_psi4_suite() -> None:
    # tests/dfmp2-ecp: "[He] electrons on Ne frozen, [Kr] electrons on Xe frozen"; SbH3 nfrzc 4 of 13 occupied
    both = count(chain("Ne", "Xe"), "psi4", {"Xe": 28})
    assert both == FrozenCore(1 + 4, "psi4", (("Ne", 1), ("Xe", 4)))
    assert count(chain("Ne", "Xe", ghost=(True, False)), "psi4", {"Xe": 28}).orbitals == 4
    assert count(chain("Ne", "Xe", ghost=(False, True)), "psi4", {"Xe": 28}).orbitals == 1
    sbh3 = chain("Sb", "H", "H", "H")
    assert sbh3.check_electrons({"Sb": 28}) == (13, 13)
    assert count(sbh3, "psi4", {"Sb": 28}).orbitals == 4
    # tests/dfmp2-fc: Kr2, freeze_core 1 is the previous noble gas
    assert count(chain("Kr", "Kr"), "psi4").orbitals == 18


@pytest.mark.parametrize(
    ("atoms", "charge", "ecp", "orbitals"),
    [
        ("Li", 0, {}, 1),
        ("Li", 1, {}, 0),
        ("Na", 1, {}, 1),  # of 1s 2s 2p the outer four are correlated
        ("Mg", 2, {}, 1),
        ("K", 1, {}, 5),
        ("Cs", 1, {}, 18),
        ("Li Li", 2, {}, 1),  # one shell for the whole molecule
        ("Li He", 1, {}, 1),  # helium has valence electrons
        ("Li Ne", 1, {}, 2),
        ("Rb", 1, {"Rb": 28}, 0),
        ("Al", 1, {}, 5),
    ],
)
def test_psi4_unfreezes_cations(atoms: str, charge: int, ecp: dict[str, int], orbitals: int) -> None:
    result = count(chain(*atoms.split(), charge=charge), "psi4", ecp)
    assert result.orbitals == orbitals
    unfrozen = orbitals < sum(dict(result.per_element)[symbol] for symbol in atoms.split())
    assert ("no valence electron" in result.note) == unfrozen


def test_psi4_counts_odd_core_potentials_in_electrons() -> None:
    # 53 of the 54 core electrons of Gd replaced: one is left, and two atoms have one orbital together
    assert count(chain("Gd"), "psi4", {"Gd": 53}).orbitals == 0
    assert count(chain("Gd", "Gd"), "psi4", {"Gd": 53}).orbitals == 1


def test_ghosts_have_no_core() -> None:
    result = count(chain("O", "Na", "H", "H", ghost=(False, True, False, False)), "auto")
    assert result == FrozenCore(1, "pyscf", (("O", 1), ("H", 0)))


def test_none_and_explicit_numbers() -> None:
    water = chain("O", "H", "H")
    assert count(water, "none") == FrozenCore(0, "none")
    assert count(chain("Og"), "none").orbitals == 0
    for text in ("2", " 2 ", "+2", "002"):
        assert count(water, text) == FrozenCore(2, "explicit")
    assert count(water, "0").orbitals == 0
    assert count(chain("H"), "0").orbitals == 0
    assert count(chain("H"), " AUTO ").orbitals == 0


@pytest.mark.parametrize(
    ("molecule", "dialect", "reason"),
    [
        (chain("O", "H", "H"), "5", r"freezes 5 of the 5 occupied .*N >= nocc.*N below 5"),
        (chain("O", "H", "H"), "9" * 50, "N >= nocc"),
        (chain("O", "H", "H"), "-1", "expected 0 or more"),
        (chain("O", "H", "H"), "1.5", "a whole number of orbitals"),
        (chain("O", "H", "H"), "gaussian", "expected none, auto, pyscf, psi4, orca"),
        (chain("O", "H", "H"), "", "expected none, auto"),
        (chain("O", "H", "H"), "٢", "expected none, auto"),
        (chain("Nh", "H"), "orca", "orca table has no frozen core for Nh: .*--frozen-core N"),
        (chain("B", charge=3), "auto", "pyscf frozen core freezes 1 of the 1 occupied orbitals of B .*--frozen-core N"),
        (chain("Al", charge=3), "orca", "orca frozen core freezes 5 of the 5 occupied"),
    ],
)
def test_refused(molecule: Molecule, dialect: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        count(molecule, dialect)


def test_more_core_than_beta_electrons_is_refused() -> None:
    be = chain("Be")
    assert frozen_core_count(be, "psi4", {}, 3, 1).orbitals == 1
    with pytest.raises(InputError, match="only 0 beta electrons"):
        frozen_core_count(be, "psi4", {}, 4, 0)
    assert frozen_core_count(be, "pyscf", {}, 4, 0).orbitals == 0


def test_dialect_differences() -> None:
    assert dialect_differences(chain("Na", "Cl"), {}, 14, 14) == {"pyscf": 6, "orca": 6, "psi4": 10}
    assert dialect_differences(chain("O", "H", "H"), {}, 5, 5) == {"pyscf": 1, "orca": 1, "psi4": 1}
    assert dialect_differences(chain("Al", charge=3), {}, 5, 5) == {"psi4": 1}
    assert dialect_differences(chain("Nh", "H"), {}, 57, 57) == {"pyscf": 55, "psi4": 50}
