"""Two simple forms of the pair energy, slower than K3 and independent of its folding: its cross-checks.

    mp2_energy   e_ij = sum_ab T_ab (2 T_ab - T_ba) / D_ab     D_ab = e_a + e_b - e_i - e_j, from a given T
    pair_fused   J = sum_ab T_ab^2 / D_ab, K = sum_ab T_ab T_ba / D_ab of one pair, T and its transpose by two products

mp2_energy, nvir <= 512; row tiles have p_tile rows, the largest divisor of nvir that is at most 128:
  t (ic*nocc*nvir, nvir) rows (i, j, a);  eu (nvir, nvir) e_a + e_b;  neg (p_tile, ic*nocc) -(e_i + e_j)
  identity (p_tile, p_tile);  returns (p_tile, ic, nocc) partial sums
pair_fused, n = nvir padded to 32, n <= 512; operands as in pair_energy.py, one orbital each:
  b_i, b_j (128, NK, 128 NT);  eu (128, NT*n) e_a + e_b, row tile after row tile;  neg (128, 1) -(e_i + e_j)
  returns (128, 2 NT) partial sums, J and K per row tile
Budget of pair_fused at medium: 96 products per pair, twice those of K3, which transposes on the Tensor Engine instead.

    mp2_energy: per pair, per row tile:  Y = transposed column tile;  sum X (2 X - Y) / D, added up over row tiles
    pair_fused: per row tile:  X = B_i[A]^t B_j;  Y = B_j[A]^t B_i;  J = rowsum X^2 R;  K = rowsum X Y R
Twins: tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.tiles import (
    BANK,
    P,
    add_column,
    contract,
    fetch,
    fetch_slices,
    load,
    psum,
    row_sum,
    sbuf,
    transposed,
)


def p_tile(nvir: int) -> int:
    """Largest divisor of nvir that is at most 128."""
    best = 1
    for size in range(1, min(nvir, P) + 1):
        if nvir % size == 0:
            best = size
    return best


@nki.jit
def mp2_energy(t: nl.ndarray, eu: nl.ndarray, neg: nl.ndarray, identity: nl.ndarray, ic: int, nocc: int) -> nl.ndarray:
    """Partial sums of e_ij for ic rows i and all nocc j; shapes: see the module."""
    nvir = t.shape[1]
    rows = p_tile(nvir)
    assert nvir <= BANK, "at most 512 virtual orbitals"
    out = nl.ndarray((rows, ic, nocc), dtype=nl.float32, buffer=nl.shared_hbm)
    neg_tile = nl.ndarray((rows, ic * nocc), dtype=nl.float32, buffer=nl.sbuf)
    load(neg_tile, neg)
    identity_tile = nl.ndarray((rows, rows), dtype=nl.float32, buffer=nl.sbuf)
    load(identity_tile, identity)
    sums = nl.ndarray((rows, ic, nocc), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=sums, value=0.0)
    for i in range(ic):
        for j in range(nocc):
            pair = i * nocc + j
            for a in range(0, nvir, rows):
                x = nl.ndarray((rows, nvir), dtype=nl.float32, buffer=nl.sbuf)
                load(x, t[pair * nvir + a : pair * nvir + a + rows, 0:nvir])
                table = nl.ndarray((rows, nvir), dtype=nl.float32, buffer=nl.sbuf)
                load(table, eu[a : a + rows, 0:nvir])
                y = nl.ndarray((rows, nvir), dtype=nl.float32, buffer=nl.psum)
                for b in range(0, nvir, rows):
                    block = nl.ndarray((rows, rows), dtype=nl.float32, buffer=nl.sbuf)
                    load(block, t[pair * nvir + b : pair * nvir + b + rows, a : a + rows])
                    transposed(y[:, b : b + rows], block, identity_tile, False)
                d = nl.ndarray((rows, nvir), dtype=nl.float32, buffer=nl.sbuf)
                add_column(d, table, neg_tile[:, pair : pair + 1])
                r = nl.ndarray((rows, nvir), dtype=nl.float32, buffer=nl.psum)
                nisa.reciprocal(dst=r, data=d)
                z = nl.ndarray((rows, nvir), dtype=nl.float32, buffer=nl.sbuf)
                nisa.scalar_tensor_tensor(dst=z, data=x, op0=nl.multiply, operand0=2.0, op1=nl.subtract, operand1=y)
                w = nl.ndarray((rows, nvir), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=w, data1=x, data2=r, op=nl.multiply)
                e = nl.ndarray((rows, nvir), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=e, data1=w, data2=z, op=nl.multiply)
                part = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
                dump = nl.ndarray((rows, nvir), dtype=nl.float32, buffer=nl.sbuf)
                row_sum(part, dump, e)
                nisa.tensor_tensor(dst=sums[:, i, j : j + 1], data1=sums[:, i, j : j + 1], data2=part, op=nl.add)
    load(out, sums)
    return out


@nki.jit
def pair_fused(b_i: nl.ndarray, b_j: nl.ndarray, eu: nl.ndarray, neg: nl.ndarray, nvir: int) -> nl.ndarray:
    """J and K partial sums of one pair; shapes: see the module."""
    tiles = b_i.shape[2] // P
    assert nvir <= BANK, "at most 512 virtual orbitals"
    out = nl.ndarray((P, 2 * tiles), dtype=nl.float32, buffer=nl.shared_hbm)
    left = fetch_slices(b_i)
    right = fetch_slices(b_j)
    eu_tile = fetch(eu)
    neg_tile = sbuf(1)
    load(neg_tile, neg)
    sums = sbuf(2 * tiles)
    for row in range(tiles):
        x_bank = psum(nvir)
        contract(x_bank, left, row * P, right, nvir)
        x = sbuf(nvir)
        nisa.activation(dst=x, op=nl.copy, data=x_bank)
        y = psum(nvir)
        contract(y, right, row * P, left, nvir)
        d = sbuf(nvir)
        add_column(d, eu_tile[:, row * nvir : (row + 1) * nvir], neg_tile)
        r = psum(nvir)
        nisa.reciprocal(dst=r, data=d)
        w = sbuf(nvir)
        nisa.tensor_tensor(dst=w, data1=x, data2=r, op=nl.multiply)
        jj = sbuf(nvir)
        nisa.tensor_tensor(dst=jj, data1=w, data2=x, op=nl.multiply)
        kk = sbuf(nvir)
        nisa.tensor_tensor(dst=kk, data1=w, data2=y, op=nl.multiply)
        dump = sbuf(nvir)
        row_sum(sums[:, 2 * row : 2 * row + 1], dump, jj)
        row_sum(sums[:, 2 * row + 1 : 2 * row + 2], dump, kk)
    load(out, sums)
    return out
