"""Instabilities of the SCF solution: found, measured, followed to a minimum, and recorded."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyscf import dft, gto, scf
from pyscf.scf import stability as pyscf_stability
from pyscf.soscf import newton_ah
from scipy.linalg import eigh, expm

import dfmp2
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2 import diagnostics
from dfmp2.mp2.result import MP2Result
from dfmp2.options import make_options
from dfmp2.scf import following, response_matrices, rotation_left, rotations, stability
from dfmp2.scf.integrals import ScfIntegrals
from dfmp2.scf.jk import JKFitting
from dfmp2.scf.kohn_sham import ExactExchange
from dfmp2.scf.reference import Stability
from dfmp2.scf.rotations import BROKEN, RHF, UHF
from dfmp2.units import BOHR_PER_ANGSTROM
from tests import awkward
from tests.conftest import Heard

# Eh, H2 at 3 angstrom, cc-pVDZ with cc-pvdz-jkfit: PySCF's UHF from orbitals of its atoms
FAR = -0.998721351


def atoms(*rows: tuple[str, float, float, float], multiplicity: int = 1) -> Molecule:
    """A molecule from positions in angstrom."""
    places = np.array([row[1:] for row in rows]) * BOHR_PER_ANGSTROM
    return Molecule(tuple(row[0] for row in rows), places, multiplicity=multiplicity)


def hydrogen(distance: float = 3.0, multiplicity: int = 1) -> Molecule:
    return atoms(("H", 0, 0, 0), ("H", 0, 0, distance), multiplicity=multiplicity)


def run(molecule: Molecule, basis: str = "cc-pvdz", **options: Any) -> tuple[MP2Result, Heard]:
    said = Heard()
    given = {"threads": 1, "allow_small_gap": True, "listener": said, **options}
    return dfmp2.run(molecule, basis, **given), said


# --- the solution that is used --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("uhf", {}, ["guess", "scf_starts"]),
        ("rhf", {}, ["scf_starts"]),
        ("uhf", {"guess": "mix"}, ["scf_starts"]),
        ("uhf", {"scf_from": "x.h5"}, ["scf_starts"]),
        ("uhf", {"scf_starts": 100}, ["guess"]),
    ],
)
def test_what_is_advised_was_not_asked_for(
    kind: str, options: dict[str, Any], expected: list[str]
) -> None:
    """If an instability was followed and a lower solution still exists."""
    asked = make_options(basis="sto-3g", stability="follow", **options)
    reference: Any = SimpleNamespace(kind=kind)
    advice = diagnostics._remedy(reference, asked, "RHF to RHF", "it")
    assert [option.name for option in advice.options] == expected


def test_a_random_start_turns_the_frontier_orbitals_alone() -> None:
    """Of HBr's 18 occupied orbitals the lowest 8 stay full; the number of the start decides how the
    other 10 mix with the lowest 10 virtual ones."""
    mole = gto.M(atom="Br 0 0 0; H 0.1 0.3 1.4", basis="def2-svp", verbose=0)
    mf, overlap = scf.RHF(mole), mole.intor("int1e_ovlp")
    start = mf.get_init_guess(key="minao")
    _, orbitals = mf.eig(mf.get_fock(dm=start), overlap)
    first, second = (following.random_density(mf, start, number) for number in (1, 2))
    filled = np.einsum("pi,pq,qi->i", overlap @ orbitals, first, overlap @ orbitals)
    assert np.abs(filled[:6] - 2).max() < 1e-9  # the next three, 3p, are of equal energy
    assert filled[9:18].min() < 1.999 and filled[18:28].min() > 0.01 > 1e7 * filled[28:].max()
    assert np.vdot(first, overlap) == pytest.approx(mole.nelectron)
    assert np.abs(first - second).max() > 0.01


def test_orbitals_of_a_triplet_do_not_collapse(tmp_path: Path) -> None:
    triplet, _ = run(hydrogen(multiplicity=3))
    dfmp2.write(triplet, tmp_path / "triplet.h5")
    result, _ = run(hydrogen(), reference="uhf", scf_from=str(tmp_path / "triplet.h5"))
    assert result.scf_total_energy == pytest.approx(FAR, abs=1e-8)


def test_rhf_is_followed_to_a_lower_rhf() -> None:
    """C2: PySCF's RHF does the same from the orbitals of its own analysis. The first solution is
    followed, and the second cannot be."""
    carbon = Molecule.from_string("C 0 0 0; C 0 0 1.25")
    mf = scf.RHF(awkward.mole_of(carbon)).density_fit(auxbasis="def2-universal-jkfit")
    mf.run(conv_tol=1e-11)
    higher = mf.e_tot
    mf.kernel(mf.make_rdm1(mf.stability()[0], mf.mo_occ))
    result, said = run(carbon, "6-31g", stability="follow", scf_auxbasis="def2-universal-jkfit")
    found = result.reference.solutions
    assert found.energy == pytest.approx((higher, mf.e_tot), abs=1e-7) and higher - mf.e_tot > 0.015
    assert found.kind == ("RHF to RHF", "RHF to UHF")
    (text,) = [text for text in said.warnings if "unstable" in text]
    assert "unstable (RHF to UHF)" in text and 'reference="uhf" looks for it' in text
    assert "did not end" not in text


# --- the eigenvalue and its eigenvector -----------------------------------------------------------


def hessians(mf: Any) -> dict[str, Any]:
    """Eigenvalues, Eh, and eigenvectors of PySCF's orbital Hessians, by kind of rotation, from its
    products with unit vectors."""
    if np.ndim(mf.mo_occ) == 2:
        products = {UHF: (newton_ah.gen_g_hop_uhf(mf, mf.mo_coeff, mf.mo_occ)[1], 1)}
    else:
        products = {
            RHF: (newton_ah.gen_g_hop_rhf(mf, mf.mo_coeff, mf.mo_occ)[1], 2),
            BROKEN: (pyscf_stability._gen_hop_rhf_external(mf)[2], 1),
        }
    size = sum(spin.differences.size for spin in rotations.orbital_spins(mf))
    return {
        kind: np.linalg.eigh([np.asarray(one(row)).real / factor for row in np.eye(size)])
        for kind, (one, factor) in products.items()
    }


@pytest.mark.parametrize(
    ("kind", "distance", "charge"),
    [("RHF", 2.0, 0), ("UHF", 2.0, 0), ("UHF", 0.9, -1)],
)
def test_lowest_eigenvalue_is_that_of_the_whole_hessian(
    kind: str, distance: float, charge: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against PySCF's Hessian products with every unit vector, from four-centre integrals; whole
    matrix, iteration, and part of the orbitals."""
    mole = gto.M(
        atom=f"H 0 0 0; F 0 0 {distance}", basis="6-31g", charge=charge, spin=abs(charge), verbose=0
    )
    mf = getattr(scf, kind)(mole).run(conv_tol=1e-12, max_cycle=200)
    assert mf.converged
    of_kinds = [values[0] for values, _ in hessians(mf).values()]
    lowest = min(of_kinds)
    given = {"auxbasis": "def2-svp-ri", "threads": 1, "allow_small_gap": True, "listener": Heard()}

    def adopted(how: str) -> Stability:
        return dfmp2.from_mean_field(mf, stability=how, **given).reference.stability

    full, fitted = adopted("full"), adopted("auto")
    assert full.lowest_eigenvalue == pytest.approx(lowest, abs=2e-5)
    assert fitted.lowest_eigenvalue == pytest.approx(lowest, abs=1e-3)
    assert (fitted.energy_gain or 0.0) == pytest.approx(full.energy_gain or 0.0, rel=0.02)
    assert "frontier" not in fitted.method
    kinds = fitted.internal_eigenvalue, fitted.external_eigenvalue
    assert kinds[: len(of_kinds)] == pytest.approx(of_kinds, abs=1e-3)
    # In a large molecule only orbitals next to the gap: the two core orbitals do not contribute to
    # this rotation.
    for name, value in (("EXACT_ROTATIONS", 0), ("FRONTIER_OCCUPIED", 3), ("FRONTIER_VIRTUAL", 4)):
        monkeypatch.setattr(stability, name, value)
    fitted = adopted("auto")
    assert "frontier" in fitted.method
    assert lowest - 1e-3 < fitted.lowest_eigenvalue < lowest + 0.05


