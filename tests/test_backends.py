"""Every backend agrees with an einsum reference for the pair terms of awkward sizes."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.backends import cpu, registry
from dfmp2.backends.base import Operand, Tile
from dfmp2.mp2.pairs import pair_energies
from dfmp2.trainium import layout

AVAILABLE = {row.name: row.make(2) for row in registry.BACKENDS if row.probe() is None}
OFFERED = [
    (name, precision)
    for name, backend in AVAILABLE.items()
    for precision in backend.limits.precisions
]
TOLERANCE = {"fp64": 1e-12, "mixed": 3e-6}  # relative


def fitted(nocc, nvir, naux, seed=0):
    """B with elements that make (ia|jb) of order 0.01 Eh, and orbital energies with a gap."""
    rng = np.random.default_rng(seed)
    b = rng.standard_normal((nocc, nvir, naux)) * 0.1 / np.sqrt(naux)
    return b, np.sort(-rng.uniform(0.4, 20.0, nocc)), np.sort(rng.uniform(0.1, 25.0, nvir))


def oracle(left, right):
    """Direct and exchange terms of all pairs by einsum in float64; exchange only within one
    space."""
    (b, eo, ev), (c, fo, fv) = left, right
    t = np.einsum("iap,jbp->ijab", b, c)
    d = (
        eo[:, None, None, None]
        + fo[None, :, None, None]
        - ev[None, None, :, None]
        - fv[None, None, None, :]
    )
    exchange = np.einsum("ijab,ijba,ijab->ij", t, t, 1 / d) if left is right else None
    return np.einsum("ijab,ijab,ijab->ij", t, t, 1 / d), exchange


@pytest.fixture(params=OFFERED, ids="-".join)
def offered(request):
    """A backend and one of its precisions."""
    return AVAILABLE[request.param[0]], request.param[1]


@pytest.mark.parametrize("nocc", [1, 127, 128, 129])
def test_all_pairs_of_many_occupied_orbitals(offered, nocc, monkeypatch):
    backend, precision = offered
    if backend.name == "nki-interpreter":
        monkeypatch.setattr(layout, "EDGE", 4)
        nocc = max(1, nocc - 124)  # one less and one more than a block
    space, tolerance = fitted(nocc, 5, 7), TOLERANCE[precision]
    direct, exchange = oracle(space, space)
    pairs = pair_energies([backend.put(*space, precision)], backend)
    least = tolerance * np.abs(direct).max()
    np.testing.assert_allclose(pairs.opposite_spin, direct, rtol=tolerance, atol=least)
    np.testing.assert_allclose(
        pairs.same_spin[0], direct - exchange, rtol=100 * tolerance, atol=least
    )


@pytest.mark.parametrize("sizes", [((5, 17, 33), (3, 19, 33)), ((2, 4, 5), (0, 6, 5))])
def test_two_spin_spaces_of_different_size(offered, sizes):
    """Also where one of them has no electrons."""
    backend, precision = offered
    tolerance = TOLERANCE[precision]
    alpha, beta = (fitted(*size, seed) for seed, size in enumerate(sizes))
    pairs = pair_energies([backend.put(*s, precision) for s in (alpha, beta)], backend)
    np.testing.assert_allclose(pairs.opposite_spin, oracle(alpha, beta)[0], rtol=tolerance)
    for matrix, space in zip(pairs.same_spin, (alpha, beta), strict=True):
        direct, exchange = oracle(space, space)
        expected = 0.5 * (direct - exchange)
        least = tolerance * np.abs(direct).max(initial=0)
        np.testing.assert_allclose(matrix, expected, rtol=10 * tolerance, atol=least)


@pytest.mark.parametrize(
    ("tile", "largest"),
    [
        (Tile(0, 5, 0, 5, True), {1: 1, 100: 3 * 3, 1000: 3 * 3}),
        (Tile(1, 3, 0, 5, False), {1: 1, 100: 2 * 3, 1000: 2 * 5}),
    ],
)
@pytest.mark.parametrize("elements", [1, 100, 1000])
def test_products_and_quotients_of_less_than_a_pair_or_of_several(
    monkeypatch, elements, tile, largest
):
    """Of 20 (ia|jb) to a pair; a product has at most 2 * elements or one pair, and a diagonal tile
    is cut in any case."""
    monkeypatch.setattr(cpu, "PRODUCT_ELEMENTS", 2 * elements)
    monkeypatch.setattr(cpu, "QUOTIENT_ELEMENTS", elements)
    backend, left, right = cpu.CpuBackend(1), fitted(5, 4, 6), fitted(5, 5, 6)
    operands = [backend.put(*space, "fp64") for space in (left, right)]
    expected = oracle(left, right)[0][tile.i0 : tile.i1, tile.j0 : tile.j1]
    assert max(map(cpu._area, cpu._blocks(tile, 20))) == largest[elements]
    found = backend.pair_terms(*operands, tile).direct
    np.testing.assert_allclose(found, np.triu(expected) if tile.diagonal else expected, rtol=1e-12)


@pytest.mark.bits
def test_an_orbital_has_no_same_spin_pair_with_itself(offered):
    """direct_ii = sum_ab (ia|ib)^2 / D = exchange_ii: 0 to the last bit, and without a sign."""
    backend, precision = offered
    spaces = [fitted(5, 7, 12, seed) for seed in (1, 2)]
    for operands in (
        [backend.put(*s, precision) for s in spaces],
        [backend.put(*spaces[0], precision)],
    ):
        for same in pair_energies(operands, backend).same_spin:
            assert not np.diag(same).any() and not np.signbit(np.diag(same)).any()
            assert np.triu(same, 1).any()


@pytest.mark.parametrize("name", AVAILABLE)
def test_mixed_precision_really_uses_float32_products(name):
    space, (host, backend) = fitted(4, 40, 200), (AVAILABLE["cpu"], AVAILABLE[name])
    exact, mixed = (
        pair_energies([b.put(*space, p)], b) for b, p in ((host, "fp64"), (backend, "mixed"))
    )
    error = (
        np.abs(exact.opposite_spin - mixed.opposite_spin).max() / np.abs(exact.opposite_spin).max()
    )
    assert 1e-10 < error < 3e-6


def test_operands_are_put_once_and_not_modified(offered):
    (backend, precision), space = offered, fitted(4, 6, 8)
    before = space[0].copy()
    operand = backend.put(*space, precision)
    assert isinstance(operand, Operand)
    pair_energies([operand], backend)
    np.testing.assert_array_equal(space[0], before)
