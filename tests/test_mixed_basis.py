"""Basis sets by element, by atom and from files: against PySCF with a dictionary of sets, against
the same set from a library, in fragments and files, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import basis_set_exchange
import pytest
from pyscf import gto
from pyscf.mp import dfmp2_native, dfump2_native

import dfmp2
from dfmp2.errors import InputError
from dfmp2.molecule.basis import parse_basis_file, squash
from dfmp2.molecule.basis_library import find_exchange_element
from dfmp2.molecule.mole import fitting_data
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.output.study import Study
from tests.recorded import recorded_error

TIGHT: dict[str, Any] = {
    "precision": "fp64",
    "scf_conv_tol": 1e-11,
    "stability": "off",
    "threads": 1,
}
WATER = "O 0 0 0; H 0 0.7572 0.5865; H 0.05 -0.7572 0.5865"
# name -> atoms, charge, multiplicity, ours, PySCF's sets and core potentials by label
CASES: dict[str, tuple[str, int, int, str, dict[str, str], dict[str, str]]] = {
    "water": (
        WATER,
        0,
        1,
        "6-31g(d,p),O=cc-pvdz,3=aug-cc-pvdz",
        {"O": "cc-pvdz", "H": "6-31g**", "H3": "aug-cc-pvdz"},
        {},
    ),
    "radical": (
        "N 0 0 0; H 0.9 0.2 0.4; H -0.5 0.8 0.3",
        0,
        2,
        "def2-svp,1=cc-pvdz",
        {"N1": "cc-pvdz", "H": "def2-svp"},
        {},
    ),
    "iodine": (
        "C 0 0 0; I 0.1 0.2 2.13; H 1 0 -0.4; H -0.5 0.9 -0.4; H -0.5 -0.9 -0.4",
        0,
        1,
        "6-31g,I=def2-svp",
        {"C": "6-31g", "H": "6-31g", "I": "def2-svp"},
        {"I": "def2-svp"},
    ),
    "two potentials": (
        "I 0 0 0; Br 0.3 0.2 2.5",
        1,
        2,
        "def2-svp,1=cc-pvdz-pp",
        {"I1": "cc-pvdz-pp", "Br": "def2-svp"},
        {"I1": "cc-pvdz-pp"},
    ),
    "silver": (
        "Ag 0 0 0; H 0.1 0 1.6; He 0 2.9 0.2",
        0,
        1,
        "sto-3g,Ag=def2-svp,He=cc-pvdz",
        {"Ag": "def2-svp", "H": "sto-3g", "He": "cc-pvdz"},
        {"Ag": "def2-svp"},
    ),
}


def molecule(atoms: str, charge: int = 0, multiplicity: int = 1) -> Molecule:
    return Molecule.from_string(atoms, charge=charge, multiplicity=multiplicity)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "radical" else pytest.mark.slow) for name in CASES],
)
def test_energies_are_those_of_pyscf_with_a_dictionary_of_sets(name: str) -> None:
    atoms, charge, multiplicity, basis, sets, potentials = CASES[name]
    ours = dfmp2.run(molecule(atoms, charge, multiplicity), basis, auxbasis="auto", **TIGHT)
    scf, correlation = pyscf_energies(ours, sets, potentials)
    assert abs(ours.scf_total_energy - scf) < 1e-8
    assert abs(ours.mp2_correlation_energy - correlation) < 1e-7


def pyscf_energies(
    ours: MP2Result, sets: dict[str, str], potentials: dict[str, str]
) -> tuple[float, float]:
    """E(SCF) and E(corr) of PySCF for the molecule of a result, with a dictionary of sets."""
    labels = ours.orbital_basis.keys(ours.molecule)
    assert set(labels) == set(sets)
    unpaired = ours.molecule.multiplicity - 1
    mole = gto.M(
        atom=list(zip(labels, ours.molecule.coordinates.tolist(), strict=True)),
        unit="Bohr",
        charge=ours.molecule.charge,
        spin=unpaired,
        basis=sets,
        ecp=potentials,
        verbose=0,
    )
    mf = mole.UHF() if unpaired else mole.RHF()
    mf = mf.density_fit(auxbasis=fitting_data(ours.molecule, ours.scf_fitting))
    mf.conv_tol, mf.conv_tol_grad = 1e-11, 1e-6
    mf.run()
    assert mf.converged
    module = dfump2_native.DFUMP2 if unpaired else dfmp2_native.DFRMP2
    mp2 = module(mf, auxbasis=fitting_data(ours.molecule, ours.mp2_fitting))
    mp2.verbose = 0
    mp2.kernel()
    return mf.e_tot, mp2.e_corr


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("cc-pvdz", "O"),
        ("6-311++g**", "Si"),
        ("def2-tzvp", "I"),
        ("lanl2dz", "Au"),
        ("ano-rcc", "Fe"),
        ("sto-3g", "K"),
        ("stuttgart rsc 1997", "U"),
    ],
)
@pytest.mark.parametrize("form", ["nwchem", "gaussian94"])
def test_files_hold_what_the_library_holds(name: str, symbol: str, form: str) -> None:
    text = basis_set_exchange.get_basis(name, elements=[symbol], fmt=form)
    found = parse_basis_file("set", text)
    assert list(found) == [symbol]
    expected = find_exchange_element(squash(name), symbol)
    assert found[symbol].ecp == expected.ecp
    mine = sorted(one_contraction(found[symbol].shells))
    assert mine == sorted(one_contraction(expected.shells))


def one_contraction(shells: Any) -> list[Any]:
    """Each contraction by itself, with its nonzero primitives: the Gaussian94 format splits general
    contractions."""
    return [
        (shell[0], tuple((row[0], row[k]) for row in shell[1:] if row[k]))
        for shell in shells
        for k in range(1, len(shell[1]))
    ]


# --- several molecules ----------------------------------------------------------------------------

SETS = {"H": "6-31g", "Li": "sto-3g", "O": "3-21g"}
OF_ALL = "6-31g,Li=sto-3g,O=3-21g"
SPECIES = {
    "lih": "Li 0 0 0; H 0.1 0 1.6",
    "oh": "O 0 0 0; H 0 0.3 0.93",
    "lioh": "Li 0 0 0; O 0.1 0 1.6; H 0 0.2 2.5",
    "h": "H 0 0 0",
}
RADICALS = ("oh", "h")


@pytest.fixture
def species_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """LiH + OH -> LiOH + H: no species has all elements, two are radicals."""
    monkeypatch.chdir(tmp_path)
    for name, atoms in SPECIES.items():
        species = molecule(atoms, 0, 2 if name in RADICALS else 1)
        (tmp_path / f"{name}.xyz").write_text(species.to_xyz())
    return tmp_path


def react(basis: str = OF_ALL, lih: str = "lih.xyz") -> Study:
    return dfmp2.reaction([lih, "oh.xyz"], ["lioh.xyz", "h.xyz"], basis, **TIGHT)


def test_species_have_their_part_of_a_basis(species_files: Path) -> None:
    study = react()
    energies = {}
    for name, run in study.runs.items():
        own = {symbol: SETS[symbol] for symbol in run.molecule.elements}
        energies[name] = sum(pyscf_energies(run, own, {}))
    expected = energies["lioh"] + energies["h"] - energies["lih"] - energies["oh"]
    assert study.values["reaction_energy"].value == pytest.approx(expected, abs=2e-7)
    assert study.settings["basis"] == OF_ALL
    assert [run.options.basis for run in study.runs.values()] == [
        "6-31g,Li=sto-3g",
        "6-31g,O=3-21g",
        OF_ALL,
        "6-31g",
    ]


@pytest.mark.slow
def test_a_stored_species_has_its_part_of_the_basis(species_files: Path) -> None:
    for folder, basis in (("part", "6-31g,Li=sto-3g"), ("other", "6-31g")):
        Path(folder).mkdir()
        dfmp2.write(dfmp2.run("lih.xyz", basis, **TIGHT), f"{folder}/lih.h5")
    expected = react().values["reaction_energy"].value
    stored = react(lih="part/lih.h5").values["reaction_energy"].value
    assert stored == pytest.approx(expected, abs=1e-9)
    with recorded_error(InputError):
        react(lih="other/lih.h5")


# --- other programs and slopes ----------------------------------------------------------------------


@pytest.mark.slow
def test_psi4_computes_the_same_with_a_set_for_each_element() -> None:
    from dfmp2.progress import Listener
    from dfmp2.validation.compare import recompute

    result = dfmp2.run(molecule(WATER), "6-31g**,O=cc-pvdz", **TIGHT)
    assert recompute(result, 1e-6, 1, Listener(), program="psi4").largest_difference < 1e-6
