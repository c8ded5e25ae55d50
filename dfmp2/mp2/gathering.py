"""Pair terms from B that was never made on the host: the orbitals that tiles ask for, and no others.

The device holds B in float32; what is redone in float64, such as the certificate's sample, is made of the same fitted
integrals here, orbital by orbital.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, Operand, Tile
from dfmp2.untransformed import UntransformedTensor


@dataclass(frozen=True, slots=True, eq=False)
class UntransformedOperand:
    """One spin's untransformed B and its orbital energies; takes the place of an Operand in float64.

    Attributes
    ----------
    b : (nocc, nvir, naux) when it is made, Eh^1/2
    eps_occ, eps_vir : as of Operand
    """

    b: UntransformedTensor
    eps_occ: NDArray[np.float64]
    eps_vir: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTensor:
    """B of one spin that a device has made, and what it was made of.

    Attributes
    ----------
    operand : in float32, on the device
    source : for what must be known in float64
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


def gathered(
    backend: Backend, left: UntransformedOperand, right: UntransformedOperand, tiles: list[Tile]
) -> tuple[Operand, Operand, dict[Tile, Tile]]:
    """Resident operands of the orbitals in tiles, and for each tile in their numbering the tile it stands for."""
    rows = {i for tile in tiles for i in range(tile.i0, tile.i1)}
    columns = {j for tile in tiles for j in range(tile.j0, tile.j1)}
    if left is right:
        rows = columns = rows | columns
    near = _put(backend, left, sorted(rows))
    far = near if left is right else _put(backend, right, sorted(columns))
    row, column = ({orbital: k for k, orbital in enumerate(sorted(found))} for found in (rows, columns))
    local = {
        Tile(row[t.i0], row[t.i1 - 1] + 1, column[t.j0], column[t.j1 - 1] + 1, t.diagonal): t for t in tiles
    }  # neighbours stay neighbours: all orbitals of a tile are there
    return near, far, local


def _put(backend: Backend, operand: UntransformedOperand, orbitals: list[int]) -> Operand:
    return backend.put(operand.b.rows(orbitals), operand.eps_occ[orbitals], operand.eps_vir, "fp64")
