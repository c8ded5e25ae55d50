"""Integrals: the fit in the Coulomb metric, J and K, screening, and the transformation."""

from __future__ import annotations

import numpy as np
import pytest
from pyscf import df, gto, lib, scf

from dfmp2.errors import InputError, NumericalError
from dfmp2.integrals import screening, three_center
from dfmp2.integrals.metric import factorise, fit
from dfmp2.integrals.screening import every_pair, schwarz_bounds
from dfmp2.integrals.spaces import active_space, homo_lumo_gap
from dfmp2.scf import jk
from dfmp2.scf.jk import (
    ExchangeProducts,
    JKFitting,
    coulomb_exchange_of_b,
    fit_scf_integrals,
    signed_orbitals,
)
from dfmp2.scf.response_matrices import ResponseMatrices
from dfmp2.scf.rotations import RotatedSpin
from tests.recorded import recorded_error

MOLE = gto.M(atom="N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6", basis="cc-pvdz", spin=1, verbose=0)
AUX = df.addons.make_auxmol(MOLE, "cc-pvdz-jkfit")
ALL = every_pair(MOLE.nao)
# Two radicals and a neon atom far apart, not ordered by position: most pairs are negligible.
APART = gto.M(
    atom="N 4 5 25; N 0 0 0; H 4 5.8 25.6; H 0 0.8 0.6; Ne 0 0 12; H 4 4.2 25.6; H 0 -0.8 0.6",
    basis="cc-pvdz",
    spin=2,
    verbose=0,
)
APART_AUX = df.addons.make_auxmol(APART, "cc-pvdz-jkfit")


# --- three-centre integrals and their fit ---------------------------------------------------------


@pytest.mark.parametrize("functions", [1, 7, 30, 10**6])
def test_blocks_are_all_integrals_and_keep_to_their_size(functions):
    most = 8 * MOLE.nao * (MOLE.nao + 1) // 2 * functions
    expected = df.incore.aux_e2(MOLE, AUX, aosym="s2ij").T
    largest = int(np.diff(AUX.ao_loc_nr()).max())
    stop = 0
    for p0, p1, block in three_center.packed_blocks(MOLE, AUX, block_bytes=most):
        assert p0 == stop and p1 - p0 <= max(functions, largest)
        np.testing.assert_allclose(block, expected[p0:p1], atol=1e-13)
        stop = p1
    assert stop == AUX.nao == len(expected)


def test_primitives_that_are_skipped_change_no_digit():
    mole = gto.M(atom="C 0 0 0; H 0 0 2.4; C 0 1 4.5; H 0 0 6.5", basis="cc-pvdz", verbose=0)
    aux = df.addons.make_auxmol(mole, "cc-pvdz-jkfit")
    expected = df.incore.aux_e2(mole, aux, aosym="s2ij").T  # by libcint's own threshold
    for p0, p1, block in three_center.packed_blocks(mole, aux):
        np.testing.assert_allclose(block, expected[p0:p1], rtol=0, atol=2e-14)


def raw_integrals(nocc, nvir, naux, seed=3):
    return np.random.default_rng(seed).standard_normal((naux, nocc, nvir))


def metric_of(naux, smallest=1e-3, seed=4):
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((naux, naux)))
    return (q * np.geomspace(smallest, 10.0, naux)) @ q.T


def blocks_of(raw, size):
    for p0 in range(0, len(raw), size):
        yield p0, min(p0 + size, len(raw)), [raw[p0 : p0 + size]]


