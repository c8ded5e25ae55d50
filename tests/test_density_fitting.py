"""Our Coulomb and exchange builder gives PySCF's matrices, for any worker count and kind of density."""

from __future__ import annotations

import numpy as np
import pytest
from pyscf import df, gto, lib, scf

from dfmp2.reference import density_fitting, pair_list
from dfmp2.reference.density_fitting import FittedIntegrals, coulomb_exchange, fitted_integrals
from dfmp2.reference.pair_list import every_pair, significant

MOLE = gto.M(atom="N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6", basis="cc-pvdz", spin=1, verbose=0)
AUX = df.addons.make_auxmol(MOLE, "cc-pvdz-jkfit")
ALL = every_pair(MOLE.nao)
# Two radicals and a neon atom far apart: more than half of the pairs are negligible.
APART = gto.M(
    atom="N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6; Ne 0 0 12; N 4 5 25; H 4 5.8 25.6; H 4 4.2 25.6",
    basis="cc-pvdz",
    spin=2,
    verbose=0,
)


@pytest.fixture(scope="module")
def uhf():
    return scf.UHF(MOLE).density_fit(auxbasis="cc-pvdz-jkfit").run()


def test_fitted_integrals_equal_pyscf(uhf):
    theirs = next(uhf.with_df.loop(blksize=AUX.nao))
    ours = fitted_integrals(MOLE, AUX, ALL, 2)
    np.testing.assert_allclose(ours.T @ ours, theirs.T @ theirs, atol=1e-11)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_matrices_of_an_open_shell_equal_pyscf(uhf, threads, monkeypatch):
    monkeypatch.setattr(density_fitting, "BLOCK_BYTES", 8 * 5 * MOLE.nao * 7)  # several blocks per worker
    monkeypatch.setattr(density_fitting, "CACHE_BYTES", 1)  # several parts per block
    density = uhf.make_rdm1()
    theirs = uhf.with_df.get_jk(density)
    ours = FittedIntegrals(MOLE, AUX, threads).get_jk(density)
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, reference, atol=1e-11)


def test_matrices_of_a_closed_shell_have_no_spin_axis():
    mole = gto.M(atom="F 0 0 0; H 0 0 0.92", basis="cc-pvdz", verbose=0)
    aux = df.addons.make_auxmol(mole, "cc-pvdz-jkfit")
    mf = scf.RHF(mole).density_fit(auxbasis="cc-pvdz-jkfit").run()
    j, k = FittedIntegrals(mole, aux, 2).get_jk(mf.make_rdm1())
    np.testing.assert_allclose((j, k), mf.with_df.get_jk(mf.make_rdm1()), atol=1e-11)


def test_density_without_orbitals_goes_to_pyscf(uhf):
    density = np.asarray(uhf.make_rdm1())
    assert not isinstance(density, lib.NPArrayWithTag)
    ours = FittedIntegrals(MOLE, AUX, 2).get_jk(density)
    np.testing.assert_allclose(ours, uhf.with_df.get_jk(density), atol=1e-11)


def test_same_threads_give_the_same_bits(uhf):
    b = fitted_integrals(MOLE, AUX, ALL, 2)
    np.testing.assert_array_equal(b, fitted_integrals(MOLE, AUX, ALL, 1))
    occupied = [np.asarray(c)[:, n > 0] for c, n in zip(uhf.mo_coeff, uhf.mo_occ, strict=True)]
    first, second = (coulomb_exchange(b, ALL, occupied, 2) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_spin_without_electrons(uhf):
    b = fitted_integrals(MOLE, AUX, ALL, 1)
    _, k = coulomb_exchange(b, ALL, [np.asarray(uhf.mo_coeff[0])[:, :5], np.zeros((MOLE.nao, 0))], 2)
    assert np.abs(k[0]).max() > 0.1
    assert np.abs(k[1]).max() == 0.0


@pytest.fixture(scope="module")
def apart():
    return scf.UHF(APART).density_fit(auxbasis="cc-pvdz-jkfit").run()


def test_bounds_are_the_diagonal_integrals():
    shells = MOLE.nbas
    largest = np.zeros((shells, shells))
    for i, j in np.ndindex(shells, shells):
        block = MOLE.intor_by_shell("int2e_sph", (i, j, i, j))
        largest[i, j] = np.sqrt(np.einsum("ijij->ij", block).max())
    limit = float(np.median(largest))
    shell = np.repeat(np.arange(shells), np.diff(MOLE.ao_loc_nr()))
    expected = (largest >= limit)[np.ix_(shell, shell)][np.tril_indices(MOLE.nao)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_list, "NEGLIGIBLE", limit)
        np.testing.assert_array_equal(significant(MOLE), expected)


@pytest.mark.parametrize("cluster", [30, 1000])
def test_dropped_pairs_change_nothing(apart, cluster, monkeypatch):
    monkeypatch.setattr(pair_list, "CLUSTER", cluster)  # many clusters, one
    monkeypatch.setattr(density_fitting, "CACHE_BYTES", 1)
    fitted = FittedIntegrals(APART, df.addons.make_auxmol(APART, "cc-pvdz-jkfit"), 2)
    assert len(fitted.pairs.columns) < 0.6 * APART.nao * (APART.nao + 1) / 2
    density = apart.make_rdm1()
    theirs = apart.with_df.get_jk(density)
    np.testing.assert_allclose(fitted.get_jk(density), theirs, atol=1e-10)
    np.testing.assert_allclose(fitted.get_jk(np.asarray(density)), theirs, atol=1e-10)  # through PySCF's builder


@pytest.mark.parametrize(("mole", "reference"), [(MOLE, "uhf"), (APART, "apart")])
def test_float32_exchange_is_good_to_float32(mole, reference, request):
    mf = request.getfixturevalue(reference)
    fitted = FittedIntegrals(mole, df.addons.make_auxmol(mole, "cc-pvdz-jkfit"), 2)
    fitted.single = True
    (j, k), (exact_j, exact_k) = fitted.get_jk(mf.make_rdm1()), mf.with_df.get_jk(mf.make_rdm1())
    np.testing.assert_allclose(j, exact_j, atol=1e-10)
    error = np.abs(k - exact_k).max()
    assert 1e-10 < error < 4 * np.finfo(np.float32).eps * np.abs(exact_k).max()  # it was float32, and no worse
