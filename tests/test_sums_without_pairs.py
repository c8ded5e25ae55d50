"""Sums over fitting functions (Laplace transform, RPA) on made-up integrals: matrices against
einsum, energies against the sums they replace, and the origin of their points."""

from __future__ import annotations

import math
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

from dfmp2.errors import NumericalError
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.scratch import Space
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2 import laplace, response, rpa
from dfmp2.mp2.result import Quadrature
from dfmp2.progress import Listener
from tests.recorded import recorded_error

NAUX = 9
SHAPES = ((4, 5), (3, 6))


class Steps(Listener):
    """Records the steps."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, str]] = []

    def step(self, done: int, total: int, what: str) -> None:
        self.told.append((done, total, what))


def spaces_of(rng: Any, shapes: tuple[tuple[int, int], ...] = SHAPES) -> list[ActiveSpace]:
    nothing = np.zeros((1, 0))
    return [
        ActiveSpace(
            nothing, nothing, -np.sort(rng.uniform(0.4, 9.0, n)), np.sort(rng.uniform(0.1, 3.0, m))
        )
        for n, m in shapes
    ]


def gaps_of(space: ActiveSpace) -> Any:
    return space.eps_vir[None] - space.eps_occ[:, None]


@pytest.fixture
def spaces() -> list[ActiveSpace]:
    return spaces_of(np.random.default_rng(2))


@pytest.fixture
def b() -> list[Any]:
    rng = np.random.default_rng(4)
    return [0.1 * rng.standard_normal((*shape, NAUX)) for shape in SHAPES]


def on_disk(space: Space, b: list[Any]) -> list[StoredTensor]:
    made = []
    for k, values in enumerate(b):
        region = space.array(f"b{k}", values.size)
        region.write(0, values)
        made.append(StoredTensor(region, values.shape, [(0, len(values))]))
    return made


@pytest.mark.parametrize("disk", [True, False])
@pytest.mark.parametrize(
    ("bytes_of_group", "ends"),
    [
        (8 * 5 * NAUX - 1, [1, 2, 3, 4]),
        (8 * 11 * NAUX, [2, 4]),
        (8 * 15 * NAUX, [3, 4]),
        (10**6, [4]),
    ],
)
def test_b_is_taken_by_groups_of_orbitals(
    disk: bool,
    bytes_of_group: int,
    ends: list[int],
    b: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response, "group_bytes", lambda naux: bytes_of_group)
    with Space(tmp_path, 0) as space:
        tensor: Any = on_disk(space, b)[0] if disk else b[0]
        found = list(response.groups(tensor))
    assert [i0 + len(group) for i0, group in found] == ends
    np.testing.assert_array_equal(np.concatenate([group for _, group in found]), b[0])


@pytest.mark.parametrize(("room", "joined", "passes"), [(2, False, 3), (2, True, 2), (5, False, 1)])
def test_as_many_matrices_as_fit_share_a_pass_over_the_disk(
    room: int,
    joined: bool,
    passes: int,
    b: list[Any],
    spaces: list[ActiveSpace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five factors, in the bytes of `room` matrices of each spin; a joined one holds both spins."""
    read: list[int] = []
    whole = StoredTensor.read

    def counted(self: StoredTensor, i0: int, i1: int, out: Any) -> None:
        read.append(i0)
        whole(self, i0, i1, out)

    monkeypatch.setattr(StoredTensor, "read", counted)
    monkeypatch.setattr(response, "group_bytes", lambda naux: 1)  # groups of one orbital
    factors = [lambda gaps, k=k: np.exp(-0.1 * k * gaps) for k in range(5)]
    held = room * len(b) * NAUX**2 * 8
    found = []
    with Space(tmp_path, 0) as space:
        made = response.weighted_products(
            on_disk(space, b), spaces, factors, held, 1, joined=joined
        )
        found = [np.array(matrices) for matrices in made]
    assert read.count(0) == passes * len(b)
    for factor, matrices in zip(factors, found, strict=True):
        expected = [
            np.einsum("ia,iap,iaq->pq", factor(gaps_of(space)), one, one)
            for one, space in zip(b, spaces, strict=True)
        ]
        np.testing.assert_allclose(
            matrices, [sum(expected)] if joined else expected, rtol=1e-12, atol=1e-14
        )


