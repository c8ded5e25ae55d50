"""The kernels of `dfmp2.tensor`: matrix products and a triangular solve of any size, whose operands
need neither padding nor to fit into SBUF, and pair energies for a given T.

    gemm        C_g = A_g^t B_g               a (G K, M), b (G K, N), C (G M, N), `batches` = G
    syrk        C = A^t A                     upper tiles by products, lower ones transposed on the Tensor Engine
    trsm        L X = B, L lower triangular   X_i = L_ii^-1 (B_i - sum_j<i L_ij X_j) in tiles of 128 rows

K and the order of L are at most 4,096, M and N arbitrary; the last tile of rows or columns may be
short. A panel of A stays in SBUF, in groups of row tiles that the Scalar Engine copies out of
staging tiles; B is streamed past it in parts of at most 512 columns and 24 kB per partition, one
ahead. So A is read once, and B once per panel of A (M 1,024 at K 2,048). On trn1 rows 8 kB, 16 kB,
.. apart are read at half the rate, so the host stores an extra column of A and passes the number
that counts (`columns`); another column of B costs little, since its parts are equally wide.
trsm : factor (128 n, n or n + 1, 128) holds L in n tiles, row i*128+p, slice j < i: L_ij[:, p],
    slice i: L_ii^-1[:, p],
which the host computes in float64; two parts of columns of B are solved at a time, hiding each
other's dependencies. Budget: gemm (K/128)(M/128) products per part, a copy of each 128 x part of C;
2,048^3: 1,536 products, 0.75 ms (trn1).
Documented (pages of the AWS Neuron documentation): tiles of fewer rows and columns than 128 and
512, accumulation in PSUM (nki/api/generated/nki.isa.nc_matmul); slices of HBM and of free
dimensions (nki/about/indexing-overview).

    for panel of A: for part of B (loaded one ahead): for row tile m of the panel:
        bank = sum_k A[k, m]^t B[k, part];  copy, store          (syrk: only right of the diagonal, and its transpose)

mp2_energy, slower than K3 and independent of its folding, is its cross-check:

    e_ij = sum_ab T_ab (2 T_ab - T_ba) / D_ab     D_ab = e_a + e_b - e_i - e_j

nvir <= 877, so that T of a pair takes at most 24 kB per partition; its NT = ceil(nvir/128) row
tiles have R = ceil(nvir/NT) rows, the last possibly fewer:
  t (ic*nvir, nocc*nvir or more) row (i, a), column (j, b): B_i B_j^t of all j side by side
  eu (nvir, nvir) e_a + e_b;  neg (R, ic*nocc) -(e_i + e_j);  identity (R, R);  returns (R, ic, nocc) partial sums
Budget per pair at large (nvir 672): 36 transposes, 84 elementwise statements, 53 us of Vector
Engine.
Documented: tiles of at most 128 rows, or fewer (nki/about/tiling-overview).

    per pair, per row tile, per part of at most 512 columns:
        Y = transposed tiles of these columns;  sum X (2 X - Y) / D, added up
Twins: NumPy and SciPy, in tests/test_nki_products.py; tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import BANK, PART, SOLVED, P, equal_parts
from dfmp2.trainium.kernels.tiles import (
    TOGETHER,
    add_column,
    load,
    multiply,
    psum,
    row_sum,
    sbuf,
    sbuf3,
    transposed,
)

# float32 numbers per partition of a panel of A, the next panel's first group included
PANEL = 24_576


def load_rows(
    src: nl.ndarray, row: int, depth: int, low: int, high: int, height: int = P
) -> nl.ndarray:
    """Rows [row, row+depth) and columns [low, high) of an HBM matrix, straight from HBM, as (128,
    slices of `height` rows, columns)."""
    slices = (depth + height - 1) // height
    tile = sbuf3(slices, high - low)
    for k in range(slices):
        rows = min(height, depth - k * height)
        start = row + k * height
        load(tile[0:rows, k, 0 : high - low], src[start : start + rows, low:high])
    return tile


def load_group(src: nl.ndarray, row: int, depth: int, low: int, high: int) -> nl.ndarray:
    """As `load_rows`, with 128 rows per slice, in a tile that the Scalar Engine fills through
    staging tiles."""
    slices = (depth + P - 1) // P
    tile = sbuf3(slices, high - low)
    for k in range(slices):
        rows = min(P, depth - k * P)
        staged = sbuf(high - low, rows)
        load(staged, src[row + k * P : row + k * P + rows, low:high])
        nisa.activation(dst=tile[0:rows, k, 0 : high - low], op=nl.copy, data=staged)
    return tile


def store_bank(out: nl.ndarray, row: int, column: int, bank: nl.ndarray) -> nl.ndarray:
    """Store a bank of results in out at (row, column); returns the copy in SBUF."""
    tile = sbuf(bank.shape[1], bank.shape[0])
    nisa.activation(dst=tile, op=nl.copy, data=bank)
    load(out[row : row + bank.shape[0], column : column + bank.shape[1]], tile)
    return tile


def product(
    out: nl.ndarray,
    a: nl.ndarray,
    b: nl.ndarray,
    batches: int,
    columns: int,
    triangle: bool,
    identity: nl.ndarray,
) -> None:
    """out_g = a_g^t b_g.

    columns : number of valid columns of a; triangle : b is a; compute only the part right of the
        diagonal and mirror it with the identity
    """
    depth = a.shape[0] // batches
    slices = (depth + P - 1) // P
    width = columns if triangle else b.shape[1]
    part = equal_parts(width, min(BANK, PART // slices))
    group = P * max(1, min(TOGETHER, PANEL // 3 // (slices * P)))
    panel = group * max(1, PANEL // (group * slices) - 1)
    steps = []  # (batch, first column of the panel, first column of the part)
    for g in range(batches):
        for first in range(0, columns, panel):
            for low in range(0, width, part):
                if not triangle or low + part > first:
                    steps.append((g, first, low))

    low = steps[0][2]
    coming = load_rows(b, 0, depth, low, min(width, low + part))
    held = [load_group(a, 0, depth, 0, min(columns, group))]
    for number in range(len(steps)):
        g = steps[number][0]
        first = steps[number][1]
        low = steps[number][2]
        high = min(width, low + part)
        right = coming
        ahead = held
        if number + 1 < len(steps):
            after = steps[number + 1]
            coming = load_rows(b, after[0] * depth, depth, after[2], min(width, after[2] + part))
            if after[1] != first or after[0] != g:
                ahead = [
                    load_group(a, after[0] * depth, depth, after[1], min(columns, after[1] + group))
                ]
        end = min(columns, first + panel)
        for start in range(first, end, group):
            following = start + group
            if following < end and len(held) <= (following - first) // group:
                held.append(load_group(a, g * depth, depth, following, min(end, following + group)))
            for row in range(start, min(end, start + group), P):
                rows = min(P, columns - row)
                begin = max(low, row) if triangle else low
                if begin < high:
                    bank = psum(high - begin, rows)
                    for k in range(slices):
                        used = min(P, depth - k * P)
                        stationary = held[(start - first) // group][
                            0:used, k, row - start : row - start + rows
                        ]
                        moving = right[0:used, k, begin - low : high - low]
                        multiply(bank, stationary, moving, k > 0)
                    tile = store_bank(out, g * columns + row, begin, bank)
                    for left in range(max(begin, row + P), high if triangle else begin, P):
                        count = min(P, high - left)
                        y = psum(P, count)
                        transposed(y, tile[:, left - begin : left - begin + count], identity, False)
                        store_bank(out, left, row, y)
        held = ahead


@nki.jit
def gemm(a: nl.ndarray, b: nl.ndarray, batches: int, columns: int) -> nl.ndarray:
    """C_g = A_g^t B_g for all g."""
    out = nl.ndarray((batches * columns, b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    product(out, a, b, batches, columns, False, a)
    return out


@nki.jit
def syrk(a: nl.ndarray, identity: nl.ndarray, columns: int) -> nl.ndarray:
    """C = A^t A; identity (128, 128)."""
    out = nl.ndarray((columns, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    identity_tile = sbuf(P)
    load(identity_tile, identity)
    product(out, a, a, 1, columns, True, identity_tile)
    return out


@nki.jit
def trsm(factor: nl.ndarray, b: nl.ndarray) -> nl.ndarray:
    """X of L X = B; the factor is described in the module's docstring."""
    size = b.shape[0]
    width = b.shape[1]
    tiles = (size + P - 1) // P
    part = equal_parts(width, min(BANK, SOLVED // tiles))
    out = nl.ndarray((size, width), dtype=nl.float32, buffer=nl.shared_hbm)
    steps = []  # (first column, row tile): two parts of columns, one row tile after another
    for low in range(0, width, 2 * part):
        for i in range(tiles):
            steps.append((low, i))
    coming = solve_operands(factor, b, steps[0][0], steps[0][1], part)
    solved = []
    for number in range(len(steps)):
        i = steps[number][1]
        rows = min(P, size - i * P)
        given = coming
        if number + 1 < len(steps):
            coming = solve_operands(factor, b, steps[number + 1][0], steps[number + 1][1], part)
        left = given[0]
        if i == 0:
            solved = []
        for other in range(1, len(given)):
            if i == 0:
                solved.append(sbuf3(tiles, part))
            low = steps[number][0] + (other - 1) * part
            count = min(part, width - low)
            rest = given[other]
            if i > 0:
                known = psum(count, rows)
                for j in range(i):
                    multiply(known, left[:, j, 0:rows], solved[other - 1][:, j, 0:count], j > 0)
                difference = sbuf(count, rows)
                nisa.tensor_tensor(dst=difference, data1=rest, data2=known, op=nl.subtract)
                rest = difference
            x = psum(count, rows)
            multiply(x, left[0:rows, i, 0:rows], rest, False)
            found = solved[other - 1][0:rows, i, 0:count]
            nisa.activation(dst=found, op=nl.copy, data=x)
            load(out[i * P : i * P + rows, low : low + count], found)
    return out


def solve_operands(
    factor: nl.ndarray, b: nl.ndarray, first: int, i: int, part: int
) -> list[nl.ndarray]:
    """Row tile i of L, and that of B in two parts of columns starting at `first`, or one if there
    is no second."""
    rows = min(P, b.shape[0] - i * P)
    left = sbuf3(i + 1, P)
    load(left, factor[i * P : (i + 1) * P, 0 : i + 1, 0:P])
    found = [left]
    for low in range(first, min(b.shape[1], first + 2 * part), part):
        high = min(b.shape[1], low + part)
        rest = sbuf(high - low, rows)
        load(rest, b[i * P : i * P + rows, low:high])
        found.append(rest)
    return found


@nki.jit
def mp2_energy(
    t: nl.ndarray, eu: nl.ndarray, neg: nl.ndarray, identity: nl.ndarray, ic: int, nocc: int
) -> nl.ndarray:
    """Partial sums of e_ij for ic rows i and all nocc j; shapes are in the module's docstring."""
    nvir = eu.shape[0]
    tiles = (nvir + P - 1) // P
    rows = equal_parts(nvir, P)
    part = rows * equal_parts(tiles, BANK // rows)
    out = nl.ndarray((rows, ic, nocc), dtype=nl.float32, buffer=nl.shared_hbm)
    neg_tile = sbuf(ic * nocc, rows)
    load(neg_tile, neg)
    identity_tile = sbuf(rows, rows)
    load(identity_tile, identity)
    eu_tile = load_rows(eu, 0, nvir, 0, nvir, rows)
    sums = nl.ndarray((rows, ic, nocc), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=sums, value=0.0)
    for i in range(ic):
        for j in range(nocc):
            pair = i * nocc + j
            x = load_rows(t, i * nvir, nvir, j * nvir, (j + 1) * nvir, rows)
            for a in range(tiles):
                size = min(rows, nvir - a * rows)
                column = neg_tile[0:size, pair : pair + 1]
                for low in range(0, nvir, part):
                    high = min(nvir, low + part)
                    width = high - low
                    own = x[0:size, a, low:high]
                    y = psum(width, size)
                    for b in range(low, high, rows):
                        count = min(rows, nvir - b)
                        source = x[0:count, b // rows, a * rows : a * rows + size]
                        transposed(
                            y[:, b - low : b - low + count],
                            source,
                            identity_tile[0:count, 0:count],
                            False,
                        )
                    d = sbuf(width, size)
                    add_column(d, eu_tile[0:size, a, low:high], column)
                    r = psum(width, size)
                    nisa.reciprocal(dst=r, data=d)
                    z = sbuf(width, size)
                    nisa.scalar_tensor_tensor(
                        dst=z, data=own, op0=nl.multiply, operand0=2.0, op1=nl.subtract, operand1=y
                    )
                    w = psum(width, size)
                    nisa.tensor_tensor(dst=w, data1=own, data2=r, op=nl.multiply)
                    e = sbuf(width, size)
                    nisa.tensor_tensor(dst=e, data1=z, data2=w, op=nl.multiply)
                    partial = sbuf(1, size)
                    row_sum(partial, sbuf(width, size), e)
                    total = sums[0:size, i, j : j + 1]
                    nisa.tensor_tensor(dst=total, data1=total, data2=partial, op=nl.add)
    load(out, sums)
    return out
