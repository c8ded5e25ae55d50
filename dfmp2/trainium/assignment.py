"""Which NeuronCore takes which block of pairs, so that each needs few blocks of B and all have the same work.

Blocks of pairs are put in Z-order, the order in which the bits of row and column alternate, and cut into runs of equal
work, one per core. A run is compact in both indices: of n blocks of B a core of p needs about n sqrt(2/p), not n.
"""

from __future__ import annotations

from collections.abc import Sequence

from dfmp2.backends.base import Tile
from dfmp2.trainium.layout import EDGE

OFF_DIAGONAL = EDGE * EDGE  # pairs that a call evaluates
DIAGONAL = EDGE * (EDGE + 1) // 2


Block = tuple[int, int]  # of B: which spin, and its number


def owners(tiles: Sequence[Tile], cores: int) -> list[int]:
    """The core, from 0, that takes each tile; depends on the tiles and the number of cores only."""
    size = 1 + max((max(*rows_of(tile), *columns_of(tile)) for tile in tiles), default=0)
    scale = 1 << (size - 1).bit_length()  # halves of the triangle are halves of the order, whatever its size

    def place(number: int) -> int:
        tile = tiles[number]
        return _interleaved(tile.i0 // EDGE * scale // size, tile.j0 // EDGE * scale // size)

    work = [work_of(tile) for tile in tiles]
    found, done, total = [0] * len(tiles), 0, sum(work)
    for number in sorted(range(len(tiles)), key=place):
        found[number] = (2 * done + work[number]) * cores // (2 * total)
        done += work[number]
    return found


def work_of(tile: Tile) -> int:
    """Pairs that the calls of a tile evaluate, padding included."""
    return DIAGONAL if tile.diagonal else OFF_DIAGONAL * len(rows_of(tile)) * len(columns_of(tile))


def largest_share(nocc: Sequence[int], cores: int) -> float:
    """Of all work, that of the busiest core; one spin after the other, then the pairs between them."""
    busiest = total = 0
    for tiles in pair_channels(nocc).values():
        loads = [0] * cores
        for tile, core in zip(tiles, owners(tiles, cores), strict=True):
            loads[core] += work_of(tile)
        busiest, total = busiest + max(loads), total + sum(loads)
    return busiest / total if total else 1.0


def rows_of(tile: Tile) -> range:
    """Blocks of B that the rows of a tile need."""
    return range(tile.i0 // EDGE, -(-tile.i1 // EDGE))


def columns_of(tile: Tile) -> range:
    """Blocks of B that the columns of a tile need."""
    return range(tile.j0 // EDGE, -(-tile.j1 // EDGE))


def blocks_by_core(channels: dict[tuple[int, int], list[Tile]], cores: int) -> list[set[Block]]:
    """Blocks that each core needs for all tiles of these channels (left spin, right spin)."""
    needed: list[set[Block]] = [set() for _ in range(cores)]
    for (left, right), tiles in channels.items():
        for tile, core in zip(tiles, owners(tiles, cores), strict=True):
            needed[core] |= {(left, block) for block in rows_of(tile)} | {(right, block) for block in columns_of(tile)}
    return needed


def pair_channels(nocc: Sequence[int]) -> dict[tuple[int, int], list[Tile]]:
    """Blocks of pairs of one or two spins with these numbers of occupied orbitals, by channel."""

    def cuts(count: int) -> list[tuple[int, int]]:
        return [(first, min(first + EDGE, count)) for first in range(0, count, EDGE)]

    found = {
        (s, s): [Tile(*i, *j, i == j) for i in cuts(count) for j in cuts(count) if i <= j]
        for s, count in enumerate(nocc)
    }
    if len(nocc) == 2:
        found[0, 1] = [Tile(*i, *j, False) for i in cuts(nocc[0]) for j in cuts(nocc[1])]
    return found


def _interleaved(row: int, column: int) -> int:
    """Bits of both numbers in turn."""
    bits = range(max(row, column).bit_length())
    return sum(((row >> bit & 1) << 2 * bit + 1) + ((column >> bit & 1) << 2 * bit) for bit in bits)
