"""The form of an entry in dfmp2/validation/*.json, and the texts and tags it is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from make_expected_energies import Atoms

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
PSI4_BOHR, PSI4_OLD_BOHR, PYSCF_BOHR = 0.52917721067, 0.52917720859, 0.52917721092  # angstrom; old: CODATA 2006
DECIMALS = 14  # of coordinates in bohr, so that equal molecules are equal texts
CONV_TOL = 1e-12  # Eh, SCF convergence asked of us: with 1e-11 E(corr) is up to 1e-8 Eh off
HEAVIEST_RI = {"I", "Xe"}  # elements here whose RI set is in the Basis Set Exchange only
SLOW = {  # entries of more than about 20 s on two cores
    "psi4-1.3.2-water-8",
    "pyscf-2.14.0-water-8",
    "pyscf-2.14.0-c20h42",
    "ncia-NCIA_HB375x10-1.001_100-aug-cc-pvtz",
    "ncia-NCIA_HB375x10-3.036_100-aug-cc-pvqz",
    "s66x8-01-water-water-aug-cc-pvqz",
}
Item = dict[str, Any]


def geometry(atoms: Iterable[tuple[str, Sequence[float]]], per_bohr: float = 1.0) -> str:
    """ "O 0.0 0.0 0.22; ..." in bohr; a label may begin with @ for a ghost."""
    return "; ".join(
        " ".join([label, *(repr(round(float(x) / per_bohr, DECIMALS) + 0.0) for x in xyz)]) for label, xyz in atoms
    )


def lines(text: str) -> Atoms:
    """Atoms of xyz lines without header."""
    rows = [line.split() for line in text.splitlines()]
    return [(row[0], (float(row[1]), float(row[2]), float(row[3]))) for row in rows]


def calculation(atoms: str, basis: str, auxbasis: str, **more: Any) -> Item:
    """One calculation; what is not given is a neutral RHF singlet with a density-fitted SCF and no frozen core."""
    scf = more.get("scf", "df")
    jk = basis.replace("def2-svp", "def2-universal") + "-jkfit" if scf == "df" else None
    defaults: Item = {
        "charge": 0,
        "multiplicity": 1,
        "reference": "rhf",
        "scf": scf,
        "scf_auxbasis": jk,
        "frozen_core": "0",
        "scf_conv_tol": CONV_TOL,
    }
    return {"geometry": atoms, "basis": basis, "auxbasis": auxbasis, **defaults, **more}


def entry(
    name: str,
    program: tuple[str, str],
    source: list[str],
    calculations: list[Item],
    quantities: Mapping[str, float],
    tolerance: tuple[float, str],
    combine: Mapping[str, tuple[str, list[float]]] | None = None,
) -> Item:
    """One entry with its tags."""
    tags = {c["reference"] for c in calculations} | {f"{c['scf']}-scf" for c in calculations}
    symbols = {atom.split()[0].lstrip("@") for c in calculations for atom in c["geometry"].split(";")}
    tags |= {"frozen-core"} if any(c["frozen_core"] != "0" for c in calculations) else set()
    tags |= {"ecp"} if symbols & HEAVIEST_RI else set()
    tags |= {"ghost"} if any("@" in c["geometry"] for c in calculations) else set()
    tags |= {"combination"} if any(sum(f != 0 for f in fs) > 1 for _, fs in (combine or {}).values()) else set()
    tags |= {"slow"} if name in SLOW else set()
    item: Item = {
        "id": name,
        "program": program[0],
        "version": program[1],
        "source": source,
        "calculations": calculations,
        "quantities": dict(quantities),
        "tolerance": tolerance[0],
        "tolerance_reason": tolerance[1],
        "tags": sorted(tags),
        "needs": ["basis_set_exchange"] if symbols & HEAVIEST_RI else [],
    }
    if combine:
        item["combine"] = {key: {"of": of, "factors": factors} for key, (of, factors) in combine.items()}
    return item


def ceil_125(x: float) -> float:
    """The next of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(x)) if x > 0 else 0.0
    return float(f"{next(m * power for m in (1, 2, 5, 10) if m * power >= x * (1 - 1e-9)):.0e}") if x > 0 else 0.0
