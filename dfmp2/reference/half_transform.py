"""Half-transformed fitted integrals: X_Pi,m = sum_n B_P,mn C_ni from packed triangles, m >= n.

Each route has its own work space that is reused, so that a worker touches fresh memory once. Where all
pairs are kept, a triangle is spread with LAPACK's `tpttr` and multiplied with BLAS `symm`, which reads that
triangle alone, so that the mirrored half is never made. Where negligible pairs were dropped, each cluster
of functions is multiplied with its partners.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dfmp2.blas import SymmetricProducts
from dfmp2.reference.pair_list import PairList

Array = NDArray[np.float64]


class HalfTransform(Protocol):
    """One worker's transformation of a block of fitting functions to several sets of orbitals."""

    def put(self, place: int, rows: Array) -> None:
        """Transform rows of B, (count, ncolumn) float64, C order, as number `place` and following of the block."""
        ...

    def halves(self, count: int) -> list[NDArray[Any]]:
        """X of each set, (count, n, nao), for the first `count` fitting functions; valid until the next `put`."""
        ...


def half_transform(orbitals: list[Array], most: int, pairs: PairList, *, single: bool) -> HalfTransform:
    """The route for these pairs and this precision.

    Parameters
    ----------
    orbitals : sets of them, (nao, n) float64 each
    most : fitting functions in the largest block
    single : float32
    """
    dtype: np.dtype[np.floating[Any]] = np.dtype(np.float32) if single else np.dtype(np.float64)
    return (
        TriangleTransform(orbitals, most, dtype) if pairs.complete else ClusterTransform(orbitals, most, pairs, dtype)
    )


class TriangleTransform:
    """All pairs; parameters as of `half_transform`."""

    def __init__(self, orbitals: list[Array], most: int, dtype: np.dtype[np.floating[Any]]) -> None:
        # (n, nao) in C order is (nao, n) in Fortran order, which is what symm wants and gives.
        rows = [np.ascontiguousarray(c.T, dtype=dtype) for c in orbitals]
        self._work = [np.empty((most, *c.shape), dtype=dtype) for c in rows]
        self._products = SymmetricProducts(rows)

    def put(self, place: int, rows: Array) -> None:
        """As of HalfTransform; a triangle is spread once for all sets."""
        self._products(rows, [work[place : place + len(rows)] for work in self._work])

    def halves(self, count: int) -> list[NDArray[Any]]:
        """As of HalfTransform."""
        return [work[:count] for work in self._work]


class ClusterTransform:
    """Kept pairs only; the columns of X are the functions of one cluster after another."""

    def __init__(self, orbitals: list[Array], most: int, pairs: PairList, dtype: np.dtype[np.floating[Any]]) -> None:
        self._clusters = pairs.clusters
        self._orbitals = [
            [np.ascontiguousarray(c[part.partners].T, dtype=dtype) for part in pairs.clusters] for c in orbitals
        ]
        self._columns = np.zeros(len(pairs.columns) + 1, dtype=dtype)  # the last is the negligible pair
        self._parts = [np.empty(part.source.shape, dtype=dtype) for part in pairs.clusters]
        self._work = [np.empty((most, c.shape[1], len(c)), dtype=dtype) for c in orbitals]

    def put(self, place: int, rows: Array) -> None:
        """As of HalfTransform."""
        for number, values in enumerate(rows, place):
            self._columns[:-1] = values
            stop = 0
            for index, part in enumerate(self._clusters):
                start, stop = stop, stop + len(part.functions)
                np.take(self._columns, part.source, out=self._parts[index], mode="clip")
                for orbitals, work in zip(self._orbitals, self._work, strict=True):
                    np.matmul(orbitals[index], self._parts[index], out=work[number, :, start:stop])

    def halves(self, count: int) -> list[NDArray[Any]]:
        """As of HalfTransform."""
        return [work[:count] for work in self._work]
