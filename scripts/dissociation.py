"""Make the numbers of docs/explanation/when-mp2-fails.md: H2 and N2 pulled apart, with all references and methods.

    OMP_NUM_THREADS=1 python scripts/dissociation.py [--rows FILE.jsonl]

Energies go to docs/explanation/when-mp2-fails.tsv, curves beside it, and the tables into the page. Every energy is that
of a `dfmp2 run` with the options below; UHF is followed to a minimum from three starts. FCI of H2 is PySCF's, with
four-centre integrals. Rows are added to the file as they come, and those that are there are not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyscf import fci, gto

import dfmp2
from dfmp2.errors import Dfmp2Error
from dfmp2.molecule.molecule import Molecule
from dfmp2.output.html.svg import Curve, curves, of_its_own
from dfmp2.units import BOHR_PER_ANGSTROM

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "explanation"
PAGE, TABLE = FOLDER / "when-mp2-fails.md", FOLDER / "when-mp2-fails.tsv"
BASIS = "cc-pvdz"
DISTANCES = {  # angstrom
    "H": (0.6, 0.74, 0.9, 1.1, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0),
    "N": (1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.3, 2.6, 3.0),
}
ATOM = {"H": 2, "N": 4}  # multiplicity
RUNS: dict[str, dict[str, Any]] = {
    "RHF": {"reference": "rhf"},
    "UHF": {"reference": "uhf", "scf_starts": 3},
    "kappa RHF": {"reference": "rhf", "method": "kappa-mp2"},
    "kappa UHF": {"reference": "uhf", "scf_starts": 3, "method": "kappa-mp2"},
    "dRPA RHF": {"reference": "rhf", "method": "drpa"},
    "dRPA UHF": {"reference": "uhf", "scf_starts": 3, "method": "drpa"},
    "dRPA RKS": {"reference": "rhf", "method": "drpa", "xc": "pbe"},
}
OF_ATOMS = ("UHF", "kappa UHF", "dRPA UHF")  # RHF and RKS are for singlets
SETTINGS = {"basis": BASIS, "allow_small_gap": True, "threads": 1}
SHOWN = {"H": (0.74, 1.1, 1.4, 2.0, 3.0, 4.0), "N": (1.1, 1.4, 1.6, 2.0, 2.6, 3.0)}  # in the page


def computed(molecule: Molecule, options: dict[str, Any]) -> dict[str, Any]:
    """What a run says."""
    try:
        found = dfmp2.run(molecule, **SETTINGS, **options)
    except Dfmp2Error as error:
        return {"failed": str(error)}
    said = {
        "scf": found.hf_total_energy,
        "total": found.total_energy,
        "spin": found.reference.spin_square,
    }
    stability = found.reference.stability
    if stability is None:
        lowest = math.nan
    else:
        lowest = stability.lowest_eigenvalue
    return said | {
        "gap": found.diagnostics.homo_lumo_gap,
        "eigenvalue": lowest,
        "warned": len(found.diagnostics.warnings),
    }


def exact(distance: float | str) -> dict[str, float]:
    """FCI of H2, or of a hydrogen atom."""
    atom = distance == "atom"
    mole = gto.M(
        atom="H 0 0 0" if atom else f"H 0 0 0; H 0 0 {distance}",
        basis=BASIS,
        spin=int(atom),
        verbose=0,
    )
    mf = (mole.UHF() if atom else mole.RHF()).run()
    return {"total": float(mf.e_tot if atom else fci.FCI(mf).kernel()[0])}


def collect(path: Path) -> dict[str, Any]:
    """All rows, computed where they are missing."""
    if path.exists():
        rows = dict(map(json.loads, path.read_text().splitlines()))
    else:
        rows = {}

    def keep(key: str, compute: Callable[..., dict[str, Any]], *of: Any) -> None:
        if key not in rows:
            rows[key] = compute(*of)
            with path.open("a") as file:
                file.write(json.dumps([key, rows[key]]) + "\n")

    for symbol, distances in DISTANCES.items():
        atom = Molecule((symbol,), np.zeros((1, 3)), multiplicity=ATOM[symbol])
        for name in OF_ATOMS:
            keep(f"{symbol} atom {name}", computed, atom, RUNS[name])
        keep(f"{symbol} atom ROHF", computed, atom, {"reference": "rohf"})
        keep(f"{symbol} atom dRPA UKS", computed, atom, {**RUNS["dRPA RKS"], "reference": "uhf"})
        for distance in distances:
            places = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, distance * BOHR_PER_ANGSTROM]])
            for name, options in RUNS.items():
                keep(
                    f"{symbol} {distance} {name}",
                    computed,
                    Molecule((symbol,) * 2, places),
                    options,
                )
    for distance in ("atom", *DISTANCES["H"]):
        keep(f"H {distance} FCI", exact, distance)
    return rows


def value(rows: dict[str, Any], key: str, what: str) -> float:
    """A number of a row, NaN where it failed."""
    found = rows[key].get(what, math.nan)
    return math.nan if found is None else float(found)


def relative(
    rows: dict[str, Any], symbol: str, distance: float, name: str, what: str = "total"
) -> float:
    """Energy above two atoms, with the same method on UHF (or UKS) atoms, Eh; FCI above FCI."""
    method = {
        "RHF": "UHF",
        "kappa RHF": "kappa UHF",
        "dRPA RHF": "dRPA UHF",
        "dRPA RKS": "dRPA UKS",
    }.get(name, name)
    return value(rows, f"{symbol} {distance} {name}", what) - 2 * value(
        rows, f"{symbol} atom {method}", what
    )


def write(rows: dict[str, Any]) -> None:
    """Table, curves and the tables of the page."""
    heads = [
        "molecule",
        "angstrom",
        "run",
        "E(HF)",
        "E(total)",
        "⟨S²⟩",
        "gap",
        "eigenvalue",
        "warnings",
    ]
    lines = ["\t".join(heads)]
    for key, row in rows.items():
        symbol, distance, name = key.split(" ", 2)
        numbers = [f"{row[k]:.10f}" if k in row else "" for k in ("scf", "total")]
        numbers += [
            f"{row[k]:.4f}" if k in row and row[k] is not None else ""
            for k in ("spin", "gap", "eigenvalue")
        ]
        lines.append(
            "\t".join(
                [
                    symbol if distance == "atom" else f"{symbol}2",
                    distance,
                    name,
                    *numbers,
                    str(row.get("warned", "")),
                ]
            )
        )
    TABLE.write_text("\n".join(lines) + "\n")
    drawn = {
        "H": [("MP2 on RHF", "RHF"), ("MP2 on UHF", "UHF"), ("FCI", "FCI")],
        "N": [("MP2 on RHF", "RHF"), ("MP2 on UHF", "UHF"), ("kappa-MP2 on RHF", "kappa RHF")],
    }
    for symbol, series in drawn.items():
        found = [
            Curve(said, [(d, relative(rows, symbol, d, name)) for d in DISTANCES[symbol]])
            for said, name in series
        ]
        svg = curves(
            f"{symbol}2 pulled apart, {BASIS}",
            found,
            "distance / angstrom",
            "energy above two atoms / Eh",
        )
        (FOLDER / f"when-mp2-fails-{symbol.lower()}2.svg").write_text(of_its_own(svg))
    text = PAGE.read_text()
    for symbol in DISTANCES:
        begin, end = (
            f"<!-- {word} of {symbol}2, made by scripts/dissociation.py -->"
            for word in ("table", "end")
        )
        before, rest = text.split(begin)
        text = before + begin + "\n" + table(rows, symbol) + end + rest.split(end)[1]
    PAGE.write_text(text)


def table(rows: dict[str, Any], symbol: str) -> str:
    """Energies above two atoms, Eh, for the page."""
    names = {"RHF": "MP2/RHF", "UHF": "MP2/UHF", "kappa RHF": "kappa/RHF", "kappa UHF": "kappa/UHF"}
    names |= {"dRPA RHF": "dRPA/RHF", "dRPA UHF": "dRPA/UHF", "dRPA RKS": "dRPA/PBE"}
    names |= {"FCI": "FCI"} if symbol == "H" else {}
    heads = ["angstrom", "RHF", "UHF", "⟨S²⟩", "gap, RHF", *names.values()]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for d in SHOWN[symbol]:
        cells = [
            f"{d:g}",
            *(f"{relative(rows, symbol, d, kind, 'scf'):+.3f}" for kind in ("RHF", "UHF")),
        ]
        cells += [
            f"{value(rows, f'{symbol} {d} UHF', 'spin'):.2f}",
            f"{value(rows, f'{symbol} {d} RHF', 'gap'):.3f}",
        ]
        cells += [f"{relative(rows, symbol, d, name):+.3f}" for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compute what is missing, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=Path("dissociation.jsonl"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    write(collect(given.rows))


if __name__ == "__main__":
    main()
