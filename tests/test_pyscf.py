"""For PySCF users: mean fields that are taken over or refused by name, and the class with PySCF's
names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyscf
import pytest
from pyscf import gto, mp, qmmm, scf
from pyscf.mp import dfmp2 as pyscf_dfmp2
from pyscf.mp import dfmp2_native, dfump2_native

import dfmp2
from dfmp2.errors import InputError
from dfmp2.interop.pyscf import DFMP2
from dfmp2.progress import Listener
from dfmp2.validation.compare import recompute
from tests.recorded import recorded_error

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


@pytest.fixture(scope="module")
def closed() -> Any:
    """Water, RHF without fitting."""
    return water().RHF().run(conv_tol=1e-11, conv_tol_grad=1e-7)


@pytest.fixture(scope="module")
def radical() -> Any:
    """NH2, UHF with fitting."""
    return fitted(water(atom=RADICAL, spin=1).UHF()).run(conv_tol=1e-11, conv_tol_grad=1e-7)


# --- energies on PySCF's orbitals -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "theirs", "frozen"),
    [("closed", dfmp2_native.DFRMP2, None), ("radical", dfump2_native.DFUMP2, 1)],
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
    "symmetry": lambda: water(symmetry=True, charge=1, spin=1).UHF(),
    "level shift": lambda: water().RHF().set(level_shift=0.3),
    "x2c": lambda: water().RHF().x2c().newton(),
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


def test_an_equal_matrix_is_taken(closed: Any) -> None:
    """From whichever function it comes."""
    mf = water().RHF()
    core = mf.get_hcore()
    mf.get_hcore = lambda *_: core
    found = dfmp2.from_mean_field(mf.run(), **PLAIN)
    expected = dfmp2_native.DFRMP2(closed, auxbasis="def2-svp-ri").run().e_corr
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
        for how in ({}, {"ao_repr": True}, {"relaxed": True}):
            np.testing.assert_allclose(
                mp.make_rdm1(**how), theirs.make_rdm1(**how), atol=1e-6, err_msg=str(how)
            )


def test_a_scanner_runs_the_scf_and_returns_energy_and_gradient(closed: Any) -> None:
    """At a second geometry as computed anew there."""
    mf = closed.copy()
    mp = mf.apply(DFMP2, os_scale=1.3, ss_scale=0.3, **EXACT | PLAIN)
    energy, scanner = mp.as_scanner(), mp.nuc_grad_method().as_scanner()
    places = mf.mol.atom_coords()
    moved = mf.mol.set_geom_(places + [[0, 0, 0.1], [0, 0, 0], [0.2, 0, 0]], "bohr", inplace=False)
    expected = DFMP2(
        moved.RHF().run(conv_tol=1e-11, conv_tol_grad=1e-7),
        os_scale=1.3,
        ss_scale=0.3,
        **EXACT | PLAIN,
    )
    gradient = expected.nuc_grad_method().kernel()
    scanner(closed.mol)
    total, found = scanner(moved)
    assert total == pytest.approx(energy(moved.atom_coords(closed.mol.unit)), abs=1e-9)
    assert total == pytest.approx(expected.e_tot, abs=1e-8)
    np.testing.assert_allclose(found, gradient, atol=1e-7)
    assert scanner.converged and scanner.mol is moved
    np.testing.assert_array_equal(mf.mol.atom_coords(), places)


def test_import_changes_nothing_in_pyscf() -> None:
    """Every function and class that PySCF's own places hold is PySCF's."""
    classes = scf.hf.SCF, scf.hf.RHF, scf.uhf.UHF, scf.rohf.ROHF, mp.mp2.MP2, gto.Mole
    for place in (*classes, scf, mp, pyscf):
        for name, value in vars(place).items():
            assert not str(getattr(value, "__module__", "")).startswith("dfmp2"), name
