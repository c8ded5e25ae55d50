"""Measure what the constants of the error budget rest on, molecule by molecule, and print the tables.

    python scripts/error_budget.py measure ROWS.jsonl     # ten minutes of one core; one that was broken off goes on
    python scripts/error_budget.py ROWS.jsonl > docs/validation/error-budget.md

Each molecule in one basis set and one thread:

    SCF          float64, converged to 1e-6, 1e-8 and 1e-10 Eh against 1e-13 Eh
    rounding     E(SCF) of the molecule as it is and turned
    metric       E(corr) of one set of orbitals: Cholesky in float64, also of integrals whose last digits are disturbed,
                 against Cholesky in extended precision; and other eigenvalue cuts, where functions crowd
    fitting      a default run against conventional SCF and four-centre MP2 in PySCF
    differences  the same for interaction energies and for molecules that are stretched

`dfmp2.mp2.error_budget` holds the constants; the page says how many rows they cover.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fitting_certificates
import numpy as np
from numpy.typing import NDArray

import dfmp2
from dfmp2.errors import ComparisonFailed, ConvergenceError, InputError, NumericalError
from dfmp2.integrals import three_center
from dfmp2.integrals.metric import MetricFactor, factorise
from dfmp2.integrals.spaces import ActiveSpace, active_space
from dfmp2.molecule.mole import build_auxiliary, build_mole
from dfmp2.molecule.xyz import read_xyz
from dfmp2.mp2 import error_budget
from dfmp2.mp2.result import Check, MP2Result
from dfmp2.options import make_options
from dfmp2.progress import Listener
from dfmp2.studies.interaction import interaction_energy
from dfmp2.units import BOHR_PER_ANGSTROM
from dfmp2.validation.compare import recompute_exact

Molecules = dict[str, tuple[str, int, int, str]]
# name: (basis, charge, multiplicity, atoms in angstrom)
MOLECULES: Molecules = {
    # organic and inorganic molecules of light atoms
    "H2O": ("cc-pvdz", 0, 1, "O 0 0 .1173; H 0 .7572 -.4692; H 0 -.7572 -.4692"),
    "NH3": ("cc-pvtz", 0, 1, "N 0 0 .1; H 0 .9377 -.2816; H .8121 -.4689 -.2816; H -.8121 -.4689 -.2816"),
    "CH4": ("aug-cc-pvdz", 0, 1, "C 0 0 0; H .629 .629 .629; H .629 -.629 -.629; H -.629 .629 -.629; "
            "H -.629 -.629 .629"),
    "HF": ("aug-cc-pvtz", 0, 1, "F 0 0 0; H 0 0 .9168"),
    "N2": ("cc-pvtz", 0, 1, "N 0 0 0; N 0 0 1.0977"),
    "CO": ("aug-cc-pvdz", 0, 1, "C 0 0 0; O 0 0 1.1283"),
    "CO2": ("cc-pvdz", 0, 1, "C 0 0 0; O 0 0 1.16; O 0 0 -1.16"),
    "H2CO": ("aug-cc-pvdz", 0, 1, "C 0 0 -.5296; O 0 0 .6773; H 0 .9357 -1.1094; H 0 -.9357 -1.1094"),
    "HCN": ("cc-pvtz", 0, 1, "H 0 0 -1.0655; C 0 0 0; N 0 0 1.1532"),
    "C2H2": ("6-31g*", 0, 1, "C 0 0 .6015; C 0 0 -.6015; H 0 0 1.6625; H 0 0 -1.6625"),
    "C2H4": ("def2-svp", 0, 1, "C 0 0 .6695; C 0 0 -.6695; H 0 .9289 1.2321; H 0 -.9289 1.2321; H 0 .9289 -1.2321; "
             "H 0 -.9289 -1.2321"),
    "CH3OH": ("cc-pvdz", 0, 1, "C -.0468 .6611 0; O -.0468 -.7589 0; H -1.0925 .9691 0; H .438 1.0712 .8894; "
              "H .438 1.0712 -.8894; H .87 -1.0586 0"),
    "HCOOH": ("def2-svp", 0, 1, "C 0 .4201 0; O -1.0286 -.4454 0; O 1.161 .1092 0; H -.381 1.4447 0; "
              "H -.6603 -1.3375 0"),
    "F2": ("aug-cc-pvdz", 0, 1, "F 0 0 0; F 0 0 1.4119"),
    "O3": ("cc-pvdz", 0, 1, "O 0 0 0; O 0 1.0885 .6697; O 0 -1.0885 .6697"),
    "HCl": ("def2-tzvp", 0, 1, "H 0 0 0; Cl 0 0 1.2746"),
    "Cl2": ("cc-pvdz", 0, 1, "Cl 0 0 0; Cl 0 0 1.9879"),
    "H2S": ("cc-pvtz", 0, 1, "S 0 0 .1030; H 0 .9616 -.8239; H 0 -.9616 -.8239"),
    "PH3": ("6-31g*", 0, 1, "P 0 0 .1277; H 0 1.1931 -.6384; H 1.0333 -.5966 -.6384; H -1.0333 -.5966 -.6384"),
    "SO2": ("def2-svp", 0, 1, "S 0 0 .3704; O 0 1.2371 -.3704; O 0 -1.2371 -.3704"),
    "LiH": ("cc-pvtz", 0, 1, "Li 0 0 0; H 0 0 1.5957"),
    "NaCl": ("def2-svp", 0, 1, "Na 0 0 0; Cl 0 0 2.3608"),
    "glycine": ("sto-3g", 0, 1, ""),
    "benzene": ("6-31g", 0, 1, ""),
    "formic-acid-dimer": ("def2-svp", 0, 1, ""),
    # diffuse electrons, and functions that crowd
    "OH-": ("aug-cc-pvdz", -1, 1, "O 0 0 0; H 0 0 .964"),
    "CN-": ("aug-cc-pvdz", -1, 1, "C 0 0 0; N 0 0 1.177"),
    "H-": ("aug-cc-pvtz", -1, 1, "H 0 0 0"),
    "He with 3 ghosts": ("aug-cc-pvtz", 0, 1, "He 0 0 0; @He 0 0 .5; @He 0 0 -.5; @He 0 .5 0"),
    # heavier elements
    "HBr": ("cc-pvdz", 0, 1, "H 0 0 0; Br 0 0 1.41"),
    "AsH3": ("def2-svp", 0, 1, "As 0 0 .0; H 0 1.2561 -.8388; H 1.0878 -.6281 -.8388; H -1.0878 -.6281 -.8388"),
    "I2": ("def2-svp", 0, 1, "I 0 0 0; I 0 0 2.666"),
    # radicals, UHF
    "NH2": ("cc-pvdz", 0, 2, "N 0 0 0; H 0 .8036 .6347; H 0 -.8036 .6347"),
    "O2": ("cc-pvdz", 0, 3, "O 0 0 0; O 0 0 1.2075"),
    "OH": ("aug-cc-pvtz", 0, 2, "O 0 0 0; H 0 0 .9697"),
    "CH3": ("aug-cc-pvdz", 0, 2, "C 0 0 0; H 0 1.079 0; H .9344 -.5395 0; H -.9344 -.5395 0"),
    "CH2": ("cc-pvtz", 0, 3, "C 0 0 0; H 0 .9924 .4266; H 0 -.9924 .4266"),
    "NO": ("6-31g*", 0, 2, "N 0 0 0; O 0 0 1.1508"),
    "CN": ("cc-pvdz", 0, 2, "C 0 0 0; N 0 0 1.1718"),
    "HO2": ("def2-svp", 0, 2, "O 0 .7144 -.6100; O 0 -.6158 -.6100; H 0 .9 .3"),
    # transition metals
    "CuH": ("def2-svp", 0, 1, "Cu 0 0 0; H 0 0 1.4626"),
    "ZnH2": ("def2-svp", 0, 1, "Zn 0 0 0; H 0 0 1.535; H 0 0 -1.535"),
    "ScF3": ("def2-svp", 0, 1, "Sc 0 0 0; F 0 1.847 0; F 1.5995 -.9235 0; F -1.5995 -.9235 0"),
    "TiCl4": ("def2-svp", 0, 1, "Ti 0 0 0; Cl 1.2529 1.2529 1.2529; Cl 1.2529 -1.2529 -1.2529; "
              "Cl -1.2529 1.2529 -1.2529; Cl -1.2529 -1.2529 1.2529"),
    "AgH": ("def2-svp", 0, 1, "Ag 0 0 0; H 0 0 1.618"),
    "MnH": ("def2-svp", 0, 7, "Mn 0 0 0; H 0 0 1.731"),
    "CrH": ("def2-svp", 0, 6, "Cr 0 0 0; H 0 0 1.655"),
    "NiCO": ("def2-svp", 0, 1, "Ni 0 0 0; C 0 0 1.67; O 0 0 2.82"),
}  # fmt: skip
# measured after the constants had been fixed
HELD_OUT: Molecules = {
    "C2H6": ("cc-pvdz", 0, 1, "C 0 0 .7652; C 0 0 -.7652; H 1.0188 0 1.1573; H -.5094 .8823 1.1573; "
             "H -.5094 -.8823 1.1573; H -1.0188 0 -1.1573; H .5094 .8823 -1.1573; H .5094 -.8823 -1.1573"),
    "CH3F": ("def2-tzvp", 0, 1, "C 0 0 -.64; F 0 0 .75; H 1.03 0 -.98; H -.515 .892 -.98; H -.515 -.892 -.98"),
    "N2O": ("cc-pvtz", 0, 1, "N 0 0 0; N 0 0 1.128; O 0 0 2.312"),
    "H2O2": ("6-311g**", 0, 1, "O 0 .7375 -.0528; O 0 -.7375 -.0528; H .8190 .8170 .4220; H -.8190 -.8170 .4220"),
    "BF3": ("cc-pvdz", 0, 1, "B 0 0 0; F 0 1.307 0; F 1.1319 -.6535 0; F -1.1319 -.6535 0"),
    "ClF": ("aug-cc-pvdz", 0, 1, "Cl 0 0 0; F 0 0 1.6283"),
    "CS2": ("def2-svp", 0, 1, "C 0 0 0; S 0 0 1.5526; S 0 0 -1.5526"),
    "HNCO": ("6-31g*", 0, 1, "N 0 0 0; C 0 0 1.214; O 0 .1 2.378; H 0 .94 -.35"),
    "CH3NH2": ("aug-cc-pvdz", 0, 1, "C .05 .70 0; N .05 -.76 0; H -.94 1.17 0; H .59 1.06 .88; H .59 1.06 -.88; "
               "H -.46 -1.10 .81; H -.46 -1.10 -.81"),
    "PN": ("cc-pvtz", 0, 1, "P 0 0 0; N 0 0 1.4909"),
    "SiO": ("def2-tzvp", 0, 1, "Si 0 0 0; O 0 0 1.5097"),
    "P2": ("cc-pvdz", 0, 1, "P 0 0 0; P 0 0 1.8934"),
    "HOCl": ("6-31g*", 0, 1, "H .93 -.24 0; O 0 0 0; Cl 0 1.69 0"),
    "LiF": ("def2-svp", 0, 1, "Li 0 0 0; F 0 0 1.5639"),
    "GeH4": ("cc-pvdz", 0, 1, "Ge 0 0 0; H .88 .88 .88; H .88 -.88 -.88; H -.88 .88 -.88; H -.88 -.88 .88"),
    "Br2": ("cc-pvdz", 0, 1, "Br 0 0 0; Br 0 0 2.281"),
    "H2Se": ("def2-tzvp", 0, 1, "Se 0 0 0; H 0 1.038 1.027; H 0 -1.038 1.027"),
    "NH4+": ("cc-pvtz", 1, 1, "N 0 0 0; H .59 .59 .59; H .59 -.59 -.59; H -.59 .59 -.59; H -.59 -.59 .59"),
    "NO2": ("cc-pvdz", 0, 2, "N 0 0 0; O 0 1.10 .46; O 0 -1.10 .46"),
    "SO": ("cc-pvtz", 0, 3, "S 0 0 0; O 0 0 1.481"),
    "VO": ("def2-svp", 0, 4, "V 0 0 0; O 0 0 1.589"),
    "CuF": ("def2-svp", 0, 1, "Cu 0 0 0; F 0 0 1.745"),
    "ZnO": ("def2-tzvp", 0, 1, "Zn 0 0 0; O 0 0 1.72"),
    "CoH": ("def2-svp", 0, 3, "Co 0 0 0; H 0 0 1.513"),
}  # fmt: skip
# functions that crowd
CROWDED = {
    f"{name} with ghosts {d} angstrom apart": (basis, 0, 1, text.format(d, 2 * d, -d))
    for d in (0.2, 0.3, 0.4)
    for name, basis, text in (
        (
            "He",
            "aug-cc-pvtz",
            "He 0 0 0; @He 0 0 {0}; @He 0 0 {1}; @He 0 0 {2}; @He 0 {0} 0; @He {0} 0 0",
        ),
        ("Ne", "aug-cc-pvdz", "Ne 0 0 0; @Ne 0 0 {0}"),
        ("HF", "aug-cc-pvdz", "F 0 0 0; H 0 0 .9168; @F 0 {0} 0; @F 0 {1} 0"),
    )
}
# name: (fragments, charges, atoms in angstrom)
DIMERS = {
    "(H2O)2": ("1-3,4-6", "0,0", "O -1.4809 .0046 0; H -1.7873 -.8752 0; H -.5265 -.1072 0; O 1.4351 -.0223 0; "
               "H 1.7583 .4268 .7569; H 1.7583 .4268 -.7569"),
    "(HF)2": ("1-2,3-4", "0,0", "F 0 0 0; H .13 .05 .915; F .1 .2 2.73; H .95 .1 3.05"),
    "H3N-HF": ("1-4,5-6", "0,0", "N 0 0 0; H 0 .9377 .38; H .8121 -.4689 .38; H -.8121 -.4689 .38; H 0 0 -1.72; "
               "F 0 0 -2.66"),
    "CH4-HF": ("1-5,6-7", "0,0", "C 0 0 0; H .629 .629 .629; H .629 -.629 -.629; H -.629 .629 -.629; "
               "H -.629 -.629 .629; H 1.3 1.3 1.3; F 1.84 1.84 1.84"),
    "(CO)2": ("1-2,3-4", "0,0", "C 0 0 0; O 0 1.128 0; C 3.5 1.0 0; O 3.5 -.1 0"),
    "(HCN)2": ("1-3,4-6", "0,0", "H 0 0 -1.0655; C 0 0 0; N 0 0 1.1532; H 0 0 3.36; C 0 0 4.43; N 0 0 5.58"),
    "N2-H2O": ("1-2,3-5", "0,0", "N 0 0 0; N 0 0 1.0977; H 0 0 -2.4; O 0 0 -3.36; H 0 .93 -3.6"),
    "HCl-Cl-": ("1-2,3", "0,-1", "H 0 0 0; Cl 0 0 1.3; Cl 0 0 -1.9"),
    "Ar-HF": ("1,2-3", "0,0", "Ar 0 0 0; H 0 0 2.6; F 0 0 3.52"),
}  # fmt: skip
STRETCHED = ("H2O", "NH3", "CO", "N2", "F2", "H2CO", "HCN", "C2H4", "CH3OH", "Cl2", "SO2", "HBr")
STRETCH = 1.05  # all coordinates
MOST_FUNCTIONS = 130  # of a molecule in one of them
BASES = ("6-31g*", "def2-svp", "aug-cc-pvdz")  # of differences
INPUTS = Path(__file__).resolve().parents[1] / "inputs"
FLOAT64 = {"precision": "fp64", "stability": "off"}
TOLERANCES = (1e-6, 1e-8, 1e-10)
CONVERGED = (
    1e-13,
    1e-12,
    1e-11,
)  # Eh, gradients below 3e-8, 1e-7 and 3e-7: the first that is reached
GIVEN = (1e-6, 1e-8, 1e-12)  # Eh, of SCFs done by PySCF; the last is the reference
DONE_ELSEWHERE = (
    *(
        "H2O",
        "NH3",
        "CO",
        "CO2",
        "H2CO",
        "HCN",
        "C2H2",
        "O3",
        "SO2",
        "F2",
        "Cl2",
        "NH2",
        "O2",
        "OH",
        "CN",
        "NO",
        "CH2",
    ),
    *("HO2", "CuH", "CrH", "ScF3"),
)
DISTURBED = 3  # sets of integrals with other last digits
CUTS = (1e-13, 1e-12, 1e-11)  # relative eigenvalues
EPSILON = float(np.finfo(float).eps)

Array = NDArray[np.float64]


def molecule_of(charge: int, multiplicity: int, text: str, name: str) -> dfmp2.Molecule:
    """A molecule of a table, coordinates in bohr; one without atoms is that of `inputs/`."""
    if not text:
        return read_xyz(INPUTS / f"{name}.xyz").molecule
    symbols, *places = zip(*(atom.split() for atom in text.split(";")), strict=True)
    return dfmp2.Molecule(
        tuple(symbol.lstrip("@") for symbol in symbols),
        np.array(places, dtype=float).T * BOHR_PER_ANGSTROM,
        tuple(symbol.startswith("@") for symbol in symbols),
        charge,
        multiplicity,
        name,
    )


def turned(molecule: dfmp2.Molecule) -> dfmp2.Molecule:
    """The molecule in another orientation and place: the same energy but for rounding."""
    rng = np.random.default_rng(1)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return replace(molecule, coordinates=molecule.coordinates @ rotation + rng.normal(size=3))


# --- measurements -------------------------------------------------------------------------------------


def run(molecule: dfmp2.Molecule, basis: str, **options: Any) -> MP2Result:
    """A run on one thread."""
    return dfmp2.run(molecule, basis, threads=1, allow_small_gap=True, backend="cpu", **options)


def tightly(molecule: dfmp2.Molecule, basis: str, **options: Any) -> MP2Result:
    """A float64 run with the tightest convergence that rounding lets it reach."""
    for tolerance in CONVERGED[:-1]:
        try:
            return run(molecule, basis, **FLOAT64, scf_conv_tol=tolerance, **options)
        except ConvergenceError:
            continue
    return run(molecule, basis, **FLOAT64, scf_conv_tol=CONVERGED[-1], **options)


@contextmanager
def started(result: MP2Result) -> Iterator[str]:
    """A file whose orbitals another SCF may start from."""
    with tempfile.TemporaryDirectory() as folder:
        dfmp2.write(result, Path(folder) / "start.h5")
        yield str(Path(folder) / "start.h5")


def exact_errors(result: MP2Result) -> Check:
    """E(SCF) and E(corr) of a result less those of conventional SCF and four-centre MP2."""
    return recompute_exact(result, 1.0, 1, Listener())


def measure(name: str) -> dict[str, Any]:
    """Everything that is measured of one molecule; energies in Eh."""
    basis, molecule = MOLECULES[name][0], molecule_of(*MOLECULES[name][1:], name)
    default = run(molecule, basis)
    with started(default) as start:
        exact = tightly(molecule, basis, scf_from=start)
    scf = []
    for tolerance in TOLERANCES:
        found = run(molecule, basis, **FLOAT64, scf_conv_tol=tolerance)
        scf.append(
            {
                "gradient": float(found.reference.history[-1, 2])
                if len(found.reference.history)
                else 0.0,
                "scf": found.scf_total_energy - exact.scf_total_energy,
                "correlation": found.mp2_correlation_energy - exact.mp2_correlation_energy,
            }
        )
    return {
        "basis": basis,
        "kind": default.reference.kind.upper(),
        "energy": exact.scf_total_energy,
        "convergence": scf,
        "turned": tightly(turned(molecule), basis).scf_total_energy - exact.scf_total_energy,
        "metric": metric(exact, molecule),
        "fitting": fitting_errors(default),
    }


def fitting_errors(default: MP2Result) -> dict[str, Any]:
    """Fitting errors of a default run, and its budget."""
    with started(default) as start:  # the same solution
        conventional = run(
            default.molecule, default.options.basis, **FLOAT64, scf="conventional", scf_from=start
        )
    check, orbitals = (
        exact_errors(default),
        default.mp2_correlation_energy - conventional.mp2_correlation_energy,
    )
    return {
        "scf_fitting": check.scf_difference,
        "orbitals": orbitals,
        "mp2_fitting": check.correlation_difference - orbitals,
        **part_of(default),
    }


def part_of(result: MP2Result) -> dict[str, Any]:
    """What the budget of a result takes for its fitting errors: of the atoms and between them, Eh; numbers of atoms."""
    molecule = result.molecule
    sets = {"scf": result.scf_fitting, "mp2": result.mp2_fitting}
    return {
        "atoms": {
            role: sum(abs(chosen.errors[symbol]) for symbol in molecule.real_symbols)
            for role, chosen in sets.items()
            if chosen is not None
        },
        "between": result.reference.interatomic_fitting_error,
        "counts": [len(molecule.real_symbols), error_budget.bonded_atoms(molecule)],
    }


def measure_fitting(name: str, basis: str, molecules: Molecules = MOLECULES) -> dict[str, Any]:
    """Fitting errors in another basis set; none where it lacks the element, or the molecule is too large for it."""
    try:
        default = run(molecule_of(*molecules[name][1:], name), basis)
        if default.sizes.nao > MOST_FUNCTIONS:
            return {"basis": basis, "fitting": None, "why": f"{default.sizes.nao} functions"}
        return {"basis": basis, "fitting": fitting_errors(default)}
    except (InputError, NumericalError, ConvergenceError, ComparisonFailed) as error:
        return {"basis": basis, "fitting": None, "why": str(error)}


def measure_given(name: str) -> dict[str, Any]:
    """Errors of mean fields that PySCF converged to 1e-6 and 1e-8 Eh, against 1e-12 Eh; orbitals of that gradient."""
    from pyscf import gto, scf

    basis, charge, multiplicity, text = MOLECULES[name]
    atoms = text.replace("@", "ghost-")
    mole = gto.M(atom=atoms, basis=basis, charge=charge, spin=multiplicity - 1, verbose=0)
    found = []
    for tolerance in GIVEN:
        mf = (scf.RHF if multiplicity == 1 else scf.UHF)(mole).density_fit(
            auxbasis="def2-universal-jkfit"
        )
        mf.conv_tol, mf.conv_tol_grad = tolerance, 0.1 * tolerance**0.5
        mf.kernel()
        result = dfmp2.from_mean_field(mf, **FLOAT64, allow_small_gap=True)
        if result.reference.history is None:
            gradient = 0.0
        else:
            gradient = float(result.reference.history[-1, 2])
        found.append((gradient, result.scf_total_energy, result.mp2_correlation_energy))
    *loose, (_, scf_energy, correlation) = found
    return {
        "energy": scf_energy,
        "convergence": [(g, e - scf_energy, c - correlation) for g, e, c in loose],
    }


def measure_crowded(name: str) -> dict[str, Any]:
    """What the metric does to E(corr) where functions crowd."""
    basis, molecule = CROWDED[name][0], molecule_of(*CROWDED[name][1:], name)
    result = run(molecule, basis, **FLOAT64, scf_conv_tol=1e-9)
    return {"basis": basis, "metric": metric(result, molecule)}


def measure_dimer(name: str, basis: str) -> dict[str, Any]:
    """Fitting errors of the interaction energy, cp-corrected and uncorrected, and the sum over the runs."""
    fragments, charges, atoms = DIMERS[name]
    molecule = molecule_of(sum(map(int, charges.split(","))), 1, atoms, name)
    options = make_options(basis=basis, threads=1, stability="off", backend="cpu")
    study = interaction_energy(molecule, fragments, options, charges=charges)
    found = {run: exact_errors(result) for run, result in study.runs.items()}
    errors = {
        run: check.scf_difference + check.correlation_difference for run, check in found.items()
    }
    parts = {run: part_of(result) for run, result in study.runs.items()}
    rows = {}
    for scheme, ending in (("cp-corrected", "in-complex"), ("uncorrected", "alone")):
        fragments_of = [run for run in errors if run.endswith(ending)]
        rows[scheme] = {
            "error": errors["complex"] - sum(errors[run] for run in fragments_of),
            "runs": [parts["complex"], *(parts[run] for run in fragments_of)],
        }
    return {"rows": rows}


def measure_stretched(name: str, basis: str) -> dict[str, Any]:
    """Fitting error of the energy it takes to stretch a molecule, and the sum over both runs."""
    molecule = molecule_of(*MOLECULES[name][1:], name)
    longer = replace(molecule, coordinates=STRETCH * molecule.coordinates)
    both = [run(one, basis, stability="off") for one in (longer, molecule)]
    checks = [exact_errors(result) for result in both]
    errors = [check.scf_difference + check.correlation_difference for check in checks]
    return {
        "rows": {"stretched": {"error": errors[0] - errors[1], "runs": list(map(part_of, both))}}
    }


def metric(result: MP2Result, molecule: dfmp2.Molecule) -> dict[str, Any]:
    """E(corr) of one set of orbitals by Cholesky in float64 against Cholesky in extended precision."""
    mole = build_mole(molecule, result.orbital_basis, 10**9)
    auxmole = build_auxiliary(mole, molecule, result.mp2_fitting)
    reference = result.reference
    spins = zip(reference.mo_coeff, reference.mo_energy, reference.mo_occ, strict=True)
    spaces = [active_space(*spin, 0, 0) for spin in spins]
    metric = three_center.coulomb_metric(auxmole)
    blocks = three_center.transformed_blocks(three_center.packed_blocks(mole, auxmole), spaces, 1)
    parts = [[part.copy() for part in block] for _, _, block in blocks]
    raw = [
        np.concatenate([part[s] for part in parts]).reshape(len(metric), -1)
        for s in range(len(spaces))
    ]

    def energy(metric: Array, raw: list[Array]) -> float:
        factor = factorise(metric)
        return correlation([_fitted(factor, r) for r in raw], spaces)

    found = factorise(metric)
    ours = energy(metric, raw)
    row: dict[str, Any] = {"condition": found.condition, "dropped": found.dropped, "energy": ours}
    rng = np.random.default_rng(2)

    def disturbed(values: Array) -> Array:
        return values * (1 + EPSILON * rng.uniform(-1, 1, values.shape))

    others = []
    for _ in range(DISTURBED):
        other = disturbed(metric)
        others.append(
            energy(np.tril(other) + np.tril(other, -1).T, [disturbed(r) for r in raw]) - ours
        )
    row["disturbed"] = others
    if found.triangular:
        factor = extended_cholesky(metric)
        row["cholesky"] = ours - correlation([extended_solve(factor, r) for r in raw], spaces)
    values, vectors = np.linalg.eigh(metric)
    for cut in CUTS:
        kept = values > cut * values[-1]
        root = vectors[:, kept] / np.sqrt(values[kept])
        moved = correlation([root.T @ r for r in raw], spaces) - ours
        row[f"cut {cut:.0e}"] = (int((~kept).sum()), moved)
    b = [_fitted(found, r) for r in raw]
    order = rng.permutation(len(b[0]))
    row["rounding"] = (correlation([x[order] for x in b], spaces) - ours) / (
        len(b[0]) * EPSILON * abs(ours)
    )
    return row


def _fitted(factor: MetricFactor, raw: Array) -> Array:
    """B, (naux or fewer, nocc nvir), of raw integrals (naux, nocc nvir)."""
    return np.asarray((factor.factor if factor.triangular else factor.factor.T) @ raw)


def correlation(b: list[Array], spaces: list[ActiveSpace]) -> float:
    """E(corr), Eh, of B (naux, nocc nvir) per spin."""
    total = 0.0
    for s in range(len(spaces)):
        for t in range(s, len(spaces)):
            left, right = spaces[s], spaces[t]
            rows = b[t].reshape(-1, right.nocc * right.nvir)
            for i in range(left.nocc):
                own = b[s].reshape(-1, left.nocc, left.nvir)[:, i]
                integrals = (own.T @ rows).reshape(left.nvir, right.nocc, right.nvir)
                gaps = (
                    left.eps_occ[i]
                    + right.eps_occ[None, :, None]
                    - left.eps_vir[:, None, None]
                    - right.eps_vir[None, None, :]
                )
                exchanged = integrals.transpose(2, 1, 0) if s == t else 0.0
                if len(spaces) == 1:
                    total += float(np.sum(integrals * (2 * integrals - exchanged) / gaps))
                elif s == t:
                    total += float(np.sum(integrals * (integrals - exchanged) / gaps)) / 2
                else:
                    total += float(np.sum(integrals * integrals / gaps))
    return total


def extended_cholesky(metric: Array) -> NDArray[np.longdouble]:
    """Lower Cholesky factor in extended precision, column by column."""
    left = metric.astype(np.longdouble)
    factor = np.zeros_like(left)
    for p in range(len(left)):
        column = left[p:, p] - factor[p:, :p] @ factor[p, :p]
        factor[p:, p] = column / np.sqrt(column[0])
    return factor


def extended_solve(factor: NDArray[np.longdouble], raw: Array) -> Array:
    """B = L^-1 (Q|ia) in extended precision, rounded at the end."""
    b = raw.astype(np.longdouble)
    for p in range(len(b)):
        b[p] = (b[p] - factor[p, :p] @ b[:p]) / factor[p, p]
    return b.astype(np.float64)


def measure_all(path: Path) -> None:
    """Append the rows that a file lacks."""
    if path.exists():
        known = {row["name"] for row in read_rows(path)}
    else:
        known = set()
    wanted: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {}
    wanted |= {name: ("molecule", partial(measure, name)) for name in MOLECULES}
    wanted |= {name: ("crowded", partial(measure_crowded, name)) for name in CROWDED}
    wanted |= {
        n: ("held out", partial(measure_fitting, n, row[0], HELD_OUT))
        for n, row in HELD_OUT.items()
    }
    wanted |= {
        f"{name}, by PySCF": ("given", partial(measure_given, name)) for name in DONE_ELSEWHERE
    }
    for names, found in ((DIMERS, measure_dimer), (STRETCHED, measure_stretched)):
        wanted |= {
            f"{n} {basis}": ("difference", partial(found, n, basis))
            for n in names
            for basis in BASES
        }
    for basis in BASES:
        others = (name for name in MOLECULES if MOLECULES[name][0] != basis)
        wanted |= {
            f"{name}, {basis}": ("fitting", partial(measure_fitting, name, basis))
            for name in others
        }
    for name, (table, work) in wanted.items():
        if name not in known:
            begun = time.monotonic()
            row = {"name": name, "table": table, **work(), "seconds": time.monotonic() - begun}
            with path.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(f"{name}: {row['seconds']:.1f} s", file=sys.stderr, flush=True)


def read_rows(path: Path, table: str = "") -> list[dict[str, Any]]:
    """Rows of a file, or of one of its tables."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["table"] == table or not table]


