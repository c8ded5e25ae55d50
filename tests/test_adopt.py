"""Mean fields of PySCF that are taken over as what they are, and those that are refused with the name of the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pyscf import gto, lo, qmmm, scf, sgx
from pyscf.mp import dfmp2_native
from pyscf.scf import addons

import dfmp2
from dfmp2.errors import InputError
from dfmp2.integrations.pyscf import DFMP2
from dfmp2.progress import Listener
from dfmp2.recompute import recompute

WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
CHARGES = np.array([[3.0, 0.0, 0.0, -0.8], [3.5, 0.0, 1.0, 0.4]])
Made = Callable[[], Any]


def water(**settings: Any) -> Any:
    return gto.M(**{"atom": WATER, "basis": "6-31g", "verbose": 0, **settings})


def fitted(mf: Any) -> Any:
    return mf.density_fit("def2-universal-jkfit")


def among(mf: Any, **settings: Any) -> Any:
    return qmmm.mm_charge(mf, CHARGES[:, :3], CHARGES[:, 3], **settings)


def set_on(mf: Any, **attributes: Any) -> Any:
    """The mean field with attributes, run."""
    for name, value in attributes.items():
        setattr(mf, name, value)
    return mf.run()


TAKEN: dict[str, Made] = {  # what is equivalent to a plain mean field, or recorded
    "newton": lambda: fitted(water().RHF()).newton(),
    "symmetry": lambda: water(symmetry=True, charge=1, spin=1).UHF(),
    "level shift": lambda: water().RHF().set(level_shift=0.3),
    "x2c": lambda: water().RHF().x2c().newton(),
    "x2c, fitted": lambda: fitted(water().UHF()).sfx2c1e(),
    "charges": lambda: among(fitted(water().RHF())),
    "charges and x2c": lambda: among(water(charge=1, spin=1).UHF().x2c()),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_recorded_is_repeated(name: str) -> None:
    """By PySCF from the stored values alone, SCF and DF-MP2."""
    mf = TAKEN[name]().run(conv_tol=1e-11, conv_tol_grad=1e-6)
    result = mf.apply(DFMP2, auxbasis="def2-svp-ri", threads=1).run().result
    assert result.scf_total_energy == mf.e_tot
    assert result.options.relativity == ("x2c" if "x2c" in name else "none")
    assert (result.molecule.point_charges is not None) == ("charges" in name)
    assert recompute(result, 1e-7, 1, Listener()).passed


def _scaled_fit() -> Any:
    mf = fitted(water().RHF())
    mf.with_df.build()
    mf.with_df._cderi = 1.001 * mf.with_df._cderi
    return mf.run()


def _in_a_field() -> Any:
    mf = water().RHF()
    core = mf.get_hcore() + 0.01 * mf.mol.intor("int1e_r")[2]
    return set_on(mf, get_hcore=lambda *_: core)


def _localised() -> Any:
    mf = water().RHF().run()
    mf.mo_coeff[:, :5] = lo.Boys(mf.mol, mf.mo_coeff[:, :5]).kernel()
    return mf


def _range_separated() -> Any:
    mole = water()
    mole.omega = 0.3
    return mole.RHF().run()


class Shifted(scf.hf.RHF):  # type: ignore[misc]
    """With a nuclear energy of its own."""

    def energy_nuc(self) -> float:
        """Wrong by 0.3 Eh."""
        return float(super().energy_nuc()) + 0.3


REFUSED: dict[str, tuple[Made, str]] = {
    "solvent": (lambda: water().RHF().ddCOSMO().run(), r"with_solvent \(an implicit solvent\)"),
    "smearing": (lambda: addons.smearing_(water().RHF(), sigma=0.1).run(), r"sigma \(smeared occupations\)"),
    "frac_occ": (
        lambda: addons.frac_occ(gto.M(atom="O", basis="6-31g", verbose=0).RHF()).run(),
        r"mo_occ \(fractional occupations such as 1.3333\)",
    ),
    "other electrons": (lambda: set_on(water().UHF(), nelec=(6, 4)), r"mo_occ \(\(6, 4\) electrons"),
    "charges with radii": (lambda: among(water().RHF(), radii=[0.5, 0.5]).run(), r"mm_mol \(charges with radii"),
    "x2c without charges": (lambda: among(water().RHF()).x2c().run(), "get_hcore differs by up to"),
    "atomic x2c": (lambda: _atomic_x2c(), r"with_x2c.approx = 'atom1e'"),
    "finite nuclei": (lambda: water(nucmod={"O": 2}).RHF().run(), r"mol.nucmod \(nuclei of finite size\)"),
    "range separation": (_range_separated, "mol.omega = 0.3"),
    "electric field": (_in_a_field, "get_hcore differs by up to 9.*replaced on the object: get_hcore"),
    "model integrals": (lambda: set_on(water().RHF(), _eri=1.02 * water().intor("int2e", aosym="s8")), "_eri"),
    "seminumerical exchange": (lambda: sgx.sgx_fit(water().RHF()).run(), r"with_df \(integrals of another kind, SGX"),
    "fitted Coulomb": (lambda: set_on(fitted(water().RHF()), only_dfj=True), "only_dfj"),
    "another fit": (_scaled_fit, "Coulomb and exchange matrices differ"),
    "subclass": (lambda: Shifted(water()).run(), "energy_nuc differs by up to 3.0e-01 Eh"),
    "localised": (_localised, "not canonical.*mf.canonicalize"),
    "shifted": (
        lambda: set_on(water().RHF(), level_shift=0.3, conv_check=False),
        "not canonical: mo_energy is up to 3.0e-01",
    ),
    "complex": (lambda: _complex(), r"mo_coeff \(complex orbitals\)"),
    "ghf": (lambda: water().GHF().run(), "the mean field is a GHF"),
    "dirac": (lambda: scf.DHF(gto.M(atom="He", basis="6-31g", verbose=0)).run(), "the mean field is a DHF"),
}


def _atomic_x2c() -> Any:
    mf = water().RHF().x2c()
    mf.with_x2c.approx = "atom1e"
    return mf.run()


def _complex() -> Any:
    mf = water().RHF().run()
    mf.mo_coeff = mf.mo_coeff + 0j
    return mf


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_refused_by_name(name: str) -> None:
    make, said = REFUSED[name]
    with pytest.raises(InputError, match=said):
        dfmp2.from_mean_field(make(), auxbasis="def2-svp-ri", threads=1)


def test_canonicalised_orbitals_and_an_equal_matrix_are_taken() -> None:
    plain = water().RHF().run(conv_tol=1e-11)
    expected = dfmp2_native.DFRMP2(plain, auxbasis="def2-svp-ri").run().e_corr
    mf = _localised()
    mf.mo_energy, mf.mo_coeff = mf.canonicalize(mf.mo_coeff, mf.mo_occ)
    core = water().RHF().get_hcore()
    for given in (mf, set_on(water().RHF(), get_hcore=lambda *_: core)):
        found = dfmp2.from_mean_field(given, auxbasis="def2-svp-ri", threads=1)
        assert found.mp2_correlation_energy == pytest.approx(expected, abs=1e-7)


def test_convergence_as_pyscf_leaves_it_is_enough() -> None:
    for tolerance in (1e-9, 1e-6, 1e-4):
        mf = water().RHF().run(conv_tol=tolerance)
        assert dfmp2.from_mean_field(mf, auxbasis="def2-svp-ri", threads=1).scf_total_energy == mf.e_tot
