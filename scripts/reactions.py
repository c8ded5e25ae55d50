#!/usr/bin/env python
"""The tables of docs/project/validation/reactions.md: reactions by `dfmp2.reaction`, and by PySCF
and Psi4 alone.

    scripts/reactions.py energies       eight reactions against PySCF's own DF-MP2, minutes
    scripts/reactions.py gases          three reactions, optimised and with Hessians, against Psi4
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from pyscf import df, dft, gto, scf
from pyscf.mp import dfmp2 as restricted
from pyscf.mp import dfump2 as unrestricted

import dfmp2

JK, RI = "def2-universal-jkfit", "cc-pvdz-ri"
JK_OF_PSI4 = "cc-pvdz-jkfit"  # of the sets it has
SETS = {"scf_auxbasis": JK, "auxbasis": RI}
MOLECULES = {  # charge, multiplicity, atoms in angstrom; near minima, and one transition state
    "h": (0, 2, "H 0 0 0"),
    "h2": (0, 1, "H 0 0 0; H 0 0 0.75"),
    "hf": (0, 1, "H 0 0 0; F 0 0 0.92"),
    "f": (0, 2, "F 0 0 0"),
    "fluoride": (-1, 1, "F 0 0 0"),
    "hydroxide": (-1, 1, "O 0 0 0; H 0.1 0 0.97"),
    "h2o": (0, 1, "O 0 0 0.117; H 0 0.757 -0.47; H 0 -0.757 -0.47"),
    "h3o": (1, 1, "O 0 0 0.08; H .94 0 -.21; H -.47 .8140638796 -.21; H -.47 -.8140638796 -.21"),
    "nh2": (0, 2, "N 0 0 0; H 0 0.80 0.63; H 0 -0.80 0.63"),
    "nh3": (0, 1, "N 0 0 0.1; H .94 0 -.27; H -.47 .8140638796 -.27; H -.47 -.8140638796 -.27"),
    "nh4": (1, 1, "N 0 0 0; H .59 .59 .59; H -.59 -.59 .59; H -.59 .59 -.59; H .59 -.59 -.59"),
    "co": (0, 1, "C 0 0 0; O 0 0 1.14"),
    "co2": (0, 1, "C 0 0 0; O 0 0 1.175; O 0 0 -1.175"),
    "ch4": (0, 1, "C 0 0 0; H .63 .63 .63; H -.63 -.63 .63; H -.63 .63 -.63; H .63 -.63 -.63"),
    "ch3f": (
        0,
        1,
        "C 0 0 -0.63; F 0 0 0.77; H 1.03 0 -0.98; H -0.515 0.892 -0.98; H -0.515 -0.892 -0.98",
    ),
    "ch2f2": (
        0,
        1,
        "C 0 0 0.5; F 0 1.10 -0.29; F 0 -1.10 -0.29; H 0.91 0 1.10; H -0.91 0 1.10",
    ),
    "exchange": (
        -1,
        1,
        "C 0 0 0; F 0 0 1.83; F 0 0 -1.83; H 1.07 0 0; H -0.535 0.927 0; H -0.535 -0.927 0",
    ),
    "cl2": (0, 1, "Cl 0 0 0; Cl 0 0 2.02"),
    "hcl": (0, 1, "H 0 0 0; Cl 0 0 1.29"),
}
REACTIONS = (  # kind, reactants, products, options
    ("isodesmic", "ch2f2 ch4", "2*ch3f", {}),
    ("dissociation, open shell", "hf", "h f", {}),
    ("proton transfer, cations", "nh4 h2o", "nh3 h3o", {}),
    ("proton transfer, anions", "hydroxide hf", "h2o fluoride", {"method": "scs-mp2"}),
    ("SN2 barrier", "fluoride ch3f", "exchange", {}),
    ("radical", "nh2 h2", "nh3 h", {}),
    ("frozen core", "cl2 h2", "2*hcl", {"frozen_core": "auto"}),
    ("double hybrid", "co h2o", "co2 h2", {"method": "b2plyp"}),
)
GASES = (
    ("nh2 h2", "nh3 h"),
    ("nh4 h2o", "nh3 h3o"),
    ("co h2o", "co2 h2"),
)


# --- dfmp2 ----------------------------------------------------------------------------------------


def terms(text: str) -> list[tuple[str, Any]]:
    """Coefficients and molecules of one side."""
    found = []
    for term in text.split():
        number, _, name = term.rpartition("*")
        charge, multiplicity, atoms = MOLECULES[name]
        molecule = dfmp2.Molecule.from_string(atoms, charge=charge, multiplicity=multiplicity)
        found.append((number or "1", replace(molecule, name=name)))
    return found


def reaction_of_dfmp2(reactants: str, products: str, **options: Any) -> Any:
    """The study of a reaction."""
    how = {"precision": "fp64", "listener": dfmp2.Listener(), "threads": 1, **SETS, **options}
    return dfmp2.reaction(terms(reactants), terms(products), "cc-pvdz", **how)


# --- PySCF ----------------------------------------------------------------------------------------


def energy_of_pyscf(
    name: str, method: str = "mp2", frozen_core: str = "none", jk: str = JK
) -> float:
    """Total energy of one molecule by PySCF's own classes."""
    charge, multiplicity, atoms = MOLECULES[name]
    mole = gto.M(atom=atoms, basis="cc-pvdz", charge=charge, spin=multiplicity - 1, verbose=0)
    if method == "b2plyp":
        field = dft.RKS(mole, xc="0.53*HF + 0.47*B88, 0.73*LYP").density_fit(auxbasis=jk)
        field.grids.level = 3
    elif multiplicity > 1:
        field = scf.UHF(mole).density_fit(auxbasis=jk)
    else:
        field = scf.RHF(mole).density_fit(auxbasis=jk)
    field.conv_tol = 1e-12
    field.conv_tol_grad = 1e-8
    total = field.kernel()
    if mole.nelectron == 1:
        return float(total)
    if multiplicity > 1:
        correlated = unrestricted.DFUMP2(field)
    else:
        correlated = restricted.DFMP2(field)
        if frozen_core == "auto":
            correlated.frozen = 5 * sum(symbol == "Cl" for symbol in mole.elements)
    correlated.with_df = df.DF(mole, auxbasis=RI)
    correlated.kernel()
    if method == "b2plyp":
        return float(total + 0.27 * correlated.e_corr)
    if method == "scs-mp2":
        return float(total + correlated.e_corr_ss / 3 + 1.2 * correlated.e_corr_os)
    return float(total + correlated.e_corr)


