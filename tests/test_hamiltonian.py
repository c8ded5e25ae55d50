"""Spin-free X2C and point charges: against PySCF, by symmetry, and as recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyscf import gto, qmmm, scf
from pyscf.mp import dfmp2_native, dfump2_native
from pyscf.x2c.sfx2c1e import SpinFreeX2CHelper

import dfmp2
from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import UnsupportedByBackend
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import make_options
from dfmp2.planning import memory
from dfmp2.planning.sizes import Spin, Workload
from dfmp2.scf import hamiltonian
from dfmp2.scf.hamiltonian import uncontracted_functions
from dfmp2.scf.kohn_sham import exact_exchange_energy, exact_exchange_matrices
from dfmp2.scf.rotation_left import final_fock_matrices
from dfmp2.scf.solvent import in_solvent
from dfmp2.units import BOHR_PER_ANGSTROM
from dfmp2.validation import psi4
from dfmp2.validation.psi4 import decontracted, psi4_input, run_psi4
from tests.awkward import mean_field, mole_of, read
from tests.recorded import recorded_error
from tests.test_physics import WATER

IN_BOHR = np.array(
    [[2.9117, 0, 0.0592, -0.834], [3.497, 0, -0.7072, 0.417], [3.497, 0, 0.7072, 0.417]]
) * np.array([BOHR_PER_ANGSTROM] * 3 + [1.0])
EXACT: dict[str, Any] = {
    "precision": "fp64",
    "stability": "off",
    "scf_conv_tol": 1e-12,
    "threads": 1,
}
SETS: dict[str, Any] = {
    "basis": "6-31g",
    "scf_auxbasis": "def2-universal-jkfit",
    "auxbasis": "def2-svp-ri",
}
HCL = Molecule(("H", "Cl"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 2.4086]]), name="hcl")


@pytest.mark.parametrize(
    ("relativity", "charges"),
    [("none", IN_BOHR), ("x2c", None)],
    ids=["among charges", "x2c"],
)
def test_the_energy_in_a_field_falls_with_the_dipole_moment(relativity: str, charges: Any) -> None:
    """dE/dF = -mu, nuclei included: for a molecule far from the origin, and an ion."""
    mole = gto.M(
        atom="O 1 2 3; H 1 3 4; H 0 2 3.5; H 2 1 3.2",
        basis="sto-3g",
        charge=1,
        unit="Bohr",
        verbose=0,
    )
    energies = []
    for strength in (-0.001, 0.001):
        field = strength * np.array([1.0, 2.0, -2.0]) / 3
        mf = hamiltonian.mean_field(mole, "rhf", relativity, charges, field=field)
        energies.append(mf.run(conv_tol=1e-12, verbose=0).e_tot)
    mf = hamiltonian.mean_field(mole, "rhf", relativity, charges).run(conv_tol=1e-12, verbose=0)
    dipole = scf.hf.dip_moment(mole, mf.make_rdm1(), unit="au", verbose=0) @ [1, 2, -2] / 3
    assert (energies[0] - energies[1]) / 0.002 == pytest.approx(dipole, abs=1e-5)


SURROUNDINGS: dict[str, tuple[str, Any, Any, dict[str, str]]] = {
    "x2c": ("x2c", None, None, {}),
    "field among charges": ("none", IN_BOHR, np.array([0.01, -0.02, 0.03]), {}),
    "dielectric": ("none", None, None, {"solvent": "water"}),
    "smd": ("none", None, None, {"solvent": "toluene", "solvent_model": "smd"}),
}


@pytest.mark.parametrize("kind", ["rhf", "uhf"])
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_energy_and_matrices_of_a_determinant_are_of_one_hamiltonian(name: str, kind: str) -> None:
    """PySCF's energies of two determinants drawn at random. They are quadratic in the density, so
    their difference is the trace of the matrices of the mean density with its change."""
    relativity, charges, field, solvent = SURROUNDINGS[name]
    mole = mole_of(read("charge=-1", "O 0 0 0", "H 0.1 0.2 0.95"))
    mf = hamiltonian.mean_field(mole, kind, relativity, charges, field=field)
    mf = in_solvent(mf, make_options(basis="6-31g", **solvent))
    drawn = [_drawn_orbitals(mf, seed) for seed in (1, 2)]
    energies = [exact_exchange_energy(one) for one in drawn]
    for one, energy in zip(drawn, energies, strict=True):
        density = one.make_rdm1()
        assert energy == pytest.approx(one.energy_tot(density), rel=1e-10)
        matrices = exact_exchange_matrices(one, density)
        np.testing.assert_allclose(final_fock_matrices(one), matrices, atol=1e-10)
    before, after = (np.reshape(one.make_rdm1(), (-1, mole.nao, mole.nao)) for one in drawn)
    mean = (before + after) / 2
    matrices = exact_exchange_matrices(mf, mean[0] if kind == "rhf" else mean)
    difference = float(np.vdot(matrices, after - before))
    assert difference == pytest.approx(energies[1] - energies[0], rel=1e-9)


def _drawn_orbitals(mf: Any, seed: int) -> Any:
    """The mean field with orthonormal orbitals drawn at random, of both spins in UHF."""
    mixed = np.random.default_rng(seed).standard_normal((2, mf.mol.nao, mf.mol.nao))
    fock = mixed + mixed.swapaxes(1, 2)
    if isinstance(mf, scf.hf.RHF):
        fock = fock[0]
    drawn = mf.copy()
    drawn.mo_energy, drawn.mo_coeff = mf.eig(fock, mf.get_ovlp())
    drawn.mo_occ = mf.get_occ(drawn.mo_energy, drawn.mo_coeff)
    return drawn


# --- energies -------------------------------------------------------------------------------------


def x2c(mole: Any) -> Any:
    """PySCF's spin-free X2C mean field."""
    return scf.HF(mole).x2c()


