"""Molecules among point charges: against PySCF's own QM/MM and DF-MP2, by symmetry, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pyscf import gto, qmmm, scf
from pyscf.mp import dfmp2_native, dfump2_native

import dfmp2
from dfmp2.batch.inputs import read_input
from dfmp2.batch.manifest import read_manifest
from dfmp2.errors import InputError, ResultFileError
from dfmp2.export import export
from dfmp2.external.psi4_input import psi4_input
from dfmp2.integrations import qcschema
from dfmp2.io.point_charges import read_point_charges
from dfmp2.molecule import Molecule, field_energy
from dfmp2.reference import hamiltonian
from dfmp2.submission.aws.package import pack, unpack
from dfmp2.units import BOHR_PER_ANGSTROM
from tests.conftest import Runner, succeed
from tests.test_physics import WATER, rotation

ATOMS = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
FIELD = "# a neighbour, TIP3P\n2.9117 0 0.0592 -0.834  # O\n\n3.4970 0.0 -7.072D-1 .417\r\n3.497 0 +0.7072 0.417\n"
CHARGES = np.array([[2.9117, 0, 0.0592, -0.834], [3.497, 0, -0.7072, 0.417], [3.497, 0, 0.7072, 0.417]])
IN_BOHR = CHARGES * np.array([BOHR_PER_ANGSTROM] * 3 + [1.0])
STO3G = ("--basis", "sto-3g", "--overwrite")
AMONG = ("--point-charges", "field.dat")
EXACT = {"precision": "fp64", "stability": "off", "scf_conv_tol": 1e-12}


@pytest.fixture(autouse=True)
def field(folder: Path) -> Path:
    """A file with three charges beside the molecules."""
    (folder / "field.dat").write_text(FIELD, newline="")
    return folder / "field.dat"


# --- energies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scf_type", ["df", "conventional"])
@pytest.mark.parametrize("charge", [0, 1], ids=["rhf", "uhf"])
def test_energies_are_pyscfs(folder: Path, scf_type: str, charge: int) -> None:
    mole = gto.M(atom=ATOMS, basis="cc-pvdz", charge=charge, spin=charge, verbose=0)
    mf = scf.UHF(mole) if charge else scf.RHF(mole)
    mf = qmmm.mm_charge(mf.density_fit("cc-pvdz-jkfit") if scf_type == "df" else mf, CHARGES[:, :3], CHARGES[:, 3])
    mf.run(conv_tol=1e-12, conv_tol_grad=1e-7)
    theirs = (dfump2_native.DFUMP2 if charge else dfmp2_native.DFRMP2)(mf, auxbasis="cc-pvdz-ri").run()
    settings = {"charge": charge, "multiplicity": 1 + charge, "scf": scf_type, **EXACT}
    ours = dfmp2.run(folder / "h2o.xyz", "cc-pvdz", point_charges=folder / "field.dat", **settings)
    assert ours.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
    assert ours.mp2_correlation_energy == pytest.approx(theirs.e_corr, abs=1e-9)
    assert ours.reference.nuclear_repulsion_energy == pytest.approx(mf.energy_nuc(), abs=1e-10)


def test_core_potentials_screen_the_nucleus_and_ghosts_have_none() -> None:
    """A ghost on top of a charge is allowed, and iodine has 25 of its 53 charges."""
    charges = np.array([[0.0, 0.0, -8.0, 0.5], [0.0, 6.0, 0.0, -0.2]])
    points = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3.04], [0.0, 0.0, -8.0]])
    molecule = Molecule(("I", "H", "He"), points, (False, False, True), point_charges=charges)
    mole = gto.M(
        atom=[("I", points[0]), ("H", points[1]), ("ghost-He", points[2])],
        **{"unit": "Bohr", "basis": "def2-svp", "ecp": {"I": "def2-svp"}, "verbose": 0},
    )
    mf = qmmm.mm_charge(scf.RHF(mole).density_fit("def2-universal-jkfit"), charges[:, :3], charges[:, 3], unit="Bohr")
    mf.run(conv_tol=1e-12, conv_tol_grad=1e-7)
    ours = dfmp2.run(molecule, "def2-svp", **EXACT)
    assert ours.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
    expected = mf.energy_nuc() - mole.energy_nuc()
    assert field_energy(molecule, ours.orbital_basis.ecp_electrons) == pytest.approx(expected, abs=1e-12)


def test_potential_in_blocks_is_pyscfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attraction of fractional nuclei here, integrals on a grid there; d functions, three blocks of charges."""
    monkeypatch.setattr(hamiltonian, "CHARGES_PER_CALL", 7)
    random = np.random.default_rng(3)
    charges = np.column_stack([random.normal(size=(20, 3)) * 6.0, random.normal(size=20)])
    mole = gto.M(atom="S 0 0 0; H 0 0.94 0.95; H 0 -0.94 0.95; ghost-H 0 1.3 0", basis="cc-pvdz", verbose=0)
    theirs = qmmm.mm_charge(scf.RHF(mole), charges[:, :3], charges[:, 3], unit="Bohr").get_hcore()
    assert hamiltonian.potential(mole, charges) == pytest.approx(theirs - scf.RHF(mole).get_hcore(), abs=1e-11)


