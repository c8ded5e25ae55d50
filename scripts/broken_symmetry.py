#!/usr/bin/env python3
"""Is the SCF solution of a default UHF run the lowest there is? Writes docs/validation/broken-symmetry.md.

    OMP_NUM_THREADS=1 python scripts/broken_symmetry.py --machine "2 cores, AMD EPYC" --date 2026-11-22

Each molecule is converged as `dfmp2 run --reference uhf` does it (--stability follow), and from 20 starts
(--scf-starts 20: that one and 19 turned at random, each followed). Geometries are in this file.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from dfmp2.host.provenance import versions
from dfmp2.molecule.basis_library import resolve_orbital
from dfmp2.molecule.mole import build_auxiliary, build_mole
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.scf.fitting_sets import resolve_fitting
from dfmp2.scf.hartree_fock import run_scf
from dfmp2.scf.reference import Reference
from dfmp2.units import BOHR_PER_ANGSTROM

STARTS = 20
SAME = 1e-6  # Eh
PAGE = Path(__file__).resolve().parent.parent / "docs" / "validation" / "broken-symmetry.md"


def line(first: str, second: str, distance: float) -> list[tuple[str, float, float, float]]:
    """A diatomic molecule."""
    return [(first, 0.0, 0.0, 0.0), (second, 0.0, 0.0, distance)]


def bent(
    centre: str, end: str, distance: float, angle: float
) -> list[tuple[str, float, float, float]]:
    """A symmetric molecule of three atoms; the angle in degrees."""
    half = math.radians(angle) / 2
    x, z = distance * math.sin(half), distance * math.cos(half)
    return [(centre, 0.0, 0.0, 0.0), (end, x, 0.0, z), (end, -x, 0.0, z)]


def ring(symbol: str, count: int, edge: float) -> list[tuple[str, float, float, float]]:
    """A regular polygon."""
    radius = edge / (2 * math.sin(math.pi / count))
    angles = [2 * math.pi * k / count for k in range(count)]
    return [(symbol, radius * math.cos(a), radius * math.sin(a), 0.0) for a in angles]


def twisted_ethene() -> list[tuple[str, float, float, float]]:
    """C2H4 with its CH2 groups perpendicular."""
    cc, ch, angle = 1.339, 1.086, math.radians(121.2)
    out, up = ch * math.sin(angle), -ch * math.cos(angle)
    return [
        *(("C", 0.0, 0.0, z) for z in (0.0, cc)),
        *(("H", sign * out, 0.0, -up) for sign in (1, -1)),
        *(("H", 0.0, sign * out, cc + up) for sign in (1, -1)),
    ]


def ferrocene() -> list[tuple[str, float, float, float]]:
    """Eclipsed, D5h; Haaland, Acc. Chem. Res. 12, 415 (1979): Fe-C 2.064, C-C 1.440, C-H 1.104 angstrom."""
    iron, cc, ch = 2.064, 1.440, 1.104
    radius = cc / (2 * math.sin(math.pi / 5))
    height = math.sqrt(iron**2 - radius**2)
    atoms = [("Fe", 0.0, 0.0, 0.0)]
    for symbol, r in (("C", radius), ("H", radius + ch)):
        for z in (height, -height):
            atoms += [
                (symbol, r * math.cos(2 * math.pi * k / 5), r * math.sin(2 * math.pi * k / 5), z)
                for k in range(5)
            ]
    return atoms


CASES = (  # name, atoms in angstrom, multiplicity, basis
    ("H2, 3.0 angstrom", line("H", "H", 3.0), 1, "cc-pvdz"),
    ("N2, 2.0 angstrom", line("N", "N", 2.0), 1, "cc-pvdz"),
    ("O3, 1.272 angstrom, 116.8 degrees", bent("O", "O", 1.272, 116.8), 1, "cc-pvdz"),
    ("F2, 1.6 angstrom", line("F", "F", 1.6), 1, "cc-pvdz"),
    ("C2H4, twisted by 90 degrees", twisted_ethene(), 1, "cc-pvdz"),
    ("NO2, 1.194 angstrom, 133.9 degrees", bent("N", "O", 1.194, 133.9), 2, "cc-pvdz"),
    ("H6 ring, 1.5 angstrom", ring("H", 6, 1.5), 1, "cc-pvdz"),
    ("Cr2, 1.68 angstrom", line("Cr", "Cr", 1.68), 1, "def2-svp"),
    ("ferrocene", ferrocene(), 1, "sto-3g"),
)


class Quiet(Listener):
    """Hears nothing."""

    def warning(self, text: str) -> None:
        """Said by the table."""


def solve(
    atoms: list[tuple[str, float, float, float]], multiplicity: int, basis: str, starts: int
) -> Reference:
    """The UHF of a default run, or the lowest of several starts."""
    positions = np.array([position for _, *position in atoms]) * BOHR_PER_ANGSTROM
    molecule = Molecule(tuple(symbol for symbol, *_ in atoms), positions, multiplicity=multiplicity)
    orbital = resolve_orbital(basis, molecule.elements)
    mole = build_mole(molecule, orbital, 4 * 10**9)
    jk = build_auxiliary(mole, molecule, resolve_fitting("jk", None, orbital, molecule.elements))
    options = Options(basis=basis, reference="uhf", scf_starts=starts, scf_max_cycles=300).settled(
        multiplicity
    )
    return run_scf(
        mole, "uhf", options, jk, None, Quiet(), threads=1, integrals="memory", charges=None
    )[1]


def compared(case: tuple[str, list[tuple[str, float, float, float]], int, str]) -> str:
    """A line of the table."""
    name, atoms, multiplicity, basis = case
    begun = time.perf_counter()
    default = solve(atoms, multiplicity, basis, 1)
    once = time.perf_counter() - begun
    many = solve(atoms, multiplicity, basis, STARTS)
    difference = many.scf_total_energy - default.scf_total_energy
    if default.solutions is None or many.solutions is None or default.stability is None:
        raise ValueError("a default UHF run records its solutions")
    found = many.solutions
    ends = dict(zip(found.start, found.energy, strict=True))  # of each start the last
    reached = sum(energy < many.scf_total_energy + SAME for energy in ends.values())
    if difference > -SAME:
        lowest = "default"
    else:
        lowest = f"**start {found.start[found.chosen - 1]}**, {difference:.6f}"
    print(f"{name}: {once:.1f} s, {time.perf_counter() - begun:.1f} s", flush=True)
    return (
        f"| {name} | {basis} | {default.scf_total_energy:.6f} | {default.spin_square:.4f} | "
        f"{default.solutions.followed} | {default.stability.lowest_eigenvalue:.4f} | {many.scf_total_energy:.6f} | "
        f"{many.spin_square:.4f} | {reached} | {lowest} |"
    )


def page(rows: Mapping[str, str], machine: str, date: str) -> str:
    """The page with the rows of the table by molecule."""
    used = ", ".join(f"{program} {number}" for program, number in versions().items() if number)
    lines = [rows[name] for name, *_ in CASES if name in rows]
    return f"""# Broken symmetry: is the UHF solution of a default run the lowest?

