"""Pair energies: tiles, workers, the order of sums, and a certificate that detects planted
errors."""

from __future__ import annotations

import re
import time
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from dfmp2.backends import contract, registry, tiling
from dfmp2.backends.base import PairTerms
from dfmp2.backends.cpu import CpuBackend
from dfmp2.backends.untransformed import UntransformedOperand
from dfmp2.errors import NumericalError
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.scratch import Space
from dfmp2.integrals.spaces import (
    ActiveSpace,
    arbitrary_cut,
    smallest_denominator,
)
from dfmp2.mp2 import certificate, identity
from dfmp2.mp2.pairs import (
    PairEnergies,
    PairOperands,
    StoredOperand,
    evaluate,
    pair_energies,
    rounded,
    summation_order,
)
from dfmp2.options import Options
from dfmp2.planning.sizes import sampled_pairs
from tests.conftest import Heard
from tests.recorded import recorded_error
from tests.test_backends import fitted

CPU = CpuBackend(2)


def operands(spaces, kind):
    return [CPU.put(*space, kind) for space in spaces]


def spaces_of(spins):
    """Active spaces with the orbital energies of spins, without coefficients."""
    return [ActiveSpace(np.zeros((0, len(i))), np.zeros((0, len(a))), i, a) for _, i, a in spins]


def energy(pairs):
    return pairs.same_spin_energy + pairs.opposite_spin_energy


# --- tiles and workers ----------------------------------------------------------------------------


class Watched(CpuBackend):
    """Counts tiles as they are begun, is slow, and fails at one of them."""

    def __init__(self, threads, failing=0):
        super().__init__(threads)
        self.begun, self.failing = 0, failing

    def pair_terms(self, left, right, tile):
        self.begun += 1
        if self.begun == self.failing:
            raise MemoryError("planted")
        time.sleep(0.1)
        return super().pair_terms(left, right, tile)


def interrupted(done, total):
    raise KeyboardInterrupt


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("failing", "progress", "error"),
    [(4, lambda done, total: None, MemoryError), (0, interrupted, KeyboardInterrupt)],
)
def test_an_error_of_a_worker_or_an_interrupt_begins_no_more_tiles(
    threads, failing, progress, error
):
    backend = Watched(threads, failing)
    with pytest.raises(error):
        pair_energies(operands([fitted(40, 3, 5)], "fp64"), backend, progress)
    assert backend.begun < 36  # all of them


def test_rows_made_on_demand_have_their_own_energies():
    """Single pairs of a B that is not stored, as the certificate's sample requests them."""
    b, *energies = fitted(9, 4, 7)
    (held,) = operands([(b, *energies)], "fp64")
    made = UntransformedOperand(
        SimpleNamespace(shape=b.shape, rows=lambda orbitals: b[orbitals]), *energies
    )
    tiles = [tiling.Tile(i, i + 1, j, j + 1, False) for i, j in ((2, 7), (5, 5), (0, 8))]
    for tile, terms in evaluate(CPU, made, made, tiles):
        expected = CPU.pair_terms(held, held, tile)
        np.testing.assert_allclose(
            (terms.direct, terms.exchange), (expected.direct, expected.exchange), rtol=1e-12
        )


def test_nan_names_its_pair():
    space = fitted(3, 4, 5)
    space[0][1, 2, 3] = np.nan
    with recorded_error(NumericalError):
        pair_energies(operands([space], "fp64"), CPU)


# --- gap and denominators -------------------------------------------------------------------------


def denominators(left, right, same):
    """e_a + e_b - e_i - e_j of every amplitude that is not zero by symmetry."""
    gaps = [one.eps_vir - one.eps_occ[:, None] for one in (left, right)]
    sums = gaps[0][:, :, None, None] + gaps[1]
    i, a, j, b = np.indices(sums.shape)
    return sums[(i != j) & (a != b) | (not same)]


