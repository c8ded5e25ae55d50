"""How the pair triangle is cut: integers only.

Tile shapes depend on the sizes of the molecule and the limits of the device, never on the memory
budget, the number of threads or how the work is shared out. That one rule makes every run of the
same molecule on the same device add up the same numbers in the same order. The edge of a tile is also
what a run with B on disk has to hold at least, so on the host it is bounded in bytes.
"""

from __future__ import annotations

from dfmp2.backends.base import Limits, Tile

WANTED_TILES_PER_SIDE = 8  # enough tiles to keep several workers busy on a small molecule


EDGE_ELEMENTS = 1 << 21  # of B along the edge of a tile on the host: 16 MB in float64


def edge(nocc: int, limits: Limits, row: int = 0) -> int:
    """Occupied orbitals along the edge of a tile, at least 1.

    Parameters
    ----------
    row : elements of B per occupied orbital, nvir naux; 0 for no bound in bytes
    """
    most = min(limits.tile_edge, -(-nocc // WANTED_TILES_PER_SIDE))
    if row and limits.memory is None:
        most = min(most, EDGE_ELEMENTS // row)
    return max(limits.least_edge, most)


def triangle(nocc: int, limits: Limits, row: int = 0) -> list[Tile]:
    """Tiles that cover all pairs i <= j of one spin space, the large ones first."""
    cuts = _cuts(nocc, edge(nocc, limits, row))
    tiles = [Tile(*rows, *columns, diagonal=rows == columns) for rows in cuts for columns in cuts if rows <= columns]
    return sorted(tiles, key=_area, reverse=True)


def rectangle(nocc_left: int, nocc_right: int, limits: Limits, row: int = 0) -> list[Tile]:
    """Tiles that cover all pairs (i, j) of two spin spaces, the large ones first; `row` of the larger."""
    rows, columns = _cuts(nocc_left, edge(nocc_left, limits, row)), _cuts(nocc_right, edge(nocc_right, limits, row))
    tiles = [Tile(*row, *column, diagonal=False) for row in rows for column in columns]
    return sorted(tiles, key=_area, reverse=True)


def pairs_in(tile: Tile) -> int:
    """Number of pairs a tile evaluates."""
    rows, columns = tile.i1 - tile.i0, tile.j1 - tile.j0
    return rows * (rows + 1) // 2 if tile.diagonal else rows * columns


def _cuts(nocc: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, nocc)) for start in range(0, nocc, size)]


def _area(tile: Tile) -> int:
    return pairs_in(tile)
