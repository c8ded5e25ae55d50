"""Hartree-Fock: PySCF's energies and start densities, the rescue ladder, start orbitals, float32
far from the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.linalg
from pyscf import df, gto, lib, scf
from pyscf.scf.diis import get_err_vec

import dfmp2
from dfmp2.errors import InputError
from dfmp2.integrals import screening
from dfmp2.integrals.basis_on_grid import BasisOnGrid
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.mole import build_mole, start_density
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.xyz import parse_xyz
from dfmp2.mp2.energy import mp2_energy
from dfmp2.options import make_options
from dfmp2.progress import Silent
from dfmp2.scf import following, ladder, response_matrices, rotations
from dfmp2.scf.hartree_fock import reference_kind, run_scf
from dfmp2.scf.integrals import ScfIntegrals, reproducible
from dfmp2.scf.jk import JKFitting
from dfmp2.scf.ladder import SingleSchedule
from dfmp2.scf.reference import StartOrbitals
from dfmp2.scf.response_matrices import ResponseMatrices
from dfmp2.scf.rotations import RotatedSpin
from tests.awkward import MOLECULES as AWKWARD
from tests.awkward import mole_of
from tests.conftest import MOLECULES, Heard
from tests.recorded import recorded_error

WATER, RADICAL = (parse_xyz(MOLECULES[name], file=name).molecule for name in ("h2o", "nh2"))
CATION = WATER.with_state(1, 2)
ONE = {"threads": 1, "stability": "off"}


def built(molecule: Molecule, basis: str) -> Any:
    return build_mole(molecule, resolve_orbital(basis, molecule.elements), 10**9)


# --- the kind of reference ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "multiplicity", "guess", "kind"),
    [
        ("auto", 1, "core", "rhf"),
        ("auto", 2, "mix", "uhf"),
        ("uhf", 1, "mix", "uhf"),
        ("rhf", 1, "atoms", "rhf"),
        ("rohf", 3, "core", "rohf"),
        ("rhf", 2, "atoms", None),
        ("rohf", 1, "atoms", None),
        ("auto", 1, "mix", None),
        ("rhf", 1, "mix", None),
        ("rohf", 2, "mix", None),
    ],
)
def test_a_reference_follows_the_multiplicity_or_is_refused(
    asked: Any, multiplicity: int, guess: Any, kind: str | None
) -> None:
    options = make_options(basis="sto-3g", reference=asked, guess=guess)
    if kind is None:
        with recorded_error(InputError):
            reference_kind(options, multiplicity)
    else:
        assert reference_kind(options, multiplicity) == kind


# --- energies and start densities -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, -0.2039736135),
        ({"scf": "conventional"}, -0.2039883827),
        ({"auxbasis": "cc-pvdz-jkfit"}, -0.2039606691),
    ],
    ids=["df", "conventional", "JK set reused"],
)
def test_the_ways_to_the_energy_of_water_differ_by_known_amounts(
    options: dict[str, str], expected: float
) -> None:
    """PySCF's and Psi4's own values; they differ only in fitting sets and the kind of SCF."""
    heard = Heard()
    given = {"precision": "fp64", "listener": heard, **options, **ONE}
    found = dfmp2.run("inputs/h2o.xyz", "cc-pvdz", **given)
    assert found.mp2_correlation_energy == pytest.approx(expected, abs=2e-9)
    warned = [text for text in heard.warnings if "not made for MP2" in text]
    assert len(warned) == ("auxbasis" in options)


# 28 electrons in a core potential
IODIDE = Molecule(("I", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3.04]]))


@pytest.mark.parametrize(("molecule", "basis"), [(WATER, "cc-pvdz"), (IODIDE, "def2-svp")])
def test_start_density_is_that_of_pyscf(molecule: Molecule, basis: str) -> None:
    mole = built(molecule, basis)
    np.testing.assert_allclose(
        start_density(mole, "rhf"), scf.hf.init_guess_by_minao(mole), atol=1e-12
    )


@pytest.mark.parametrize("name", ["atoms", "mix", "core"])
def test_start_densities_have_the_electrons_of_their_spin(name: str) -> None:
    mf = scf.UHF(built(RADICAL, "6-31g"))
    alpha, beta = (
        float(np.vdot(density, mf.get_ovlp()))
        for density in following.guess_density(name, mf, "uhf")
    )
    assert alpha / beta == pytest.approx(5 / 4, rel=1e-10)
    # Projected orbitals lose a little
    assert alpha + beta == pytest.approx(9, abs=1e-10 if name != "atoms" else 0.2)


# --- the rescue ladder ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frozen", "parted"),
    [
        ((2, 1), ""),
        ((3, 1), "--frozen-core 3"),
        ((1, 2), "--frozen-virtual 2"),
        ((4, 0), "--frozen-core 4"),
    ],
)
def test_frozen_orbitals_that_part_a_shell_are_warned_of(
    frozen: tuple[int, int], parted: str
) -> None:
    """Neon in 6-31G: 1s, 2s, 2p below, 3p, 3s above; which 2p or 3p is frozen is arbitrary."""
    core, virtual = frozen
    neon = Molecule(("Ne",), np.zeros((1, 3)))
    result = dfmp2.run(
        neon, "6-31g", frozen_core=str(core), frozen_virtual=virtual, reference="uhf", **ONE
    )
    found = [text for text in result.diagnostics.warnings if "of nearly equal energy" in text]
    assert [text.split(" separates")[0] for text in found] == ([parted] if parted else [])


@pytest.mark.slow
def test_a_soft_mode_is_followed_to_the_end() -> None:
    """SO2+ with bonds of nearly the same length: PySCF's second-order solver stalls at a gradient
    of 8e-7 Eh. With more cycles the level shift may get there, depending on rounding."""
    text = "3\n\nS -0.0445 -0.0025 -0.0009\nO -0.0218 1.2393 0.7619\nO 0.0401 -1.2505 0.7303\n"
    cation = replace(parse_xyz(text, file="so2").molecule, charge=1, multiplicity=2)
    result = dfmp2.run(cation, "6-31g", scf_conv_tol=1e-13, scf_max_cycles=66, **ONE)
    assert result.reference.ladder[-1] == "second order" and result.reference.history[-1, 2] < 4e-8


def test_a_gradient_that_diis_does_not_lower_is_left_to_the_second_order_solver() -> None:
    """The grid gives the empty 2p of fluorine a gradient of 1e-5 Eh."""
    fluorine = Molecule(("F",), np.zeros((1, 3)), multiplicity=2)
    found = dfmp2.run(fluorine, "6-31g", method="ks", xc="pbe", **ONE).reference
    assert found.ladder == ("DIIS", "second order") and found.cycles < 40


# --- start orbitals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "molecule", "shift"),
    [(WATER, WATER, 0.2), (RADICAL, RADICAL, 0.0), (WATER, CATION, 0.2), (CATION, WATER, 0.0)],
    ids=["rhf moved", "uhf", "rhf for uhf moved", "uhf for rhf"],
)
def test_start_orbitals_are_made_orthonormal_where_they_are_used(
    before: Molecule, molecule: Molecule, shift: float, tmp_path: Path
) -> None:
    """The first iteration is PySCF's from C (C^T S C)^-1/2, with S at the geometry of the run; both
    spins share the electrons of a restricted start."""
    given = {"basis": "sto-3g", "scf": "conventional", **ONE}
    first = dfmp2.run(before, **given)
    dfmp2.write(first, tmp_path / "first.h5")
    points = np.array(molecule.coordinates)
    points[1, 1] += shift
    moved, heard = replace(molecule, coordinates=points), Heard()
    result = dfmp2.run(moved, **given, scf_from=str(tmp_path / "first.h5"), listener=heard)
    mf, energies = scf.HF(mole_of(moved, "sto-3g")), []
    overlap, densities = mf.get_ovlp(), []
    for coeff, occ in zip(first.reference.mo_coeff, first.reference.mo_occ, strict=True):
        occupied = coeff[:, occ > 0]
        occupied = occupied @ np.linalg.inv(scipy.linalg.sqrtm(occupied.T @ overlap @ occupied))
        densities.append((occupied * occ[occ > 0]) @ occupied.T)
    start = sum(densities)
    if molecule.multiplicity == 2:
        start = np.stack([densities[0], densities[-1]]) / (3 - len(densities))
    mf.run(start, callback=lambda e: energies.append(e["e_tot"]))
    assert heard.energies[0] == pytest.approx(energies[0], abs=1e-9)
    assert result.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-8)
    if before is molecule and not shift:
        assert abs(energies[0] - mf.e_tot) < 1e-9 and result.reference.cycles <= 3


def test_singly_occupied_start_orbitals_of_pyscf_are_those_of_alpha(tmp_path: Path) -> None:
    """Its ROHF has both spins in one row; the first iteration is as low as its last one."""
    mf = scf.ROHF(mole_of(RADICAL, "6-31g")).set(chkfile=str(tmp_path / "rohf.chk"))
    mf.run(conv_tol=1e-11)
    heard = Heard()
    given = {"reference": "rohf", "scf": "conventional", "scf_from": mf.chkfile, "listener": heard}
    dfmp2.run(RADICAL, "6-31g", **given, **ONE)
    assert heard.energies[0] == pytest.approx(mf.e_tot, abs=1e-9)


def test_a_store_belongs_to_the_first_of_several_starts() -> None:
    """It takes the orbitals of that one's iterations alone; those that are left in it by an
    interrupted run do not replace the other start."""
    options = make_options(basis="sto-3g", scf="conventional", scf_starts=2, **ONE)
    saved: list[Any] = []
    store: Any = SimpleNamespace(orbitals=None, add_orbitals=lambda *both: saved.append(both))

    def energies_of_starts() -> list[list[float]]:
        heard = Heard()
        mole, integrals = built(WATER, "sto-3g"), ScfIntegrals(None, "memory", 1)
        run_scf(mole, "rhf", options, integrals, None, heard, store=store)
        second = [cycle for cycle, *_ in heard.cycles].index(1, 1)
        return [heard.energies[:second], heard.energies[second:]]

    first, other = energies_of_starts()
    assert len(saved) == len(first) and abs(other[0] - first[0]) > 1e-3
    store.orbitals = StartOrbitals(*saved[-1], None, "left over")
    again, same = energies_of_starts()
    assert len(again) < len(first) and same == pytest.approx(other, abs=1e-9)


def test_start_orbitals_that_span_too_little_are_refused() -> None:
    coeff = scipy.linalg.inv(scipy.linalg.sqrtm(built(WATER, "sto-3g").intor("int1e_ovlp")))
    coeff[:, 1] = coeff[:, 0]
    start = StartOrbitals(coeff[None], np.array([[2.0] * 5 + [0.0] * 2]), None, "start.h5")
    with recorded_error(InputError):
        mp2_energy(WATER, make_options(basis="sto-3g", **ONE), start=start, listener=Silent())


# --- conventional: the same bits, whatever the threads do -----------------------------------------


@pytest.mark.bits
@pytest.mark.parametrize("kind", ["RHF", "UHF"])
def test_conventional_matrices_have_the_same_bits_however_threads_are_scheduled(kind: str) -> None:
    mol = mole_of(WATER, "cc-pvdz")
    theirs, ours = (getattr(scf, kind)(mol) for _ in range(2))
    ours = reproducible(ours)
    density = ours.get_init_guess()
    with lib.with_omp_threads(4):  # more than cores, so that they finish in any order
        found = [ours.get_jk(mol, density) for _ in range(8)]
        assert lib.num_threads() == 4  # unchanged
        expected = theirs.get_jk(mol, density)
    assert len({tuple(matrix.tobytes() for matrix in pair) for pair in found}) == 1
    np.testing.assert_allclose(found[0], expected, atol=1e-11)
    assert theirs._is_mem_enough() == reproducible(theirs)._is_mem_enough()


@pytest.mark.parametrize("in_memory", [True, False])
def test_integrals_of_every_operator_are_kept_or_made_anew(in_memory: bool) -> None:
    """Those of 1/r and of two long-range operators, which have their own."""
    mol = mole_of(WATER, "6-31g")
    theirs, ours = scf.RHF(mol), reproducible(scf.RHF(mol), in_memory)
    density = np.random.default_rng(3).standard_normal((mol.nao, mol.nao))
    density += density.T
    for omega in (0.3, None, 0.7, 0.3):
        expected = theirs.get_jk(mol, density, omega=omega)
        np.testing.assert_allclose(
            ours.get_jk(mol, density, omega=omega), expected, atol=1e-9, err_msg=str(omega)
        )
    assert (ours._eri is not None) == in_memory
    assert sorted(ours._long_range) == ([0.3, 0.7] if in_memory else [])


# --- float32 exchange early in the SCF: the same converged state ----------------------------------


@pytest.mark.parametrize(
    ("gradients", "change", "kinds", "done"),
    [
        pytest.param(
            [1.0, 0.1, 9e-4, 1e-4, 9e-6, 5e-7, 4e-7],
            0.0,
            "ssscc",
            [6],
            id="switches below a gradient each, then two in float64",
        ),
        pytest.param([0.0, 0.0, 0.0], 0.0, "s", [2], id="orbitals that symmetry fixes at once"),
        pytest.param(
            [1.0, 0.1, 0.02, 0.004, 0.002, 0.0019, 0.0018, 0.0017, 0.0016],
            0.0,
            "sssssscc",
            [],
            id="noise ends both",
        ),
        pytest.param([1e-7] * 4, 1e-9, "s", [], id="an energy that still changes"),
    ],
)
def test_float32_ends_and_convergence_is_judged_in_float64(
    gradients: list[float], change: float, kinds: str, done: list[int]
) -> None:
    """Earlier in float32 (s) and with a correction (c); DIIS is restarted once. Only occupied rows
    of K follow a gradient below 0.1 Eh, up to the first iteration in float64."""
    mf = SimpleNamespace()
    fitted = SimpleNamespace(single=False, corrected=False, occupied_rows=False)
    schedule, used, converged = SingleSchedule(mf, fitted, None), "", []
    rows = [False] + [g < 0.1 for g in gradients[: len(kinds)]]
    rows += [False] * len(gradients)
    energies = {"e_tot": -1.0 + change, "last_hf_e": -1.0, "conv_tol": 1e-10, "conv_tol_grad": 1e-6}
    for gradient in gradients:
        assert fitted.occupied_rows == rows[len(used)]
        used += "s" if fitted.single else "c" if fitted.corrected else "d"
        before = vars(mf).get("products_were_single", False)
        converged.append(schedule.converged({"norm_gorb": gradient, **energies}))
        in_double = not fitted.single and not fitted.corrected
        assert vars(mf).get("products_were_single", False) is (before or in_double)
    assert used == kinds + "d" * (len(gradients) - len(kinds))
    assert [number for number, one in enumerate(converged) if one] == done


@pytest.mark.parametrize(
    ("gradients", "asked", "states"),
    [
        pytest.param(
            [1.0, 0.1, 5e-4, 0.03, 1e-4, 1e-5, 4e-6, 2e-6, 1e-7],
            1e-6,
            ["single"] * 3 + ["anchor", "coarse", "coarse", "anchor", "coarse", "coarse"],
            id="two anchors",
        ),
        pytest.param(
            [1.0, 0.1, 5e-4, 0.03, 0.029, 0.02, 5e-6, 1e-7],
            1e-6,
            ["single"] * 3 + ["anchor", "coarse", "anchor", "coarse", "anchor"],
            id="an anchor that does not help is followed by another",
        ),
        pytest.param(
            [1.0, 0.9, 1.0, 1.2, 0.75, 0.5, 0.45, 1e-7, 1e-7, 1e-7],
            1e-6,
            ["single"] * 5 + ["anchor", "coarse", "anchor"],
            id="noise ends float32",
        ),
        pytest.param(
            [1e-4, 1e-7, 1e-7],
            1e-6,
            ["single", "anchor", "coarse"],
            id="converged at the first anchor",
        ),
        pytest.param(
            [1e-4, 1e-4, 9e-7, 9e-7, 9e-7],
            1e-6,
            ["single", "anchor", "coarse", "anchor"],
            id="nothing converges before an anchor is near",
        ),
        # near: below 20 times what is asked for, and below 2e-5 Eh in any case
        ([5e-4, 1.9e-5, 5e-8, 5e-8], 1e-6, ["single", "anchor", "coarse"]),
        ([5e-4, 2e-5, 5e-8, 5e-8], 1e-6, ["single", "anchor", "coarse", "anchor"]),
        ([5e-4, 1.9e-6, 5e-8, 5e-8], 1e-7, ["single", "anchor", "coarse"]),
        ([5e-4, 2e-6, 5e-8, 5e-8], 1e-7, ["single", "anchor", "coarse", "anchor"]),
        ([5e-4, 1.9e-5, 5e-8, 5e-8], 2e-6, ["single", "anchor", "coarse"]),
        ([5e-4, 2e-5, 5e-8, 5e-8], 2e-6, ["single", "anchor", "coarse", "anchor"]),
    ],
)
def test_an_scf_ends_on_the_coarse_grid_near_an_anchor_on_the_final_one(
    gradients: list[float], asked: float, states: list[str]
) -> None:
    on_grid = SimpleNamespace(single=False, anchored=False, renew=False, at_anchor=False)
    fitted = SimpleNamespace(single=False, occupied_rows=False)
    schedule, found = SingleSchedule(SimpleNamespace(), fitted, on_grid), []
    energies = {"e_tot": -1.0, "last_hf_e": -1.0, "conv_tol": 1e-10, "conv_tol_grad": asked}
    for gradient in gradients:
        assert fitted.single == on_grid.single
        on_grid.at_anchor = on_grid.anchored and (on_grid.renew or "anchor" not in found)
        on_grid.renew = False
        if on_grid.single:
            found.append("single")
        elif on_grid.at_anchor:
            found.append("anchor")
        else:
            found.append("coarse")
        if schedule.converged({"norm_gorb": gradient, **energies}):
            break
    assert found == states
    assert not fitted.occupied_rows


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("occupations", [[2, 2, 0], [[1, 1, 0], [0, 1, 0]]])
def test_error_vectors_of_diis_equal_pyscf(occupations: Any, tagged: bool) -> None:
    """Of densities with their orbitals, which few products suffice for, and without."""
    rng = np.random.default_rng(3)
    overlap, orthogonal = rng.random((2, 3, 3))
    occupied = np.array(occupations, dtype=float)
    coeff, fock = rng.random((2, *occupied.shape, 3))
    density = np.einsum("...pi,...i,...qi->...pq", coeff, occupied, coeff)
    fock += fock.swapaxes(-1, -2)
    given = density
    if tagged:
        given = lib.tag_array(density, mo_coeff=coeff, mo_occ=occupied)
        widths = [left.shape[1] for left, _ in ladder.density_factors(given)]
        assert widths == np.atleast_2d(occupied > 0).sum(axis=1).tolist()
    diis = ladder.commutator_diis()()
    diis.Corth = orthogonal
    diis.update(overlap + overlap.T, given, fock)
    expected = get_err_vec(overlap + overlap.T, density, fock, orthogonal)
    np.testing.assert_allclose(diis.get_err_vec(0), expected, rtol=1e-12, atol=1e-12)


def test_fock_matrices_with_the_error_of_float32_are_left_behind():
    """One update later, since the last of them still makes the orbitals of the next iteration."""
    fock, overlap = np.diag([-1.0, 0.5, 2.0]), np.eye(3)
    density = np.array([[1.0, 0.3, 0.1], [0.3, 0.1, 0.0], [0.1, 0.0, 0.0]])
    diis = ladder.commutator_diis()()
    diis.Corth = overlap
    diis.update(overlap, density, fock)
    told = SimpleNamespace(products_were_single=True)
    assert not np.allclose(diis.update(overlap, density, 1.5 * fock, told), 1.5 * fock)
    assert diis.get_num_vec() == 2 and not vars(told)
    np.testing.assert_array_equal(diis.update(overlap, density, 2 * fock, told), 2 * fock)
    assert diis.get_num_vec() == 1


# --- the ladder of convergence methods ------------------------------------------------------------


@pytest.mark.parametrize(
    ("energies", "gradient", "expected"),
    [
        ([-2.0, *[-1.9] * 8], 0.0011, True),
        ([-2.0, *[-1.9] * 7], 0.0011, False),
        ([-2.0, *[-1.9] * 7, -2.0], 0.0011, False),
        ([-2.0, *[-1.9] * 8], 0.001, False),
        ([-1.0, -2.0, *[-1.9] * 8], 0.1, True),
        ([-2.1, -2.0, *[-2.05] * 8], 0.1, True),
    ],
)
def test_a_climb_is_eight_iterations_above_the_lowest(
    energies: list[float], gradient: float, expected: bool
) -> None:
    assert ladder.climbed([(energy, 0.0, gradient) for energy in energies]) == expected


@pytest.mark.parametrize(
    ("before", "change", "gradient", "expected"),
    [
        (0.0, 0.9e-8, 0.9e-5, True),
        (0.0, -0.9e-8, 0.9e-5, True),
        (0.0, 1e-8, 0.9e-5, False),
        (0.0, 0.0, 1e-5, False),
        # Rounding: neighbouring numbers at 1e8 are 1.5e-8 apart; the gradient decides all the same.
        (-1e8, 1.8e-7, 0.9e-5, True),
        (-1e8, 3e-7, 0.9e-5, False),
        (-1e8, 0.0, 1e-5, False),
    ],
)
def test_convergence_is_below_both_limits_or_within_rounding(
    before: float, change: float, gradient: float, expected: bool
) -> None:
    envs = {"e_tot": before + change, "last_hf_e": before, "norm_gorb": gradient}
    assert ladder.converged({**envs, "conv_tol": 1e-8, "conv_tol_grad": 1e-5}) == expected


# --- solutions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spin", "found", "expected"),
    [
        (1, 0.75 + 2e-10, 0.75 + 2e-10),
        (1, 0.75 + 0.5e-10, 0.75),
        (1, 0.7, 0.75),
        (2, 2.5, 2.5),
        (-2, 2.0, 2.0),
    ],
)
def test_spin_contamination_counts_from_rounding_on(
    spin: int, found: float, expected: float
) -> None:
    mf: Any = SimpleNamespace(
        mol=SimpleNamespace(spin=spin), mo_occ=np.ones((2, 3)), spin_square=lambda: (found, 1.0)
    )
    assert following.spin_square(mf) == expected
    mf.mo_occ = np.ones(3)
    assert following.spin_square(mf) == abs(spin) / 2 * (abs(spin) / 2 + 1)


@pytest.mark.parametrize(
    ("energy", "expected"),
    [
        (lambda x: -(x**2) + 2 * x**4, (math.pi / 8, None)),
        (lambda x: x**2, (0.0, 0.0)),
        (lambda x: x + x**2, (-math.pi / 8, None)),
        (lambda x: -0.9e-9 if x else 0.0, (0.0, 0.0)),
        (lambda x: -1.1e-9 if abs(x) < 0.02 else 1.0, (math.pi / 4 / 64, -1.1e-9)),
    ],
)
def test_the_lowest_energy_along_a_rotation_is_looked_for_from_45_degrees_down(
    energy: Callable[[float], float], expected: tuple[float, float | None]
) -> None:
    angle, lowest = rotations.deepest(energy)
    assert angle == pytest.approx(expected[0], rel=1e-12)
    assert lowest == pytest.approx(energy(angle) if expected[1] is None else expected[1], rel=1e-9)


# --- matrices and their counts --------------------------------------------------------------------


def test_a_caller_may_scale_the_exchange_it_was_given() -> None:
    """As PySCF does in place for a hybrid: the next matrices, with rows of the last K, are the
    same."""
    mole = gto.M(atom="C 0 0 0; H 0.2 0.99 0.35; H -0.1 -0.8 0.75", basis="cc-pvtz", verbose=0)
    auxmole = df.addons.make_auxmol(mole, "def2-universal-jkfit")
    coeff = np.linalg.qr(np.random.default_rng(4).standard_normal((mole.nao, mole.nao)))[0]
    occupation = np.zeros(mole.nao)
    occupation[:4] = 2.0
    density = lib.tag_array((coeff * occupation) @ coeff.T, mo_coeff=coeff, mo_occ=occupation)
    found = []
    for factor in (1.0, 0.25):
        made = JKFitting(mole, auxmole, 1)
        made.single = made.occupied_rows = True
        _, k = made.get_jk(density)
        k *= factor
        found.append(made.get_jk(density)[1])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(("half", "apart"), [(1, 0.0), (4_000_000, 0.0), (1, 30.0)])
def test_matrices_of_rotations_are_their_sums_and_counted(
    single: bool, half: int, apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """w J_ai of both spins less c K_ai, of A C^T + C A^T with A = C_vir x; also for atoms so far
    apart that pairs are dropped and clusters reorder the functions."""
    monkeypatch.setattr(response_matrices, "HALF_BYTES", half)
    monkeypatch.setattr(screening, "CLUSTER", 13)
    mole = mole_of(AWKWARD["methylene"], "6-31g")
    if apart:
        atoms = f"H 0 0 {apart}; O 0 0 0; H 0 0.9 {apart}; H 0 0.8 0.6; He 0 0 {2 * apart}"
        mole = gto.M(atom=atoms, basis="6-31g", spin=1, verbose=0)
    auxmole = df.addons.make_auxmol(mole, "def2-universal-jkfit")
    n, naux = mole.nao, auxmole.nao
    fitted = JKFitting(mole, auxmole, 3)
    assert fitted.pairs.complete == (not apart)
    half_transform = 4 * n * len(fitted.pairs.columns) // (n + 1)  # 2 n^2, less dropped pairs
    b = lib.unpack_tril(fitted.pairs.expand(fitted.build()._cderi))
    rng = np.random.default_rng(2)
    spins = []
    for nocc in (4, 2):
        c = np.linalg.qr(rng.standard_normal((n, n)))[0]
        spins.append(RotatedSpin(c[:, :nocc], c[:, nocc:], np.zeros((n - nocc, nocc))))
    fitted.operations[:] = [0, 0]
    made = ResponseMatrices(fitted, spins, 0.7, single=single)
    x = [rng.standard_normal(spin.differences.shape) for spin in spins]
    found = made(x, 1.5)
    counted = naux * sum(
        o * (2 * half_transform + 2 * n * (2 * o + v) + 4 * v * (1 + o))
        for o, v in ((4, n - 4), (2, n - 2))
    )
    assert fitted.operations == ([0, counted] if single else [counted, 0])
    densities = []
    for spin, part in zip(spins, x, strict=True):
        d = spin.virtual @ part @ spin.occupied.T
        densities.append(d + d.T)
    coulomb = np.einsum("pmn,p->mn", b, np.einsum("pls,ls->p", b, sum(densities)))
    accuracy = 2e-4 if single else 1e-9
    for spin, d, one in zip(spins, densities, found, strict=True):
        exchange = np.einsum("pml,ls,pns->mn", b, d, b, optimize=True)
        expected = spin.virtual.T @ (1.5 * coulomb - 0.7 * exchange) @ spin.occupied
        np.testing.assert_allclose(one, expected, atol=accuracy)


@pytest.mark.parametrize(
    "how",
    [
        {"method": "ks", "xc": "pbe", "scf": "conventional"},
        {"method": "b2plyp", "certify_fit": True},
    ],
)
def test_the_grid_has_the_workers_of_the_run(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    monkeypatch.setattr("dfmp2.planning.system.SINGLE_THREADED", 0)
    how = {"grid": "20,50", "threads": 2, "listener": Silent(), **how}
    own = BasisOnGrid.share_out
    with patch.object(BasisOnGrid, "share_out", autospec=True, side_effect=own) as watched:
        dfmp2.run(AWKWARD["borane cation"], "sto-3g", **how)
    assert {call.args[2] for call in watched.call_args_list} == {2}


# --- what is recorded -----------------------------------------------------------------------------


def test_another_density_of_one_spin_is_noticed() -> None:
    """One orbital of beta is filled instead of another."""
    mf = scf.UHF(gto.M(atom="O 0 0 0; H 0 0.3 0.9", basis="6-31g", spin=1, verbose=0)).run()
    moved = mf.mo_occ.copy()
    moved[1, 3:5] = 0.0, 1.0
    for occupied, other in ((mf.mo_occ, False), (moved, True)):
        assert ladder._other_density(mf, mf.get_ovlp(), (mf.mo_coeff, occupied)) == other