@pytest.mark.parametrize(
    "sizes", [[(4, 3)], [(4, 3), (3, 4)], [(3, 3), (0, 6)], [(1, 4), (0, 5)], [(2, 1), (1, 2)]]
)
def test_the_smallest_denominator_is_that_of_all_amplitudes(sizes):
    spaces = spaces_of([fitted(*size, 1, seed=number) for number, size in enumerate(sizes)])
    sums = [denominators(space, space, same=True) for space in spaces]
    sums.append(denominators(spaces[0], spaces[-1], same=False))
    smallest = np.concatenate(sums).min(initial=np.inf)
    assert smallest_denominator(spaces) == pytest.approx(smallest, rel=1e-14)


# --- sums in float32 ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_backends_keep_their_contract(name):
    backend, _ = registry.select_backend(name, "auto", 2)
    found = [contract.examine_backend(backend, case) for case in contract.CASES]
    assert not [finding for finding in found if not finding.passed]


class Altered(CpuBackend):
    """Exact except for a change of its terms."""

    def __init__(self, alter):
        super().__init__(1)
        self.limits = replace(self.limits, precisions=("fp64",))
        self.alter = alter

    def pair_terms(self, left, right, tile):
        return self.alter(super().pair_terms(left, right, tile))


def scaled(factor, part="direct"):
    """All terms of one kind, times a factor."""
    return lambda terms: terms._replace(**{part: getattr(terms, part) * factor})


def moved(shift, part="direct"):
    """Move a share of each pair's terms to its neighbour."""

    def alter(terms):
        values = getattr(terms, part).copy()
        values[0, 1:3] += shift * values[0, 1] * np.array([1.0, -1.0])
        return terms._replace(**{part: values})

    return alter


def in_lower_triangle(terms):
    terms.exchange[2, 0] = 1e-300
    return terms


RIGHT = {"diagonal": 7, "rectangle": 7, "cross": 6}  # virtual orbitals of the right space
KINDS = tuple(RIGHT)


# Relative changes of the sum of a block above 3e-7, of a pair above 2e-6; missing terms, and terms
# that were not requested
ALTERED = [
    *((kind, scaled(1 + size), True) for kind in KINDS for size in (0.0, 2.9e-7)),
    *((kind, scaled(1 + size), False) for kind in KINDS for size in (3.1e-7, -3.1e-7, np.nan)),
    *((kind, moved(1e-6), True) for kind in KINDS),
    *((kind, moved(9e-6), False) for kind in KINDS),
    ("diagonal", scaled(1 + 2.9e-7, "exchange"), True),
    ("diagonal", scaled(1 - 3.1e-7, "exchange"), False),
    ("rectangle", moved(1e-6, "exchange"), True),
    ("rectangle", moved(9e-6, "exchange"), False),
    ("cross", lambda terms: terms._replace(direct=terms.direct[:, :2]), False),
    ("cross", lambda terms: terms._replace(exchange=terms.direct), False),
    ("diagonal", lambda terms: terms._replace(exchange=None), False),
    ("rectangle", lambda terms: PairTerms(terms.exchange, terms.direct), False),
    ("diagonal", in_lower_triangle, False),
]


@pytest.mark.parametrize(("kind", "alter", "passes"), ALTERED)
def test_the_contract_finds_what_it_says(kind, alter, passes):
    found = contract.examine_backend(Altered(alter), contract.Case(7, RIGHT[kind], 9, kind))
    assert found.passed is passes
    assert (found.exchange is None) == (kind == "cross")


@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_float32_loses_no_small_terms_in_long_rows_and_none_of_float64_after_them(name):
    """A term of 1 and 4000 of 1e-8: float32 stays at 1 if it adds one by one."""
    backend, _ = registry.select_backend(name, "auto", 1)
    energies = np.array([-1.0]), np.linspace(0.5, 1.0, 4001)
    b = np.full((1, 4001, 1), 1e-4)
    b[0, 0] = 1.0
    left, right = ((b, *energies), (np.ones((1, 2, 1)), energies[0], energies[1][:2]))
    exact, mixed = (
        backend.pair_terms(
            backend.put(*left, kind), backend.put(*right, kind), tiling.Tile(0, 1, 0, 1, False)
        ).direct
        for kind in ("fp64", "mixed")
    )
    assert mixed == pytest.approx(exact, rel=3e-7)  # as in the contract
    operand = backend.put(*fitted(4, 9, 30), "mixed")
    terms = backend.pair_terms(operand, operand, tiling.Tile(0, 2, 2, 4, False))
    for part in (terms.direct, terms.exchange):
        assert (part != part.astype(np.float32)).any()


