"""Functions shared by all kernels: new tiles, loads, products and transposes.

Every kernel file keeps to the common subset of NKI 0.6 and 0.7: instructions with keywords only,
2-D operands of the Tensor Engine, static Python loops, no closures, no comprehensions.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import (
    AHEAD,
    BANK,
    LEFT,
    STAGE,
    STAGED,
    P,
    depth_of,
    parts_of,
    pieces_of,
    slot,
)

TOGETHER = 4  # row tiles of B_i in an SBUF tile, at most
# a Newton step for every root, in case the Vector Engine's proves too coarse on first use
NEWTON = False
# All addresses are static on both chips; on gen2 the alternatives may use GpSimd, which then blocks
# SBUF.
DGE = nisa.dge_mode.none


def sbuf(columns: int, rows: int = P, at: int = -1) -> nl.ndarray:
    """A new (rows, columns) tile at byte `at` of the partitions; -1 : the compiler places it."""
    if at < 0:
        return nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    return nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf, address=(0, at))


def sbuf3(slices: int, columns: int, at: int = -1) -> nl.ndarray:
    """A new (128, slices, columns) tile, placed likewise."""
    if at < 0:
        return nl.ndarray((P, slices, columns), dtype=nl.float32, buffer=nl.sbuf)
    return nl.ndarray((P, slices, columns), dtype=nl.float32, buffer=nl.sbuf, address=(0, at))


def psum(columns: int, rows: int = P, bank: int = -1) -> nl.ndarray:
    """A new (rows, columns) tile in the given bank; -1 : in one chosen by the compiler."""
    if bank < 0:
        return nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum)
    at = 4 * BANK * bank
    return nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum, address=(0, at))


def load(dst: nl.ndarray, src: nl.ndarray) -> None:
    """Move between HBM and SBUF, either way."""
    nisa.dma_copy(dst=dst, src=src, dge_mode=DGE)


def copy_columns(
    dst: nl.ndarray, at: int, x: nl.ndarray, lo: int, hi: int, first: int, last: int
) -> None:
    """dst[:, at:] <- columns [first, last) of a matrix of which x holds [lo, hi); nothing if they
    do not overlap."""
    start = max(first, lo)
    stop = min(last, hi)
    if start < stop:
        nisa.activation(
            dst=dst[:, at + start - first : at + stop - first],
            op=nl.copy,
            data=x[:, start - lo : stop - lo],
        )


def add_column(dst: nl.ndarray, table: nl.ndarray, column: nl.ndarray) -> None:
    """dst = table + column (128, 1), on the Vector Engine.

    Not a copy with bias on the Scalar Engine: trn1 does not add that bias (aws-neuron-sdk issue
    1296).
    """
    nisa.tensor_scalar(dst=dst, data=table, op0=nl.add, operand0=column)


def inverse_root(dst: nl.ndarray, table: nl.ndarray, column: nl.ndarray) -> None:
    """dst = (table + column)^(-1/2), column (128, 1), in one instruction of the Vector Engine.

    Not an activation with bias on the Scalar Engine, whose root is a table of unstated accuracy. 1
    / D takes eight cycles an element instead of one.
    """
    if NEWTON:  # h (1.5 - 0.5 D h^2): squares the relative error
        rows = dst.shape[0]
        columns = dst.shape[1]
        rough = sbuf(columns, rows)
        root(rough, table, column)
        d = sbuf(columns, rows)
        add_column(d, table, column)
        scaled = sbuf(columns, rows)
        nisa.tensor_tensor(dst=scaled, data1=d, data2=rough, op=nl.multiply)
        product = sbuf(columns, rows)
        nisa.tensor_tensor(dst=product, data1=scaled, data2=rough, op=nl.multiply)
        factor = sbuf(columns, rows)
        nisa.tensor_scalar(
            dst=factor, data=product, op0=nl.multiply, operand0=-0.5, op1=nl.add, operand1=1.5
        )
        nisa.tensor_tensor(dst=dst, data1=factor, data2=rough, op=nl.multiply)
    else:
        root(dst, table, column)


def root(dst: nl.ndarray, table: nl.ndarray, column: nl.ndarray) -> None:
    """dst = (table + column)^(-1/2) as computed by the Vector Engine."""
    nisa.tensor_scalar(
        dst=dst, data=table, op0=nl.add, operand0=column, op1=nl.power, operand1=-0.5
    )


def multiply(dst: nl.ndarray, stationary: nl.ndarray, moving: nl.ndarray, accumulate: bool) -> None:
    """dst (+)= stationary^T moving; an accumulating product has a bank of its own."""
    nisa.nc_matmul(dst=dst, stationary=stationary, moving=moving, accumulate=accumulate)


def transposed(dst: nl.ndarray, source: nl.ndarray, identity: nl.ndarray, transpose: bool) -> None:
    """dst = source^T identity; transpose : mark it as a transpose (2x on gen3, a label on gen2)."""
    nisa.nc_matmul(
        dst=dst,
        stationary=source,
        moving=identity,
        is_moving_onezero=True,
        is_transpose=transpose,
        accumulate=False,
    )


def contract(
    x: nl.ndarray, stationary: nl.ndarray, column: int, moving: nl.ndarray, width: int
) -> None:
    """x = sum_k stationary[:, k, column : column+128]^T moving[:, k, 0:width], all in one bank."""
    for k in range(stationary.shape[1]):
        multiply(x, stationary[:, k, column : column + P], moving[:, k, 0:width], k > 0)


def transpose_piece(
    y: nl.ndarray,
    lo: int,
    start: int,
    height: int,
    source: nl.ndarray,
    at: int,
    identity: nl.ndarray,
    transpose: bool,
) -> None:
    """y[a, start+b-lo] = source[b, at+a] for every b < height whose column start+b lies in y, which
    begins at lo.

    transpose : mark whole blocks as transposes (2x on gen3, a label on gen2)
    """
    first = max(start, lo)
    last = min(start + height, lo + y.shape[1])
    if first < last:
        own = identity[0:height, first - start : last - start]
        whole = last - first == height
        transposed(
            y[:, first - lo : last - lo], source[0:height, at : at + P], own, transpose and whole
        )


def row_sum(result: nl.ndarray, dump: nl.ndarray, data: nl.ndarray, squared: bool = False) -> None:
    """result (128, 1) = row sums of data, or of its squares; dump receives the instruction's other
    output."""
    op = nl.copy
    if squared:
        op = nl.square
    nisa.activation(
        dst=dump,
        op=op,
        data=data,
        reduce_op=nl.add,
        reduce_res=result,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def load_part(
    b_j: nl.ndarray, slices: int, step: tuple[int, int, int], nvir: int, at: int = -1
) -> nl.ndarray:
    """One part of B_j in SBUF, straight from HBM; whole rows if there is only one part.

    step : as in `traversal`
    """
    parts = parts_of(nvir, slices)
    width = (nvir + parts - 1) // parts
    j = step[1]
    low = step[2] * width
    high = min(nvir, low + width)
    if parts == 1:
        high = b_j.shape[2]
    tile = sbuf3(slices, high - low, at)
    load(tile, b_j[j * P : (j + 1) * P, 0:slices, low:high])
    return tile


def fetch(table: nl.ndarray, columns: int, places: list[int], item: int) -> nl.ndarray:
    """The first columns of a table of 128 rows, in a tile that the Scalar Engine fills through
    staging tiles.

    places, item : its position, as in `slot`; without places, the compiler places tiles
    """
    tile = sbuf(columns, P, slot(places, item, 0, 1))
    for low in range(0, columns, STAGE):
        high = min(columns, low + STAGE)
        staged = sbuf(high - low, P, slot(places, STAGED, low // STAGE, AHEAD))
        load(staged, table[0:P, low:high])
        nisa.activation(dst=tile[:, low:high], op=nl.copy, data=staged)
    return tile


def stage_piece(
    b_i: nl.ndarray, slices: int, number: int, together: int, places: list[int]
) -> nl.ndarray:
    """Start loading a piece from HBM, for all rows i of a block: slices of `together` row tiles;
    see `advance`."""
    count = pieces_of(slices, together)
    groups = (b_i.shape[2] // P + together - 1) // together
    i = number // (groups * count)
    first = number // count % groups * together * P
    last = min(b_i.shape[2], first + together * P)
    low = number % count * depth_of(together * P)
    high = min(slices, low + depth_of(together * P))
    tile = sbuf3(high - low, last - first, slot(places, STAGED, number, AHEAD))
    load(tile, b_i[i * P : (i + 1) * P, low:high, first:last])
    return tile


def advance(
    b_i: nl.ndarray,
    slices: int,
    together: int,
    arrived: tuple[list[nl.ndarray], list[nl.ndarray], int],
    needed: int,
    allowed: int,
    places: list[int],
    count_held: int,
) -> tuple[list[nl.ndarray], list[nl.ndarray], int]:
    """Copy the pieces requested before, and all of the first `needed` tiles; then request two more
    of `allowed` tiles.

    A piece lands in a staging tile and the Scalar Engine copies it to its final place, because on
    trn1 tiles written by DMA may take at most 64 kB per partition; those written by engines do not
    count.

    arrived : tiles (128, slices, `together` row tiles) so far, one row i after another; pieces in
        transit; number of the first of these. The updated values are returned; tiles are appended
    places : as in `fetch`; count_held : number of tiles of B_i with places
    """
    count = pieces_of(slices, together)
    groups = (b_i.shape[2] // P + together - 1) // together
    tiles = arrived[0]
    coming = arrived[1]
    done = arrived[2]
    end = max(needed * count, done + len(coming))
    for number in range(done, end):
        for other in range(done + len(coming), min(end, number + AHEAD)):
            coming.append(stage_piece(b_i, slices, other, together, places))
        piece = coming[number - done]
        if number % count == 0:
            at = slot(places, LEFT, number // count, count_held)
            tiles.append(sbuf3(slices, piece.shape[2], at))
        low = number % count * depth_of(together * P)
        nisa.activation(
            dst=tiles[number // count][:, low : low + piece.shape[1], 0 : piece.shape[2]],
            op=nl.copy,
            data=piece,
        )
    begun = []
    for number in range(end, min(min(allowed, b_i.shape[0] // P * groups) * count, end + AHEAD)):
        begun.append(stage_piece(b_i, slices, number, together, places))
    return tiles, begun, end
