"""B before its transformation: fitted integrals over basis functions, and the orbitals to transform
them.

    A_P(mu nu) = sum_Q L^-1_PQ (Q|mu nu)        B_iaP = sum_mu,nu A_P(mu nu) C_mu,i C_nu,a

A device computes B from it in float32. Anything needed in float64, such as the certificate's
sample, is computed on the host from the same fitted integrals, orbital by orbital, only for the
tiles that need it. The metric has already been applied in float64, because raw integrals
transformed in float32 and fitted afterwards have far larger errors than those of float32
(tests/test_integrals.py has figures).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.backends.base import Backend, Batch, Operand, Tile

BLOCK_BYTES = 12 * 10**6  # of full matrices A_P unpacked at a time


class UntransformedTensor:
    """B of one spin, not yet computed.

    Parameters
    ----------
    a : (naux, nao (nao + 1) / 2) float64, Eh^1/2: A_P(mu nu), mu >= nu, by rows; shared by the
        spins
    c_occ, c_vir : (nao, nocc), (nao, nvir) float64, orbital coefficients
    """

    def __init__(self, a: Array, c_occ: Array, c_vir: Array) -> None:
        self.a, self.c_occ, self.c_vir = a, c_occ, c_vir
        self._rows: dict[int, Array] = {}

    @property
    def shape(self) -> tuple[int, int, int]:
        """(nocc, nvir, naux) of B."""
        return self.c_occ.shape[1], self.c_vir.shape[1], len(self.a)

    def __getitem__(self, i: int) -> Array:
        """B of one occupied orbital, (nvir, naux) float64, Eh^1/2."""
        return np.asarray(self.rows([i])[0])

    def rows(self, orbitals: Iterable[int]) -> Array:
        """B of some occupied orbitals, (n, nvir, naux) float64, Eh^1/2; computed once and
        cached."""
        wanted = list(orbitals)
        missing = sorted(set(wanted) - set(self._rows))
        if missing:
            self._rows |= dict(zip(missing, self._transformed(missing), strict=True))
        _, nvir, naux = self.shape
        if wanted:
            return np.stack([self._rows[i] for i in wanted])
        return np.empty((0, nvir, naux))

    def _transformed(self, orbitals: list[int]) -> Array:
        occupied = self.c_occ[:, orbitals]
        virtual = np.ascontiguousarray(self.c_vir.T)
        naux, nao = len(self.a), len(occupied)
        out = np.empty((len(orbitals), len(virtual), naux))
        step = max(1, BLOCK_BYTES // (8 * nao * nao))
        for p0 in range(0, naux, step):
            half = unpacked(self.a[p0 : p0 + step], nao) @ occupied  # (P, nu, i)
            out[:, :, p0 : p0 + step] = (virtual @ half).transpose(2, 1, 0)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class UntransformedOperand:
    """One spin's untransformed B and its orbital energies; replaces an Operand in float64.

    Attributes
    ----------
    b : (nocc, nvir, naux) when computed, Eh^1/2
    eps_occ, eps_vir : as in Operand
    """

    b: UntransformedTensor
    eps_occ: Array
    eps_vir: Array

    def batches(
        self, backend: Backend, right: UntransformedOperand, tiles: list[Tile]
    ) -> Iterator[Batch]:
        """As in `dfmp2.backends.base.TileSource`; the rows of B that the tiles need are computed
        together."""
        rows = sorted({i for tile in tiles for i in range(tile.i0, tile.i1)})
        columns = sorted({j for tile in tiles for j in range(tile.j0, tile.j1)})
        if self is right:
            rows = columns = sorted({*rows, *columns})
        near = far = self._resident(backend, rows)
        if self is not right:
            far = right._resident(backend, columns)
        # Neighbours stay neighbours, since all orbitals of a tile are included
        local = {
            tile.shifted(tile.i0 - rows.index(tile.i0), tile.j0 - columns.index(tile.j0)): tile
            for tile in tiles
        }
        yield near, far, local

    def _resident(self, backend: Backend, orbitals: list[int]) -> Operand:
        operand: Operand = backend.put(
            self.b.rows(orbitals), self.eps_occ[orbitals], self.eps_vir, "fp64"
        )
        return operand


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTensor:
    """B of one spin computed by a device, and its source.

    Attributes
    ----------
    operand : in float32, on the device
    source : for anything needed in float64
    """

    operand: Operand
    source: UntransformedTensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """(nocc, nvir, naux)."""
        return self.source.shape

    def at(self, precision: str) -> Operand | UntransformedOperand:
        """The operand in "mixed" or "fp64"."""
        if precision == "mixed":
            return self.operand
        return UntransformedOperand(self.source, self.operand.eps_occ, self.operand.eps_vir)


def made_on_device(
    a: Array, spaces: Sequence[Any], frontier: Sequence[Any], backend: Backend
) -> list[Any]:
    """B of each spin, computed by a device from fitted integrals, then that of the frontier
    orbitals, computed by the host from the same integrals in float64.

    Parameters
    ----------
    a : (naux, nao (nao + 1) / 2) float64, Eh^1/2
        A_P(mu nu), mu >= nu.
    spaces, frontier : sequence
        Orbitals of each spin, with `c_occ`, `c_vir`, `eps_occ` and `eps_vir`.
    backend : Backend
        A backend with `limits.transforms`.
    """
    sources = [UntransformedTensor(a, space.c_occ, space.c_vir) for space in spaces]
    energies = [(space.eps_occ, space.eps_vir) for space in spaces]
    operands = backend.put_untransformed(sources, energies)
    tensors: list[Any] = [
        DeviceTensor(operand, source) for operand, source in zip(operands, sources, strict=True)
    ]
    for space in frontier:
        tensor = UntransformedTensor(a, space.c_occ, space.c_vir)
        tensors.append(tensor.rows(range(space.nocc)))
    return tensors


def unpacked(packed: Array, nao: int) -> Array:
    """Full matrices (n, nao, nao) from packed lower triangles (n, nao (nao + 1) / 2)."""
    return np.asarray(np.take(packed, packed_places(nao), axis=1))


@lru_cache(maxsize=1)
def packed_places(nao: int) -> NDArray[np.intp]:
    """Indices (nao, nao) of the elements in the packed lower triangle."""
    row, column = np.indices((nao, nao))
    high, low = np.maximum(row, column), np.minimum(row, column)
    return np.asarray(high * (high + 1) // 2 + low)