`dfmp2 run --reference uhf` (start: atomic densities; `--stability follow`) against the lowest of {STARTS} starts
(`--scf-starts {STARTS}`: that one and {STARTS - 1} turned at random, each followed to a minimum). Density-fitted,
energies in Eh. "Steps" are the instabilities followed, "eigenvalue" is the lowest of the orbital Hessian at the end,
"reached" is how many of the {STARTS} starts end at the lowest energy. A default solution is a minimum and need not be
the lowest one: the last column says which was.

| molecule | basis | E, default | ⟨S²⟩ | steps | eigenvalue | E, {STARTS} starts | ⟨S²⟩ | reached | lowest |
|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}

Made by `scripts/broken_symmetry.py`, last on {date}; {machine}, one thread; {used}.
"""


def main() -> None:
    """Compute, and write the page whenever a molecule is finished; rows of molecules that are left out stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", required=True, help="class of the machine, for the page")
    parser.add_argument("--date", required=True)
    parser.add_argument("--workers", type=int, default=1, help="molecules at a time")
    parser.add_argument("--only", default="", help="molecules whose name contains this")
    given = parser.parse_args()
    cases = {case[0]: case for case in CASES}
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    rows = {name: line for name in cases for line in lines if line.startswith(f"| {name} |")}
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(given.workers) as pool:
        wanted = {
            pool.submit(compared, case): name for name, case in cases.items() if given.only in name
        }
        for done in as_completed(wanted):
            rows[wanted[done]] = done.result()
            PAGE.write_text(page(rows, given.machine, given.date))


if __name__ == "__main__":
    main()
