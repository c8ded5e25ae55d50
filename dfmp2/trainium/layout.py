"""Layout of arrays for the kernels, and reading of their partial sums.

    B3[i*128 + p, k, a] = B[i, a, k*128 + p]        one block of `edge` occupied orbitals per device buffer

A row of B3 gets an empty slice if its length in bytes would be a power of two of at least 8 kB,
because transfers of parts of such rows run at half the rate
(aws-samples/sample-spectral-dns-on-aws-neuron, docs/neuron-rules.md, rule 7).

Sizes are padded to buckets so that compiled programs do not depend on details of the molecule:
virtuals to 32, fitting functions to 128. The last block of occupied orbitals takes the remaining
ones and has its own programs. B is zero in all padding, and padded virtuals are at +1000 Eh, so
that every denominator is positive and padded terms are exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.trainium.kernels.sizes import (
    AHEAD,
    BANK,
    STAGE,
    P,
    equal_parts,
    grouped,
    item_columns,
    lower_start,
    parts_of,
    sbuf_map,
    sum_columns,
    sum_places,
    traversal,
    upper_columns,
)

EDGE = 16  # most occupied orbitals of a block of B; the last block of a spin may have fewer
SHORT_EDGE = 8  # if the program for a block of pairs would exceed PRODUCTS
TEMPORARIES = 6  # tiles of a chunk held at a time
# Bytes per partition that residents may fill: 70 % of 192 and 224 KiB, because the compiler's
# placement of tiles is still unknown; the packed variant may take more for the residents that a
# group needs.
COMFORTABLE = {"gen2": 137_625, "gen3": 160_563}
BUDGETS = {"gen2": 178_688, "gen3": 208_896}
PRODUCTS = 16_384  # products in a program; the pair energies of the large shape have 15,300
# Bytes of fitted integrals per call of the transformation, but at least one slice
PIECE = 2**30
# Bytes of a tensor in device memory: offsets of the DMA engines have 32 bits, and 4 GiB abort
TENSOR = 2**31
STRIDE = 8192  # bytes; row lengths must not be powers of two from here on
FAR = 1.0e3  # Eh, of padded virtual orbitals


def padded_nvir(nvir: int) -> int:
    """Number of virtual orbitals padded to a multiple of 32."""
    return -(-nvir // 32) * 32


def padded_naux(naux: int) -> int:
    """Number of fitting functions padded to whole slices of 128."""
    return max(P, -(-naux // P) * P)


def tile_columns(nvir: int) -> int:
    """Number of columns of a B tile: virtuals padded to whole row tiles."""
    return -(-nvir // P) * P


def stored_slices(columns: int, naux: int) -> int:
    """Number of slices of 128 fitting functions in a row of a B tile with `columns` columns; `naux`
    is padded."""
    row = 4 * naux * columns // P
    return naux // P + (row >= STRIDE and row & (row - 1) == 0)


def stored_columns(width: int) -> int:
    """Number of columns of a table of `width` columns: one more if the bytes of its rows would be a
    power of two."""
    return width + (4 * width >= STRIDE and width & (width - 1) == 0)


def _stored(table: Array) -> Array:
    return np.pad(table, ((0, 0), (0, stored_columns(table.shape[1]) - table.shape[1])))


def chunk_columns(total: int) -> list[tuple[int, int]]:
    """Numbers of columns of J parts and of K parts for each chunk of `total` packed columns."""
    sizes = [min(total, low + BANK) - low for low in range(0, total, BANK)]
    return [(2 * sum_places(size), sum_places(size)) for size in sizes]


def fitted_shape(tiles: int, slices: int) -> tuple[int, int, int]:
    """Shape of slices of 128 A_P for the transformation; tiles : number of tiles of 128 basis
    functions."""
    return slices * tiles * P, stored_slices(P, tiles * P * P), P


def slices_at_once(tiles: int, slices: int) -> int:
    """Number of slices of 128 fitting functions per call of the transformation, with calls of equal
    size."""
    most = min(PRODUCTS // (tiles**2 * P), PIECE // (4 * prod(fitted_shape(tiles, 1))))
    return equal_parts(slices, max(1, most))


def pack_triangle(lower: Array) -> Array:
    """L (n, n) in the form that `trsm` reads: (128 NT, NT, 128), row i*128+p, slice j < i: L_ij[:,
    p], slice i: L_ii^-1[:, p]."""
    tiles = -(-len(lower) // P)
    padded = np.eye(tiles * P)
    padded[: len(lower), : len(lower)] = np.tril(lower)
    packed = padded.reshape(tiles, P, tiles, P).transpose(0, 3, 2, 1).copy()
    for i in range(tiles):
        packed[i, :, i] = np.linalg.inv(packed[i, :, i])
    stored = stored_slices(P, tiles * P)
    return np.pad(packed.reshape(tiles * P, tiles, P), ((0, 0), (0, stored - tiles), (0, 0)))


def block_edge(nvir: int, naux: int) -> int:
    """Number of occupied orbitals in a block of B at these padded sizes."""
    slices = naux // P
    products = -(-nvir // P) * parts_of(nvir, slices) * slices
    if EDGE * EDGE * products > PRODUCTS:
        return SHORT_EDGE
    return EDGE


def residents(nvir: int, naux: int, target: str = "gen2", extra: int = 0, group: int = 1) -> int:
    """Number of B_i blocks to hold at a time: as many as fit, or one if B_j comes in parts.

    Parameters
    ----------
    nvir, naux : padded
    target : "gen2" or "gen3"
    extra : additional bytes per partition needed by a variant
    group : minimum number of residents of a variant
    """

    def fits(count: int) -> bool:
        wanted = sbuf_bytes(nvir, naux, count) + extra
        return wanted <= COMFORTABLE[target] or (count == group and wanted <= BUDGETS[target])

    return max(1, _most_residents(nvir, naux, fits))


def placed_residents(nvir: int, naux: int, target: str = "gen2") -> int:
    """Number of B_i blocks that the placed variant holds within 70 % of SBUF, 0 if not even one
    fits; nvir, naux : padded."""
    edge = block_edge(nvir, naux)

    def fits(count: int) -> bool:
        return sbuf_map(nvir, naux // P, count, edge**2, edge)[-1] <= COMFORTABLE[target]

    return _most_residents(nvir, naux, fits)


def _most_residents(nvir: int, naux: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits and divides a block, at most 1 if B_j comes in parts, 0 if none
    fits."""
    edge = block_edge(nvir, naux)
    counts = [count for count in range(1, edge + 1) if edge % count == 0]
    if parts_of(nvir, naux // P) > 1:
        counts = [1]
    return max(filter(fits, counts), default=0)


def sbuf_bytes(nvir: int, naux: int, count: int = 1) -> int:
    """Approximate bytes per partition for the pair energies with `count` residents; nvir, naux :
    padded."""
    upper, edge = upper_columns(nvir), block_edge(nvir, naux)
    block = naux // P * tile_columns(nvir) * 4
    part = naux // P * min(tile_columns(nvir), -(-nvir // parts_of(nvir, naux // P))) * 4
    tables = 3 * upper + 2 * lower_start(tile_columns(nvir) // P) + 2 * edge * edge + 3 * P
    chunks = TEMPORARIES * min(BANK, upper)
    sums = 2 * count * edge * sum_columns(upper)
    return 4 * (tables + chunks + sums) + 2 * part + 4 * AHEAD * STAGE + count * block


def pack_b(
    b: Array, edge: int = 0, dtype: type[np.floating[Any]] = np.float32
) -> Iterator[NDArray[Any]]:
    """B (nocc, nvir, naux) as blocks (orbitals*128, stored slices, tile columns), zero in the
    padding.

    Parameters
    ----------
    edge : occupied orbitals per block, 0 for `block_edge`; the last block has the remaining ones
    """
    nocc, nvir, naux = b.shape
    edge = edge or block_edge(padded_nvir(nvir), padded_naux(naux))
    columns = tile_columns(padded_nvir(nvir))
    slices = stored_slices(columns, padded_naux(naux))
    for first in range(0, nocc, edge):
        rows = b[first : first + edge]
        block = np.zeros((len(rows), slices * P, columns), dtype)
        block[:, :naux, :nvir] = rows.transpose(0, 2, 1)
        folded = block.reshape(len(rows), slices, P, columns).transpose(0, 2, 1, 3)
        yield np.ascontiguousarray(folded).reshape(len(rows) * P, slices, columns)


def unpack_b(blocks: Iterable[NDArray[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
    """B (nocc, nvir, naux) from its blocks."""
    folded = np.concatenate(list(blocks))
    rows = folded.reshape(-1, P, *folded.shape[1:]).transpose(0, 3, 2, 1)
    return rows.reshape(*rows.shape[:2], -1)[: shape[0], : shape[1], : shape[2]]


def pad_virtuals(eps_vir: Array) -> Array:
    """Virtual energies padded to whole row tiles with a very high one."""
    padded = np.full(tile_columns(padded_nvir(eps_vir.size)), FAR)
    padded[: eps_vir.size] = eps_vir
    return padded


def pair_tables(eps_vir: Array, single: bool, group: int) -> Array:
    """Tables of K3 side by side: e_a + e_b for single pairs, if any, and for groups; identities.

    group : number of pairs that share a row tile, 1 if there are only single pairs
    """
    e, nvir = pad_virtuals(eps_vir), padded_nvir(eps_vir.size)
    found = []
    if single:
        found.append(_folded(e, nvir))
    if group > 1:
        left, height = nvir // P * P, P // group
        found.append(_folded(e, left))
        found += [e[start : start + P, None] + e[None, left:nvir] for start in range(0, left, P)]
        found.append(np.tile(2 * (e[left:nvir, None] + e[None, left:nvir]), (group, 1)))
    found.append(np.eye(P))
    if group > 1:
        found.append(np.tile(np.eye(height), (group, 1)))
    return _stored(np.hstack(found))


def _folded(e: Array, nvir: int) -> Array:
    """e_a + e_b of all diagonal blocks (doubled), then of the blocks right of each, row by row."""
    rows = [e[start : start + P, None] for start in range(0, nvir, P)]
    diagonal = [2 * (row + e[None, P * k : min(nvir, P * k + P)]) for k, row in enumerate(rows)]
    right = [row + e[None, P * k + P : nvir] for k, row in enumerate(rows)]
    return np.hstack([*diagonal, *right])


def cross_table(left: Array, right: Array) -> Array:
    """Table (128, NT*n) of e_a + e_b, one row tile of the left space after another."""
    e = pad_virtuals(left)
    f = pad_virtuals(right)[: padded_nvir(right.size)]
    return _stored(
        np.hstack([e[start : start + P, None] + f[None, :] for start in range(0, e.size, P)])
    )


class Item(NamedTuple):
    """Pairs that a kernel emits together: rows i of a block, one j; more than one i only if
    packed."""

    rows: tuple[int, ...]
    j: int


def emission(rows: int, columns: int, held: int, diagonal: bool, group: int) -> tuple[Item, ...]:
    """The items of a block of rows x columns pairs, in the order of emission by a kernel with
    `held` residents."""
    steps = traversal(rows, columns, held, 1, diagonal)
    places = (
        (*steps[step][:2], start, count)
        for step, start, count in grouped(steps, rows, held, group, 1, diagonal)
    )
    return tuple(
        Item(tuple(range(first + start, first + start + count)), j)
        for first, j, start, count in places
    )


def neg_table(eps_i: Array, eps_j: Array, items: tuple[Item, ...]) -> Array:
    """Table (128, 2 npair + ngroup): -(e_i + e_j) in emission order, then twice that, then a
    stacked column per group."""
    sums = np.array([eps_i[i] + eps_j[item.j] for item in items for i in item.rows])
    plain = np.broadcast_to(np.concatenate([-sums, -2 * sums]), (P, 2 * sums.size))
    groups = [
        np.repeat(-2 * (eps_i[list(i.rows)] + eps_j[i.j]), P // len(i.rows))
        for i in items
        if len(i.rows) > 1
    ]
    return np.hstack([plain, *(group[:, None] for group in groups)])


def _totals(part: NDArray[Any], chunks: list[tuple[int, int]]) -> Array:
    """(J, K) in float64 from the columns of one pair."""
    kinds = np.array([kind for j, k in chunks for kind in [0] * j + [1] * k])
    sums = part.sum(axis=0, dtype=np.float64)
    return np.array([sums[kinds == 0].sum(), 2 * sums[kinds == 1].sum()])


def packing(nvir: int, naux: int, target: str = "gen2") -> int:
    """Number of pairs that share a row tile in the packed variant: 2 or 4, or 0 if it does not
    apply.

    nvir, naux : padded; target : "gen2" or "gen3"
    """
    height = nvir % P
    if height not in (32, 64) or nvir < P or parts_of(nvir, naux // P) > 1:
        return 0
    group = P // height
    if packed_residents(nvir, naux, target) % group == 0:
        return group
    return 0


def packed_residents(nvir: int, naux: int, target: str) -> int:
    """Number of B_i blocks that the packed variant holds."""
    height, full = nvir % P, nvir // P
    group = P // height
    blocks = upper_columns(full * P) + lower_start(full)
    single = upper_columns(nvir) + lower_start(full + 1)
    more = max(0, 2 * (group * blocks - single))  # a group's blocks instead of a pair's
    extra = 4 * ((naux // P + 6 + 4 * full) * P + 3 * height + more)
    return residents(nvir, naux, target, extra, group)


def read_pairs(
    out: NDArray[Any], items: tuple[Item, ...], shape: tuple[int, int], nvir: int
) -> tuple[Array, Array]:
    """J and K of a block of the given shape from the kernel's partial sums; zero where no pair was
    emitted."""
    whole, own = (chunk_columns(upper_columns(n)) for n in (nvir, nvir // P * P))
    mine = sum(j + k for j, k in own)
    direct, exchange = np.zeros(shape), np.zeros(shape)
    column = 0
    for item in items:
        group = len(item.rows)
        width = item_columns(group, nvir)
        part = out[:, column : column + width]
        for m, i in enumerate(item.rows):
            if group == 1:
                totals = _totals(part, whole)
            else:
                shared = mine * group + 3 * m
                rows = slice(m * P // group, (m + 1) * P // group)
                totals = (
                    _totals(part[:, mine * m : mine * (m + 1)], own)
                    + _totals(part[:, shared : shared + 3], [(2, 1)])
                    + _totals(part[rows, -3:], [(2, 1)])
                )
            direct[i, item.j], exchange[i, item.j] = totals
        column += width
    return direct, exchange


def cross_neg(eps_i: Array, eps_j: Array) -> Array:
    """Table (128, ni nj) of -(e_i + e_j), one i after another."""
    return np.broadcast_to(
        -(eps_i[:, None] + eps_j[None, :]).ravel(), (P, eps_i.size * eps_j.size)
    ).copy()


def read_cross(out: NDArray[Any], shape: tuple[int, int]) -> Array:
    """J of a block between two spin spaces, of the given shape."""
    return np.asarray(out.astype(np.float64).sum(axis=0).reshape(*shape, -1).sum(axis=2))
