"""Pair energies of a given T, slower than K3 and independent of its folding: its cross-check.

    e_ij = sum_ab T_ab (2 T_ab - T_ba) / D_ab     D_ab = e_a + e_b - e_i - e_j

nvir <= 877, so that T of a pair takes at most 24 kB of a partition; its NT =
ceil(nvir/128) row tiles have R = ceil(nvir/NT) rows, the last as many as there are:
  t (ic*nvir, nocc*nvir or more) row (i, a), column (j, b): B_i B_j^t of all j side by side
  eu (nvir, nvir) e_a + e_b;  neg (R, ic*nocc) -(e_i + e_j);  identity (R, R);  returns (R, ic, nocc) partial sums
Budget per pair at large (nvir 672): 36 transposes, 84 elementwise statements, 53 us of Vector
Engine. Documented (AWS Neuron documentation): tiles of at most 128 rows, or fewer
(nki/about/tiling-overview).

    per pair, per row tile, per part of at most 512 columns:
        Y = transposed tiles of these columns;  sum X (2 X - Y) / D, added up
Twins: tests/twins.py
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import BANK, PART, P, equal_parts
from dfmp2.trainium.kernels.tiles import (
    add_column,
    inverse,
    load,
    psum,
    row_sum,
    sbuf,
    sbuf3,
    transposed,
)


@nki.jit
def mp2_energy(
    t: nl.ndarray, eu: nl.ndarray, neg: nl.ndarray, identity: nl.ndarray, ic: int, nocc: int
) -> nl.ndarray:
    """Partial sums of e_ij for ic rows i and all nocc j; shapes: see the module."""
    nvir = eu.shape[0]
    tiles = (nvir + P - 1) // P
    rows = equal_parts(nvir, P)
    part = rows * equal_parts(tiles, BANK // rows)
    assert tiles * nvir <= PART, "at most 877 virtual orbitals"
    out = nl.ndarray((rows, ic, nocc), dtype=nl.float32, buffer=nl.shared_hbm)
    neg_tile = sbuf(ic * nocc, rows)
    load(neg_tile, neg)
    identity_tile = sbuf(rows, rows)
    load(identity_tile, identity)
    eu_tile = load_rows(eu, 0, rows, 0, nvir)
    sums = nl.ndarray((rows, ic, nocc), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=sums, value=0.0)
    for i in range(ic):
        for j in range(nocc):
            pair = i * nocc + j
            x = load_rows(t, i * nvir, rows, j * nvir, nvir)
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
                    r = inverse(d)
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


def load_rows(src: nl.ndarray, row: int, rows: int, low: int, size: int) -> nl.ndarray:
    """A square of an HBM matrix from (row, low) on as (rows, row tiles, size)."""
    tiles = (size + rows - 1) // rows
    tile = sbuf3(tiles, size)
    for a in range(tiles):
        count = min(rows, size - a * rows)
        start = row + a * rows
        load(tile[0:count, a, 0:size], src[start : start + count, low : low + size])
    return tile
