"""Called by docs/project/architecture.md: make dfmp2/validation/cases.json and trnsci.json, the
reference energies shipped with the package.

    python scripts/make_validation_entries.py

Entries come from published numbers (tests/data/*_cases.json), from our own runs of
other programs (tests/data/{psi4,bagel,nwchem} and inputs/expected.json) and from closed forms. The
PySCF values of the trnsci table are computed here by PySCF alone. The program under test is not
imported.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyscf
from make_expected_energies import Atoms, compute, read_xyz

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
# Angstrom; old: CODATA 2006
PSI4_BOHR, PSI4_OLD_BOHR, PYSCF_BOHR = (0.52917721067, 0.52917720859, 0.52917721092)
DECIMALS = 14  # of coordinates in bohr, so that equal molecules have equal texts
CONV_TOL = 1e-12  # Eh, our SCF convergence; with 1e-11, E(corr) is up to 1e-8 Eh off
HEAVIEST_RI = {"I", "Xe"}  # elements used here whose RI set is only in the Basis Set Exchange
SLOW = {  # entries of more than about 20 s on two cores
    "byteqc-water8-ccpvdz-gradient",
    "pyscf-example11-ch3cl-dipole",
    "psi4-1.3.2-water-8",
    "pyscf-2.14.0-water-8",
    "pyscf-2.14.0-c20h42",
    "ncia-NCIA_HB375x10-1.001_100-aug-cc-pvtz",
    "ncia-NCIA_HB375x10-3.036_100-aug-cc-pvqz",
    "s66x8-01-water-water-aug-cc-pvqz",
}
Item = dict[str, Any]


def geometry(atoms: Iterable[tuple[str, Sequence[float]]], per_bohr: float = 1.0) -> str:
    """The geometry as "O 0.0 0.0 0.22; ..." in bohr; a label may begin with @ for a ghost."""
    return "; ".join(
        " ".join([label, *(repr(round(float(x) / per_bohr, DECIMALS) + 0.0) for x in xyz)])
        for label, xyz in atoms
    )


def lines(text: str) -> Atoms:
    """Atoms from xyz lines without header."""
    rows = [line.split() for line in text.splitlines()]
    return [(row[0], (float(row[1]), float(row[2]), float(row[3]))) for row in rows]


def geometry_of(case: Mapping[str, Any]) -> str:
    """The geometry of a case in bohr, in angstrom as its program converts them."""
    if case["units"] == "bohr":
        per_bohr = 1.0
    elif case["id"].startswith(("psi4", "stdsuite")):
        per_bohr = PSI4_BOHR
    else:
        per_bohr = PYSCF_BOHR
    return geometry(lines(case["geometry"]), per_bohr)


def gradient_of(case: Mapping[str, Any]) -> dict[str, float]:
    """The components of a case's gradient by name, Eh/bohr; empty if it has none."""
    gradient = case.get(
        "mp2_total_gradient_Eh_per_bohr", case.get("total_gradient_Eh_per_bohr", [])
    )
    atoms = lines(case["geometry"])
    return {
        f"gradient {number} {symbol} {axis}": value
        for number, ((symbol, _), row) in enumerate(zip(atoms, gradient, strict=False), start=1)
        for axis, value in zip(AXES, row, strict=True)
    }


def calculation(atoms: str, basis: str, auxbasis: str, **more: Any) -> Item:
    """One calculation, by default of a neutral RHF singlet with a density-fitted SCF and no frozen
    core."""
    scf = more.get("scf", "df")
    if scf == "df":
        jk = basis.replace("def2-svp", "def2-universal") + "-jkfit"
    else:
        jk = None
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
    symbols = {
        atom.split()[0].lstrip("@") for c in calculations for atom in c["geometry"].split(";")
    }
    tags |= {"frozen-core"} if any(c["frozen_core"] != "0" for c in calculations) else set()
    tags |= {"ecp"} if symbols & HEAVIEST_RI else set()
    tags |= {"ghost"} if any("@" in c["geometry"] for c in calculations) else set()
    tags |= (
        {"combination"}
        if any(sum(f != 0 for f in fs) > 1 for _, fs in (combine or {}).values())
        else set()
    )
    tags |= {"slow"} if name in SLOW else set()
    tags |= {"kohn-sham"} if any(c.get("xc") for c in calculations) else set()
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
        item["combine"] = {
            key: {"of": of, "factors": factors} for key, (of, factors) in combine.items()
        }
    return item