@pytest.mark.parametrize("kind", ["RHF", "UHF"])
def test_held_integrals_give_the_eigenvalues_of_fitted_densities(kind: str) -> None:
    mole = gto.M(
        atom="O 0 0 0; H 0 0.9 0.6; H 0 -0.9 0.6",
        basis="sto-3g",
        charge=kind == "UHF",
        spin=kind == "UHF",
    )
    auxmole = gto.M(atom=mole.atom, basis="def2-universal-jkfit")
    fitted = ScfIntegrals(auxmole, "memory", threads=2).builder(mole)
    mf = getattr(scf, kind)(mole).density_fit(with_df=fitted).run(conv_tol=1e-12, verbose=0)
    expected = [rotation.eigenvalue for rotation in stability.examined(mf).lowest]
    assert len(expected) == (2 if kind == "RHF" else 1)
    for single, apart in ((False, 1e-9), (True, 1e-5)):
        before = list(fitted.operations)
        found = [
            rotation.eigenvalue
            for rotation in stability.examined(mf, single=single, held=True).lowest
        ]
        assert found == pytest.approx(expected, abs=apart)
        counted = np.subtract(fitted.operations, before)
        # The Fock matrix of the final orbitals is in float64.
        assert counted[int(single)] > 10 * counted[int(not single)]
    spins, rng = rotations.orbital_spins(mf), np.random.default_rng(3)
    x = [rng.standard_normal(spin.differences.shape) for spin in spins]
    for exact in (ExactExchange(0.2, 0.9, 0.4), ExactExchange(0.5, 0.0, 0.4)):
        plain, held, rough = (
            response_matrices.orbital_hessian(mf, spins, exact, single=single, held=in_memory)
            for single, in_memory in ((False, False), (False, True), (True, False))
        )
        for image, other in zip(plain(x, 1.5), held(x, 1.5), strict=True):
            np.testing.assert_allclose(image, other, atol=1e-9)
        rough(x, 1.5)
        assert not fitted.single and not fitted.at_long_range(0.4).single


