"""Iterations, seconds and energies of SCFs of radicals, with ADIIS where DIIS climbs and without, as a Markdown table.

    OMP_NUM_THREADS=1 python scripts/benchmarks/scf_iterations.py [NAME ...]

All open shells of the validation scripts, phenyl and VCl4, or those that are named; ten minutes of one core.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import broken_symmetry
import error_budget
import fitting_certificates
import plan_against_measurement as plan

import dfmp2
from dfmp2.errors import ConvergenceError
from dfmp2.scf import hartree_fock
from dfmp2.units import BOHR_PER_ANGSTROM

NEVER = 10**6  # iterations


def of_atoms(atoms: list[plan.Atom], multiplicity: int) -> dfmp2.Molecule:
    """A molecule from positions in angstrom."""
    places = np.array([place for _, *place in atoms]) * BOHR_PER_ANGSTROM
    return dfmp2.Molecule(tuple(symbol for symbol, *_ in atoms), places, multiplicity=multiplicity)


def cases() -> list[tuple[str, dfmp2.Molecule, str]]:
    """Name, molecule and basis."""
    tables = {**error_budget.MOLECULES, **error_budget.HELD_OUT}
    found = [
        (n, error_budget.molecule_of(*row[1:], n), row[0])
        for n, row in tables.items()
        if row[2] > 1
    ]
    for _, name, molecule in fitting_certificates.molecules():
        if molecule.multiplicity > 1:
            found += [(name, molecule, basis) for basis in ("def2-tzvp", "aug-cc-pvdz")]
    found += [
        (name, of_atoms(atoms, m), basis)
        for name, atoms, m, basis in broken_symmetry.CASES
        if m > 1
    ]
    for name, bases in (
        ("phenyl", ("6-31g*", "cc-pvdz", "def2-svp")),
        ("vcl4", ("def2-svp",)),
        ("ch3oo", ("cc-pvdz",)),
    ):
        found += [(name, of_atoms(plan.MADE[name][0], 2), basis) for basis in bases]
    return [*found, ("NiH", of_atoms([("Ni", 0, 0, 0), ("H", 0, 0, 1.48)], 2), "def2-svp")]


def solved(molecule: dfmp2.Molecule, basis: str) -> list[str]:
    """Iterations, ladder, energy and processor seconds of a run."""
    begun = time.process_time()
    try:
        found = dfmp2.run(
            molecule, basis, threads=1, auxbasis="auto", allow_small_gap=True
        ).reference
    except ConvergenceError as error:
        return ["-", f"{error}".partition(":")[0], "-", f"{time.process_time() - begun:.1f}"]
    ladder = ", ".join(found.ladder)
    return [
        str(found.cycles),
        ladder,
        f"{found.scf_total_energy:.9f}",
        f"{time.process_time() - begun:.1f}",
    ]


if __name__ == "__main__":
    heads = [
        f"{name}{way}"
        for way in ("", ", no ADIIS")
        for name in ("iterations", "ladder", "energy / Eh", "s")
    ]
    print(f"| radical | basis | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}", flush=True)
    usual = hartree_fock.CLIMBED
    for name, molecule, basis in cases():
        if not sys.argv[1:] or name in sys.argv[1:]:
            cells = []
            for hartree_fock.CLIMBED in (usual, NEVER):
                cells += solved(molecule, basis)
            print(f"| {name} | {basis} | {' | '.join(cells)} |", flush=True)
