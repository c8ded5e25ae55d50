"""A quick test of a backend: blocks of random B compared with the definition in float64.

    direct_ij = sum_ab (ia|jb)^2 / D      exchange_ij = sum_ab (ia|jb)(ib|ja) / D      D = e_i + e_j - e_a - e_b

Sizes are those at which tiled kernels tend to fail: one virtual orbital, one less and one more than
a tile of 128, lengths that are not multiples of anything, i = j, two different virtual spaces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, Operand, Tile

EDGE = 3  # occupied orbitals along a block; odd, so that a device's block is never full
TOLERANCE = 3e-7  # relative, of the sums of a block, in float32 with float64 from the row sums on
# relative, for a single pair; only this reveals terms assigned to a neighbouring pair
PAIR_TOLERANCE = 2e-6


@dataclass(frozen=True, slots=True)
class Case:
    """A test block: virtual orbitals of the left and right space, fitting functions, kind of
    block."""

    nvir: int
    right: int
    naux: int
    kind: str  # "diagonal", "rectangle" of one space, or "cross" between two


CASES = (
    Case(1, 1, 5, "diagonal"),
    Case(8, 8, 37, "rectangle"),
    Case(64, 64, 130, "diagonal"),
    Case(112, 112, 150, "rectangle"),
    Case(127, 127, 129, "diagonal"),
    Case(128, 128, 128, "rectangle"),
    Case(129, 129, 100, "diagonal"),
    Case(256, 256, 200, "rectangle"),
    Case(448, 448, 300, "diagonal"),
    Case(600, 600, 200, "rectangle"),
    Case(28, 26, 70, "cross"),
    Case(13, 130, 60, "cross"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Relative errors of a case: direct and exchange sums (None without exchange), worst pair; and
    whether it passed."""

    case: Case
    direct: float
    exchange: float | None
    pair: float
    passed: bool


def examine_backend(backend: Backend, case: Case) -> Finding:
    """Run one case on a backend, in its reduced precision if it has one, and compare it with the
    definition.
    """
    rng = np.random.default_rng([case.nvir, case.right, case.naux])
    # First orbital of the second block, for a device that works in blocks
    beyond = backend.limits.tile_edge
    nocc, tile = {
        "diagonal": (EDGE, Tile(0, EDGE, 0, EDGE, True)),
        "rectangle": (beyond + EDGE, Tile(0, EDGE, beyond, beyond + EDGE, False)),
        "cross": (EDGE, Tile(0, EDGE, 0, EDGE, False)),
    }[case.kind]
    exchanging = case.kind != "cross"
    left = _operand(backend, rng, nocc, case.nvir, case.naux)
    right = left if exchanging else _operand(backend, rng, EDGE, case.right, case.naux)
    terms = backend.pair_terms(left[0], right[0], tile)
    direct, exchange = _definition(left, right, tile, exchanging)
    sums = [_sum_error(terms.direct, direct)]
    pairs = [_pair_error(terms.direct, direct)]
    if exchange is not None:
        sums.append(_sum_error(terms.exchange, exchange))
        pairs.append(_pair_error(terms.exchange, exchange))
    extra = exchange is None and terms.exchange is not None
    # False for NaN
    accurate = all(error <= TOLERANCE for error in sums)
    accurate = accurate and all(error <= PAIR_TOLERANCE for error in pairs)
    return Finding(
        case,
        sums[0],
        sums[1] if exchanging else None,
        max(pairs),
        accurate and not extra,
    )


def _operand(
    backend: Backend, rng: np.random.Generator, nocc: int, nvir: int, naux: int
) -> tuple[Operand, NDArray[np.float64]]:
    """Random B, all of one sign so that exchange sums do not cancel, with molecule-like orbital
    energies."""
    b = rng.uniform(0.1, 1.0, (nocc, nvir, naux)) / np.sqrt(naux)
    b *= np.linspace(1.0, 0.2, nvir)[:, None]
    eps_occ = np.sort(rng.uniform(-20.0, -0.3, nocc))
    eps_vir = np.sort(rng.uniform(0.1, 30.0, nvir))
    precision = backend.limits.precisions[0]
    if "mixed" in backend.limits.precisions:
        precision = "mixed"
    return backend.put(b, eps_occ, eps_vir, precision), b


def _definition(
    left: tuple[Operand, NDArray[np.float64]],
    right: tuple[Operand, NDArray[np.float64]],
    tile: Tile,
    exchanging: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    rows, columns = tile.i1 - tile.i0, tile.j1 - tile.j0
    direct = np.zeros((rows, columns))
    exchange = np.zeros((rows, columns))
    eps_ab = left[0].eps_vir[:, None] + right[0].eps_vir[None, :]
    for i in range(tile.i0, tile.i1):
        for j in range(max(i, tile.j0) if tile.diagonal else tile.j0, tile.j1):
            t = left[1][i] @ right[1][j].T
            weighted = t / (left[0].eps_occ[i] + right[0].eps_occ[j] - eps_ab)
            direct[i - tile.i0, j - tile.j0] = np.sum(weighted * t)
            if exchanging:
                exchange[i - tile.i0, j - tile.j0] = np.sum(weighted * t.T)
    return direct, exchange if exchanging else None


def _sum_error(found: NDArray[np.float64] | None, expected: NDArray[np.float64]) -> float:
    if found is None or found.shape != expected.shape:
        return float("inf")
    return float(abs(found.sum() - expected.sum()) / abs(expected.sum()))


def _pair_error(found: NDArray[np.float64] | None, expected: NDArray[np.float64]) -> float:
    """Largest error of a pair; pairs that are not evaluated must be exactly zero."""
    if found is None or found.shape != expected.shape:
        return float("inf")
    empty = expected == 0.0
    if np.any(found[empty] != 0.0):
        return float("inf")
    return float(np.max(np.abs(found[~empty] / expected[~empty] - 1.0)))
