"""The integration grid of a functional: points and weights around each atom, built by PySCF.

    E_xc = sum_g w_g f(r_g)                                                                    (1)

Each atom has NRAD spheres around it with up to NANG points, fewer near the nucleus and far from it,
and weights that fade where the cells of atoms meet. A grid has the name used for `--grid`: "3" is a
PySCF level, whose NRAD and NANG depend on the period of the atom; "99,590" means the same
NRAD and NANG for every atom. Sources: Treutler and Ahlrichs, J. Chem. Phys. 102, 346 (1995);
Lebedev and Laikov, Dokl. Math. 59, 477 (1999); Becke, J. Chem. Phys. 88, 2547 (1988).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dfmp2.double_hybrids import without_parameters
from dfmp2.errors import InputError
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.options.values import GRID_LEVELS, LEBEDEV_POINTS, RADIAL_POINTS, parse_grid

LEVEL = 3  # PySCF level, for functionals that are not in LEVELS
# Functionals whose integrand varies faster than the density, by the beginning of libxc's names:
# SCAN switches with an essential singularity, the others contain high powers of a ratio of kinetic
# energy densities. docs/project/validation/kohn-sham.md has the measured error of each level.
LEVELS = {
    **dict.fromkeys(("SCAN", "REVSCAN"), 5),
    **dict.fromkeys(("RSCAN", "R2SCAN", "R4SCAN", "RPPSCAN"), 4),
    **dict.fromkeys(("M05", "M06", "REVM06", "M08", "M11", "REVM11", "MN12", "MN15"), 4),
}
PREFIXES = tuple(f"{hybrid}MGGA_{part}_" for hybrid in ("", "HYB_") for part in ("XC", "X", "C"))
FINER_LEVELS = 2  # from a grid to the one used to measure its error
# Points of PySCF's spheres around a nucleus, at every level, and in a finer grid
NEAR_NUCLEUS = {50: 110, 86: 194}
FINER_RADIUS = 1.4  # factor on the radial points, as in PySCF over two levels
COARSE_LEVEL = 1  # of the grid that an SCF begins with
LAST_LEVEL = 200, 1454  # NRAD, NANG of level 9
SPHERES = (50, 86, 110, 194, 302, 434, 590, 770, 974, 1202, 1454, 1730, 2030)  # one per level


@cache
def default_level(xc: str) -> int:
    """Default level of the grid: the highest that any part of the functional needs.

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
    families = [
        name.removeprefix(prefix)
        for name in names
        for prefix in PREFIXES
        if name.startswith(prefix)
    ]
    needed = [
        level
        for family in families
        for beginning, level in LEVELS.items()
        if family.startswith(beginning)
    ]
    return max([LEVEL, *needed])


def grid_name(asked: str | None, xc: str) -> str:
    """Name of the grid of a calculation.

    Parameters
    ----------
    asked : str or None
        `--grid`, or None.
    xc : str
        The functional.
    """
    if asked is None:
        return str(default_level(xc))
    return asked


def make_grid(mole: Any, name: str) -> Any:
    """A PySCF grid for the molecule, whose points are built when first needed.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    name : str
        Name of the grid.
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


def make_finer_grid(mole: Any, name: str) -> Any:
    """A PySCF grid to measure the error of another one, whose points are built when first needed.

    PySCF's spheres near a nucleus have 50 and 86 points at every level, too few for the shells of
    an open-shell atom: without larger ones, both grids would have the same error there.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    name : str
        Name of the grid, by `finer_name`.
    """
    grid = make_grid(mole, name)
    grid.prune = _larger_near_nucleus
    return grid


def _larger_near_nucleus(nuclear_charge: int, radii: Any, points: int, *_: Any) -> Any:
    """Points of each sphere of an atom, those of PySCF with NEAR_NUCLEUS, (len(radii),).

    Parameters
    ----------
    nuclear_charge : int
    radii : array
        Radii of the spheres, bohr.
    points : int
        Points of the largest spheres.
    """
    from pyscf.dft import gen_grid

    of_spheres = np.array(gen_grid.nwchem_prune(nuclear_charge, radii, points))
    for fewer, more in NEAR_NUCLEUS.items():
        of_spheres[of_spheres == fewer] = min(more, points)
    return of_spheres


def build_unsorted(grid: Any) -> None:
    """Build the points of a PySCF grid without sorting them into boxes, which takes PySCF three
    times as long as the rest; `dfmp2.integrals.basis_on_grid` has its own order."""
    grid.build(with_non0tab=False, sort_grids=False)


def count_points(grid: Any) -> int:
    """Number of points of a PySCF grid, without building it for the molecule."""
    mole = grid.mol
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
        It has no name: atoms have different numbers of points, or its points or weights follow
        another scheme.
    """
    plain = make_grid(grid.mol, str(LEVEL))
    for part in ("prune", "radi_method", "becke_scheme", "radii_adjust"):
        if getattr(grid, part) is not getattr(plain, part):
            raise InputError(
                f"the mean field has grids.{part} = {getattr(grid, part)}, which cannot be "
                "recorded and repeated: leave it as PySCF has it, and set mf.grids.level or "
                "mf.grids.atom_grid = (NRAD, NANG) for more points"
            )
    if not grid.atom_grid:
        return str(int(grid.level))
    numbers = _points_of_atoms(grid)
    if len(numbers) > 1 or () in numbers:
        raise InputError(
            f"the mean field has grids.atom_grid = {grid.atom_grid}, other points for other atoms, "
            "which cannot be recorded and repeated: set mf.grids.atom_grid = (NRAD, NANG)"
        )
    return parse_grid(numbers.pop())


def _points_of_atoms(grid: Any) -> set[tuple[int, ...]]:
    """The different (NRAD, NANG) in `atom_grid` of a PySCF grid; () for an element without any."""
    asked = grid.atom_grid
    if not isinstance(asked, dict):
        return {tuple(asked)}
    symbols = {grid.mol.atom_symbol(atom) for atom in range(grid.mol.natm)}
    default = asked.get("default") or ()
    return {tuple(asked.get(symbol) or default) for symbol in symbols}


def coarse_name(grid: Any) -> str:
    """Name of the grid with which an SCF begins that ends on this one; no finer than it.

    Parameters
    ----------
    grid : pyscf.dft.gen_grid.Grids
        The final grid.
    """
    name = name_of_grid(grid)
    coarse = str(COARSE_LEVEL)
    if count_points(make_grid(grid.mol, name)) <= count_points(make_grid(grid.mol, coarse)):
        return name
    return coarse


def finer_name(mole: Any, name: str, xc: str) -> str:
    """Name of the grid used to measure the error of a grid.

    It is two levels up, and no coarser than the functional's default.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    name : str
        Name of the grid.
    xc : str
        The functional.
    """
    names = [_two_levels_up(name), str(default_level(xc))]
    return max(names, key=lambda one: count_points(make_grid(mole, one)))


def _two_levels_up(name: str) -> str:
    """Name of a grid with FINER_RADIUS times the radial points, and larger spheres."""
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