@pytest.mark.bits
@pytest.mark.parametrize("smallest", [1e-3, 1e-14])
@pytest.mark.parametrize("elements", [200, 800])  # several solves, several groups of orbitals
def test_blocks_and_workers_do_not_change_a_bit(elements, smallest, monkeypatch):
    """With or without small eigenvalues of the metric; in one solve, up to rounding."""
    raw, metric = raw_integrals(5, 11, 33), metric_of(33, smallest)
    factor = factorise(metric)
    assert factor.triangular == (smallest == 1e-3)
    (whole,) = fit(blocks_of(raw, 33), factor, [(5, 11)], 33, 1)
    np.testing.assert_allclose(whole, np.einsum("qia,qp->iap", raw, factor.of_rows()), atol=1e-9)
    monkeypatch.setattr("dfmp2.integrals.metric.SOLVE_ELEMENTS", elements)
    results = [
        fit(blocks_of(raw, size), factor, [(5, 11)], 33, workers)[0]
        for size, workers in ((33, 1), (5, 1), (8, 3))
    ]
    np.testing.assert_allclose(results[0], whole, rtol=1e-9, atol=1e-9)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("dropped", [0, 3])
def test_a_factor_makes_a_unit_matrix_of_the_metric(order, overwrite, dropped):
    """For any memory order, and whether or not the factor overwrites it; a triangle has zeros."""
    exact = metric_of(11)
    if dropped:
        values, vectors = np.linalg.eigh(exact)
        values[:dropped] = [-1e-15, 1e-16, 1e-14]
        exact = (vectors * values) @ vectors.T
        exact = (exact + exact.T) / 2
    metric = np.array(exact, order=order)
    found = factorise(metric, overwrite=overwrite)
    assert overwrite or np.array_equal(metric, exact)
    assert (found.dropped, found.naux) == (dropped, 11 - dropped)
    factor = found.factor
    if dropped:
        factor = factor.T
    else:
        np.testing.assert_array_equal(factor, np.tril(factor))
        assert np.shares_memory(factor, metric) == overwrite
    np.testing.assert_allclose(factor @ exact @ factor.T, np.eye(found.naux), atol=1e-9)
    np.testing.assert_allclose(found.of_rows().T, factor, atol=0)
    assert found.threshold == (1e-12 if dropped else 0.0)


def test_condition_number_is_estimated():
    exact = np.linalg.cond(metric_of(30, 1e-4), 1)
    assert factorise(metric_of(30, 1e-4)).condition == pytest.approx(exact, rel=1e-5)


def test_nan_in_the_metric_is_refused():
    metric = metric_of(5)
    metric[2, 3] = np.nan
    with recorded_error(NumericalError):
        factorise(metric)


# --- Coulomb and exchange matrices ----------------------------------------------------------------


@pytest.fixture(scope="module")
def uhf():
    return scf.UHF(MOLE).density_fit(auxbasis="cc-pvdz-jkfit").run()


def test_matrices_of_densities_that_are_no_sum_of_occupied_orbitals_equal_pyscf(uhf):
    """As requested by the second-order solver: neither positive nor of full rank; and J alone."""
    rng = np.random.default_rng(3)
    density = np.stack([a @ b.T + b @ a.T for a, b in rng.standard_normal((2, 2, MOLE.nao, 6))])
    theirs, fitted = uhf.with_df.get_jk(density), JKFitting(MOLE, AUX, 2)
    np.testing.assert_allclose(fitted.get_jk(density), theirs, atol=1e-10)
    alone, nothing = fitted.get_jk(density, with_k=False)
    np.testing.assert_allclose(alone, theirs[0], atol=1e-10)
    assert nothing is None and all(half.shape[1] == 6 for half in signed_orbitals(density[0]))


def test_workers_take_their_part_of_the_mask():
    mask = np.arange(7) % 3 == 0
    part = ExchangeProducts(single=True, exact=mask).of_share(2, 5)
    np.testing.assert_array_equal(part.exact, mask[2:5])
    assert part.wanted and part.single


