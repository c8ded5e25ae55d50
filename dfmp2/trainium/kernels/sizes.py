"""Sizes of tiles, positions of packed columns, order of pairs: shared by the kernels and the host
code that packs their input.

Plain Python on integers, which does not need nki; like every kernel file it keeps to what NKI
accepts.
"""

from __future__ import annotations

P = 128  # partitions, and most columns of a stationary operand
BANK = 512  # float32 numbers in a PSUM bank, and most columns of a moving operand
# float32 numbers per partition of a part of B_j, written by DMA, two at a time
PART = 6144
STAGE = 1536  # of a staging tile, through which all other resident data arrive
AHEAD = 2  # staging tiles at a time
DEPTH = 4096  # most contracted rows of a product, and the largest order of a triangular solve
RUN = 128  # elements of a float32 row sum of K3: runs of 256 lose twice as much
SOLVED = 8192  # float32 numbers per partition of a part of the solution of a triangular solve


def equal_parts(total: int, most: int) -> int:
    """Size of equal parts of at most `most`."""
    count = (total + most - 1) // most
    return (total + count - 1) // count


def run_start(nvir: int, row: int) -> int:
    """First packed column of the blocks right of (row, row)."""
    start = nvir
    for above in range(row):
        start += nvir - P * (above + 1)
    return start


def upper_columns(nvir: int) -> int:
    """U: number of columns of the upper triangle of blocks."""
    tiles = (nvir + P - 1) // P
    return run_start(nvir, max(0, tiles - 1))


def lower_start(row: int) -> int:
    """First packed column of the blocks left of (row, row)."""
    return P * row * (row - 1) // 2


def sum_columns(total: int) -> int:
    """Number of partial-sum columns for `total` packed columns: two for J and one for K / 2 per run
    of elements."""
    count = 0
    for low in range(0, total, BANK):
        count += 3 * sum_places(min(total, low + BANK) - low)
    return count


