"""Elementwise work of row tiles that several pairs share (pair_energy_packed.py has the equations and the layout)."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from dfmp2.backends.nki.kernels.tiles import P, psum, row_sum, sbuf, sbuf3


def terms(x: nl.ndarray, y: nl.ndarray, d: nl.ndarray, size: int) -> tuple[nl.ndarray, nl.ndarray]:
    """(X^2 R, Y^2 R) as (128, 2, size) and X R Y as (128, size), R = 1/d; x in SBUF, y in PSUM."""
    r = psum(size)
    nisa.reciprocal(dst=r, data=d)
    sq = sbuf3(2, size)
    nisa.activation(dst=sq[:, 0, 0:size], op=nl.square, data=x)
    nisa.activation(dst=sq[:, 1, 0:size], op=nl.square, data=y)
    jj = sbuf3(2, size)
    nisa.tensor_tensor(dst=jj[:, 0, 0:size], data1=sq[:, 0, 0:size], data2=r, op=nl.multiply)
    nisa.tensor_tensor(dst=jj[:, 1, 0:size], data1=sq[:, 1, 0:size], data2=r, op=nl.multiply)
    w = sbuf(size)
    nisa.tensor_tensor(dst=w, data1=x, data2=r, op=nl.multiply)
    kp = sbuf(size)
    nisa.tensor_tensor(dst=kp, data1=w, data2=y, op=nl.multiply)
    return jj, kp


def emit_shared(
    xs: nl.ndarray,
    tlp: nl.ndarray,
    eu: nl.ndarray,
    eu_at: int,
    neg: nl.ndarray,
    single: int,
    identity: nl.ndarray,
    sums: nl.ndarray,
    at: int,
    height: int,
    full: int,
) -> None:
    """J and K parts of the blocks (A, L) of the pairs of a group: two columns of sums per pair, from `at` on."""
    span = full * height
    d = sbuf(full * P)
    y = psum(full * P)
    for m in range(P // height):
        nisa.activation(
            dst=d[:, m * span : (m + 1) * span],
            op=nl.copy,
            data=eu[:, eu_at : eu_at + span],
            bias=neg[:, single + m : single + m + 1],
        )
        for row in range(full):
            nisa.nc_matmul(
                dst=y[:, m * span + row * height : m * span + (row + 1) * height],
                stationary=tlp[:, row * P : (row + 1) * P],
                moving=identity[:, m * height : (m + 1) * height],
                is_moving_onezero=True,
                accumulate=False,
            )
    jj, kp = terms(xs, y, d, full * P)
    for m in range(P // height):
        dump = sbuf3(2, span)
        row_sum(sums[:, at + 2 * m : at + 2 * m + 1], dump, jj[:, :, m * span : (m + 1) * span])
        row_sum(sums[:, at + 2 * m + 1 : at + 2 * m + 2], dump[:, 0, 0:span], kp[:, m * span : (m + 1) * span])


def emit_last(
    xlp: nl.ndarray,
    bd: nl.ndarray,
    eu: nl.ndarray,
    eu_at: int,
    neg: nl.ndarray,
    double: int,
    identity: nl.ndarray,
    sums: nl.ndarray,
    at: int,
    height: int,
) -> None:
    """J and K parts of the blocks (L, L) of a group, rows m*height.. for pair m, into two columns of sums."""
    d = sbuf(height)
    nisa.activation(dst=d, op=nl.copy, data=eu[:, eu_at : eu_at + height], bias=neg[:, double : double + 1])
    y = psum(height)
    nisa.nc_matmul(dst=y, stationary=bd, moving=identity[:, P : P + height], is_moving_onezero=True, accumulate=False)
    jj, kp = terms(xlp, y, d, height)
    dump = sbuf3(2, height)
    row_sum(sums[:, at : at + 1], dump, jj)
    row_sum(sums[:, at + 1 : at + 2], dump[:, 0, 0:height], kp)


def pack_rows(tile: nl.ndarray, m: int, source: nl.ndarray, height: int, full: int) -> None:
    """The last rows of a resident become columns m*height.. of a packed one, (128, NK, 128)."""
    nisa.activation(
        dst=tile[:, :, m * height : (m + 1) * height],
        op=nl.copy,
        data=source[:, :, full * P : full * P + height],
    )
