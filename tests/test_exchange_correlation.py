"""E_xc and V_xc of our own integration against PySCF's, what it caches, and the coarse start of an
SCF."""

from __future__ import annotations

from copy import copy
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyscf import dft, gto

from dfmp2.integrals.basis_on_grid import (
    BLOCK_POINTS,
    BasisOnGrid,
    compact_order,
)
from dfmp2.integrals.grid import coarse_name, count_points, make_grid
from dfmp2.scf import exchange_correlation, ladder
from dfmp2.scf.exchange_correlation import ExchangeCorrelation
from tests.recorded import recorded_error

# None has any symmetry: a charged doublet with a third-row atom, an anion, and an iodide with a
# core potential.
CASES: dict[str, dict[str, Any]] = {
    "water": {
        "atom": "O 0.02 0 0.12; H 0.05 0.80 -0.47; H 0 -0.73 -0.51",
        "basis": "cc-pvtz",
    },
    "cation": {
        "atom": "S 0 0 0.1; H 0.1 1.0 -0.8; H 0 -0.9 -0.9",
        "basis": "6-31g",
        "charge": 1,
        "spin": 1,
    },
    "iodide": {
        "atom": "I 0 0 0; C 0.1 0.2 2.15; H 1.1 0.1 2.5; H -0.4 1.1 2.5; H -0.4 -0.8 2.6",
        "basis": "def2-svp",
        "ecp": "def2-svp",
    },
}
FUNCTIONALS = ("hf", "lda,vwn", "camb3lyp", "m062x", "0.53*HF+0.47*B88,0.73*LYP")


@cache
def _converged_somewhat(case: str) -> Any:
    """A mean field a few iterations old, with its density tagged with orbitals; not to be
    changed."""
    mf = dft.KS(gto.M(**CASES[case], verbose=0))
    mf.grids.level = 1
    return mf.run(max_cycle=3)


def _on_level_3(case: str) -> Any:
    """The same with another grid."""
    mf = copy(_converged_somewhat(case))
    mf.grids = dft.Grids(mf.mol).set(level=3).build()
    return mf


@pytest.mark.parametrize(
    "case", ["water", "cation", pytest.param("iodide", marks=pytest.mark.slow)]
)
def test_energies_and_matrices_are_those_of_pyscf(case: str) -> None:
    """Of orbitals, and of a density with a negative occupation."""
    mf = _converged_somewhat(case)
    density = mf.make_rdm1()
    evaluate = mf._numint.nr_uks
    if density.ndim == 2:
        evaluate = mf._numint.nr_rks
    wrong = np.array(density)
    wrong[..., 2, 2] -= 0.05  # of an s function, where there are electrons enough
    assert np.linalg.eigvalsh(wrong).min() < -1e-4
    # One for all: functionals of the density alone come first.
    on_grid = ExchangeCorrelation(mf.mol, mf.grids, threads=2, room=10**9)
    for xc in FUNCTIONALS:
        for one in (density, wrong):  # the second time from cached values
            _, energy, potential = evaluate(mf.mol, mf.grids, xc, one)
            found = on_grid.energy_and_potential(mf._numint, xc, one)
            assert found[0] == pytest.approx(energy, abs=1e-10)
            assert np.abs(found[1] - potential).max() < 1e-10
            assert on_grid.energy(mf._numint, xc, one) == pytest.approx(energy, abs=1e-10)


def test_bits_do_not_depend_on_what_is_kept_nor_results_on_workers() -> None:
    mf = _converged_somewhat("cation")
    density = mf.make_rdm1()
    found = []
    for threads, room in ((1, 0), (2, 0), (2, 2 * 10**6), (2, 10**9)):
        on_grid = ExchangeCorrelation(mf.mol, mf.grids, threads=threads, room=room)
        on_grid.energy(mf._numint, "b3lyp", density)
        found.append(on_grid.energy_and_potential(mf._numint, "b3lyp", density))
        assert on_grid._fine.kept_bytes <= room
        assert bool(on_grid._fine.kept_bytes) is (room > 0)
        on_grid.discard()
        assert on_grid._fine is None
    assert len({(energy, potential.tobytes()) for energy, potential in found[1:]}) == 1
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-12)
    assert np.abs(found[0][1] - found[1][1]).max() < 1e-12