# --- the page -----------------------------------------------------------------------------------------


def covered(ratios: list[float]) -> str:
    """How many ratios of an error to what is expected of it are at most 1, and the largest."""
    inside = sum(ratio <= 1 for ratio in ratios)
    return (
        f"{inside} of {len(ratios)} ({100 * inside / len(ratios):.0f} %), largest {max(ratios):.2g}"
    )


def say(*parts: str) -> None:
    """Print paragraphs, lists and tables; paragraphs are filled."""
    for part in parts:
        print(part if part.startswith(("|", "-", "#")) else textwrap.fill(part, 128), end="\n\n")


def table(*heads: str) -> str:
    """The head of a Markdown table, without the line end that `print` adds."""
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def print_page(path: Path) -> None:
    """The tables as Markdown, with what each constant covers."""
    molecules, crowded, differences = (
        read_rows(path, table) for table in ("molecule", "crowded", "difference")
    )
    seconds = sum(row["seconds"] for row in read_rows(path))
    say(
        "# What the error budget rests on",
        "The [error budget](../explanation/error-budget.md) takes its constants from these tables. How many rows a "
        f"constant covers stands at each; 95 % was the aim. Energies in Eh. {len(molecules)} molecules, {len(DIMERS)} "
        f"dimers, {len(STRETCHED)} stretched molecules in {len(BASES)} basis sets. `python scripts/error_budget.py`, "
        f"{seconds / 60:.0f} minutes of one core, PySCF {metadata.version('pyscf')}, 2 cores of an AMD EPYC, "
        "22 November 2026.",
    )
    print_convergence(molecules, read_rows(path, "given"))
    print_metric([*molecules, *crowded])
    print_fitting([*molecules, *read_rows(path, "fitting")], read_rows(path, "held out"))
    print_differences(differences)


