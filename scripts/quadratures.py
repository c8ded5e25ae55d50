"""Make docs/validation/quadratures.md: Laplace SOS-MP2 against tiles, and the frequencies of direct RPA.

    python scripts/quadratures.py [--rows FILE.jsonl] [--large FILE.json]

Energies against those of `--method sos-mp2` on the same orbitals, dRPA against a run with --tolerance 1e-12; then times
of alkanes on one core. Rows are added to the file as they come, and those that are there are not computed again.
--large is what `scripts/benchmarks/laplace.py` has printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import dfmp2
from dfmp2.molecule.molecule import Molecule

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "validation" / "quadratures.md"
BOHR = 0.52917721092
HEAD = """# Quadratures

Made by `scripts/quadratures.py` on one of 2 cores of an AMD EPYC, the other in use at times, 23 November 2026.

## Against pairs

Default `--tolerance` 1e-7 Eh, all electrons unless the name says fc. Difference: correlation energy of `sos-laplace`
less that of `sos-mp2`; bound: the error that the run prints. Frequencies: of `drpa`, with the difference to a run with
`--tolerance 1e-12`, and the estimate that the run prints. Energies in Eh.

| molecule | basis | reference | gap | exponents | difference | bound | frequencies | difference | estimate |
|---|---|---|---|---|---|---|---|---|---|
"""
TIMES = """
## Times

Frozen core, cc-pVDZ, float64, one core; wall times of the pair step, s, the shorter of two. In brackets the
exponent against the number of functions, from the row above.

