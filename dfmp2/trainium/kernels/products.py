"""Matrix products: GEMM, batched GEMM, SYRK and a blocked triangular solve, on the shared tiles.

    gemm        C = A^t B                     a (K, M), b (K, N), C (M, N)
    gemm_batch  C_g = A_g^t B_g               a (G K, M), b (G K, N), C (G M, N), `batches` = G
    syrk        C = A^t A                     upper tiles by products, lower ones transposed on the Tensor Engine
    trsm        L X = B, L lower triangular   X_i = D_i^-1 (B_i - sum_j<i L_ij X_j) in tiles of 128 rows

K and M are multiples of 128 (zero padding adds nothing); N is free, at most 512 for trsm. A stationary tile serves up
to four products in a row, one per PSUM bank. trsm takes L^t (n, n) and the transposed inverses of the diagonal tiles
(n, 128), which the host makes in float64; all operands fit into SBUF at once.
Budget: gemm (K/128)(M/128) ceil(N/512) products, (M/128) ceil(N/512) copies; the copies run beside the products.

    for row tile m: for groups of four banks: for k: for bank: bank += A[k, m]^t B[k, bank];  store the banks
Twins: tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.tiles import BANK, STAGE, P, load, multiply, psum, sbuf, sbuf3, transpose_piece

BANKS_AT_ONCE = 4


def load_slices(src: nl.ndarray, row: int, rows: int) -> nl.ndarray:
    """Rows of an HBM matrix as (128, rows/128, columns), through staging tiles."""
    tile = sbuf3(rows // P, src.shape[1])
    for k in range(rows // P):
        for low in range(0, src.shape[1], STAGE):
            high = min(src.shape[1], low + STAGE)
            staged = sbuf(high - low)
            load(staged, src[row + k * P : row + (k + 1) * P, low:high])
            nisa.activation(dst=tile[:, k, low:high], op=nl.copy, data=staged)
    return tile


def store_bank(out: nl.ndarray, row: int, low: int, high: int, bank: nl.ndarray) -> None:
    """A bank of results to rows row.. and columns [low, high) of out."""
    tile = sbuf(high - low)
    nisa.activation(dst=tile, op=nl.copy, data=bank)
    load(out[row : row + P, low:high], tile)


def product(out: nl.ndarray, out_row: int, left: nl.ndarray, right: nl.ndarray) -> None:
    """out[out_row:, :] = sum_k left[:, k]^t right[:, k]."""
    width = right.shape[2]
    for row in range(left.shape[2] // P):
        for start in range(0, width, BANKS_AT_ONCE * BANK):
            banks = []
            for low in range(start, min(width, start + BANKS_AT_ONCE * BANK), BANK):
                banks.append(psum(min(BANK, width - low)))
            for k in range(left.shape[1]):
                for number in range(len(banks)):  # the same stationary tile for all
                    low = start + number * BANK
                    part = right[:, k, low : min(width, low + BANK)]
                    multiply(banks[number], left[:, k, row * P : (row + 1) * P], part, k > 0)
            for number in range(len(banks)):
                low = start + number * BANK
                store_bank(out, out_row + row * P, low, min(width, low + BANK), banks[number])


@nki.jit
def gemm(a: nl.ndarray, b: nl.ndarray) -> nl.ndarray:
    """C = A^t B."""
    assert a.shape[0] % P == 0 and a.shape[1] % P == 0, "pad the rows and columns of A to 128"
    out = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    product(out, 0, load_slices(a, 0, a.shape[0]), load_slices(b, 0, b.shape[0]))
    return out


@nki.jit
def gemm_batch(a: nl.ndarray, b: nl.ndarray, batches: int) -> nl.ndarray:
    """C_g = A_g^t B_g for all g."""
    rows = a.shape[0] // batches
    assert rows % P == 0 and a.shape[1] % P == 0, "pad the rows and columns of A to 128"
    out = nl.ndarray((batches * a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    for g in range(batches):
        product(out, g * a.shape[1], load_slices(a, g * rows, rows), load_slices(b, g * rows, rows))
    return out


@nki.jit
def syrk(a: nl.ndarray, identity: nl.ndarray) -> nl.ndarray:
    """C = A^t A."""
    assert a.shape[0] % P == 0 and a.shape[1] % P == 0, "pad the rows and columns of A to 128"
    size = a.shape[1]
    out = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.shared_hbm)
    identity_tile = sbuf(P)
    load(identity_tile, identity)
    operand = load_slices(a, 0, a.shape[0])
    for row in range(size // P):
        for column in range(row, size // P):
            x = psum(P)
            for k in range(operand.shape[1]):
                multiply(x, operand[:, k, row * P : (row + 1) * P], operand[:, k, column * P : (column + 1) * P], k > 0)
            tile = sbuf(P)
            nisa.activation(dst=tile, op=nl.copy, data=x)
            load(out[row * P : (row + 1) * P, column * P : (column + 1) * P], tile)
            if column > row:
                y = psum(P)
                transpose_piece(y, 0, P, 0, P, tile, 0, identity_tile, False)
                store_bank(out[column * P : (column + 1) * P, 0:size], 0, row * P, (row + 1) * P, y)
    return out


@nki.jit
def trsm(l_t: nl.ndarray, inverse_t: nl.ndarray, b: nl.ndarray) -> nl.ndarray:
    """X of L X = B."""
    size = b.shape[0]
    width = b.shape[1]
    assert size % P == 0 and width <= BANK, "pad the rows of B to 128; at most 512 columns"
    out = nl.ndarray((size, width), dtype=nl.float32, buffer=nl.shared_hbm)
    lower = load_slices(l_t, 0, size)
    inverse = load_slices(inverse_t, 0, size)
    solved = sbuf3(size // P, width)
    for i in range(size // P):
        rest = sbuf(width)
        load(rest, b[i * P : (i + 1) * P, 0:width])
        if i > 0:
            known = psum(width)
            for j in range(i):
                multiply(known, lower[:, j, i * P : (i + 1) * P], solved[:, j, 0:width], j > 0)
            left = sbuf(width)
            nisa.tensor_tensor(dst=left, data1=rest, data2=known, op=nl.subtract)
            rest = left
        x = psum(width)
        multiply(x, inverse[:, i, 0:P], rest, False)
        nisa.activation(dst=solved[:, i, 0:width], op=nl.copy, data=x)
        load(out[i * P : (i + 1) * P, 0:width], solved[:, i, 0:width])
    return out