def print_convergence(rows: list[dict[str, Any]], given: list[dict[str, Any]]) -> None:
    """Errors of SCFs that end early, and rounding."""
    times, elsewhere = error_budget.GIVEN_TIMES, ([], [])
    for row in given:
        for g, scf, correlation in row["convergence"]:
            rounding = error_budget.SCF_ROUNDING * EPSILON * abs(row["energy"])
            elsewhere[0].append(abs(scf) / (times * error_budget.SECOND_ORDER * g**2 + rounding))
            elsewhere[1].append(abs(correlation) / (times * error_budget.FIRST_ORDER * g))
    second, first = [], []
    for row in rows:
        rounding = error_budget.SCF_ROUNDING * EPSILON * abs(row["energy"])
        for found in row["convergence"]:
            g = found["gradient"]
            if g:
                second.append(abs(found["scf"]) / (error_budget.SECOND_ORDER * g**2 + rounding))
                first.append(abs(found["correlation"]) / (error_budget.FIRST_ORDER * g))
    turned = [
        abs(row["turned"]) / (error_budget.SCF_ROUNDING * EPSILON * abs(row["energy"]))
        for row in rows
    ]
    say(
        "## SCF convergence",
        "g is the norm of the last orbital gradient of a float64 SCF that was to converge to 1e-6, 1e-8 and 1e-10 Eh; "
        "errors are against 1e-13 Eh, or 1e-12 and 1e-11 where rounding allows no more. Turning a molecule shows the "
        "rounding of E(SCF).",
        f"- error of E(SCF) within {error_budget.SECOND_ORDER:g} g^2 and rounding: {covered(second)}\n"
        f"- error of E(corr) within {error_budget.FIRST_ORDER:g} g: {covered(first)}\n"
        f"- rounding within {error_budget.SCF_ROUNDING:g} units in the last place of E(SCF): {covered(turned)}",
        "A run diagonalises once more after that gradient. PySCF's own mean fields of "
        f"{len(given)} of the molecules, converged to 1e-6 and 1e-8 Eh and handed over with the orbitals of their "
        f"gradient, are held against {times:g} times as much:",
        f"- E(SCF): {covered(elsewhere[0])}\n- E(corr): {covered(elsewhere[1])}",
        "The largest ratios belong to molecules with a soft orbital rotation (NiCO, CN), where the same gradient is "
        "farther from the minimum.",
    )
    steps = (
        f"{name}, {tolerance:.0e}"
        for tolerance in TOLERANCES
        for name in ("g", "E(SCF)", "E(corr)")
    )
    print(table("", "basis", "", *steps, "turned"))
    for row in rows:
        cells = [
            f"{found[key]:.0e}"
            for found in row["convergence"]
            for key in ("gradient", "scf", "correlation")
        ]
        print(
            f"| {row['name']} | {row['basis']} | {row['kind']} | {' | '.join(cells)} | {row['turned']:.0e} |"
        )
    print()