# --- Laplace transform ----------------------------------------------------------------------------


def opposite_spin(b: list[Any], spaces: list[ActiveSpace]) -> float:
    g = np.einsum("iap,jbp->iajb", b[0], b[-1])
    return -float((g**2 / (gaps_of(spaces[0])[:, :, None, None] + gaps_of(spaces[-1]))).sum())


@pytest.mark.parametrize("factor", [1.3, -0.4])
@pytest.mark.parametrize("count", [1, 2])
def test_a_laplace_transform_is_within_its_error(
    factor: float, count: int, b: list[Any], spaces: list[ActiveSpace]
) -> None:
    b, spaces = b[-count:], spaces[-count:]
    exact = opposite_spin(b, spaces)
    heard = Steps()
    found = laplace.opposite_spin_energy(b, spaces, factor, 1e-6, 10**6, 2, heard)
    assert found.error <= 1e-6 and abs(factor * (found.energy - exact)) <= found.error
    ends = [(gaps_of(s).min(), gaps_of(s).max()) for s in (spaces[0], spaces[-1])]
    assert found.lowest == pytest.approx(ends[0][0] + ends[1][0], rel=1e-12)
    assert found.highest == pytest.approx(ends[0][1] + ends[1][1], rel=1e-12)
    assert found.scale == 0.0
    what = "points of the Laplace transform"
    assert heard.told == [(k + 1, found.points, what) for k in range(found.points)]
    # The rule is the shortest: one with a point less is not good enough.
    fitted = laplace._fitted(math.log(found.highest / found.lowest))
    tried = takewhile(lambda rule: rule[0].shape[1] <= found.points, fitted)
    rules = {points.shape[1]: error for points, error in tried}
    assert abs(factor) * rules[found.points - 1] * abs(exact) > 0.9e-6
    relative = rules[found.points]
    assert found.error == pytest.approx(
        abs(factor) * relative * abs(found.energy) / (1 - relative), rel=1e-12
    )


