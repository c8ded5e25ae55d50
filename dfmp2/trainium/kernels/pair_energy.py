"""K3: direct and exchange terms of a block of occupied pairs; contraction, elementwise and row sums
in one program.

    T_ab = sum_P B_iaP B_jbP        D_ab = e_a + e_b - e_i - e_j > 0        H = D^(-1/2)
    J = sum_ab (T_ab H_ab)^2        K = sum_ab (T_ab H_ab) (T_ba H_ab)      (direct = -J, exchange = -K)

T never leaves the chip. H is symmetric, so the sums are folded onto the upper triangle of 128 x 128
blocks: with X = T_AB and Y = (T_BA)^t, J = sum (X H)^2 + (Y H)^2 and K = 2 sum (X H) (Y H) over A <
B; diagonal blocks (A, A) enter with 2 D in place of D. Only half of T is transposed, on the Tensor
Engine against an identity.

If n = 128 L + h with h = 64 or 32, g = 128/h pairs (rows i_m, one j) may share one row tile for
their last h rows, so that no columns of the Tensor Engine are idle (`group` = g, else 1):

    XP[m*h + r, b] = T^m[128 L + r, b]      stationary (B_i0 | B_i1 | ..)[:, 128 L : n], moving B_j

Blocks (A, B), A <= B < L, are computed pair by pair; columns (A, L) and the block (L, L) are
computed for g pairs at once. Pairs without partners, in a diagonal or short block, are single
pairs.

Dimensions: n = nvir padded to 32, NT = ceil(n/128) row tiles, aux in NK = naux/128 slices (padded
to 128), U(n) packed columns of the upper triangle of blocks.
  b_i, b_j  (ni*128, S, 128 NT), (nj*128, S, 128 NT)  row i*128+p, slice k, column a = B[i, a, k*128+p]; zero in all
            padding; S is NK, or one more where a row would be a power of two of bytes, which halves
            the rate of transfers (trn1)
  tables    (128, W)           side by side, if there are single pairs: e_a + e_b of all diagonal blocks (doubled), then
                               right of the diagonal, row by row [U(n)]; if g > 1: the same of the blocks
                               below L [U(128 L)], (A, L) for A < L [L h], 2 (e_a + e_b) of the last block g times down
                               the partitions [h]; the identity [128]; if g > 1, g identities of h rows [h]
  neg       (128, 2 npair + ngroup)   -(e_i + e_j), then twice that, pairs in the order in which they are emitted; then
                               -2 (e_i + e_j) of the pairs of each group, h rows each
  returns   (128, columns)     per single pair and chunk of 512 packed columns: J parts, then K parts / 2; per group: the
                               same of the blocks below L, per pair; J in two parts and K/2 of (A, L), per pair; of (L, L),
                               where rows m*h .. belong to pair m
Limits: residents = 1 if B_j comes in parts, of at most 512 columns and 24 kB; groups need B_j in
one part, L >= 1, and a number of residents that is a multiple of g. `layout` offers nothing else.
Sums: an engine adds up a row sequentially in float32, and the host adds the results in float64.
Rows of 1,024 rapidly decreasing elements lose 6e-7 of the energy, those of 256 up to 3e-7, those of
128 (RUN) 4e-8; squares are summed as the Scalar Engine computes them.
Budget per pair, medium (n 448, NK 12): 59 Tensor, 9 Vector, 35 Scalar Engine statements, 32 us of
Tensor Engine, more than of any other engine (trn1); in groups (g = 2) 51.5, 13.5, 35 and 28 us.
Order: i residents; j is streamed one ahead, alternately forwards and backwards, so that the last
B_j of a row of blocks is the first of the next. The elementwise work of a pair or group is emitted
between the products of the next, even across rows. B_i is copied out of staging tiles piece by
piece between the products, because tiles written by DMA may take only 64 kB (trn1). If B_j comes in
parts, a tile of B_i holds two row tiles; the next B_i replaces them one by one during the last
products.
Placement: by the compiler, or with `placed` by the kernel, for single pairs. Then every tile in
SBUF has an address (`sbuf_map`) and every tile in PSUM one of seven banks; the two places of a kind
alternate, and the next B_i replaces the last one as above.

    for each `residents` rows i:  B_i -> staging -> SBUF
        for j:  B_j -> SBUF (loaded during the previous j)
            for i, or g of them:
                for m: for each row tile A (A < L):  X = B_im[A]^t B_j;  copy X: upper blocks -> xu, lower -> tl,
                                                     columns (A, L) of a group -> xs[m, A]
                of a group:  XP;  columns [0, 128 L) -> tlp;  rest -> xlp, and block m of bd
                    between them, for the pair or group before, per 512 columns:
                        Y = transposes;  H = (e_a + e_b + neg)^(-1/2)
                        out = row sums of (X H)^2, of (Y H)^2, then of (X H) (Y H)
                    and of a group:  Y[m, A] = tlp[:, A]^t identity[:, m h : m h + h]; sums of (A, L) per pair
                                     Y = bd^t (stacked identities); sums of (L, L), all pairs in one column
Twin: pair_energy_twin in tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import (
    BANK,
    IDENTITY,
    LAST_BLOCKS,
    LOWER,
    NEG,
    RIGHT,
    RUN,
    SCRATCH,
    SUMS,
    TABLE,
    UPPER,
    P,
    begins,
    emitted,
    grouped,
    item_columns,
    lower_start,
    parts_of,
    run_start,
    sbuf_map,
    shares_of,
    slot,
    sum_columns,
    sum_places,
    traversal,
    upper_columns,
)
from dfmp2.trainium.kernels.tiles import (
    NEWTON,
    advance,
    contract,
    copy_columns,
    fetch,
    inverse_root,
    load,
    load_part,
    psum,
    row_sum,
    sbuf,
    sbuf3,
    transpose_piece,
    transposed,
)


def store_row_tile(
    x: nl.ndarray, lo: int, hi: int, row: int, nvir: int, made: list[nl.ndarray]
) -> None:
    """Copy columns [lo, hi) of row tile `row` of T from PSUM to the tiles of its pair.

    made : upper blocks, lower blocks, a short last diagonal block
    """
    xu = made[0]
    left = P * row
    height = min(P, nvir - left)
    copy_columns(xu, left, x, lo, hi, left, left + height)
    start = max(left, lo)
    stop = min(left + height, hi)
    if height < P and start < stop:
        nisa.activation(
            dst=made[2][0:height, start - left : stop - left],
            op=nl.copy,
            data=x[0:height, start - lo : stop - lo],
        )
    copy_columns(xu, run_start(nvir, row), x, lo, hi, left + P, nvir)
    copy_columns(made[1], lower_start(row), x, lo, hi, 0, left)


def transposes(
    y: nl.ndarray,
    lo: int,
    nvir: int,
    made: list[nl.ndarray],
    identity: nl.ndarray,
    transpose: bool,
) -> None:
    """y = packed columns of the transposed lower triangle of T, starting at column lo."""
    xu = made[0]
    tl = made[1]
    ld = made[2]
    tiles = (nvir + P - 1) // P
    for row in range(tiles):
        height = min(P, nvir - P * row)
        if height < P:
            transpose_piece(y, lo, P * row, height, ld, 0, identity, transpose)
        else:
            transpose_piece(y, lo, P * row, height, xu, P * row, identity, transpose)
    for row in range(tiles):
        for column in range(row + 1, tiles):
            start = run_start(nvir, row) + P * (column - row - 1)
            height = min(P, nvir - P * column)
            transpose_piece(
                y, lo, start, height, tl, lower_start(column) + P * row, identity, transpose
            )


def emit_chunk(
    made: list[nl.ndarray],
    tables: list[nl.ndarray],
    columns: list[int],
    sums: nl.ndarray,
    nvir: int,
    chunk: int,
    transpose: bool,
    places: list[int],
) -> None:
    """J and K parts of 512 packed columns of one pair into its columns of sums.

    made : as in `store_row_tile`; tables : of e_a + e_b, neg, identity
    columns : of the pair in the first, its number in the second, that of twice the same, of its
        sums; places : as in `sbuf_map`, or none
    """
    xu = made[0]
    lo = BANK * chunk
    hi = min(upper_columns(nvir), lo + BANK)
    size = hi - lo
    doubled = max(0, min(hi, nvir) - lo)
    eu = columns[0] + lo
    single = columns[1]
    double = columns[2]
    at = columns[3] + chunk * sum_columns(BANK)
    turn = single * ((upper_columns(nvir) + BANK - 1) // BANK) + chunk
    room = slot(places, SCRATCH, turn, 2)
    bank = -1
    if room >= 0:
        bank = 3 + turn % 2
    y = psum(size, P, bank)
    transposes(y, lo, nvir, made, tables[2], transpose)
    h = sbuf(size, P, room)
    if doubled > 0:
        inverse_root(
            h[:, 0:doubled], tables[0][:, eu : eu + doubled], tables[1][:, double : double + 1]
        )
    if doubled < size:
        inverse_root(
            h[:, doubled:size],
            tables[0][:, eu + doubled : eu + size],
            tables[1][:, single : single + 1],
        )
    xh, yh, kp = weighted(xu[:, lo:hi], y, h, size, room, bank)
    dump = beside(room, 3)
    count = sum_places(size)
    row_sums(sums, at, xh, size, True, dump)
    row_sums(sums, at + count, yh, size, True, dump)
    row_sums(sums, at + 2 * count, kp, size, False, dump)


def beside(room: int, number: int) -> int:
    """First byte of temporary tile `number`, with the temporaries starting at `room`."""
    if room < 0:
        return room
    return room + 4 * BANK * number


def weighted(
    x: nl.ndarray, y: nl.ndarray, h: nl.ndarray, size: int, room: int, bank: int
) -> tuple[nl.ndarray, nl.ndarray, nl.ndarray]:
    """X h in SBUF, Y h in PSUM, and their product; x in SBUF, y in PSUM.

    room, bank : first byte of the temporaries, and the bank of y; -1 : the compiler places tiles
    """
    xh = sbuf(size, P, beside(room, 1))
    nisa.tensor_tensor(dst=xh, data1=x, data2=h, op=nl.multiply)
    if bank >= 0:
        bank += 2
    yh = psum(size, P, bank)
    nisa.tensor_tensor(dst=yh, data1=y, data2=h, op=nl.multiply)
    kp = sbuf(size, P, beside(room, 2))
    nisa.tensor_tensor(dst=kp, data1=xh, data2=yh, op=nl.multiply)
    return xh, yh, kp


def row_sums(
    sums: nl.ndarray, at: int, data: nl.ndarray, size: int, squared: bool, dump: int
) -> None:
    """Row sums of `size` elements or of their squares, at most RUN at a time, into columns at, at +
    1, .. of sums; dump : first byte of the instruction's other output."""
    for low in range(0, size, RUN):
        high = min(size, low + RUN)
        column = at + low // RUN
        wasted = sbuf(high - low, P, dump)
        row_sum(sums[:, column : column + 1], wasted, data[:, low:high], squared)