def test_energy_follows_molecule_and_charges_moved_together() -> None:
    turn, shift = rotation(), np.array([3.0, -7.0, 11.0])
    moved = np.column_stack([IN_BOHR[:, :3] @ turn.T + shift, IN_BOHR[:, 3]])
    here = dfmp2.run(WATER.in_field(IN_BOHR), "cc-pvdz", **EXACT)
    there = replace(WATER, coordinates=WATER.coordinates @ turn.T + shift, point_charges=moved)
    assert dfmp2.run(there, "cc-pvdz", **EXACT).mp2_total_energy == pytest.approx(here.mp2_total_energy, abs=1e-9)


def test_a_charge_of_zero_changes_nothing_and_one_far_away_is_coulombs_law() -> None:
    alone = dfmp2.run(WATER, "sto-3g", **EXACT)
    nothing = dfmp2.run(WATER, "sto-3g", point_charges=[[0.0, 0.0, 3.0, 0.0]], **EXACT)
    assert nothing.mp2_total_energy == pytest.approx(alone.mp2_total_energy, abs=1e-12)
    cation = dfmp2.run(WATER, "sto-3g", charge=1, multiplicity=2, **EXACT)
    far = [[0.0, 0.0, 9000.0, 2.0]]
    settings = {"charge": 1, "multiplicity": 2, "point_charges": far, "point_charge_units": "bohr", **EXACT}
    among = dfmp2.run(WATER, "sto-3g", **settings)
    assert among.mp2_total_energy - cation.mp2_total_energy == pytest.approx(2 / 9000, abs=1e-6)


# --- everywhere an energy is --------------------------------------------------------------------------


def test_run_check_compare_show_and_resume(call: Runner, folder: Path) -> None:
    done = succeed(call("run", "h2o.xyz", *STO3G, *AMONG, "--check", "--json")).json
    assert done["point_charges"]["count"] == 3
    assert done["point_charges"]["total_charge"] == pytest.approx(0.0, abs=1e-15)
    assert done["point_charges"]["nuclear_energy"] == pytest.approx(-0.2719314318, abs=1e-9)  # PySCF
    assert done["check"]["passed"]
    stored = dfmp2.read("h2o.dfmp2.h5")
    assert np.array_equal(stored.molecule.point_charges, IN_BOHR)
    line = "3 point charges, +0.000000 e in all; -0.2719314318 Eh with the nuclei"
    assert line in succeed(call("show", "h2o.dfmp2.h5")).out
    assert line in succeed(call("derive", "h2o.dfmp2.h5", "--frozen-core", "1")).out
    succeed(call("report", "h2o.dfmp2.h5", "--output", "page.html"))
    assert "3 point charges" in (folder / "page.html").read_text()
    compared = succeed(call("compare", "h2o.dfmp2.h5", "--json", "--tolerance", "1e-8")).json
    assert compared["passed"]
    arguments = ("run", "h2o.xyz", "--basis", "sto-3g", "--resume", "--check", "--json")
    assert succeed(call(*arguments, *AMONG)).json == done
    assert "another calculation: point charges" in call(*arguments).message
    (folder / "field.dat").write_text(FIELD.replace("2.9117", "2.9118"))
    assert "another calculation: point charges" in call(*arguments, *AMONG).message