def ceil_125(x: float) -> float:
    """The next of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(x)) if x > 0 else 0.0
    if x > 0:
        return float(f"{next(m * power for m in (1, 2, 5, 10) if m * power >= x * (1 - 1e-9)):.0e}")
    return 0.0


# --- published numbers ---

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
PROGRAMS = {  # first word of an id -> program, subject of its version
    "stdsuite": ("Psi4", "standard suite of QCEngine"),
    "psi4": ("Psi4", "test suite"),
    "pyscf": ("PySCF", "test suite"),
    "gpu4pyscf": ("GPU4PySCF", "test suite"),
    "fermi": ("Fermi.jl", "test suite, numbers of Psi4"),
    "byteqc": ("ByteQC", "CPU results"),
    "ferric": ("PySCF, ORCA", "numbers kept by ferric"),
    "openqp": ("OpenQP", "test suite"),
    "metalquicha": ("metalquicha", "validation suite, reproduced by its Fortran code"),
    "ncia": ("NCI Atlas", "tables"),
    "nwchem": ("NWChem", "QA tests"),
    "s66x8": ("srs-app", "S66x8 data"),
    "pycc": ("pycc", "test suite"),
    "forge": ("ORCA, Q-Chem", "numbers kept by pyscf-forge"),
    "mrcc": ("MRCC", "numbers kept by pyscf-forge"),
    "goerigk": ("TURBOMOLE", "numbers of Goerigk and Grimme kept by pyscf-forge"),
}


def published(case: Mapping[str, Any]) -> Item:
    """An entry from reference_cases.json."""
    numbers = {**case["values"], **case["other_values"]}
    frozen = str(case["frozen_core"])
    if case["id"].endswith("-fc") and case["id"].startswith(("stdsuite", "psi4")):
        # the source has freeze_core true, so our table for that program is tested as well
        frozen = "psi4"
    one = calculation(
        geometry(lines(case["geometry"]), case["angstrom_per_bohr"] or 1.0),
        case["basis"],
        case["auxbasis"],
        charge=case["charge"],
        multiplicity=case["multiplicity"],
        reference=case["reference"],
        scf=case["scf_type"],
        scf_auxbasis=case["scf_auxbasis"],
        frozen_core=frozen,
        scf_conv_tol=1e-13 if case["tolerance"] <= 1e-10 else CONV_TOL,
    )
    quantities = {NAMES[name]: value for name, value in numbers.items() if name in NAMES}
    return entry(
        case["id"], program_of(case), case["source"], [one], quantities, tolerance_of(case)
    )


def program_of(case: Mapping[str, Any]) -> tuple[str, str]:
    """Program and version of a published case."""
    program, what = PROGRAMS[case["id"].split("-")[0]]
    return program, f"{what} {case['source_commit'][:7]}"


def tolerance_of(case: Mapping[str, Any]) -> tuple[float, str]:
    """Three times PySCF's difference from the source, at least 1e-8 Eh, at most the tolerance of
    the source."""
    own, attained = case["tolerance"], case["pyscf_difference"]
    tolerance = min(own, max(1e-8, ceil_125(3 * attained)))
    if tolerance == own:
        return own, f"the source's own; PySCF attains {attained:.0e} Eh"
    return (
        tolerance,
        f"the source allows {own:.0e} Eh; its digits and convergence let PySCF attain "
        f"{attained:.0e} Eh",
    )


AXES = "xyz"
SPINS = ("same", "opposite")
LARGE_RI = "aug-cc-pvqz-ri"  # for 6-31G, if the reference is conventional MP2
CONVENTIONAL = {  # suffix of a quantity -> largest difference allowed, and the reason
    "dipole": (1e-6, f"conventional MP2 in the source: the fit with {LARGE_RI} leaves 2e-7 e bohr"),
    "polar": (
        2e-5,
        f"conventional and analytic in the source: the fit with {LARGE_RI} and the field leave "
        "8e-6 bohr^3",
    ),
}


def gradients() -> list[Item]:
    """Gradients, natural occupations, dipole moments, polarizabilities from gradient_cases.json,
    with their tolerances."""
    entries = []
    for case in json.loads((DATA / "gradient_cases.json").read_text())["cases"]:
        values = case["values"]
        more: Item = {"os_scale": 6 / 5, "ss_scale": 1 / 3} if "-scs-" in case["id"] else {}
        if "-polar-" in case["id"]:
            more["polarizability"] = True
        one = calculation(
            geometry_of(case),
            case["basis"],
            case["auxbasis"] or LARGE_RI,
            multiplicity=case["multiplicity"],
            reference=case["reference"],
            scf=case["scf_type"],
            scf_auxbasis=case["scf_auxbasis"],
            frozen_core=str(case["frozen_core"]),
            gradient=True,
            frozen_virtual=int(values.get("frozen virtuals", 0)),
            **more,
        )
        quantities = gradient_of(case)
        kind = "relaxed" if "-relaxed" in case["id"] else "unrelaxed"
        for name, value in values.items():
            if name.startswith("natural occupation"):
                quantities[f"{kind} occupation {int(name.split('[')[1].rstrip(']')) + 1}"] = value
            elif name.endswith("dipole (debye)"):
                quantities[f"{name.split()[-3].replace('hf', 'scf')} dipole / debye"] = value
            elif name.endswith("dipole z (a.u.)"):
                quantities["correlation dipole z"] = value
            elif name.split()[-1] in ("xx", "yy", "zz"):
                quantities[f"correlation polarizability {name.split()[-1]}"] = value
        own = (case["tolerance"], "that of the source")
        if case["auxbasis"] is None:
            own = CONVENTIONAL[case["id"].split("-")[1]]
        made = entry(case["id"], program_of(case), case["source"], [one], quantities, own)
        entries.append({**made, "tags": sorted({*made["tags"], "gradient"})})
    return entries


UNFITTED = ("mp2-gradient", "conventional-mp2")  # kinds without density fitting
CONSTRAINTS = {"psi4-geometric-h2o-dfmp2-angle90": "$set\nangle 2 1 3 90"}
MEANT = {"6-31g": "cc-pvdz-ri", "sto-3g": "cc-pvdz-ri"}  # MP2 fitting set if the source has none
ENERGY_NAMES = {
    **{name: value for name, value in NAMES.items() if not name.startswith("nuclear")},
    "uhf total energy": "scf_total_energy",
    "sos-mp2 total energy": "sos_mp2_total_energy",
    "alpha-beta": "mp2_opposite_spin_correlation_energy",
}


def energies() -> list[Item]:
    """An optimised geometry, DF-UMP2 and conventional MP2 from energy_cases.json, the last without
    a verdict."""
    entries = []
    for case in json.loads((DATA / "energy_cases.json").read_text())["cases"]:
        name, values, unfitted = case["id"], case["values"], case["kind"] in UNFITTED
        gradient = gradient_of(case)
        more = {"constraints": CONSTRAINTS[name]} if name in CONSTRAINTS else {}
        one = calculation(
            geometry_of(case),
            case["basis"],
            case["auxbasis"] or MEANT.get(case["basis"], f"{case['basis']}-ri"),
            multiplicity=case["multiplicity"],
            reference=case["reference"],
            scf=case["scf_type"],
            scf_auxbasis=case["scf_auxbasis"],
            frozen_core=str(case["frozen_core"]),
            gradient=bool(gradient),
            **more,
        )
        printed = {what.removeprefix("optimised "): value for what, value in values.items()}
        quantities = gradient | {
            ENERGY_NAMES[what]: value for what, value in printed.items() if what in ENERGY_NAMES
        }
        if "alpha-alpha" in values:
            quantities["mp2_same_spin_correlation_energy"] = (
                values["alpha-alpha"] + values["beta-beta"]
            )
        if unfitted:
            reason = "conventional MP2: the difference is that of density fitting"
        else:
            reason = "that of the source"
        made = entry(
            name, program_of(case), case["source"], [one], quantities, (case["tolerance"], reason)
        )
        tags = ({"gradient"} if gradient else set()) | ({"conventional-mp2"} if unfitted else set())
        tags |= {"optimized"} if more else set()
        made["needs"] += ["geometric"] if more else []
        made["tolerance"] = None if unfitted else made["tolerance"]
        entries.append({**made, "tags": sorted({*made["tags"], *tags})})
    return entries


METHOD_NAMES = {
    "rohf total energy": "scf_total_energy",
    "alpha-beta": "mp2_opposite_spin_correlation_energy",
    "mp2 singles energy": "mp2_singles_energy",
    "mp2 correlation energy": "mp2_correlation_energy",
    "drpa correlation energy": "rpa_correlation_energy",
    "uhf total energy": "scf_total_energy",
    "exact opposite-spin": "mp2_opposite_spin_correlation_energy",
    "hf total energy": "scf_total_energy",
    # without the total energy, whose exchange uses an RI set
    "rpa correlation energy": "rpa_correlation_energy",
}
# Kind of case -> --method
NEW_METHODS = {"kappa-mp2": "kappa-mp2", "sos-laplace": "sos-laplace", "rpa": "drpa"}


def methods() -> list[Item]:
    """Entries of method_cases.json with their own tolerances; for the exact Laplace value, that of
    the quadrature."""
    entries = []
    for case in json.loads((DATA / "method_cases.json").read_text())["cases"]:
        values, own = case["values"], (case["tolerance"], "that of the source")
        setting = {name: case[name] for name in ("multiplicity", "reference", "scf_auxbasis")}
        setting |= {"scf": case["scf_type"], "frozen_core": str(case["frozen_core"])}
        atoms = geometry_of(case)
        basis = case["basis"], case["auxbasis"] or "auto"  # singles do not need one
        found: dict[str, tuple[Item, Item]] = {}
        if case["kind"] == "kappa-mp2":
            for kappa in (0.5, 1.1, 2.0):
                parts = {
                    f"{spin}_spin_correlation_energy": values[f"kappa={kappa:g} {spin}-spin"]
                    for spin in SPINS
                }
                found[f"{case['id']}-{kappa:g}"] = {"method": "kappa-mp2", "kappa": kappa}, parts
        else:
            parts = {
                METHOD_NAMES[name]: value for name, value in values.items() if name in METHOD_NAMES
            }
            if "alpha-alpha" in values:
                parts["mp2_same_spin_correlation_energy"] = (
                    values["alpha-alpha"] + values["beta-beta"]
                )
            method = NEW_METHODS.get(case["kind"])
            if setting["reference"].startswith("rks-"):
                setting |= {"reference": "rhf", "xc": setting["reference"].removeprefix("rks-")}
            if method == "sos-laplace":
                own = (1e-7, "the default --tolerance, of the quadrature; the reference has none")
            found[case["id"]] = {} if method is None else {"method": method}, parts
        for name, (more, quantities) in found.items():
            one = calculation(atoms, *basis, **setting, **more)
            made = entry(name, program_of(case), case["source"], [one], quantities, own)
            entries.append(
                {**made, "tags": sorted({*made["tags"], *((more["method"],) if more else ())})}
            )
    return entries


GRID = "99,590"  # from Psi4's tests; those of other programs are about as fine
GRIDS = {"metalquicha-water-sto-3g-b2plyp_grad": "3"}  # from the source, if given
METHOD_OF_CASE = {  # part of an id -> options, if the case names no functional
    "dsdblyp-new": {"method": "dsd-blyp"},
    "nh3dimer-dsdpbep86": {  # P86 with ORCA's local part
        "method": "custom-dh",
        "xc": "0.72*HF+0.28*PBE,0.44*P86-0.44*LDA_C_PZ+0.44*LDA_C_PW",
        "os_scale": 0.51,
        "ss_scale": 0.36,
    },
    "pbe-b88-lyp": {
        "method": "custom-dh",
        "xc": "PBE+0.53*HF+0.47*B88,PBE+0.73*LYP",
        "os_scale": 0.27,
        "ss_scale": 0.27,
    },
}
TOLERANCES = {  # prefix of an id -> largest difference, Eh, and the reason
    "forge-dh": (
        1e-5,
        "unfitted MP2 and another grid in the source; aug-cc-pv5z-ri leaves 1e-7 Eh",
    ),
    "forge-grad": (
        1e-5,
        "the source's own; its grid is another one, which leaves 1e-6 Eh/bohr",
    ),
    "metalquicha": (
        1e-7,
        "unfitted MP2 in the source; cc-pv5z-ri leaves 5e-8 Eh and 3e-8 Eh/bohr",
    ),
    "mrcc": (2e-5, "another fitting set, which the source does not name; its test allows 1e-4 Eh"),
    "goerigk": (2e-6, "printed with 6 decimals, both parts of the total"),
    "nwchem-h2o": (1e-5, "the source's own; unfitted MP2"),
    "nwchem": (2e-6, "the medium grid of NWChem"),
    "psi4-dhdf-nh3dimer": (1e-5, "the source's own: another grid, and PW92 of other constants"),
    "psi4-dhdf": (1e-6, "the source's own, with another grid"),
    "stdsuite": (1e-6, "the source's own; other points are pruned from the same grid"),
}


def double_hybrids() -> list[Item]:
    """Entries of double_hybrid_cases.json."""
    entries = []
    cases = json.loads((DATA / "double_hybrid_cases.json").read_text())["cases"]
    for case in cases:
        name, values = case["id"], case["values"]
        more: Item = {"method": case.get("functional", "b2plyp").lower()}
        for part, options in METHOD_OF_CASE.items():
            if part in name:
                more = dict(options)
        unfitted = case["auxbasis"] is None and name.startswith("stdsuite")
        auxbasis = case["auxbasis"] or f"{case['basis']}-ri"
        if case["basis"] == "6-31g":
            auxbasis = "aug-cc-pv5z-ri"
        if case["basis"] == "sto-3g":
            auxbasis = "cc-pv5z-ri"
        quantities = gradient_of(case)
        if quantities:
            more["gradient"] = True
        for key, value in values.items():
            if key in ("b2plyp functional total energy", "dft part", "b2plyp dft part"):
                quantities["scf_total_energy"] = value
            elif "pt2 part (scaled)" in key:
                quantities["correlation_energy"] = value
            elif key.endswith("total energy") or key.endswith("(RI-PT2)"):
                quantities["total_energy"] = value
        one = calculation(
            geometry_of(case),
            case["basis"],
            auxbasis,
            charge=case["charge"],
            multiplicity=case["multiplicity"],
            reference={"rks": "rhf", "uks": "uhf"}[case["reference"]],
            scf=case["scf_type"],
            scf_auxbasis=case["scf_auxbasis"],
            frozen_core=str(case["frozen_core"]),
            grid=GRIDS.get(name, GRID),
            **more,
        )
        tolerance = next(
            value for beginning, value in TOLERANCES.items() if name.startswith(beginning)
        )
        if unfitted:
            tolerance = (None, "conventional MP2: the difference is that of density fitting")
        made = entry(f"dh-{name}", program_of(case), case["source"], [one], quantities, tolerance)
        tags = {"double-hybrid", "kohn-sham"} | ({"conventional-mp2"} if unfitted else set())
        if name in SLOW_DOUBLE_HYBRIDS:
            tags.add("slow")
        if quantities.keys() - {"scf_total_energy", "correlation_energy", "total_energy"}:
            tags.add("gradient")
        if more["method"].endswith("d3bj"):
            made["needs"].append("dftd3")
        entries.append({**made, "tags": sorted({*made["tags"], *tags})})
    return entries


SLOW_DOUBLE_HYBRIDS = {"psi4-dhdf-nh3dimer-dsdpbep86-orca", "mrcc-nh2-xyg3"}


def composites() -> list[Item]:
    """Interaction energies, extrapolations and SCF energies from composite_cases.json."""
    cases = {
        case["id"]: case
        for case in json.loads((DATA / "composite_cases.json").read_text())["cases"]
    }
    entries = []
    for name in ("psi4-dfmp2-1-formic-dimer-cp", "psi4-dfmp2-ecp-nexe-fc"):
        case, values = cases[name], cases[name]["values"]
        quantities = {"interaction mp2_total_energy": values["cp-corrected mp2 interaction energy"]}
        combine = {"interaction mp2_total_energy": ("mp2_total_energy", [1.0, -1.0, -1.0])}
        if "formic" in name:
            basis, core = ("cc-pvdz", "0")
            quantities["nuclear_repulsion_energy"] = values["nuclear repulsion energy"]
            combine["nuclear_repulsion_energy"] = ("nuclear_repulsion_energy", [1.0, 0.0, 0.0])
            tolerance = (1e-7, "Psi4's default SCF convergence; its test allows 1e-6 Eh")
        else:
            basis, core = ("def2-svp", "psi4")
            tolerance = (1e-8, "the source's own")
        parts = [
            calculation(atoms, basis, f"{basis}-ri", frozen_core=core)
            for atoms in fragments(case, PSI4_BOHR, ghosts=True)
        ]
        name = name if name.endswith("-cp") else f"{name}-cp"
        entries.append(
            entry(name, program_of(case), case["source"], parts, quantities, tolerance, combine)
        )
    for name, frozen in (("psi4-dfmp2-fc-kr2-level0", 0), ("psi4-dfmp2-fc-kr2-level-2", 5)):
        case = cases[name]
        parts = [
            calculation(atoms, "def2-svp", "def2-svp-ri", frozen_core=str(count * frozen))
            for count, atoms in zip(
                (2, 1, 1), fragments(case, PSI4_BOHR, ghosts=False), strict=True
            )
        ]
        quantity = "interaction mp2_total_energy"
        quantities = {quantity: case["values"]["uncorrected (nocp) mp2 interaction energy"]}
        combine = {quantity: ("mp2_total_energy", [1.0, -1.0, -1.0])}
        tolerance = (2e-8, "the source's own, two ulps of its eight decimals")
        entries.append(
            entry(name, program_of(case), case["source"], parts, quantities, tolerance, combine)
        )
    case = cases["psi4-dlpnomp2-2-water-cbs"]
    water = geometry(lines(case["geometry"]), PSI4_BOHR)
    parts = [calculation(water, f"cc-pv{x}z", f"cc-pv{x}z-ri", frozen_core="psi4") for x in "tq"]
    # Helgaker's X^-3 with X = 3, 4; the SCF energy is that of X = 4
    cubes = [-27.0 / 37.0, 64.0 / 37.0]
    entries.append(
        entry(
            case["id"],
            program_of(case),
            case["source"],
            parts,
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
            geometry(lines(case["geometry"]), PSI4_OLD_BOHR),
            "cc-pvdz",
            "cc-pvdz-ri",
            multiplicity=multiplicity,
            reference=reference,
        )
        quantities = {NAMES[key]: value for key, value in case["values"].items() if key in NAMES}
        tolerance = (
            1e-8,
            "SCF only, the source's MP2 is orbital-optimised; it allows 1e-6 Eh, PySCF attains "
            "1e-9 Eh",
        )
        entries.append(entry(name, program_of(case), case["source"], [one], quantities, tolerance))
    return [*entries, *atlas(cases), *s66x8(cases["s66x8-01-Water-Water-1.00"])]


def fragments(case: Mapping[str, Any], per_bohr: float, *, ghosts: bool) -> list[str]:
    """Geometries of the dimer and of its fragments, with the other fragment as ghosts or left
    out."""
    atoms = lines(case["geometry"])
    parts = [geometry(atoms, per_bohr)]
    for own in case["fragments"]:
        kept = [
            ("" if k in own else "@", s, xyz)
            for k, (s, xyz) in enumerate(atoms)
            if ghosts or k in own
        ]
        parts.append(geometry(((ghost + s, xyz) for ghost, s, xyz in kept), per_bohr))
    return parts


def atlas(cases: Mapping[str, Any]) -> list[Item]:
    """Interaction energies of the NCI Atlas, counterpoise-corrected, per basis set."""
    properties = {
        "HF": "scf_total_energy",
        "corr_MP2": "mp2_correlation_energy",
        "corr_MP2_os": "mp2_opposite_spin_correlation_energy",
        "corr_MP2_ss": "mp2_same_spin_correlation_energy",
    }
    entries = []
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
                    f"{name}-{basis}",
                    program_of(case),
                    case["source"],
                    parts,
                    {key: value / KCAL for key, (_, value) in found.items()},
                    (ceil_125(0.001 / KCAL), reason),
                    {key: (of, [1.0, -1.0, -1.0]) for key, (of, _) in found.items()},
                )
            )
    return entries


def s66x8(case: Mapping[str, Any]) -> list[Item]:
    """Absolute energies of the water dimer and its monomers, with and without ghosts.

    The data specify neither program nor fitting sets; Psi4's defaults and length unit reproduce
    them to 8e-9 Eh.
    """
    waters = {**case, "fragments": [[0, 1, 2], [3, 4, 5]]}
    dimer, first, second = fragments(waters, PSI4_BOHR, ghosts=False)
    _, first_with_ghosts, second_with_ghosts = fragments(waters, PSI4_BOHR, ghosts=True)
    whole = {
        "dimers": dimer,
        "monomers_A": first,
        "monomers_B": second,
        "monA_ghostB": first_with_ghosts,
        "monB_ghostA": second_with_ghosts,
    }
    properties = {
        "hf": "scf_total_energy",
        "os": "mp2_opposite_spin_correlation_energy",
        "ss": "mp2_same_spin_correlation_energy",
    }
    entries = []
    for label, basis in (("tz", "cc-pvtz"), ("qz", "cc-pvqz"), ("aqz", "aug-cc-pvqz")):
        names = [name for name in whole if f"{label} {name} hf" in case["values"]]
        parts = [
            calculation(whole[name], basis, f"{basis}-ri", frozen_core="psi4") for name in names
        ]
        quantities, combine = {}, {}
        for k, name in enumerate(names):
            for key, of in properties.items():
                quantities[f"{name} {of}"] = case["values"][f"{label} {name} {key}"]
                combine[f"{name} {of}"] = (of, [float(k == other) for other in range(len(names))])
        tolerance = (
            2e-8,
            "settings not documented; Psi4's defaults reproduce the numbers to 8e-9 Eh",
        )
        name = f"s66x8-01-water-water-{basis}"
        entries.append(
            entry(name, program_of(case), case["source"], parts, quantities, tolerance, combine)
        )
    return entries


# --- our own runs of other programs ---


def psi4_runs() -> list[Item]:
    """Our own Psi4 runs, from the inputs and outputs kept in tests/data/psi4."""
    keys = {
        "scf_total_energy": "Reference",
        "mp2_same_spin_correlation_energy": "Same-Spin",
        "mp2_opposite_spin_correlation_energy": "Opposite-Spin",
        "mp2_correlation_energy": "Correlation",
        "mp2_total_energy": "Total",
        "nuclear_repulsion_energy": "Nuclear Repulsion",
    }
    entries = []
    for path in sorted((DATA / "psi4").glob("*.in")):
        text, output = path.read_text(), path.with_suffix(".out").read_text()
        rows = re.findall(
            r"^(?:Gh\()?([A-Z][a-z]?)(\))?((?:\s+-?\d+\.\d+){3})$", text, re.MULTILINE
        )
        atoms = [
            ("@" + s if ghost else s, [float(x) for x in xyz.split()]) for s, ghost, xyz in rows
        ]
        charge, multiplicity = map(
            int,
            re.search(
                r"^(-?\d+) "
                r"(\d+)$",
                text,
                re.MULTILINE,
            ).groups(),
        )  # type: ignore[union-attr]
        option = dict(re.findall(r"^  (\w+) (\S+)$", text, re.MULTILINE))
        if "df_basis_mp2" not in option:
            continue  # not one of these runs: it contains explicit basis sets
        one = calculation(
            geometry(atoms),
            option["basis"],
            option["df_basis_mp2"],
            charge=charge,
            multiplicity=multiplicity,
            reference=option["reference"],
            frozen_core="psi4" if option["freeze_core"] == "true" else "0",
        )
        quantities = {
            name: float(
                re.search(
                    rf"^\s*{label} Energy = "
                    r"(-?\d+\.\d+)",
                    output,
                    re.MULTILINE,
                )[1]
            )  # type: ignore[index]
            for name, label in keys.items()
        }
        reason = "both SCFs converged to 1e-11 Eh; PySCF and Psi4 agree to 1e-9 Eh on such runs"
        source = [f"own run, tests/data/psi4/{path.name}"]
        entries.append(
            entry(
                f"psi4-1.3.2-{path.stem}",
                ("Psi4", "1.3.2"),
                source,
                [one],
                quantities,
                (1e-8, reason),
            )
        )
    return entries


def bagel_runs() -> list[Item]:
    """Our own BAGEL runs: density-fitted RHF and MP2."""
    entries = []
    for path in sorted((DATA / "bagel").glob("*.json")):
        molecule, _, mp2 = json.loads(path.read_text())["bagel"]
        output = path.with_suffix(".out").read_text()
        one = calculation(
            geometry((atom["atom"], atom["xyz"]) for atom in molecule["geometry"]),
            molecule["basis"],
            mp2["aux_basis"],
            frozen_core="psi4"
            if mp2["frozen"]
            else "0",  # the previous noble gas, as in Psi4's table
        )
        found = re.findall(r"MP2 (correlation|total) energy: (-?\d+\.\d+)", output)
        quantities = {f"mp2_{name}_energy": float(value) for name, value in found}
        reason = "BAGEL prints ten decimals; its SCF gradient was converged to 1e-10 Eh"
        source = [f"own run, tests/data/bagel/{path.name}"]
        entries.append(
            entry(
                f"bagel-1.2.2-{path.stem}",
                ("BAGEL", "1.2.2"),
                source,
                [one],
                quantities,
                (1e-8, reason),
            )
        )
    return entries


def nwchem_runs() -> list[Item]:
    """Our own NWChem runs: RI-MP2 on a conventional SCF."""
    entries = []
    for path in sorted((DATA / "nwchem").glob("*.nw")):
        text, output = path.read_text(), path.with_suffix(".out").read_text()
        rows = re.findall(r"^ (bq)?([A-Z][a-z]?)((?:\s+-?\d+\.\d+){3})$", text, re.MULTILINE)
        basis, ri = re.findall(r"^ \* library (\S+)$", text, re.MULTILINE)
        one = calculation(
            geometry(
                ("@" + s if ghost else s, [float(x) for x in xyz.split()]) for ghost, s, xyz in rows
            ),
            basis,
            ri,
            multiplicity={"singlet": 1, "doublet": 2, "triplet": 3}[
                re.search(
                    r"^ "
                    r"(singlet|doublet|triplet)$",
                    text,
                    re.MULTILINE,
                )[1]  # type: ignore[index]
            ],
            reference="uhf" if " uhf" in text else "rhf",
            scf="conventional",
            frozen_core="psi4" if "freeze atomic" in text else "0",
        )
        labels = {
            "scf_total_energy": "SCF energy",
            "mp2_correlation_energy": "Correlation energy",
            "mp2_total_energy": "Total MP2 energy",
        }
        quantities = {
            name: float(
                re.search(
                    rf"^\s*{label} "
                    r"(-?\d+\.\d+)",
                    output,
                    re.MULTILINE,
                )[1]
            )  # type: ignore[index]
            for name, label in labels.items()
        }
        reason = "NWChem's SCF gradient was converged to 1e-9 Eh, its integrals to 1e-14"
        source = [f"own run, tests/data/nwchem/{path.name}"]
        name = f"nwchem-7.0.2-{path.stem}"
        entries.append(entry(name, ("NWChem", "7.0.2"), source, [one], quantities, (2e-8, reason)))
    return entries


def pyscf_runs() -> list[Item]:
    """PySCF's values of the molecules in inputs/."""
    entries = []
    for name, case in json.loads((ROOT / "inputs" / "expected.json").read_text())["cases"].items():
        atoms, charge, multiplicity = read_xyz(ROOT / "inputs" / case["file"])
        one = calculation(
            geometry(atoms, PYSCF_BOHR),
            case["basis"],
            case["auxbasis"],
            charge=charge,
            multiplicity=multiplicity,
            reference=case["reference"],
        )
        version = case["program"].split()[1]
        source = [f"own run, inputs/expected.json, {name}"]
        reason = (
            1e-8,
            "same integrals and SCF library, converged to 1e-11 Eh; MP2 code of its own",
        )
        entries.append(
            entry(
                f"pyscf-{version}-{name}", ("PySCF", version), source, [one], case["values"], reason
            )
        )
    return entries