def test_both_spins_have_one_order():
    rng = np.random.default_rng(3)
    alpha, beta = rng.standard_normal((2, 4, 5, 6)) * np.geomspace(1, 1e-3, 6)
    beta[..., 5] += 10
    order = summation_order([alpha, beta])
    assert order.tolist() == [4, 3, 2, 1, 0, 5]
    assert summation_order([alpha, beta[:0]]).tolist() == [5, 4, 3, 2, 1, 0]
    np.testing.assert_array_equal(rounded(beta, order, 2), beta[..., order].astype(np.float32))


# --- the certificate ------------------------------------------------------------------------------


def redone(right, asked=None):
    """Float64 energies of single pairs, taken from those of all; requests are appended to
    `asked`."""

    def redo(channel, rows, columns):
        if asked is not None:
            asked.append((channel, rows.tolist(), columns.tolist()))
        zero = np.zeros(rows.size)
        same = zero if channel == (0, 1) else right.same_spin[channel[0]][rows, columns]
        both = channel == (0, 1) or len(right.same_spin) == 1
        return np.column_stack([same, right.opposite_spin[rows, columns] if both else zero])

    return redo


def times(right, factor):
    """All energies times a factor of each pair; that of i <= j also applies to its mirror image."""
    factor = np.triu(factor) + np.triu(factor, 1).T
    return PairEnergies(
        right.opposite_spin * factor, tuple(matrix * factor for matrix in right.same_spin)
    )


@pytest.fixture(scope="module", params=["rhf", "uhf"])
def chain(request):
    """Pair energies like those of a chain of 40 orbitals: they decay with distance, and no two are
    equal."""
    distance = np.abs(np.subtract.outer(np.arange(40), np.arange(40)))
    uneven = np.random.default_rng(0).normal(0.0, 0.5, (40, 40))
    opposite = -0.02 * np.exp(uneven - distance / 8)
    opposite = np.triu(opposite) + np.triu(opposite, 1).T
    same = 0.3 * opposite * (distance > 0)
    return PairEnergies(opposite, (same,) if request.param == "rhf" else (same / 2, same / 2))


@pytest.mark.parametrize("restricted", [True, False])
def test_the_bound_covers_what_float32_does(restricted):
    spaces = [fitted(40, 20, 90)] if restricted else [fitted(40, 20, 90, 1), fitted(36, 18, 90, 2)]
    exact, mixed = operands(spaces, "fp64"), pair_energies(operands(spaces, "mixed"), CPU)
    found = certificate.certify_precision(mixed, exact, CPU, 1e-7)
    assert found.sampled < 0.1 * found.pairs
    error = abs(energy(mixed) - energy(pair_energies(exact, CPU)))
    assert error <= found.correlation_error < 1e-6 * abs(energy(mixed))


def test_what_is_drawn_is_fixed_before_looking(chain):
    """The pairs do not depend on errors, tolerance or last digits, but on the seed."""
    noise = 1 + 1e-7 * np.random.default_rng(1).standard_normal((40, 40))
    asked = [[], [], [], []]
    first = certificate.bound_errors(chain, redone(chain, asked[0]), 1.0)
    certificate.bound_errors(times(chain, noise), redone(chain, asked[1]), 1e-30)
    certificate.bound_errors(chain, redone(times(chain, 0 * noise), asked[2]), 1e-7)
    certificate.bound_errors(chain, redone(chain, asked[3]), 1.0, seed=first.seed + 1)
    assert asked[0] == asked[1] == asked[2] != asked[3]
    assert first.sampled == (48 if len(chain.same_spin) == 1 else 3 * 48)
    assert first.pairs == (820 if len(chain.same_spin) == 1 else 820 + 820 + 1600)
    assert first.seed == certificate.SEED


