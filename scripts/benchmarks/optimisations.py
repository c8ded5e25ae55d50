"""Optimise small molecules from distorted starts, and compare frequencies with published Hessians; tables as markdown.

    python scripts/benchmarks/optimisations.py geometries --rows rows.json
    python scripts/benchmarks/optimisations.py geometries --only H2O,NH3 --psi4 /opt/psi4/bin/python
    python scripts/benchmarks/optimisations.py frequencies --only hf,h2o

geometries: atoms of ASE's G2 set (a water dimer and two transition states are given here) moved at random by up to 0.1
angstrom, the same for everybody. `--psi4` names a Python that imports Psi4: it optimises the same starts with optking,
density-fitted MP2 and the same convergence (GAU). Every row is appended to --rows as it comes, and rows that are there
are not computed again. frequencies: conventional MP2 Hessians of CFOUR, as QCEngine's
standard_suite_ref has them, and for NH3 and H2CO differences of PySCF's conventional MP2 gradients.
Exit code 1: something did not converge, or a frequency differs by more than 2 cm^-1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dfmp2
from dfmp2.errors import Dfmp2Error
from dfmp2.progress import Silent
from dfmp2.studies.vibrations import vibrations
from dfmp2.units import ANGSTROM_PER_BOHR, BOHR_PER_ANGSTROM

BASIS = "cc-pvdz"
MOVED = 0.1  # angstrom
ALLOWED = 2.0  # cm^-1
NAMES = (
    *("H2O", "NH3", "CH4", "HCN", "H2CO", "CH3OH", "HCOOH", "C2H2", "C2H4", "C2H6", "H2O2", "N2H4"),
    *("CH3Cl", "H3CNH2", "CH3CHO", "CH3", "NH2"),
)
OWN = {  # name -> (atoms in angstrom, whether a transition state)
    "(H2O)2": (
        "O -1.49 -0.01 0; H -1.82 0.90 0; H -0.53 0.08 0; O 1.42 -0.01 0; H 1.77 -0.45 -0.76; H 1.77 -0.45 0.76",
        0,
    ),
    "NH3 inversion": ("N 0 0 0.05; H 1 0 0; H -0.5 0.866 0; H -0.5 -0.866 0", 1),
    "HCN to HNC": ("C 0 0 0; N 1.19 0 0; H 0.4 1.12 0", 1),
}
PSI4 = """
import json, sys, psi4
given = json.load(sys.stdin)
psi4.core.be_quiet()
psi4.set_num_threads(1)
molecule = psi4.core.Molecule.from_string(given["xyz"], dtype="xyz+")
psi4.set_options({"basis": given["basis"], "reference": given["reference"], "freeze_core": False, "geom_maxiter": 100})
psi4.set_options({"g_convergence": "gau", "opt_type": given["kind"], "full_hess_every": given["hessian"]})
energy, history = psi4.optimize("mp2", molecule=molecule, return_history=True)
print(json.dumps({"steps": len(history["energy"]) - 1, "energy": energy}))
"""


def molecules() -> Iterator[tuple[str, dfmp2.Molecule, bool]]:
    """Name, distorted start, whether a transition state is looked for."""
    from ase.build import molecule

    rng = np.random.default_rng(19)
    for name in NAMES:
        atoms = molecule(name)
        symbols, places = tuple(atoms.get_chemical_symbols()), atoms.get_positions()
        spin = round(abs(atoms.get_initial_magnetic_moments().sum()))
        moved = places + rng.uniform(-MOVED, MOVED, places.shape)
        yield name, dfmp2.Molecule(symbols, moved * BOHR_PER_ANGSTROM, multiplicity=1 + spin, name=name), False
    for name, (text, saddle) in OWN.items():
        rows = [line.split() for line in text.split(";")]
        places = np.array([[float(x) for x in row[1:]] for row in rows])
        moved = places + rng.uniform(-MOVED, MOVED, places.shape) / (3 if saddle else 1)
        yield name, dfmp2.Molecule(tuple(row[0] for row in rows), moved * BOHR_PER_ANGSTROM, name=name), bool(saddle)


def optimise(name: str, molecule: dfmp2.Molecule, saddle: bool, psi4: str | None) -> dict[str, Any]:
    """A row: steps, energy, seconds, and Psi4's steps."""
    begun = time.perf_counter()
    row: dict[str, Any] = {"name": name, "atoms": molecule.natom, "kind": "saddle" if saddle else "minimum"}
    try:
        study = dfmp2.optimize(molecule, BASIS, transition_state=saddle, threads=1, listener=Silent())
        row |= {"steps": study.settings["steps"], "energy": study.values["optimized_total_energy"].value}
    except Dfmp2Error as error:
        row["failed"] = str(error)
    row["seconds"] = time.perf_counter() - begun
    if psi4 is not None:
        places = molecule.coordinates * ANGSTROM_PER_BOHR
        lines = [f"{s} {x:.12f} {y:.12f} {z:.12f}" for s, (x, y, z) in zip(molecule.symbols, places, strict=True)]
        given = {
            "xyz": "\n".join([str(molecule.natom), f"0 {molecule.multiplicity} {name}", *lines]),
            "basis": BASIS,
            "reference": "rhf" if molecule.multiplicity == 1 else "uhf",
            "kind": "ts" if saddle else "min",
            "hessian": 0 if saddle else -1,
        }
        done = subprocess.run([psi4, "-c", PSI4], input=json.dumps(given), capture_output=True, text=True, check=False)
        row["psi4"] = (
            json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": done.stderr[-300:]}
        )
    return row


