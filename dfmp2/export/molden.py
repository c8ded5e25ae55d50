"""Molden files: geometry in bohr, basis, orbitals (https://www.theochem.ru.nl/molden/molden_format.html).

The format knows spherical functions up to g and no charge, multiplicity, fitting set or effective core potential.
A ghost atom has its element's symbol and atomic number 0, as Psi4 writes it; the electrons that a core potential
replaces are named in the [Core] section that Molden2AIM introduced, and the atomic number stays the element's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError
from dfmp2.export import ao_order
from dfmp2.io.text import printable
from dfmp2.reference.shells import Shell, ao_shells
from dfmp2.result import MP2Result

LETTERS = "spdfg"


def molden(result: MP2Result) -> bytes:
    """A Molden file of the SCF orbitals, 17 significant digits.

    Raises
    ------
    InputError : the basis has functions beyond g
    NumericalError : the stored orbitals do not belong to the stored basis
    """
    reference, molecule = result.reference, result.molecule
    highest = max(shell[0] for element in result.orbital_basis.elements.values() for shell in element.shells)
    if highest >= len(LETTERS):
        raise InputError(
            f"--to molden: {result.orbital_basis.name} has functions of angular momentum {highest}, and the format "
            "ends at g (4): use --to trexio or --to qcschema"
        )
    shells = ao_shells(molecule, result.orbital_basis, reference.mo_coeff)
    order = ao_order.rows((shell.momentum for shell in shells), ao_order.molden)
    lines = [
        "[Molden Format]",
        "[Title]",
        printable(
            f" {reference.kind.upper()}/{result.orbital_basis.name} orbitals of dfmp2 {result.provenance.version}, "
            f"charge {molecule.charge}, multiplicity {molecule.multiplicity}{_beyond(result)}"
        ),
        "[Atoms] AU",
        *_atoms(result),
        "[GTO]",
        *_basis(shells, molecule.natom),
        "[5D]",
        "[7F]",
        "[9G]",
        *_cores(result),
        "[MO]",
    ]
    spins = zip(reference.mo_coeff, reference.mo_energy, reference.mo_occ, strict=True)
    for name, (coeff, energy, occ) in zip(("Alpha", "Beta"), spins, strict=False):
        lines.extend(_orbitals(name, coeff[order], energy, occ))
    return ("\n".join(lines) + "\n").encode("ascii", "backslashreplace")


def _beyond(result: MP2Result) -> str:
    """What acted on the orbitals besides the atoms of the file."""
    relativity = ", spin-free X2C" if result.options.relativity == "x2c" else ""
    charges = result.molecule.point_charges
    return relativity + (
        "" if charges is None else f", in the field of {len(charges)} point charges (not in this file)"
    )


def _atoms(result: MP2Result) -> Iterator[str]:
    molecule = result.molecule
    centres = zip(molecule.symbols, molecule.ghost, molecule.numbers, molecule.coordinates, strict=True)
    for place, (symbol, ghost, number, point) in enumerate(centres, start=1):
        yield f"{symbol} {place} {0 if ghost else number} " + " ".join(f"{x:.17g}" for x in point)


def _basis(shells: Sequence[Shell], natom: int) -> Iterator[str]:
    for atom in range(natom):
        yield f"{atom + 1} 0"
        for shell in shells:
            if shell.atom == atom:
                yield f"{LETTERS[shell.momentum]} {len(shell.exponents)} 1.00"
                for exponent, coefficient in zip(shell.exponents, shell.coefficients, strict=True):
                    yield f"{exponent:.17g} {coefficient:.17g}"
        yield ""


def _cores(result: MP2Result) -> Iterator[str]:
    molecule, replaced = result.molecule, result.orbital_basis.ecp_electrons
    cores = [0 if ghost else replaced[symbol] for symbol, ghost in zip(molecule.symbols, molecule.ghost, strict=True)]
    if any(cores):
        yield "[Core]"
        for place, electrons in enumerate(cores, start=1):
            if electrons:
                yield f"{place} : {electrons}"


def _orbitals(
    spin: str, coeff: NDArray[np.float64], energy: NDArray[np.float64], occ: NDArray[np.float64]
) -> Iterator[str]:
    for orbital in range(coeff.shape[1]):
        yield "Sym= A"
        yield f"Ene= {energy[orbital]:.17g}"
        yield f"Spin= {spin}"
        yield f"Occup= {occ[orbital]:.10f}"
        for row, value in enumerate(coeff[:, orbital], start=1):
            yield f"{row} {value:.17g}"