def test_bohr_is_said_once_for_all(call: Runner, folder: Path) -> None:
    (folder / "bohr.dat").write_text("".join(" ".join(f"{x:.17g}" for x in row) + "\n" for row in IN_BOHR))
    there = succeed(call("run", "h2o.xyz", *STO3G, *AMONG, "--json")).json
    units = ("--point-charges", "bohr.dat", "--point-charge-units", "bohr")
    assert (
        succeed(call("run", "h2o.xyz", *STO3G, *units, "--json")).json["mp2_total_energy"] == there["mp2_total_energy"]
    )
    assert succeed(call("plan", "h2o.xyz", "--basis", "sto-3g", *units, "--json")).json


def test_two_parts_give_the_run(call: Runner) -> None:
    whole = succeed(call("run", "h2o.xyz", *STO3G, *AMONG, "--json")).json
    prepared = succeed(call("prepare", "h2o.xyz", *STO3G, *AMONG, "--json")).json
    assert prepared["point_charges"] == whole["point_charges"]
    parts = succeed(call("energy", "--from", "h2o.prepared.h5", "--overwrite", "--json")).json
    assert (parts["mp2_total_energy"], parts["point_charges"]) == (whole["mp2_total_energy"], whole["point_charges"])
    assert "belongs to dfmp2 prepare" in call("energy", "--from", "h2o.prepared.h5", *AMONG).message


def test_every_run_of_a_study_is_in_the_same_field(call: Runner, folder: Path) -> None:
    (folder / "hehe.xyz").write_text("2\n\nHe 0 0 0\nHe 0 0 2.9\n")
    basis = ("--basis", "cc-pvdz", "--overwrite", "--json")
    fitted = ("--scf-auxbasis", "def2-universal-jkfit")
    found = succeed(call("interaction", "hehe.xyz", "--fragments", "1,2", *basis, *fitted, *AMONG)).json
    assert "every run in the field of the same 3 point charges" in found["notes"]
    assert {run["point_charges"]["count"] for run in found["runs"].values()} == {3}
    for name, first in (("complex", "He"), ("fragment-2-in-complex", "ghost-He")):
        mole = gto.M(atom=f"{first} 0 0 0; He 0 0 2.9", basis="cc-pvdz", verbose=0)
        mf = qmmm.mm_charge(scf.RHF(mole).density_fit("def2-universal-jkfit"), CHARGES[:, :3], CHARGES[:, 3]).run(
            conv_tol=1e-11
        )
        assert found["runs"][name]["scf_total_energy"] == pytest.approx(mf.e_tot, abs=1e-8)
    scan = succeed(call("scan", "h2.xyz", "--bond", "1,2", "0.7:0.8:2", *STO3G, *AMONG, "--json")).json
    assert {run["point_charges"]["nuclear_energy"] < 0 for run in scan["runs"].values()} == {True}
    limit = succeed(call("cbs", "h2.xyz", "--basis", "cc-pv[dt]z", "--overwrite", "--json", *AMONG)).json
    assert {run["point_charges"]["count"] for run in limit["runs"].values()} == {3}


