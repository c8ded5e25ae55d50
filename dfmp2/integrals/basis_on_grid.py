"""Values and first derivatives of the basis functions at the points of an integration grid:

    chi[k, m, g] = d_k chi_m(r_g)        k: none, d/dx, d/dy, d/dz                              (1)

The points are grouped into compact blocks, and a block has only the functions that matter there:
those of the shells with

    E(R) (sum_g |w_g|)^1/2 > cutoff,      E(R) = max |chi[k, m]| at R or farther from its atom  (2)

where R is the distance from the atom to the nearest point; the left side bounds the square root of
the block's contribution to an overlap integral. PySCF evaluates the functions. As many blocks as
fit are kept; the others are evaluated again for each density, into the same memory, with the same
bits. Source of the screening: Stratmann, Scuseria, Frisch, Chem. Phys. Lett. 257, 213 (1996).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.host.threads import each

Result = TypeVar("Result")

BLOCK_POINTS = 1008  # a multiple of the 56 points that PySCF screens together
CUTOFF = 1e-9  # of Eq. 2: V_xc to 1e-11 Eh
SINGLE_CUTOFF = 1e-6  # for values in float32
DERIVATIVES = 4  # a value and three first derivatives
RADII = np.geomspace(1e-3, 60.0, 320)  # bohr, at which the envelopes of Eq. 2 are tabulated
DIRECTIONS = np.array([place for place in np.ndindex(3, 3, 3) if place != (1, 1, 1)]) - 1.0
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1)[:, None]  # the 26 directions that are sampled


@dataclass(frozen=True, slots=True)
class PointBlock:
    """Neighbouring points, with the functions that matter there.

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
        A built grid.
    derivatives : bool
        Whether first derivatives are needed.
    single : bool
        Whether values are rounded to float32.
    room : int
        Bytes available for keeping values.
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
        self._shell_of_function = np.repeat(np.arange(mole.nbas), np.diff(mole.ao_loc_nr()))
        self._atoms = mole.atom_coords()
        self._envelopes = envelopes(mole, derivatives=derivatives)
        self._kept: list[PointBlock | None] = [None] * self.count
        most = values_bytes(len(order), int(mole.nao), derivatives=derivatives, single=single)
        self._keeps = min(self.count, self.count * room // max(1, most))

    @property
    def kept_bytes(self) -> int:
        """Bytes of the values kept at present."""
        return sum(block.values.nbytes for block in self._kept if block is not None)

    def block(self, number: int) -> PointBlock:
        """The block with a number from 0 to `count` - 1; safe to call from several threads."""
        kept = self._kept[number]
        if kept is not None:
            return kept
        block = self._evaluate(number, None)
        if number < self._keeps:
            self._kept[number] = block
        return block

    def blocks(self, numbers: range) -> Iterator[tuple[int, PointBlock]]:
        """Blocks with their numbers, one after the other.

        The values of a block that is not kept are valid until the next one is requested: all such
        blocks share the same memory, since touching new memory for the first time costs more than
        computing the values.

        Parameters
        ----------
        numbers : range
            Block numbers, from 0 to `count` - 1.
        """
        most = BLOCK_POINTS * int(self._mole.nao)
        if self.derivatives:
            most *= DERIVATIVES
        buffer = np.empty(most)
        for number in numbers:
            if number < self._keeps:
                yield number, self.block(number)
            else:
                yield number, self._evaluate(number, buffer)

    def share_out(
        self, work: Callable[[int, Iterator[tuple[int, PointBlock]]], Result], threads: int
    ) -> list[Result]:
        """Results of all workers on their shares of the blocks, with one PySCF thread each.

        Parameters
        ----------
        work : callable
            Takes the number of the worker and its `blocks`.
        threads : int
            Number of workers.
        """
        from pyscf import lib

        def one_thread(worker: int) -> Result:
            with lib.with_omp_threads(1):
                return work(worker, self.blocks(range(worker, self.count, threads)))

        return each(threads, one_thread, threads)

    def _evaluate(self, number: int, buffer: Array | None) -> PointBlock:
        """The block with that number, evaluated by PySCF into new memory or into a buffer."""
        from pyscf.dft import gen_grid, numint

        part = slice(number * BLOCK_POINTS, (number + 1) * BLOCK_POINTS)
        coordinates = np.asarray(self._coordinates[part], order="F")
        weights = self._weights[part]
        shells = self._shells(coordinates, weights)
        functions = np.flatnonzero(np.isin(self._shell_of_function, shells))
        if not len(shells):  # PySCF would read the first shell anyway
            components = 1 + (DERIVATIVES - 1) * self.derivatives
            nothing: NDArray[Any] = np.empty((components, 0, len(weights)), dtype=self._kind)
            return PointBlock(functions=functions, values=nothing, weights=weights)
        mole = with_shells(self._mole, shells)
        mask = gen_grid.make_mask(mole, coordinates, cutoff=self._cutoff**2)
        values = numint.eval_ao(
            mole,
            coordinates,
            deriv=int(self.derivatives),
            non0tab=mask,
            cutoff=1e-30,
            out=buffer,
        )
        if not self.derivatives:
            values = values[None]
        values = values.transpose(0, 2, 1)  # PySCF's memory order
        values = values.astype(self._kind, copy=False)
        return PointBlock(functions=functions, values=values, weights=weights)

    def _shells(self, coordinates: Array, weights: Array) -> NDArray[np.intp]:
        """Shells that matter at points (n, 3) with weights (n,), Eq. 2."""
        squares = (coordinates**2).sum(axis=1) - 2 * self._atoms @ coordinates.T
        nearest = squares.min(axis=1) + (self._atoms**2).sum(axis=1)
        radius = np.searchsorted(RADII, np.sqrt(np.maximum(nearest, 0.0)), side="right") - 1
        radius = np.maximum(radius, 0)[self._mole._bas[:, 0]]
        largest = self._envelopes[np.arange(len(radius)), radius]
        return np.flatnonzero(largest * np.sqrt(np.abs(weights).sum()) > self._cutoff)


def with_shells(mole: Any, shells: NDArray[np.intp]) -> Any:
    """The molecule with only some of its shells of basis functions; everything else is shared with
    it."""
    part = mole.copy(deep=False)
    part._bas = mole._bas[shells]
    return part


def envelopes(mole: Any, *, derivatives: bool) -> Array:
    """E of Eq. 2 for each shell at RADII, (shells, radii).

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    derivatives : bool
        Whether first derivatives are included.
    """
    from pyscf.dft import numint

    places = (RADII[:, None, None] * DIRECTIONS).reshape(-1, 3)
    centres = mole.atom_coords()
    largest = np.empty((mole.nbas, len(RADII)))
    # Equal shells of atoms of one element have the same exponents and coefficients.
    _, first, kinds = np.unique(mole._bas[:, 1:], axis=0, return_index=True, return_inverse=True)
    for kind, shell in enumerate(first):
        values = numint.eval_ao(
            with_shells(mole, np.array([shell])),
            centres[mole._bas[shell, 0]] + places,
            deriv=int(derivatives),
        )
        values = np.abs(values).reshape(-1, len(RADII), len(DIRECTIONS), values.shape[-1])
        outwards = values.max(axis=(0, 2, 3))
        largest[kinds.ravel() == kind] = np.maximum.accumulate(outwards[::-1])[::-1]
    return largest


def values_bytes(points: int, nao: int, *, derivatives: bool, single: bool) -> int:
    """Upper bound on the bytes of all values at this number of points."""
    count = points * nao
    if derivatives:
        count *= DERIVATIVES
    return count * 4 if single else count * 8


def compact_order(coordinates: Array, size: int) -> NDArray[np.intp]:
    """Order of points in which every `size` of them lie close together.

    The points are halved along the longest edge of their box, in multiples of `size`, until at most
    `size` are left.

    Parameters
    ----------
    coordinates : (points, 3)
        Positions, bohr.
    size : int
        Points in a block.
    """
    parts: list[NDArray[np.intp]] = []
    waiting = [(np.arange(len(coordinates)), np.ascontiguousarray(coordinates.T))]
    while waiting:
        points, places = waiting.pop()
        if len(points) <= size:
            parts.append(np.sort(points))
            continue
        axis = int(np.argmax(places.max(axis=1) - places.min(axis=1)))
        blocks = -(-len(points) // size)
        middle = (blocks // 2) * size
        order = np.argpartition(places[axis], middle)
        for half in (order[middle:], order[:middle]):
            waiting.append((points[half], np.take(places, half, axis=1)))
    return np.concatenate(parts)
