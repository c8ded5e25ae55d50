"""Molden files: geometry in bohr, basis, orbitals
(https://www.theochem.ru.nl/molden/molden_format.html).

The format has spherical functions up to g, but no charge, multiplicity, fitting set or effective
core potential. A ghost atom has its element's symbol and atomic number 0, as in Psi4. The numbers
of electrons that core potentials replace are in the [Core] section introduced by Molden2AIM; atomic
numbers remain those of the elements.

`pyscf.tools.molden` (PySCF 2.14) has the same order and normalisation up to g, but it writes a
ghost as "GHOST-I", which readers reject (IOData) or take for another element, writes the effective
charge as the atomic number where there is a core potential (iodine becomes manganese), prints
orbital energies with 10 digits, and silently drops h functions. This module can go once that is
fixed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.errors import InputError, Option
from dfmp2.molecule.mole import Shell, ao_shells
from dfmp2.molecule.text import printable
from dfmp2.mp2.result import MP2Result
from dfmp2.output.export import conventions
from dfmp2.output.export.densities import SAID, natural_orbitals
from dfmp2.output.study import Study

LETTERS = "spdfg"
SPINS = ("Alpha", "Beta")


def normal_modes(study: Study) -> bytes:
    """A Molden file of the vibrations in a frequency study: wavenumbers in cm^-1, negative if
    imaginary, intensities in km/mol, the geometry in bohr and the normalised displacements."""
    molecule = study.runs["reference"].molecule
    places = list(zip(molecule.symbols, molecule.coordinates, strict=True))
    lines = ["[Molden Format]", "[Title]", printable(study.title), "[Atoms] AU"]
    for place, ((symbol, point), number) in enumerate(
        zip(places, molecule.numbers, strict=True), start=1
    ):
        lines.append(f"{symbol} {place} {number} " + _row(point))
    lines += ["[FREQ]", *(f"{value:.6f}" for value in study.table["wavenumber"].values)]
    lines += ["[INT]", *(f"{value:.6f}" for value in study.table["ir_intensity"].values)]
    lines += [
        "[FR-COORD]",
        *(f"{symbol} {_row(point)}" for symbol, point in places),
        "[FR-NORM-COORD]",
    ]
    for number, mode in enumerate(study.arrays["normal_modes"].value, start=1):
        lines += [f"vibration {number}", *map(_row, mode)]
    return ("\n".join(lines) + "\n").encode("ascii", "backslashreplace")


def _row(point: NDArray[np.float64]) -> str:
    return " ".join(f"{x:.12f}" for x in point)


def molden(result: MP2Result, orbitals: str = "scf", of: str | None = None) -> bytes:
    """A Molden file of the SCF orbitals, or of natural orbitals, 17 significant digits.

    Parameters
    ----------
    orbitals : "scf" or "natural"; energies of natural orbitals are written as 0
    of : density of natural orbitals, "scf", "unrelaxed" or "relaxed"; None for relaxed

    Raises
    ------
    InputError : the basis has functions beyond g
    ResultFileError : the result does not hold the density
    NumericalError : the stored orbitals do not belong to the stored basis
    """
    molecule = result.molecule
    if of is not None and orbitals == "scf":
        raise InputError(
            Option("of"),
            " names the density of natural orbitals: add ",
            Option("orbitals"),
            " natural, or leave it out",
        )
    highest = max(
        shell[0] for element in result.orbital_basis.elements.values() for shell in element.shells
    )
    if highest >= len(LETTERS):
        raise InputError(
            Option("to"),
            (
                f" molden: {result.orbital_basis.name} has functions of angular momentum "
                f"{highest}, and the format ends at g (4): use "
            ),
            Option("to"),
            " trexio or ",
            Option("to"),
            " qcschema",
        )
    shells = ao_shells(molecule, result.orbital_basis, result.reference.mo_coeff)
    if orbitals == "natural":
        occupations, coeff = natural_orbitals(result, of or "relaxed")
        sets = [("Alpha", np.zeros_like(occupations), occupations, coeff)]
        title = f"natural orbitals {SAID[of or 'relaxed']}, "
    else:
        reference = result.reference
        sets = list(
            zip(SPINS, reference.mo_energy, reference.mo_occ, reference.mo_coeff, strict=False)
        )
        title = ""
    lines = ["[Molden Format]", "[Title]", f" {title}{_title(result)}", "[Atoms] AU"]
    centres = zip(
        molecule.symbols, molecule.ghost, molecule.numbers, molecule.coordinates, strict=True
    )
    for place, (symbol, ghost, number, point) in enumerate(centres, start=1):
        lines.append(
            f"{symbol} {place} {0 if ghost else number} " + " ".join(f"{x:.17g}" for x in point)
        )
    lines.append("[GTO]")
    for atom in range(molecule.natom):
        lines += [
            f"{atom + 1} 0",
            *(line for shell in shells if shell.atom == atom for line in _shell(shell)),
            "",
        ]
    lines += ["[5D]", "[7F]", "[9G]"]
    cores = [
        f"{place} : {core}"
        for place, core in enumerate(conventions.core_electrons(result), start=1)
        if core
    ]
    lines += ["[Core]", *cores] if cores else []
    order = conventions.rows((shell.momentum for shell in shells), conventions.molden_conventions)
    lines += ["[MO]", *(line for one in sets for line in _orbitals(*one, order))]
    return ("\n".join(lines) + "\n").encode("ascii", "backslashreplace")


def _title(result: MP2Result) -> str:
    """The title line: what was computed, and anything other than the atoms in the file that acted
    on the orbitals."""
    molecule, charges = result.molecule, result.molecule.point_charges
    if result.options.relativity == "x2c":
        relativity = ", spin-free X2C"
    else:
        relativity = ""
    if charges is None:
        field = ""
    else:
        field = f", in the field of {len(charges)} point charges (not in this file)"
    if result.options.solvent is not None:
        field = f", in a solvent (not in this file): {result.options.solvent_title}"
    return printable(
        f"{result.reference.title}/{result.orbital_basis.name} orbitals of dfmp2 "
        f"{result.provenance.version}, charge {molecule.charge}, multiplicity "
        f"{molecule.multiplicity}{relativity}{field}"
    )


def _shell(shell: Shell) -> Iterator[str]:
    yield f"{LETTERS[shell.momentum]} {len(shell.exponents)} 1.00"
    yield from (
        f"{a:.17g} {c:.17g}" for a, c in zip(shell.exponents, shell.coefficients, strict=True)
    )


def _orbitals(
    spin: str, energies: Array, occupations: Array, coeff: Array, order: NDArray[np.intp]
) -> Iterator[str]:
    for energy, occ, column in zip(energies, occupations, coeff[order].T, strict=True):
        yield from ("Sym= A", f"Ene= {energy:.17g}", f"Spin= {spin}", f"Occup= {occ:.10f}")
        yield from (f"{row} {value:.17g}" for row, value in enumerate(column, start=1))