def moved(metric: dict[str, Any]) -> float:
    """Largest movement of E(corr) by other last digits, or by extended precision, Eh."""
    return max(abs(value) for value in (*metric["disturbed"], metric.get("cholesky", 0.0)))


def print_metric(rows: list[dict[str, Any]]) -> None:
    """Movements of E(corr) with the condition of the metric."""
    found = [(row["name"], row["basis"], row["metric"]) for row in rows]
    bounds = [m["condition"] ** 0.5 * EPSILON * abs(m["energy"]) for *_, m in found]
    ratios = [moved(m) / bound for (*_, m), bound in zip(found, bounds, strict=True)]
    sums = [abs(m["rounding"]) for *_, m in found]
    say(
        "## Fitting metric",
        "E(corr) of one set of orbitals: how far it moves where the last digit of every integral is another one, or "
        "where the metric is factorised in extended precision. The bound is the root of the condition number times "
        "rounding.",
        f"- movement within the bound: {covered(ratios)}\n"
        "- float64 sums over fitting functions in another order, within a unit in the last place for each function: "
        f"{covered(sums)}",
        "Metrics with a condition above 1e9, where functions crowd, and the eight others nearest to the bound:",
    )
    print(table("", "basis", "condition", "dropped", "moved", "bound"))
    nearest = sorted(
        ratio for ratio, (*_, m) in zip(ratios, found, strict=True) if m["condition"] <= 1e9
    )[-8:]
    for (name, basis, m), bound, ratio in zip(found, bounds, ratios, strict=True):
        if m["condition"] > 1e9 or ratio in nearest:
            print(
                f"| {name} | {basis} | {m['condition']:.0e} | {m['dropped']} | {moved(m):.0e} | {bound:.0e} |"
            )
    print()
    say(
        "Functions with a relative eigenvalue below 1e-12 are left out. What another cut leaves out or keeps moves "
        f"E(corr) by this part of itself for each function; {error_budget.DROPPED:.0e} is allowed:"
    )
    print(table("", "condition", "cut", "functions", "moved, each"))
    for name, _, m in found:
        for cut in (CUTS[0], CUTS[2]):
            dropped, change = m[f"cut {cut:.0e}"]
            more = abs(dropped - m[f"cut {CUTS[1]:.0e}"][0])
            if more:
                each = abs(change / m["energy"]) / more
                print(f"| {name} | {m['condition']:.0e} | {cut:.0e} | {more} | {each:.0e} |")
    print()