def test_the_size_of_the_energy_is_nearly_that_of_the_energy(
    b: list[Any], spaces: list[ActiveSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact with all sign vectors instead of 32; 10 % are added for the rule."""
    gaps = [gaps_of(space) for space in spaces]
    rule = laplace.quadrature(gaps[0].min() + gaps[1].min(), gaps[0].max() + gaps[1].max(), 1e-6)
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * NAUX)).reshape(NAUX, -1)
    monkeypatch.setattr(laplace, "VECTORS", signs.shape[1])

    class Every:
        """All vectors once."""

        def choice(self, values: list[float], shape: tuple[int, int]) -> Any:
            assert values == [-1.0, 1.0] and shape == signs.shape
            return signs

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Every())
    found = laplace._size(b, gaps, rule)
    assert found == pytest.approx(1.1 * abs(opposite_spin(b, spaces)), rel=1e-5)
    assert laplace._size([0 * x for x in b], gaps, rule) > 0.0


# Relative errors of the best rules for ranges of 10, 100 and 10,000 by number of points, as found
# by this module; Takatsuka, Ten-no and Hackbusch minimise the absolute error instead.
def test_rules_are_as_good_as_they_say_and_nearly_even() -> None:
    for length in (math.log(10.0), math.log(100.0), math.log(1e4)):
        before = math.inf
        for points, error in laplace._fitted(length):
            if error <= 1e-9 or points.shape[1] > 12:
                break
            assert error < before
            before = error
            t, w = np.exp(points)
            assert (np.diff(t) > 0).all()
            x = np.exp(np.linspace(0.0, length, 4001))
            off = np.abs(1.0 - x * (np.exp(-np.outer(x, t)) @ w))
            assert 0.9 * error < off.max() <= error
            peaks = off[1:-1][(off[1:-1] > off[:-2]) & (off[1:-1] > off[2:])]
            peaks = np.concatenate([off[:1], peaks, off[-1:]])
            assert peaks.size == 2 * len(t) + 1
            assert peaks.max() < 2.5 * peaks.min()
            # 1 / x on another range is the same rule, scaled.
            rule = laplace.quadrature(0.7, 0.7 * math.exp(length), error)
            np.testing.assert_allclose(rule.t, t / 0.7, rtol=1e-9)
            np.testing.assert_allclose(rule.w, w / 0.7, rtol=1e-9)
            assert rule.error == pytest.approx(error, rel=1e-9)
    assert laplace.quadrature(0.5, 0.5, 1e-4).t.size == 1  # a range of zero length


def test_a_laplace_transform_of_nothing_or_of_no_numbers(
    b: list[Any], spaces: list[ActiveSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    empty = spaces_of(rng, ((4, 5), (0, 6)))
    nothing = [b[0], np.zeros((0, 6, NAUX))]
    found = laplace.opposite_spin_energy(nothing, empty, 1.0, 1e-6, 0, 1, Steps())
    assert found == Quadrature(0.0, 0, 0.0, 0.0, 0.0)
    wrong = [b[0].copy(), b[1]]
    wrong[0][1, 2, 3] = math.nan
    with pytest.raises(NumericalError):
        laplace.opposite_spin_energy(wrong, spaces, 1.0, 1e-6, 0, 1, Steps())
    monkeypatch.setattr(laplace, "MOST_POINTS", 3)
    with recorded_error(NumericalError):
        laplace.quadrature(0.5, 100.0, 1e-5)


# --- RPA ------------------------------------------------------------------------------------------


def rpa_integrand(b: list[Any], spaces: list[ActiveSpace], frequency: float) -> float:
    """Tr [ln(1 + Q) - Q] from the eigenvalues of Q, Eq. 1."""
    q = np.zeros((NAUX, NAUX))
    for one, space in zip(b, spaces, strict=True):
        gap = gaps_of(space)
        factor = 2.0 / len(b) * 2 * gap / (gap**2 + frequency**2)
        q += np.einsum("iap,iaq,ia->pq", one, one, factor)
    values = np.linalg.eigvalsh(q)
    return float((np.log1p(values) - values).sum())


def rpa_energy(b: list[Any], spaces: list[ActiveSpace]) -> float:
    """Eq. 2 with an adaptive quadrature of another library."""
    found = quad(
        lambda frequency: rpa_integrand(b, spaces, frequency),
        0.0,
        np.inf,
        epsabs=1e-13,
        epsrel=1e-11,
        limit=400,
    )
    return float(found[0]) / (2 * math.pi)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("tolerance", "fewest"), [(1e-5, 24), (1e-5, 8), (1e-9, 24)])
def test_rpa_is_the_integral_over_frequencies(
    count: int,
    tolerance: float,
    fewest: int,
    b: list[Any],
    spaces: list[ActiveSpace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpa, "FEWEST", fewest)
    b, spaces = b[:count], spaces[:count]
    exact, heard = rpa_energy(b, spaces), Steps()
    found = rpa.correlation_energy(b, spaces, tolerance, 10**6, 3, heard)
    with Space(tmp_path, 0) as space:
        on_files = rpa.correlation_energy(on_disk(space, b), spaces, tolerance, 1, 1, Steps())
    assert on_files.energy == pytest.approx(found.energy, rel=1e-12)
    assert abs(found.energy - exact) <= max(found.error, 1e-12) and found.error <= tolerance
    gaps = np.concatenate([gaps_of(space).ravel() for space in spaces])
    assert (found.lowest, found.highest) == pytest.approx((gaps.min(), gaps.max()), rel=1e-12)
    # There are 24 scales between the ends, with equal ratios.
    scales = np.geomspace(gaps.min(), gaps.max(), 24)
    shares = np.concatenate([np.einsum("iap,iap->ia", one, one).ravel() ** 2 for one in b]) / gaps
    assert np.abs(scales / found.scale - 1).min() < 1e-12
    place = int(np.abs(scales - found.scale).argmin())

    def fallen(n: int, a: float = found.scale) -> float:
        return float(shares @ np.abs((gaps - a) / (gaps + a)) ** (2 * n))

    wanted = tolerance / (0.1 * sum(space.nocc for space in spaces))
    enough = 4
    while min(fallen(enough, a) for a in scales) / shares.sum() > wanted:
        enough += 4
    assert fallen(enough) == min(fallen(enough, a) for a in scales), place
    enough = max(enough, fewest)
    assert found.points in [enough // 4 * 2**k for k in range(1, 6)]
    # The error follows from the last changes, from half and a quarter of the points.
    sums = {}
    for n in (found.points, found.points // 2, found.points // 4):
        if n < enough // 4:
            break
        u = np.arange(1, n + 1) * math.pi / (2 * n)
        weights = np.where(u == u[-1], 0.5, 1.0) * found.scale / np.sin(u) ** 2
        values = [rpa_integrand(b, spaces, found.scale / math.tan(angle)) for angle in u]
        sums[n] = float(weights @ values) / (4 * n)
    n = found.points
    assert found.energy == pytest.approx(sums[n], rel=1e-11)
    expected = abs(sums[n] - sums[n // 2])  # the first change alone, not sharpened
    if n // 4 in sums:
        before = abs(sums[n // 2] - sums[n // 4])
        expected = 40.0 * max(
            expected * min(1.0, fallen(n) / fallen(n // 2)),
            before * min(1.0, fallen(n) / fallen(n // 4)),
        )
    assert found.error == pytest.approx(expected, rel=1e-2, abs=1e-15)
    # Points of shorter sums are not recomputed.
    assert len(heard.told) == n and heard.told[-1][2] == "frequencies"
    first = enough // 4
    assert [done for done, *_ in heard.told[:first]] == list(range(1, first + 1))
    assert {total for _, total, _ in heard.told[:first]} == {first}
    # The same sum for other orbitals, with these frequencies.
    same = rpa.at_points(b, spaces, found, 10**6, 2, Steps())
    assert same == pytest.approx(found.energy, rel=1e-12)
    other = [1.01 * one for one in b]
    moved = rpa.at_points(other, spaces, found, 10**6, 1, Steps())
    assert moved == pytest.approx(rpa_energy(other, spaces), abs=2 * max(found.error, 1e-12))


def test_rpa_of_nothing_and_of_no_ground_state(b: list[Any], spaces: list[ActiveSpace]) -> None:
    empty = spaces_of(np.random.default_rng(3), ((4, 5), (0, 6)))
    nothing = [b[0], np.zeros((0, 6, NAUX))]
    one = rpa.correlation_energy(nothing, empty, 1e-8, 0, 1, Steps())
    # If one spin has no electrons, the orbitals of the other are singly occupied.
    alone = rpa_energy([b[0], np.zeros((4, 5, NAUX))], [empty[0], empty[0]])
    assert one.energy == pytest.approx(alone, abs=1e-8)
    assert rpa.correlation_energy(nothing[1:], empty[1:], 1e-8, 0, 1, Steps()) == Quadrature(
        0.0, 0, 0.0, 0.0, 0.0
    )
    assert rpa.at_points(nothing[1:], empty[1:], one, 0, 1, Steps()) == 0.0
    assert rpa.at_points(b, spaces, Quadrature(0.0, 4, 0.0, 0.0, 0.0), 0, 1, Steps()) == 0.0
    crossed = ActiveSpace(
        spaces[0].c_occ, spaces[0].c_vir, spaces[0].eps_occ + 2.0, spaces[0].eps_vir
    )
    lowest = float(gaps_of(crossed).min())
    assert lowest < 0
    with pytest.raises(NumericalError, match=f"smallest e_a - e_i is {lowest:.6f} Eh"):
        rpa.correlation_energy(b, [crossed, spaces[1]], 1e-8, 0, 1, Steps())


def test_a_sum_that_does_not_converge_says_what_it_has(
    b: list[Any], spaces: list[ActiveSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpa, "LAST", 24)
    with recorded_error(NumericalError):
        rpa.correlation_energy([3 * one for one in b], spaces, 1e-17, 0, 1, Steps())
    wrong = [b[0].copy(), b[1]]
    wrong[0][0, 0, 0] = math.nan
    with pytest.raises(NumericalError):
        rpa.correlation_energy(wrong, spaces, 1e-8, 0, 1, Steps())


def test_what_falls_no_further_counts_as_it_is() -> None:
    values = {8: 2e-3, 4: 1e-3, 2: 0.0, 16: 1e-4}
    assert rpa._fallen(values.__getitem__, 16, 4) == pytest.approx(0.1)
    assert rpa._fallen(values.__getitem__, 8, 4) == 1.0  # never more than before
    assert rpa._fallen(values.__getitem__, 8, 2) == 1.0  # nothing to compare with
    assert rpa._occupation([0]) == 2.0 and rpa._occupation([0, 0]) == 1.0
