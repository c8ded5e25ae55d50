"""The integration grid of a functional: points and weights around each atom, made by PySCF.

    E_xc = sum_g w_g f(r_g)                                                                    (1)

Each atom has NRAD spheres around it with up to NANG points, fewer near the nucleus and far from
it, and weights that fade where the cells of atoms meet. A grid is named as `--grid` names it: "3"
is a level of PySCF, whose NRAD and NANG depend on the period of the atom; "99,590" is the same
NRAD and NANG for every atom. Sources: Treutler and Ahlrichs, J. Chem. Phys. 102, 346 (1995);
Lebedev and Laikov, Dokl. Math. 59, 477 (1999); Becke, J. Chem. Phys. 88, 2547 (1988).

Below: values of the basis functions, and of their first derivatives, at the points of an integration
grid:

    chi[k, m, g] = d_k chi_m(r_g)        k: none, d/dx, d/dy, d/dz                              (1)

The points are put into blocks that lie close together, and a block has only the functions that
matter there, those of the shells with

    E(R) (sum_g |w_g|)^1/2 > cutoff,      E(R) = max |chi[k, m]| at R or farther from its atom  (2)

where R is the distance from the atom to the nearest point: the left side bounds the root of the
block's part of an overlap integral. PySCF evaluates the functions; as many blocks are kept as there
is room for, and the others are evaluated again for each density: the bits are the same. Source of
the screening: Stratmann, Scuseria, Frisch, Chem. Phys. Lett. 257, 213 (1996).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfmp2.double_hybrids import without_parameters
from dfmp2.errors import InputError
from dfmp2.host.threads import Workers
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.options.values import GRID_LEVELS, LEBEDEV_POINTS, RADIAL_POINTS, parse_grid

LEVEL = 3  # of PySCF, for functionals that are not in LEVELS
# Functionals whose integrand varies faster than the density, by the beginning of libxc's names:
# SCAN switches with an essential singularity, the others are high powers of a ratio of kinetic
# energy densities. What each level leaves is measured in docs/project/validation/kohn-sham.md.
LEVELS = {
    **dict.fromkeys(("SCAN", "REVSCAN"), 5),
    **dict.fromkeys(("RSCAN", "R2SCAN", "R4SCAN", "RPPSCAN"), 4),
    **dict.fromkeys(("M05", "M06", "REVM06", "M08", "M11", "REVM11", "MN12", "MN15"), 4),
}
PREFIXES = tuple(f"{hybrid}MGGA_{part}_" for hybrid in ("", "HYB_") for part in ("XC", "X", "C"))
FINER_LEVELS = 2  # from a grid to the one that its error is measured with
FINER_RADIUS = 1.4  # times the points along the radius, as PySCF has it for two levels
COARSE_LEVEL = 1  # of the grid that an SCF begins with
LAST_LEVEL = 200, 1454  # NRAD, NANG of level 9
SPHERES = (50, 86, 110, 194, 302, 434, 590, 770, 974, 1202, 1454, 1730, 2030)  # one a level


@cache
def default_level(xc: str) -> int:
    """Level of the grid where none is asked for: the highest that a part of the functional needs.

    Parameters
    ----------
    xc : str
        A functional that `dfmp2.scf.kohn_sham.require_functional` accepts.
    """
    with shielded():
        from pyscf.dft import libxc

        _, parts = libxc.parse_xc(without_parameters(xc))
        numbers = {int(number) for number, _ in parts}
        names = [name for name, code in libxc.XC_CODES.items() if code in numbers]
    level = LEVEL
    for name in names:
        for prefix in PREFIXES:
            family = name.removeprefix(prefix)
            if family == name:
                continue
            for beginning, needed in LEVELS.items():
                if family.startswith(beginning):
                    level = max(level, needed)
    return level


def grid_name(asked: str | None, xc: str) -> str:
    """Name of the grid of a calculation.

    Parameters
    ----------
    asked : str or None
        `--grid`, None where it was not given.
    xc : str
        The functional.
    """
    if asked is None:
        return str(default_level(xc))
    return asked


def make_grid(mole: Any, name: str) -> Any:
    """A PySCF grid of the molecule, whose points are made when they are first needed.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    name : str
        Of the grid.
    """
    with shielded():
        from pyscf.dft import gen_grid

        grid = gen_grid.Grids(mole)
    if "," in name:
        radial, angular = name.split(",")
        grid.atom_grid = (int(radial), int(angular))
    else:
        grid.level = int(name)
    return grid


def build_unsorted(grid: Any) -> None:
    """Make the points of a PySCF grid without sorting them into boxes, which takes PySCF three times
    as long as the rest: `dfmp2.integrals.grid` has an order of its own."""
    grid.build(with_non0tab=False, sort_grids=False)


def count_points(mole: Any, name: str) -> int:
    """Number of points of a grid, without making it for the molecule.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    name : str
        Of the grid.
    """
    grid = make_grid(mole, name)
    with shielded():
        of_element = grid.gen_atomic_grids(mole)
    return sum(of_element[mole.atom_symbol(atom)][1].size for atom in range(mole.natm))


def name_of_grid(grid: Any) -> str:
    """Name of a PySCF grid.

    Parameters
    ----------
    grid : pyscf.dft.gen_grid.Grids
        The grid.

    Raises
    ------
    InputError
        It has no name: atoms have different numbers of points, or its points or weights are made
        in another way.
    """
    plain = make_grid(grid.mol, str(LEVEL))
    for part in ("prune", "radi_method", "becke_scheme", "radii_adjust"):
        if getattr(grid, part) is not getattr(plain, part):
            raise InputError(
                f"the mean field has grids.{part} = {getattr(grid, part)}, which cannot be "
                "recorded and repeated: leave it as PySCF has it, and set mf.grids.level or "
                "mf.grids.atom_grid = (NRAD, NANG) for more points"
            )
    asked = grid.atom_grid
    if not asked:
        return str(int(grid.level))
    if isinstance(asked, dict):
        symbols = {grid.mol.atom_symbol(atom) for atom in range(grid.mol.natm)}
        default = asked.get("default") or ()
        numbers = {tuple(asked.get(symbol) or default) for symbol in symbols}
    else:
        numbers = {tuple(asked)}
    if len(numbers) > 1 or () in numbers:
        raise InputError(
            f"the mean field has grids.atom_grid = {asked}, other points for other atoms, which "
            "cannot be recorded and repeated: set mf.grids.atom_grid = (NRAD, NANG)"
        )
    return parse_grid(numbers.pop())


def coarse_name(grid: Any) -> str:
    """Name of the grid that an SCF which ends on this one begins with: no finer than it.

    Parameters
    ----------
    grid : pyscf.dft.gen_grid.Grids
        The grid of the end.
    """
    name = name_of_grid(grid)
    coarse = str(COARSE_LEVEL)
    if count_points(grid.mol, name) <= count_points(grid.mol, coarse):
        return name
    return coarse


def finer_name(mole: Any, name: str, xc: str) -> str:
    """Name of the grid that the error of a grid is measured with.

    It is two levels up, and no coarser than the default of the functional.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    name : str
        Of the grid.
    xc : str
        The functional.
    """
    names = [_two_levels_up(name), str(default_level(xc))]
    return max(names, key=lambda one: count_points(mole, one))


def _two_levels_up(name: str) -> str:
    """Name of a grid with FINER_RADIUS times the points along the radius, and larger spheres."""
    if "," in name:
        radial, angular = (int(number) for number in name.split(","))
    elif int(name) < GRID_LEVELS[-1]:
        return str(min(int(name) + FINER_LEVELS, GRID_LEVELS[-1]))
    else:
        radial, angular = LAST_LEVEL
    larger = [points for points in SPHERES if points > angular]
    if not larger:
        larger = [points for points in LEBEDEV_POINTS if points > angular] or [angular]
    finer_angular = larger[:FINER_LEVELS][-1]
    finer_radial = min(round(FINER_RADIUS * radial), RADIAL_POINTS[-1])
    return f"{finer_radial},{finer_angular}"


# --- basis functions at its points ----------------------------------------------------------------

Array = NDArray[np.float64]
Result = TypeVar("Result")

BLOCK_POINTS = 1008  # a multiple of the 56 points that PySCF screens together
CUTOFF = 1e-9  # of Eq. 2: V_xc to 1e-11 Eh
SINGLE_CUTOFF = 1e-6  # for values in float32
DERIVATIVES = 4  # a value and three first derivatives
RADII = np.geomspace(1e-3, 60.0, 320)  # bohr, where the envelopes of Eq. 2 are known
DIRECTIONS = np.array(
    [place for place in np.ndindex(3, 3, 3) if place != (1, 1, 1)], dtype=np.float64
)
DIRECTIONS -= 1
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1)[:, None]  # 26, along which they are looked for


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
        self._shell_of_function = np.repeat(np.arange(mole.nbas), np.diff(mole.ao_loc_nr()))
        self._atoms = mole.atom_coords()
        self._envelopes = envelopes(mole, derivatives=derivatives)
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

    def share_out(self, work: Callable[[int, range], Result], threads: int) -> list[Result]:
        """What each worker makes of its share of the blocks, with PySCF's own threads held to one.

        Parameters
        ----------
        work : callable
            Takes the number of the worker and those of its blocks.
        threads : int
            Workers.
        """
        from pyscf import lib

        def one_thread(worker: int) -> Result:
            with lib.with_omp_threads(1):
                return work(worker, range(worker, self.count, threads))

        with Workers(threads) as pool:
            return list(pool.map(one_thread, range(threads)))

    def _evaluate(self, number: int) -> PointBlock:
        """The block of that number, made by PySCF."""
        from pyscf.dft import gen_grid, numint

        part = slice(number * BLOCK_POINTS, (number + 1) * BLOCK_POINTS)
        coordinates = np.asarray(self._coordinates[part], order="F")
        weights = self._weights[part]
        shells = self._shells(coordinates, weights)
        mole = with_shells(self._mole, shells)
        functions = np.flatnonzero(np.isin(self._shell_of_function, shells))
        mask = gen_grid.make_mask(mole, coordinates, cutoff=self._cutoff**2)
        values = numint.eval_ao(
            mole, coordinates, deriv=int(self.derivatives), non0tab=mask, cutoff=1e-30
        )
        if not self.derivatives:
            values = values[None]
        values = values.transpose(0, 2, 1)  # as PySCF has them in memory
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
    """The molecule with some of its shells of basis functions alone, which shares all else with
    it."""
    part = mole.copy(deep=False)
    part._bas = mole._bas[shells]
    return part


def envelopes(mole: Any, *, derivatives: bool) -> Array:
    """E of Eq. 2 of each shell at RADII, (shells, radii).

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    derivatives : bool
        Whether first derivatives count as well.
    """
    from pyscf.dft import numint

    places = (RADII[:, None, None] * DIRECTIONS).reshape(-1, 3)
    centres = mole.atom_coords()
    largest = np.empty((mole.nbas, len(RADII)))
    # Equal shells, of atoms of the same element, have the same exponents and coefficients.
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
    if not parts:
        return np.zeros(0, dtype=np.intp)
    return np.concatenate(parts)
