"""Fitted integrals reproduce the fitted four-index integrals, also when the metric is near singular."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.errors import NumericalError
from dfmp2.fitting import EIGENVALUE_CUT, factorise, fit
from dfmp2.progress import Stopwatch


def raw_integrals(nocc, nvir, naux, seed=3):
    return np.random.default_rng(seed).standard_normal((naux, nocc, nvir))


def metric_of(naux, smallest=1e-3, seed=4):
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((naux, naux)))
    return (q * np.geomspace(smallest, 10.0, naux)) @ q.T


def blocks_of(raw, size):
    for p0 in range(0, len(raw), size):
        yield p0, min(p0 + size, len(raw)), [raw[p0 : p0 + size]]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_product_of_fitted_integrals_is_the_coulomb_fit(workers, size):
    raw, metric = raw_integrals(3, 4, 20), metric_of(20)
    factor = factorise(metric)
    assert factor.triangular
    (b,) = fit(blocks_of(raw, size), factor, [(3, 4)], 20, workers, Stopwatch())
    expected = np.einsum("pia,pq,qjb->iajb", raw, np.linalg.inv(metric), raw)
    np.testing.assert_allclose(np.einsum("iap,jbp->iajb", b, b), expected, rtol=1e-9, atol=1e-9)


def test_blocks_and_workers_do_not_change_a_bit(monkeypatch):
    monkeypatch.setattr("dfmp2.fitting.SOLVE_ELEMENTS", 200)  # several solves
    raw, factor = raw_integrals(5, 11, 33), factorise(metric_of(33))
    results = [
        fit(blocks_of(raw, size), factor, [(5, 11)], 33, workers, Stopwatch())[0]
        for size, workers in ((33, 1), (5, 1), (8, 3))
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_condition_number_is_estimated():
    exact = np.linalg.cond(metric_of(30, 1e-4), 1)
    assert factorise(metric_of(30, 1e-4)).condition == pytest.approx(exact, rel=3)


def test_singular_metric_is_cut_and_counted():
    naux = 12
    metric = metric_of(naux, 1e-3)
    values, vectors = np.linalg.eigh(metric)
    values[:3] = [-1e-17, 0.0, 1e-15]
    singular = (vectors * values) @ vectors.T
    factor = factorise(singular)
    assert not factor.triangular
    assert factor.dropped == 3
    assert factor.naux == naux - 3
    assert factor.threshold == EIGENVALUE_CUT
    # Raw integrals inside the kept space: the fit is exact there.
    raw = np.einsum("pq,qia->pia", vectors[:, 3:], raw_integrals(2, 3, naux - 3))
    (b,) = fit(blocks_of(raw, 4), factor, [(2, 3)], naux, 1, Stopwatch())
    kept = (vectors[:, 3:] / values[3:]) @ vectors[:, 3:].T
    expected = np.einsum("pia,pq,qjb->iajb", raw, kept, raw)
    np.testing.assert_allclose(np.einsum("iap,jbp->iajb", b, b), expected, rtol=1e-8, atol=1e-8)


def test_nan_in_the_metric_is_refused():
    metric = metric_of(5)
    metric[2, 3] = np.nan
    with pytest.raises(NumericalError, match="metric"):
        factorise(metric)