def test_fitting_of_pyscf_is_left_as_it_is() -> None:
    mf = scf.RHF(gto.M(atom="H 0 0 0; H 0 0 1", basis="6-31g", verbose=0)).density_fit().run()
    before = set(vars(mf.with_df))
    assert len(stability.examined(mf, single=True, held=False).lowest) == 2
    assert set(vars(mf.with_df)) == before


# A closed and an open shell; sto-3g, grid 20,50.
OF_FUNCTIONALS = {
    "RKS, meta-GGA": ("Li 0 0 0; H 0.1 0.3 1.6", 0, 0, "r2scan0"),
    "UKS, range-separated": ("Be 0 0 0; H 0.1 0.8 1.1", 0, 1, "camb3lyp"),
}


@pytest.mark.parametrize("case", OF_FUNCTIONALS)
def test_the_eigenvalues_with_a_functional_are_those_of_pyscf(case: str) -> None:
    """Against its products with unit vectors and its own kernels; the energy along a rotation uses
    no kernel."""
    atom, charge, spin, xc = OF_FUNCTIONALS[case]
    mf = dft.KS(gto.M(atom=atom, basis="sto-3g", charge=charge, spin=spin, verbose=0), xc=xc)
    mf.grids.atom_grid = (20, 50)
    mf.run(conv_tol=1e-11)
    expected = hessians(mf)
    examination = stability.examined(mf)
    assert examination.left is None
    found = {rotation.kind: rotation for rotation in examination.lowest}
    assert found.keys() == expected.keys()
    for kind, rotation in found.items():
        assert rotation.eigenvalue == pytest.approx(expected[kind][0][0], abs=5e-5)
        squares = [float(np.vdot(x, x)) for x in rotation.vectors]
        assert max(squares) == pytest.approx(1.0)
        curvature = 0.01**2 * sum(squares) * rotation.eigenvalue
        along = rotations.energy_along(mf, rotation)
        assert (along(0.01) + along(-0.01)) / 2 == pytest.approx(curvature, rel=5e-3)


@pytest.mark.usefixtures("coarse_grid_error")
def test_a_functional_leaves_the_restricted_solution_where_it_is_told_to() -> None:
    """H2 at 3 angstrom with B3LYP: PySCF's UKS from orbitals of its atoms."""
    mole = gto.M(atom="H 0 0 0; H 0 0 3", basis="6-31g", verbose=0)
    mf = dft.UKS(mole, xc="b3lyp").density_fit(auxbasis="cc-pvdz-jkfit")
    mf.grids.atom_grid = (20, 50)
    start = np.zeros((2, 4, 4))
    start[0, 0, 0] = start[1, 2, 2] = 1.0
    mf.kernel(start)
    given = {"method": "ks", "xc": "b3lyp", "grid": "20,50", "scf_auxbasis": "cc-pvdz-jkfit"}
    restricted, said = run(hydrogen(), "6-31g", stability="full", **given)
    assert restricted.reference.stability.verdict == "unstable (RKS to UKS)"
    below = restricted.scf_total_energy - mf.e_tot
    assert 0.5 * below < restricted.reference.stability.energy_gain <= below
    assert 'reference="uhf" looks for it' in " ".join(said.warnings)
    followed, _ = run(hydrogen(), "6-31g", reference="uhf", stability="follow", **given)
    assert followed.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-7)
    assert followed.reference.solutions.kind[0] == "UKS to UKS"