SLOW = pytest.mark.slow
AMONG_CHARGES = WATER.in_field(IN_BOHR)
BOTH = HCL.in_field([[0.0, 5.0, 0.0, -0.4]])  # charges are not transformed


@pytest.mark.parametrize(
    ("molecule", "relativity", "charge", "scf_type"),
    [
        pytest.param(HCL, "x2c", 0, "df", id="x2c"),
        pytest.param(HCL, "x2c", 1, "df", id="x2c-uhf", marks=SLOW),
        pytest.param(HCL, "x2c", 1, "conventional", id="x2c-uhf-conventional", marks=SLOW),
        pytest.param(AMONG_CHARGES, "none", 0, "df", id="charges", marks=SLOW),
        pytest.param(AMONG_CHARGES, "none", 1, "df", id="charges-uhf"),
        pytest.param(
            AMONG_CHARGES, "none", 1, "conventional", id="charges-uhf-conventional", marks=SLOW
        ),
        pytest.param(BOTH, "x2c", 0, "df", id="both", marks=SLOW),
        pytest.param(BOTH, "x2c", 1, "df", id="both-uhf", marks=SLOW),
        pytest.param(BOTH, "x2c", 1, "conventional", id="both-uhf-conventional"),
    ],
)
def test_energies_are_pyscfs(
    molecule: Molecule, relativity: str, charge: int, scf_type: str
) -> None:
    kind = {"none": scf.HF, "x2c": x2c}[relativity]
    mf = mean_field(molecule.with_state(charge, 1 + charge), kind, fitted=scf_type == "df")
    theirs = (dfump2_native.DFUMP2 if charge else dfmp2_native.DFRMP2)(
        mf, auxbasis=SETS["auxbasis"]
    ).run()
    settings = {"scf": scf_type, "relativity": relativity, **SETS, **EXACT}
    if scf_type == "conventional":
        del settings["scf_auxbasis"]
    ours = dfmp2.run(molecule, charge=charge, multiplicity=1 + charge, **settings)
    assert (ours.scf_total_energy, ours.mp2_correlation_energy) == pytest.approx(
        (mf.e_tot, theirs.e_corr), abs=1e-9
    )
    assert ours.reference.nuclear_repulsion_energy == pytest.approx(mf.energy_nuc(), abs=1e-10)


