"""Pair terms on the host with NumPy and its BLAS: the default backend, which never imports torch.

A block of occupied i and j is contracted in one GEMM, as nearly square as the tile and the cache
allow,

    G[j,b,i,a] = sum_P B_jbP B_iaP = (ia|jb),

and is then divided, optionally regularised, multiplied and summed in place, a few pairs at a time.
Parallelism is one tile per worker with one BLAS thread each; NumPy releases the GIL in every step.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from copy import copy
from itertools import pairwise
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import NUMPY_TYPES, Backend, Limits, Operand, PairTerms, Tile, decays

# Elements of G: 16 MB in float64; larger products are no faster, and exceed the last-level cache
PRODUCT_ELEMENTS = 1 << 21
# terms summed in float32 before float64 takes over, because longer sums lose small terms
RUN = 64
# Elements of G processed at a time: 1 MB in float64, so that they stay in a core's own cache
QUOTIENT_ELEMENTS = 1 << 17


def refusal(name: str) -> str | None:
    """None, because the host is always available."""
    return None


def make(name: str, threads: int) -> Backend:
    """The backend for the registry."""
    return CpuBackend(threads)


class CpuBackend(Backend):
    """NumPy on the host's BLAS."""

    name = "cpu"

    def __init__(self, threads: int) -> None:
        self.kappa: float | None = None
        self.limits = Limits(
            ("fp64", "mixed"),
            tile_edge=16,
            tile_elements=PRODUCT_ELEMENTS,
            workers=threads,
            work_elements=2 * QUOTIENT_ELEMENTS,
            square=True,
        )

    def put(
        self,
        b: NDArray[np.float64],
        eps_occ: NDArray[np.float64],
        eps_vir: NDArray[np.float64],
        precision: str,
    ) -> Operand:
        """Keep B unchanged, or in "mixed" a float32 copy of a float64 one."""
        return Operand(
            np.ascontiguousarray(b, dtype=NUMPY_TYPES[precision]), eps_occ, eps_vir, precision
        )

    def pair_terms(self, left: Operand, right: Operand, tile: Tile) -> PairTerms:
        """Direct and exchange terms of a tile of occupied pairs, float64, Eh."""
        exchanging = left is right
        shape = tile.i1 - tile.i0, tile.j1 - tile.j0
        direct = np.zeros(shape)
        exchange = np.zeros(shape) if exchanging else None
        nvir, naux = left.b.shape[1:]
        nvir_right = right.b.shape[1]
        if not nvir or not nvir_right:
            return PairTerms(direct, exchange)
        blocks = list(_blocks(tile, nvir * nvir_right))
        step = max(1, QUOTIENT_ELEMENTS // (nvir * nvir_right))
        eps_ab = (right.eps_vir[:, None] + left.eps_vir[None, :]).astype(left.b.dtype)
        if self.kappa is None:
            damped = None
        else:
            damped = decays(self.kappa, left, right, left.b.dtype)
        product = np.empty(max(_area(block) for block in blocks) * eps_ab.size, left.b.dtype)
        quotient = np.empty((min(step, shape[1]), nvir_right, nvir), left.b.dtype)
        runs = _runs(nvir, RUN if left.b.dtype == np.float32 else nvir)
        for block in blocks:
            i0, i1, j0, j1, diagonal = block
            rows, columns = (j1 - j0) * nvir_right, (i1 - i0) * nvir
            flat = product[: rows * columns].reshape(rows, columns)
            np.matmul(
                right.b[j0:j1].reshape(rows, naux), left.b[i0:i1].reshape(columns, naux).T, out=flat
            )
            g = flat.reshape(j1 - j0, nvir_right, i1 - i0, nvir)
            for i in range(i0, i1):
                for start in range(i if diagonal else j0, j1, step):
                    stop = min(start + step, j1)
                    part = g[start - j0 : stop - j0, :, i - i0]
                    w = quotient[: stop - start]
                    eps_ij = (left.eps_occ[i] + right.eps_occ[start:stop]).astype(g.dtype)
                    np.subtract(eps_ij[:, None, None], eps_ab, out=w)
                    np.divide(part, w, out=w)
                    if damped is not None:
                        ours, theirs = damped[0][i], damped[1][start:stop]
                        w *= np.square(1 - theirs[:, :, None] * ours)
                    place = i - tile.i0, slice(start - tile.j0, stop - tile.j0)
                    for a0, a1, run in runs:
                        by_runs = w[:, :, a0:a1].reshape(stop - start, nvir_right, -1, run)
                        ours = part[:, :, a0:a1].reshape(by_runs.shape)
                        direct[place] += _total(np.einsum("jbka,jbka->jbk", ours, by_runs))
                        if exchange is not None:
                            swapped = part[:, a0:a1].reshape(stop - start, -1, run, nvir)
                            exchange[place] += _total(np.einsum("jbka,jkab->jbk", by_runs, swapped))
        return PairTerms(direct, exchange)

    def regularised(self, kappa: float) -> CpuBackend:
        """The same with kappa, 1/Eh."""
        made = copy(self)
        made.kappa = kappa
        return made

    def tensors(self) -> Any:
        """Products with NumPy."""
        from dfmp2.backends.tensors import Tensors

        return Tensors(self)

    def describe(self) -> dict[str, str]:
        """Processor and NumPy version."""
        return {"device": platform.processor() or platform.machine(), "numpy": np.__version__}


def _blocks(tile: Tile, elements: int) -> Iterator[Tile]:
    """Divide a tile into products of at most PRODUCT_ELEMENTS (at least one pair), a diagonal one
    into four to save work.

    Parameters
    ----------
    elements : number of (ia|jb) per pair
    """
    most = max(1, isqrt(PRODUCT_ELEMENTS // elements))
    if tile.diagonal:
        most = min(most, -(-(tile.i1 - tile.i0) // 2))
    for i0, i1 in _cuts(tile.i0, tile.i1, most):
        for j0, j1 in _cuts(tile.j0, tile.j1, most):
            if not tile.diagonal or i0 <= j0:
                yield Tile(i0, i1, j0, j1, diagonal=tile.diagonal and i0 == j0)


def _runs(size: int, run: int) -> list[tuple[int, int, int]]:
    """(start, stop, run): a range divided into full runs and one for the rest."""
    cut = size // run * run
    return [
        (start, stop, length)
        for start, stop, length in ((0, cut, run), (cut, size, size - cut))
        if stop > start
    ]


def _total(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Totals of the sums (j, b, k) for each j, in float64."""
    return np.asarray(sums.sum(axis=(1, 2), dtype=np.float64))


def _cuts(start: int, stop: int, most: int) -> list[tuple[int, int]]:
    """Equal parts of a range, of length at most `most`."""
    parts = max(1, -(-(stop - start) // most))
    edges = [start + (stop - start) * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))


def _area(block: Tile) -> int:
    return (block.i1 - block.i0) * (block.j1 - block.j0)