# --- arrays without a molecule, the trnsci table, both files ---

TARGET = ROOT / "dfmp2" / "validation"
# first word of an id -> why it is left out, if reference_cases.json gives another reason
REASONS = {
    "ppl": "conventional MP2 with six decimals; the SCF settings are not documented, and N2's HF "
    "energy in aVDZ is 2.8e-4 Eh off every variant tried",
}


def main() -> None:
    """Write both files."""
    cases = json.loads((DATA / "reference_cases.json").read_text())["cases"]
    entries = (
        [published(case) for case in cases]
        + composites()
        + psi4_runs()
        + bagel_runs()
        + nwchem_runs()
    )
    kernels = trnblas_kernels()
    entries += pyscf_runs() + closed_forms() + [kernels[0]] + gradients() + methods() + energies()
    entries += double_hybrids()
    about = (
        "Reference energies (hartree) of other programs; made by "
        "scripts/make_validation_entries.py."
    )
    write("cases.json", {"about": about, "entries": entries, "left_out": left_out()})
    write("trnsci.json", {"about": about, "entries": trnsci() + kernels + closed_forms()[:2]})


def left_out() -> list[Item]:
    """Published numbers that are not entries, each with the reason."""
    excluded = json.loads((DATA / "reference_cases.json").read_text())["excluded"]
    # Numbers that composites() and closed_forms() turn into entries.
    made = {
        "psi4-dfmp2-1",
        "psi4-dfmp2-fc-kr2",
        "psi4-dlpnomp2-2",
        "psi4-dfomp2",
        "ncia",
        "s66x8",
        "gamess",
        "psi4-dhdf",
    }
    items = [
        {"id": case["id"], "reason": REASONS.get(case["id"].split("-")[0], case["reason"])}
        for case in excluded
        if not case["id"].startswith(tuple(made))
    ]
    items += [
        {
            "id": "psi4-dfomp2-1 and -2: MP2 energies",
            "reason": "orbital-optimised MP2, another method; SCF used",
        },
        {
            "id": "ncia: CBS rows, and aug-cc-pvqz of the two larger complexes",
            "reason": "up to 800 functions three times: hours on two cores for the third decimal "
            "of kcal/mol",
        },
        {
            "id": "gamess-miniapp w60",
            "reason": "11 GB and 4e14 FLOP, an hour on two cores; w30 is half of it",
        },
    ]
    return items


