"""One pair on the folded triangle: T out of PSUM, and the elementwise work (equations and layout: pair_energy.py)."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from dfmp2.backends.nki.kernels.blocks import lower_start, run_start, sum_columns, upper_columns
from dfmp2.backends.nki.kernels.tiles import BANK, P, copy_columns, psum, row_sum, sbuf, transpose_piece


def store_row_tile(
    x: nl.ndarray, lo: int, hi: int, row: int, nvir: int, xu: nl.ndarray, tl: nl.ndarray, ld: nl.ndarray
) -> None:
    """Copy columns [lo, hi) of row tile `row` of T out of PSUM: upper blocks to xu, lower to tl, a short last to ld."""
    left = P * row
    height = min(P, nvir - left)
    copy_columns(xu, left, x, lo, hi, left, left + height)
    if height < P and left >= lo and left < hi:
        nisa.activation(dst=ld[0:height, 0:height], op=nl.copy, data=x[0:height, left - lo : left - lo + height])
    copy_columns(xu, run_start(nvir, row), x, lo, hi, left + P, nvir)
    copy_columns(tl, lower_start(row), x, lo, hi, 0, left)


def transposes(
    y: nl.ndarray,
    lo: int,
    hi: int,
    nvir: int,
    xu: nl.ndarray,
    tl: nl.ndarray,
    ld: nl.ndarray,
    identity: nl.ndarray,
    transpose: bool,
) -> None:
    """y = packed columns [lo, hi) of the transposed lower triangle of T."""
    tiles = (nvir + P - 1) // P
    for row in range(tiles):
        height = min(P, nvir - P * row)
        if height < P:
            transpose_piece(y, lo, hi, P * row, height, ld, 0, identity, transpose)
        else:
            transpose_piece(y, lo, hi, P * row, height, xu, P * row, identity, transpose)
    for row in range(tiles):
        for column in range(row + 1, tiles):
            start = run_start(nvir, row) + P * (column - row - 1)
            height = min(P, nvir - P * column)
            transpose_piece(y, lo, hi, start, height, tl, lower_start(column) + P * row, identity, transpose)


def emit_chunk(
    xu: nl.ndarray,
    tl: nl.ndarray,
    ld: nl.ndarray,
    eu: nl.ndarray,
    eu_at: int,
    neg: nl.ndarray,
    single: int,
    double: int,
    identity: nl.ndarray,
    sums: nl.ndarray,
    at: int,
    nvir: int,
    chunk: int,
    run: int,
    transpose: bool,
) -> None:
    """J and K parts of 512 packed columns of one pair into sums, from column at + chunk * sum_columns(512) on.

    eu_at : first column of the table in eu; single, double : columns of neg with -(e_i+e_j) and twice that
    """
    lo = BANK * chunk
    hi = min(upper_columns(nvir), lo + BANK)
    size = hi - lo
    doubled = max(0, min(hi, nvir) - lo)
    at += chunk * sum_columns(BANK, run)
    y = psum(size)
    transposes(y, lo, hi, nvir, xu, tl, ld, identity, transpose)
    d = sbuf(size)
    if doubled > 0:
        nisa.activation(
            dst=d[:, 0:doubled],
            op=nl.copy,
            data=eu[:, eu_at + lo : eu_at + lo + doubled],
            bias=neg[:, double : double + 1],
        )
    if doubled < size:
        nisa.activation(
            dst=d[:, doubled:size],
            op=nl.copy,
            data=eu[:, eu_at + lo + doubled : eu_at + hi],
            bias=neg[:, single : single + 1],
        )
    r = psum(size)
    nisa.reciprocal(dst=r, data=d)
    sq = sbuf(2 * size)
    nisa.activation(dst=sq[:, 0:size], op=nl.square, data=xu[:, lo:hi])
    nisa.activation(dst=sq[:, size : 2 * size], op=nl.square, data=y)
    jj = sbuf(2 * size)
    nisa.tensor_tensor(dst=jj[:, 0:size], data1=sq[:, 0:size], data2=r, op=nl.multiply)
    nisa.tensor_tensor(dst=jj[:, size : 2 * size], data1=sq[:, size : 2 * size], data2=r, op=nl.multiply)
    w = sbuf(size)
    nisa.tensor_tensor(dst=w, data1=xu[:, lo:hi], data2=r, op=nl.multiply)
    kp = sbuf(size)
    nisa.tensor_tensor(dst=kp, data1=w, data2=y, op=nl.multiply)
    row_sums(sums, at, jj, 2 * size, run)
    row_sums(sums, at + (2 * size + run - 1) // run, kp, size, run)


def row_sums(sums: nl.ndarray, at: int, data: nl.ndarray, size: int, run: int) -> None:
    """Row sums of `size` elements, at most `run` at a time, into columns at, at + 1, .. of sums."""
    for low in range(0, size, run):
        high = min(size, low + run)
        column = at + low // run
        row_sum(sums[:, column : column + 1], sbuf(high - low), data[:, low:high])
