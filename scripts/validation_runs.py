"""Entries out of our own runs of other programs: tests/data/{psi4,bagel,nwchem} and inputs/expected.json."""

from __future__ import annotations

import json
import re

from make_expected_energies import read_xyz
from validation_entry import DATA, PYSCF_BOHR, ROOT, Item, calculation, entry, geometry


def psi4_runs() -> list[Item]:
    """Our own Psi4 runs, from the inputs and outputs kept in tests/data/psi4."""
    keys = {"scf_total_energy": "Reference", "mp2_same_spin_correlation_energy": "Same-Spin"}
    keys |= {"mp2_opposite_spin_correlation_energy": "Opposite-Spin", "mp2_correlation_energy": "Correlation"}
    keys |= {"mp2_total_energy": "Total", "nuclear_repulsion_energy": "Nuclear Repulsion"}
    entries = []
    for path in sorted((DATA / "psi4").glob("*.in")):
        text, output = path.read_text(), path.with_suffix(".out").read_text()
        rows = re.findall(r"^(?:Gh\()?([A-Z][a-z]?)(\))?((?:\s+-?\d+\.\d+){3})$", text, re.MULTILINE)
        atoms = [("@" + s if ghost else s, [float(x) for x in xyz.split()]) for s, ghost, xyz in rows]
        charge, multiplicity = map(int, re.search(r"^(-?\d+) (\d+)$", text, re.MULTILINE).groups())  # type: ignore[union-attr]
        option = dict(re.findall(r"^  (\w+) (\S+)$", text, re.MULTILINE))
        if "df_basis_mp2" not in option:
            continue  # not one of these runs: it spells its basis sets out
        one = calculation(
            geometry(atoms),
            *(option["basis"], option["df_basis_mp2"]),
            charge=charge,
            multiplicity=multiplicity,
            reference=option["reference"],
            frozen_core="psi4" if option["freeze_core"] == "true" else "0",
        )
        quantities = {
            name: float(re.search(rf"^\s*{label} Energy = (-?\d+\.\d+)", output, re.MULTILINE)[1])  # type: ignore[index]
            for name, label in keys.items()
        }
        reason = "both SCFs converged to 1e-11 Eh; PySCF and Psi4 agree to 1e-9 Eh on such runs"
        source = [f"own run, tests/data/psi4/{path.name}"]
        entries.append(entry(f"psi4-1.3.2-{path.stem}", ("Psi4", "1.3.2"), source, [one], quantities, (1e-8, reason)))
    return entries


def bagel_runs() -> list[Item]:
    """Our own BAGEL runs: density-fitted RHF and MP2."""
    entries = []
    for path in sorted((DATA / "bagel").glob("*.json")):
        molecule, _, mp2 = json.loads(path.read_text())["bagel"]
        output = path.with_suffix(".out").read_text()
        one = calculation(
            geometry((atom["atom"], atom["xyz"]) for atom in molecule["geometry"]),
            *(molecule["basis"], mp2["aux_basis"]),
            frozen_core="psi4" if mp2["frozen"] else "0",  # the previous noble gas, as in Psi4's table
        )
        found = re.findall(r"MP2 (correlation|total) energy: (-?\d+\.\d+)", output)
        quantities = {f"mp2_{name}_energy": float(value) for name, value in found}
        reason = "BAGEL prints ten decimals; its SCF gradient was converged to 1e-10 Eh"
        source = [f"own run, tests/data/bagel/{path.name}"]
        entries.append(entry(f"bagel-1.2.2-{path.stem}", ("BAGEL", "1.2.2"), source, [one], quantities, (1e-8, reason)))
    return entries


def nwchem_runs() -> list[Item]:
    """Our own NWChem runs: RI-MP2 on a conventional SCF."""
    entries = []
    for path in sorted((DATA / "nwchem").glob("*.nw")):
        text, output = path.read_text(), path.with_suffix(".out").read_text()
        rows = re.findall(r"^ (bq)?([A-Z][a-z]?)((?:\s+-?\d+\.\d+){3})$", text, re.MULTILINE)
        basis, ri = re.findall(r"^ \* library (\S+)$", text, re.MULTILINE)
        one = calculation(
            geometry(("@" + s if ghost else s, [float(x) for x in xyz.split()]) for ghost, s, xyz in rows),
            *(basis, ri),
            multiplicity={"singlet": 1, "doublet": 2, "triplet": 3}[
                re.search(r"^ (singlet|doublet|triplet)$", text, re.MULTILINE)[1]  # type: ignore[index]
            ],
            reference="uhf" if " uhf" in text else "rhf",
            scf="conventional",
            frozen_core="psi4" if "freeze atomic" in text else "0",
        )
        labels = {"scf_total_energy": "SCF energy", "mp2_correlation_energy": "Correlation energy"}
        labels |= {"mp2_total_energy": "Total MP2 energy"}
        quantities = {
            name: float(re.search(rf"^\s*{label} (-?\d+\.\d+)", output, re.MULTILINE)[1])  # type: ignore[index]
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
            *(case["basis"], case["auxbasis"]),
            charge=charge,
            multiplicity=multiplicity,
            reference=case["reference"],
        )
        version = case["program"].split()[1]
        source = [f"own run, inputs/expected.json, {name}"]
        reason = (1e-8, "same integrals and SCF library, converged to 1e-11 Eh; MP2 code of its own")
        entries.append(entry(f"pyscf-{version}-{name}", ("PySCF", version), source, [one], case["values"], reason))
    return entries