def write(name: str, document: Item) -> None:
    """Write a document with one line per entry, which keeps diffs readable."""
    head = {key: value for key, value in document.items() if not isinstance(value, list)}
    lists = {key: value for key, value in document.items() if isinstance(value, list)}
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, value in lists.items():
        rows = ",\n".join("  " + json.dumps(item) for item in value)
        parts.append(f" {json.dumps(key)}: [\n{rows}\n ]")
    (TARGET / name).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    print(f"{name}: {len(document['entries'])} entries")


def closed_forms() -> list[Item]:
    """The mini-app's arrays at its own sizes, and at sizes around powers of two, for which float32
    is exact."""
    app = "jkwack/GAMESS_RI-MP2_MiniApp:source/rimp2_energy_whole_KERN.f90"
    sizes = {
        "benz": (15, 93, 420),
        "cor": (54, 282, 1512),
        "c60": (120, 360, 3960),
        "w30": (120, 570, 2520),
    }
    awkward = [
        (1, 1, 64),
        (1, 129, 128),
        (17, 127, 256),
        (33, 128, 512),
        (128, 17, 128),
        (129, 5, 1024),
    ]
    named = [(f"gamess-miniapp-{name}", shape, "GAMESS mini-app") for name, shape in sizes.items()]
    named += [("closed-form-{}-{}-{}".format(*shape), shape, "closed form") for shape in awkward]
    entries = []
    for name, (nocc, nvir, naux), program in named:
        value = -0.5 * nvir**2 * nocc**2 / naux**2
        entries.append(
            kernel(
                name,
                (program, "exact"),
                [app, "energy: dfmp2/validation/entries.py"],
                {"recipe": "closed-form", "nocc": nocc, "nvir": nvir, "naux": naux},
                value,
                tolerance=1e-12 * abs(value),
                tolerance_reason="rounding: 1e-12 relative",
                tags=["float64"] * (program == "GAMESS mini-app")
                + ["slow"] * name.endswith(("c60", "w30")),
            )
        )
    return entries


