"""Pieces that all kernels share: fresh tiles, loads, copies out of PSUM, products and transposes on the Tensor Engine.

Every kernel file keeps to what NKI 0.3.0 to 0.7.0 have in common: instructions with keywords only, 2-D operands of the
Tensor Engine, static Python loops, no closures, no comprehensions.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

P = 128  # partitions, and most columns of a stationary operand
BANK = 512  # float32 numbers in a PSUM bank, and most columns of a moving operand
DGE = nisa.dge_mode.none  # all addresses are static; on gen2 any other mode may use GpSimd, which then blocks SBUF


def sbuf(columns: int) -> nl.ndarray:
    """A fresh (128, columns) tile."""
    return nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf)


def sbuf3(slices: int, columns: int) -> nl.ndarray:
    """A fresh (128, slices, columns) tile."""
    return nl.ndarray((P, slices, columns), dtype=nl.float32, buffer=nl.sbuf)


def psum(columns: int) -> nl.ndarray:
    """A fresh bank of (128, columns)."""
    return nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.psum)


def load(dst: nl.ndarray, src: nl.ndarray) -> None:
    """Move between HBM and SBUF, either way."""
    nisa.dma_copy(dst=dst, src=src, dge_mode=DGE)


def copy_columns(dst: nl.ndarray, at: int, x: nl.ndarray, lo: int, hi: int, first: int, last: int) -> None:
    """dst[:, at:] <- columns [first, last) of a matrix of which x holds [lo, hi); nothing where they do not meet."""
    start = max(first, lo)
    stop = min(last, hi)
    if start < stop:
        nisa.activation(
            dst=dst[:, at + start - first : at + stop - first], op=nl.copy, data=x[:, start - lo : stop - lo]
        )


def contract(x: nl.ndarray, stationary: nl.ndarray, column: int, moving: nl.ndarray, width: int) -> None:
    """x = sum_k stationary[:, k, column : column+128]^T moving[:, k, 0:width], all in one bank."""
    for k in range(stationary.shape[1]):
        nisa.nc_matmul(
            dst=x,
            stationary=stationary[:, k, column : column + P],
            moving=moving[:, k, 0:width],
            accumulate=k > 0,
        )


def transpose_piece(
    y: nl.ndarray,
    lo: int,
    hi: int,
    start: int,
    height: int,
    source: nl.ndarray,
    at: int,
    identity: nl.ndarray,
    transpose: bool,
) -> None:
    """y[a, start+b-lo] = source[b, at+a] for the b < height whose column start+b lies in [lo, hi).

    transpose : mark whole blocks as transposes (2x on gen3, a label on gen2)
    """
    first = max(start, lo)
    last = min(start + height, hi)
    if first < last:
        nisa.nc_matmul(
            dst=y[:, first - lo : last - lo],
            stationary=source[0:height, at : at + P],
            moving=identity[0:height, first - start : last - start],
            is_moving_onezero=True,
            is_transpose=transpose and last - first == height,
            accumulate=False,
        )


def row_sum(result: nl.ndarray, dump: nl.ndarray, data: nl.ndarray) -> None:
    """result (128, 1) = row sums of data; dump takes the copy that the instruction makes."""
    nisa.activation(
        dst=dump, op=nl.copy, data=data, reduce_op=nl.add, reduce_res=result, reduce_cmd=nisa.reduce_cmd.reset_reduce
    )
