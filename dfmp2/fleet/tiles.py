"""The pair tiles of a molecule and how long each takes: from rates, or measured on this host.

Shapes of tiles depend on sizes alone, so few kinds cover a molecule: whole squares, the halves on the diagonal, and
what is left at the edges. Each kind is measured several times with arrays of these sizes, as many tiles at once as
cores are used; B is that of a few occupied orbitals only, since a tile never sees more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from typing import NamedTuple

import numpy as np

from dfmp2 import threads
from dfmp2.backends.base import Backend, Limits, Operand, Tile
from dfmp2.forecast import Rates
from dfmp2.mp2 import tiling
from dfmp2.workload import Workload

LEAST_SAMPLES, LEAST_SECONDS = 8, 1.0  # of each kind, until both are reached
MOST_SAMPLES = 64
RESIDENT_TILES = 4  # tiles along each side of the arrays: more than a cache holds for molecules worth simulating


class Kind(NamedTuple):
    """Tiles that are alike: spins of both sides, occupied orbitals along them, whether only i <= j."""

    left: int
    right: int
    rows: int
    columns: int
    diagonal: bool

    @property
    def pairs(self) -> int:
        """Pairs of occupied orbitals."""
        return self.rows * (self.rows + 1) // 2 if self.diagonal else self.rows * self.columns

    def name(self) -> str:
        """For files, such as "00 3x3" or "01 2x3", a half as "00 3x3 half"."""
        return f"{self.left}{self.right} {self.rows}x{self.columns}{' half' * self.diagonal}"


@dataclass(frozen=True, slots=True)
class TileTimes:
    """Measured seconds of the kinds of tiles of a molecule.

    Attributes
    ----------
    sizes : (nocc, nvir, naux) per spin
    precision : "fp64" or "mixed"
    backend, at_once, host, date : with what, how many tiles at the same time, where and when they were measured
    seconds : name of a kind -> measured times
    """

    sizes: tuple[tuple[int, int, int], ...]
    precision: str
    backend: str
    at_once: int
    host: str
    date: str
    seconds: Mapping[str, tuple[float, ...]]


def sizes_of(work: Workload) -> tuple[tuple[int, int, int], ...]:
    """(nocc, nvir, naux) per spin."""
    return tuple((spin.nocc, spin.nvir, work.naux) for spin in work.spins)


def channels(work: Workload, limits: Limits) -> dict[tuple[int, int], list[Tile]]:
    """All tiles of a molecule by the spins of their sides, in the order in which they are handed out."""
    rows = [spin.nvir * work.naux for spin in work.spins]
    found = {(s, s): tiling.triangle(spin.nocc, limits, rows[s]) for s, spin in enumerate(work.spins)}
    if len(work.spins) == 2:
        alpha, beta = work.spins
        found[0, 1] = tiling.rectangle(alpha.nocc, beta.nocc, limits, max(rows))
    return found


def queue(work: Workload, limits: Limits) -> list[Kind]:
    """What kind each tile is, in the same order."""
    return [_kind(*spins, tile) for spins, tiles in channels(work, limits).items() for tile in tiles]


def from_rates(work: Workload, kinds: Sequence[Kind], rates: Rates) -> list[float]:
    """Seconds of tiles at the rate of one core, without any spread.

    Parameters
    ----------
    rates : of one core
    """
    rate = rates.pairs_fp64 if work.precision == "fp64" else rates.pairs_mixed
    return [2.0 * k.pairs * work.naux * work.spins[k.left].nvir * work.spins[k.right].nvir / rate for k in kinds]


def drawn(kinds: Sequence[Kind], measured: TileTimes, seed: int | None) -> list[float]:
    """Seconds of tiles from what was measured of their kind.

    Parameters
    ----------
    seed : of the draw; None takes the measurements one after the other, in their order
    """
    if seed is None:
        played = {name: cycle(values) for name, values in measured.seconds.items()}
        return [next(played[kind.name()]) for kind in kinds]
    chance = random.Random(seed)
    return [chance.choice(measured.seconds[kind.name()]) for kind in kinds]


def measure(work: Workload, backend: Backend, at_once: int, host: str) -> TileTimes:
    """Measure every kind of tile of a molecule, one second each or a little more.

    Parameters
    ----------
    backend : of one worker each
    at_once : tiles computed at the same time
    """
    precision = "fp64" if work.precision == "fp64" else "mixed"
    kinds = sorted(set(queue(work, backend.limits)), reverse=True)
    seconds = {}
    with threads.limited(at_once):
        operands = _operands(work, kinds, backend, precision)
        for kind in kinds:
            seconds[kind.name()] = _timed(kind, operands, backend, at_once)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return TileTimes(sizes_of(work), precision, backend.name, at_once, host, date, seconds)


def _operands(work: Workload, kinds: Sequence[Kind], backend: Backend, precision: str) -> list[Operand]:
    rng = np.random.default_rng(0)
    found = []
    for s, spin in enumerate(work.spins):
        edge = max([k.rows for k in kinds if k.left == s] + [k.columns for k in kinds if k.right == s])
        nocc = min(spin.nocc, RESIDENT_TILES * edge)
        b = rng.standard_normal((nocc, spin.nvir, work.naux)) / work.naux
        eps = -np.linspace(1.0, 2.0, nocc), np.linspace(0.5, 5.0, spin.nvir)
        found.append(backend.put(b, *eps, precision))
    return found


def _timed(kind: Kind, operands: Sequence[Operand], backend: Backend, at_once: int) -> tuple[float, ...]:
    """Seconds of tiles of a kind, at different places of the arrays."""
    left, right = operands[kind.left], operands[kind.right]
    places = random.Random(0)

    def one(_: int) -> float:
        i0 = places.randrange(left.eps_occ.size - kind.rows + 1)
        j0 = i0 if kind.diagonal else places.randrange(right.eps_occ.size - kind.columns + 1)
        tile = Tile(i0, i0 + kind.rows, j0, j0 + kind.columns, kind.diagonal)
        start = time.perf_counter()
        backend.pair_terms(left, right, tile)
        return time.perf_counter() - start

    found: list[float] = []
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(at_once)))  # not counted: the first calls touch new memory
        start = time.perf_counter()
        while len(found) < MOST_SAMPLES * at_once and (
            len(found) < LEAST_SAMPLES * at_once or time.perf_counter() - start < LEAST_SECONDS
        ):
            found += pool.map(one, range(4 * at_once))
    return tuple(found)


def _kind(left: int, right: int, tile: Tile) -> Kind:
    return Kind(left, right, tile.i1 - tile.i0, tile.j1 - tile.j0, tile.diagonal)
