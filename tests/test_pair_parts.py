"""Pairs: how they are tiled, sampled, extrapolated and identified, by explicit counts and sums."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from dfmp2.backends import tiling
from dfmp2.backends.base import Limits
from dfmp2.mp2 import certificate, identity
from dfmp2.mp2.pairs import PairEnergies
from dfmp2.options import Options
from dfmp2.planning.sizes import sampled_pairs
from tests.test_pairs import redone

CARD = Limits(
    ("fp64",), 64, 1000, 1, memory=10**9, edge_elements=1000, product_edge=100, least_edge=1
)

# --- tiles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [0, 130, 220, 410, 10**6])
def test_what_is_read_from_disk_is_counted_without_its_tiles(held: int) -> None:
    """From the cuts alone: a thousand waters have 12 million tiles."""
    limits = replace(CARD, tile_edge=3)
    row, other = 10, 7
    alike = tiling.triangle_cuts(23, limits, row)
    tiles = tiling.triangle(23, limits)
    of_triangle = tiling.visits(tiles, held, row, row, same=True)
    assert alike.tiles == len(tiles)
    assert alike.orbitals_read(held, row, row) == _orbitals_of(of_triangle)
    apart = tiling.rectangle_cuts(23, 17, limits, row)
    tiles = tiling.rectangle(23, 17, limits)
    of_rectangle = tiling.visits(tiles, held, row, other, same=False)
    assert apart.tiles == len(tiles)
    assert apart.orbitals_read(held, row, other) == _orbitals_of(of_rectangle)
    nothing = tiling.triangle_cuts(0, limits, row)
    assert (nothing.tiles, nothing.orbitals_read(held, row, row)) == (0, (0, 0))


def _orbitals_of(visits: list[tiling.Visit]) -> tuple[int, int]:
    """Orbitals that are read as rows, and those that are streamed."""
    rows = sum(visit.end - visit.begin for visit in visits)
    columns = sum(end - begin for visit in visits for begin, end in visit.passing)
    return rows, columns


# --- samples --------------------------------------------------------------------------------------


@pytest.fixture
def pairs() -> PairEnergies:
    """Of 3 alpha and 2 beta orbitals."""
    rng = np.random.default_rng(7)
    same = [-rng.random((n, n)) for n in (3, 2)]
    same = [x + x.T for x in same]
    return PairEnergies(-rng.random((3, 2)), tuple(same))


@pytest.mark.parametrize(
    ("sizes", "wanted", "shares"),
    [((2, 9, 30), 12, [2, 5, 5]), ((2, 3, 30), 12, [2, 3, 7]), ((9, 9), 5, [3, 2]), ((4,), 9, [4])],
)
def test_small_strata_leave_their_share_to_larger_ones(
    sizes: tuple[int, ...], wanted: int, shares: list[int]
) -> None:
    places = np.arange(sum(sizes))
    strata = np.split(places, np.cumsum(sizes)[:-1])
    numbers = np.random.Generator(np.random.PCG64(5)).random(sum(sizes))
    drawn = certificate._draw(strata, wanted, np.random.Generator(np.random.PCG64(5)))
    assert [(n, len(pick)) for n, pick in drawn] == list(zip(sorted(sizes), shares, strict=True))
    for (_, pick), stratum in zip(drawn, sorted(strata, key=len), strict=True):
        least = sorted(stratum.tolist(), key=lambda k: numbers[k])[: len(pick)]
        assert pick.tolist() == least


def test_a_sample_knows_its_largest_error_and_its_seed(pairs: PairEnergies) -> None:
    """Of all pairs, both orders of one spin counted."""
    rng = np.random.default_rng(3)
    same = [1e-9 * rng.standard_normal((n, n)) for n in (3, 2)]
    wrong = [one + one.T for one in same]
    errors = [*wrong, 1e-9 * rng.standard_normal((3, 2))]
    right = PairEnergies(
        pairs.opposite_spin - errors[2],
        tuple(one - error for one, error in zip(pairs.same_spin, wrong, strict=True)),
    )
    found = certificate.bound_errors(pairs, redone(right), 1e-7, seed=11)
    assert (found.pairs, found.sampled, found.seed) == (15, 15, 11)
    assert found.sampled == sum(sampled_pairs(n) for n in (6, 3, 6))
    both_orders = [np.triu(2 * error - np.diag(np.diag(error))) for error in wrong]
    largest = max(np.abs(error).max() for error in (*both_orders, errors[2]))
    assert found.largest_pair_error == pytest.approx(largest, rel=1e-6)
    sums = [error.sum() for error in errors]
    assert found.same_spin_error == pytest.approx(abs(sums[0] + sums[1]), rel=1e-6)
    assert found.opposite_spin_error == pytest.approx(abs(sums[2]), rel=1e-6)
    assert found.correlation_error == pytest.approx(abs(sum(sums)), rel=1e-6)
    assert found.tolerance == 1e-7 and not found.repeated_in_fp64
    assert certificate.bound_errors(pairs, redone(right), 1e-7).seed == 1946


# --- which calculation it is ----------------------------------------------------------------------


def test_energies_of_runs_that_differ_in_the_method_are_told_apart() -> None:
    """Every option either belongs to the method or only to how, and how well, it is computed."""
    how = (
        *("scf_conv_tol", "scf_max_cycles", "guess", "scf_from", "scf_starts", "stability"),
        *("tolerance", "laplace", "backend", "transform", "memory", "threads", "scratch", "check"),
        *("allow_small_gap", "allow_poor_fit", "certify_fit", "properties", "polarizability"),
    )
    assert sorted((*identity.METHOD, *how)) == sorted(one.name for one in fields(Options))
