"""Division of the pair triangle into tiles, and the order in which tiles visit B on disk, in terms
of integers only.

Tile shapes depend on the sizes of the molecule and the limits of the device, never on the memory
budget, the number of threads or the distribution of work. This rule makes every run of the same
molecule on the same device add up the same numbers in the same order. The edge of a tile also
determines the minimum memory of a run with B on disk, so on the host it is bounded in bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from dfmp2.backends.base import Limits, Tile

Cut = tuple[int, int]


class Visit(NamedTuple):
    """A visit reads rows begin:end. Some of their tiles, `mine`, lie `inside` them; for the others,
    columns are streamed."""

    begin: int
    end: int
    mine: list[Tile]
    inside: list[Tile]
    passing: list[Cut]


def visits(
    tiles: list[Tile], held: int, left_row: int, right_row: int, *, same: bool
) -> list[Visit]:
    """The order in which B is read.

    Parameters
    ----------
    held : bytes of B that may be in memory
    left_row, right_row : bytes of an occupied orbital of either side
    same : whether both sides have the same spin
    """
    found = []
    for begin, end in _row_sets(rows_of(tiles), columns_of(tiles), held, left_row, right_row):
        mine = [tile for tile in tiles if begin <= tile.i0 and tile.i1 <= end]
        inside = [tile for tile in mine if same and begin <= tile.j0 and tile.j1 <= end]
        passing = sorted(
            {(tile.j0, tile.j1) for tile in mine} - {(tile.j0, tile.j1) for tile in inside}
        )
        found.append(Visit(begin, end, mine, inside, passing))
    return found


class Cuts(NamedTuple):
    """Ranges of i and of j whose products are the tiles of a channel; only those with i <= j if
    both sides have the `same` spin."""

    rows: list[Cut]
    columns: list[Cut]
    same: bool

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        if self.same:
            return len(self.rows) * (len(self.rows) + 1) // 2
        return len(self.rows) * len(self.columns)

    def orbitals_read(self, held: int, left_row: int, right_row: int) -> tuple[int, int]:
        """Numbers of orbitals on either side that are read; parameters as in `visits`."""
        columns = sum(end - begin for begin, end in self.columns)
        left = right = 0
        for begin, end in _row_sets(self.rows, self.columns, held, left_row, right_row):
            left += end - begin
            if self.same:
                right += columns - end
            else:
                right += columns
        return left, right


def triangle_cuts(nocc: int, limits: Limits, row: int) -> Cuts:
    """Cuts of the tiles of `triangle`."""
    cuts = _cuts(nocc, edge(nocc, limits, row))
    return Cuts(cuts, cuts, same=True)


def rectangle_cuts(nocc_left: int, nocc_right: int, limits: Limits, row: int) -> Cuts:
    """Cuts of the tiles of `rectangle`."""
    rows = _cuts(nocc_left, edge(nocc_left, limits, row))
    columns = _cuts(nocc_right, edge(nocc_right, limits, row))
    return Cuts(rows, columns, same=False)


def _row_sets(
    rows: list[Cut], columns: list[Cut], held: int, left_row: int, right_row: int
) -> list[Cut]:
    """Sets of neighbouring rows that fit into memory beside two columns; at least one row each."""
    widest = max((end - begin for begin, end in columns), default=0)
    most = (held - 2 * widest * right_row) // max(1, left_row)
    sets: list[Cut] = []
    for begin, end in rows:
        if sets and end - sets[-1][0] <= most:
            sets[-1] = (sets[-1][0], end)
        else:
            sets.append((begin, end))
    return sets


def widest(tiles: list[Tile]) -> int:
    """Number of orbitals along the longest j edge."""
    return max((cut[1] - cut[0] for cut in columns_of(tiles)), default=0)


def rows_of(tiles: list[Tile]) -> list[Cut]:
    """Ranges of i, in order."""
    return sorted({(tile.i0, tile.i1) for tile in tiles})


def columns_of(tiles: list[Tile]) -> list[Cut]:
    """Ranges of j, in order."""
    return sorted({(tile.j0, tile.j1) for tile in tiles})


WANTED_TILES_PER_SIDE = 8  # enough tiles to keep several workers busy on a small molecule


EDGE_ELEMENTS = 1 << 21  # elements of B along the edge of a tile on the host: 16 MB in float64


def edge(nocc: int, limits: Limits, row: int = 0) -> int:
    """Number of occupied orbitals along the edge of a tile, at least 1.

    Parameters
    ----------
    row : elements of B per occupied orbital, nvir naux; 0 for no limit in bytes
    """
    if limits.edge_elements:
        most = limits.tile_edge
        if row:
            most = max(1, min(most, limits.edge_elements // row))
        parts = -(-nocc // most)
        return max(1, -(-nocc // max(1, parts)))  # equal tiles
    most = min(limits.tile_edge, -(-nocc // WANTED_TILES_PER_SIDE))
    if row and limits.memory is None:
        most = min(most, EDGE_ELEMENTS // row)
    return max(limits.least_edge, most)


def triangle(nocc: int, limits: Limits, row: int = 0) -> list[Tile]:
    """Tiles that cover all pairs i <= j of one spin space, large ones first."""
    cuts = triangle_cuts(nocc, limits, row).rows
    tiles = [
        Tile(*rows, *columns, diagonal=rows == columns)
        for rows in cuts
        for columns in cuts
        if rows <= columns
    ]
    return sorted(tiles, key=pairs_in, reverse=True)


def rectangle(nocc_left: int, nocc_right: int, limits: Limits, row: int = 0) -> list[Tile]:
    """Tiles that cover all pairs (i, j) of two spin spaces, large ones first; `row` is that of the
    larger space."""
    rows, columns, _ = rectangle_cuts(nocc_left, nocc_right, limits, row)
    tiles = [Tile(*row, *column, diagonal=False) for row in rows for column in columns]
    return sorted(tiles, key=pairs_in, reverse=True)


def strip(limits: Limits, nvir: int, nvir_right: int, rows: int) -> tuple[int, int]:
    """Numbers of occupied orbitals i and (at most) j of one product in a tile with `rows` rows.

    Parameters
    ----------
    nvir, nvir_right : numbers of virtual orbitals for i and for j
    """
    pair = nvir * nvir_right
    height = max(1, -(-limits.product_edge // nvir))
    height = max(1, min(height, rows, limits.tile_elements // pair))
    return height, max(1, limits.tile_elements // (height * pair))


def pairs_in(tile: Tile) -> int:
    """Number of pairs evaluated by a tile."""
    rows, columns = tile.i1 - tile.i0, tile.j1 - tile.j0
    if tile.diagonal:
        return rows * (rows + 1) // 2
    return rows * columns


def _cuts(nocc: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, nocc)) for start in range(0, nocc, size)]
