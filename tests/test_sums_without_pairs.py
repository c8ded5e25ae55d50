"""Sums over fitting functions (Laplace transform, RPA) on made-up integrals: matrices against
einsum, energies against the sums they replace, and the origin of their points."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from scipy.integrate import quad

from dfmp2.errors import NumericalError
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.scratch import Space
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2 import laplace, response, rpa
from dfmp2.mp2.result import Quadrature
from dfmp2.progress import Silent
from tests.recorded import recorded_error

NAUX = 9
SHAPES = ((4, 5), (3, 6))


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
    monkeypatch.setattr(response, "group_bytes", lambda naux: 1)  # groups of one orbital
    counted = patch.object(StoredTensor, "read", autospec=True, side_effect=StoredTensor.read)
    factors = [lambda gaps, k=k: np.exp(-0.1 * k * gaps) for k in range(5)]
    held = room * len(b) * NAUX**2 * 8
    with Space(tmp_path, 0) as space, counted as read:
        made = response.weighted_products(
            on_disk(space, b), spaces, factors, held, 1, joined=joined
        )
        found = [np.array(matrices) for matrices in made]
    begins = [call.args[1] for call in read.call_args_list]
    assert begins == [i for _ in range(passes) for nocc, _ in SHAPES for i in range(nocc)]
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
    found = laplace.opposite_spin_energy(b, spaces, factor, 1e-6, 10**6, 2, Silent())
    assert found.error <= 1e-6 and abs(factor * (found.energy - exact)) <= found.error
    ends = [(gaps_of(s).min(), gaps_of(s).max()) for s in (spaces[0], spaces[-1])]
    assert (found.lowest, found.highest) == pytest.approx(np.sum(ends, axis=0), rel=1e-12)
    assert found.scale == 0.0


# Relative errors of the best rules for ranges of 10, 100 and 10,000 by number of points, as found
# by this module; Takatsuka, Ten-no and Hackbusch minimise the absolute error instead.
def test_rules_are_as_good_as_they_say() -> None:
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
            inverse = np.exp(-np.outer(x, t)) @ w  # 1/x
            assert 0.9 * error < np.abs(1.0 - x * inverse).max() <= error
    assert laplace.quadrature(0.5, 0.5, 1e-4).t.size == 1  # a range of zero length


def test_a_laplace_transform_of_nothing_or_of_no_numbers(
    b: list[Any], spaces: list[ActiveSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = spaces_of(np.random.default_rng(3), ((4, 5), (0, 6)))
    nothing = [b[0], np.zeros((0, 6, NAUX))]
    found = laplace.opposite_spin_energy(nothing, empty, 1.0, 1e-6, 0, 1, Silent())
    assert found == Quadrature(0.0, 0, 0.0, 0.0, 0.0)
    zeros = [0.0 * one for one in b]
    assert laplace.opposite_spin_energy(zeros, spaces, 1.0, 1e-6, 0, 1, Silent()).energy == 0.0
    wrong = [b[0].copy(), b[1]]
    wrong[0][1, 2, 3] = math.nan
    with pytest.raises(NumericalError):
        laplace.opposite_spin_energy(wrong, spaces, 1.0, 1e-6, 0, 1, Silent())
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpa, "FEWEST", fewest)
    b, spaces = b[:count], spaces[:count]
    exact = rpa_energy(b, spaces)
    found = rpa.correlation_energy(b, spaces, tolerance, 10**6, 3, Silent())
    assert abs(found.energy - exact) <= max(found.error, 1e-12) and found.error <= tolerance
    gaps = np.concatenate([gaps_of(space).ravel() for space in spaces])
    assert (found.lowest, found.highest) == pytest.approx((gaps.min(), gaps.max()), rel=1e-12)
    # The error follows from the changes since half and a quarter of the points, or the first one.
    shares = np.concatenate([np.einsum("iap,iap->ia", one, one).ravel() ** 2 for one in b]) / gaps
    falling = np.abs((gaps - found.scale) / (gaps + found.scale))
    n, half, quarter = (found.points // k for k in (1, 2, 4))
    left = {k: float(shares @ falling ** (2 * k)) for k in (n, half, quarter)}
    sums = {k: rpa.at_points(b, spaces, replace(found, points=k), 10**6, 1, Silent()) for k in left}
    changes = abs(sums[n] - sums[half]), abs(sums[half] - sums[quarter])
    sharper = (
        changes[0] * min(1.0, left[n] / left[half]),
        changes[1] * min(1.0, left[n] / left[quarter]),
    )
    expected = [
        pytest.approx(error, rel=1e-2, abs=1e-15) for error in (40 * max(sharper), changes[0])
    ]
    assert found.error in expected
    # The same sum for other orbitals, with these frequencies.
    other = [1.01 * one for one in b]
    moved = rpa.at_points(other, spaces, found, 10**6, 1, Silent())
    assert moved == pytest.approx(rpa_energy(other, spaces), abs=2 * max(found.error, 1e-12))


def test_rpa_of_nothing_and_of_no_ground_state(b: list[Any], spaces: list[ActiveSpace]) -> None:
    empty = spaces_of(np.random.default_rng(3), ((4, 5), (0, 6)))
    nothing = [b[0], np.zeros((0, 6, NAUX))]
    one = rpa.correlation_energy(nothing, empty, 1e-8, 0, 1, Silent())
    assert one.energy == pytest.approx(rpa_energy(nothing, empty), abs=1e-8)
    assert rpa.correlation_energy(nothing[1:], empty[1:], 1e-8, 0, 1, Silent()) == Quadrature(
        0.0, 0, 0.0, 0.0, 0.0
    )
    assert rpa.at_points(nothing[1:], empty[1:], one, 0, 1, Silent()) == 0.0
    assert rpa.at_points(b, spaces, Quadrature(0.0, 4, 0.0, 0.0, 0.0), 0, 1, Silent()) == 0.0
    crossed = ActiveSpace(
        spaces[0].c_occ, spaces[0].c_vir, spaces[0].eps_occ + 2.0, spaces[0].eps_vir
    )
    lowest = float(gaps_of(crossed).min())
    assert lowest < 0
    with pytest.raises(NumericalError, match=f"smallest e_a - e_i is {lowest:.6f} Eh"):
        rpa.correlation_energy(b, [crossed, spaces[1]], 1e-8, 0, 1, Silent())


def test_a_sum_that_does_not_converge_says_what_it_has(
    b: list[Any], spaces: list[ActiveSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpa, "LAST", 24)
    with recorded_error(NumericalError):
        rpa.correlation_energy([3 * one for one in b], spaces, 1e-17, 0, 1, Silent())
    wrong = [b[0].copy(), b[1]]
    wrong[0][0, 0, 0] = math.nan
    with pytest.raises(NumericalError):
        rpa.correlation_energy(wrong, spaces, 1e-8, 0, 1, Silent())
