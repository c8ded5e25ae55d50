"""Spin-free one-electron X2C: against bare PySCF, recorded, repeated, and refused where it has no place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import gto, qmmm, scf
from pyscf.mp import dfmp2_native, dfump2_native
from pyscf.x2c.sfx2c1e import SpinFreeX2CHelper

import dfmp2
from dfmp2 import memory
from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import InputError, UnsupportedByBackend
from dfmp2.export import export
from dfmp2.external import psi4
from dfmp2.external.psi4 import find_psi4, run_psi4
from dfmp2.external.psi4_input import decontracted, psi4_input
from dfmp2.integrations import qcschema
from dfmp2.molecule import Molecule
from dfmp2.reference.hamiltonian import uncontracted_functions
from dfmp2.workload import Spin, Workload
from tests.conftest import Runner, succeed

HCL = Molecule(("H", "Cl"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 2.4086]]), name="hcl")
EXACT = {"precision": "fp64", "stability": "off", "scf_conv_tol": 1e-12}
X2C = ("--relativity", "x2c")


def pyscf_mean_field(charge: int = 0, fitted: bool = True) -> Any:
    points = zip(HCL.symbols, HCL.coordinates, strict=True)
    mole = gto.M(atom=list(points), unit="Bohr", basis="cc-pvdz", charge=charge, spin=charge, verbose=0)
    mf = (scf.UHF(mole) if charge else scf.RHF(mole)).x2c()
    return mf.density_fit("cc-pvdz-jkfit") if fitted else mf


@pytest.fixture(scope="module")
def hcl() -> dfmp2.MP2Result:
    return dfmp2.run(HCL, "cc-pvdz", relativity="x2c", check=True, **EXACT)


@pytest.mark.parametrize("scf_type", ["df", "conventional"])
@pytest.mark.parametrize("charge", [0, 1], ids=["rhf", "uhf"])
def test_energies_are_pyscfs(scf_type: str, charge: int) -> None:
    mf = pyscf_mean_field(charge, scf_type == "df").run(conv_tol=1e-12, conv_tol_grad=1e-7)
    theirs = (dfump2_native.DFUMP2 if charge else dfmp2_native.DFRMP2)(mf, auxbasis="cc-pvdz-ri").run()
    settings = {"charge": charge, "multiplicity": 1 + charge, "scf": scf_type, **EXACT}
    ours = dfmp2.run(HCL, "cc-pvdz", relativity="x2c", **settings)
    assert ours.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
    assert ours.mp2_correlation_energy == pytest.approx(theirs.e_corr, abs=1e-9)


def test_with_point_charges_that_are_not_transformed(hcl: dfmp2.MP2Result) -> None:
    charges = np.array([[0.0, 5.0, 0.0, -0.4]])
    mf = qmmm.mm_charge(pyscf_mean_field(), charges[:, :3], charges[:, 3], unit="Bohr").run(conv_tol=1e-12)
    ours = dfmp2.run(HCL.in_field(charges), "cc-pvdz", relativity="x2c", **EXACT)
    assert ours.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
    assert abs(ours.scf_total_energy - hcl.scf_total_energy) > 1e-3


def test_recorded_repeated_and_shown(call: Runner, folder: Path, hcl: dfmp2.MP2Result) -> None:
    assert hcl.check is not None and hcl.check.passed
    dfmp2.write(hcl, folder / "hcl.h5")
    assert dfmp2.read(folder / "hcl.h5").options.relativity == "x2c"
    shown = succeed(call("show", "hcl.h5")).out
    assert "RHF (spin-free one-electron X2C), df" in shown
    assert succeed(call("compare", "hcl.h5", "--tolerance", "1e-8", "--json")).json["passed"]
    succeed(call("report", "hcl.h5", "--output", "page.html"))
    page = (folder / "page.html").read_text()
    assert "spin-free one-electron X2C" in page and "X2C-DF-RHF" in page
    assert "relativity" in call("derive", "hcl.h5", "--relativity", "none").message
    assert b'method="X2C-DF-MP2/cc-pvdz"' in export(hcl, "xyz")
    assert b", spin-free X2C" in export(hcl, "molden")
    with pytest.raises(InputError, match="an X2C Hamiltonian, which the format cannot say"):
        export(hcl, "trexio")


def test_commands(call: Runner, folder: Path) -> None:
    """Resume tells it apart, ghosts have their functions only, both parts and QCSchema know it."""
    sto3g = ("--basis", "sto-3g", "--json")
    relativistic = succeed(call("run", "h2o.xyz", *sto3g, *X2C, "--overwrite")).json
    assert relativistic["relativity"] == "x2c"
    plain = succeed(call("run", "h2o.xyz", *sto3g, "--output", "plain.h5")).json
    assert plain["relativity"] == "none"
    assert relativistic["scf_total_energy"] - plain["scf_total_energy"] == pytest.approx(-0.05, abs=0.02)
    assert "--relativity (x2c there, none here)" in call("run", "h2o.xyz", *sto3g, "--resume").message
    succeed(call("prepare", "h2o.xyz", *sto3g, *X2C))
    parts = succeed(call("energy", "--from", "h2o.prepared.h5", "--json", "--overwrite")).json
    assert parts["mp2_total_energy"] == relativistic["mp2_total_energy"]
    (folder / "neh.xyz").write_text("2\n\nNe 0 0 0\nHe 0 0 2.6\n")
    fitted = ("--scf-auxbasis", "def2-universal-jkfit")
    study = succeed(
        call("interaction", "neh.xyz", "--fragments", "1,2", "--basis", "6-31g", *sto3g[2:], *X2C, *fitted)
    ).json
    mole = gto.M(atom="Ne 0 0 0; ghost-He 0 0 2.6", basis="6-31g", verbose=0)
    mf = scf.RHF(mole).x2c().density_fit(fitted[1]).run(conv_tol=1e-11)
    assert study["runs"]["fragment-1-in-complex"]["scf_total_energy"] == pytest.approx(mf.e_tot, abs=1e-8)
    assert "relativity in every run: spin-free one-electron X2C" in study["notes"]
    document = {
        "molecule": {"symbols": list(HCL.symbols), "geometry": HCL.coordinates.ravel().tolist()},
        **{"driver": "energy", "model": {"method": "mp2", "basis": "cc-pvdz"}, "keywords": {"relativity": "x2c"}},
    }
    result = qcschema.run(qcschema.read_request(document))
    assert json.loads(export(result, "qcschema"))["keywords"]["relativity"] == "x2c"


def test_a_table_of_two_hamiltonians_is_refused(call: Runner, folder: Path) -> None:
    item = '[[item]]\nmolecule = "h2.xyz"\nname = '
    text = f'basis = "sto-3g"\noutput = "out"\n{item}"a"\n{item}"b"\nrelativity = "x2c"\n'
    (folder / "m.toml").write_text(text)
    succeed(call("batch", "run", "m.toml"))
    assert "different methods, relativity" in call("batch", "collect", "m.toml", "-o", "table.csv").message


def test_core_potentials_are_refused(call: Runner, folder: Path) -> None:
    (folder / "hi.xyz").write_text("2\n\nH 0 0 0\nI 0 0 1.6\n")
    done = call("run", "hi.xyz", "--basis", "def2-svp", *X2C)
    assert done.code == 3
    assert "--relativity x2c with def2-svp: it has a core potential for I" in done.message
    assert "--relativity 'dkh': expected one of none, x2c" in str(_error(relativity="dkh"))


def _error(**given: Any) -> Exception:
    with pytest.raises(InputError) as caught:
        dfmp2.Options("sto-3g", **given)
    return caught.value


def test_the_decontracted_basis_is_pyscfs() -> None:
    """What memory is planned with; general contractions, SP shells and ghosts."""
    mole = gto.M(atom="Br 0 0 0; H 0 0 1.41; ghost-O 0 3 0", basis={"Br": "cc-pvdz", "default": "6-31g"}, verbose=0)
    assert uncontracted_functions(mole) == SpinFreeX2CHelper(mole).get_xmol()[0].nao


def test_memory_of_the_transformation_is_planned() -> None:
    """32 matrices of 944 functions: 228 MB, where 222 MB were measured (16 Ar in cc-pVTZ)."""
    work = Workload(544, 2000, 2000, (Spin(144, 64, 400),), "fp64", 66, x2c_functions=944)
    small = replace(work, nao=10, naux_scf=10)
    given = {"program": 0, "budget": 10**12, "workers": 1, "limits": CpuBackend(1).limits}
    assert memory.plan(small, **given).scf == pytest.approx(222e6, rel=0.05)
    assert memory.plan(work, **given).scf == memory.plan(replace(work, x2c_functions=0), **given).scf


def test_psi4_gets_the_decontracted_basis_or_is_not_asked(
    hcl: dfmp2.MP2Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Psi4 1.3.2 gave -461.33247416437 Eh with this input, 9e-9 Eh from ours: its speed of light is another one."""
    text = psi4_input(hcl, 10**9)
    assert "relativistic x2c\nbasis_relativistic decontracted\n" in text
    shells = [shell for element in decontracted(hcl.orbital_basis).elements.values() for shell in element.shells]
    assert sum(2 * momentum + 1 for momentum, _ in shells) == uncontracted_functions(pyscf_mean_field().mol)
    monkeypatch.setattr(psi4, "find_psi4", lambda: "/bin/false")
    heavy = replace(hcl, molecule=Molecule(("I", "H"), HCL.coordinates))
    with pytest.raises(UnsupportedByBackend, match="speed of light"):
        run_psi4(heavy, 1)
    monkeypatch.setattr(psi4, "smallest_overlap", lambda _mole: 1e-8)
    with pytest.raises(UnsupportedByBackend, match="nearly linearly dependent"):
        run_psi4(hcl, 1)


@pytest.mark.skipif(find_psi4() is None, reason="Psi4 is not on PATH")
def test_psi4_agrees(hcl: dfmp2.MP2Result) -> None:
    found = run_psi4(hcl, 1)
    assert found.scf_total_energy == pytest.approx(hcl.scf_total_energy, abs=1e-7)