def test_pairs_of_equal_energy_are_not_told_apart_by_their_last_digits():
    """Symmetry makes pairs equal but for rounding, which is not the same in two backends."""
    equal = PairEnergies(-1e-3 * (1 + np.indices((40, 40)).sum(axis=0) // 4), (np.zeros((40, 40)),))
    asked = []
    for seed in range(4):
        rounding = 1 + 1e-7 * np.random.default_rng(seed).standard_normal((40, 40))
        certificate.bound_errors(times(equal, rounding), redone(equal, asked), 1.0)
    assert asked[0] == asked[1] == asked[2] == asked[3]


def test_the_bound_holds_for_clusters_of_different_molecules():
    """Few pairs within a molecule and many between them: for 95 of 100 seeds, with the errors that
    were measured. Strata of equal total energy have 80, 75 and 69 of them."""
    text = (Path(__file__).parent / "data" / "pair_errors.csv").read_text().split("\n")[1:-1]
    rows = [line.split(",") for line in text]
    for cluster in dict.fromkeys(row[0] for row in rows):
        i, j = (np.array([int(row[k]) for row in rows if row[0] == cluster]) for k in (1, 2))
        e, d = (np.array([float(row[k]) for row in rows if row[0] == cluster]) for k in (3, 4))
        right, wrong = (np.zeros((i.max() + 1, j.max() + 1)) for _ in range(2))
        for matrix, values in ((right, e), (wrong, e + d)):
            matrix[i, j] = values / np.where(i == j, 1, 2)
            matrix[j, i] = matrix[i, j]
        pairs, known = (PairEnergies(one, (np.zeros_like(one),)) for one in (wrong, right))
        bounds = [
            certificate.bound_errors(pairs, redone(known), 1.0, seed).correlation_error
            for seed in range(100)
        ]
        assert np.sum(np.array(bounds) >= 0.999999 * abs(d.sum())) >= 95, cluster


def test_a_sample_knows_its_largest_error_and_its_seed():
    """Of all pairs of 3 alpha and 2 beta orbitals, both orders of one spin counted."""
    rng = np.random.default_rng(7)
    same = [-rng.random((n, n)) for n in (3, 2)]
    pairs = PairEnergies(-rng.random((3, 2)), tuple(one + one.T for one in same))
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


@pytest.mark.parametrize("nocc", [(0, 0), (1, 0)])
def test_no_pairs_have_no_error(nocc):
    none = PairEnergies(np.zeros(nocc), tuple(np.zeros((n, n)) for n in nocc))
    found = certificate.bound_errors(none, redone(none), 1e-7)
    assert found.accepted and found.correlation_error == 0.0


def to_tolerance(kind, tolerance, listener=None, sizes=((6, 9, 40),)):
    spins = [fitted(*size) for size in sizes]
    operands = PairOperands([b for b, *_ in spins], spaces_of(spins))
    return certificate.pair_energies_to_tolerance(
        operands, CPU, kind, tolerance, listener or Heard()
    )


@pytest.mark.bits
@pytest.mark.parametrize("sizes", [((30, 9, 40),), ((20, 9, 40), (18, 8, 40))], ids=["RHF", "UHF"])
def test_auto_repeats_the_largest_pairs_where_few_are_to_blame(sizes):
    """They get float64 energies, all others keep those of mixed precision; the bound of the rest is
    accepted."""
    right, rough = (to_tolerance(kind, 1.0, sizes=sizes)[0] for kind in ("fp64", "mixed"))
    bound = to_tolerance("mixed", 1.0, sizes=sizes)[2]
    listener = Heard()
    pairs, ran, found = to_tolerance("auto", 0.8 * bound.correlation_error, listener, sizes)
    assert (
        ran == "mixed" and found.accepted and not found.repeated_in_fp64 and not listener.warnings
    )
    assert abs(energy(pairs) - energy(right)) <= found.correlation_error < bound.correlation_error
    (said,) = [text for text in listener.stages if "largest" in text]
    count, total = map(int, re.findall(r"the (\d+) largest of (\d+) pairs", said)[0])
    assert found.pairs == total == bound.pairs and bound.sampled < count < 0.4 * total
    assert found.sampled == count + len(sizes) // 2 * 96 + 48
    sizes_of = dict[bool, list[float]]({True: [], False: []})
    for one, exact, mixed in zip(
        *(certificate._channels(x) for x in (pairs, right, rough)), strict=True
    ):
        again = np.all(np.isclose(one.energies(), exact.energies(), rtol=1e-13, atol=0), axis=1)
        np.testing.assert_array_equal(one.energies()[~again], mixed.energies()[~again])
        for which, size in zip(
            again, one.weight * np.abs(mixed.energies().sum(axis=1)), strict=True
        ):
            if size:  # i, i within a spin is 0 in every precision
                sizes_of[bool(which)].append(size)
    assert count <= len(sizes_of[True]) < count + 5 and np.sort(sizes_of[True])[-count] >= max(
        sizes_of[False]
    )
    for matrix in (*pairs.same_spin, *([pairs.opposite_spin] if len(sizes) == 1 else [])):
        np.testing.assert_array_equal(matrix, matrix.T)


@pytest.mark.parametrize(
    ("core", "virtual", "named"),
    [(0, 0, []), (1, 0, ["frozen_core"]), (2, 2, []), (2, 1, ["frozen_virtual"]), (2, 4, [])],
)
def test_frozen_orbitals_may_not_be_cut_from_others_of_their_energy(core, virtual, named):
    """Two core orbitals and two virtual ones of alpha spin are 2e-4 Eh apart, and the gap of beta
    spin is as small; its order is not that of the occupations."""
    energies = np.array(
        [[-20.0, -19.9998, -0.5, 0.3, 0.4, 0.4002], [-19.5, 0.2, 0.6, -0.4998, -0.4996, 0.9]]
    )
    occupations = np.array([[1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]])
    for order in (1, -1):  # of the spins
        found = arbitrary_cut(energies[::order], occupations[::order], core, virtual)
        assert [option.name for option in found.options] == named


@pytest.mark.parametrize("precision", ["fp64", "mixed"])
@pytest.mark.parametrize("sizes", [[(37, 3, 20)], [(37, 3, 20), (21, 4, 20)]])
def test_narrow_last_columns_of_b_on_disk(tmp_path, precision, sizes):
    """With the least memory, by tiles of 5 orbitals: the last ones are narrower than the place
    they are read into, which is the end of the file."""
    own = StoredOperand._buffer
    watched = patch.object(StoredOperand, "_buffer", autospec=True, side_effect=own)
    spins = [fitted(*size) for size in sizes]
    spaces = spaces_of(spins)
    cpu = CpuBackend(2)
    whole = PairOperands([b for b, *_ in spins], spaces)
    expected = pair_energies(whole.on(cpu, precision), cpu)
    with Space(tmp_path, 10**6) as space, watched as buffer:
        stored = []
        for number, (b, *_) in enumerate(spins):
            tensor = StoredTensor(space.array(f"b{number}", b.size), b.shape, [(0, len(b))])
            tensor.add(0, b.shape[2], np.ascontiguousarray(b.transpose(2, 0, 1)))
            tensor.fit(lambda rows: rows, 1, shrinks=False)
            stored.append(tensor)
        found = pair_energies(PairOperands(stored, spaces, stream_bytes=1).on(cpu, precision), cpu)
    # Rows, and the columns of this tile and of the next
    assert max(call.args[1] for call in buffer.call_args_list) == 3 * 5
    np.testing.assert_allclose(found.opposite_spin, expected.opposite_spin, rtol=1e-13)
    for mine, theirs in zip(found.same_spin, expected.same_spin, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13, atol=1e-14)


# --- which calculation it is ----------------------------------------------------------------------


def test_energies_of_runs_that_differ_in_the_method_are_told_apart():
    """Every option either belongs to the method or only to how, and how well, it is computed."""
    how = (
        *("scf_conv_tol", "scf_max_cycles", "guess", "scf_from", "scf_starts", "stability"),
        *("tolerance", "laplace", "backend", "transform", "memory", "threads", "scratch", "check"),
        *("allow_small_gap", "allow_poor_fit", "certify_fit", "properties", "polarizability"),
    )
    assert sorted((*identity.METHOD, *how)) == sorted(one.name for one in fields(Options))
