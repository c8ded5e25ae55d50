"""Entries out of published numbers: tests/data/reference_cases.json and composite_cases.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from validation_entry import (
    CONV_TOL,
    DATA,
    PSI4_BOHR,
    PSI4_OLD_BOHR,
    PYSCF_BOHR,
    Item,
    calculation,
    ceil_125,
    entry,
    geometry,
    lines,
)

KCAL = 627.5094740631  # kcal/mol per Eh, CODATA 2018
NAMES = {
    "hf total energy": "scf_total_energy",
    "nuclear repulsion energy": "nuclear_repulsion_energy",
    "mp2 same-spin correlation energy": "mp2_same_spin_correlation_energy",
    "mp2 opposite-spin correlation energy": "mp2_opposite_spin_correlation_energy",
    "mp2 correlation energy": "mp2_correlation_energy",
    "mp2 total energy": "mp2_total_energy",
    "scs-mp2 correlation energy": "scs_mp2_correlation_energy",
    "scs-mp2 total energy": "scs_mp2_total_energy",
}
PROGRAMS = {  # first word of an id -> program, what its version is of
    "stdsuite": ("Psi4", "standard suite of QCEngine"),
    "psi4": ("Psi4", "test suite"),
    "pyscf": ("PySCF", "test suite"),
    "gpu4pyscf": ("GPU4PySCF", "test suite"),
    "fermi": ("Fermi.jl", "test suite, numbers of Psi4"),
    "metalquicha": ("metalquicha", "validation suite, reproduced by its Fortran code"),
    "ncia": ("NCI Atlas", "tables"),
    "s66x8": ("srs-app", "S66x8 data"),
}


def published(case: Mapping[str, Any]) -> Item:
    """An entry from reference_cases.json."""
    numbers = {**case["values"], **case["other_values"]}
    frozen = str(case["frozen_core"])
    if case["id"].endswith("-fc") and case["id"].startswith(("stdsuite", "psi4")):
        frozen = "psi4"  # the source says freeze_core true: our table of that program is under test as well
    one = calculation(
        geometry(lines(case["geometry"]), case["angstrom_per_bohr"] or 1.0),
        *(case["basis"], case["auxbasis"]),
        charge=case["charge"],
        multiplicity=case["multiplicity"],
        reference=case["reference"],
        scf=case["scf_type"],
        scf_auxbasis=case["scf_auxbasis"],
        frozen_core=frozen,
        scf_conv_tol=1e-13 if case["tolerance"] <= 1e-10 else CONV_TOL,
    )
    quantities = {NAMES[name]: value for name, value in numbers.items() if name in NAMES}
    return entry(case["id"], program_of(case), case["source"], [one], quantities, tolerance_of(case))


def program_of(case: Mapping[str, Any]) -> tuple[str, str]:
    """Program and version of a published case."""
    program, what = PROGRAMS[case["id"].split("-")[0]]
    return program, f"{what} {case['source_commit'][:7]}"


def tolerance_of(case: Mapping[str, Any]) -> tuple[float, str]:
    """Three times what PySCF attains against the source, at least 1e-8 Eh, at most what the source allows itself."""
    own, attained = case["tolerance"], case["pyscf_difference"]
    tolerance = min(own, max(1e-8, ceil_125(3 * attained)))
    if tolerance == own:
        return own, f"the source's own; PySCF attains {attained:.0e} Eh"
    return tolerance, f"the source allows {own:.0e} Eh; its digits and convergence let PySCF attain {attained:.0e} Eh"


def composites() -> list[Item]:
    """Interaction energies, extrapolations and SCF energies from composite_cases.json."""
    cases = {case["id"]: case for case in json.loads((DATA / "composite_cases.json").read_text())["cases"]}
    entries = []
    for name in ("psi4-dfmp2-1-formic-dimer-cp", "psi4-dfmp2-ecp-nexe-fc"):
        case, values = cases[name], cases[name]["values"]
        basis, core = ("cc-pvdz", "0") if "formic" in name else ("def2-svp", "psi4")
        parts = [
            calculation(atoms, basis, f"{basis}-ri", frozen_core=core)
            for atoms in fragments(case, PSI4_BOHR, ghosts=True)
        ]
        quantities = {"interaction mp2_total_energy": values["cp-corrected mp2 interaction energy"]}
        combine = {"interaction mp2_total_energy": ("mp2_total_energy", [1.0, -1.0, -1.0])}
        if "formic" in name:
            quantities["nuclear_repulsion_energy"] = values["nuclear repulsion energy"]
            combine["nuclear_repulsion_energy"] = ("nuclear_repulsion_energy", [1.0, 0.0, 0.0])
        tolerance = (
            (1e-7, "Psi4's default SCF convergence; its test allows 1e-6 Eh")
            if "formic" in name
            else (1e-8, "the source's own")
        )
        name = name if name.endswith("-cp") else f"{name}-cp"
        entries.append(entry(name, program_of(case), case["source"], parts, quantities, tolerance, combine))
    for name, frozen in (("psi4-dfmp2-fc-kr2-level0", 0), ("psi4-dfmp2-fc-kr2-level-2", 5)):
        case = cases[name]
        parts = [
            calculation(atoms, "def2-svp", "def2-svp-ri", frozen_core=str(count * frozen))
            for count, atoms in zip((2, 1, 1), fragments(case, PSI4_BOHR, ghosts=False), strict=True)
        ]
        quantity = "interaction mp2_total_energy"
        quantities = {quantity: case["values"]["uncorrected (nocp) mp2 interaction energy"]}
        combine = {quantity: ("mp2_total_energy", [1.0, -1.0, -1.0])}
        tolerance = (2e-8, "the source's own, two ulps of its eight decimals")
        entries.append(entry(name, program_of(case), case["source"], parts, quantities, tolerance, combine))
    case = cases["psi4-dlpnomp2-2-water-cbs"]
    water = geometry(lines(case["geometry"]), PSI4_BOHR)
    parts = [calculation(water, f"cc-pv{x}z", f"cc-pv{x}z-ri", frozen_core="psi4") for x in "tq"]
    cubes = [-27.0 / 37.0, 64.0 / 37.0]  # Helgaker's X^-3 with X = 3, 4; the SCF energy is that of X = 4
    entries.append(
        entry(
            *(case["id"], program_of(case), case["source"], parts),
            {
                "extrapolated scf_total_energy": case["values"]["cbs reference energy"],
                "extrapolated mp2_correlation_energy": case["values"]["cbs mp2 correlation energy"],
            },
            (2e-8, "the source allows 1e-7 Eh; its digits let PySCF attain 3e-9 Eh"),
            {
                "extrapolated scf_total_energy": ("scf_total_energy", [0.0, 1.0]),
                "extrapolated mp2_correlation_energy": ("mp2_correlation_energy", cubes),
            },
        )
    )
    for name, multiplicity in (("psi4-dfomp2-1", 1), ("psi4-dfomp2-2", 2)):
        case = cases[name]
        reference = "rhf" if multiplicity == 1 else "uhf"
        one = calculation(
            *(geometry(lines(case["geometry"]), PSI4_OLD_BOHR), "cc-pvdz", "cc-pvdz-ri"),
            multiplicity=multiplicity,
            reference=reference,
        )
        quantities = {NAMES[key]: value for key, value in case["values"].items() if key in NAMES}
        tolerance = (1e-8, "SCF only, the source's MP2 is orbital-optimised; it allows 1e-6 Eh, PySCF attains 1e-9 Eh")
        entries.append(entry(name, program_of(case), case["source"], [one], quantities, tolerance))
    return [*entries, *atlas(cases), *s66x8(cases["s66x8-01-Water-Water-1.00"])]


def fragments(case: Mapping[str, Any], per_bohr: float, *, ghosts: bool) -> list[str]:
    """Geometry of the dimer and of its fragments, the other one as ghosts or left out."""
    atoms = lines(case["geometry"])
    parts = [geometry(atoms, per_bohr)]
    for own in case["fragments"]:
        kept = [("" if k in own else "@", s, xyz) for k, (s, xyz) in enumerate(atoms) if ghosts or k in own]
        parts.append(geometry(((ghost + s, xyz) for ghost, s, xyz in kept), per_bohr))
    return parts


def atlas(cases: Mapping[str, Any]) -> list[Item]:
    """Interaction energies of the NCI Atlas, counterpoise-corrected, per basis set."""
    entries = []
    properties = {"HF": "scf_total_energy", "corr_MP2": "mp2_correlation_energy"}
    properties |= {"corr_MP2_os": "mp2_opposite_spin_correlation_energy"}
    properties |= {"corr_MP2_ss": "mp2_same_spin_correlation_energy"}
    for name, case in cases.items():
        if not name.startswith("ncia"):
            continue
        for level in "dtq":
            if level == "q" and len(lines(case["geometry"])) > 7:
                continue
            basis = f"aug-cc-pv{level}z"
            parts = [
                calculation(atoms, basis, f"{basis}-ri", frozen_core="pyscf")
                for atoms in fragments(case, PYSCF_BOHR, ghosts=True)
            ]
            label = f"a{level.upper()}Z"
            found = {
                f"interaction {of}": (of, case["values"][f"interaction {key}/{label} (kcal/mol)"])
                for key, of in properties.items()
                if f"interaction {key}/{label} (kcal/mol)" in case["values"]
            }
            reason = "the table's last digit, 0.001 kcal/mol"
            entries.append(
                entry(
                    *(f"{name}-{basis}", program_of(case), case["source"], parts),
                    {key: value / KCAL for key, (_, value) in found.items()},
                    (ceil_125(0.001 / KCAL), reason),
                    {key: (of, [1.0, -1.0, -1.0]) for key, (of, _) in found.items()},
                )
            )
    return entries


def s66x8(case: Mapping[str, Any]) -> list[Item]:
    """Absolute energies of the water dimer and its monomers, with and without ghosts.

    The data name neither program nor fitting sets; Psi4's defaults and its length unit reproduce them to 8e-9 Eh.
    """
    atoms = lines(case["geometry"])
    first, second = [0, 1, 2], [3, 4, 5]
    plain = {**case, "fragments": [first, second]}
    whole = {"dimers": geometry(atoms, PSI4_BOHR)}
    whole |= dict(zip(("monomers_A", "monomers_B"), fragments(plain, PSI4_BOHR, ghosts=False)[1:], strict=True))
    whole |= dict(zip(("monA_ghostB", "monB_ghostA"), fragments(plain, PSI4_BOHR, ghosts=True)[1:], strict=True))
    properties = {"hf": "scf_total_energy", "os": "mp2_opposite_spin_correlation_energy"}
    properties |= {"ss": "mp2_same_spin_correlation_energy"}
    entries = []
    for label, basis in (("tz", "cc-pvtz"), ("qz", "cc-pvqz"), ("aqz", "aug-cc-pvqz")):
        names = [name for name in whole if f"{label} {name} hf" in case["values"]]
        parts = [calculation(whole[name], basis, f"{basis}-ri", frozen_core="psi4") for name in names]
        quantities, combine = {}, {}
        for k, name in enumerate(names):
            for key, of in properties.items():
                quantities[f"{name} {of}"] = case["values"][f"{label} {name} {key}"]
                combine[f"{name} {of}"] = (of, [float(k == other) for other in range(len(names))])
        tolerance = (2e-8, "settings not documented; Psi4's defaults reproduce the numbers to 8e-9 Eh")
        name = f"s66x8-01-water-water-{basis}"
        entries.append(entry(name, program_of(case), case["source"], parts, quantities, tolerance, combine))
    return entries
