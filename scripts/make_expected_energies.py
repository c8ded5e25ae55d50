"""Called by inputs/README.md: make inputs/expected.json with DF-MP2 energies of the files in
inputs/ from PySCF alone, and those of Psi4.

    python scripts/make_expected_energies.py              every case (three long ones: minutes)
    python scripts/make_expected_energies.py h2o o2       these cases; the others in the file are unchanged

E_OS = sum_ijab (ia|jb)^2 / D,  E_SS = sum_ijab [(ia|jb)^2 - (ia|jb)(ib|ja)] / D,  D = e_i + e_j - e_a - e_b (RHF), on
a density-fitted SCF. The program under test is not imported: the numbers come from
`pyscf.mp.dfmp2_native` and `dfump2_native`, whose scale factors (ps, pt) set to (1, 0) and (0, 1)
give the two spin components. The Psi4 values are read from
the outputs kept in tests/data/psi4, beside their inputs.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import basis_set_exchange
import numpy as np
import pyscf
from pyscf import gto, scf
from pyscf.data.nist import BOHR
from pyscf.mp.dfmp2_native import DFRMP2
from pyscf.mp.dfump2_native import DFUMP2

ROOT = Path(__file__).resolve().parents[1]
INPUTS = ROOT / "inputs"
PSI4 = ROOT / "tests" / "data" / "psi4"

CONV_TOL = 1e-11
CONV_TOL_GRAD = 1e-8


@dataclass(frozen=True, slots=True)
class Case:
    """One input file with its method.

    Attributes
    ----------
    name : stem of the file in inputs/
    basis, jk, ri : names of the orbital, SCF fitting and MP2 fitting sets
    exchange : element symbols whose RI set is missing in PySCF and comes from basis_set_exchange
    """

    name: str
    basis: str
    jk: str
    ri: str
    exchange: tuple[str, ...] = ()


def _correlation_consistent(name: str, basis: str) -> Case:
    return Case(name, basis, jk=f"{basis}-jkfit", ri=f"{basis}-ri")


# Long ones last, so that an interrupted run has the others.
CASES: tuple[Case, ...] = (
    _correlation_consistent("h2o", "cc-pvdz"),
    _correlation_consistent("ch4", "cc-pvdz"),
    _correlation_consistent("nh3", "cc-pvdz"),
    _correlation_consistent("nh2", "cc-pvdz"),
    _correlation_consistent("o2", "cc-pvdz"),
    _correlation_consistent("glycine", "cc-pvdz"),
    _correlation_consistent("butane", "cc-pvdz"),
    _correlation_consistent("formic-acid-dimer", "cc-pvdz"),
    _correlation_consistent("benzene", "cc-pvtz"),
    Case("ch2i2", "def2-svp", "def2-universal-jkfit", "def2-svp-ri", exchange=("I",)),
    _correlation_consistent("water-10", "cc-pvdz"),
    _correlation_consistent("water-8", "cc-pvtz"),
    _correlation_consistent("c20h42", "cc-pvdz"),
)

Atoms = list[tuple[str, tuple[float, float, float]]]


def read_xyz(path: Path) -> tuple[Atoms, int, int]:
    """Atoms (angstrom), charge and multiplicity of one xyz file; the latter two from tokens of the
    comment line."""
    count, comment, *rows = path.read_text(encoding="utf-8").splitlines()
    tokens = {
        key: int(value) for key, value in re.findall(r"\b(charge|multiplicity)=(-?\d+)", comment)
    }
    atoms: Atoms = []
    for row in rows[: int(count)]:
        symbol, x, y, z = row.split()
        atoms.append((symbol, (float(x), float(y), float(z))))
    return atoms, tokens.get("charge", 0), tokens.get("multiplicity", 1)


def exchange_basis(name: str, symbol: str) -> Any:
    """The set of one element from basis_set_exchange, in PySCF's internal format."""
    if name.endswith("-ri"):
        entry = name.removesuffix("-ri") + "-rifit"
    else:
        entry = name
    text = basis_set_exchange.get_basis(entry, elements=[symbol], fmt="nwchem", header=False)
    return gto.basis.parse(text, symbol)


