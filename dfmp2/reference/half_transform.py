"""Half-transformed fitted integrals of a block: X_Pi,m = sum_n B_P,mn C_ni from packed triangles, m >= n.

Each route has its own work space that is reused, so that a worker touches fresh memory once. Where all
pairs are kept, float64 goes through PySCF's C loop; float32 rounds one triangle, spreads it with LAPACK's
`tpttr` and multiplies with BLAS `symm`, which reads that triangle alone, so that the mirrored half is
never made. Where negligible pairs were dropped, each cluster of functions is multiplied with its partners.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pyscf import lib
from pyscf.ao2mo import _ao2mo

from dfmp2.blas import SymmetricProduct
from dfmp2.reference.pair_list import Cluster, PairList

Array = NDArray[np.float64]


class HalfTransform(Protocol):
    """One worker's transformation to the orbitals of all spins."""

    def __call__(self, block: Array) -> Iterator[NDArray[Any]]:
        """X of each spin in turn, (count * n, nao), from a block of B, (count, ncolumn) float64, C order.

        Each X is valid until the next is taken.
        """
        ...


def half_transform(orbitals: list[Array], most: int, pairs: PairList, *, single: bool) -> HalfTransform:
    """The route for these pairs and this precision.

    Parameters
    ----------
    orbitals : per spin (nao, n) float64
    most : fitting functions in the largest block
    single : float32
    """
    if not pairs.complete:
        return ClusterTransform(orbitals, most, pairs.clusters, np.dtype(np.float32 if single else np.float64))
    return SingleTransform(orbitals, most) if single else DoubleTransform(orbitals, most)


class DoubleTransform:
    """All pairs, float64; parameters as of `half_transform`."""

    def __init__(self, orbitals: list[Array], most: int) -> None:
        self._orbitals = [np.asfortranarray(c) for c in orbitals]
        self._work = np.empty(most * max(c.size for c in orbitals))

    def __call__(self, block: Array) -> Iterator[NDArray[Any]]:
        """X of each spin in turn, float64."""
        for c in self._orbitals:
            nao, count = c.shape
            out = self._work[: len(block) * c.size].reshape(len(block) * count, nao)
            if out.size:
                _ao2mo.libao2mo.AO2MOnr_e2_drv(
                    _ao2mo.libao2mo.AO2MOtranse2_nr_s2,
                    _ao2mo.libao2mo.AO2MOmmm_bra_nr_s2,
                    out.ctypes.data_as(ctypes.c_void_p),
                    block.ctypes.data_as(ctypes.c_void_p),
                    c.ctypes.data_as(ctypes.c_void_p),
                    ctypes.c_int(len(block)),
                    ctypes.c_int(nao),
                    (ctypes.c_int * 4)(0, count, 0, nao),
                    lib.c_null_ptr(),
                    ctypes.c_int(0),
                )
            yield out


class SingleTransform:
    """All pairs, float32; parameters as of `half_transform`."""

    def __init__(self, orbitals: list[Array], most: int) -> None:
        # (n, nao) in C order is (nao, n) in Fortran order, which is what symm wants and gives.
        self._orbitals = [np.ascontiguousarray(c.T, dtype=np.float32) for c in orbitals]
        self._work = [np.empty((most, *c.shape), dtype=np.float32) for c in self._orbitals]
        self._product = SymmetricProduct(orbitals[0].shape[0])

    def __call__(self, block: Array) -> Iterator[NDArray[Any]]:
        """X of each spin in turn, float32; a triangle is rounded and spread once for both spins."""
        for row, packed in enumerate(block):
            self._product.load(packed)
            for c, work in zip(self._orbitals, self._work, strict=True):
                self._product.times(c, work[row])
        for work in self._work:
            yield work[: len(block)].reshape(-1, work.shape[2])


class ClusterTransform:
    """Kept pairs only; the columns of X are the functions of one cluster after another."""

    def __init__(
        self, orbitals: list[Array], most: int, clusters: tuple[Cluster, ...], dtype: np.dtype[np.floating[Any]]
    ) -> None:
        self._clusters = clusters
        self._orbitals = [
            [np.ascontiguousarray(c[part.partners].T, dtype=dtype) for part in clusters] for c in orbitals
        ]
        self._parts = [np.empty(part.source.shape, dtype=dtype) for part in clusters]
        self._work = [np.empty((most, c.shape[1], len(c)), dtype=dtype) for c in orbitals]

    def __call__(self, block: Array) -> Iterator[NDArray[Any]]:
        """X of each spin in turn."""
        columns = np.zeros(block.shape[1] + 1, dtype=self._work[0].dtype)  # the last is the negligible pair
        for row, values in enumerate(block):
            columns[:-1] = values
            stop = 0
            for index, part in enumerate(self._clusters):
                start, stop = stop, stop + len(part.functions)
                np.take(columns, part.source, out=self._parts[index], mode="clip")
                for orbitals, work in zip(self._orbitals, self._work, strict=True):
                    np.matmul(orbitals[index], self._parts[index], out=work[row, :, start:stop])
        for work in self._work:
            yield work[: len(block)].reshape(-1, work.shape[2])
