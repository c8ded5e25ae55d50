"""Hold density-fitted SCF energies of heavy elements against conventional ones.

    python scripts/fitting_against_conventional.py [MOLECULE ...] > docs/validation/heavy-elements.md

Eleven molecules with elements whose published fitting sets are bad, or made for core potentials, in eight bases, with
default fitting sets. Each cell: E(SCF, fitted) - E(SCF, conventional) per atom, or why the run is refused; "-" where
the basis does not have the element.
"""

from __future__ import annotations

import sys
import warnings
from importlib import metadata

import numpy as np

import dfmp2
from dfmp2.errors import Dfmp2Error, InputError
from dfmp2.units import BOHR_PER_ANGSTROM

BASES = ("sto-3g", "3-21g", "6-31g*", "cc-pvdz", "aug-cc-pvdz", "cc-pvtz", "def2-svp", "def2-tzvp")


def hydride(symbol: str, count: int, length: float, angle: float = 0.0) -> tuple[str, ...]:
    """xyz lines of XH_n; `angle` H-X-H in degrees for two and three hydrogen atoms, tetrahedral for four."""
    if count == 1:
        bonds = np.array([[0.0, 0.0, 1.0]])
    elif count == 4:
        bonds = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3)
    else:
        around = 2 * np.pi * np.arange(count) / count
        across = np.sin(np.radians(angle / 2)) / np.sin(np.pi / count)
        height = np.sqrt(max(0.0, 1 - across**2))
        bonds = np.stack(
            [across * np.cos(around), across * np.sin(around), np.full(count, height)], axis=1
        )
    places = [(symbol, np.zeros(3)), *(("H", length * bond) for bond in bonds)]
    return tuple(f"{name} {x:.6f} {y:.6f} {z:.6f}" for name, (x, y, z) in places)


MOLECULES = {
    "HBr": (hydride("Br", 1, 1.41), 0),
    "HI": (hydride("I", 1, 1.61), 0),
    "RbH": (hydride("Rb", 1, 2.37), 0),
    "AgH": (hydride("Ag", 1, 1.62), 0),
    "PdH+": (hydride("Pd", 1, 1.53), 1),
    "GeH4": (hydride("Ge", 4, 1.53), 0),
    "H2Se": (hydride("Se", 2, 1.46, 90.6), 0),
    "Kr": (("Kr 0 0 0",), 0),
    "GaH3": (hydride("Ga", 3, 1.56, 120.0), 0),
    "AsH3": (hydride("As", 3, 1.51, 92.1), 0),
    "SbH3": (hydride("Sb", 3, 1.70, 91.6), 0),
}


def cell(lines: tuple[str, ...], charge: int, basis: str) -> str:
    """The difference per atom, Eh, with the SCF set of the heavy atom."""
    symbols, *places = zip(*(line.split() for line in lines), strict=True)
    coordinates = np.array(places, dtype=float).T * BOHR_PER_ANGSTROM
    molecule = dfmp2.Molecule(tuple(symbols), coordinates, charge=charge)
    given = {"stability": "off", "allow_small_gap": True}
    try:
        fitted = dfmp2.run(molecule, basis, **given)
    except InputError as error:
        if "no functions for" in str(error) and "--basis" in str(error):
            return "-"
        return f"refused: {error}"
    except Dfmp2Error as error:
        return f"refused: {error}"
    exact = dfmp2.run(molecule, basis, scf="conventional", **given)
    difference = (fitted.scf_total_energy - exact.scf_total_energy) / len(symbols)
    return f"{difference:+.1e} ({fitted.scf_fitting.elements[symbols[0]].name})"


INTRODUCTION = """# Density-fitted against conventional SCF of heavy elements

E(SCF, fitted) - E(SCF, conventional), Eh per atom, with default fitting sets (that of the heavy atom is named); "-":
the basis lacks the element. Before poor sets were replaced, HBr/cc-pVDZ was off by +0.34, HI/3-21G by -14 and
AgH/STO-3G by -44 Eh per atom. Made by `scripts/fitting_against_conventional.py`, PySCF {pyscf}.
"""


def main(names: list[str]) -> None:
    """Print the table; progress goes to stderr."""
    warnings.simplefilter("ignore")
    print(INTRODUCTION.format(pyscf=metadata.version("pyscf")))
    print("| molecule | " + " | ".join(BASES) + " |\n|" + "---|" * (len(BASES) + 1))
    for name in names:
        lines, charge = MOLECULES[name]
        row = []
        for basis in BASES:
            row.append(cell(lines, charge, basis))
            print(f"{name} {basis}: {row[-1]}", file=sys.stderr, flush=True)
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(MOLECULES))
