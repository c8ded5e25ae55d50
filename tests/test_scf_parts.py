"""The bookkeeping of an SCF: decisions, counts and bounds, with made-up mean fields and explicit
sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyscf import df, gto, lib, scf
from scipy import linalg

import dfmp2
from dfmp2.integrals import screening
from dfmp2.integrals.basis_on_grid import BasisOnGrid
from dfmp2.progress import Silent
from dfmp2.scf import following, ladder, response_matrices, rotations
from dfmp2.scf.jk import JKFitting
from dfmp2.scf.ladder import SingleSchedule
from dfmp2.scf.response_matrices import ResponseMatrices
from dfmp2.scf.rotations import RHF, RotatedSpin, Rotation
from tests.awkward import MOLECULES, mole_of

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


@pytest.mark.parametrize(
    ("at_anchor", "asked", "done"),
    [(1.9e-5, 1e-6, True), (2e-5, 1e-6, False), (1.9e-6, 1e-7, True), (2e-6, 1e-7, False)]
    + [(1.9e-5, 1e-3, True), (2e-5, 1e-3, False)],
)
def test_an_anchor_is_near_below_twenty_times_what_is_asked_for(
    at_anchor: float, asked: float, done: bool
) -> None:
    """It is also near below 2e-5 Eh in any case; otherwise another one follows."""
    on_grid = SimpleNamespace(single=False, anchored=False, renew=False, at_anchor=False)
    made = SingleSchedule(SimpleNamespace(), None, on_grid)
    envs = {"e_tot": 0.0, "last_hf_e": 0.0, "conv_tol": 1e-8, "conv_tol_grad": asked}
    assert not made.converged({**envs, "norm_gorb": 5e-4})
    on_grid.at_anchor = True
    made.converged({**envs, "norm_gorb": at_anchor})
    on_grid.at_anchor = False
    assert made.converged({**envs, "norm_gorb": 0.5e-7}) == done
    assert on_grid.renew != done


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


@pytest.mark.parametrize(("nocc", "nvir"), [(3, 5), (4, 2), (1, 4)])
@pytest.mark.parametrize("angle", [0.0, 0.3, -1.7])
def test_rotated_orbitals_are_those_of_the_exponential(nocc: int, nvir: int, angle: float) -> None:
    """exp(angle (x - x^T)) applied to all orbitals, which stay orthonormal."""
    rng = np.random.default_rng(7)
    coeff = np.linalg.qr(rng.standard_normal((nocc + nvir,) * 2))[0]
    x = rng.standard_normal((nvir, nocc))
    spin = RotatedSpin(coeff[:, :nocc], coeff[:, nocc:], np.ones((nvir, nocc)))
    whole = np.zeros((nocc + nvir,) * 2)
    whole[nocc:, :nocc], whole[:nocc, nocc:] = x, -x.T
    expected = coeff @ linalg.expm(angle * whole)
    found = np.hstack(rotations.rotated(spin, x, angle))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(found.T @ found, np.eye(nocc + nvir), atol=1e-12)
    mf = SimpleNamespace(
        mo_coeff=coeff[:, ::-1],
        mo_occ=np.r_[np.zeros(nvir), np.full(nocc, 2.0)],
        mo_energy=np.arange(nocc + nvir, dtype=float),
    )
    (own,) = rotations.orbital_spins(mf)
    np.testing.assert_array_equal(own.occupied, coeff[:, nocc - 1 :: -1])
    np.testing.assert_array_equal(own.differences[0], -nvir - np.arange(nocc, dtype=float))
    turn = Rotation(RHF, -1.0, (x, x), True)
    turned, occupations = rotations.turned_orbitals(mf, turn, angle)
    both = rotations.rotated(own, x, angle)
    np.testing.assert_array_equal(turned, np.hstack(both[::-1]))
    np.testing.assert_array_equal(occupations, mf.mo_occ)


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


def small() -> tuple[Any, Any]:
    mole = mole_of(MOLECULES["methylene"], "6-31g")
    return mole, df.addons.make_auxmol(mole, "def2-universal-jkfit")


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
    mole, auxmole = small()
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
    shapes = [(4, n - 4), (2, n - 2)]
    held = sum(o * (half_transform + 2 * n * (o + v)) for o, v in shapes) * naux
    assert fitted.operations == ([0, held] if single else [held, 0])
    x = [rng.standard_normal(spin.differences.shape) for spin in spins]
    found = made(x, 1.5)
    more = sum(o * (half_transform + 2 * n * o + 4 * v * (1 + o)) for o, v in shapes) * naux
    assert sum(fitted.operations) == held + more
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


def test_density_factors_are_those_of_occupied_orbitals() -> None:
    rng = np.random.default_rng(5)
    coeff = rng.standard_normal((2, 4, 4))
    occ = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    plain = np.stack([(c * n) @ c.T for c, n in zip(coeff, occ, strict=True)])
    for density, widths in (
        (plain, (4, 4)),
        (lib.tag_array(plain, mo_coeff=coeff, mo_occ=occ), (2, 1)),
    ):
        factors = ladder.density_factors(density)
        assert tuple(left.shape[1] for left, _ in factors) == widths
        for (left, right), expected in zip(factors, plain, strict=True):
            np.testing.assert_allclose(left @ right, expected, atol=1e-12)
    doubly = lib.tag_array(2 * plain[0], mo_coeff=coeff[0], mo_occ=2 * occ[0])
    ((left, right),) = ladder.density_factors(doubly)
    np.testing.assert_allclose(left @ right, 2 * plain[0], atol=1e-12)


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
    share_out, seen = BasisOnGrid.share_out, set[int]()

    def watched(grid: Any, work: Any, threads: int) -> Any:
        seen.add(threads)
        return share_out(grid, work, threads)

    monkeypatch.setattr(BasisOnGrid, "share_out", watched)
    monkeypatch.setattr("dfmp2.planning.system.SINGLE_THREADED", 0)
    how = {"grid": "20,50", "threads": 2, "listener": Silent(), **how}
    dfmp2.run(MOLECULES["borane cation"], "sto-3g", **how)
    assert seen == {2}


# --- what is recorded -----------------------------------------------------------------------------


def test_another_density_is_noticed_for_every_reference() -> None:
    """One orbital is filled instead of another, in one spin or both."""
    mole = gto.M(atom="O 0 0 0; H 0 0.3 0.9", basis="6-31g", spin=1, verbose=0)
    closed = gto.M(atom="O 0 0 0; H 0 0.3 0.9", basis="6-31g", charge=-1, verbose=0)
    for kind, molecule in ((scf.UHF, mole), (scf.ROHF, mole), (scf.RHF, closed)):
        mf = kind(molecule).run()
        overlap = mf.get_ovlp()
        assert not ladder._other_density(mf, overlap, (mf.mo_coeff, mf.mo_occ))
        moved = mf.mo_occ.copy()
        last = np.flatnonzero(np.atleast_2d(moved)[0])[-1]
        moved[..., [last, last + 1]] = moved[..., [last + 1, last]]
        assert ladder._other_density(mf, overlap, (mf.mo_coeff, moved))