def emit_shared(
    shared: list[nl.ndarray],
    tables: list[nl.ndarray],
    columns: list[int],
    sums: nl.ndarray,
    height: int,
    full: int,
) -> None:
    """J and K parts of the blocks (A, L) for the pairs of a group, in three columns of sums per
    pair.

    shared : columns (A, L) of all pairs, one pair after another; columns [0, 128 L) of the packed
        rows, and the remaining ones
    columns : of (A, L) in the table of e_a + e_b, of the first pair in neg, of the sums
    """
    span = full * height
    h = sbuf(full * P)
    y = psum(full * P)
    for m in range(P // height):
        single = columns[1] + m
        inverse_root(
            h[:, m * span : (m + 1) * span],
            tables[0][:, columns[0] : columns[0] + span],
            tables[1][:, single : single + 1],
        )
        for row in range(full):
            at_row = m * span + row * height
            own = tables[2][:, m * height : (m + 1) * height]
            lower = shared[1][:, row * P : (row + 1) * P]
            transposed(y[:, at_row : at_row + height], lower, own, False)
    xh, yh, kp = weighted(shared[0], y, h, full * P, -1, -1)
    for m in range(P // height):
        three_sums(sums, columns[2] + 3 * m, [xh, yh, kp], m * span, span)


def emit_last(
    xlp: nl.ndarray,
    bd: nl.ndarray,
    tables: list[nl.ndarray],
    columns: list[int],
    sums: nl.ndarray,
    height: int,
) -> None:
    """J and K parts of the blocks (L, L) of a group, rows m*height.. for pair m, into three columns
    of sums; columns : of (L, L) in the table of e_a + e_b, of the group in neg, of the sums."""
    h = sbuf(height)
    double = columns[1]
    inverse_root(
        h, tables[0][:, columns[0] : columns[0] + height], tables[1][:, double : double + 1]
    )
    y = psum(height)
    transposed(y, bd, tables[2][:, P : P + height], False)
    xh, yh, kp = weighted(xlp, y, h, height, -1, -1)
    three_sums(sums, columns[2], [xh, yh, kp], 0, height)


def three_sums(sums: nl.ndarray, at: int, made: list[nl.ndarray], low: int, size: int) -> None:
    """Row sums of `size` columns of X H squared, of Y H squared and of their product into columns
    at, at + 1, at + 2 of sums; made : these three."""
    for number in range(3):
        column = at + number
        data = made[number][:, low : low + size]
        row_sum(sums[:, column : column + 1], sbuf(size), data, number < 2)


def pack_rows(b_i: list[nl.ndarray], first: int, group: int, slices: int, nvir: int) -> nl.ndarray:
    """The last rows of `group` residents side by side, (128, NK, 128)."""
    tile = sbuf3(slices, P)
    height = P // group
    for m in range(group):
        nisa.activation(
            dst=tile[:, :, m * height : (m + 1) * height],
            op=nl.copy,
            data=b_i[first + m][:, :, nvir - height : nvir],
        )
    return tile


def store_packed_rows(
    x: nl.ndarray, nvir: int, made: list[list[nl.ndarray]], shared: list[nl.ndarray]
) -> None:
    """Copy the row tile shared by the pairs of a group from PSUM: columns [0, 128 L), the remaining
    ones, and from these the block of each pair to the diagonal of their last block."""
    left = nvir // P * P
    height = nvir - left
    copy_columns(shared[1], 0, x, 0, nvir, 0, left)
    copy_columns(shared[2], 0, x, 0, nvir, left, nvir)
    for m in range(len(made)):
        low = m * height
        nisa.activation(
            dst=made[m][2][low : low + height, low : low + height],
            op=nl.copy,
            data=x[low : low + height, left:nvir],
        )


def pair_tiles(
    nvir: int, pair: int, none: nl.ndarray, short: nl.ndarray, places: list[int]
) -> list[nl.ndarray]:
    """Tiles of T of a pair, as in `store_row_tile`: upper blocks, lower blocks, the short last one.

    nvir : rows computed for this pair alone; pair : its number; none : replaces missing lower
        blocks
    """
    upper = sbuf(upper_columns(nvir), P, slot(places, UPPER, pair, 2))
    lower = none
    tiles = (nvir + P - 1) // P
    if tiles > 1:
        lower = sbuf(lower_start(tiles), P, slot(places, LOWER, pair, 2))
    return [upper, lower, short]


def emit_share(
    left: tuple[list[list[nl.ndarray]], list[nl.ndarray], nl.ndarray],
    tables: list[nl.ndarray],
    columns: list[int],
    item: list[int],
    nvir: int,
    share: int,
    transpose: bool,
    places: list[int],
) -> None:
    """One share (see `shares_of`) of the elementwise work of a pair or group.

    left : its tiles, those shared by the pairs, and the sums; tables : e_a + e_b, neg, identity
    columns : of groups in the first table, of (A, L), of (L, L)
    item : number of pairs; index of the first, and number of all in the block; index of the group;
        first column of its sums
    """
    full = nvir // P
    height = nvir % P
    pair = item[1]
    at = item[4]
    own = upper_columns(full * P)
    chunks = (own + BANK - 1) // BANK
    m = share // max(1, chunks)
    if item[0] == 1:
        taken = [0, pair, item[2] + pair, at]
        emit_chunk(left[0][0], tables, taken, left[2], nvir, share, transpose, places)
    elif m < item[0]:
        taken = [columns[0], pair + m, item[2] + pair + m, at + sum_columns(own) * m]
        chunk = share % chunks
        emit_chunk(left[0][m], tables, taken, left[2], full * P, chunk, transpose, places)
    elif share == item[0] * chunks:
        taken = [columns[1], pair, at + sum_columns(own) * item[0]]
        emit_shared(left[1], tables, taken, left[2], height, full)
    else:
        taken = [columns[2], 2 * item[2] + item[3], at + item_columns(item[0], nvir) - 3]
        emit_last(left[1][2], left[0][0][2], tables, taken, left[2], height)


@nki.jit
def pair_energy_block(
    b_i: nl.ndarray,
    b_j: nl.ndarray,
    tables: nl.ndarray,
    neg: nl.ndarray,
    sizes: tuple[int, int, int, int],
    diagonal: bool,
    transpose: bool,
    placed: bool,
) -> nl.ndarray:
    """J and K partial sums of a block of pairs of one spin space.

    sizes : nvir padded to 32, NK, number of B_i held, number of pairs sharing a row tile (`group`)
    diagonal : b_i and b_j are the same block, only i <= j; transpose : True on gen3; placed : every
        tile has an address. Shapes, limits and budget are in the module's docstring.
    """
    nvir = sizes[0]
    slices = sizes[1]
    residents = sizes[2]
    group = sizes[3]
    rows = b_i.shape[0] // P
    across = b_j.shape[0] // P
    tiles = (nvir + P - 1) // P
    parts = parts_of(nvir, slices)
    part_width = (nvir + parts - 1) // parts
    full = nvir // P
    height = nvir - full * P
    assert not (placed and NEWTON), "there are no places for the tiles of a Newton step"

    steps = traversal(rows, across, residents, parts, diagonal)
    items = grouped(steps, rows, residents, group, parts, diagonal)
    before = emitted(steps, items, nvir)
    npair = before[len(items)][0]
    # First columns of the tables of e_a + e_b of groups, of their (A, L), of their (L, L).
    grouped_at = 0
    if npair > before[len(items)][1] * group:
        grouped_at = upper_columns(nvir)
    shared_at = grouped_at + upper_columns(full * P)
    last_at = shared_at + full * height
    identity_at = grouped_at
    stacked = 0
    if group > 1:
        identity_at = last_at + height
        stacked = height
    # Row tiles of B_i per SBUF tile: two if the next B_i has to take their place.
    spare = parts == 1 and not placed
    together = min(2, tiles)
    if spare:
        together = tiles
    per_row = (tiles + together - 1) // together
    places = []
    if placed:
        places = sbuf_map(nvir, slices, residents, npair, across)

    out = nl.ndarray((P, before[len(items)][2]), dtype=nl.float32, buffer=nl.shared_hbm)
    eu_tile = fetch(tables, identity_at, places, TABLE)
    neg_tile = sbuf(neg.shape[1], P, slot(places, NEG, 0, 1))
    load(neg_tile, neg)
    identity_tile = sbuf(P + stacked, P, slot(places, IDENTITY, 0, 1))
    load(identity_tile, tables[:, identity_at : identity_at + P + stacked])
    read = [eu_tile, neg_tile, identity_tile]
    # Short last diagonal blocks, surrounded by zeros: single pairs alternate between two, and so do
    # groups.
    last_blocks = []
    if height > 0:
        for turn in range(2 * min(2, group)):
            last_blocks.append(sbuf(P, P, slot(places, LAST_BLOCKS, turn, 2)))
            nisa.memset(dst=last_blocks[turn], value=0.0)

    part = eu_tile
    coming = load_part(b_j, slices, steps[0], nvir, slot(places, RIGHT, 0, 2))
    loads = 1
    count_held = residents * per_row
    arrived = advance(b_i, slices, together, ([], [], 0), 1, count_held, places, count_held)
    packed = []  # the last rows of the groups of these residents
    products = 0
    made = []
    shared = []
    sums = identity_tile
    # The elementwise work of an item is emitted between the products of the next, so there is one
    # more turn for the last.
    for number in range(len(items) + 1):
        left = (made, shared, sums)
        due = 0  # shares of the elementwise work of the previous item
        if number > 0:
            due = shares_of(items[number - 1][2], nvir)
        kind = 0  # pairs of the item
        member = 0
        step = len(steps) - 1
        if number < len(items):
            step = items[number][0]
            member = items[number][1]
            kind = items[number][2]
        first = steps[step][0]
        q = before[number][0]
        if kind > 0 and begins(steps, items, number):
            packed = []
            width = 0
            for other in range(number, len(items)):
                if steps[items[other][0]][0] == first:
                    width += item_columns(items[other][2], nvir)
            sums = sbuf(width, P, slot(places, SUMS, first // residents, 2))
            if number > 0:
                coming = part
            if number > 0 and steps[step - 1][1:] != steps[step][1:]:
                at = slot(places, RIGHT, loads, 2)
                coming = load_part(b_j, slices, steps[step], nvir, at)
                loads += 1

        made_rows = nvir  # rows of T computed pair by pair
        if kind > 1:
            made_rows = full * P
        made_tiles = (made_rows + P - 1) // P
        short = identity_tile
        if kind > 1:
            short = last_blocks[2 + before[number][1] % 2]
        elif height > 0:
            short = last_blocks[q % 2]
        made = []
        for _ in range(kind):
            made.append(pair_tiles(made_rows, q, identity_tile, short, places))
        shared = []  # of a group: columns (A, L), packed rows [0, 128 L), their remaining part
        own_units = made_tiles * parts * kind  # products computed pair by pair
        units = max(1, own_units)
        if kind > 1:
            shared = [sbuf(full * P), sbuf(full * P), sbuf(height)]
            units = own_units + 1

        for unit in range(units):
            m = 0
            now = step
            if kind > 1:
                m = min(unit // made_tiles, kind - 1)
            elif kind == 1:
                now = step + unit // made_tiles
            row = unit % made_tiles
            turning = now + 1 < len(steps) and steps[now + 1][0] != first
            low = steps[now][2] * part_width
            high = min(nvir, low + part_width)
            if unit < own_units and row == 0 and member + m == 0:
                part = coming
                if now + 1 < len(steps) and not turning:
                    at = slot(places, RIGHT, loads, 2)
                    coming = load_part(b_j, slices, steps[now + 1], nvir, at)
                    loads += 1
            if unit < own_units:
                x = psum(high - low, P, products % 3 if placed else -1)
                products += 1
                tile = arrived[0][(first + member + m) * per_row + row // together]
                contract(x, tile, P * (row % together), part, high - low)
                store_row_tile(x, low, min(high, made_rows), row, made_rows, made[m])
                if kind > 1:
                    at = (m * full + row) * height
                    copy_columns(shared[0], at, x, 0, nvir, full * P, nvir)
            elif kind > 1:
                if len(packed) == member // group:
                    packed.append(pack_rows(arrived[0], first + member, group, slices, nvir))
                x = psum(nvir)
                contract(x, packed[member // group], 0, part, nvir)
                store_packed_rows(x, nvir, made, shared)
            if kind > 0:
                following = (first + member + m) * per_row  # tile of B_i of the next product
                if unit + 1 < own_units:
                    following = first + member + (unit + 1) // made_tiles % kind
                    following = following * per_row + (unit + 1) % made_tiles // together
                elif unit + 1 == units and number + 1 < len(items):
                    following = steps[items[number + 1][0]][0] + items[number + 1][1]
                    following = following * per_row
                allowed = (first + residents) * per_row
                if turning:
                    free = following - first * per_row
                    if spare:
                        free += 1
                    allowed += min(count_held, free)
                arrived = advance(
                    b_i, slices, together, arrived, following + 1, allowed, places, count_held
                )
            for share in range(due):
                if -(-(share + 1) * units // due) - 1 == unit:
                    done = before[number - 1]
                    item = [items[number - 1][2], done[0], npair, done[1], done[2] - done[3]]
                    columns = [grouped_at, shared_at, last_at]
                    emit_share(left, read, columns, item, nvir, share, transpose, places)
        if number > 0 and begins(steps, items, number):
            low = before[number - 1][3]
            load(out[:, low : before[number][2]], left[2])
    return out
