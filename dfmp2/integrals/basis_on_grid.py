"""Values of the basis functions, and of their first derivatives, at the points of an integration
grid:

    chi[k, m, g] = d_k chi_m(r_g)        k: none, d/dx, d/dy, d/dz                              (1)

The points are put into blocks that lie close together, and a block has only the functions that
matter there. Such a function may have in the block

    max_kg |chi[k, m, g]| (sum_g |w_g|)^1/2 > cutoff                                            (2)

which bounds the root of its part of an overlap integral. PySCF evaluates the functions; as many
blocks are kept as there is room for, and the others are evaluated again for each density: the
bits are the same. Source of the screening: Stratmann, Scuseria, Frisch, Chem. Phys. Lett. 257, 213
(1996).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLOCK_POINTS = 1008  # a multiple of the 56 points that PySCF screens together
CUTOFF = 1e-9  # of Eq. 2: V_xc to 1e-11 Eh
SINGLE_CUTOFF = 1e-6  # for values in float32
DERIVATIVES = 4  # a value and three first derivatives


@dataclass(frozen=True, slots=True)
class PointBlock:
    """Points that lie close together, with the functions that matter there.

    Attributes
    ----------
    functions : (n,) int
        Basis functions, in ascending order.
    values : (1 or 4, n, points) float64 or float32
        chi of Eq. 1.
    weights : (points,) float64
        Weights of the grid.
    """

    functions: NDArray[np.intp]
    values: NDArray[Any]
    weights: Array


class BasisOnGrid:
    """The basis functions of a molecule on a grid, block by block.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    grid : pyscf.dft.gen_grid.Grids
        A grid that has been built.
    derivatives : bool
        Whether first derivatives are wanted.
    single : bool
        Whether values are rounded to float32.
    room : int
        Bytes that may be taken for values that are kept.
    """

    def __init__(
        self, mole: Any, grid: Any, *, derivatives: bool, single: bool = False, room: int = 0
    ) -> None:
        self.derivatives = derivatives
        self._mole = mole
        if single:
            self._kind: type = np.float32
            self._cutoff = SINGLE_CUTOFF
        else:
            self._kind = np.float64
            self._cutoff = CUTOFF
        points = np.flatnonzero(grid.weights)
        order = points[compact_order(grid.coords[points], BLOCK_POINTS)]
        self._coordinates = np.asarray(grid.coords[order], order="F")
        self._weights = np.ascontiguousarray(grid.weights[order])
        self.count = -(-len(order) // BLOCK_POINTS)
        self._functions: list[NDArray[np.intp] | None] = [None] * self.count
        self._kept: list[PointBlock | None] = [None] * self.count
        most = values_bytes(len(order), int(mole.nao), derivatives=derivatives, single=single)
        self._keeps = min(self.count, self.count * room // max(1, most))

    @property
    def kept_bytes(self) -> int:
        """Bytes of the values that are kept now."""
        return sum(block.values.nbytes for block in self._kept if block is not None)

    def block(self, number: int) -> PointBlock:
        """The block of that number, from 0 to `count` - 1; several threads may ask at once."""
        kept = self._kept[number]
        if kept is not None:
            return kept
        block = self._evaluate(number)
        if number < self._keeps:
            self._kept[number] = block
        return block

    def _evaluate(self, number: int) -> PointBlock:
        """The block of that number, made by PySCF."""
        from pyscf.dft import gen_grid, numint

        part = slice(number * BLOCK_POINTS, (number + 1) * BLOCK_POINTS)
        coordinates = np.asarray(self._coordinates[part], order="F")
        weights = self._weights[part]
        shells = gen_grid.make_mask(self._mole, coordinates, cutoff=self._cutoff**2)
        values = numint.eval_ao(
            self._mole, coordinates, deriv=int(self.derivatives), non0tab=shells, cutoff=1e-30
        )
        if not self.derivatives:
            values = values[None]
        values = values.transpose(0, 2, 1)  # as PySCF has them in memory
        functions = self._functions[number]
        if functions is None:
            largest = np.maximum(values.max(axis=2), -values.min(axis=2)).max(axis=0)
            bound = largest * np.sqrt(np.abs(weights).sum())
            functions = np.flatnonzero(bound > self._cutoff)
            self._functions[number] = functions
        if len(functions) < values.shape[1]:
            values = np.take(values, functions, axis=1)
        values = values.astype(self._kind, copy=False)
        return PointBlock(functions=functions, values=values, weights=weights)


def values_bytes(points: int, nao: int, *, derivatives: bool, single: bool) -> int:
    """Bytes of all values at so many points, at most."""
    count = points * nao
    if derivatives:
        count *= DERIVATIVES
    if single:
        return count * 4
    return count * 8


def compact_order(coordinates: Array, size: int) -> NDArray[np.intp]:
    """Order of points in which each `size` of them lie close together.

    The points are halved along the longest edge of their box, in multiples of `size`, until there
    are no more than that.

    Parameters
    ----------
    coordinates : (points, 3)
        Positions, bohr.
    size : int
        Points in a block.
    """
    parts: list[NDArray[np.intp]] = []
    waiting = [np.arange(len(coordinates))]
    while waiting:
        points = waiting.pop()
        if len(points) <= size:
            parts.append(np.sort(points))
            continue
        places = coordinates[points]
        axis = int(np.argmax(places.max(axis=0) - places.min(axis=0)))
        blocks = -(-len(points) // size)
        middle = (blocks // 2) * size
        order = np.argsort(places[:, axis], kind="stable")
        waiting.append(points[order[middle:]])
        waiting.append(points[order[:middle]])
    if not parts:
        return np.zeros(0, dtype=np.intp)
    return np.concatenate(parts)