def expected(fitting: dict[str, Any], *, estimated: bool = True) -> dict[str, float]:
    """What the budget expects of both sets in a molecule, Eh; also of a run without an estimate of its own."""
    count, bonded = fitting["counts"]
    if estimated:
        found = fitting["between"]
    else:
        found = error_budget.BONDED * bonded
    between = {
        name: times * found + each * count for name, (times, each) in error_budget.BETWEEN.items()
    }
    atoms = fitting["atoms"]
    return {
        "scf_fitting": atoms["scf"] + between["scf"],
        "orbitals": error_budget.ORBITALS * atoms["scf"] + between["orbitals"],
        "mp2_fitting": atoms["mp2"] + between["mp2"],
    }


def fitting_ratios(
    rows: list[dict[str, Any]], *, estimated: bool = True
) -> tuple[dict[str, list[float]], list[str]]:
    """Errors over what is expected of them, by part, and a line of a table for each row."""
    ratios: dict[str, list[float]] = {}
    lines = []
    for row in rows:
        if row["fitting"] is None:
            continue
        shares = expected(row["fitting"], estimated=estimated)
        pairs = [(row["fitting"][name], share) for name, share in shares.items()]
        pairs.append((sum(error for error, _ in pairs), sum(shares.values())))
        for name, (error, share) in zip((*shares, "sum"), pairs, strict=True):
            ratios.setdefault(name, []).append(abs(error) / share)
        atoms = [
            f"{value:.0e}"
            for value in (*row["fitting"]["atoms"].values(), row["fitting"]["between"])
        ]
        cells = [*atoms, *(f"{error:+.0e} | {share:.0e}" for error, share in pairs)]
        lines.append(f"| {row['name'].split(',')[0]} | {row['basis']} | {' | '.join(cells)} |")
    return ratios, lines