@pytest.mark.parametrize(("method", "accuracy"), [("auto", 1e-3), ("full", 2e-5)])
@pytest.mark.parametrize("distance", [0.9, 3.0])
def test_one_electron_alone_is_in_a_stable_state(
    distance: float, method: str, accuracy: float
) -> None:
    """H2+: no rotation of beta orbitals, and each excitation energy is a difference of orbital
    energies of the bare nuclei."""
    molecule = hydrogen(distance).with_state(1, 2)
    found = run(molecule, "6-31g", stability=method)[0].reference.stability
    mole = awkward.mole_of(molecule)
    levels = eigh(scf.hf.get_hcore(mole), mole.intor("int1e_ovlp"), eigvals_only=True)
    assert found.verdict == "stable"
    assert found.lowest_eigenvalue == pytest.approx(levels[1] - levels[0], abs=accuracy)


HYDROXYL = atoms(("O", 0, 0, 0), ("H", 0.2, 0.3, 0.9), multiplicity=2)


@pytest.mark.parametrize("method", ["auto", "follow"])
def test_a_rotation_that_costs_nothing_is_no_instability(method: str) -> None:
    """The pi hole of OH may lie in any plane: the eigenvalue is exactly zero, and that of
    fitted integrals -4e-4 Eh. An analysis of all rotations leaves this one out; the next lowest
    eigenvalue is that of PySCF's Hessian."""
    result, said = run(HYDROXYL, "6-31g", reference="uhf", stability=method)
    found = result.reference.stability
    assert not found.unstable and found.energy_gain is None and found.gains == {}
    assert not [text for text in said.warnings if "unstable" in text]
    if method == "auto":
        assert found.verdict == "marginal (UHF to UHF)"
        assert abs(found.lowest_eigenvalue) < 6e-4
        return
    mf = scf.UHF(awkward.mole_of(HYDROXYL)).run(conv_tol=1e-12)
    eigenvalues, _ = hessians(mf)[UHF]
    assert abs(eigenvalues[0]) < 1e-5
    assert found.verdict == "stable"
    assert found.lowest_eigenvalue == pytest.approx(eigenvalues[1], abs=2e-4)


def test_a_turn_of_both_spins_may_be_free_and_an_opposite_one_is_not() -> None:
    """Singlet NH, two electrons in one of two pi orbitals: RHF is unstable towards UHF along the
    rotation into the other one, which costs RHF nothing."""
    mf = scf.RHF(gto.M(atom="N 0.3 0.1 0; H 0.5 0.8 0.6", basis="6-31g", verbose=0))
    mf.run(conv_tol=1e-13)
    (alike, _), (opposite, _) = hessians(mf).values()
    found = {one.kind: one.eigenvalue for one in stability.examined(mf).lowest}
    assert abs(alike[0]) < 1e-5 and opposite[0] < -0.01
    assert found == pytest.approx({RHF: alike[1], BROKEN: opposite[0]}, abs=2e-5)


@pytest.mark.parametrize(
    ("converged", "lower", "verdict"),
    [
        ((True, True), 0.1, "stable"),
        ((True, False), 0.1, "no instability found"),
        ((False, True), 0.1, "no instability found"),
        ((True, True), 1.01e-4, "stable"),
        ((True, True), 1e-4, "marginal (RHF to UHF)"),
        ((True, True), -1e-4, "marginal (RHF to UHF)"),
    ],
)
@pytest.mark.parametrize("xc", [None, "pbe"])
def test_a_verdict_is_certain_if_all_rotations_have_converged(
    converged: tuple[bool, bool], lower: float, verdict: str, xc: str | None
) -> None:
    """An eigenvalue up to 1e-4 Eh from zero is marginal: an instability may begin there."""
    kinds, nothing = ("RHF to RHF", "RHF to UHF"), (np.zeros((1, 1)),) * 2
    lowest = [
        rotations.Rotation(kind, value, nothing, one)
        for kind, value, one in zip(kinds, (0.2, lower), converged, strict=True)
    ]
    found, angles = stability.judged(SimpleNamespace(xc=xc), lowest)
    words = [f"{', '.join(kinds)}; all rotations, iterative", verdict]
    if xc is not None:
        words = [text.replace("HF", "KS") for text in words]
    assert found == Stability(
        verdict=words[1],
        method=words[0],
        lowest_eigenvalue=lower,
        internal_eigenvalue=0.2,
        external_eigenvalue=lower,
    )
    assert angles == dict.fromkeys(kinds, 0.0)