def test_batch(call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = (
        '[[item]]\nmolecule = "h2o.xyz"\npoint-charges = "field.dat"\n[[item]]\nname = "bare"\nmolecule = "h2o.xyz"\n'
    )
    (folder / "m.toml").write_text(f'basis = "sto-3g"\noutput = "out"\n{items}')
    succeed(call("batch", "run", "m.toml"))
    single = succeed(call("run", "h2o.xyz", *STO3G, *AMONG, "--json")).json
    among = dfmp2.read(folder / "out" / "h2o.h5")
    assert among.mp2_total_energy == pytest.approx(single["mp2_total_energy"], abs=1e-12)
    assert np.array_equal(among.molecule.point_charges, IN_BOHR)
    assert dfmp2.read(folder / "out" / "bare.h5").molecule.point_charges is None
    succeed(call("batch", "run", "h2o.xyz", "--basis", "sto-3g", *AMONG, "--output", "other"))
    monkeypatch.chdir(folder / "out")
    assert "complete" in succeed(call("batch", "status", "../other")).out
    monkeypatch.chdir(folder)
    (folder / "field.dat").write_text(FIELD.replace("-0.834", "-0.835"))
    assert "point charges" in succeed(call("batch", "run", "m.toml")).err
    assert dfmp2.read(folder / "out" / "h2o.h5").molecule.point_charges[0, 3] == -0.835
    (folder / "m.toml").write_text(f'basis = "sto-3g"\noutput = "out"\npoint-charges = "../field.dat"\n{items}')
    assert "point_charges: '../field.dat' is not below" in call("batch", "run", "m.toml").message


def test_a_package_for_aws_takes_the_field_along(folder: Path) -> None:
    (folder / "m.toml").write_text(
        'basis = "sto-3g"\noutput = "out"\npoint-charges = "field.dat"\n[[item]]\nmolecule = "h2o.xyz"\n'
    )
    here = read_manifest(folder / "m.toml")
    (folder / "inputs.tar").write_bytes(pack(here).content)
    (elsewhere := folder / "elsewhere").mkdir()
    there = read_manifest(unpack(folder / "inputs.tar", elsewhere))
    assert Path(there.items[0].settings.point_charges or "").is_relative_to(elsewhere.resolve())
    assert read_input(there.items[0]).fingerprint == read_input(here.items[0]).fingerprint


def test_qcschema_there_and_back() -> None:
    document = {
        "molecule": {"symbols": list(WATER.symbols), "geometry": WATER.coordinates.ravel().tolist()},
        "driver": "energy",
        "model": {"method": "mp2", "basis": "sto-3g"},
        "keywords": {"point_charges": CHARGES.tolist()},
    }
    result = qcschema.run(qcschema.read_request(document))
    assert np.array_equal(result.molecule.point_charges, IN_BOHR)
    exported = json.loads(export(result, "qcschema"))
    again = qcschema.read_request({name: exported[name] for name in ("molecule", "driver", "model", "keywords")})
    assert again.molecule == result.molecule
    document["keywords"] = {"point_charges": "field.dat"}
    with pytest.raises(InputError, match="point_charges names a file"):
        qcschema.read_request(document)


def test_ase() -> None:
    """Atoms in angstrom, and so are the charges."""
    ase = pytest.importorskip("ase")
    from dfmp2.integrations.ase import DFMP2

    atoms = ase.Atoms(WATER.symbols, WATER.coordinates / BOHR_PER_ANGSTROM)
    atoms.calc = DFMP2("sto-3g", point_charges=CHARGES, precision="fp64")
    atoms.get_potential_energy()
    expected = dfmp2.run(WATER.in_field(IN_BOHR), "sto-3g", precision="fp64").mp2_total_energy
    assert atoms.calc.result.mp2_total_energy == pytest.approx(expected, abs=1e-9)
    with pytest.raises(InputError, match="point charges have shape"):
        DFMP2("sto-3g", point_charges=[[1.0, 2.0, 3.0]])


def test_a_damaged_field_is_no_result(folder: Path) -> None:
    dfmp2.write(dfmp2.run(WATER.in_field(IN_BOHR), "sto-3g"), folder / "a.h5")
    with h5py.File(folder / "a.h5", "r+") as handle:
        handle["dfmp2/input/point_charges"][0, 3] = np.nan
    with pytest.raises(ResultFileError, match=r"damaged file.*point charge 1 is nan e"):
        dfmp2.read(folder / "a.h5")


def test_exports_say_it_or_refuse() -> None:
    result = dfmp2.run(WATER.in_field(IN_BOHR), "sto-3g")
    assert b"in the field of 3 point charges" in export(result, "molden")
    assert b" point_charges=3 " in export(result, "xyz")
    with pytest.raises(InputError, match="point charges, which the format cannot say"):
        export(result, "trexio")
    text = psi4_input(result, 10**9)
    assert text.count("field.extern.addCharge(") == 3
    # E(SCF) of Psi4 1.3.2 with an input of this form agrees to 1e-12 Eh (water/cc-pVDZ, these charges).
    assert f"field.extern.addCharge(-0.834, {float(IN_BOHR[0, 0])!r}, 0.0, {float(IN_BOHR[0, 2])!r})" in text


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nothing\n\n", "field.dat: no point charge"),
        ("1 2 3\n", "field.dat, line 1: '1 2 3': expected x, y, z and charge"),
        ("#\n1 2 3 0.1 0.2\n", "field.dat, line 2: '1 2 3 0.1 0.2': expected x, y, z and charge"),
        ("1 2 3 nan\n", "field.dat, line 1: 'nan'"),
        ("1 2 3 0,4\n", "field.dat, line 1: '0,4'"),
        ("1,2,3,4\n", "four numbers with spaces"),
        ("1 2 x 0.4\n", "field.dat, line 1: 'x'"),
        ("1 2 3 1e999\n", "point charge 1 is inf e"),
        ("1 2 3 0.1\n1e6 0 0 0.1\n", "point charge 2 is 0.1 e at (1.88973e+06, 0, 0) bohr"),
        (" " * 5000 + "1 2 3" + " " * 5000 + "0.1\n", "expected x, y, z and charge"),
        ("1 2 3\0 0.1\n", "not a file of point charges: it contains NUL"),
        ("3 0 0 1\n0 0.7572 -0.46 0.4\n", "point charge 2 is 0.009 angstrom from atom 2 H, less than 0.1"),
    ],
)
def test_bad_files_name_the_place_and_nothing_happens(call: Runner, folder: Path, text: str, said: str) -> None:
    (folder / "field.dat").write_text(text)
    done = call("run", "h2o.xyz", *STO3G, *AMONG)
    assert done.code == 3
    assert said in done.message
    assert not (folder / "h2o.dfmp2.h5").exists()


