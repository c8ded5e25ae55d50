"""For PySCF users: mean fields that are taken over or refused by name, and the class with PySCF's
names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import dft, gto, lo, qmmm, scf, sgx
from pyscf.mp import dfmp2 as pyscf_dfmp2
from pyscf.mp import dfmp2_native, dfump2_native
from pyscf.pbc import gto as periodic
from pyscf.scf import addons

import dfmp2
from dfmp2.errors import ComparisonFailed, ConvergenceError, InputError
from dfmp2.interop.pyscf import DFMP2, gradient_from_mean_field
from dfmp2.progress import Listener
from dfmp2.scf import adopt
from dfmp2.validation.compare import recompute
from tests.recorded import recorded_error, recorded_warning

WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
RADICAL = "N 0 0 0; H 0 0.8036 0.6347; H 0 -0.8036 0.6347"
CHARGES = np.array([[3.0, 0.0, 0.0, -0.8], [3.5, 0.0, 1.0, 0.4]])
EXACT: dict[str, Any] = {"precision": "fp64", "threads": 1}
PLAIN: dict[str, Any] = {"auxbasis": "def2-svp-ri", "threads": 1}
Made = Callable[[], Any]


def water(**settings: Any) -> Any:
    return gto.M(**{"atom": WATER, "basis": "6-31g", "verbose": 0, **settings})


def fitted(mf: Any) -> Any:
    return mf.density_fit("def2-universal-jkfit")


def among(mf: Any, **settings: Any) -> Any:
    return qmmm.mm_charge(mf, CHARGES[:, :3], CHARGES[:, 3], **settings)


def set_on(mf: Any, **attributes: Any) -> Any:
    """Set attributes on a mean field and run it."""
    for name, value in attributes.items():
        setattr(mf, name, value)
    return mf.run()


@pytest.fixture(scope="module")
def closed() -> Any:
    """Water, RHF without fitting."""
    return water().RHF().run(conv_tol=1e-11, conv_tol_grad=1e-7)


@pytest.fixture(scope="module")
def radical() -> Any:
    """NH2, UHF with fitting."""
    return fitted(water(atom=RADICAL, spin=1).UHF()).run(conv_tol=1e-11, conv_tol_grad=1e-7)


# --- energies on PySCF's orbitals -----------------------------------------------------------------


@pytest.mark.parametrize("frozen", [None, 1])
@pytest.mark.parametrize(
    ("kind", "theirs"), [("closed", dfmp2_native.DFRMP2), ("radical", dfump2_native.DFUMP2)]
)
def test_energies_against_pyscf(
    kind: str, theirs: Any, frozen: int | None, request: pytest.FixtureRequest
) -> None:
    mf = request.getfixturevalue(kind)
    mp = mf.apply(DFMP2, frozen=frozen, auxbasis="def2-svp-ri", **EXACT).run()
    expected = theirs(mf, frozen=frozen, auxbasis="def2-svp-ri").run().e_corr
    assert mp.e_corr == pytest.approx(expected, abs=1e-11)
    assert mp.e_tot == pytest.approx(mf.e_tot + expected, abs=1e-10)
    assert mp.e_corr_ss + mp.e_corr_os == pytest.approx(mp.e_corr, abs=1e-14)
    assert (mp.e_hf, mp.converged, mp.result.sizes.frozen_core) == (mf.e_tot, True, frozen or 0)
    assert mp.result.reference.scf_type == ("conventional" if kind == "closed" else "df")


def test_orbitals_in_any_order_are_stored_by_energy(radical: Any) -> None:
    """As ordered by mean fields with symmetry: by irreducible representation."""
    expected = dfmp2.from_mean_field(radical, frozen_core=1, **{**PLAIN, "precision": "fp64"})
    mf, mixed = radical, radical.copy()
    order = np.random.default_rng(2).permutation(radical.mo_energy.shape[1])
    mixed.mo_coeff, mixed.mo_energy, mixed.mo_occ = (
        x[..., order] for x in (mf.mo_coeff, mf.mo_energy, mf.mo_occ)
    )
    found = dfmp2.from_mean_field(mixed, frozen_core=1, **{**PLAIN, "precision": "fp64"})
    for energy, occupation in zip(found.reference.mo_energy, found.reference.mo_occ, strict=True):
        assert (np.diff(occupation) <= 0).all()
        assert (np.diff(energy[occupation > 0]) >= 0).all() and (
            np.diff(energy[occupation == 0]) >= 0
        ).all()
    np.testing.assert_allclose(found.pairs.opposite_spin, expected.pairs.opposite_spin, atol=1e-12)


# --- what is taken over, and what is refused ------------------------------------------------------


TAKEN: dict[str, Made] = {  # equivalent to a plain mean field, or recorded
    "newton": lambda: fitted(water().RHF()).newton(),
    "symmetry": lambda: water(symmetry=True, charge=1, spin=1).UHF(),
    "level shift": lambda: water().RHF().set(level_shift=0.3),
    "x2c": lambda: water().RHF().x2c().newton(),
    "x2c, fitted": lambda: fitted(water().UHF()).sfx2c1e(),
    "charges": lambda: among(fitted(water().RHF())),
    "atoms of an element with different sets": lambda: fitted(_different_sets()),
    "charges and x2c": lambda: among(water(charge=1, spin=1).UHF().x2c()),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_recorded_is_repeated(name: str) -> None:
    """PySCF repeats SCF and DF-MP2 from the stored values alone."""
    mf = TAKEN[name]().run(conv_tol=1e-11, conv_tol_grad=1e-6)
    result = mf.apply(DFMP2, **PLAIN).run().result
    assert result.scf_total_energy == mf.e_tot
    assert result.options.relativity == ("x2c" if "x2c" in name else "none")
    assert (result.molecule.point_charges is not None) == ("charges" in name)
    assert recompute(result, 1e-7, 1, Listener()).passed


def _different_sets() -> Any:
    atoms = "O 0 0 0.1; H1 0 0.7 -0.5; H2 0.1 -0.8 -0.4"
    sets = {"O": "6-31g", "H1": "6-31g**", "H2": "sto-3g"}
    return water(atom=atoms, basis=sets, charge=1, spin=1).UHF()


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
    """A mean field with another nuclear energy."""

    def energy_nuc(self) -> float:
        """Wrong by 0.3 Eh."""
        return float(super().energy_nuc()) - 0.3


def _with_x2c(**settings: Any) -> Any:
    mf = water().RHF().x2c()
    vars(mf.with_x2c).update(settings)
    return mf.run()


def _changed(mf: Any, **attributes: Any) -> Any:
    """Run a mean field and set attributes on it."""
    vars(mf.run()).update(attributes)
    return mf


def _complex() -> Any:
    mf = water().RHF().run()
    mf.mo_coeff = mf.mo_coeff + 0j
    return mf


REFUSED: dict[str, tuple[Made, str]] = {
    "solvent": lambda: water().RHF().ddCOSMO().run(),
    "smearing": lambda: addons.smearing_(water().RHF(), sigma=0.1).run(),
    "frac_occ": lambda: addons.frac_occ(gto.M(atom="O", basis="6-31g", verbose=0).RHF()).run(),
    "other electrons": lambda: set_on(water().UHF(), nelec=(6, 4)),
    "charges with radii": lambda: among(water().RHF(), radii=[0.5, 0.5]).run(),
    "x2c without charges": lambda: among(water().RHF()).x2c().run(),
    "atomic x2c": lambda: _with_x2c(approx="atom1e"),
    "finite nuclei": lambda: water(nucmod={"O": 2}).RHF().run(),
    "range separation": _range_separated,
    "electric field": _in_a_field,
    "model integrals": lambda: set_on(
        water().RHF(), _eri=1.02 * water().intor("int2e", aosym="s8")
    ),
    "seminumerical exchange": lambda: sgx.sgx_fit(water().RHF()).run(),
    "fitted Coulomb": lambda: set_on(fitted(water().RHF()), only_dfj=True),
    "another fit": _scaled_fit,
    "subclass": lambda: Shifted(water()).run(),
    "localised": _localised,
    "shifted": lambda: set_on(water().RHF(), level_shift=0.3, conv_check=False),
    "complex": _complex,
    "dispersion": lambda: _changed(water().RHF(), disp="d3bj"),
    "non-local correlation": lambda: _changed(water().RHF(), nlc="vv10"),
    "other electrons, restricted": lambda: _changed(water().RHF(), mo_occ=6 * [2] + 7 * [0]),
    "fractions, unrestricted": lambda: _changed(
        water().UHF(), mo_occ=[4 * [1] + 2 * [0.5] + 7 * [0], 5 * [1] + 8 * [0]]
    ),
    "different core potentials": lambda: (
        water(
            atom="Na1 0 0 0; Na2 0 0 3.1",
            basis={"Na1": "lanl2dz", "Na2": "sto-3g"},
            ecp={"Na1": "lanl2dz"},
        )
        .RHF()
        .run()
    ),
    "x2c in another basis": lambda: _with_x2c(basis="sto-3g"),
    "x2c in contracted functions": lambda: _with_x2c(xuncontract=False),
    "ghf": lambda: water().GHF().run(),
    "rohf": lambda: scf.ROHF(water(atom=RADICAL, spin=1)).run(),
    "kohn-sham": lambda: dft.RKS(water()).run(),
    "cartesian": lambda: water(basis="6-31g*", cart=True).RHF().run(),
    "periodic": lambda: scf.hf.RHF(periodic.M(atom="He", a=np.eye(3) * 4, basis="6-31g")),
    "not a mean field": object,
    "gpu4pyscf": lambda: type("RHF", (), {"__module__": "gpu4pyscf.df.df_jk", "mol": water()})(),
    "dirac": lambda: scf.DHF(gto.M(atom="He", basis="6-31g", verbose=0)).run(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_refused_by_name(name: str) -> None:
    make = REFUSED[name]
    with recorded_error(InputError):
        dfmp2.from_mean_field(make(), **PLAIN)


def test_a_core_potential_of_a_mean_field_has_a_source() -> None:
    mole = gto.M(atom="I 0 0 0; H 0 0 1.6", basis="def2-svp", ecp={"I": "def2-svp"}, verbose=0)
    elements = adopt._basis("orbital", mole, mole.basis, mole._ecp).elements
    sources = {symbol: element.ecp_source for symbol, element in elements.items()}
    assert sources == {"I": "PySCF mean field", "H": None}


@pytest.mark.parametrize("spin", [0, 1], ids=["alpha", "beta"])
@pytest.mark.parametrize("what", ["energies", "orbitals"])
def test_orbitals_of_either_spin_must_be_canonical(radical: Any, what: str, spin: int) -> None:
    mf = radical.copy()
    mf.mo_coeff, mf.mo_energy = radical.mo_coeff.copy(), radical.mo_energy.copy()
    if what == "energies":
        mf.mo_energy[spin] += 0.01
    else:
        # Their energies are those of the turned orbitals.
        turn = np.array([[0.8, -0.6], [0.6, 0.8]])
        mf.mo_coeff[spin][:, 1:3] = mf.mo_coeff[spin][:, 1:3] @ turn
        mf.mo_energy[spin][1:3] = turn.T**2 @ mf.mo_energy[spin][1:3]
    with recorded_error(InputError):
        dfmp2.from_mean_field(mf, **PLAIN)


def test_what_has_not_converged_or_is_of_the_scf_is_refused(closed: Any) -> None:
    with recorded_error(ConvergenceError):
        dfmp2.from_mean_field(scf.RHF(closed.mol), **PLAIN)
    with recorded_error(InputError):
        dfmp2.from_mean_field(closed, scf_max_cycles=3, **PLAIN)
    with recorded_error(InputError):
        dfmp2.from_mean_field(closed, polarizability=True, **PLAIN)
    with recorded_error(InputError):
        gradient_from_mean_field(closed, check=True, **PLAIN)


def test_a_gradient_whose_certificate_fails_is_returned_on_request(
    radical: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dfmp2.gradients.certificate.SUMS", -1.0)
    with recorded_error(ComparisonFailed):
        gradient_from_mean_field(radical, **PLAIN)
    with recorded_warning(UserWarning):
        found = gradient_from_mean_field(radical, require_proofs=False, **PLAIN)
    assert not found.certificate.passed


def test_canonicalised_orbitals_and_an_equal_matrix_are_taken(closed: Any) -> None:
    expected = dfmp2_native.DFRMP2(closed, auxbasis="def2-svp-ri").run().e_corr
    mf = _localised()
    mf.mo_energy, mf.mo_coeff = mf.canonicalize(mf.mo_coeff, mf.mo_occ)
    core = water().RHF().get_hcore()
    for given in (mf, set_on(water().RHF(), get_hcore=lambda *_: core)):
        found = dfmp2.from_mean_field(given, **PLAIN)
        assert found.mp2_correlation_energy == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("of_energy", "of_gradient", "energy", "taken"),
    [
        (1e-9, None, 0.0, False),
        (1e-6, None, 0.0, True),
        (1e-9, 1e-3, 0.0, True),
        (1e-6, 1e-5, 0.0, False),
        (1e-9, 1e-3, 4e-6, False),
        (1e-6, None, 4e-6, True),
    ],
)
def test_what_pyscf_was_asked_for_decides_how_close_is_close(
    closed: Any, of_energy: float, of_gradient: float | None, energy: float, taken: bool
) -> None:
    """HOMO and LUMO turned by 1e-3 couple by 4e-4 Eh, and raise the energy by less than 1e-6."""
    mf, turn = closed.copy(), np.eye(13)
    mf.conv_tol, mf.conv_tol_grad, mf.e_tot = of_energy, of_gradient, closed.e_tot + energy
    turn[4:6, 4:6] = np.array([[1.0, -1e-3], [1e-3, 1.0]]) / np.sqrt(1 + 1e-6)
    mf.mo_coeff = closed.mo_coeff @ turn
    if taken:
        assert dfmp2.from_mean_field(mf, **PLAIN).scf_total_energy == mf.e_tot
    else:
        with recorded_error(InputError):
            dfmp2.from_mean_field(mf, **PLAIN)


# --- the class ------------------------------------------------------------------------------------


def test_settings_by_pyscfs_ways(closed: Any) -> None:
    mp = DFMP2(closed)
    assert (mp.e_corr, mp.e_tot, mp.converged, mp.auxbasis) == (None, None, False, None)
    all_electrons = mp.run(**EXACT).e_corr
    assert mp.set(frozen=1).e_corr is None  # the old result is gone
    fewer = mp.kernel()
    assert all_electrons < fewer == mp.e_corr
    assert mp.set(frozen="auto").run().result.sizes.frozen_core == 1
    assert mp.run(auxbasis="cc-pvtz-ri").result.mp2_fitting.name == "cc-pvtz-ri"
    for name in ("frozen", "auxbasis", "options"):  # nor is there a gradient of the old settings
        mp.run()
        setattr(mp, name, getattr(mp, name))
        assert mp.result is None


def test_names_that_pyscf_and_gpu4pyscf_share(closed: Any) -> None:
    """`kernel` returns E(corr); the SCS energies are those of PySCF's class for any method; a
    missing SCF is run."""
    mp = DFMP2(scf.RHF(closed.mol), **EXACT | PLAIN).set_frozen().set(os_scale=1.3, ss_scale=0.0)
    assert (mp.emp2, mp.emp2_scs, mp.e_tot_scs) == (None, None, None)
    assert mp.kernel() == mp.e_corr == mp.emp2
    assert mp.e_tot == pytest.approx(closed.e_tot + mp.e_corr, abs=1e-9)
    theirs = pyscf_dfmp2.DFMP2(closed).set_frozen()
    theirs.with_df.auxbasis = "def2-svp-ri"
    theirs.kernel(with_t2=False)
    assert mp.e_corr == pytest.approx(1.3 * theirs.e_corr_os, abs=1e-8)
    assert (mp.emp2_scs, mp.e_tot_scs) == pytest.approx(
        (theirs.emp2_scs, theirs.e_tot_scs), abs=1e-8
    )
    np.testing.assert_array_equal(mp.mo_occ, mp._scf.mo_occ)


@pytest.mark.parametrize(
    "name",
    [
        *("t2", "with_t2", "make_rdm2", "make_fno", "init_amps", "update_amps", "ao2mo", "eris"),
        *("with_df", "auxmol", "conv_tol", "conv_tol_normt", "max_cycle", "level_shift"),
        *("cphf_tol", "cphf_max_cycle", "make_natorbs", "density_fit", "fp_type", "to_gpu"),
        *("ps", "pt"),
    ],
)
def test_what_is_not_there_says_why(closed: Any, name: str) -> None:
    mp = DFMP2(closed, **PLAIN)
    with recorded_error(AttributeError):
        getattr(mp, name)
    with recorded_error(AttributeError):  # PySCF's class would take it
        setattr(mp, name, 1)
    assert not hasattr(mp, name) and not hasattr(mp, "nothing") and mp.copy().frozen is None


def test_max_memory_is_a_limit_where_it_was_changed(closed: Any) -> None:
    mp = DFMP2(closed, **PLAIN)
    mp.max_memory = 10  # MB
    with pytest.raises(dfmp2.ResourceError, match=r'10.00 MB may be used: allow at least memory="'):
        mp.kernel()
    assert mp.set(memory="4GB").kernel() < 0  # an option of that name goes before
    mp.max_memory = closed.max_memory
    assert mp.set(ss_scale=0.3).kernel() < 0


@pytest.mark.parametrize("spin", [0, 1], ids=["rhf", "uhf"])
def test_gradient_and_densities_by_pyscfs_names(spin: int, closed: Any, radical: Any) -> None:
    mf = radical if spin else closed
    mp = mf.apply(DFMP2, frozen=1, os_scale=1.2, ss_scale=0.5, **EXACT | PLAIN)
    gradient = mp.nuc_grad_method().kernel()
    np.testing.assert_array_equal(gradient, mp.result.gradient.mp2_total_gradient)
    np.testing.assert_array_equal(mp.Gradients().kernel(atmlst=[2, 0]), gradient[[2, 0]])
    theirs = (dfump2_native.DFUMP2 if spin else dfmp2_native.DFRMP2)(
        mf, frozen=1, auxbasis="def2-svp-ri"
    )
    theirs.verbose, theirs.ps, theirs.pt, theirs.cphf_tol = 0, 1.2, 0.5, 1e-12
    with theirs:
        theirs.kernel()
        for how in ({}, {"relaxed": True}, {"ao_repr": True}, {"relaxed": True, "ao_repr": True}):
            np.testing.assert_allclose(
                mp.make_rdm1(**how), theirs.make_rdm1(**how), atol=1e-6, err_msg=str(how)
            )


def test_a_scanner_runs_the_scf_and_returns_energy_and_gradient(closed: Any) -> None:
    """The slope along a direction, in bohr, against a difference of the returned energies."""
    mf = closed.copy()
    scanner = (
        mf.apply(DFMP2, os_scale=1.3, ss_scale=0.3, **EXACT | PLAIN).nuc_grad_method().as_scanner()
    )
    mol, step = mf.mol, 0.005
    direction = np.random.default_rng(0).standard_normal((3, 3))
    found = [
        scanner(mol.set_geom_(mol.atom_coords() + k * step * direction, unit="bohr", inplace=False))
        for k in (-2, -1, 0, 1, 2)
    ]
    (first, second, (_, gradient), fourth, last) = found
    slope = (first[0] - 8 * second[0] + 8 * fourth[0] - last[0]) / (12 * step)
    assert np.vdot(gradient, direction) == pytest.approx(slope, abs=1e-7)
    assert scanner.converged
    energy = mf.apply(DFMP2, os_scale=1.3, ss_scale=0.3, **EXACT | PLAIN).as_scanner()
    assert energy(mol) == pytest.approx(found[2][0], abs=1e-9)
    assert mf.mol is mol
    assert mf.mol.atom_coords()[0, 2] == pytest.approx(closed.mol.atom_coords()[0, 2])


def test_speaks_through_pyscfs_logger_and_can_be_stored(closed: Any, tmp_path: Path) -> None:
    mp = DFMP2(closed, auxbasis="def2-svp-ri", **EXACT)
    with open(tmp_path / "log", "w") as stream:
        mp.set(verbose=4, stdout=stream).run()
    text = (tmp_path / "log").read_text()
    assert f"E(DF-MP2) = {mp.e_tot:.15g}  E_corr = {mp.e_corr:.15g}" in text
    assert "dfmp2: pair energies" in text
    dfmp2.write(mp.result, tmp_path / "a.h5")
    assert dfmp2.read(tmp_path / "a.h5").mp2_total_energy == mp.e_tot


SETTINGS: list[dict[str, Any]] = [
    {"frozen": [0, 1]},
    {"frozen": True},
    {"auxbasis": {"O": []}},
    {"frozen_core": 1},
    {"basis": "sto-3g"},
    {"max_cycle": 3},
    {"threads": "two"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_refused_settings(closed: Any, settings: dict[str, Any]) -> None:
    with recorded_error(InputError):
        DFMP2(closed, **settings)
    with recorded_error(InputError):
        DFMP2(closed.mol)
    mp = DFMP2(closed)
    with recorded_error(InputError):
        mp.run(**settings)
    assert (mp.frozen, mp.auxbasis, mp.options) == (None, None, {})


def test_import_changes_nothing_in_pyscf() -> None:
    """Every attribute of PySCF's SCF and MP classes is the same object before and after."""
    code = """
import pyscf.scf, pyscf.mp, pyscf.dft, sys
from pyscf import scf, mp, gto
places = (scf.hf.SCF, scf.hf.RHF, scf.uhf.UHF, scf.rohf.ROHF, mp.mp2.MP2, gto.Mole, scf, mp, pyscf)
before = [dict(vars(place)) for place in places]
import dfmp2.interop.pyscf
for place, then in zip(places, before):
    now = dict(vars(place))
    assert all(now.get(name) is value for name, value in then.items()), place
    assert all(name in then or name in ("mp", "scf", "dft", "df", "lib", "gto") for name in now), set(now) - set(then)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