def energy_gained(mf: Any, rotation: Any, sign: int) -> float:
    """Largest drop of PySCF's energy at the angles pi/4, pi/8, ... along a rotation of the alpha
    orbitals, and with this sign of the beta orbitals, Eh."""
    nocc, nmo = mf.mol.nelec[0], mf.mo_coeff.shape[1]
    turn = np.zeros((nmo, nmo))
    turn[nocc:, :nocc] = rotation.reshape(nmo - nocc, nocc)
    turn -= turn.T
    energies = []
    for angle in (math.pi / 4 * 0.5**k * side for k in range(7) for side in (1, -1)):
        occupied = [(mf.mo_coeff @ expm(by * turn))[:, :nocc] for by in (angle, sign * angle)]
        densities = np.stack([c @ c.T for c in occupied])
        energies.append(mf.to_uhf().energy_tot(densities))
    return float(mf.e_tot - min(energies))


def test_both_instabilities_of_rhf_are_reported() -> None:
    """BN: lowest eigenvalues of PySCF's products with unit vectors, four-centre integrals.

    PySCF's RHF and UHF, started from its own analysis, are lower by at least the stated gain.
    """
    molecule = atoms(("B", 0, 0.3, 0), ("N", 0.2, 0, 1.27))
    mf = scf.RHF(awkward.mole_of(molecule)).run(conv_tol=1e-12)
    internal, external = hessians(mf).values()
    lower_rhf = mf.copy()
    lower_rhf.kernel(lower_rhf.make_rdm1(mf.stability()[0], mf.mo_occ))
    turned = mf.stability(external=True)[1]
    lower_uhf = mf.to_uhf()
    lower_uhf.kernel(lower_uhf.make_rdm1(turned, lower_uhf.mo_occ))

    result, said = run(molecule, "6-31g", stability="full", scf="conventional")
    assert result.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-8)
    found = result.reference.stability
    assert found.verdict == "unstable (RHF to UHF and RHF to RHF)"
    assert (found.internal_eigenvalue, found.external_eigenvalue) == pytest.approx(
        (internal[0][0], external[0][0]), abs=1e-6
    )
    gains = energy_gained(mf, internal[1][:, 0], 1), energy_gained(mf, external[1][:, 0], -1)
    assert (found.internal_gain, found.external_gain) == pytest.approx(gains, rel=7e-4)
    assert 5e-5 < found.internal_gain < mf.e_tot - lower_rhf.e_tot
    assert 1e-2 < found.external_gain < mf.e_tot - lower_uhf.e_tot
    assert (found.lowest_eigenvalue, found.energy_gain) == (
        found.external_eigenvalue,
        found.external_gain,
    )
    (text,) = [text for text in said.warnings if "unstable" in text]
    for kind, gain in (("RHF", found.internal_gain), ("UHF", found.external_gain)):
        assert f"a lower {kind} solution exists, at least {gain:.1e} Eh below" in text
    assert 'reference="uhf" looks for the UHF solution' in text
    assert 'stability="follow" looks for the RHF solution' in text


# --- what is said and kept ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orbitals", "window"),
    [
        ((20, 30), (20, 30)),
        ((6, 100), (6, 100)),
        ((3, 200), (3, 200)),
        ((7, 100), (7, 32)),
        ((25, 25), (16, 25)),
        ((60, 400), (16, 32)),
    ],
)
def test_up_to_600_rotations_are_looked_at_whole(
    orbitals: tuple[int, int], window: tuple[int, int]
) -> None:
    """Beyond that, 16 occupied and 32 virtual orbitals next to the gap."""
    assert stability.frontier_window(*orbitals) == window


