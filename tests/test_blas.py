"""In-place triangular solves equal SciPy's, on whole arrays and on ranges of columns."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg

from dfmp2.blas import SymmetricProducts, solve_columns, solve_rows

RNG = np.random.default_rng(0)


def lower(n):
    return np.asfortranarray(np.tril(RNG.standard_normal((n, n))) + 3 * np.eye(n))


@pytest.mark.parametrize(("n", "count"), [(1, 1), (5, 3), (40, 129), (7, 0)])
def test_rows_are_solved(n, count):
    factor, rows = lower(n), RNG.standard_normal((count, n))
    expected = scipy.linalg.solve_triangular(factor, rows.T, lower=True).T if count else rows.copy()
    solve_rows(factor, rows)
    np.testing.assert_allclose(rows, expected, rtol=1e-10, atol=1e-10)


def test_columns_in_a_range_are_solved_and_the_others_left_alone():
    factor, block = lower(12), RNG.standard_normal((12, 50))
    before = block.copy()
    solve_columns(factor, block, 10, 37)
    np.testing.assert_array_equal(block[:, :10], before[:, :10])
    np.testing.assert_array_equal(block[:, 37:], before[:, 37:])
    expected = scipy.linalg.solve_triangular(factor, before[:, 10:37], lower=True)
    np.testing.assert_allclose(block[:, 10:37], expected, rtol=1e-10, atol=1e-10)


def test_what_cannot_be_solved_in_place_is_refused():
    with pytest.raises(ValueError, match="Fortran"):
        solve_rows(np.ascontiguousarray(lower(4)), np.ones((3, 4)))
    with pytest.raises(ValueError, match="C-ordered"):
        solve_rows(lower(4), np.ones((4, 3)).T)
    with pytest.raises(TypeError, match="float32"):
        solve_rows(lower(4), np.ones((3, 4), np.float32))


def test_other_threads_run_during_a_solve():
    """The GIL is free: a counter in this thread goes on while a worker solves."""
    factor, rows = lower(1200), RNG.standard_normal((2000, 1200))
    with ThreadPoolExecutor(1) as pool:
        started = time.perf_counter()
        future, ticks = pool.submit(solve_rows, factor, rows), 0
        while not future.done():
            ticks += 1
            time.sleep(0.0005)
        assert ticks > 3 or time.perf_counter() - started < 0.005


@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float32, 4e-6), (np.float64, 1e-14)])
def test_symmetric_products_of_packed_triangles(dtype, accuracy):
    rng = np.random.default_rng(5)
    n, matrices = 7, 4
    full = rng.standard_normal((matrices, n, n))
    full += full.transpose(0, 2, 1)
    packed = np.ascontiguousarray(full[:, *np.tril_indices(n)])
    sets = [rng.standard_normal((count, n)).astype(dtype) for count in (3, 0, 1)]
    out = [np.full((matrices, *rows.shape), np.nan, dtype=dtype) for rows in sets]
    SymmetricProducts(sets)(packed, out)
    for rows, products in zip(sets, out, strict=True):
        np.testing.assert_allclose(products, rows @ full, atol=accuracy)


@pytest.mark.parametrize("rows", [np.zeros((2, 7)), np.zeros((2, 6), np.float32), np.zeros((7, 2), np.float32).T])
def test_symmetric_products_refuse_what_blas_would_misread(rows):
    with pytest.raises(ValueError, match="expected C-ordered float32"):
        SymmetricProducts([np.zeros((3, 7), np.float32), rows])
    with pytest.raises(ValueError, match="expected C-ordered float32"):
        SymmetricProducts([np.zeros((2, 7), np.float32)])(np.zeros((1, 28)), [rows[None]])
