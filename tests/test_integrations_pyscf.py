"""The class for PySCF users: PySCF's attribute names, against PySCF's own DF-MP2 on the same orbitals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pyscf import dft, gto, scf
from pyscf.mp import dfmp2 as pyscf_dfmp2
from pyscf.mp import dfmp2_native, dfump2_native

import dfmp2
from dfmp2.errors import ConvergenceError, InputError
from dfmp2.integrations.pyscf import DFMP2

WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
RADICAL = "N 0 0 0; H 0 0.8036 0.6347; H 0 -0.8036 0.6347"
EXACT = {"precision": "fp64", "threads": 1}


def mean_field(atom: str, spin: int = 0, fitted: bool = False, basis: str = "cc-pvdz") -> Any:
    mole = gto.M(atom=atom, basis=basis, spin=spin, verbose=0)
    mf = scf.UHF(mole) if spin else scf.RHF(mole)
    return (mf.density_fit() if fitted else mf).run(conv_tol=1e-11, conv_tol_grad=1e-7)


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field(WATER)


@pytest.fixture(scope="module")
def radical() -> Any:
    return mean_field(RADICAL, spin=1, fitted=True)


@pytest.mark.parametrize("frozen", [None, 1])
def test_rhf_against_pyscf(water: Any, frozen: int | None) -> None:
    mp = water.apply(DFMP2, frozen=frozen, auxbasis="cc-pvdz-ri", **EXACT).run()
    theirs = dfmp2_native.DFRMP2(water, frozen=frozen, auxbasis="cc-pvdz-ri").run()
    assert mp.e_corr == pytest.approx(theirs.e_corr, abs=1e-10)
    assert mp.e_tot == pytest.approx(water.e_tot + theirs.e_corr, abs=1e-10)
    # PySCF's other DF-MP2 class has the names we use; with the same fitting set it must have the same parts.
    other = pyscf_dfmp2.DFMP2(water, frozen=frozen)
    other.with_df.auxbasis = "cc-pvdz-ri"
    other.kernel(with_t2=False)
    assert mp.e_corr_ss == pytest.approx(other.e_corr_ss, abs=1e-9)
    assert mp.e_corr_os == pytest.approx(other.e_corr_os, abs=1e-9)


@pytest.mark.parametrize("frozen", [0, 1])
def test_uhf_against_pyscf(radical: Any, frozen: int) -> None:
    mp = radical.apply(DFMP2, frozen=frozen, **EXACT).run()
    theirs = dfump2_native.DFUMP2(radical, frozen=frozen or None, auxbasis="cc-pvdz-ri").run()
    assert mp.e_corr == pytest.approx(theirs.e_corr, abs=1e-10)
    assert mp.e_corr_ss + mp.e_corr_os == pytest.approx(mp.e_corr, abs=1e-14)
    assert (mp.e_hf, mp.converged) == (radical.e_tot, True)
    assert mp.result.reference.scf_type == "df"


def test_settings_by_pyscfs_ways(water: Any) -> None:
    mp = DFMP2(water)
    assert (mp.e_corr, mp.e_tot, mp.converged, mp.auxbasis) == (None, None, False, None)
    all_electrons = mp.run(**EXACT).e_corr
    assert mp.set(frozen=1).e_corr is None  # what is old is gone
    fewer = mp.kernel()
    assert all_electrons < fewer == mp.e_corr
    assert mp.set(frozen="auto").run().result.sizes.frozen_core == 1
    assert mp.run(auxbasis="cc-pvtz-ri").result.mp2_fitting.name == "cc-pvtz-ri"


def test_speaks_through_pyscfs_logger(water: Any, tmp_path: Any) -> None:
    mp = DFMP2(water, **EXACT)
    with open(tmp_path / "log", "w") as stream:
        mp.set(verbose=4, stdout=stream).run()
    text = (tmp_path / "log").read_text()
    assert f"E(DF-MP2) = {mp.e_tot:.15g}  E_corr = {mp.e_corr:.15g}" in text
    assert "dfmp2: pair energies" in text


def test_the_result_can_be_stored(water: Any, tmp_path: Any) -> None:
    mp = DFMP2(water, **EXACT).run()
    dfmp2.write(mp.result, tmp_path / "a.h5")
    assert dfmp2.read(tmp_path / "a.h5").mp2_total_energy == mp.e_tot


def test_refused_mean_fields(water: Any) -> None:
    mole = gto.M(atom="O 0 0 0", basis="sto-3g", spin=2, verbose=0)
    with pytest.raises(InputError, match=r"ROHF.*expected a PySCF RHF or UHF"):
        scf.ROHF(mole).run().apply(DFMP2).run()
    with pytest.raises(InputError, match="not Kohn-Sham"):
        dft.RKS(water.mol).set(max_cycle=1).run().apply(DFMP2).run()
    with pytest.raises(ConvergenceError, match="not converged"):
        scf.RHF(water.mol).set(max_cycle=1).run().apply(DFMP2).run()
    with pytest.raises(InputError, match="Cartesian"):
        scf.RHF(gto.M(atom=WATER, basis="6-31g*", cart=True, verbose=0)).run().apply(DFMP2).run()
    with pytest.raises(InputError, match="a Mole is no mean field"):
        DFMP2(water.mol)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"frozen": [0, 1]}, r"frozen \[0, 1\]: expected a number of core orbitals"),
    ({"frozen": True}, "frozen True"),
    ({"auxbasis": {"O": []}}, "auxbasis is a dict: expected the name"),
    ({"frozen_core": 1}, "keyword frozen_core cannot be given: it is frozen="),
    ({"basis": "sto-3g"}, "the SCF has already been done"),
    ({"max_cycle": 3}, "unknown option 'max_cycle'"),
    ({"threads": "two"}, "keyword threads 'two': expected int or None"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused_settings(water: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DFMP2(water, **settings)
    mp = DFMP2(water)
    with pytest.raises(InputError, match=message):
        mp.run(**settings)
    assert (mp.frozen, mp.auxbasis, mp.options) == (None, None, {})


def test_import_changes_nothing_in_pyscf() -> None:
    """Every attribute of PySCF's SCF and MP classes is the same object before and after."""
    code = """
import pyscf.scf, pyscf.mp, pyscf.dft, sys
from pyscf import scf, mp, gto
places = (scf.hf.SCF, scf.hf.RHF, scf.uhf.UHF, scf.rohf.ROHF, mp.mp2.MP2, gto.Mole, scf, mp, pyscf)
before = [dict(vars(place)) for place in places]
import dfmp2.integrations.pyscf
for place, then in zip(places, before):
    now = dict(vars(place))
    assert all(now.get(name) is value for name, value in then.items()), place
    assert all(name in then or name in ("mp", "scf", "dft", "df", "lib", "gto") for name in now), set(now) - set(then)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
