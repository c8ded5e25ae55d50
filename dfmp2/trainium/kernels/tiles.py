"""What all kernels share: fresh tiles, loads, products and transposes, and where packed columns lie.

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


def add_column(dst: nl.ndarray, table: nl.ndarray, column: nl.ndarray) -> None:
    """dst = table + column (128, 1), on the Vector Engine.

    Not a copy with bias on the Scalar Engine: trn1 does not add that bias (aws-neuron-sdk issue 1296).
    """
    nisa.tensor_scalar(dst=dst, data=table, op0=nl.add, operand0=column)


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


def run_start(nvir: int, row: int) -> int:
    """First packed column of the blocks right of (row, row)."""
    start = nvir
    for above in range(row):
        start += nvir - P * (above + 1)
    return start


def upper_columns(nvir: int) -> int:
    """U: columns of the upper triangle of blocks."""
    tiles = (nvir + P - 1) // P
    return run_start(nvir, max(0, tiles - 1))


def lower_start(row: int) -> int:
    """First packed column of the blocks left of (row, row)."""
    return P * row * (row - 1) // 2


def traversal(edge: int, residents: int, parts: int, diagonal: bool) -> list[tuple[int, int, int]]:
    """(first resident i, j, part of B_j) in the order of the loads: j forwards, then backwards, in turn."""
    steps = []
    backwards = False
    for first in range(0, edge, residents):
        low = first if diagonal else 0
        count = (edge - low) * parts
        for step in range(count):
            place = count - 1 - step if backwards else step
            steps.append((first, low + place // parts, place % parts))
        backwards = not backwards
    return steps


def pairs_of(first: int, j: int, residents: int, diagonal: bool) -> int:
    """How many of the residents pair with j."""
    return min(residents, j - first + 1) if diagonal else residents


def grouped(
    steps: list[tuple[int, int, int]], residents: int, group: int, diagonal: bool
) -> list[tuple[int, int, int]]:
    """(step, first member, members) in the order of emission: whole groups, single pairs where some do not exist."""
    items = []
    for step in range(len(steps)):
        present = pairs_of(steps[step][0], steps[step][1], residents, diagonal)
        for start in range(0, residents, group):
            if start + group <= present:
                items.append((step, start, group))
            else:
                for member in range(start, present):
                    items.append((step, member, 1))
    return items


def load_part(b_j: nl.ndarray, j: int, part: int, nvir: int) -> nl.ndarray:
    """One part of B_j in SBUF; whole rows where there is only one part."""
    parts = (nvir + BANK - 1) // BANK
    width = (nvir + parts - 1) // parts
    low = part * width
    high = min(nvir, low + width) if parts > 1 else b_j.shape[2]
    tile = sbuf3(b_j.shape[1], high - low)
    load(tile, b_j[j * P : (j + 1) * P, 0 : b_j.shape[1], low:high])
    return tile


def load_resident(b_i: nl.ndarray, i: int) -> nl.ndarray:
    """All of B_i in SBUF."""
    tile = sbuf3(b_i.shape[1], b_i.shape[2])
    load(tile, b_i[i * P : (i + 1) * P, 0 : b_i.shape[1], 0 : b_i.shape[2]])
    return tile


def sum_columns(total: int, run: int) -> int:
    """Columns of partial sums of `total` packed columns: J, then K / 2, each chunk in runs of `run` elements."""
    count = 0
    for low in range(0, total, BANK):
        size = min(total, low + BANK) - low
        count += (2 * size + run - 1) // run + (size + run - 1) // run
    return count


def load_rows(b_i: nl.ndarray, i: int, first: int, together: int) -> nl.ndarray:
    """`together` row tiles of B_i in one SBUF tile, from row tile `first` on."""
    last = min(b_i.shape[2], (first + together) * P)
    tile = sbuf3(b_i.shape[1], last - first * P)
    load(tile, b_i[i * P : (i + 1) * P, 0 : b_i.shape[1], first * P : last])
    return tile


def load_row_tiles(b_i: nl.ndarray, i: int, together: int) -> list[nl.ndarray]:
    """All row tiles of B_i, `together` in an SBUF tile."""
    held = []
    for row in range(0, b_i.shape[2] // P, together):
        held.append(load_rows(b_i, i, row, together))
    return held
