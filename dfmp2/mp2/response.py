"""Matrices over fitting functions, X_PQ = sum_ia f_ia B_iaP B_iaQ, in N^4 operations: the building
blocks of methods without pairs.

B is read in groups of occupied orbitals, from memory or disk; on disk, each pass over it serves as
many matrices as there is room for. The workers share the rows of X above its diagonal. All in
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.host import threads
from dfmp2.host.blas import add_square
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.planning.memory import group_bytes
from dfmp2.planning.sizes import FLOAT64

STRIP = 64  # columns of X that are mirrored at its diagonal at a time

Factor = Callable[[Array], Array]  # orbital-energy differences, Eh, to factors f >= 0


def orbital_energy_differences(space: ActiveSpace) -> Array:
    """e_a - e_i of one spin, (nocc, nvir), Eh."""
    return space.eps_vir - space.eps_occ[:, None]


def weighted_products(
    b: Sequence[Any],
    spaces: Sequence[ActiveSpace],
    factors: Sequence[Factor],
    held: int,
    workers: int,
    *,
    joined: bool,
) -> Iterator[list[Array]]:
    """X of every factor in turn, (naux, naux), of each spin or their sum; valid until the next one
    is requested.

    Parameters
    ----------
    b : sequence
        (nocc, nvir, naux) float64 per spin, Eh^1/2, arrays or on disk.
    factors : sequence of Factor
        f as a function of e_a - e_i.
    held : int
        Bytes that matrices may take if B is on disk.
    workers : int
        Number of threads.
    joined : bool
        Yield one matrix with the sum over the spins.
    """
    naux, number = int(b[0].shape[2]), 1 if joined else len(b)
    # Equal areas
    cuts = [round(naux * (1.0 - np.sqrt(1.0 - k / workers))) for k in range(workers + 1)]
    blocks = [(p0, p1) for p0, p1 in pairwise(cuts) if p0 < p1]
    resident = all(isinstance(one, np.ndarray) for one in b)
    at_once = min(len(factors), 1 if resident else max(1, held // (number * naux**2 * FLOAT64)))
    room = np.empty((at_once, number, naux, naux))
    for start in range(0, len(factors), at_once):
        chosen = factors[start : start + at_once]
        room[...] = 0.0
        found = [list(matrices) for matrices in room[: len(chosen)]]
        for spin, (tensor, space) in enumerate(zip(b, spaces, strict=True)):
            roots = [np.sqrt(factor(orbital_energy_differences(space))) for factor in chosen]
            for i0, group in groups(tensor):
                rows = group.reshape(-1, naux)
                scaled = np.empty(rows.shape)
                for root, matrices in zip(roots, found, strict=True):
                    weights = root[i0 : i0 + len(group)].reshape(-1, 1)
                    _add_square(rows, weights, scaled, matrices[0 if joined else spin], blocks)
        for matrices in found:
            for matrix in matrices:
                for p0 in range(0, naux, STRIP):
                    p1 = min(p0 + STRIP, naux)
                    matrix[p0:p1, p0:p1] += np.triu(matrix[p0:p1, p0:p1], 1).T
                    matrix[p1:, p0:p1] = matrix[p0:p1, p1:].T
            yield matrices


def groups(tensor: Any) -> Iterator[tuple[int, Array]]:
    """B of groups of occupied orbitals, each with its first index; the next is read meanwhile."""
    nocc, nvir, naux = tensor.shape
    size = max(1, group_bytes(naux) // (FLOAT64 * max(1, nvir * naux)))
    starts = range(0, nocc, size)
    if isinstance(tensor, np.ndarray):
        yield from ((i0, tensor[i0 : i0 + size]) for i0 in starts)
        return

    def read(k: int) -> Array:
        out = np.empty((min(size, nocc - starts[k]), nvir, naux))
        tensor.read(starts[k], starts[k] + len(out), out)
        return out

    yield from zip(starts, threads.prefetched(read, len(starts)), strict=True)


def _add_square(
    rows: Array, weights: Array, scaled: Array, matrix: Array, blocks: Sequence[tuple[int, int]]
) -> None:
    """Add the square of the weighted rows to the matrix, on and above its diagonal, with one worker
    per block."""

    def scale(k: int) -> None:
        some = slice(k * len(rows) // len(blocks), (k + 1) * len(rows) // len(blocks))
        np.multiply(rows[some], weights[some], out=scaled[some])

    for work in (scale, lambda k: add_square(scaled, matrix, *blocks[k])):
        threads.each(len(blocks), work, len(blocks))