def geometries(given: argparse.Namespace) -> bool:
    """The table of optimisations; whether all converged."""
    path, only = Path(given.rows), given.only.split(",") if given.only else None
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for name, molecule, saddle in molecules():
        if (only is None or name in only) and name not in {row["name"] for row in rows}:
            rows.append(optimise(name, molecule, saddle, given.psi4))
            with path.open("a") as stream:
                print(json.dumps(rows[-1]), file=stream)
    print("| molecule | atoms | sought | steps | E / Eh | time / s | steps of Psi4 | E(Psi4) / Eh |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        theirs = row.get("psi4", {})
        print(
            f"| {row['name']} | {row['atoms']} | {row['kind']} | {row.get('steps', row.get('failed'))} "
            f"| {row.get('energy', float('nan')):.7f} | {row['seconds']:.1f} "
            f"| {theirs.get('steps', theirs.get('failed', ''))} | {theirs.get('energy', '')} |"
        )
    steps = [row["steps"] for row in rows if "steps" in row]
    others = [row["psi4"]["steps"] for row in rows if "steps" in row.get("psi4", {})]
    print(
        f"\nmedian of the steps: {statistics.median(steps)}" + (f", Psi4 {statistics.median(others)}" if others else "")
    )
    return len(steps) == len(rows)


GEOMETRIES = {  # of the standard suite, bohr
    "hf": (("H", "F"), [[0, 0, -1.64558411], [0, 0, 0.08729475]], {}),
    "h2o": (
        *(("O", "H", "H"),),
        [[0, 0, -0.1240388603], [0, -1.431430901356, 0.984293362719], [0, 1.431430901356, 0.984293362719]],
        {},
    ),
    "nh2": (
        *(("N", "H", "H"),),
        [[0, 0, -0.145912918634892], [0, -1.511214298139, 1.013682596946108], [0, 1.511214298139, 1.013682596946108]],
        {"multiplicity": 2},
    ),
}
HESSIANS = {  # name -> (molecule, basis, frozen core, key of the suite, or PySCF)
    "hf": ("hf", "cc-pvdz", "none", "hf_cc-pvdz_pk_rhf_ae_conv_sd"),
    "hf-fc": ("hf", "cc-pvdz", "auto", "hf_cc-pvdz_pk_rhf_fc_conv_sd"),
    "h2o": ("h2o", "aug-cc-pvdz", "none", "h2o_aug-cc-pvdz_pk_rhf_ae_conv_sd"),
    "h2o-fc": ("h2o", "aug-cc-pvdz", "auto", "h2o_aug-cc-pvdz_pk_rhf_fc_conv_sd"),
    "nh2": ("nh2", "aug-cc-pvdz", "none", "nh2_aug-cc-pvdz_pk_uhf_ae_conv_sd"),
    "nh2-fc": ("nh2", "aug-cc-pvdz", "auto", "nh2_aug-cc-pvdz_pk_uhf_fc_conv_sd"),
    "nh3": ("NH3", "cc-pvdz", "none", "PySCF"),
    "h2co": ("H2CO", "cc-pvdz", "none", "PySCF"),
}


def by_pyscf(molecule: dfmp2.Molecule, basis: str, displacement: float = 0.005) -> Any:
    """(3 natom, 3 natom) Eh/bohr^2, differences of PySCF's gradients of conventional MP2, all electrons correlated."""
    from pyscf import gto, mp, scf

    def gradient(places: Any) -> Any:
        atoms = list(zip(molecule.symbols, places, strict=True))
        mean_field = scf.RHF(gto.M(atom=atoms, basis=basis, unit="bohr", verbose=0)).run(conv_tol=1e-12)
        return mp.MP2(mean_field).run().nuc_grad_method().kernel().ravel()

    moves = displacement * np.eye(3 * molecule.natom).reshape(-1, molecule.natom, 3)
    places = molecule.coordinates
    rows = [(gradient(places + move) - gradient(places - move)) / (2 * displacement) for move in moves]
    return (np.array(rows) + np.array(rows).T) / 2


def frequencies(given: argparse.Namespace) -> bool:
    """The table of frequencies; whether all agree with those of the other programs' Hessians."""
    from ase.build import molecule as of_ase
    from qcengine.programs.tests.standard_suite_ref import std_suite

    only, agreed = given.only.split(",") if given.only else None, True
    print("| molecule | basis | dfmp2, df SCF / cm^-1 | dfmp2, conventional SCF | conventional MP2 | of |")
    print("|---|---|---|---|---|---|")
    for name, (key, basis, core, entry) in HESSIANS.items():
        if only is not None and name not in only:
            continue
        if entry == "PySCF":
            atoms = of_ase(key)
            molecule = dfmp2.Molecule(atoms.get_chemical_symbols(), atoms.get_positions() * BOHR_PER_ANGSTROM)
            published = by_pyscf(molecule, basis)
        else:
            symbols, places, state = GEOMETRIES[key]
            molecule = dfmp2.Molecule(symbols, places, **state)
            published = np.asarray(std_suite[entry]["MP2 TOTAL HESSIAN"])
        expected = vibrations(molecule, published, np.zeros((3 * molecule.natom, 3))).wavenumbers
        shown = []
        for scf in ("df", "conventional"):
            options = {"frozen_core": core, "scf": scf, "allow_gradient": True, "threads": 1, "listener": Silent()}
            found = np.array(dfmp2.frequencies(molecule, basis, **options).table["wavenumber"].values)
            agreed &= bool(np.abs(found - expected).max() < ALLOWED)
            shown.append(", ".join(f"{x:.1f}" for x in found))
        print(
            f"| {name} | {basis} | {shown[0]} | {shown[1]} | {', '.join(f'{x:.1f}' for x in expected)} "
            f"| {'PySCF' if entry == 'PySCF' else 'CFOUR'} |",
            flush=True,
        )
    return agreed


def main() -> int:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["geometries", "frequencies"])
    parser.add_argument("--only", help="names with commas between them")
    parser.add_argument("--rows", default="optimisations.jsonl", help="file that rows are kept in")
    parser.add_argument("--psi4", metavar="PYTHON", help="a Python that imports Psi4")
    given = parser.parse_args()
    return int(not (geometries if given.what == "geometries" else frequencies)(given))


if __name__ == "__main__":
    sys.exit(main())
