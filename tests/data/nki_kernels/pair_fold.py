"""Direct and exchange sums of ni x nj pairs from B_i, B_j: the folded pair kernel in one small program.

T = B_i B_j^T in row tiles A of 128; X = T_AB and Y = (T_BA)^t for A <= B; J = sum (X^2 + Y^2) R, K = 2 sum X Y R with
R = 1 / (e_a + e_b - e_i - e_j), halved on diagonal blocks. n <= 512 virtuals; pair q's sums are emitted after the
matrix products of pair q + 1, from buffers that rotate.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILE = 128
CHUNK = 512


def segments(n):
    """(A, B, columns of the block, first packed column): diagonal blocks first, then rows of the upper triangle."""
    tiles = (n + TILE - 1) // TILE
    found = []
    at = 0
    for a in range(tiles):
        width = min(TILE, n - TILE * a)
        found.append((a, a, width, at))
        at += width
    for a in range(tiles):
        for b in range(a + 1, tiles):
            width = min(TILE, n - TILE * b)
            found.append((a, b, width, at))
            at += width
    return found, at


def emit_row_tile(i_tile, j_tile, xu, tl, ld, a, n, slices, table):
    """X = T_A: copies out the upper blocks (packed), the last diagonal block (padded) and the lower blocks."""
    x = nl.ndarray((TILE, n), dtype=nl.float32, buffer=nl.psum)
    for k in range(slices):
        nisa.nc_matmul(
            dst=x,
            stationary=i_tile[:, k, TILE * a : TILE * a + TILE],
            moving=j_tile[:, k, 0:n],
            accumulate=k > 0,
        )
    for row, b, width, at in table:
        if row == a:
            nisa.activation(dst=xu[:, at : at + width], op=nl.copy, data=x[:, TILE * b : TILE * b + width])
            if a == b and width < TILE:
                nisa.activation(dst=ld[0:width, 0:width], op=nl.copy, data=x[0:width, TILE * b : TILE * b + width])
    if a > 0:
        nisa.activation(dst=tl[:, a, 0 : TILE * a], op=nl.copy, data=x[:, 0 : TILE * a])


def emit_chunk(c0, c1, q, npair, chunk, state, eu, neg, identity, n, table, out):
    """Sums over packed columns c0 to c1 of one pair."""
    xu, tl, ld = state
    width = c1 - c0
    y = nl.ndarray((TILE, width), dtype=nl.float32, buffer=nl.psum)
    for a, b, size, at in table:
        u = max(c0, at)
        v = min(c1, at + size)
        if u < v:
            height = min(TILE, n - TILE * b)
            if a == b and size == TILE:
                source = xu[:, at : at + size]
            elif a == b:
                source = ld[0:height, 0:TILE]
            else:
                source = tl[0:height, b, TILE * a : TILE * a + TILE]
            nisa.nc_matmul(
                dst=y[:, u - c0 : v - c0],
                stationary=source,
                moving=identity[0:height, u - at : v - at],
                is_moving_onezero=True,
                accumulate=False,
            )
    d = nl.ndarray((TILE, width), dtype=nl.float32, buffer=nl.sbuf)
    doubled = max(0, min(n, c1) - c0)
    if doubled > 0:
        bias = neg[:, npair + q : npair + q + 1]
        nisa.activation(dst=d[:, 0:doubled], op=nl.copy, data=eu[:, c0 : c0 + doubled], bias=bias)
    if doubled < width:
        bias = neg[:, q : q + 1]
        nisa.activation(dst=d[:, doubled:width], op=nl.copy, data=eu[:, c0 + doubled : c1], bias=bias)
    r = nl.ndarray((TILE, width), dtype=nl.float32, buffer=nl.psum)
    nisa.reciprocal(dst=r, data=d)
    sq = nl.ndarray((TILE, 2 * width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=sq[:, 0:width], op=nl.square, data=xu[:, c0:c1])
    nisa.activation(dst=sq[:, width : 2 * width], op=nl.square, data=y)
    w = nl.ndarray((TILE, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=w, data1=xu[:, c0:c1], data2=r, op=nl.multiply)
    kp = nl.ndarray((TILE, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=kp, data1=w, data2=y, op=nl.multiply)
    jj = nl.ndarray((TILE, 2 * width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=jj[:, 0:width], data1=sq[:, 0:width], data2=r, op=nl.multiply)
    nisa.tensor_tensor(dst=jj[:, width : 2 * width], data1=sq[:, width : 2 * width], data2=r, op=nl.multiply)
    dump = nl.ndarray((TILE, 2 * width), dtype=nl.float32, buffer=nl.sbuf)
    for column, data, length in ((chunk, jj, 2 * width), (chunk + 1, kp, width)):
        nisa.activation(
            dst=dump[:, 0:length],
            op=nl.copy,
            data=data,
            reduce_op=nl.add,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=out[:, column : column + 1],
        )


@nki.jit
def pair_fold(b_i, b_j, eu, neg, identity, n, ni, nj):
    """b_i (128 ni, slices, padded n), b_j likewise, eu (128, U), neg (128, 2 ni nj) -> (128, 2 chunks ni nj)."""
    slices = b_i.shape[1]
    padded = b_i.shape[2]
    npair = ni * nj
    table, packed = segments(n)
    tiles = (n + TILE - 1) // TILE
    chunks = (packed + CHUNK - 1) // CHUNK
    result = nl.ndarray((TILE, 2 * chunks * npair), dtype=nl.float32, buffer=nl.shared_hbm)
    out = nl.ndarray((TILE, 2 * chunks * npair), dtype=nl.float32, buffer=nl.sbuf)
    eu_sb = nl.ndarray((TILE, packed), dtype=nl.float32, buffer=nl.sbuf)
    neg_sb = nl.ndarray((TILE, 2 * npair), dtype=nl.float32, buffer=nl.sbuf)
    id_sb = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=eu_sb, src=eu)
    nisa.dma_copy(dst=neg_sb, src=neg)
    nisa.dma_copy(dst=id_sb, src=identity)
    rotating = []
    for _ in range(2):
        xu = nl.ndarray((TILE, packed), dtype=nl.float32, buffer=nl.sbuf)
        tl = nl.ndarray((TILE, tiles, padded), dtype=nl.float32, buffer=nl.sbuf)
        ld = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=ld, value=0.0)
        rotating.append((xu, tl, ld))
    i_tiles = []
    for i in range(ni):
        tile = nl.ndarray((TILE, slices, padded), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=b_i[TILE * i : TILE * i + TILE, :, :])
        i_tiles.append(tile)
    for q in range(npair + 1):
        if q < npair:
            if q % ni == 0:
                j = q // ni
                j_tile = nl.ndarray((TILE, slices, padded), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=j_tile, src=b_j[TILE * j : TILE * j + TILE, :, :])
            xu, tl, ld = rotating[q % 2]
            for a in range(tiles):
                emit_row_tile(i_tiles[q % ni], j_tile, xu, tl, ld, a, n, slices, table)
        if q > 0:
            p = q - 1
            for c in range(chunks):
                c0 = CHUNK * c
                c1 = min(packed, c0 + CHUNK)
                column = 2 * (p * chunks + c)
                emit_chunk(c0, c1, p, npair, column, rotating[p % 2], eu_sb, neg_sb, id_sb, n, table, out)
    nisa.dma_copy(dst=result, src=out)
    return result
