"""Probe kernels of the Tensor Engine: width of a product, cost of a product, cost of a transpose.

    product_width         left (2, 128), right (2, 128) -> left^t right with operands of a chosen format
    repeated_products     a (128, 512), b (128, N)      -> sum over turns of a[:, turn mod 4]^t b
    repeated_transposes   a (128, 512)                  -> (128, 1), `banks` times the row sums of four a[:, block]^t

Sums and row sums use every result, so that no compiler can leave an instruction out.
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import BANK, P
from dfmp2.trainium.kernels.tiles import load, psum, row_sum, sbuf

BLOCKS = 4  # stationary operands used in turn


def narrowed(source: nl.ndarray, dtype: object) -> nl.ndarray:
    """A (2, 128) matrix in SBUF in another format."""
    wide = nl.ndarray((2, P), dtype=nl.float32, buffer=nl.sbuf)
    load(wide, source)
    narrow = nl.ndarray((2, P), dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=narrow, src=wide)
    return narrow


@nki.jit
def product_width(left: nl.ndarray, right: nl.ndarray, format_number: int) -> nl.ndarray:
    """left^t right; format_number : 0 float32, 1 bfloat16, 2 float16. The operands must be exact in that format."""
    dtype = nl.float32
    if format_number == 1:
        dtype = nl.bfloat16
    if format_number == 2:
        dtype = nl.float16
    out = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.shared_hbm)
    stationary = narrowed(left, dtype)
    moving = narrowed(right, dtype)
    x = psum(P)
    nisa.nc_matmul(dst=x, stationary=stationary, moving=moving, accumulate=False)
    tile = sbuf(P)
    nisa.activation(dst=tile, op=nl.copy, data=x)
    load(out, tile)
    return out


@nki.jit
def repeated_products(a: nl.ndarray, b: nl.ndarray, repeats: int, one_zero: bool) -> nl.ndarray:
    """`repeats` products added up in one PSUM bank; one_zero : b holds zeros and ones only, and say so."""
    width = b.shape[1]
    out = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.shared_hbm)
    stationary = sbuf(BLOCKS * P)
    load(stationary, a)
    moving = sbuf(width)
    load(moving, b)
    x = psum(width)
    for turn in range(repeats):
        block = turn % BLOCKS
        nisa.nc_matmul(
            dst=x,
            stationary=stationary[:, block * P : (block + 1) * P],
            moving=moving,
            is_moving_onezero=one_zero,
            accumulate=turn > 0,
        )
    tile = sbuf(width)
    nisa.activation(dst=tile, op=nl.copy, data=x)
    load(out, tile)
    return out


@nki.jit
def repeated_transposes(
    a: nl.ndarray, identity: nl.ndarray, banks: int, transpose: bool
) -> nl.ndarray:
    """`banks` times four 128 x 128 transposes against the identity, summed by two engines in turn; `banks` even.

    transpose : also mark them as transposes
    """
    out = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    source = sbuf(BANK)
    load(source, a)
    one = sbuf(P)
    load(one, identity)
    sums = sbuf(banks)
    for bank in range(banks):
        y = psum(BANK)
        for block in range(BLOCKS):
            nisa.nc_matmul(
                dst=y[:, block * P : (block + 1) * P],
                stationary=source[:, block * P : (block + 1) * P],
                moving=one,
                is_moving_onezero=True,
                is_transpose=transpose,
                accumulate=False,
            )
        if bank % 2 == 0:
            row_sum(sums[:, bank : bank + 1], sbuf(BANK), y)
        else:
            nisa.tensor_reduce(dst=sums[:, bank : bank + 1], op=nl.add, data=y, axis=1)
    total = sbuf(1)
    row_sum(total, sbuf(banks), sums)
    load(out, total)
    return out