def reaction_of_pyscf(reactants: str, products: str, **options: Any) -> float:
    """Products less reactants."""
    total = 0.0
    for sign, side in ((-1, reactants), (1, products)):
        for term in side.split():
            number, _, name = term.rpartition("*")
            total += sign * int(number or 1) * energy_of_pyscf(name, **options)
    return total


def energies() -> None:
    """Print the table of eight reactions."""
    print("| reaction | kind | dfmp2 / Eh | PySCF / Eh | difference / Eh | kJ/mol | stated error |")
    print("|---|---|---|---|---|---|---|")
    for kind, reactants, products, options in REACTIONS:
        study = reaction_of_dfmp2(reactants, products, **options)
        found = study.values["reaction_energy"].value
        expected = reaction_of_pyscf(reactants, products, **options)
        error = study.error_budget.total
        stated = "not known" if error is None else f"{error:.0e}"
        print(
            f"| {study.settings['equation']} | {kind} | {found:.8f} | {expected:.8f} | "
            f"{found - expected:.0e} | {found * 2625.4996:.2f} | {stated} |",
            flush=True,
        )


# --- Psi4 -----------------------------------------------------------------------------------------

INPUT = """
memory 2 gb
molecule m {{
{charge} {multiplicity}
{atoms}
}}
set basis cc-pvdz
set df_basis_scf {jk}
set df_basis_mp2 {ri}
set scf_type df
set mp2_type df
set freeze_core false
set reference {reference}
set e_convergence 11
set d_convergence 10
set g_convergence gau_verytight
{work}
"""
MOVING = "optimize('mp2')\nfrequencies('mp2', dertype=1)"


def free_energy_of_psi4(name: str) -> float:
    """Gibbs energy at 298.15 K and 101325 Pa of the minimum that Psi4 finds by itself, Eh."""
    charge, multiplicity, atoms = MOLECULES[name]
    if len(atoms.split(";")) == 1:  # Psi4 has no gas of an atom: Sackur and Tetrode
        return energy_of_pyscf(name, jk=JK_OF_PSI4) + gas_of_an_atom(multiplicity)
    text = INPUT.format(
        charge=charge,
        multiplicity=multiplicity,
        atoms=atoms.replace("; ", "\n"),
        jk=JK_OF_PSI4,
        ri=RI,
        reference="uhf" if multiplicity > 1 else "rhf",
        work=MOVING,
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in.dat").write_text(text)
        subprocess.run(
            ["/usr/bin/psi4", "-n", "1", "in.dat", "out.dat"], cwd=folder, check=True, timeout=3000
        )
        printed = (Path(folder) / "out.dat").read_text()
    found = re.findall(r"Total G,.*?(-?\d+\.\d+) \[Eh\]", printed)
    assert found, printed[-2000:]
    return float(found[-1])


def gas_of_an_atom(multiplicity: int) -> float:
    """G - E of a hydrogen atom at 298.15 K and 101325 Pa, Eh."""
    gas, boltzmann, planck, kelvin = 8.31446261815324, 1.380649e-23, 6.62607015e-34, 298.15
    mass = 1.00782503 * 1.66053906660e-27
    waves = (2 * np.pi * mass * boltzmann * kelvin / planck**2) ** 1.5
    entropy = gas * (2.5 + np.log(waves * boltzmann * kelvin / 101325.0) + np.log(multiplicity))
    return float((2.5 * gas * kelvin - kelvin * entropy) / 2625499.6394799)


def gases() -> None:
    """Print the table of free energies, end to end."""
    print("| reaction | dG of dfmp2 / Eh | of Psi4 / Eh | difference / Eh |")
    print("|---|---|---|---|")
    known: dict[str, float] = {}
    for reactants, products in GASES:
        study = reaction_of_dfmp2(
            reactants,
            products,
            optimize=True,
            frequencies=True,
            convergence="GAU_TIGHT",
            scf_auxbasis=JK_OF_PSI4,
        )
        found = study.values["reaction_gibbs_energy"].value
        expected = 0.0
        for sign, side in ((-1, reactants), (1, products)):
            for name in side.split():
                if name not in known:
                    known[name] = free_energy_of_psi4(name)
                expected += sign * known[name]
        print(
            f"| {study.settings['equation']} | {found:.8f} | {expected:.8f} | "
            f"{found - expected:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    {"energies": energies, "gases": gases}[sys.argv[1]]()
