"""The transform and the predecessors: matrix products, triangular solve, and two plain forms of the pair energy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_triangular

from dfmp2.backends.nki import calls, layout
from dfmp2.backends.nki.executor import InterpreterExecutor
from dfmp2.backends.nki.interpreter.run import Settings
from dfmp2.backends.nki.kernels.pair_checks_twin import mp2_energy_twin
from dfmp2.backends.nki.kernels.pair_energy_twin import pair_energy_twin
from dfmp2.backends.nki.kernels.products_twin import gemm_batch_twin, gemm_twin, syrk_twin, trsm_twin
from dfmp2.backends.nki.kernels.transform_twin import transform_twin
from dfmp2.backends.nki.transform import transform
from dfmp2.untransformed import UntransformedTensor
from tests.test_nki_kernels import evaluate, space

EXACT = Settings(pe_model="exact", row_sum="float64", storage="float64")
LANES = pytest.mark.parametrize(
    ("settings", "tolerance"), [(Settings(), 2e-6), (EXACT, 1e-12)], ids=["float32", "exact"]
)


def launch(settings, module, kernel, **arguments):
    executor = InterpreterExecutor(settings)
    given = {name: executor.upload(v) if isinstance(v, np.ndarray) else v for name, v in arguments.items()}
    return executor.launch(f"{calls.KERNELS}.{module}", kernel, given)


def assert_close(found, expected, tolerance):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@LANES
def test_matrix_products(settings, tolerance):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((256, 256)), rng.standard_normal((256, 1100))
    assert_close(launch(settings, "products", "gemm", a=a, b=b), gemm_twin(a, b), tolerance)
    assert_close(launch(settings, "products", "gemm_batch", a=a, b=b, batches=2), gemm_batch_twin(a, b, 2), tolerance)
    assert_close(launch(settings, "products", "syrk", a=a, identity=np.eye(128)), syrk_twin(a), tolerance)


@LANES
def test_blocked_triangular_solve(settings, tolerance):
    rng = np.random.default_rng(2)
    lower = np.tril(rng.standard_normal((384, 384))) * 0.02 + np.eye(384)
    b = rng.standard_normal((384, 300))
    tiles = [lower[k : k + 128, k : k + 128] for k in range(0, 384, 128)]
    inverse = np.vstack([solve_triangular(tile, np.eye(128), lower=True).T for tile in tiles])
    found = launch(settings, "products", "trsm", l_t=np.ascontiguousarray(lower.T), inverse_t=inverse, b=b)
    assert_close(found, trsm_twin(lower, b), tolerance)


@LANES
@pytest.mark.parametrize(("nvir", "rows"), [(150, 75), (127, 127), (134, 67), (8, 8)])
def test_energy_of_given_integrals(settings, tolerance, nvir, rows):
    rng = np.random.default_rng(3)
    t = rng.standard_normal((2, 1, nvir, nvir)) * 0.01
    vir, occ = rng.uniform(0.1, 20, nvir), -rng.uniform(0.5, 20, (2, 1))
    eu = vir[:, None] + vir[None, :]
    neg = np.broadcast_to(-occ.ravel(), (rows, 2)).copy()
    tables = {"t": t.reshape(-1, nvir), "eu": eu, "neg": neg, "identity": np.eye(rows)}
    out = launch(settings, "pair_checks", "mp2_energy", **tables, ic=2, nocc=1)
    assert out.shape == (rows, 2, 1)
    assert_close(out.sum(axis=0), mp2_energy_twin(t, eu, occ, np.float64), tolerance)


@pytest.mark.parametrize("nvir", [20, 129, 448])
def test_three_kernels_give_one_pair_energy(nvir):
    s = space(2, nvir, 140)
    n = layout.padded_nvir(nvir)
    b_i, b_j = layout.pack_b(s.b, 1, np.float64)
    neg = np.full((128, 1), -(s.occ[0] + s.occ[1]))
    eu = layout.cross_table(s.vir, s.vir)
    out = launch(EXACT, "pair_checks", "pair_fused", b_i=b_i, b_j=b_j, eu=eu, neg=neg, nvir=n)
    fused = out[:, 0::2].sum(), out[:, 1::2].sum()
    block = [float(matrix[0, 0]) for matrix in evaluate(s, 1, 1, False, settings=EXACT)]
    twin = pair_energy_twin(s.b[:1], s.b[1:], s.occ[:1], s.occ[1:], s.vir, s.vir, np.float64)
    np.testing.assert_allclose(fused, block, rtol=1e-12)
    np.testing.assert_allclose(fused, np.ravel(twin), rtol=1e-12)
    rows = max(size for size in range(1, 129) if nvir % size == 0)
    sums = s.vir[:, None] + s.vir[None, :]
    given = {"t": s.b[0] @ s.b[1].T, "eu": sums, "neg": neg[:rows].copy(), "identity": np.eye(rows)}
    energy = launch(EXACT, "pair_checks", "mp2_energy", **given, ic=1, nocc=1).sum()
    assert energy == pytest.approx(2 * fused[0] - fused[1], rel=1e-12)


def fitted_problem(seed=4, naux=140, nao=150):
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((naux, nao, nao))
    return raw + raw.transpose(0, 2, 1), rng.standard_normal((nao, 11)), rng.standard_normal((nao, 40))


def untransformed(a, c_occ, c_vir):
    """Whole symmetric matrices as the packed triangles that a run holds."""
    return UntransformedTensor(a[:, *np.tril_indices(a.shape[1])], c_occ, c_vir)


@LANES
def test_transform_makes_the_blocks_that_the_host_packs(settings, tolerance):
    a, c_occ, c_vir = fitted_problem()
    (blocks,) = transform([untransformed(a, c_occ, c_vir)], InterpreterExecutor(settings))
    expected = list(layout.pack_b(transform_twin(a, c_occ, c_vir, np.float64), dtype=np.float64))
    assert len(blocks) == len(expected) == 2
    for found, block in zip(blocks, expected, strict=True):
        assert_close(found, block, tolerance)


def test_the_metric_must_come_before_the_float32_transform():
    # A metric with condition number 1e10, as diffuse fitting sets have: the order decides, not the kernels.
    rng = np.random.default_rng(5)
    naux, nao = 60, 40
    vectors = np.linalg.qr(rng.standard_normal((naux, naux)))[0]
    spectrum = np.logspace(-10, 0, naux)
    smooth = rng.standard_normal((naux, nao, nao)) * np.sqrt(spectrum)[:, None, None]
    raw = np.einsum("pq,qmn->pmn", vectors, smooth + smooth.transpose(0, 2, 1))
    inverse = (vectors / np.sqrt(spectrum)) @ vectors.T
    c_occ, c_vir = np.split(np.linalg.qr(rng.standard_normal((nao, nao)))[0], [8], axis=1)

    def on_device(a):
        ((block,),) = transform([untransformed(a, c_occ, c_vir)], InterpreterExecutor())
        return block.reshape(8, 128, -1)[:, :naux, : c_vir.shape[1]].transpose(0, 2, 1).astype(np.float64)

    def energy(b):
        direct, exchange = pair_energy_twin(b, b, -np.ones(8), -np.ones(8), np.ones(32), np.ones(32), np.float64)
        return -2 * direct.sum() + exchange.sum()

    exact = energy(transform_twin(np.einsum("pq,qmn->pmn", inverse, raw), c_occ, c_vir, np.float64))
    fitted_first = energy(on_device(np.einsum("pq,qmn->pmn", inverse, raw)))
    fitted_last = energy(np.einsum("pq,iaq->iap", inverse, on_device(raw)))
    assert abs(fitted_first / exact - 1) < 1e-6
    assert abs(fitted_last / exact - 1) > 100 * abs(fitted_first / exact - 1)
