"""Tiles cover every pair once and do not depend on memory or threads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfmp2.backends.base import Limits
from dfmp2.backends.cpu import CpuBackend
from dfmp2.mp2 import tiling

LIMITS = Limits(("fp64",), tile_edge=16, tile_elements=1 << 17, workers=2)


@pytest.mark.parametrize("nocc", [0, 1, 2, 7, 8, 9, 64, 127, 128, 129])
def test_triangle_covers_each_pair_once(nocc):
    seen = {}
    for i0, i1, j0, j1, diagonal in tiling.triangle(nocc, LIMITS):
        for i in range(i0, i1):
            for j in range(i if diagonal else j0, j1):
                seen[i, j] = seen.get((i, j), 0) + 1
    assert seen == {(i, j): 1 for i in range(nocc) for j in range(i, nocc)}
    assert sum(tiling.pairs_in(t) for t in tiling.triangle(nocc, LIMITS)) == nocc * (nocc + 1) // 2


@pytest.mark.parametrize(("left", "right"), [(0, 3), (1, 1), (5, 4), (33, 17)])
def test_rectangle_covers_each_pair_once(left, right):
    pairs = [
        (i, j) for t in tiling.rectangle(left, right, LIMITS) for i in range(t.i0, t.i1) for j in range(t.j0, t.j1)
    ]
    assert sorted(pairs) == [(i, j) for i in range(left) for j in range(right)]


@pytest.mark.parametrize("nocc", [5, 40, 81])
def test_tiles_depend_on_sizes_and_device_only(nocc):
    one, four = (CpuBackend(threads).limits for threads in (1, 4))
    assert tiling.triangle(nocc, one) == tiling.triangle(nocc, four)
    assert tiling.triangle(nocc, LIMITS) == tiling.triangle(nocc, replace(LIMITS, memory=10**6))


def test_edge_follows_the_device_limit():
    assert tiling.edge(1000, LIMITS) == 16
    assert tiling.edge(1000, replace(LIMITS, tile_edge=8)) == 8
    assert tiling.edge(3, LIMITS) == 1