@pytest.mark.parametrize(
    ("reference", "stability"), [("uhf", "auto"), ("uhf", "full"), ("rohf", "off")]
)
def test_the_fock_matrix_of_the_final_orbitals_is_built_once_at_most(
    reference: str, stability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For what the SCF has left and, in ROHF, for the semicanonical orbitals."""
    asked: list[np.ndarray] = []
    get_jk = JKFitting.get_jk

    def counted(self: JKFitting, dm: np.ndarray, *given: object, **more: object) -> object:
        asked.append(np.array(dm))
        return get_jk(self, dm, *given, **more)

    monkeypatch.setattr(JKFitting, "get_jk", counted)
    triplet = awkward.MOLECULES["methylene"]
    found = dfmp2.run(triplet, reference=reference, stability=stability, **awkward.EXACT).reference
    coeff, occ = found.mo_coeff, found.mo_occ
    final = np.stack([(c * n) @ c.T for c, n in zip(coeff, occ, strict=True)])
    builds = [np.allclose(dm, final, rtol=0, atol=1e-12) for dm in asked if dm.shape == final.shape]
    assert len(builds) >= found.cycles
    assert sum(builds) == (reference == "rohf" or stability == "full")


@pytest.mark.parametrize(
    ("kind", "spin", "basis"), [("RHF", 0, "sto-3g"), ("UHF", 1, "sto-3g"), ("ROHF", 3, "6-31g")]
)
def test_the_rotation_that_is_left_leads_to_the_converged_orbitals(
    kind: str, spin: int, basis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norm and change of <S^2>, against PySCF's second-order SCF from the same orbitals; and the
    gradient of both spins that it follows from."""
    mole = gto.M(
        atom="N 0 0 0; O 1.14 0 0; H -0.5 0.94 0.02",
        basis=basis,
        charge=spin % 2,
        spin=spin,
        verbose=0,
    )
    mf = getattr(scf, kind)(mole).run(conv_tol=1e-7, conv_tol_grad=1e-4)
    monkeypatch.setattr(rotation_left, "REDUCED", 1e-4)
    if kind == "ROHF":
        fock = rotation_left.final_fock_matrices(mf)
        left = rotation_left.open_shell_rotation_left(mf, fock, single=False, held=False)
    else:
        left = stability.examined(mf).left
    exact = mf.newton().run(mf.mo_coeff, mf.mo_occ, conv_tol=1e-14, conv_tol_grad=1e-10)
    before, after = (scf.addons.convert_to_uhf(one) for one in (mf, exact.undo_soscf()))
    fock = before.get_hcore() + before.get_veff()
    squares, forces = [], []
    for spin, occupied in enumerate(before.mo_occ > 0):
        old, new = before.mo_coeff[spin], after.mo_coeff[spin]
        overlap = new[:, ~occupied].T @ mf.get_ovlp() @ old[:, occupied]
        squares.append(np.sum(overlap**2))
        forces.append(np.sum((old[:, ~occupied].T @ fock[spin] @ old[:, occupied]) ** 2))
    assert left.rotation > 1e-6
    assert left.rotation == pytest.approx(math.sqrt(sum(squares)), rel=0.01)
    if kind != "ROHF":
        assert left.gradient == pytest.approx(math.sqrt(sum(forces)), rel=1e-6)
    moved = exact.spin_square()[0] - mf.spin_square()[0]
    assert left.spin_square == pytest.approx(moved, rel=0.01, abs=1e-9)


def test_the_rotation_that_is_left_at_a_saddle_has_the_unstable_direction() -> None:
    """The RHF solution of H2 as UHF, turned by a milliradian along its soft unstable direction and
    along a stiff one, which has nearly all of the gradient: what is left leads back."""
    mole = gto.M(atom="H 0 0 0; H 0 0 1.25", basis="6-31g", verbose=0)
    mf = scf.RHF(mole).run(conv_tol=1e-13).to_uhf()
    (lowest,) = stability.examined(mf).lowest
    assert -0.05 < lowest.eigenvalue < -0.01
    both = [x + [[0.0], [0.0], [1.0]] for x in lowest.vectors]
    turn = rotations.Rotation(UHF, lowest.eigenvalue, (both[0], both[1]), True)
    mf.mo_coeff, mf.mo_occ = rotations.turned_orbitals(mf, turn, 1e-3)
    left = stability.examined(mf).left
    assert left.rotation == pytest.approx(1e-3 * np.linalg.norm(both), rel=0.05)
