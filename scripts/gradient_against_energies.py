"""Analytic gradients against five-point differences of energies: the table of docs/validation/gradients.md.

    OMP_NUM_THREADS=1 python scripts/gradient_against_energies.py --rows rows.jsonl > table.md

Each molecule is moved along three random directions in which all atoms (and point charges) take part; energies are at
-0.01, -0.005, 0.005 and 0.01 bohr, float64. The SCF is converged to 1e-14 Eh: with 1e-12 the energies scatter so much
that differences of up to 8e-7 Eh/bohr are theirs. A row is written as soon as it is known, and what is there is not
computed again. About five minutes of one core.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.energy import mp2_energy
from dfmp2.options import make_options
from dfmp2.progress import Silent
from dfmp2.scf.reference import StartOrbitals

STEP, DIRECTIONS, BOHR = 0.005, 3, 1.8897261246
EXACT = {"precision": "fp64", "scf_conv_tol": 1e-14, "threads": 1, "stability": "off"}
GEOMETRIES = {  # angstrom; none is symmetric
    "H2O": "O 0 0 0.117; H 0 0.757 -0.469; H 0.05 -0.80 -0.43",
    "NH3": "N 0 0 0.1; H 0.95 0 -0.27; H -0.47 0.82 -0.25; H -0.45 -0.85 -0.3",
    "OH": "O 0 0 0; H 0 0.1 0.97",
    "O2": "O 0 0 0; O 0.1 0 1.23",
    "HF with a ghost of water": "F 0 0 0; H 0 0.05 0.93; @O 0 0.1 2.8; @H 0.7 0.1 3.3; @H -0.75 0 3.4",
    "CH2I2": "C 0 0 0; I 1.75 0.02 -1.2; I -1.77 0 -1.22; H 0 0.9 0.6; H 0.05 -0.88 0.66",
    "AgH": "Ag 0 0 0; H 0.1 0 1.63",
    "HCN": "H 0 0.1 -1.06; C 0 0 0; N 0 0.15 1.16",
    "H2CO": "C 0 0 -0.53; O 0 0.05 0.68; H 0 0.94 -1.11; H 0.08 -0.92 -1.13",
    "NaCl": "Na 0 0 0; Cl 0.2 0 2.4",
    "He among ghosts": "He 0 0 0; @He 0 0.02 0.22; @He 0.05 0 0.42; @He 0 0 -0.23; @He 0 0.23 0; @He 0.22 0.02 0",
}
FIELD = [[0, 1, 4.4, 0.6], [3.5, -3, 0, -0.7], [-4, 2, -3, 0.2]]  # bohr, e
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (  # geometry, what is special, charge, multiplicity and options
    ("H2O", "RHF", {"basis": "cc-pvdz"}),
    ("H2O", "diffuse basis, frozen core", {"basis": "aug-cc-pvdz", "frozen_core": "auto"}),
    ("H2O", "point charges", {"basis": "cc-pvdz", "field": True}),
    ("NH3", "cation, UHF, core and 2 virtuals frozen", {
        "basis": "def2-svp", "charge": 1, "multiplicity": 2, "frozen_core": "1", "frozen_virtual": 2}),
    ("OH", "UHF, SCS", {"basis": "cc-pvdz", "multiplicity": 2, "os_scale": 1.2, "ss_scale": 1 / 3}),
    ("O2", "triplet, four-centre SCF", {"basis": "def2-svp", "multiplicity": 3, "scf": "conventional"}),
    ("HF with a ghost of water", "ghosts", {"basis": "cc-pvdz"}),
    ("CH2I2", "core potential, frozen core", {"basis": "def2-svp", "frozen_core": "auto"}),
    ("AgH", "core potential, frozen core", {"basis": "def2-svp", "frozen_core": "auto"}),
    ("HCN", "four-centre SCF", {"basis": "cc-pvdz", "scf": "conventional"}),
    ("H2CO", "SOS, core and 3 virtuals frozen", {
        "basis": "cc-pvdz", "frozen_core": "auto", "frozen_virtual": 3, "os_scale": 1.3, "ss_scale": 0.0}),
    ("NaCl", "X2C, frozen core", {"basis": "cc-pvdz", "relativity": "x2c", "frozen_core": "auto"}),
    ("He among ghosts", "metric with dropped functions", {
        "basis": "6-31g", "scf_auxbasis": "auto", "auxbasis": "aug-cc-pvtz-ri", "allow_poor_fit": True}),
)  # fmt: skip


def molecule(name: str, *, charge: int = 0, multiplicity: int = 1, field: bool = False) -> Molecule:
    """One of GEOMETRIES, in bohr."""
    atoms = [atom.split() for atom in GEOMETRIES[name].split(";")]
    labels, places = (
        [atom[0] for atom in atoms],
        np.array([[float(x) for x in atom[1:]] for atom in atoms]) * BOHR,
    )
    made = Molecule(
        tuple(label.lstrip("@") for label in labels),
        places,
        ghost=tuple(label.startswith("@") for label in labels),
        charge=charge,
        multiplicity=multiplicity,
    )
    return made.in_field(FIELD) if field else made


def measure(name: str, special: str, given: dict[str, Any]) -> dict[str, Any]:
    """The row of a case."""
    state = {key: given[key] for key in ("charge", "multiplicity", "field") if key in given}
    here = molecule(name, **state)
    options = make_options(
        **EXACT | {key: value for key, value in given.items() if key not in state}
    )
    found = mp2_gradient(here, options, listener=Silent())
    start = StartOrbitals(
        found.result.reference.mo_coeff, found.result.reference.mo_occ, None, "undisplaced"
    )
    rng, differences, dropped = (
        np.random.default_rng(7),
        [],
        {found.result.diagnostics.metric_dropped},
    )
    for _ in range(DIRECTIONS):
        atoms = rng.standard_normal((here.natom, 3))
        if here.point_charges is not None:
            charges = rng.standard_normal((len(FIELD), 3))
        else:
            charges = np.zeros((0, 3))
        norm = np.sqrt((atoms**2).sum() + (charges**2).sum())
        atoms, charges = atoms / norm, charges / norm
        energies = []
        for factor in (-2, -1, 1, 2):
            moved = replace(here, coordinates=here.coordinates + factor * STEP * atoms)
            if here.point_charges is not None:
                places = here.point_charges.copy()
                places[:, :3] += factor * STEP * charges
                moved = moved.in_field(places)
            result = mp2_energy(moved, options, start=start, listener=Silent())
            dropped.add(result.diagnostics.metric_dropped)
            energies.append(result.total_energy)
        numerical = (energies[0] - 8 * energies[1] + 8 * energies[2] - energies[3]) / (12 * STEP)
        analytic = float(np.vdot(atoms, found.gradient))
        if found.point_charge_gradient is not None:
            analytic += float(np.vdot(charges, found.point_charge_gradient))
        differences.append(abs(analytic - numerical))
    return {
        "molecule": name,
        "special": special,
        "basis": given["basis"],
        "norm": float(np.linalg.norm(found.gradient)),
        "largest": max(differences),
        "passed": found.certificate.passed,
        "dropped": sorted(dropped),
    }


def main() -> None:
    """Measure what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, required=True, help="file that rows are kept in")
    rows_file = parser.parse_args().rows
    if rows_file.exists():
        rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    else:
        rows = []
    done = {(row["molecule"], row["special"]) for row in rows}
    for name, special, given in CASES:
        if (name, special) not in done:
            rows.append(measure(name, special, given))
            with rows_file.open("a") as file:
                print(json.dumps(rows[-1]), file=file)
    print("| molecule | | basis | norm of the gradient, Eh/bohr | largest difference, Eh/bohr |")
    print("|---|---|---|---|---|")
    for row in rows:
        if row["dropped"] == [0]:
            more = ""
        else:
            more = f" ({'/'.join(map(str, row['dropped']))} dropped)"
        numbers = f"{row['norm']:.6f} | {row['largest']:.1e}"
        print(f"| {row['molecule']} | {row['special']}{more} | {row['basis']} | {numbers} |")


if __name__ == "__main__":
    main()
