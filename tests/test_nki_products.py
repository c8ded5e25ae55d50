"""Products, the triangular solve and energies for a given T: sizes without padding, operands larger
than SBUF."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_triangular

from dfmp2.errors import KernelError
from dfmp2.trainium import calls, layout
from dfmp2.trainium.costs.model import CHIPS, engines
from dfmp2.trainium.launch.executors import InterpreterExecutor
from tests.recorded import recorded_error
from tests.test_nki_costs import trace_of
from tests.test_nki_kernels import ALGEBRA, assert_close, energies_of, launch

TRN1 = CHIPS["trn1"]
EXACT = InterpreterExecutor(ALGEBRA)
SIZES = [
    (1, 1, 1),
    (5, 3, 127),
    (127, 129, 130),
    (128, 512, 128),
    (300, 700, 257),
    (130, 1100, 900),
    (800, 100, 2500),
]


@pytest.mark.bits
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_any_size(m, n, k):
    rng = np.random.default_rng([m, n, k])
    a, b = rng.standard_normal((k, m + 1)), rng.standard_normal((k, n))
    used = a[:, :m]
    found = launch(EXACT, "products", "gemm", a=a, b=b, batches=1, columns=m)
    assert_close(found, used.T @ b, 1e-12)
    found = launch(EXACT, "products", "syrk", a=a, identity=np.eye(128), columns=m)
    assert_close(found, used.T @ used, 1e-12)
    # Symmetric outside the diagonal tiles, which are products
    for low in range(0, len(found), 128):
        high = low + 128
        np.testing.assert_array_equal(found[high:, low:high], found[low:high, high:].T)


@pytest.mark.parametrize(("size", "width"), [(1, 1), (100, 5), (128, 512), (300, 1300), (384, 300)])
def test_triangular_solve_with_any_number_of_columns(size, width):
    rng = np.random.default_rng([size, width])
    lower = np.tril(rng.standard_normal((size, size))) * 0.02 + np.eye(size)
    b = rng.standard_normal((size, width))
    factor = layout.pack_triangle(lower)
    assert len(factor) == 128 * -(-size // 128)
    found = launch(EXACT, "products", "trsm", factor=factor, b=b)
    assert_close(found, solve_triangular(lower, b, lower=True), 1e-12)


def energy_problem(nvir, nocc, ic):
    """B that decreases with the virtual energies, its T for ic rows i, and e_ij in float64."""
    rng = np.random.default_rng([nvir, nocc])
    occ, vir = -rng.uniform(0.4, 20, nocc), np.sort(rng.uniform(0.1, 23, nvir))
    b = (
        (rng.standard_normal((1, nvir, 50)) + 0.7 * rng.standard_normal((nocc, nvir, 50)))
        / (1 + vir[:, None])
        / 35
    )
    t = np.einsum("iap,jbp->iajb", b[:ic], b)
    gaps = vir[:, None] + vir - (occ[:ic, None] + occ)[:, :, None, None]
    pairs = t.swapaxes(1, 2)
    exact = (pairs * (2 * pairs - pairs.swapaxes(2, 3)) / gaps).sum((2, 3))
    return t.reshape(ic * nvir, nocc * nvir), occ, vir, exact


@pytest.mark.parametrize(
    ("nvir", "nocc", "ic"), [(8, 3, 2), (112, 2, 1), (129, 2, 2), (672, 2, 1), (677, 1, 1)]
)
@pytest.mark.parametrize(
    ("executor", "tolerance"),
    [(InterpreterExecutor(), 5e-7), (EXACT, 1e-12)],
    ids=["float32", "exact"],
)
def test_energies_of_a_given_t(executor, tolerance, nvir, nocc, ic):
    t, occ, vir, exact = energy_problem(nvir, nocc, ic)
    np.testing.assert_allclose(energies_of(executor, t, occ[:ic], occ, vir), exact, rtol=tolerance)


@pytest.mark.slow
def test_products_of_the_published_sizes():
    a, b = np.random.default_rng(8).standard_normal((2, 2048, layout.stored_columns(2048)))
    found = launch(InterpreterExecutor(), "products", "gemm", a=a, b=b, batches=1, columns=2048)
    assert_close(found, a[:, :2048].T @ b, 2e-6)


def moved(trace):
    """Bytes read from device memory and written there."""
    read = sum(one.bytes for one in trace.instructions if "hbm" in one.reads)
    written = sum(one.bytes for one in trace.instructions if "hbm" in one.writes)
    return read, written


def products(trace, *, hinted=False):
    """Columns of the moving operands of all products, at least 64 of each."""
    return [
        max(64, one.elements)
        for one in trace.instructions
        if one.name == "nc_matmul" and one.one_zero == hinted
    ]


def test_the_stationary_operand_is_read_once_and_the_other_once_per_panel():
    call = calls.product_call(1, 2048, 2048, 2048)
    trace, model = trace_of(call), engines(call, TRN1)
    # Two panels of 1,024 columns of A.
    expected = 4 * 2048 * (2048 + 2 * 2049), 4 * 2048 * 2049
    assert moved(trace) == (model.read, model.written) == expected
    assert len(products(trace)) == 16 * 16 * 6
    # Parts are equally wide: no 64-cycle floor.
    assert model.tensor * 2.8 == pytest.approx(4 * sum(products(trace)))
    assert sum(products(trace)) == 16 * 16 * 2049
    assert model.tensor / model.at(1.0) > 0.95
    for one in (trace, trace_of(calls.product_call(1, 4096, 1500, 1500))):
        assert one.moved_high_water <= 48 * 1024 + 4096 and one.sbuf_high_water <= 160 * 1024


def test_one_triangle_costs_half_and_its_transposes():
    whole, half = (
        trace_of(calls.product_call(1, 1024, 2000, 2000)),
        trace_of(calls.syrk_call(1024, 2000)),
    )
    tiles = 16
    assert sum(products(half)) < 1.03 * sum(products(whole)) * (tiles + 1) / (2 * tiles)
    assert len(products(half, hinted=True)) >= tiles * (tiles - 1) // 2


def test_a_solve_reads_its_triangle_once_for_two_parts_of_columns():
    call = calls.trsm_call(2048, 4096)
    model = engines(call, TRN1)
    assert model.tensor / model.at(1.0) > 0.85
    assert moved(trace_of(call))[0] < 4 * (2048 * 4097 + 136 * 128 * 128 * 6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: calls.product_call(1, 4097, 10, 10),
        lambda: calls.syrk_call(4097, 10),
        lambda: calls.trsm_call(4097, 10),
        lambda: calls.product_call(1, 4096, 8192, 8192),
        lambda: calls.product_call(700, 1024, 1024, 1024),
        lambda: calls.trsm_call(4096, 50_000),
        lambda: calls.energy_call(10, 878),
    ],
)
def test_what_a_call_does_not_take_is_refused_with_the_reason(make):
    with recorded_error(KernelError):
        make()