def trnblas_kernels() -> list[Item]:
    """The pseudo-random arrays of the public example of trnblas."""
    shapes = {"small": (16, 112, 384), "medium": (64, 448, 1536), "large": (96, 672, 2304)}
    values = {
        "small": (-1.61925e-04, 1e-9),
        "medium": (-2.4872205, 2e-6),
        "large": (-43.5118, 5e-5),
    }
    return [
        kernel(
            f"trnblas-{name}",
            ("trnblas", "0.4.0"),
            ["trnsci/trnblas:examples/df_mp2.py", "CHANGELOG.md"],
            {"recipe": "trnblas", "nocc": nocc, "nvir": nvir, "naux": naux},
            values[name][0],
            tolerance=values[name][1],
            tolerance_reason="digits of the published energy, computed there in float32",
            tags=["float64", "slow"] if name == "large" else [],
        )
        for name, (nocc, nvir, naux) in shapes.items()
    ]


def kernel(
    name: str, program: tuple[str, str], source: list[str], sizes: Item, value: float, **more: Any
) -> Item:
    """An entry without a molecule."""
    tags = ["kernel", *more.pop("tags", [])]
    base = {
        "id": name,
        "program": program[0],
        "version": program[1],
        "source": source,
        "kernel": sizes,
    }
    return {
        **base,
        "quantities": {"mp2_correlation_energy": value},
        "tags": tags,
        "needs": [],
        **more,
    }