@pytest.mark.bits
def test_same_threads_give_the_same_bits(uhf):
    b = fit_scf_integrals(MOLE, AUX, ALL, 2)
    np.testing.assert_array_equal(b, fit_scf_integrals(MOLE, AUX, ALL, 1))
    occupied = [np.asarray(c)[:, n > 0] for c, n in zip(uhf.mo_coeff, uhf.mo_occ, strict=True)]
    first, second = (coulomb_exchange_of_b(b, ALL, occupied, 2) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.fixture(scope="module")
def apart():
    return scf.UHF(APART).density_fit(auxbasis="cc-pvdz-jkfit").run()


def largest_diagonals(mole):
    """Largest (mn|mn)^1/2 of each pair of shells."""
    diagonals = np.sqrt(np.einsum("mnmn->mn", mole.intor("int2e")))
    begins = mole.ao_loc_nr()[:-1]
    return np.maximum.reduceat(np.maximum.reduceat(diagonals, begins), begins, axis=1)


@pytest.mark.parametrize(("waters", "complete"), [(1, True), (9, False)])
def test_pairs_are_counted_as_they_are_listed(waters: int, complete: bool) -> None:
    """In a row of waters and a distant ion, in Cartesian functions."""
    atoms: list[tuple[str, tuple[float, float, float]]] = [("Br", (0.0, 0.0, -4.0 * waters))]
    for n in range(waters):
        atoms += [("O", (0, 0, 4 * n)), ("H", (0.76, 0, 4 * n - 0.6)), ("H", (-0.76, 0, 4 * n))]
    mole = gto.M(atom=atoms, basis="def2-svp", charge=-1, cart=True, verbose=0)
    listed = screening.pair_list(mole)
    assert listed.complete == complete
    assert screening.pair_count(mole) == (len(listed.columns), listed.rectangles)


@pytest.mark.parametrize(
    ("most", "least", "largest"), [(80, 16, 16), (79, 7, 9), (20, 2, 4), (5, 1, 1), (4, 1, 1)]
)
def test_clusters_are_neighbours_in_about_equal_halves(most, least, largest, monkeypatch):
    """For 16 helium atoms of five functions in a slanted row, in shuffled order."""
    monkeypatch.setattr(screening, "CLUSTER", most)
    order = np.random.default_rng(3).permutation(16)
    places = np.outer(order, [1.0, 2.0, 0.5])
    mole = gto.M(atom=[("He", place) for place in places], basis="cc-pvdz", verbose=0)
    clusters = screening._clusters(mole)
    assert all((np.diff(functions) > 0).all() for functions in clusters)
    rows = sorted(sorted(order[functions[::5] // 5].tolist()) for functions in clusters)
    assert [place for row in rows for place in row] == list(range(16))
    assert least <= min(map(len, rows)) and max(map(len, rows)) <= largest


@pytest.mark.parametrize(
    ("mole", "aux", "reference", "share"),
    [(MOLE, AUX, "uhf", 1.0), (APART, APART_AUX, "apart", 0.6)],
)
@pytest.mark.parametrize("cluster", [30, 1000])
def test_dropped_pairs_change_nothing(mole, aux, reference, share, cluster, request, monkeypatch):
    monkeypatch.setattr(screening, "CLUSTER", cluster)  # many clusters, one
    monkeypatch.setattr(jk, "BLOCK_BYTES", 8 * 5 * mole.nao * 7)  # several blocks per worker
    monkeypatch.setattr(jk, "CACHE_BYTES", 1)  # several parts per block
    fitted = JKFitting(mole, aux, 3)
    assert len(fitted.pairs.columns) <= share * mole.nao * (mole.nao + 1) / 2
    mf = request.getfixturevalue(reference)
    density = mf.make_rdm1()
    theirs = mf.with_df.get_jk(density)
    np.testing.assert_allclose(fitted.get_jk(density), theirs, atol=1e-10)
    # Without its orbitals
    np.testing.assert_allclose(fitted.get_jk(np.asarray(density)), theirs, atol=1e-10)


@pytest.mark.parametrize(
    ("mole", "aux", "reference"), [(MOLE, AUX, "uhf"), (APART, APART_AUX, "apart")]
)
def test_corrected_exchange_has_the_largest_functions_in_float64(
    mole, aux, reference, request, monkeypatch
):
    """K of each spin is in float64 for the fifth of the functions with the largest sums of X^2 and
    in float32 for the others, gathered once or not."""
    monkeypatch.setattr(jk, "CACHE_BYTES", 10**5)
    monkeypatch.setattr(jk, "BLOCK_BYTES", 10**5)
    density = request.getfixturevalue(reference).make_rdm1()
    fitted = JKFitting(mole, aux, 2)
    exact = fitted.get_jk(density)[1]  # the first K decides which are the largest
    b = fitted.pairs.expand(fitted._cderi)
    half = [
        lib.unpack_tril(b) @ c[:, n > 0]
        for c, n in zip(density.mo_coeff, density.mo_occ, strict=True)
    ]
    sums = sum(np.einsum("pmi,pmi->p", x, x) for x in half)
    np.testing.assert_allclose(fitted._norms, sums, rtol=1e-8)
    chosen = jk.largest(sums, 0.2)
    assert chosen.sum() == round(0.2 * aux.nao) and sums[chosen].min() >= sums[~chosen].max()
    fitted.corrected = True
    found = fitted.get_jk(density)[1]
    expected = [
        sum(part.T @ part for part in x[chosen].swapaxes(1, 2))
        + sum(part.T @ part for part in x[~chosen].swapaxes(1, 2).astype(np.float32))
        for x in half
    ]
    fitted.corrected, fitted.single = False, True
    error = np.abs(fitted.get_jk(density)[1] - exact).max()
    assert 1e-10 < np.abs(found - exact).max() < error < 5e-7 * np.abs(exact).max()
    np.testing.assert_allclose(found, expected, atol=error / 2)
    fitted.corrected, fitted.single = True, False
    fitted.gathers = True
    np.testing.assert_array_equal(fitted.get_jk(density)[1], found)
    monkeypatch.setattr(jk, "BLOCK_BYTES", 1)  # a function at a time
    np.testing.assert_allclose(fitted.get_jk(density)[1], found, atol=error / 2)


@pytest.mark.parametrize("kind", ["single", "corrected", "double"])
@pytest.mark.parametrize(("mole", "aux"), [(MOLE, AUX), (APART, APART_AUX)])
def test_occupied_rows_are_those_of_k_and_the_rest_is_of_the_one_before(mole, aux, kind):
    """In orthonormal orbitals of two spins, the second doubly occupied: <p|K|q> is new unless both
    are virtual."""
    rng = np.random.default_rng(4)
    fitted = JKFitting(mole, aux, 2)
    orthonormal = np.linalg.inv(np.linalg.cholesky(mole.intor("int1e_ovlp"))).T
    occupations = np.zeros((2, mole.nao))
    occupations[0, :4], occupations[1, :3] = 1.0, 2.0
    densities = []
    for _ in range(2):
        turns, _ = np.linalg.qr(rng.standard_normal((2, mole.nao, mole.nao)))
        c = orthonormal @ turns
        d = (c * occupations[:, None]) @ c.swapaxes(1, 2)
        densities.append(lib.tag_array(d, mo_coeff=c, mo_occ=occupations))
    before, after = densities
    fitted.get_jk(before)  # it also weighs the fitting functions
    exact = [fitted.get_jk(density)[1] for density in densities]
    fitted.single, fitted.corrected = kind == "single", kind == "corrected"
    fitted.occupied_rows = True
    fitted._exchange = exact[0]
    exchange = fitted.get_jk(after)[1]
    noise = 1e-12 if kind == "double" else 1e-6
    for s, c in enumerate(after.mo_coeff):
        occupied, virtual = (c[:, part] for part in (occupations[s] > 0, occupations[s] == 0))
        np.testing.assert_allclose(exchange[s] @ occupied, exact[1][s] @ occupied, atol=noise)
        kept = virtual.T @ exact[0][s] @ virtual
        np.testing.assert_allclose(virtual.T @ exchange[s] @ virtual, kept, atol=1e-12)
        assert np.abs(kept - virtual.T @ exact[1][s] @ virtual).max() > 0.01
        np.testing.assert_array_equal(exchange[s], exchange[s].T)


@pytest.mark.parametrize("cluster", [30, 1000])
def test_gathering_once_changes_no_bit(cluster, monkeypatch):
    """J, K of two spins and the response matrices, with integrals gathered once or every time."""
    monkeypatch.setattr(screening, "CLUSTER", cluster)
    monkeypatch.setattr(jk, "CACHE_BYTES", 10**5)
    monkeypatch.setattr(jk, "BLOCK_BYTES", 3 * 10**5)
    rng = np.random.default_rng(5)
    occupied = [rng.standard_normal((APART.nao, n)) for n in (6, 4)]
    each_time, once = JKFitting(APART, APART_AUX, 2), JKFitting(APART, APART_AUX, 2)
    once.gathers = True
    for fitted in (each_time, once):
        fitted.single = True
    expected = each_time.matrices(occupied)
    np.testing.assert_array_equal(once.matrices(occupied), expected)
    each_time._exchange = once._exchange = expected[1]
    rows = [fitted.matrices(occupied[::-1], rows=True) for fitted in (each_time, once)]
    np.testing.assert_array_equal(*rows)
    c, _ = np.linalg.qr(rng.standard_normal((APART.nao, APART.nao)))
    spins = [RotatedSpin(c[:, :n], c[:, n:], np.ones((APART.nao - n, n))) for n in (6, 4)]
    turned = [rng.standard_normal(spin.differences.shape) for spin in spins]
    images = [ResponseMatrices(one, spins, single=True)(turned, 1.0) for one in (each_time, once)]
    for left, right in zip(*images, strict=True):
        np.testing.assert_array_equal(right, left)
    once.stop_gathering()
    assert once.rectangles() is None


# --- spaces and bounds ----------------------------------------------------------------------------


def test_the_active_space_is_cut_by_orbital_energy():
    """Orbitals in any order; at least one virtual orbital is left."""
    coeff, energy = np.arange(36.0).reshape(6, 6), np.array([-20.0, 0.7, -0.5, 0.2, -1.0, 3.0])
    occ = np.array([2.0, 0.0, 2.0, 0.0, 2.0, 0.0])
    space = active_space(coeff, energy, occ, 1, 1)
    assert space.eps_occ.tolist() == [-1.0, -0.5] and space.eps_vir.tolist() == [0.2, 0.7]
    np.testing.assert_array_equal(space.c_occ, coeff[:, [4, 2]])
    np.testing.assert_array_equal(space.c_vir, coeff[:, [3, 1]])
    assert active_space(coeff, energy, occ, 0, 2).eps_vir.tolist() == [0.2]
    for occupied, frozen_virtual in ((occ, 3), (np.full(6, 2.0), 0)):
        with pytest.raises(InputError):
            active_space(coeff, energy, occupied, 0, frozen_virtual)


def test_the_gap_is_that_of_spins_with_occupied_and_virtual_orbitals():
    energies = np.array([[-1.0, 0.5, 0.2], [-2.0, -0.4, 0.9]])
    for occupations, gap in (
        ([[1, 0, 0], [1, 1, 1]], 1.2),
        ([[0, 0, 0], [1, 1, 0]], 1.3),
        ([[0, 0, 0], [1, 1, 1]], np.inf),
    ):
        assert homo_lumo_gap(energies, np.array(occupations)) == pytest.approx(gap)


def test_schwarz_bounds_are_those_of_the_molecule_that_is_asked_for() -> None:
    """Whichever was asked for before; and of a long-range operator, those of its integrals."""
    one, other = (
        gto.M(atom=f"N 0 0 0; F 0 0.1 {z}", basis="cc-pvdz", verbose=0) for z in (1.2, 1.9)
    )
    far = one.copy()
    far.set_range_coulomb(0.3)
    for mole in (one, other, one, far, one):
        assert schwarz_bounds(mole) == pytest.approx(largest_diagonals(mole), abs=1e-12)
