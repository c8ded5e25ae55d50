"""Float32 adds up fitting functions in an order that keeps the small contributions."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.backends.cpu import CpuBackend
from dfmp2.mp2.pairs import pair_energies
from dfmp2.mp2.summation import SAMPLED, rounded, summation_order
from dfmp2.ranks.team import ALONE
from dfmp2.scratch.space import Space
from dfmp2.scratch.tensor import StoredTensor

SMALL, COUNT = 1e-4, 1000  # 1 + 1000 (1e-4)^2 is 1.00001, of which float32 keeps nothing if it begins with the 1


def large_first(nocc: int) -> np.ndarray:
    b = np.full((nocc, 3, COUNT + 1), SMALL)
    b[:, :, 0] = 1.0
    return b


@pytest.mark.parametrize("nocc", [2, SAMPLED + 5])
def test_small_contributions_are_not_lost(nocc):
    b, cpu = large_first(nocc), CpuBackend(2)
    energies = -np.linspace(1.0, 2.0, nocc), np.linspace(0.5, 1.0, 3)
    order = summation_order([b])
    assert order[-1] == 0

    def error(array):
        mixed, exact = (
            pair_energies([cpu.put(x, *energies, kind)], cpu) for x, kind in ((array, "mixed"), (b, "fp64"))
        )
        return abs(mixed.opposite_spin.sum() / exact.opposite_spin.sum() - 1)

    assert error(rounded(b, order, 2, ALONE)) < 3e-7
    assert error(b) > 4 * error(rounded(b, order, 2, ALONE))


def test_both_spins_have_one_order():
    rng = np.random.default_rng(3)
    alpha, beta = rng.standard_normal((2, 4, 5, 6)) * np.geomspace(1, 1e-3, 6)
    beta[..., 5] += 10
    assert summation_order([alpha, beta]).tolist() == [4, 3, 2, 1, 0, 5]
    assert summation_order([alpha, beta[:0]]).tolist() == [5, 4, 3, 2, 1, 0]


def test_the_order_is_the_same_on_disk(tmp_path):
    b = np.random.default_rng(3).standard_normal((SAMPLED + 3, 4, 30))
    with Space(tmp_path, b.nbytes) as space:
        tensor = StoredTensor(space, "b", b.shape, [(0, len(b))])
        tensor.add(0, 30, np.ascontiguousarray(b.transpose(2, 0, 1)))
        tensor.fit(lambda rows: rows, 1, shrinks=False)
        assert summation_order([tensor]).tolist() == summation_order([b]).tolist()