BRIDGE = "trnsci/trnblas:examples/_pyscf_bridge.py"
TRNSCI: dict[str, str] = {  # angstrom; the idealised geometries of that file
    "h2o": "O 0 0 0\nH 0 0 0.96\nH 0.926 0 -0.24",
    "ch4": "C 0 0 0\nH 0.63 0.63 0.63\nH -0.63 -0.63 0.63\nH 0.63 -0.63 -0.63\nH -0.63 0.63 -0.63",
    "nh3": "N 0 0 0\nH 0 0.94 -0.38\nH 0.82 -0.47 -0.38\nH -0.82 -0.47 -0.38",
    "glycine": "N 0 1.493 0\nH 0.823 1.93 0.293\nH -0.823 1.93 0.293\nC 0 0 0\nH 1.029 -0.346 0\nH "
    "-1.029 -0.346 0\nC 0 -0.541 1.451\nO 0 -1.751 1.586\nO 0 0.268 2.423\nH 0 -0.143 3.297",
    "h2o-trimer": "O 0 0 0\nH 0.756 0.586 0\nH -0.756 0.586 0\nO 2.44 0 0\nH 3.196 0.586 0\nH "
    "1.684 0.586 0\nO 1.22 2.114 0\nH 1.976 2.7 0\nH 0.464 2.7 0",
}
ROWS: tuple[tuple[str, str, float, float | None, float | None, str], ...] = (
    # molecule, basis, previously known PySCF energy, published |dE| and bound, source
    ("h2o", "sto-3g", -0.0355181135, None, 1e-6, "trnblas tests/test_df_mp2_pyscf.py"),
    ("h2o", "cc-pvdz", -0.2040005747, None, 1e-5, "trnblas tests/test_df_mp2_pyscf.py"),
    ("h2o", "cc-pvtz", -0.2733469671, 1.99e-7, None, "trnblas 0.5.4 CHANGELOG.md"),
    ("ch4", "cc-pvdz", -0.1634010870, None, 1e-5, "trnblas tests/test_df_mp2_pyscf.py"),
    ("nh3", "cc-pvdz", -0.1887137419, None, 1e-5, "trnblas tests/test_df_mp2_pyscf.py"),
    ("glycine", "sto-3g", -0.2442629671, 1.71e-8, None, "trnblas 0.5.4 CHANGELOG.md"),
    ("glycine", "cc-pvdz", -0.8183029871, 3.51e-7, None, "trnblas 0.5.4 CHANGELOG.md"),
    ("h2o-trimer", "sto-3g", -0.1097377682, 4.17e-8, None, "trnblas 0.5.4 CHANGELOG.md"),
)