def test_files_that_are_not_there_or_would_be_overwritten(call: Runner) -> None:
    assert "nowhere.dat: no such file" in call("run", "h2o.xyz", *STO3G, "--point-charges", "nowhere.dat").message
    assert "is the file given as" in call("run", "h2o.xyz", *STO3G, *AMONG, "--output", "field.dat").message


def test_a_charge_where_no_atom_could_be_is_warned_of(call: Runner, folder: Path) -> None:
    (folder / "field.dat").write_text("0 0.5 0.6 0.1\n")
    assert "nearer than any atom could be" in succeed(call("run", "h2o.xyz", *STO3G, *AMONG)).err


@pytest.mark.parametrize("given", [[], [[1, 2, 3]], [1, 2, 3, 4], [["a", 1, 2, 3]], [[1, 2, 3, float("nan")]]])
def test_numbers_that_are_no_charges(given: Any) -> None:
    with pytest.raises(InputError, match="point charge"):
        read_point_charges(given)


def test_equal_molecules_have_equal_fields() -> None:
    among = WATER.in_field(IN_BOHR)
    assert among == WATER.in_field(IN_BOHR.tolist()) and hash(among) == hash(WATER.in_field(IN_BOHR))
    assert among != WATER and among.fingerprint != WATER.in_field(IN_BOHR[:2]).fingerprint
    assert among.in_field(None) == WATER and among.with_state(2, 1).point_charges is not None