def print_fitting(rows: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> None:
    """Fitting errors against four-centre integrals, and what a default run expects."""
    (ratios, lines), (others, more) = fitting_ratios(rows), fitting_ratios(held_out)
    left_out = sum(row["fitting"] is None for row in rows)
    say(
        "## Fitting",
        "Default sets against conventional SCF and four-centre MP2. Expected are the errors of the atoms one by one, "
        "without their signs, and for what no single atom shows some times what the SCF itself estimates to lack "
        "between its atoms, and a little for each.",
    )
    print(table("", "times the estimate", "each atom / Eh"))
    for name, (times, each) in error_budget.BETWEEN.items():
        print(f"| {name} | {times:g} | {each:.0e} |")
    print()
    say(
        covered_parts(ratios),
        f"The median of the last is {float(np.median(ratios['sum'])):.2f}: what is expected is a limit rather than the "
        "most likely error. The atoms alone would be far too small for CO, Cl2 or O2. The worst is H-, of which the "
        f"neutral atom says little. {left_out} pairs of molecule and basis set are left out: the set lacks an element, "
        f"there are more than {MOST_FUNCTIONS} functions, or the conventional SCF finds another solution.",
        f"{len(held_out)} molecules were measured after the constants had been fixed; they are the last of the table:",
        covered_parts(others),
        "So were the cases of the [fitting certificates](fitting-certificates.md), 40 molecules, some the same, "
        "in cc-pVDZ, def2-TZVP and aug-cc-pVDZ:",
        "\n".join(f"- {name}: {covered(found)}" for name, found in certified_ratios().items()),
        "Where a result has no estimate, as in files of earlier versions and with a conventional SCF, "
        f"{error_budget.BONDED:.0e} Eh for each atom that is heavier than hydrogen and bonded to such a one take its "
        "place. All these molecules without their estimates:",
        covered_parts(fitting_ratios([*rows, *held_out], estimated=False)[0]),
    )
    parts = ("SCF set", "orbitals", "MP2 set", "sum")
    heads = (f"{name}{ending}" for name in parts for ending in ("", ", expected"))
    print(table("", "basis", "atoms, SCF set", "atoms, MP2 set", "between, estimated", *heads))
    print("\n".join([*lines, *more]), end="\n\n")


def covered_parts(ratios: dict[str, list[float]]) -> str:
    """A list of what is covered of each set."""
    return (
        f"- SCF set, in E(SCF): {covered(ratios['scf_fitting'])}\n"
        f"- SCF set, in E(corr) through its orbitals: {covered(ratios['orbitals'])}\n"
        f"- MP2 set, in E(corr): {covered(ratios['mp2_fitting'])}\n- sum of the three: {covered(ratios['sum'])}"
    )


def certified_ratios() -> dict[str, list[float]]:
    """Errors over what is expected of them, of the cases that `scripts/fitting_certificates.py` has the truth of.

    Its table has sums over atoms with their signs, so a little less is expected here than in a run.
    """
    counts = {
        name: (len(m.real_symbols), error_budget.bonded_atoms(m))
        for _, name, m in fitting_certificates.molecules()
    }
    ratios: dict[str, list[float]] = {"E(SCF)": [], "E(corr)": [], "sum": []}
    for row in fitting_certificates.rows():
        atoms = {"scf": abs(row.scf_atoms), "mp2": abs(row.corr_atoms)}
        scf, *rest = expected(
            {"atoms": atoms, "between": row.scf_between, "counts": counts[row.name]}
        ).values()
        ratios["E(SCF)"].append(abs(row.scf_truth) / scf)
        ratios["E(corr)"].append(abs(row.corr_truth) / sum(rest))
        ratios["sum"].append(abs(row.scf_truth + row.corr_truth) / (scf + sum(rest)))
    return ratios


def print_differences(rows: list[dict[str, Any]]) -> None:
    """What is left of fitting errors in energy differences."""
    found = [
        (row["name"], kind, one["error"], sum(sum(expected(run).values()) for run in one["runs"]))
        for row in rows
        for kind, one in row["rows"].items()
    ]
    ratios = [abs(error) / (error_budget.CANCELLING * whole) for *_, error, whole in found]
    say(
        "## Differences",
        "Fitting error of interaction energies, and of the energy that it takes to stretch all coordinates by "
        f"{100 * (STRETCH - 1):.0f} %, against the sum of what the budgets of the runs expect of both sets.",
        f"- within {100 * error_budget.CANCELLING:g} % of that sum: {covered(ratios)}",
    )
    print(table("", "", "error", "sum of the runs", "part / %"))
    for name, kind, error, whole in found:
        print(f"| {name} | {kind} | {error:+.0e} | {whole:.0e} | {100 * abs(error) / whole:.1f} |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) == 3 and sys.argv[1] == "measure":
        measure_all(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        print_page(Path(sys.argv[1]))
    else:
        raise SystemExit(__doc__)