def test_blocks_are_compact_and_leave_out_what_is_far_away() -> None:
    rng = np.random.default_rng(1)
    points = rng.random((5000, 3))
    order = compact_order(points, 100)
    assert sorted(order) == list(range(5000))
    widths = [np.ptp(points[order[n : n + 100]], axis=0).max() for n in range(0, 5000, 100)]
    assert np.median(widths) < 0.6

    chain = gto.M(atom=[("He", (0, 0, 4.0 * n)) for n in range(12)], basis="6-31g", verbose=0)
    grid = make_grid(chain, "0").build(with_non0tab=False)
    basis = BasisOnGrid(chain, grid, derivatives=True)
    blocks = [basis.block(number) for number in range(basis.count)]
    assert sum(len(block.weights) for block in blocks) == np.count_nonzero(grid.weights)
    assert np.mean([len(block.functions) for block in blocks]) < 0.7 * chain.nao
    assert max(len(block.weights) for block in blocks) <= BLOCK_POINTS
    most = 16 * np.count_nonzero(grid.weights) * chain.nao  # in float32
    single = BasisOnGrid(chain, grid, derivatives=True, single=True, room=most)
    assert all(single.block(number) is single.block(number) for number in range(single.count))


def test_the_shells_of_a_block_are_those_that_reach_it() -> None:
    mole = gto.M(**CASES["iodide"], verbose=0)
    grid = make_grid(mole, "1").build(with_non0tab=False)
    basis = BasisOnGrid(mole, grid, derivatives=True)
    for number in range(basis.count):
        block = basis.block(number)
        part = slice(number * BLOCK_POINTS, (number + 1) * BLOCK_POINTS)
        everywhere = dft.numint.eval_ao(mole, basis._coordinates[part], deriv=1)
        others = np.delete(everywhere, block.functions, axis=2)
        reach = np.abs(others).max(initial=0.0) * np.sqrt(block.weights.sum())
        assert reach < 2e-9  # V_xc to 1e-11 Eh


def test_the_beginning_is_coarse_in_float32_and_the_end_is_not() -> None:
    mf = _on_level_3("water")
    density = mf.make_rdm1()
    room = 30 * 10**6  # for all values of one of the grids
    on_grid = ExchangeCorrelation(mf.mol, mf.grids, room=room)
    fine = on_grid.energy_and_potential(mf._numint, "pbe", density)
    on_grid.single = True
    rough = on_grid.energy_and_potential(mf._numint, "pbe", density)
    assert on_grid._fine.kept_bytes > room / 2
    assert on_grid._fine.kept_bytes + on_grid._coarse.kept_bytes <= room
    assert on_grid._coarse.block(0).values.dtype == np.float32
    coarse_grid = make_grid(mf.mol, "1").build()
    _, energy, potential = mf._numint.nr_rks(mf.mol, coarse_grid, "pbe", density)
    assert rough[0] == pytest.approx(energy, abs=3e-6)  # float32
    assert np.abs(rough[1] - potential).max() < 3e-5
    assert 1e-7 < abs(rough[0] - fine[0]) < 1e-3
    on_grid.single = False
    again = on_grid.energy_and_potential(mf._numint, "pbe", density)
    assert again[0] == fine[0]


