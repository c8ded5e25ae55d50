"""One-electron densities of a result, their natural orbitals, and cube files of densities and
orbitals.

    D = sum_i n_i C_i C_i^T        n_i, C_i: natural occupations and orbitals, C^T S C = 1

Grid and cube format are those of `pyscf.tools.cubegen` (https://gaussian.com/cubegen): a box around
the atoms, lengths in bohr, densities in e/bohr^3, orbitals in bohr^-3/2. The line with PySCF's
version and the date is replaced, so that equal results give equal files. A ghost has atomic number
0.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import Command, InputError, Option, ResultFileError
from dfmp2.errors.messages import N
from dfmp2.molecule.mole import rebuilt_mole
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.molecule.text import printable
from dfmp2.mp2.result import MP2Result

SAID = {"scf": "of the reference", "unrelaxed": "of MP2, unrelaxed", "relaxed": "of MP2, relaxed"}
MOST_POINTS = 5 * 10**7  # 650 MB of text
LEAST_PLACE = -999.0  # bohr; longer numbers touch in the columns of the format
BLOCK = 8000  # points at a time


def densities(result: MP2Result, of: str) -> Array:
    """Density matrix of each spin, (nspin, nao, nao); a restricted reference has nspin = 1.

    Parameters
    ----------
    of : "scf", "unrelaxed" or "relaxed"

    Raises
    ------
    ResultFileError : the result holds only energies
    """
    reference, own = result.reference, result.properties
    if of == "scf":
        occupied = reference.mo_coeff * (reference.mo_occ > 0)[:, None, :]
        return np.asarray(occupied @ reference.mo_coeff.transpose(0, 2, 1))
    if own is None:
        raise ResultFileError(
            (
                f"the result of {result.molecule.name} is an energy without its {of} density: "
                "compute it with "
            ),
            Command("run"),
            " MOLECULE ",
            Option("properties", True),
            " or ",
            Command("gradient"),
            ", or take ",
            Option("of"),
            " scf",
        )
    return own.relaxed_density if of == "relaxed" else own.unrelaxed_density


def natural_orbitals(result: MP2Result, of: str) -> tuple[Array, Array]:
    """Occupations (nmo,), largest first, and natural orbitals (nao, nmo) of the total density.

    Raises
    ------
    ResultFileError : as in `densities`
    """
    found = densities(result, of)
    mole, coeff = _mole(result), result.reference.mo_coeff[0]
    with shielded():
        basis = mole.intor("int1e_ovlp") @ coeff
    occupations, vectors = np.linalg.eigh(basis.T @ _of_both_spins(found) @ basis)
    orbitals = coeff @ vectors[:, ::-1]
    largest = np.abs(orbitals).argmax(axis=0)
    return occupations[::-1].copy(), orbitals * np.sign(orbitals[largest, np.arange(len(largest))])


def cube(
    result: MP2Result,
    density: bool = False,
    spin: bool = False,
    orbital: str | None = None,
    orbitals: str = "scf",
    of: str | None = None,
    spacing: float | None = None,
    margin: float | None = None,
) -> bytes:
    """A cube file of the electron density, the spin density or an orbital.

    Parameters
    ----------
    density, spin, orbital : exactly one of the three; an orbital by its number from 1, with the
        suffix "b" for a beta orbital
    orbitals : "scf" or "natural"
    of : as in `densities`, None for relaxed
    spacing : between points, bohr; None for 80 points along each axis
    margin : between the outermost atoms and the faces of the box, bohr; None for 3

    Raises
    ------
    InputError : not exactly one of the three, no such orbital, or a grid that is too large
    ResultFileError : as in `densities`
    """
    if density + spin + (orbital is not None) != 1:
        raise InputError(
            Option("to"),
            " cube needs one of ",
            Option("density"),
            ", ",
            Option("spin", True),
            " and ",
            Option("orbital", N),
            ": name the quantity to show",
        )
    kind = of or "relaxed"
    if orbital is not None:
        what, column = _orbital(result, orbital, orbitals, of)
        return _written(result, what, lambda ao: np.asarray(ao @ column), spacing, margin)
    if orbitals != "scf":
        raise InputError(
            Option("orbitals"), " natural belongs to ", Option("orbital", N), ": leave it out"
        )
    if spin and result.reference.nspin == 1:
        raise InputError(
            Option("spin", True),
            ": the spin density of a restricted reference is zero: use ",
            Option("density"),
        )
    found = densities(result, kind)
    matrix = found[0] - found[1] if spin else _of_both_spins(found)
    what = f"{'spin' if spin else 'electron'} density {SAID[kind]}{_scaled(result, kind)}, e/bohr^3"
    return _written(
        result, what, lambda ao: np.einsum("gm,gm->g", ao @ matrix, ao), spacing, margin
    )


def _of_both_spins(found: Array) -> Array:
    """The density of both spins, (nao, nao)."""
    return np.asarray(2 * found[0] if len(found) == 1 else found.sum(axis=0))


def _orbital(result: MP2Result, orbital: str, orbitals: str, of: str | None) -> tuple[str, Array]:
    """A description of an orbital, and its coefficients, (nao,).

    Raises
    ------
    InputError : there is no such orbital
    """
    given = re.fullmatch(r"([0-9]{1,6})(b?)", orbital)
    reference, natural = result.reference, orbitals == "natural"
    if of is not None and not natural:
        raise InputError(
            Option("of"),
            " names the density of natural orbitals: add ",
            Option("orbitals"),
            " natural, or leave it out",
        )
    if given is None or not 1 <= int(given[1]) <= result.sizes.nmo:
        raise InputError(
            Option("orbital", orbital),
            f": expected a number from 1 to {result.sizes.nmo}, with b for beta: 5b",
        )
    if given[2] and (natural or reference.nspin == 1):
        if natural:
            kind = "natural orbitals"
        else:
            kind = "orbitals of a restricted reference"
        raise InputError(
            Option("orbital", orbital), f": {kind} are the same for both spins: leave the b out"
        )
    number = int(given[1]) - 1
    if natural:
        kind = of or "relaxed"
        occupations, coeff = natural_orbitals(result, kind)
        said = (
            f"natural orbital {number + 1} {SAID[kind]}{_scaled(result, kind)}, occupation "
            f"{occupations[number]:.6f}"
        )
        return said, coeff[:, number]
    s = 1 if given[2] else 0
    if reference.nspin == 1:
        name = ""
    else:
        name = ("alpha ", "beta ")[s]
    energy = reference.mo_energy[s, number]
    occ = reference.mo_occ[s, number]
    return f"{name}orbital {number + 1}, {energy:.6f} Eh, occupation {occ:g}", reference.mo_coeff[
        s, :, number
    ]


def _scaled(result: MP2Result, of: str) -> str:
    scaling = result.options.correlation
    if of != "scf" and scaling.title != "MP2":
        return f" ({scaling.opposite_spin:g} OS, {scaling.same_spin:g} SS)"
    return ""


def _mole(result: MP2Result) -> Any:
    return rebuilt_mole(result.molecule, result.orbital_basis, result.reference.mo_coeff)


def _written(
    result: MP2Result,
    what: str,
    evaluate: Callable[[Array], Array],
    spacing: float | None,
    margin: float | None,
) -> bytes:
    """A cube file of the values that `evaluate` computes from the basis functions at points,
    (points, nao)."""
    for name, value in (("spacing", spacing), ("margin", margin)):
        if value is not None and not 0 < value <= 100:
            raise InputError(Option(name, value), ": expected bohr, more than 0 and at most 100")
    mole = _mole(result)
    box = {} if margin is None else {"margin": margin}
    with shielded(), tempfile.TemporaryDirectory() as folder:
        from pyscf.tools import cubegen

        around = cubegen.BOX_MARGIN if margin is None else margin
        least = float(mole.atom_coords().min()) - around
        if least < LEAST_PLACE:
            raise InputError(
                Option("to"),
                (
                    f" cube: the grid begins at {least:.1f} bohr, and the columns of the format "
                    f"end at {LEAST_PLACE:g}: move the molecule to the origin, and compute it again"
                ),
            )
        extent = np.ptp(mole.atom_coords(), axis=0) + 2 * around
        if spacing is None:
            steps = 79 * np.ones(3, dtype=int)
        else:
            steps = np.ceil(extent / spacing).astype(int)
        points = int(np.prod(steps + 1.0))
        if points > MOST_POINTS:
            raise InputError(
                Option("spacing", f"{spacing:g}"),
                f" gives {points:.1e} points, at most {MOST_POINTS:.0e}: raise it",
            )
        grid = cubegen.Cube(mole, *(int(n) + 1 for n in steps), resolution=None, **box)
        places = grid.get_coords()
        values = np.concatenate(
            [
                evaluate(mole.eval_gto("GTOval_sph", places[p : p + BLOCK]))
                for p in range(0, len(places), BLOCK)
            ]
        )
        path = Path(folder) / "cube"
        grid.write(values.reshape(grid.nx, grid.ny, grid.nz), str(path), comment=printable(what))
        first, _, *rest = path.read_bytes().split(b"\n", 2)
    second = (
        f"{result.molecule.formula}, {result.orbital_basis.name}, dfmp2 {result.provenance.version}"
    )
    return b"\n".join([first, printable(second).encode("ascii", "backslashreplace"), *rest])