def compute(
    atoms: Atoms,
    charge: int,
    multiplicity: int,
    basis: str,
    jk: str | None,
    ri: Mapping[str, Any],
    *,
    unit: str = "Angstrom",
    frozen: int = 0,
) -> dict[str, Any]:
    """DF-MP2 energies and sizes of one molecule.

    Parameters
    ----------
    basis, jk : set names; `jk` None means a conventional SCF
    ri : element symbol -> set name or shells in PySCF's format
    unit : "Angstrom" (PySCF's bohr, 0.52917721092) or "Bohr"
    frozen : lowest orbitals of each spin left out of the correlation energy

    Returns
    -------
    {"values": energies in hartree under QCSchema names, "sizes": ints}
    """
    mol = gto.M(
        atom=atoms,
        unit=unit,
        charge=charge,
        spin=multiplicity - 1,
        basis=basis,
        ecp=basis_ecp(basis, atoms),
        verbose=1,
    )
    mf = scf.RHF(mol) if multiplicity == 1 else scf.UHF(mol)
    if jk is not None:
        mf = mf.density_fit(auxbasis=jk)
    mf.conv_tol, mf.conv_tol_grad, mf.max_cycle = CONV_TOL, CONV_TOL_GRAD, 200
    e_scf = float(mf.kernel())
    if not mf.converged:
        raise RuntimeError(
            f"SCF not converged to {CONV_TOL} Eh in {mf.max_cycle} cycles; no energy is written"
        )
    mp2 = (DFRMP2 if multiplicity == 1 else DFUMP2)(mf, frozen=frozen or None, auxbasis=dict(ri))
    mp2.ps, mp2.pt = 1.0, 0.0
    opposite = float(mp2.calculate_energy())
    mp2.ps, mp2.pt = 0.0, 1.0
    same = float(mp2.calculate_energy())
    nocc = [int(n) for n in np.atleast_1d(mp2.nocc)]
    return {
        "values": {
            "scf_total_energy": e_scf,
            "mp2_same_spin_correlation_energy": same,
            "mp2_opposite_spin_correlation_energy": opposite,
            "mp2_correlation_energy": same + opposite,
            "mp2_total_energy": e_scf + same + opposite,
        },
        "sizes": {
            "nao": int(mol.nao),
            "nmo": int(mp2.nmo),
            "nocc": nocc,
            "naux_jk": None if jk is None else int(mf.with_df.auxmol.nao),
            "naux_ri": int(mp2.auxmol.nao),
            "ecp_electrons": sum(int(gto.charge(symbol)) for symbol, _ in atoms)
            - int(mol.atom_charges().sum()),
        },
    }


def basis_ecp(basis: str, atoms: Atoms) -> dict[str, str]:
    """The core potentials of the def2 sets, which apply from rubidium (Z = 37) on."""
    return {s: basis for s, _ in atoms if basis.startswith("def2") and gto.charge(s) > 36}


def psi4_values(path: Path) -> dict[str, Any] | None:
    """Energies (hartree) and version from a Psi4 DF-MP2 output, or None if there is none."""
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8")
    number = r"\s*=\s*(-?\d+\.\d+)"
    labels = {
        "scf_total_energy": r"Reference Energy",
        "mp2_same_spin_correlation_energy": r"Same-Spin Energy",
        "mp2_opposite_spin_correlation_energy": r"Opposite-Spin Energy",
        "mp2_correlation_energy": r"Correlation Energy",
        "mp2_total_energy": r"Total Energy",
    }
    found = {
        key: re.search(rf"^\s*{label}{number}", text, re.MULTILINE) for key, label in labels.items()
    }
    version = re.search(r"^\s*Psi4 (\d\S*)", text, re.MULTILINE)
    if version is None or not all(found.values()):
        raise RuntimeError(
            f"{path}: not a Psi4 DF-MP2 output with version and energies; run psi4 again"
        )
    values: dict[str, Any] = {"program": f"Psi4 {version.group(1)}"}
    values.update({key: float(match.group(1)) for key, match in found.items() if match is not None})
    return values


def entry(case: Case) -> dict[str, Any]:
    """The record of one case in expected.json: method, energies (hartree), sizes and, if available,
    Psi4's energies."""
    atoms, charge, multiplicity = read_xyz(INPUTS / f"{case.name}.xyz")
    ri = {
        s: exchange_basis(case.ri, s) if s in case.exchange else case.ri
        for s in {s for s, _ in atoms}
    }
    result = compute(atoms, charge, multiplicity, case.basis, case.jk, ri)
    record: dict[str, Any] = {
        "file": f"{case.name}.xyz",
        "charge": charge,
        "multiplicity": multiplicity,
        "reference": "rhf" if multiplicity == 1 else "uhf",
        "basis": case.basis,
        "scf_type": "df",
        "scf_auxbasis": case.jk,
        "auxbasis": case.ri,
        "auxbasis_from_basis_set_exchange": list(case.exchange),
        "frozen_core": 0,
        "conv_tol": CONV_TOL,
        "conv_tol_grad": CONV_TOL_GRAD,
        "program": f"PySCF {pyscf.__version__}",
        **result,
    }
    psi4 = psi4_values(PSI4 / f"{case.name}.out")
    if psi4 is not None:
        record["psi4"] = psi4
    return record


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: recompute all cases, or those named."""
    parser = argparse.ArgumentParser(description="expected DF-MP2 energies of inputs/, from PySCF")
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="stems of files in inputs/; default: all"
    )
    arguments = parser.parse_args(argv)
    known = {case.name: case for case in CASES}
    unknown = [name for name in arguments.cases if name not in known]
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; known: {', '.join(known)}")
    chosen = [case for case in CASES if not arguments.cases or case.name in arguments.cases]
    path = INPUTS / "expected.json"
    if path.exists():
        records = json.loads(path.read_text(encoding="utf-8"))["cases"]
    else:
        records = {}
    for case in chosen:
        start = time.perf_counter()
        records[case.name] = record = entry(case)
        seconds = time.perf_counter() - start
        document = {
            "about": "DF-MP2 energies in hartree, all electrons correlated; made by "
            "scripts/make_expected_energies.py",
            "angstrom_per_bohr": BOHR,
            "cases": {c.name: records[c.name] for c in CASES if c.name in records},
        }
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        print(f"{case.name:<18} {record['values']['mp2_total_energy']:.10f} Eh, {seconds:.1f} s")


if __name__ == "__main__":
    main()