def test_from_an_anchor_on_the_final_grid_the_coarse_one_serves_nearby() -> None:
    """It misses about 1 % of the change in V and of its contribution to E."""
    xc = "r2scan"
    mf = _on_level_3("cation")
    near = np.array(mf.make_rdm1())
    rng = np.random.default_rng(5)
    step = 1e-3 * rng.standard_normal(near.shape)
    step = step + np.swapaxes(step, -1, -2)
    on_grid = ExchangeCorrelation(mf.mol, mf.grids, threads=2, room=10**9)
    on_grid.single = True
    rough = on_grid.energy_and_potential(mf._numint, xc, near)[1]
    on_grid.single = False
    with recorded_error(ValueError):
        on_grid.from_anchor(mf._numint, xc, near)
    anchor, shift = on_grid.set_anchor(mf._numint, xc, near)
    assert np.abs(anchor.potential - shift - rough).max() < 1e-6
    errors = []
    for size in (0.1, 0.01):
        density = near + size * step
        energy, potential = on_grid.energy_and_potential(mf._numint, xc, density)
        found = on_grid.from_anchor(mf._numint, xc, density)
        change = np.linalg.norm(potential - anchor.potential)
        assert np.linalg.norm(found[1] - potential) < 0.03 * change
        second_order = np.vdot(potential - anchor.potential, size * step) / 2
        errors.append(abs((found[0] - energy) / second_order))
    assert errors[0] < 0.1 and errors[1] < 0.02
    moved, shift = on_grid.set_anchor(mf._numint, xc, density)
    assert np.abs(moved.potential - shift - found[1]).max() < 1e-9
    on_grid.leave_coarse_grid()
    assert on_grid.anchor is None


def test_a_block_that_no_function_reaches_is_not_given_to_pyscf() -> None:
    """Given no shells, PySCF still reads the first one, beyond the end of its table."""
    mole = gto.M(atom="He 0 0 0", basis="sto-3g", verbose=0)
    grid = SimpleNamespace(coords=np.full((3, 3), 40.0), weights=np.ones(3))
    for derivatives in (False, True):
        basis = BasisOnGrid(mole, grid, derivatives=derivatives)
        block = basis.block(0)
        assert len(block.functions) == 0
        assert block.values.shape == (1 + 3 * derivatives, 0, 3)
    on_grid = ExchangeCorrelation(mole, SimpleNamespace(atom_grid=None, **vars(grid)))
    energy, potential = on_grid.energy_and_potential(dft.numint.NumInt(), "pbe", np.eye(1))
    assert energy == 0.0
    assert not potential.any()


def test_a_coarse_grid_is_never_finer_than_that_of_the_end() -> None:
    mole = gto.M(atom="O 0 0 0; H 0 0.8 0.5; H 0 -0.8 0.5", basis="sto-3g", verbose=0)
    for name in ("0", "1", "3", "20,50", "99,590"):
        coarse = coarse_name(make_grid(mole, name))
        assert count_points(make_grid(mole, coarse)) <= count_points(make_grid(mole, name))
    assert coarse_name(make_grid(mole, "5")) == "1"


@pytest.mark.parametrize("shape", [(6, 6), (2, 6, 6)])
def test_a_change_of_the_grid_is_carried_into_earlier_fock_matrices(shape: Any) -> None:
    """As if all of them had been made on the later grid."""
    rng = np.random.default_rng(2)

    def symmetric() -> Any:
        matrix = rng.standard_normal(shape)
        return matrix + np.swapaxes(matrix, -1, -2)

    overlap = np.eye(6)
    steps = [(symmetric(), symmetric()) for _ in range(11)]  # more than are kept
    shift = symmetric()
    for change in (3, 10):  # before and after the oldest were thrown away
        found = []
        for carried in (True, False):
            extrapolation = ladder.commutator_diis()()
            extrapolation.Corth = overlap
            mf = SimpleNamespace()
            for number, (density, fock) in enumerate(steps):
                if carried and number == change:
                    mf.grid_shift = shift
                if not carried or number >= change:
                    fock = fock + shift
                result = extrapolation.update(overlap, density, fock, mf)
            found.append(result)
        assert np.abs(found[0] - found[1]).max() < 1e-8
        assert not vars(mf)


def test_memory_is_used_again_for_less_of_the_same_kind_alone() -> None:
    memory = exchange_correlation.Memory()
    first = memory.array("rho", (4, 6), np.float64)
    again = memory.array("rho", (3, 5), np.float64)
    assert again.shape == (3, 5) and np.shares_memory(first, again)
    for shape, kind in (((2, 2), np.float32), ((40, 6), np.float32)):
        other = memory.array("rho", shape, kind)
        assert (other.shape, other.dtype) == (shape, kind) and not np.shares_memory(first, other)