| molecule | functions | pairs of orbitals | Laplace | exponents | dRPA | frequencies |
|---|---|---|---|---|---|---|
"""


def alkane(n: int) -> Molecule:
    """The all-trans alkane with n carbon atoms, standard bond lengths, tetrahedral angles."""
    half, turn = np.deg2rad(109.471 / 2), 1.54
    step = np.array([turn * np.sin(half), 0.0, 0.0])
    symbols, places = [], []
    for k in range(n):
        up = 1.0 if k % 2 else -1.0
        here = k * step + np.array([0.0, 0.0, 0.5 * up * turn * np.cos(half)])
        symbols.append("C")
        places.append(here)
        bonds = [np.array([0.0, side * np.sin(half), up * np.cos(half)]) for side in (1.0, -1.0)]
        bonds += [np.array([-np.sin(half), 0.0, -up * np.cos(half)])] if k == 0 else []
        bonds += [np.array([np.sin(half), 0.0, -up * np.cos(half)])] if k == n - 1 else []
        for bond in bonds:
            symbols.append("H")
            places.append(here + 1.09 * bond)
    return Molecule(tuple(symbols), np.array(places) / BOHR, name=f"C{n}H{2 * n + 2}")


def pair(one: str, other: str, angstrom: float) -> Molecule:
    """A diatomic molecule."""
    places = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, angstrom / BOHR]])
    return Molecule((one, other), places, name=f"{one}{other} at {angstrom} A")


TIMED = ("sos-mp2", "sos-laplace", "drpa")
MOLECULES: list[tuple[Any, dict[str, Any]]] = [
    ("inputs/h2o.xyz", {"basis": "cc-pvdz"}),
    ("inputs/h2o.xyz", {"basis": "aug-cc-pvtz"}),
    ("inputs/nh3.xyz", {"basis": "aug-cc-pvtz", "frozen_core": "auto"}),
    ("inputs/nh2.xyz", {"basis": "aug-cc-pvtz"}),
    ("inputs/nh2.xyz", {"basis": "cc-pvdz", "reference": "rohf"}),
    ("inputs/o2.xyz", {"basis": "cc-pvtz"}),
    ("inputs/glycine.xyz", {"basis": "cc-pvdz"}),
    ("inputs/benzene.xyz", {"basis": "cc-pvdz"}),
    ("inputs/formic-acid-dimer.xyz", {"basis": "cc-pvdz", "frozen_core": "auto"}),
    ("inputs/ch2i2.xyz", {"basis": "def2-svp"}),
    (pair("H", "H", 3.4), {"basis": "cc-pvtz"}),
    (pair("Li", "Li", 5.0), {"basis": "def2-tzvp"}),
    (pair("Li", "Li", 7.0), {"basis": "def2-tzvp"}),
    (pair("N", "N", 2.2), {"basis": "cc-pvdz"}),
]


def compared(molecule: Any, more: dict[str, Any]) -> str:
    """The row of a molecule."""
    options = {"scf_conv_tol": 1e-11, "precision": "fp64", "stability": "off", "threads": 1, **more}
    options |= {"allow_small_gap": True}
    tiles, found = (
        dfmp2.run(molecule, method=name, **options) for name in ("sos-mp2", "sos-laplace")
    )
    one = found.quadrature
    name = found.molecule.name + (" fc" if "frozen_core" in more else "")
    cells = [
        name,
        more["basis"],
        found.reference.kind.upper(),
        f"{found.diagnostics.homo_lumo_gap:.3f}",
        one.points,
    ]
    cells += [f"{found.correlation_energy - tiles.correlation_energy:+.1e}", f"{one.error:.1e}"]
    if found.reference.kind == "rohf":
        cells += [""] * 3
    else:
        rpa, finer = (
            dfmp2.run(molecule, method="drpa", tolerance=t, **options) for t in (1e-7, 1e-12)
        )
        two = rpa.quadrature
        cells += [
            two.points,
            f"{rpa.correlation_energy - finer.correlation_energy:+.1e}",
            f"{two.error:.1e}",
        ]
    return f"| {' | '.join(map(str, cells))} |\n"


def timed(n: int) -> list[Any]:
    """Name, functions and times of an alkane, the shorter of two."""
    options = {
        "basis": "cc-pvdz",
        "frozen_core": "auto",
        "precision": "fp64",
        "stability": "off",
        "threads": 1,
    }
    twice = [[dfmp2.run(alkane(n), method=name, **options) for name in TIMED] for _ in range(2)]
    runs = [
        min(both, key=lambda run: run.timings.pair_energies) for both in zip(*twice, strict=True)
    ]
    points = [run.quadrature.points for run in runs[1:]]
    return [
        runs[0].molecule.name,
        runs[0].sizes.nao,
        *(run.timings.pair_energies for run in runs),
        *points,
    ]


def time_rows(found: list[list[Any]]) -> str:
    """The table of times, with the exponent of each against the number of functions."""
    text, before = "", None
    for name, functions, *numbers in found:
        times, points = numbers[:3], numbers[3:]
        said = [f"{seconds:.2f}" for seconds in times]
        if before is not None:
            grown = np.log(functions / before[1])
            said = [
                f"{s} ({np.log(t / b) / grown:.1f})"
                for s, t, b in zip(said, times, before[2:5], strict=True)
            ]
        text += f"| {name} | {functions} | {said[0]} | {said[1]} | {points[0]} | {said[2]} | {points[1]} |\n"
        before = [name, functions, *times]
    return text


def large_row(found: dict[str, Any]) -> str:
    """The sentence about one large alkane."""
    times = f"pairs {found['pairs / s']:.0f} s, Laplace {found['laplace / s']:.0f} s, {found['ratio']:.2f} of it"
    return (
        f"\n{found['molecule']} ({found['functions']} functions, {found['threads']} threads; "
        f"`scripts/benchmarks/laplace.py`): {times}, with {found['exponents']} exponents; the energies differ by\n"
        f"{found['difference / Eh']:.1e} Eh (bound {found['bound / Eh']:.1e}).\n"
    )


def main() -> None:
    """Compute what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=Path("quadratures.jsonl"))
    parser.add_argument(
        "--largest", type=int, default=15, help="carbon atoms of the largest alkane"
    )
    parser.add_argument("--large", type=Path, help="what scripts/benchmarks/laplace.py has printed")
    given = parser.parse_args()
    if given.rows.exists():
        rows = dict(map(json.loads, given.rows.read_text().splitlines()))
    else:
        rows = {}
    jobs = {f"{m if isinstance(m, str) else m.name} {o}": (compared, m, o) for m, o in MOLECULES}
    jobs |= {f"alkane {n}": (timed, n) for n in (5, 10, 15, 20, 40) if n <= given.largest}
    for name, (work, *arguments) in jobs.items():
        if name not in rows:
            rows[name] = work(*(ROOT / a if isinstance(a, str) else a for a in arguments))
            with given.rows.open("a") as file:
                file.write(json.dumps([name, rows[name]]) + "\n")
    against = "".join(
        row for name, row in rows.items() if name in jobs and not name.startswith("alkane")
    )
    times = time_rows([row for name, row in rows.items() if name.startswith("alkane")])
    PAGE.write_text(
        HEAD
        + against
        + TIMES
        + times
        + (large_row(json.loads(given.large.read_text())) if given.large else "")
    )


if __name__ == "__main__":
    main()