def trnsci() -> list[Item]:
    """The published rows of the trnsci packages, with their fitting set and with proper ones;
    PySCF's values are computed here."""
    entries, proper = [], []
    for name, basis, known, difference, bound, by in ROWS:
        atoms = lines(TRNSCI[name])
        weigend = "def2-universal-jfit"  # "weigend" in PySCF
        value = correlation(atoms, basis, weigend, weigend)
        if abs(value - known) > 1e-8:
            raise RuntimeError(f"{name} {basis}: PySCF gives {value:.10f}, known is {known:.10f}")
        one = calculation(
            geometry(atoms, PYSCF_BOHR), basis, weigend, scf_auxbasis=weigend, scf_conv_tol=1e-12
        )
        limit = difference if difference is not None else bound
        if limit is None:
            raise RuntimeError(f"{name} {basis}: neither a difference nor a bound")
        item = entry(
            f"trnsci-{name}-{basis}-weigend",
            ("PySCF", pyscf.__version__),
            [BRIDGE],
            [one],
            {"mp2_correlation_energy": value},
            (limit, f"{'published' if difference is not None else 'bound published'} by {by}"),
        )
        entries.append({**item, "published": {"difference": difference, "bound": bound, "by": by}})
        if basis == "sto-3g":
            jk, ri = ("def2-universal-jkfit", "def2-svp-ri")
        else:
            jk, ri = (f"{basis}-jkfit", f"{basis}-ri")
        fitted = calculation(geometry(atoms, PYSCF_BOHR), basis, ri, scf_auxbasis=jk)
        proper.append(
            entry(
                f"trnsci-{name}-{basis}-ri",
                ("PySCF", pyscf.__version__),
                [BRIDGE],
                [fitted],
                {"mp2_correlation_energy": correlation(atoms, basis, jk, ri)},
                (
                    1e-8,
                    "same integrals and SCF library, converged to 1e-11 Eh; MP2 code of its own",
                ),
            )
        )
    return entries + proper


def correlation(atoms: Atoms, basis: str, jk: str, ri: str) -> float:
    """PySCF's DF-MP2 correlation energy, Eh."""
    symbols = {symbol for symbol, _ in atoms}
    return float(
        compute(atoms, 0, 1, basis, jk, dict.fromkeys(symbols, ri))["values"][
            "mp2_correlation_energy"
        ]
    )


if __name__ == "__main__":
    main()
