"""Optimise small molecules from distorted starts, and compare frequencies with published Hessians;
tables as markdown.

    python scripts/benchmarks/optimisations.py geometries --rows rows.json
    python scripts/benchmarks/optimisations.py geometries --only H2O,NH3 --psi4 /usr/bin/psi4
    python scripts/benchmarks/optimisations.py frequencies --only hf,h2o
    python scripts/benchmarks/optimisations.py kinds --psi4 /usr/bin/psi4

geometries: atoms of ASE's G2 set (a water dimer and two transition states are given here) moved at
random by up to 0.1 angstrom, the same for everybody. `--psi4` names the program of Psi4: it
optimises the same starts with optking, density-fitted MP2 and the same numbers of convergence (GAU,
`g_convergence gau`). Counted are the geometries at which energy and gradient were computed, the
first one included, those of a Hessian left out. Every row is appended to --rows as it comes, and
rows that are there are not computed again. frequencies: conventional MP2 Hessians of CFOUR, as
QCEngine's standard_suite_ref has them, and for NH3 and H2CO differences of PySCF's conventional MP2
gradients. kinds: starts that are flat or symmetric, without and with --verify, and by optking from
the same starts. Exit code 1: something did not converge, or a frequency differs by more than 2
cm^-1.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import dfmp2
from dfmp2.errors import Dfmp2Error
from dfmp2.progress import Silent
from dfmp2.studies.vibrations import vibrations
from dfmp2.units import BOHR_PER_ANGSTROM

BASIS = "cc-pvdz"
MOVED = 0.1  # angstrom
ALLOWED = 2.0  # cm^-1
NAMES = (
    "H2O",
    "NH3",
    "CH4",
    "HCN",
    "H2CO",
    "CH3OH",
    "HCOOH",
    "C2H2",
    "C2H4",
    "C2H6",
    "H2O2",
    "N2H4",
    "CH3Cl",
    "H3CNH2",
    "CH3CHO",
    "CH3",
    "NH2",
)
OWN = {  # name -> (atoms in angstrom, whether a transition state)
    "(H2O)2": (
        "O -1.49 -0.01 0; H -1.82 0.90 0; H -0.53 0.08 0; O 1.42 -0.01 0; H 1.77 -0.45 -0.76; H "
        "1.77 -0.45 0.76",
        0,
    ),
    "NH3 inversion": ("N 0 0 0.05; H 1 0 0; H -0.5 0.866 0; H -0.5 -0.866 0", 1),
    "HCN to HNC": ("C 0 0 0; N 1.19 0 0; H 0.4 1.12 0", 1),
}
STARTS = {  # flat or symmetric: name -> (atoms in angstrom, charge, multiplicity)
    "Ne2": ("Ne 0 0 0; Ne 0 0 3.0", 0, 1),
    "He2": ("He 0 0 0; He 0 0 3.0", 0, 1),
    "Ar2": ("Ar 0 0 0; Ar 0 0 4.0", 0, 1),
    "NH3, planar": ("N 0 0 0; H 1 0 0; H -0.5 0.866 0; H -0.5 -0.866 0", 0, 1),
    "H2O, linear": ("O 0 0 0; H 0 0 0.95; H 0 0 -0.95", 0, 1),
    "HCN": ("H 0 0 -1.06; C 0 0 0; N 0 0 1.17", 0, 1),
    "H2O2, planar": ("O 0.73 0 0; O -0.73 0 0; H 0.95 0.95 0; H -0.95 -0.95 0", 0, 1),
    "(HF)2, linear": ("F 0 0 0; H 0 0 0.93; F 0 0 2.7; H 0 0 3.63", 0, 1),
    "CH3, planar": ("C 0 0 0; H 1.08 0 0; H -0.54 0.935 0; H -0.54 -0.935 0", 0, 2),
    "NH2, linear": ("N 0 0 0; H 0 0 1.0; H 0 0 -1.0", 0, 2),
    "H3O+, planar": ("O 0 0 0; H 0.98 0 0; H -0.49 0.849 0; H -0.49 -0.849 0", 1, 1),
}
PSI4 = """
memory 1 gb
molecule {{
{charge} {multiplicity}
{atoms}
units bohr
no_com
no_reorient
symmetry c1
}}
set {{
basis {basis}
reference {reference}
scf_type df
mp2_type df
freeze_core false
g_convergence gau
geom_maxiter 100
opt_type {kind}
full_hess_every {hessian}
}}
optimize("mp2")
"""
LONGEST = 600  # s of Psi4 for one molecule


def molecules() -> Iterator[tuple[str, dfmp2.Molecule, bool]]:
    """Name, distorted start, whether a transition state is looked for."""
    from ase.build import molecule

    rng = np.random.default_rng(19)
    for name in NAMES:
        atoms = molecule(name)
        symbols, places = tuple(atoms.get_chemical_symbols()), atoms.get_positions()
        spin = round(abs(atoms.get_initial_magnetic_moments().sum()))
        moved = places + rng.uniform(-MOVED, MOVED, places.shape)
        yield (
            name,
            dfmp2.Molecule(symbols, moved * BOHR_PER_ANGSTROM, multiplicity=1 + spin, name=name),
            False,
        )
    for name, (text, saddle) in OWN.items():
        rows = [line.split() for line in text.split(";")]
        places = np.array([[float(x) for x in row[1:]] for row in rows])
        moved = places + rng.uniform(-MOVED, MOVED, places.shape) / (3 if saddle else 1)
        yield (
            name,
            dfmp2.Molecule(tuple(row[0] for row in rows), moved * BOHR_PER_ANGSTROM, name=name),
            bool(saddle),
        )


def by_dfmp2(molecule: dfmp2.Molecule, saddle: bool, verify: bool = False) -> dict[str, Any]:
    """Geometries that were computed, steps, energy, kind and shortest distance, or why it
    failed."""
    try:
        study = dfmp2.optimize(
            molecule,
            BASIS,
            transition_state=saddle,
            verify=verify,
            threads=1,
            listener=Silent(),
        )
    except Dfmp2Error as error:
        return {"failed": str(error)}
    words = ("plus-", "minus-", "hessian-")
    hessian = [name for name in study.runs if name.startswith(words)]
    return {
        "kind": study.settings["stationary_point"],
        "shortest": shortest(study.last.coordinates),
        "steps": study.settings["steps"],
        "geometries": len(study.runs) - len(hessian),
        "energy": study.values["optimized_total_energy"].value,
    }


def by_psi4(program: str, molecule: dfmp2.Molecule, saddle: bool) -> dict[str, Any]:
    """As `by_dfmp2`, of optking in Psi4."""
    given = PSI4.format(
        charge=molecule.charge,
        multiplicity=molecule.multiplicity,
        atoms="\n".join(
            f"{symbol} {x:.12f} {y:.12f} {z:.12f}"
            for symbol, (x, y, z) in zip(molecule.symbols, molecule.coordinates, strict=True)
        ),
        basis=BASIS,
        reference="rhf" if molecule.multiplicity == 1 else "uhf",
        kind="ts" if saddle else "min",
        hessian=0 if saddle else -1,
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "input.dat").write_text(given)
        command, output = (
            [program, "-n", "1", "input.dat", "output.dat"],
            Path(folder, "output.dat"),
        )
        try:
            subprocess.run(command, cwd=folder, capture_output=True, timeout=LONGEST, check=False)
        except subprocess.TimeoutExpired:
            return {"failed": f"more than {LONGEST} s"}
        text = output.read_text()
    done = re.search(r"Optimization is complete! \(in (\d+) steps\)", text)
    energy = re.search(r"Final energy is +(-?\d+\.\d+)", text)
    if done is None or energy is None:
        why = re.search(r"PsiException: (.*)", text)
        return {"failed": "dies" if why is None else why[1].replace(" in 100 iterations.", "")}
    last = text.rpartition("Final optimized geometry and variables")[2]
    atoms = re.findall(r"^ +[A-Z][A-Za-z]? +(-?\d+\.\d+) +(-?\d+\.\d+) +(-?\d+\.\d+)$", last, re.M)
    places = np.array(atoms[: molecule.natom], dtype=float) * BOHR_PER_ANGSTROM
    if "Geometry (in Bohr)" in last:
        places /= BOHR_PER_ANGSTROM
    return {
        "steps": int(done[1]) - 1,
        "geometries": int(done[1]),
        "energy": float(energy[1]),
        "shortest": shortest(places),
    }


def shortest(places: Any) -> float:
    """The shortest distance of two atoms at (natom, 3) bohr, angstrom."""
    gaps = np.linalg.norm(places[:, None] - places[None], axis=2)
    return float(gaps[np.triu_indices(len(gaps), 1)].min()) / BOHR_PER_ANGSTROM


def kinds(given: argparse.Namespace) -> bool:
    """The table of flat and symmetric starts; whether all of ours end as a minimum with
    --verify."""
    only = given.only.split(",") if given.only else None
    minima = True
    print(
        "| start | E / Eh | shortest / angstrom | with `--verify` | E / Eh | shortest | E(Psi4) | "
        "shortest |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, (text, charge, multiplicity) in STARTS.items():
        if only is not None and name not in only:
            continue
        rows = [line.split() for line in text.split(";")]
        places = np.array([[float(x) for x in row[1:]] for row in rows]) * BOHR_PER_ANGSTROM
        molecule = dfmp2.Molecule(
            tuple(row[0] for row in rows), places, charge=charge, multiplicity=multiplicity
        )
        plain, verified = by_dfmp2(molecule, False), by_dfmp2(molecule, False, verify=True)
        minima &= verified.get("kind") == "minimum"
        cells = [name, *told(plain), verified.get("kind", "failed"), *told(verified)]
        if given.psi4:
            cells += told(by_psi4(given.psi4, molecule, False))
        print(f"| {' | '.join(cells)} |", flush=True)
    return minima


def told(row: dict[str, Any]) -> list[str]:
    """Energy and shortest distance of a row, or why it failed."""
    if "failed" in row:
        return [str(row["failed"]), ""]
    return [f"{row['energy']:.7f}", f"{row['shortest']:.4f}"]


def geometries(given: argparse.Namespace) -> bool:
    """The table of optimisations; whether all of ours converged."""
    path, only = Path(given.rows), given.only.split(",") if given.only else None
    if path.exists():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = []
    found = {(row["name"], row["program"]): row for row in rows}
    programs = {"dfmp2": by_dfmp2, **({"psi4": partial(by_psi4, given.psi4)} if given.psi4 else {})}
    print("| molecule | atoms | sought | geometries | E / Eh | geometries, Psi4 | E(Psi4) / Eh |")
    print("|---|---|---|---|---|---|---|")
    for name, molecule, saddle in molecules():
        if only is not None and name not in only:
            continue
        for program, compute in programs.items():
            if (name, program) not in found:
                begun = time.perf_counter()
                row = {"name": name, "program": program, **compute(molecule, saddle)}
                found[name, program] = {**row, "seconds": time.perf_counter() - begun}
                with path.open("a") as stream:
                    print(json.dumps(found[name, program]), file=stream)
        shown = []
        for program in ("dfmp2", "psi4"):
            row = found.get((name, program), {"failed": "not run"})
            shown += (
                [row["failed"], ""]
                if "failed" in row
                else [row["geometries"], f"{row['energy']:.7f}"]
            )
        cells = [name, molecule.natom, "saddle" if saddle else "minimum", *shown]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    both = [
        name for name, program in found if program == "psi4" and "energy" in found[name, "psi4"]
    ]
    for program in programs:
        every = [
            row["geometries"]
            for row in found.values()
            if row["program"] == program and "energy" in row
        ]
        shared = [found[name, program]["geometries"] for name in both]
        if shared:
            said = f"; where Psi4 ends: median {statistics.median(shared):g}, sum {sum(shared)}"
        else:
            said = ""
        print(
            f"{program}: {len(every)} end, median {statistics.median(every):g}, sum "
            f"{sum(every)}{said}"
        )
    return not any("failed" in row for row in found.values() if row["program"] == "dfmp2")


GEOMETRIES = {  # of the standard suite, bohr
    "hf": (("H", "F"), [[0, 0, -1.64558411], [0, 0, 0.08729475]], {}),
    "h2o": (
        ("O", "H", "H"),
        [
            [0, 0, -0.1240388603],
            [0, -1.431430901356, 0.984293362719],
            [0, 1.431430901356, 0.984293362719],
        ],
        {},
    ),
    "nh2": (
        ("N", "H", "H"),
        [
            [0, 0, -0.145912918634892],
            [0, -1.511214298139, 1.013682596946108],
            [0, 1.511214298139, 1.013682596946108],
        ],
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

# DF-MP2/cc-pVDZ of Psi4, cm^-1: name -> (geometry, frozen core, wavenumbers, where). The first is
# published; the others are own runs of Psi4 1.3.2 (scf_type df, mp2_type df, differences of
# gradients, points 5) at ASE's geometries.
FITTED = {
    "h2o": (
        "Psi4",
        "auto",
        (1635.3, 3933.1, 4071.9),
        "psi4/psi4: tests/dfmp2-freq1 and dfmp2-freq2, commit 27e1b15f",
    ),
    "nh3": (
        "NH3",
        "none",
        (1042.6532, 1677.8470, 1677.8477, 3545.6630, 3707.3718, 3707.3734),
        "own run",
    ),
    "h2co": (
        "H2CO",
        "none",
        (1170.5042, 1256.8201, 1538.0116, 1758.0384, 3073.8445, 3152.9820),
        "own run",
    ),
}


def by_pyscf(molecule: dfmp2.Molecule, basis: str, displacement: float = 0.005) -> Any:
    """(3 natom, 3 natom) Eh/bohr^2, differences of PySCF's gradients of conventional MP2, all
    electrons correlated."""
    from pyscf import gto, mp, scf

    def gradient(places: Any) -> Any:
        atoms = list(zip(molecule.symbols, places, strict=True))
        mean_field = scf.RHF(gto.M(atom=atoms, basis=basis, unit="bohr", verbose=0)).run(
            conv_tol=1e-12
        )
        return mp.MP2(mean_field).run().nuc_grad_method().kernel().ravel()

    moves = displacement * np.eye(3 * molecule.natom).reshape(-1, molecule.natom, 3)
    places = molecule.coordinates
    rows = [
        (gradient(places + move) - gradient(places - move)) / (2 * displacement) for move in moves
    ]
    return (np.array(rows) + np.array(rows).T) / 2


def frequencies(given: argparse.Namespace) -> bool:
    """The table of frequencies; whether all agree with those of the other programs' Hessians."""
    from ase.build import molecule as of_ase
    from qcengine.programs.tests.standard_suite_ref import std_suite

    only, agreed = given.only.split(",") if given.only else None, True
    print(
        "| molecule | basis | dfmp2, df SCF / cm^-1 | dfmp2, conventional SCF | conventional MP2 | "
        "of |"
    )
    print("|---|---|---|---|---|---|")
    for name, (key, basis, core, entry) in HESSIANS.items():
        if only is not None and name not in only:
            continue
        if entry == "PySCF":
            atoms = of_ase(key)
            molecule = dfmp2.Molecule(
                atoms.get_chemical_symbols(), atoms.get_positions() * BOHR_PER_ANGSTROM
            )
            published = by_pyscf(molecule, basis)
        else:
            symbols, places, state = GEOMETRIES[key]
            molecule = dfmp2.Molecule(symbols, places, **state)
            published = np.asarray(std_suite[entry]["MP2 TOTAL HESSIAN"])
        expected = vibrations(molecule, published, np.zeros((3 * molecule.natom, 3))).wavenumber
        shown = []
        for scf in ("df", "conventional"):
            options = {
                "frozen_core": core,
                "scf": scf,
                "allow_gradient": True,
                "threads": 1,
                "listener": Silent(),
            }
            found = np.array(
                dfmp2.frequencies(molecule, basis, **options).table["wavenumber"].values
            )
            agreed &= bool(np.abs(found - expected).max() < ALLOWED)
            shown.append(", ".join(f"{x:.1f}" for x in found))
        print(
            f"| {name} | {basis} | {shown[0]} | {shown[1]} | "
            f"{', '.join(f'{x:.1f}' for x in expected)} | "
            f"{'PySCF' if entry == 'PySCF' else 'CFOUR'} |",
            flush=True,
        )
    print("\n| molecule | dfmp2 / cm^-1 | Psi4 | of |\n|---|---|---|---|")
    for name, (key, core, theirs, where) in FITTED.items():
        if only is not None and name not in only:
            continue
        if key == "Psi4":
            bond, angle = 0.958 * BOHR_PER_ANGSTROM, np.radians(104.4776)
            ends = [
                [0.0, 0.0, 0.0],
                [bond, 0.0, 0.0],
                [bond * np.cos(angle), bond * np.sin(angle), 0.0],
            ]
            molecule = dfmp2.Molecule(("O", "H", "H"), ends)
        else:
            atoms = of_ase(key)
            molecule = dfmp2.Molecule(
                atoms.get_chemical_symbols(), atoms.get_positions() * BOHR_PER_ANGSTROM
            )
        study = dfmp2.frequencies(
            molecule, BASIS, frozen_core=core, allow_gradient=True, threads=1, listener=Silent()
        )
        ours = np.array(study.table["wavenumber"].values)
        agreed &= bool(np.abs(ours - theirs).max() < ALLOWED)
        cells = (name, *(", ".join(f"{x:.1f}" for x in found) for found in (ours, theirs)), where)
        print(f"| {' | '.join(cells)} |", flush=True)
    return agreed


def main() -> int:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    tables = {"geometries": geometries, "frequencies": frequencies, "kinds": kinds}
    parser.add_argument("what", choices=tables)
    parser.add_argument("--only", help="names with commas between them")
    parser.add_argument("--rows", default="optimisations.jsonl", help="file that rows are kept in")
    parser.add_argument("--psi4", metavar="PROGRAM", help="the program of Psi4, as /usr/bin/psi4")
    given = parser.parse_args()
    return int(not tables[given.what](given))


if __name__ == "__main__":
    sys.exit(main())