def test_electrons_of_a_core_potential_count_nowhere() -> None:
    """Moments and charges of HI+, off the origin, among point charges of which one is in the place
    of a ghost, against PySCF's, whose nuclear charges are those that the potential leaves."""
    points = np.array([[0.5, -0.3, 0.4], [0.7, 0.2, 3.4], [1.0, 4.0, -2.0]])
    field = np.array([[1.0, 4.0, -2.0, 0.5], [0.0, -6.0, 3.0, -0.2]])
    molecule = Molecule(("I", "H", "He"), points, (False, False, True), 1, 2).in_field(field)
    mole = gto.M(
        atom=[("I", points[0]), ("H", points[1]), ("ghost-He", points[2])],
        **{"unit": "Bohr", "basis": "def2-svp", "ecp": {"I": "def2-svp"}, "verbose": 0},
        charge=1,
        spin=1,
    )
    mf = scf.UHF(mole).density_fit("def2-universal-jkfit")
    mf = qmmm.mm_charge(mf, field[:, :3], field[:, 3], unit="Bohr")
    mf.run(conv_tol=1e-12, conv_tol_grad=1e-7)
    ours = dfmp2.run(molecule, "def2-svp", properties=True, **EXACT)
    assert ours.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
    assert ours.sizes.nelectron == sum(mole.nelec) == 25
    assert ours.reference.nuclear_repulsion_energy == pytest.approx(mf.energy_nuc(), rel=1e-12)
    assert ours.to_dict()["point_charges"] == {
        "count": 2,
        "total_charge": pytest.approx(0.3),
        "nuclear_energy": pytest.approx(mf.energy_nuc() - mole.energy_nuc(), abs=1e-12),
    }
    dipole = mf.dip_moment(unit="au", verbose=0)
    assert ours.reference.dipole == pytest.approx(dipole, abs=1e-6)
    own = ours.properties
    assert own.scf_dipole == pytest.approx(dipole, abs=1e-6)
    density = mf.make_rdm1()
    squares = mole.intor("int1e_rr").reshape(3, 3, mole.nao, mole.nao)
    z = np.array([25.0, 1.0])
    quadrupole = np.einsum("a,ax,ay->xy", z, points[:2], points[:2])
    quadrupole -= np.einsum("xymn,mn->xy", squares, density.sum(axis=0))
    np.testing.assert_allclose(own.quadrupole[0], quadrupole, atol=1e-5)
    assert own.mulliken_charges[0] == pytest.approx(mf.mulliken_pop(verbose=0)[1], abs=1e-6)


def test_the_decontracted_basis_is_pyscfs() -> None:
    """Memory is planned with it; general contractions, SP shells and ghosts."""
    mole = gto.M(
        atom="Br 0 0 0; H 0 0 1.41; ghost-O 0 3 0",
        basis={"Br": "cc-pvdz", "default": "6-31g"},
        verbose=0,
    )
    assert uncontracted_functions(mole) == SpinFreeX2CHelper(mole).get_xmol()[0].nao


def test_memory_of_the_transformation_is_planned() -> None:
    """32 matrices of 944 functions: 228 MB, where 222 MB were measured (16 Ar in cc-pVTZ)."""
    work = Workload(544, 2000, 2000, (Spin(144, 64, 400),), "fp64", 66, x2c_functions=944)
    small = replace(work, nao=10, naux_scf=10)
    given = {"program": 0, "budget": 10**12, "threads": 1, "limits": CpuBackend(1).limits}
    assert memory.memory_plan(small, **given).scf == pytest.approx(222e6, rel=0.05)
    assert (
        memory.memory_plan(work, **given).scf
        == memory.memory_plan(replace(work, x2c_functions=0), **given).scf
    )


# --- recorded, repeated, and said by every command ------------------------------------------------


def test_psi4_gets_the_decontracted_basis_or_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In cc-pVDZ Psi4 1.3.2 gave -461.33247416437 Eh, 9e-9 Eh from ours: its speed of light
    differs."""
    hcl = dfmp2.run(HCL, relativity="x2c", **SETS, **EXACT)
    text = psi4_input(hcl, 10**9)
    assert "relativistic x2c\nbasis_relativistic decontracted\n" in text
    elements = decontracted(hcl.orbital_basis).elements.values()
    widths = [2 * shell[0] + 1 for element in elements for shell in element.shells]
    assert sum(widths) == uncontracted_functions(mole_of(HCL))
    monkeypatch.setattr(psi4, "find_psi4", lambda: "/bin/false")
    with recorded_error(UnsupportedByBackend):
        run_psi4(replace(hcl, molecule=Molecule(("I", "H"), HCL.coordinates)), 1)
    primitives, _ = mole_of(HCL).decontract_basis(aggregate=True)
    with monkeypatch.context() as patch:  # a heavy ghost has no electrons
        patch.setattr(psi4, "build_mole", lambda *_: mole_of(HCL))
        beside = Molecule(("I", "H"), HCL.coordinates, ghost=(True, False))
        psi4._require_repeatable(replace(hcl, molecule=beside))
    smallest = np.linalg.eigvalsh(primitives.intor("int1e_ovlp"))[0]
    monkeypatch.setattr(psi4, "LEAST_OVERLAP", 0.999 * smallest)
    psi4._require_repeatable(hcl)
    monkeypatch.setattr(psi4, "LEAST_OVERLAP", 1.001 * smallest)
    with recorded_error(UnsupportedByBackend):
        run_psi4(hcl, 1)
