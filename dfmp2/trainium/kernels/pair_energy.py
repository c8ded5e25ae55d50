"""K3: direct and exchange terms of a block of occupied pairs; contraction, elementwise and row sums
in one program.

    T_ab = sum_P B_iaP B_jbP        D_ab = e_a + e_b - e_i - e_j > 0        H = D^(-1/2)
    J = sum_ab (T_ab H_ab)^2        K = sum_ab (T_ab H_ab) (T_ba H_ab)      (direct = -J, exchange = -K)

T never leaves the chip. H is symmetric, so the sums are folded onto the upper triangle of 128 x 128
blocks: with X = T_AB and Y = (T_BA)^t, J = sum (X H)^2 + (Y H)^2 and K = 2 sum (X H) (Y H) over A <
B; diagonal blocks (A, A) enter with 2 D in place of D. Only half of T is transposed, on the Tensor
Engine against an identity.

Dimensions: n = nvir padded to 32, NT = ceil(n/128) row tiles, aux in NK = naux/128 slices (padded
to 128).
  b_i, b_j  (ni*128, S, 128 NT), (nj*128, S, 128 NT)  row i*128+p, slice k, column a = B[i, a, k*128+p]; zero in all
            padding; S is NK, or one more where a row would be a power of two of bytes, which halves
            the rate of transfers (trn1)
  eu        (128, U)                e_a + e_b: all diagonal blocks (doubled), then right of the diagonal, row by row
  neg       (128, 2 npair)          -(e_i + e_j), then twice that; pairs in the order in which they are emitted
  identity  (128, 128)
  returns   (128, npair*columns)    per pair and chunk of 512 packed columns: J parts, then K parts / 2
Limits: residents = 1 where B_j comes in parts, of at most 512 columns and 24 kB.
Sums: an engine adds a row one element after the other in float32, and the host the results in
float64. Rows of 1,024 elements that fall fast lose 6e-7 of the energy, of 256 up to 3e-7, of 128
(`run`) 4e-8; squares are summed as the Scalar Engine makes them.
Budget per pair, medium (n 448, NK 12): 59 Tensor, 9 Vector, 35 Scalar Engine statements, 32 us of
Tensor Engine, which the others stay below (trn1).
Order: i residents, j streamed one ahead, forwards and backwards in turn so that the last B_j of a
row of blocks is the first of the next. The elementwise work of a pair is emitted between the
products of the next, also across rows. B_i is copied out of staging tiles, piece by piece between
the products, since what DMA writes may take 64 kB only (trn1). Where B_j comes in parts, a tile of
B_i holds two row tiles; the next B_i replaces them one by one under the last products.
Places: the compiler's, or with `placed` our own. Then every tile in SBUF has an address (`sbuf_map`)
and every tile in PSUM one of seven banks; two places of a kind are used in turn, and the next B_i
replaces the last one as above.

    for each `residents` rows i:  B_i -> staging -> SBUF
        for j:  B_j -> SBUF (loaded during the previous j)
            for i:  for each row tile A:  X = B_i[A]^t B_j;  copy X: upper blocks -> xu, lower -> tl
                    between them, for the previous pair, per 512 columns:
                        Y = transposes;  H = (eu + neg)^(-1/2)
                        out = row sums of (X H)^2, of (Y H)^2, then of (X H) (Y H)
Twin: pair_energy_twin in tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import (
    BANK,
    EU,
    IDENTITY,
    LAST_BLOCKS,
    LOWER,
    NEG,
    RIGHT,
    SCRATCH,
    SUMS,
    UPPER,
    P,
    lower_start,
    pairs_of,
    parts_of,
    run_start,
    sbuf_map,
    slot,
    sum_columns,
    sum_places,
    traversal,
    upper_columns,
    window,
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
    transpose_piece,
)


def store_row_tile(
    x: nl.ndarray, lo: int, hi: int, row: int, nvir: int, made: list[nl.ndarray]
) -> None:
    """Copy columns [lo, hi) of row tile `row` of T out of PSUM to the tiles of its pair.

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
    """y = packed columns of the transposed lower triangle of T, from column lo on."""
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
    eu_at: int,
    single: int,
    double: int,
    sums: nl.ndarray,
    at: int,
    nvir: int,
    chunk: int,
    run: int,
    transpose: bool,
    places: list[int],
    turn: int,
) -> None:
    """J and K parts of 512 packed columns of one pair into sums, from column at + chunk *
    sum_columns(512) on.

    made : as of `store_row_tile`; tables : eu, neg, identity; eu_at : first column of the table in
        eu; single, double :
    columns of neg with -(e_i+e_j) and twice that; places : as of `sbuf_map`, or none; turn : number
        of the chunk
    """
    xu = made[0]
    eu = tables[0]
    neg = tables[1]
    lo = BANK * chunk
    hi = min(upper_columns(nvir), lo + BANK)
    size = hi - lo
    doubled = max(0, min(hi, nvir) - lo)
    at += chunk * sum_columns(BANK, run)
    room = slot(places, SCRATCH, turn, 2)
    bank = -1
    if room >= 0:
        bank = 3 + turn % 2
    y = psum(size, P, bank)
    transposes(y, lo, nvir, made, tables[2], transpose)
    h = sbuf(size, P, room)
    if doubled > 0:
        inverse_root(
            h[:, 0:doubled], eu[:, eu_at + lo : eu_at + lo + doubled], neg[:, double : double + 1]
        )
    if doubled < size:
        inverse_root(
            h[:, doubled:size],
            eu[:, eu_at + lo + doubled : eu_at + hi],
            neg[:, single : single + 1],
        )
    xh, yh, kp = weighted(xu[:, lo:hi], y, h, size, room, bank)
    dump = beside(room, 3)
    count = sum_places(size, run)
    row_sums(sums, at, xh, size, run, True, dump)
    row_sums(sums, at + count, yh, size, run, True, dump)
    row_sums(sums, at + 2 * count, kp, size, run, False, dump)


