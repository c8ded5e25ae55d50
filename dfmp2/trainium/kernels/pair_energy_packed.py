"""K3 with leftover rows packed: g = 128/h pairs share one row tile for the last h = n mod 128 rows
of T.

    n = 128 L + h, h = 64 or 32: the rows 128 L .. n of T of pairs m = 0..g-1 (rows i_m, one j) are
    one product

        XP[m*h + r, b] = T^m[128 L + r, b]     stationary (B_i0 | B_i1 | ..)[:, 128 L : n], moving B_j

so that the Tensor Engine has no idle columns. Equations, folding and signs as in pair_energy.py,
whose blocks (A, B), A <= B < L, a pair computes by itself; columns (A, L) and the block (L, L) are
computed for g pairs at once.

Dimensions (U' = 64 L (L+1) columns of the blocks below L, C' = ceil(U'/512)):
  b_i, b_j  as in pair_energy.py
  eu        (128, W)         tables side by side: blocks below L [U'], (A, L) for A < L [L h], 2 (e_a + e_b) of the last
                             block repeated g times down the partitions [h], and for diagonal blocks
                             the table of pair_energy.py [U]
  neg       (128, 2 npair + ngroup)  as in pair_energy.py, then -2 (e_i + e_j) of the g pairs of each group, h rows each
  identity  (128, 128 + h)   identity, and identities (h, h) stacked
  returns   (128, columns)   per group: the columns of pair_energy.py for the blocks below L, per pair; J in two parts
                             and K/2 of (A, L), per pair; of (L, L), where rows m*h .. belong to
                             pair m; per single pair: as in pair_energy.py
Limits: n <= 512, L >= 1, `residents` a multiple of g.
Single pairs (where i > j for some of the g, in a diagonal block) take the path of pair_energy.py.
Budget per pair, medium (g = 2): 51.5 Tensor, 13.5 Vector, 35 Scalar Engine statements, 28 us of
Tensor Engine (trn1).

    per group:  for m: for A < L:  X = B_im[A]^t B_j;  xu, tl as before;  columns (A, L) -> xs[m, A]
                XP;  columns [0, 128 L) -> tlp;  rest -> xlp, and block m of bd
    later:      per pair, per 512 columns: emit_chunk
                Y[m, A] = tlp[:, A]^t identity[:, m h : m h + h]; sums of (A, L) per pair
                Y = bd^t (stacked identities); sums of (L, L), all pairs in one column
Twin: pair_energy_twin in tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.pair_energy import emit_chunk, store_row_tile, weighted
from dfmp2.trainium.kernels.sizes import (
    BANK,
    P,
    grouped,
    lower_start,
    parts_of,
    sum_columns,
    traversal,
    upper_columns,
)
from dfmp2.trainium.kernels.tiles import (
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
    transposed,
)


def emit_shared(
    shared: list[nl.ndarray],
    tables: list[nl.ndarray],
    eu_at: int,
    single: int,
    sums: nl.ndarray,
    at: int,
    height: int,
    full: int,
) -> None:
    """J and K parts of the blocks (A, L) of the pairs of a group: three columns of sums per pair,
    from `at` on.

    shared : columns (A, L) of all pairs, pair after pair; columns [0, 128 L) of the packed rows,
        and the rest
    """
    tlp = shared[1]
    eu = tables[0]
    neg = tables[1]
    identity = tables[2]
    span = full * height
    h = sbuf(full * P)
    y = psum(full * P)
    for m in range(P // height):
        inverse_root(
            h[:, m * span : (m + 1) * span],
            eu[:, eu_at : eu_at + span],
            neg[:, single + m : single + m + 1],
        )
        for row in range(full):
            at_row = m * span + row * height
            own = identity[:, m * height : (m + 1) * height]
            transposed(y[:, at_row : at_row + height], tlp[:, row * P : (row + 1) * P], own, False)
    xh, yh, kp = weighted(shared[0], y, h, full * P, -1, -1)
    for m in range(P // height):
        low = m * span
        high = low + span
        column = at + 3 * m
        row_sum(sums[:, column : column + 1], sbuf(span), xh[:, low:high], True)
        row_sum(sums[:, column + 1 : column + 2], sbuf(span), yh[:, low:high], True)
        row_sum(sums[:, column + 2 : column + 3], sbuf(span), kp[:, low:high])


def emit_last(
    xlp: nl.ndarray,
    bd: nl.ndarray,
    tables: list[nl.ndarray],
    eu_at: int,
    double: int,
    sums: nl.ndarray,
    at: int,
    height: int,
) -> None:
    """J and K parts of the blocks (L, L) of a group, rows m*height.. for pair m, into three columns
    of sums."""
    h = sbuf(height)
    inverse_root(h, tables[0][:, eu_at : eu_at + height], tables[1][:, double : double + 1])
    y = psum(height)
    transposed(y, bd, tables[2][:, P : P + height], False)
    xh, yh, kp = weighted(xlp, y, h, height, -1, -1)
    row_sum(sums[:, at : at + 1], sbuf(height), xh, True)
    row_sum(sums[:, at + 1 : at + 2], sbuf(height), yh, True)
    row_sum(sums[:, at + 2 : at + 3], sbuf(height), kp)


def pack_rows(tile: nl.ndarray, m: int, source: nl.ndarray, height: int, full: int) -> None:
    """The last rows of a resident become columns m*height.. of a packed one, (128, NK, 128)."""
    nisa.activation(
        dst=tile[:, :, m * height : (m + 1) * height],
        op=nl.copy,
        data=source[:, :, full * P : full * P + height],
    )


@nki.jit
def pair_energy_packed(
    b_i: nl.ndarray,
    b_j: nl.ndarray,
    eu: nl.ndarray,
    neg: nl.ndarray,
    identity: nl.ndarray,
    nvir: int,
    slices: int,
    residents: int,
    run: int,
    diagonal: bool,
    transpose: bool,
) -> nl.ndarray:
    """J and K partial sums of a block of pairs of one spin space; arguments as in pair_energy.py,
    tables wider."""
    rows = b_i.shape[0] // P
    across = b_j.shape[0] // P
    full = nvir // P
    height = nvir - full * P
    group = P // max(1, height)
    tiles = full + 1
    total = upper_columns(nvir)
    chunks = (total + BANK - 1) // BANK
    own = upper_columns(full * P)
    own_chunks = (own + BANK - 1) // BANK
    plain_columns = sum_columns(total, run)  # of sums, per single pair
    own_columns = sum_columns(own, run)  # of sums, of the blocks below L of a pair
    columns = group * (own_columns + 3) + 3  # of sums, per group
    shared_at = own
    last_at = own + full * height
    plain_at = last_at + height
    if diagonal:
        npair = rows * (rows + 1) // 2
    else:
        npair = rows * across
    assert height == 64 or height == 32, "leftover rows of 64 or 32 only"
    assert full > 0 and parts_of(nvir, slices) == 1, "1 to 3 full row tiles, and B_j in one part"
    assert residents % group == 0, "residents must hold whole groups"

    steps = traversal(rows, across, residents, 1, diagonal)
    items = grouped(steps, rows, residents, group, diagonal)
    width = 0
    for item in range(len(items)):
        width += columns if items[item][2] > 1 else plain_columns

    out = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.shared_hbm)
    eu_tile = fetch(eu, [], 0)
    neg_tile = sbuf(neg.shape[1])
    load(neg_tile, neg)
    identity_tile = sbuf(P + height)
    load(identity_tile, identity)
    # last diagonal blocks on the diagonal of a tile that is zero elsewhere; two used in turn
    short_blocks = []
    for turn in range(4):  # 0, 1 for groups, 2, 3 for single pairs
        short_blocks.append(sbuf(P))
        nisa.memset(dst=short_blocks[turn], value=0.0)

    packed = []
    part = eu_tile
    coming = load_part(b_j, slices, steps[0][1], 0, nvir)
    held, staged, done = advance(b_i, slices, tiles, [], [], 0, 1, residents, [], 0)
    q = 0  # pairs, groups and columns before the current item
    groups = 0
    column = 0
    # 0 nothing, 1 a single pair, else a group: the item whose elementwise work is due
    before_kind = 0
    before_q = 0
    before_group = 0
    before_column = 0
    before_base = 0
    before_ends = False
    tables = [eu_tile, neg_tile, identity_tile]
    before = []
    before_shared = []
    before_sums = identity_tile
    base = 0
    sums = identity_tile
    for item in range(len(items) + 1):
        going = item < len(items)  # one turn more, for the elementwise work of the last item
        member = 0
        kind = 0
        first = rows
        j = -1
        step = len(steps)
        ends = False
        starts = False
        if going:
            step = items[item][0]
            member = items[item][1]
            kind = items[item][2]
            first = steps[step][0]
            j = steps[step][1]
            starts = item == 0 or items[item - 1][0] != step
            ends = item + 1 == len(items) or steps[items[item + 1][0]][0] != first
        more = step + 1 < len(steps)
        turning = more and steps[step + 1][0] != first
        if starts:
            if step == 0 or steps[step - 1][0] != first:
                packed = []
                base = column
                width = 0
                for other in range(len(items)):
                    if steps[items[other][0]][0] == first:
                        width += columns if items[other][2] > 1 else plain_columns
                sums = sbuf(width)
            part = coming
            if more and not turning:
                coming = load_part(b_j, slices, steps[step + 1][1], 0, nvir)

        made = []  # of each pair upper blocks, lower blocks, the short last diagonal block
        shared = []
        units = 1
        if kind == 1:
            units = tiles
            made.append([sbuf(total), sbuf(lower_start(tiles)), short_blocks[2 + q % 2]])
        if kind > 1:
            units = group * full + 1
            for _ in range(group):
                if full > 1:
                    lower = sbuf(lower_start(full))
                else:
                    lower = identity_tile
                made.append([sbuf(own), lower, short_blocks[groups % 2]])
            shared = [sbuf(full * P), sbuf(full * P), sbuf(height)]
        if before_kind == 0:
            due = 0
        elif before_kind == 1:
            due = chunks
        else:
            due = group * own_chunks + 2
        for unit in range(units):
            if kind == 1:
                x = psum(nvir)
                contract(x, held[first + member], P * unit, part, nvir)
                store_row_tile(x, 0, nvir, unit, nvir, made[0])
            if kind > 1 and unit < group * full:
                m = unit // full
                row = unit % full
                x = psum(nvir)
                contract(x, held[first + member + m], P * row, part, nvir)
                store_row_tile(x, 0, full * P, row, full * P, made[m])
                copy_columns(shared[0], (m * full + row) * height, x, 0, nvir, full * P, nvir)
            if kind > 1 and unit == group * full:
                if len(packed) == member // group:
                    packed.append(sbuf3(slices, P))
                    for m in range(group):
                        pack_rows(
                            packed[member // group], m, held[first + member + m], height, full
                        )
                x = psum(nvir)
                contract(x, packed[member // group], 0, part, nvir)
                copy_columns(shared[1], 0, x, 0, nvir, 0, full * P)
                copy_columns(shared[2], 0, x, 0, nvir, full * P, nvir)
                for m in range(group):
                    low = m * height
                    nisa.activation(
                        dst=made[m][2][low : low + height, low : low + height],
                        op=nl.copy,
                        data=x[low : low + height, full * P : nvir],
                    )
            if kind > 0:  # used : residents of this item that are done after the unit
                if kind > 1:
                    used = min(kind - 1, (unit + 1) // full)
                else:
                    used = 0
                needed = first + member + used + 1
                allowed = first + residents
                if turning:
                    allowed += min(residents, member + used + 1)
                if unit == units - 1 and not ends:
                    needed = first + items[item + 1][1] + 1
                if unit == units - 1 and ends and more:
                    needed = first + residents + 1
                    allowed = first + 2 * residents
                held, staged, done = advance(
                    b_i, slices, tiles, held, staged, done, needed, allowed, [], 0
                )
            for c in range(due):
                if -(-(c + 1) * units // due) - 1 == unit:
                    at = before_column - before_base
                    if before_kind == 1:
                        double = npair + before_q
                        emit_chunk(
                            before[0],
                            tables,
                            plain_at,
                            before_q,
                            double,
                            before_sums,
                            at,
                            nvir,
                            c,
                            run,
                            transpose,
                            [],
                            0,
                        )
                    elif c < group * own_chunks:
                        m = c // own_chunks
                        pair = before_q + m
                        at += own_columns * m
                        number = c % own_chunks
                        emit_chunk(
                            before[m],
                            tables,
                            0,
                            pair,
                            npair + pair,
                            before_sums,
                            at,
                            full * P,
                            number,
                            run,
                            transpose,
                            [],
                            0,
                        )
                    elif c == group * own_chunks:
                        at += own_columns * group
                        emit_shared(
                            before_shared,
                            tables,
                            shared_at,
                            before_q,
                            before_sums,
                            at,
                            height,
                            full,
                        )
                    else:
                        double = 2 * npair + before_group
                        at += columns - 3
                        emit_last(
                            before_shared[2],
                            before[0][2],
                            tables,
                            last_at,
                            double,
                            before_sums,
                            at,
                            height,
                        )
        if before_ends:
            load(out[:, before_base:column], before_sums)
        before_kind = kind
        before_q = q
        before_group = groups
        before_column = column
        before_base = base
        before_ends = ends
        before = made
        before_shared = shared
        before_sums = sums
        q += kind
        groups += 1 if kind > 1 else 0
        column += 0 if kind == 0 else columns if kind > 1 else plain_columns
        if turning and ends:
            if steps[step + 1][1] == j:
                coming = part
            else:
                coming = load_part(b_j, slices, steps[step + 1][1], 0, nvir)
    return out