def item_columns(members: int, nvir: int) -> int:
    """Number of partial-sum columns for one pair, or for a group of pairs that share a row tile:
    those of the blocks below the last row tile of each pair, three for the blocks beside it, three
    for the whole last block."""
    if members == 1:
        return sum_columns(upper_columns(nvir))
    return members * (sum_columns(upper_columns(nvir // P * P)) + 3) + 3


def parts_of(nvir: int, slices: int) -> int:
    """Number of parts in which B_j comes, of at most 512 columns and 24 kB per partition, so that
    two take 48 kB."""
    parts = max(1, (nvir + BANK - 1) // BANK)
    columns = (nvir + parts - 1) // parts
    if parts == 1:
        columns = (nvir + P - 1) // P * P
    while slices * columns > PART and columns > 32:
        parts += 1
        columns = (nvir + parts - 1) // parts
    return parts


def depth_of(columns: int) -> int:
    """Number of slices in a staging tile of `columns` columns."""
    return max(1, STAGE // columns)


def pieces_of(slices: int, together: int) -> int:
    """Number of pieces in which `together` row tiles of B_i come."""
    depth = depth_of(together * P)
    return (slices + depth - 1) // depth


def traversal(
    rows: int, columns: int, residents: int, parts: int, diagonal: bool
) -> list[tuple[int, int, int]]:
    """(first resident i, j, part of B_j) in order of loading, with j alternately forwards and
    backwards.

    rows, columns : numbers of occupied orbitals i and j of the block
    """
    steps = []
    backwards = False
    for first in range(0, rows, residents):
        low = first if diagonal else 0
        count = (columns - low) * parts
        for step in range(count):
            place = count - 1 - step if backwards else step
            steps.append((first, low + place // parts, place % parts))
        backwards = not backwards
    return steps


def pairs_of(first: int, j: int, rows: int, residents: int, diagonal: bool) -> int:
    """Number of residents that pair with j; the last group of residents may be short."""
    present = min(residents, rows - first)
    if diagonal:
        present = min(present, j - first + 1)
    return present


def sum_places(size: int) -> int:
    """Number of partial-sum columns for a row of `size` elements."""
    return (size + RUN - 1) // RUN


def grouped(
    steps: list[tuple[int, int, int]],
    rows: int,
    residents: int,
    group: int,
    parts: int,
    diagonal: bool,
) -> list[tuple[int, int, int]]:
    """(first step, first member, members) in order of emission: full groups, or single pairs if
    some do not exist; a pair takes as many steps as there are parts of B_j."""
    items = []
    for step in range(0, len(steps), parts):
        present = pairs_of(steps[step][0], steps[step][1], rows, residents, diagonal)
        for start in range(0, residents, group):
            if start + group <= present:
                items.append((step, start, group))
            else:
                for member in range(start, present):
                    items.append((step, member, 1))
    return items


def begins(
    steps: list[tuple[int, int, int]], items: list[tuple[int, int, int]], number: int
) -> bool:
    """Whether this item begins with new residents; false after the last."""
    if number == 0 or number == len(items):
        return True
    return steps[items[number][0]][0] != steps[items[number - 1][0]][0]


def emitted(
    steps: list[tuple[int, int, int]], items: list[tuple[int, int, int]], nvir: int
) -> list[tuple[int, int, int, int]]:
    """Numbers of pairs, groups and partial-sum columns before each item, and columns before its
    residents; the last entry counts all."""
    before = []
    pairs = 0
    groups = 0
    width = 0
    base = 0
    for number in range(len(items)):
        if begins(steps, items, number):
            base = width
        before.append((pairs, groups, width, base))
        pairs += items[number][2]
        if items[number][2] > 1:
            groups += 1
        width += item_columns(items[number][2], nvir)
    before.append((pairs, groups, width, width))
    return before


def shares_of(members: int, nvir: int) -> int:
    """Number of shares of the elementwise work: for a pair, one per 512 packed columns; for a
    group, those of the blocks below the last row tile of each pair, all blocks beside it, and the
    last blocks."""
    if members == 1:
        return (upper_columns(nvir) + BANK - 1) // BANK
    return members * ((upper_columns(nvir // P * P) + BANK - 1) // BANK) + 2


# Consecutive regions of SBUF if K3 places its tiles itself, in the order of `sbuf_map`.
TABLE = 0
NEG = 1
IDENTITY = 2
LAST_BLOCKS = 3
STAGED = 4
RIGHT = 5
LEFT = 6
UPPER = 7
LOWER = 8
SUMS = 9
SCRATCH = 10


def sbuf_map(nvir: int, slices: int, residents: int, pairs: int, across: int) -> list[int]:
    """First bytes of the table of e_a + e_b, neg, identity, last diagonal blocks, staging tiles,
    B_j, B_i, upper and lower blocks, partial sums and temporaries of a chunk, and finally the end
    of all.

    pairs : number in the block; across : number of occupied orbitals j
    """
    tiles = (nvir + P - 1) // P
    parts = parts_of(nvir, slices)
    width = tiles * P
    if parts > 1:
        width = (nvir + parts - 1) // parts
    together = min(2, tiles)
    held = residents * ((tiles + together - 1) // together) * together
    sizes = [upper_columns(nvir), 2 * pairs, P, 2 * P, AHEAD * STAGE]
    sizes.append(2 * slices * width)
    sizes.append(held * slices * P)
    sizes.append(2 * upper_columns(nvir))
    sizes.append(2 * lower_start(tiles))
    sums = sum_columns(upper_columns(nvir)) * min(pairs, residents * across)
    sizes.append(2 * sums)
    sizes.append(2 * (3 * BANK + RUN))
    places = [0]
    for number in range(len(sizes)):
        places.append(places[number] + 4 * sizes[number])
    return places


def slot(places: list[int], item: int, turn: int, count: int) -> int:
    """First byte of one of the `count` places of an item, which alternate; -1 if the compiler
    places tiles."""
    if len(places) == 0:
        return -1
    return places[item] + (places[item + 1] - places[item]) // count * (turn % count)