def beside(room: int, number: int) -> int:
    """First byte of the tile with that number of the temporaries from `room` on."""
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
    sums: nl.ndarray, at: int, data: nl.ndarray, size: int, run: int, squared: bool, dump: int
) -> None:
    """Row sums of `size` elements or of their squares, at most `run` at a time, into columns at, at
    + 1, .. of sums; dump : first byte of what the instruction writes besides."""
    for low in range(0, size, run):
        high = min(size, low + run)
        column = at + low // run
        wasted = sbuf(high - low, P, dump)
        row_sum(sums[:, column : column + 1], wasted, data[:, low:high], squared)


@nki.jit
def pair_energy_block(
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
    placed: bool,
) -> nl.ndarray:
    """J and K partial sums of a block of pairs of one spin space.

    nvir : padded to 32; slices : NK; residents : B_i held at a time; run : elements per row sum;
        diagonal : b_i and b_j
    are the same block, only i <= j; transpose : True on gen3; placed : every tile has an address.
    Shapes, limits and budget: see the module.
    """
    rows = b_i.shape[0] // P
    across = b_j.shape[0] // P
    tiles = (nvir + P - 1) // P
    parts = parts_of(nvir, slices)
    width = (nvir + parts - 1) // parts
    total = upper_columns(nvir)
    chunks = (total + BANK - 1) // BANK
    columns = sum_columns(total, run)
    units = tiles * parts
    if diagonal:
        npair = rows * (rows + 1) // 2
    else:
        npair = rows * across
    assert parts == 1 or residents == 1, "a B_j that comes in parts needs residents=1"
    assert not (placed and NEWTON), "there are no places for the tiles of a Newton step"
    places = []
    if placed:
        places = sbuf_map(
            nvir,
            slices,
            residents,
            eu.shape[1],
            npair,
            columns * min(npair, residents * across),
            run,
        )

    out = nl.ndarray((P, npair * columns), dtype=nl.float32, buffer=nl.shared_hbm)
    eu_tile = fetch(eu, places, EU)
    neg_tile = sbuf(2 * npair, P, slot(places, NEG, 0, 1))
    load(neg_tile, neg)
    identity_tile = sbuf(P, P, slot(places, IDENTITY, 0, 1))
    load(identity_tile, identity)
    last_blocks = []  # a short last diagonal block, zero around it: two tiles used in turn
    if nvir % P != 0:
        for turn in range(2):
            last_blocks.append(sbuf(P, P, slot(places, LAST_BLOCKS, turn, 2)))
            nisa.memset(dst=last_blocks[turn], value=0.0)

    # Row tiles of B_i per SBUF tile: two where the next B_i can only follow in their places.
    spare = parts == 1 and not placed
    together = min(2, tiles)
    if spare:
        together = tiles
    groups = (tiles + together - 1) // together
    steps = traversal(rows, across, residents, parts, diagonal)
    part = eu_tile
    coming = load_part(b_j, slices, steps[0][1], steps[0][2], nvir, slot(places, RIGHT, 0, 2))
    loads = 1
    unit = 0
    slots = residents * groups
    held, staged, done = advance(b_i, slices, together, [], [], 0, 1, slots, places, slots)
    # The pair being made, and the pair before it, whose elementwise work is emitted between its
    # products.
    tables = [eu_tile, neg_tile, identity_tile]
    q = 0
    base = 0
    made = []
    sums = identity_tile
    before = []
    before_sums = identity_tile
    before_base = 0
    for step in range(len(steps)):
        first = steps[step][0]
        j = steps[step][1]
        backwards = (first // residents) % 2 == 1
        low = steps[step][2] * width
        high = min(nvir, low + width)
        if step == 0 or steps[step - 1][0] != first:
            base = q
            pairs = 0
            for other in range(len(steps)):
                if steps[other][0] == first and steps[other][2] == 0:
                    pairs += pairs_of(first, steps[other][1], rows, residents, diagonal)
            sums = sbuf(columns * pairs, P, slot(places, SUMS, first // residents, 2))
        part = coming
        more = step + 1 < len(steps)
        turning = more and steps[step + 1][0] != first
        if more and not turning:
            at = slot(places, RIGHT, loads, 2)
            coming = load_part(b_j, slices, steps[step + 1][1], steps[step + 1][2], nvir, at)
            loads += 1
        starts = step == 0 or steps[step - 1][0] != first or steps[step - 1][1] != j
        ends = not more or turning or steps[step + 1][1] != j
        present = pairs_of(first, j, rows, residents, diagonal)
        for member in range(present):
            if starts:
                if tiles > 1:
                    lower = sbuf(lower_start(tiles), P, slot(places, LOWER, q, 2))
                else:
                    lower = identity_tile
                if nvir % P != 0:
                    short = last_blocks[q % 2]
                else:
                    short = identity_tile
                made = [sbuf(total, P, slot(places, UPPER, q, 2)), lower, short]
            if backwards:
                seen = parts - 1 - steps[step][2]
            else:
                seen = steps[step][2]
            for row in range(tiles):
                x = psum(high - low, P, unit % 3 if placed else -1)
                unit += 1
                tile = held[(first + member) * groups + row // together]
                contract(x, tile, P * (row % together), part, high - low)
                store_row_tile(x, low, high, row, nvir, made)
                following = steps[step + 1][0] if more else first
                needed, allowed = window(
                    first,
                    member,
                    row,
                    tiles,
                    together,
                    residents,
                    present,
                    spare,
                    turning,
                    following,
                )
                held, staged, done = advance(
                    b_i, slices, together, held, staged, done, needed, allowed, places, slots
                )
                for c in range(chunks if q > 0 else 0):
                    if -(-(c + 1) * units // chunks) - 1 == seen * tiles + row:
                        at = columns * (q - 1 - before_base)
                        emit_chunk(
                            before,
                            tables,
                            0,
                            q - 1,
                            npair + q - 1,
                            before_sums,
                            at,
                            nvir,
                            c,
                            run,
                            transpose,
                            places,
                            (q - 1) * chunks + c,
                        )
            if ends:
                if q > 0 and base == q:
                    load(out[:, columns * before_base : columns * q], before_sums)
                before = made
                before_sums = sums
                before_base = base
                q += 1
        if turning:
            if steps[step + 1][1] != j or steps[step + 1][2] != steps[step][2]:
                at = slot(places, RIGHT, loads, 2)
                coming = load_part(b_j, slices, steps[step + 1][1], steps[step + 1][2], nvir, at)
                loads += 1
            else:
                coming = part
    for c in range(chunks):
        at = columns * (q - 1 - before_base)
        emit_chunk(
            before,
            tables,
            0,
            q - 1,
            npair + q - 1,
            before_sums,
            at,
            nvir,
            c,
            run,
            transpose,
            places,
            (q - 1) * chunks + c,
        )
    load(out[:, columns * before_base : columns * q], before_sums)
    return out
