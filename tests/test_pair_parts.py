"""Pairs: how they are tiled, sampled, extrapolated and identified, by explicit counts and sums."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dfmp2.backends import cpu, tiling
from dfmp2.backends.base import Limits, Shape, Tile
from dfmp2.backends.transfers import Card, present_card
from dfmp2.errors import ForeignCheckpoint
from dfmp2.mp2 import certificate, composite, diagnostics, identity
from dfmp2.mp2.pairs import PairEnergies
from dfmp2.mp2.result import Certificate
from dfmp2.options import Options, make_options
from dfmp2.planning.sizes import sampled_pairs
from dfmp2.scf.reference import Reference, Solutions, Stability
from tests.recorded import recorded_error, recorded_texts
from tests.test_pairs import redone

HOST = Limits(("fp64",), tile_edge=16, tile_elements=1 << 21, workers=3)
CARD = Limits(
    ("fp64",), 64, 1000, 1, memory=10**9, edge_elements=1000, product_edge=100, least_edge=1
)
PADDED = Limits(("mixed",), 16, 1 << 21, 1, memory=10**9, least_edge=4)


# --- tiles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "nocc", "row", "edge"),
    [
        (HOST, 1, 0, 1),
        (HOST, 8, 0, 1),
        (HOST, 9, 0, 2),
        (HOST, 128, 0, 16),
        (HOST, 1000, 0, 16),
        (HOST, 1000, 1 << 18, 8),
        (HOST, 1000, (1 << 18) + 1, 7),
        (HOST, 1000, 1 << 22, 1),
        (PADDED, 9, 1 << 22, 4),
        (PADDED, 80, 1 << 22, 10),
        (PADDED, 800, 1 << 22, 16),
        (CARD, 100, 0, 50),
        (CARD, 64, 0, 64),
        (CARD, 65, 0, 33),
        (CARD, 100, 20, 50),
        (CARD, 101, 20, 34),
        (CARD, 100, 1001, 1),
        (CARD, 0, 10, 1),
    ],
)
def test_the_edge_of_a_tile(limits: Limits, nocc: int, row: int, edge: int) -> None:
    """An eighth of the orbitals on the host, at most `tile_edge` and 2^21 numbers of B; on a card,
    as few and equal tiles as its limits allow."""
    assert tiling.edge(nocc, limits, row) == edge


def test_tiles_and_their_pairs_by_hand() -> None:
    limits = replace(CARD, tile_edge=3)
    assert tiling.triangle(5, limits) == [
        Tile(0, 3, 0, 3, True),
        Tile(0, 3, 3, 5, False),
        Tile(3, 5, 3, 5, True),
    ]
    assert tiling.rectangle(5, 4, limits) == [
        Tile(0, 3, 0, 2, False),
        Tile(0, 3, 2, 4, False),
        Tile(3, 5, 0, 2, False),
        Tile(3, 5, 2, 4, False),
    ]
    assert [tiling.pairs_in(tile) for tile in tiling.triangle(5, limits)] == [6, 6, 3]
    assert tiling.pairs_in(Tile(1, 4, 2, 7, False)) == 15
    assert Tile(3, 5, 7, 9, True).shifted(2, 6) == Tile(1, 3, 1, 3, True)
    assert tiling.widest([]) == 0 and tiling.widest(tiling.rectangle(5, 4, limits)) == 2
    assert tiling.rows_of(tiling.triangle(5, limits)) == [(0, 3), (3, 5)]
    assert tiling.columns_of(tiling.rectangle(5, 4, limits)) == [(0, 2), (2, 4)]
    assert Shape(5, 7, 9).pairs == 15 and Shape(5, 7, 9).nao == 12


@pytest.mark.parametrize(
    ("nvir", "right", "rows", "expected"),
    [
        (10, 10, 9, (9, 1)),
        (10, 5, 9, (9, 2)),
        (30, 2, 9, (4, 4)),
        (40, 40, 9, (1, 1)),
        (7, 3, 2, (2, 23)),
    ],
)
def test_a_product_of_a_tile_fills_the_device(
    nvir: int, right: int, rows: int, expected: tuple[int, int]
) -> None:
    """100 rows if there are that many, and at most 1000 numbers; at least one pair."""
    assert tiling.strip(CARD, nvir, right, rows) == expected
    height, width = expected
    assert height * width * nvir * right <= 1000 or expected == (1, 1)


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


def test_products_of_the_host_are_cut_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PRODUCT_ELEMENTS", 90)
    assert list(cpu._blocks(Tile(0, 5, 2, 4, False), 10)) == [
        Tile(0, 2, 2, 4, False),
        Tile(2, 5, 2, 4, False),
    ]
    halves = list(cpu._blocks(Tile(0, 4, 0, 4, True), 1))
    assert halves == [Tile(0, 2, 0, 2, True), Tile(0, 2, 2, 4, False), Tile(2, 4, 2, 4, True)]
    assert list(cpu._blocks(Tile(0, 2, 0, 1, False), 91)) == [
        Tile(0, 1, 0, 1, False),
        Tile(1, 2, 0, 1, False),
    ]
    assert cpu._runs(7, 3) == [(0, 6, 3), (6, 7, 1)]
    assert cpu._runs(6, 3) == [(0, 6, 3)] and cpu._runs(2, 3) == [(0, 2, 2)]
    assert cpu._cuts(3, 10, 3) == [(3, 5), (5, 7), (7, 10)]
    assert cpu._area(Tile(1, 4, 2, 7, False)) == 15
    limits = cpu.CpuBackend(5).limits
    assert (limits.workers, limits.tile_edge, limits.work_elements) == (5, 16, 1 << 18)
    assert limits.square and limits.precisions == ("fp64", "mixed")


@pytest.mark.parametrize(
    ("asked", "auto", "settled"),
    [
        ("auto", "fp64", "fp64"),
        ("auto", "mixed", "auto"),
        ("mixed", "fp64", "mixed"),
        ("fp64", "mixed", "fp64"),
    ],
)
def test_auto_is_float64_where_that_costs_nothing(asked: str, auto: str, settled: str) -> None:
    assert replace(HOST, auto=auto).settled(asked) == settled


@pytest.mark.parametrize(
    ("name", "capability", "full"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), True),
        ("NVIDIA H100 PCIe", (9, 0), True),
        ("NVIDIA H800", (9, 0), False),
        ("NVIDIA H20-3e", (9, 0), False),
        ("NVIDIA L4", (8, 9), False),
        ("NVIDIA B200", (10, 0), False),
    ],
)
def test_cards_by_their_data_sheets(name: str, capability: tuple[int, int], full: bool) -> None:
    card = Card(name, capability, 80 << 30, 70 << 30)
    assert card.full_float64 == full
    assert (card.precision, card.float64_rate) == (("fp64", 1e13) if full else ("mixed", 2e11))
    assert (card.product_elements, card.edge_elements) == (80 << 20, 160 << 20)
    large = replace(card, total=400 << 30)
    assert (large.product_elements, large.edge_elements) == (1 << 27, 1 << 28)
    cuda = SimpleNamespace(
        mem_get_info=lambda: (1000, 4000),
        get_device_name=lambda: name,
        get_device_capability=lambda: list(capability),
    )
    assert present_card(SimpleNamespace(cuda=cuda)) == Card(name, capability, 4000, 850)


# --- samples --------------------------------------------------------------------------------------


@pytest.fixture
def pairs() -> PairEnergies:
    """Of 3 alpha and 2 beta orbitals."""
    rng = np.random.default_rng(7)
    same = [-rng.random((n, n)) for n in (3, 2)]
    same = [x + x.T for x in same]
    return PairEnergies(-rng.random((3, 2)), tuple(same))


def test_pairs_of_channels_and_how_often_they_count(pairs: PairEnergies) -> None:
    alpha, beta, mixed = certificate._channels(pairs)
    assert [one.channel for one in (alpha, beta, mixed)] == [(0, 0), (1, 1), (0, 1)]
    assert alpha.rows.tolist() == [0, 0, 0, 1, 1, 2]
    assert alpha.columns.tolist() == [0, 1, 2, 1, 2, 2]
    assert alpha.weight.tolist() == [1.0, 2.0, 2.0, 1.0, 2.0, 1.0]
    assert mixed.weight.tolist() == [1.0] * 6
    assert mixed.rows.tolist() == [0, 0, 1, 1, 2, 2] and mixed.columns.tolist() == [0, 1] * 3
    assert alpha.energies()[1].tolist() == [pairs.same_spin[0][0, 1], 0.0]
    assert mixed.energies()[3].tolist() == [0.0, pairs.opposite_spin[1, 1]]
    closed = PairEnergies(pairs.same_spin[0], (0.3 * pairs.same_spin[0],))
    (one,) = certificate._channels(closed)
    assert one.energies()[4].tolist() == [closed.same_spin[0][1, 2], closed.opposite_spin[1, 2]]
    total = (one.energies() * one.weight[:, None]).sum(axis=0)
    assert total[0] == pytest.approx(closed.same_spin[0].sum())
    assert total[1] == pytest.approx(closed.opposite_spin.sum())


def test_repeated_pairs_take_both_places_of_one_spin(pairs: PairEnergies) -> None:
    before = [x.copy() for x in (*pairs.same_spin, pairs.opposite_spin)]
    chosen = {
        (0, 0): np.array([False, True, False, False, False, True]),
        (1, 1): np.array([False, False, False]),
        (0, 1): np.array([False, False, False, True, False, False]),
    }
    asked = []

    def redo(channel: Any, rows: Any, columns: Any) -> Any:
        asked.append((channel, rows.tolist(), columns.tolist()))
        return np.stack([100.0 + rows, 200.0 + columns], axis=1)

    certificate.repeat_pairs(pairs, redo, chosen)
    assert asked == [((0, 0), [0, 2], [1, 2]), ((1, 1), [], []), ((0, 1), [1], [1])]
    before[0][0, 1] = before[0][1, 0] = 100.0
    before[0][2, 2] = 102.0
    before[2][1, 1] = 201.0
    for found, expected in zip((*pairs.same_spin, pairs.opposite_spin), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_largest_pairs_are_those_that_carry_the_excess() -> None:
    """Among 15 pairs whose sizes halve: as many as leave 0.6 of the tolerance, at most 6."""
    matrix = np.zeros((5, 5))
    rows, columns = np.triu_indices(5)
    size = 2.0 ** -np.arange(15)
    matrix[rows, columns] = -size / np.where(rows == columns, 1, 2)
    matrix = np.triu(matrix) + np.triu(matrix, 1).T
    made = PairEnergies(matrix, (0.0 * matrix,))
    said = Certificate(15, 15, 1e-6, 0.0, 0.0, 0.0, 1e-7, repeated_in_fp64=False)
    for error, count in ((1e-6, 5), (6.1e-8, 1), (0.9e-6, 4), (3e-6, 6), (4e-6, None)):
        found = certificate.largest_pairs(made, replace(said, correlation_error=error)) or {}
        picked = {channel: chosen.tolist() for channel, chosen in found.items()}
        assert picked == (
            {} if count is None else {(0, 0): [True] * count + [False] * (15 - count)}
        )


def test_strata_have_equal_sums_of_roots_and_keep_equal_pairs_together() -> None:
    found = certificate._strata(np.array([1.0, 16.0, 1.0, 1.0, 1.0, 16.0, 16.0]))
    assert [part.tolist() for part in found] == [[1, 5, 6], [0, 2, 3, 4]]
    # Quarters of 8: the largest carries two of them, and pairs within 1 % stay together.
    found = certificate._strata(np.array([16.0, 4.0, 1.0, 0.25, 0.25 * (1 + 1e-9)]))
    assert [part.tolist() for part in found] == [[0], [1], [2, 3, 4]]
    assert [part.tolist() for part in certificate._strata(np.zeros(3))] == [[0, 1, 2]]


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


# --- limits of basis sets -------------------------------------------------------------------------


def test_limits_of_other_families() -> None:
    assert composite.scf_formula("largest", "def2", 3, 4).weights(3, 4) == (0.0, 1.0)
    assert composite.default_correlation("def2") == "neese-valeev"
    assert composite.default_correlation("cc-pvnz") == "helgaker"


# --- which calculation it is ----------------------------------------------------------------------


def test_differences_are_named_with_both_values_where_they_are_short() -> None:
    there = {"--os-scale": "1.2", "geometry": "a" * 41, "same": "x", "gone": "y", "processor": "p"}
    here = {"--os-scale": "1.3", "geometry": "b", "same": "x", "new": "z", "processor": "q"}
    assert identity.changed(there, here) == ["os_scale", "geometry", "gone", "processor", "new"]
    found = [str(one) for one in identity.differences(there, here, ["new", "processor"])]
    assert found == [
        "--os-scale (1.2 there, 1.3 here)",
        "geometry differs",
        "gone (y there, none here)",
    ]
    edge = identity.differences({"x": "a" * 40}, {"x": "b"})
    assert str(edge[0]) == f"x ({'a' * 40} there, b here)"
    assert identity.other_processor(there, here) == "p there, q here"
    assert identity.other_processor(there, {**here, "processor": "p"}) == ""
    assert identity.other_processor({}, here) == identity.other_processor(there, {}) == ""
    identity.require_same({"a": "1", "processor": "p"}, {"a": "1", "processor": "q"}, "x.ckpt")
    with recorded_error(ForeignCheckpoint):
        identity.require_same({"a": "1"}, {"a": "2"}, "x.ckpt")


def test_energies_of_runs_that_differ_in_the_method_are_told_apart() -> None:
    """Every option either belongs to the method or only to how, and how well, it is computed."""
    how = (
        *("scf_conv_tol", "scf_max_cycles", "guess", "scf_from", "scf_starts", "stability"),
        *("tolerance", "laplace", "backend", "transform", "memory", "threads", "scratch", "check"),
        *("allow_small_gap", "allow_poor_fit", "certify_fit", "properties", "polarizability"),
    )
    assert sorted((*identity.METHOD, *how)) == sorted(one.name for one in fields(Options))


def test_methods_that_differ_are_counted() -> None:
    """Options come first; three fields, and three values of each, are named."""
    plain = {"basis": "cc-pvdz", "method": "mp2", "grid": "default", "orbital functions of H": "a"}
    methods = {
        "one": plain,
        "two": plain,
        "three": {**plain, "method": "scs-mp2", "orbital functions of H": "b"},
    }
    assert (
        identity.method_differences(methods) == "method: mp2 (2, e.g. one), scs-mp2 (1, e.g. three)"
    )
    assert identity.method_differences({"one": plain, "two": plain}) == ""
    other = {"one": plain, "two": {**plain, "orbital functions of H": "b"}}
    assert identity.method_differences(other).startswith("orbital functions of H: a (1, e.g. one)")
    many = {str(n): {name: f"{name}{n}" for name in identity.METHOD[:5]} for n in range(5)}
    said = identity.method_differences(many)
    assert said.endswith("; and 2 more") and said.count("(1, e.g. ") == 9
    assert said.startswith("basis: basis0 (1, e.g. 0), basis1 (1, e.g. 1), basis2 (1, e.g. 2)")


# --- doubts ---------------------------------------------------------------------------------------


def reference_with(stability: Stability | None, solutions: Solutions | None = None) -> Reference:
    coeff = np.eye(2)[None]
    return Reference(
        kind="uhf",
        scf_type="df",
        scf_total_energy=-1.0,
        nuclear_repulsion_energy=0.0,
        cycles=1,
        ladder=("DIIS",),
        start="atoms",
        spin_square=0.75,
        mo_coeff=np.concatenate([coeff, coeff]),
        mo_energy=np.array([[-0.5, 0.3]] * 2),
        mo_occ=np.array([[1.0, 0.0], [0.0, 0.0]]),
        stability=stability,
        solutions=solutions,
    )


UNSTABLE = Stability("unstable (UHF to UHF)", "UHF to UHF; all rotations", -0.02, 1e-4, -0.02, 1e-4)


@pytest.mark.parametrize(
    ("gain", "spin_square", "grave"),
    [(0.01, 0.75, False), (0.0101, 0.75, True), (1e-4, 1.049, False), (1e-4, 1.051, True)],
)
def test_an_instability_is_grave_beyond_its_limits(
    gain: float, spin_square: float, grave: bool
) -> None:
    """0.01 Eh, or 0.3 of <S^2> beyond that of the spin."""
    found = replace(
        reference_with(replace(UNSTABLE, energy_gain=gain, internal_gain=gain)),
        spin_square=spin_square,
    )
    said = str(diagnostics.instability(found, Options(basis="sto-3g"), 2))
    assert ("may be meaningless" in said) == grave
    assert f"a lower UHF solution exists, at least {gain:.1e} Eh below" in said
    assert "lowest eigenvalue -0.0200 Eh" in said
    for gains in ((gain, 1e-5), (1e-5, gain)):  # whichever kind has the lower eigenvalue
        both = replace(
            UNSTABLE,
            verdict="unstable (RHF to UHF and RHF to RHF)",
            energy_gain=gains[0],
            external_gain=gains[0],
            internal_gain=gains[1],
        )
        said = diagnostics.instability(replace(found, stability=both), Options(basis="sto-3g"), 2)
        assert ("may be meaningless" in str(said)) == grave
    stable = replace(UNSTABLE, verdict="stable", energy_gain=None, internal_gain=None)
    for one in (None, stable):
        assert diagnostics.instability(reference_with(one), Options(basis="sto-3g"), 2) == ""


def test_an_instability_that_was_followed_is_said_with_what_is_left_to_try() -> None:
    """Steps were taken or none; of an instability to another kind of solution neither is said."""
    following = make_options(basis="sto-3g", stability="follow", scf_from="x.h5", scf_starts=100)
    outwards = replace(
        UNSTABLE, verdict="unstable (RHF to UHF)", internal_gain=None, internal_eigenvalue=0.1
    )
    said = []
    for stability, options, followed in (
        (UNSTABLE, following, 2),
        (UNSTABLE, following, 0),
        (UNSTABLE, Options(basis="sto-3g"), 2),
        (outwards, following, 2),
    ):
        solutions = Solutions(
            start=(1,) * (followed + 1),
            origin=("core",) * (followed + 1),
            energy=(-1.0,) * (followed + 1),
            spin_square=(0.75,) * (followed + 1),
            lowest_eigenvalue=(-0.02,) * (followed + 1),
            kind=("UHF to UHF",) * (followed + 1),
            chosen=followed + 1,
        )
        said.append(str(diagnostics.instability(reference_with(stability, solutions), options, 2)))
    recorded_texts(said)


@pytest.mark.parametrize(
    ("options", "multiplicity", "spin_square", "warned", "advised"),
    [
        ({}, 2, 0.849, False, False),
        ({}, 2, 0.851, True, True),
        ({}, 4, 3.851, True, True),
        ({"reference": "uhf"}, 1, 0.99, True, False),
        ({"method": "ks", "xc": "pbe"}, 2, 1.2, False, False),
        ({"method": "drpa", "xc": "pbe"}, 2, 1.2, True, False),
    ],
)
def test_spin_contamination_is_warned_beyond_its_limit(
    options: dict[str, str], multiplicity: int, spin_square: float, warned: bool, advised: bool
) -> None:
    """0.1 of <S^2> beyond S(S + 1); ROHF is no remedy for a singlet, nor for a functional."""
    reference = replace(reference_with(None), spin_square=spin_square, xc=options.get("xc"))
    said = str(
        diagnostics.spin_contamination(reference, Options(basis="sto-3g", **options), multiplicity)
    )
    assert (f"<S^2> is {spin_square:.2f}" in said) == warned == bool(said)
    assert ("--reference rohf" in said) == advised
