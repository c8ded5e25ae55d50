"""Pair terms on the host with NumPy and its BLAS; the default, never imports torch.

For each occupied i a chunk of j is contracted in one GEMM into a buffer that stays in cache,

    G[j,b,a] = sum_P B_jbP B_iaP = (ia|jb),

and is divided, multiplied and row-summed there. Parallelism is one tile per worker with one BLAS
thread each; NumPy releases the GIL in every step.
"""

from __future__ import annotations

import platform

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Limits, Operand, PairTerms, Tile

CHUNK_ELEMENTS = 1 << 17  # of G: 0.5 MB in float32, 1 MB in float64; half of a 2 MB per-core L2 with its quotient

_DTYPES: dict[str, type[np.float32] | type[np.float64]] = {"fp64": np.float64, "mixed": np.float32}


class CpuBackend:
    """NumPy on the host's BLAS."""

    name = "cpu"

    def __init__(self, threads: int) -> None:
        self.limits = Limits(("fp64", "mixed"), tile_edge=16, tile_elements=CHUNK_ELEMENTS, workers=threads)

    def put(
        self, b: NDArray[np.float64], eps_occ: NDArray[np.float64], eps_vir: NDArray[np.float64], precision: str
    ) -> Operand:
        """Keep B as it is ("fp64") or as a float32 copy ("mixed")."""
        return Operand(np.ascontiguousarray(b, dtype=_DTYPES[precision]), eps_occ, eps_vir, precision)

    def pair_terms(self, left: Operand, right: Operand, tile: Tile) -> PairTerms:
        """Direct and exchange terms of a tile of occupied pairs, float64, Eh."""
        i0, i1, j0, j1, diagonal = tile
        exchanging = left is right
        direct = np.zeros((i1 - i0, j1 - j0))
        exchange = np.zeros((i1 - i0, j1 - j0)) if exchanging else None
        nvir, naux = left.b.shape[1:]
        nvir_right = right.b.shape[1]
        step = max(1, CHUNK_ELEMENTS // (nvir * nvir_right))
        eps_ab = (right.eps_vir[:, None] + left.eps_vir[None, :]).astype(left.b.dtype)
        gemm = np.empty((min(step, j1 - j0), nvir_right, nvir), left.b.dtype)
        quotient = np.empty_like(gemm)
        for i in range(i0, i1):
            for start in range(i if diagonal else j0, j1, step):
                stop = min(start + step, j1)
                g, w = gemm[: stop - start], quotient[: stop - start]
                b_j = right.b[start:stop].reshape(-1, naux)
                np.matmul(b_j, left.b[i].T, out=g.reshape(-1, nvir))
                eps_ij = (left.eps_occ[i] + right.eps_occ[start:stop]).astype(g.dtype)
                np.subtract(eps_ij[:, None, None], eps_ab, out=w)
                np.divide(g, w, out=w)
                # Row sums in the working precision, their sum in float64.
                rows = np.einsum("jba,jba->jb", g, w)
                direct[i - i0, start - j0 : stop - j0] = rows.sum(axis=1, dtype=np.float64)
                if exchange is not None:
                    rows = np.einsum("jba,jab->jb", w, g)
                    exchange[i - i0, start - j0 : stop - j0] = rows.sum(axis=1, dtype=np.float64)
        return PairTerms(direct, exchange)

    def describe(self) -> dict[str, str]:
        """Processor and NumPy version."""
        return {"device": platform.processor() or platform.machine(), "numpy": np.__version__}
