"""Measure what the constants of the error budget rest on, molecule by molecule, and print the tables.

    python scripts/error_budget.py measure ROWS.jsonl     # about ten minutes of one core; a broken-off run goes on
    python scripts/error_budget.py ROWS.jsonl > docs/validation/error-budget.md

Each molecule in one basis, float64, one thread:

    SCF        converged to 1e-6, 1e-8 and 1e-10 Eh against 1e-13 Eh
    metric     E(corr) of one set of orbitals: Cholesky in float64, also of integrals whose last digit is disturbed,
               against Cholesky in extended precision
    fitting    a default run against conventional SCF and four-centre MP2 in PySCF

The constants that `dfmp2.mp2.error_budget` holds cover 95 % of the rows; the tables say what they are now.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

import dfmp2
from dfmp2.errors import ConvergenceError
from dfmp2.integrals import three_center
from dfmp2.integrals.metric import MetricFactor, factorise
from dfmp2.integrals.spaces import ActiveSpace, active_space
from dfmp2.molecule.mole import build_auxiliary, build_mole
from dfmp2.molecule.xyz import read_xyz
from dfmp2.mp2.result import MP2Result
from dfmp2.progress import Listener
from dfmp2.units import BOHR_PER_ANGSTROM
from dfmp2.validation.compare import recompute_exact

# name: (basis, charge, multiplicity, atoms in angstrom)
MOLECULES: dict[str, tuple[str, int, int, str]] = {
    # organic and inorganic molecules of light atoms
    "H2O": ("cc-pvdz", 0, 1, "O 0 0 .1173; H 0 .7572 -.4692; H 0 -.7572 -.4692"),
    "NH3": ("cc-pvtz", 0, 1, "N 0 0 .1; H 0 .9377 -.2816; H .8121 -.4689 -.2816; H -.8121 -.4689 -.2816"),
    "CH4": ("aug-cc-pvdz", 0, 1, "C 0 0 0; H .629 .629 .629; H .629 -.629 -.629; H -.629 .629 -.629; H -.629 -.629 .629"),
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
    "HCOOH": ("def2-svp", 0, 1, "C 0 .4201 0; O -1.0286 -.4454 0; O 1.161 .1092 0; H -.381 1.4447 0; H -.6603 -1.3375 0"),
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
INPUTS = Path(__file__).resolve().parents[1] / "inputs"
TOLERANCES = (1e-6, 1e-8, 1e-10)
CONVERGED = (1e-13, 1e-12, 1e-11)  # Eh, gradients below 3e-8, 1e-7 and 3e-7: the first that is reached
FLOAT64 = {"precision": "fp64", "stability": "off"}
SAME = 1e-4  # Eh; SCF energies farther apart belong to two solutions
DISTURBED = 3  # sets of integrals with other last digits
COVERED = 0.95
Array = NDArray[np.float64]
EPSILON = float(np.finfo(float).eps)




def molecule_of(name: str) -> dfmp2.Molecule:
    """A molecule of the table, coordinates in bohr."""
    _, charge, multiplicity, text = MOLECULES[name]
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


def tightly(run: Callable[[float], MP2Result]) -> MP2Result:
    """A run with the tightest convergence that rounding lets it reach."""
    for tolerance in CONVERGED[:-1]:
        try:
            return run(tolerance)
        except ConvergenceError:
            continue
    return run(CONVERGED[-1])


# --- measurements -------------------------------------------------------------------------------------


def measure(name: str) -> dict[str, Any]:
    """Everything that is measured of one molecule; energies in Eh."""
    basis, molecule = MOLECULES[name][0], molecule_of(name)

    def run(**options: Any) -> MP2Result:
        return dfmp2.run(options.pop("molecule", molecule), basis, threads=1, allow_small_gap=True, backend="cpu", **options)

    default = run()
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start.h5"
        dfmp2.write(default, start)
        exact = tightly(lambda tolerance: run(**FLOAT64, scf_conv_tol=tolerance, scf_from=str(start)))
    scf = []
    for tolerance in TOLERANCES:
        found = run(**FLOAT64, scf_conv_tol=tolerance)
        scf.append(
            {
                "tolerance": tolerance,
                "gradient": float(found.reference.history[-1, 2]) if len(found.reference.history) else 0.0,
                "scf_error": found.scf_total_energy - exact.scf_total_energy,
                "correlation_error": found.mp2_correlation_energy - exact.mp2_correlation_energy,
            }
        )
    moved = tightly(lambda tolerance: run(molecule=turned(molecule), **FLOAT64, scf_conv_tol=tolerance))
    check = recompute_exact(default, 1.0, 1, Listener())
    conventional = run(**FLOAT64, scf="conventional")
    real = molecule.real_symbols
    sets = {"scf": default.scf_fitting, "mp2": default.mp2_fitting}
    return {
        "molecule": name,
        "basis": basis,
        "formula": molecule.formula,
        "kind": default.reference.kind,
        "nao": default.sizes.nao,
        "atoms": len(real),
        "scf_total_energy": exact.scf_total_energy,
        "correlation_energy": exact.mp2_correlation_energy,
        "lowest_eigenvalue": None if default.reference.stability is None else default.reference.stability.lowest_eigenvalue,
        "gap": default.diagnostics.homo_lumo_gap,
        "converged": exact.options.scf_conv_tol,
        "convergence": scf,
        "turned": moved.scf_total_energy - exact.scf_total_energy,
        "metric": metric(exact, molecule),
        "fitting": {
            "scf": check.scf_difference,
            "correlation": check.correlation_difference,
            "of_orbitals": default.mp2_correlation_energy - conventional.mp2_correlation_energy,
            "conventional": conventional.scf_total_energy - check.scf_total_energy,
            **{f"{role}_atoms": [chosen.errors.get(symbol) for symbol in real] for role, chosen in sets.items()},
        },
        "budget": budget_of(default),
        "certificate": None if default.certificate is None else default.certificate.correlation_error,
        "decimals": None,
    }


def budget_of(result: MP2Result) -> float | None:
    """Error that the budget of a result expects of E(MP2, total), Eh; None before there are constants."""
    budget = getattr(result, "error_budget", None)
    return None if budget is None else budget.total


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
    raw = [np.concatenate([part[s] for part in parts]).reshape(len(metric), -1) for s in range(len(spaces))]

    def energy(metric: Array, raw: list[Array]) -> float:
        factor = factorise(metric)
        return correlation([_fitted(factor, r) for r in raw], spaces)

    found = factorise(metric)
    row: dict[str, Any] = {"condition": found.condition, "dropped": found.dropped}
    ours = energy(metric, raw)
    rng = np.random.default_rng(2)

    def disturbed(values: Array) -> Array:
        return values * (1 + EPSILON * rng.uniform(-1, 1, values.shape))

    others = []
    for _ in range(DISTURBED):
        other = disturbed(metric)
        others.append(energy(np.tril(other) + np.tril(other, -1).T, [disturbed(r) for r in raw]) - ours)
    row["disturbed"] = others
    if found.triangular:
        factor = extended_cholesky(metric)
        row["cholesky"] = ours - correlation([extended_solve(factor, r) for r in raw], spaces)
    for cut in (1e-13, 1e-12, 1e-11, 1e-10):
        values, vectors = np.linalg.eigh(metric)
        kept = values > cut * values[-1]
        root = vectors[:, kept] / np.sqrt(values[kept])
        row[f"cut {cut:.0e}"] = correlation([(r.T @ root).T for r in raw], spaces) - ours
    b = [_fitted(found, r) for r in raw]
    order = rng.permutation(len(b[0]))
    row["rounding"] = correlation([x[order] for x in b], spaces) - correlation(b, spaces)
    row["naux"] = len(metric)
    return row


def _fitted(factor: MetricFactor, raw: Array) -> Array:
    """B, (naux or fewer, nocc nvir), of raw integrals (naux, nocc nvir)."""
    if factor.triangular:
        return np.asarray(scipy.linalg.solve_triangular(factor.factor, raw, lower=True))
    return np.asarray(factor.factor.T @ raw)


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
    known = {row["molecule"] for row in read_rows(path)} if path.exists() else set()
    for name in MOLECULES:
        if name not in known:
            begun = time.monotonic()
            row = measure(name)
            row["seconds"] = time.monotonic() - begun
            with path.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(f"{name}: {row['seconds']:.1f} s", file=sys.stderr, flush=True)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file, one molecule each."""
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    measure_all(Path(sys.argv[2]))
