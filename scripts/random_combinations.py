"""Called by docs/project/validation/index.md: compare energies for random molecules, basis sets and
options with PySCF's SCF and explicit sums.

python scripts/random_combinations.py [NUMBER [SEED]]

PySCF converges its own SCF from the orbitals of dfmp2, with the same fitting set, and provides the
integrals; pair energies are sums over whole arrays, and direct RPA uses the plasmon formula 1/2 sum
(Omega - A) (Furche, Phys. Rev. B 64, 195120 (2001)). Every third gradient is compared with energy
differences (`--check`). Prints a row for everything that differs by more than TOLERANCE or is
rejected, and the largest differences.
"""

from __future__ import annotations

import random
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from pyscf import df, gto, qmmm, scf

import dfmp2
from dfmp2.molecule.basis import BasisSet, to_pyscf

TOLERANCE = {"fp64": 1e-7, "auto": 3e-7}  # Eh, for SCFs converged to a gradient of 1e-6 Eh
CHARGES = np.array([[0.1, 3.0, 2.5, 0.4], [-2.5, -0.3, 3.1, -0.6]])  # angstrom, e
SHAKEN = 0.05  # angstrom
MOLECULES = (
    "O 0 0 0.117; H 0 0.757 -0.469; H 0 -0.757 -0.469",
    "N 0 0 0.1; H 0 0.95 -0.27; H 0.82 -0.47 -0.27; H -0.82 -0.47 -0.27",
    "C 0 0 0; H 0 1.08 0; H 0.935 -0.54 0; H -0.935 -0.54 0",
    "B 0 0 0; H 0 1.19 0; H 1.03 -0.595 0; H -1.03 -0.595 0",
    "C 0 0 -0.53; O 0 0 0.68; H 0 0.94 -1.12; H 0 -0.94 -1.12",
    "S 0 0 0; O 0 1.24 0.72; O 0 -1.24 0.72",
    "H 0 0 0; Cl 0 0 1.28",
    "Li 0 0 0; H 0 0 1.6",
    "C 0 0 0; O 0 0 1.13",
    "F 0 0 0; F 0 0 1.42",
    "N 0 0 0; O 0 0 1.15",
    "H 0 0 0; Br 0 0 1.41",
    "Na 0 0 0; Cl 0 0 2.36",
    "O 0 0 0; O 0 0 1.21",
    "He 0 0 0; He 0 0 3.0",
    "Ar 0 0 0",
    "Mg 0 0 0; O 0 0 1.75",
    "H 0 0 0; I 0 0 1.61",
)
BASES = (
    "6-31g",
    "6-31g*",
    "cc-pvdz",
    "def2-svp",
    "aug-cc-pvdz",
    "def2-tzvp",
    "6-311++g**",
    "cc-pvtz",
)
METHODS = ("mp2", "mp2", "scs-mp2", "kappa-mp2", "sos-laplace", "drpa")


def draw(rng: random.Random) -> tuple[list[tuple[str, list[float]]], dict[str, Any]]:
    """Atoms with their positions in angstrom, a ghost's symbol with an @, and keywords of
    `dfmp2.run`."""
    atoms = []
    for text in rng.choice(MOLECULES).split(";"):
        symbol, *place = text.split()
        atoms.append((symbol, [float(x) + rng.uniform(-SHAKEN, SHAKEN) for x in place]))
    charge = rng.choice((0, 0, 0, 1, -1))
    multiplicity = (
        1
        + (sum(gto.charge(symbol) for symbol, _ in atoms) - charge) % 2
        + 2 * (rng.random() < 0.25)
    )
    if rng.random() < 0.2:
        atoms.append(("@He", [0.3, -2.1, 1.9]))
    if multiplicity == 1:
        references = ("rhf", "uhf")
    else:
        references = ("uhf", "uhf", "rohf")
    options = {
        "charge": charge,
        "multiplicity": multiplicity,
        "basis": rng.choice(BASES),
        "frozen_core": rng.choice(("none", "auto", "1")),
        "frozen_virtual": rng.choice((0, 0, 0, 2)),
        "precision": rng.choice(("fp64", "auto")),
        "scf": rng.choice(("df", "df", "conventional")),
        "relativity": rng.choice(("none", "none", "none", "x2c")),
        "method": rng.choice(METHODS),
        "reference": rng.choice(references),
    }
    if rng.random() < 0.2:
        options["point_charges"] = CHARGES
    return atoms, options


def whole(basis: BasisSet) -> dict[str, Any]:
    """A set in PySCF's format."""
    return {symbol: to_pyscf(element) for symbol, element in basis.elements.items()}


def energies(
    atoms: list[tuple[str, list[float]]], options: dict[str, Any], result: dfmp2.MP2Result
) -> tuple[float, float]:
    """E(SCF) and E(corr) without our SCF, transformation and pair energies, Eh."""
    placed = [(symbol.replace("@", "ghost-"), place) for symbol, place in atoms]
    mole = gto.M(
        atom=placed,
        basis={symbol: options["basis"] for symbol, _ in placed},
        ecp={
            symbol: options["basis"]
            for symbol, _ in atoms
            if symbol == "I" and "def2" in options["basis"]
        },
        charge=options["charge"],
        spin=options["multiplicity"] - 1,
        verbose=0,
    )
    mf = {"rhf": scf.RHF, "uhf": scf.UHF, "rohf": scf.ROHF}[options["reference"]](mole)
    if options["relativity"] == "x2c":
        mf = mf.sfx2c1e()
    if result.scf_fitting is not None:
        mf = mf.density_fit(auxbasis=whole(result.scf_fitting))
    if "point_charges" in options:
        mf = qmmm.mm_charge(mf, CHARGES[:, :3], CHARGES[:, 3], unit="angstrom")
    mf.conv_tol, mf.conv_tol_grad = 1e-11, 1e-6
    found = result.reference
    densities = np.array([(c * n) @ c.T for c, n in zip(found.mo_coeff, found.mo_occ, strict=True)])
    mf.kernel(densities[0] if options["reference"] == "rhf" else densities)
    if options["reference"] == "rohf":  # semicanonical orbitals
        fock = mf.get_hcore() + mf.get_veff()
        coeff, energy = [], []
        for spin, count in enumerate(mole.nelec):
            blocks = [mf.mo_coeff[:, :count], mf.mo_coeff[:, count:]]
            turned = [np.linalg.eigh(block.T @ fock[spin] @ block) for block in blocks]
            coeff.append(
                np.hstack([block @ turn for block, (_, turn) in zip(blocks, turned, strict=True)])
            )
            energy.append(np.concatenate([e for e, _ in turned]))
    else:
        double = options["reference"] == "rhf"
        if double:
            coeff, energy = ([mf.mo_coeff] * 2, [mf.mo_energy] * 2)
        else:
            coeff, energy = (mf.mo_coeff, mf.mo_energy)
    aux = df.addons.make_auxmol(mole, whole(result.mp2_fitting))
    values, vectors = np.linalg.eigh(aux.intor("int2c2e"))
    kept = values > 1e-14 * values.max()
    fitted = df.incore.aux_e2(mole, aux, "int3c2e") @ (vectors[:, kept] / np.sqrt(values[kept]))
    core, b, gaps, singles = result.sizes.frozen_core, [], [], 0.0
    for spin, count in enumerate(mole.nelec):
        last = len(energy[spin]) - options["frozen_virtual"]
        occupied, virtual = coeff[spin][:, core:count], coeff[spin][:, count:last]
        b.append(np.einsum("pi,qa,pqQ->iaQ", occupied, virtual, fitted, optimize=True))
        gaps.append(energy[spin][core:count, None] - energy[spin][None, count:last])
        if options["reference"] == "rohf":
            singles += float(np.sum((occupied.T @ fock[spin] @ virtual) ** 2 / gaps[spin]))
    if options["method"] == "drpa":
        flat, d = (
            np.vstack([x.reshape(-1, x.shape[2]) for x in b]),
            -np.concatenate([g.ravel() for g in gaps]),
        )
        kernel = flat @ flat.T
        root = np.sqrt(d)
        squares = np.linalg.eigvalsh(root[:, None] * (np.diag(d) + 2 * kernel) * root)
        return mf.e_tot, 0.5 * float(np.sqrt(squares).sum() - d.sum() - np.trace(kernel))

    def component(left: int, right: int, exchange: float) -> float:
        integrals = np.einsum("iaQ,jbQ->iajb", b[left], b[right], optimize=True)
        d = gaps[left][:, :, None, None] + gaps[right]
        if options["method"] == "kappa-mp2":
            factor = (1 - np.exp(1.1 * d)) ** 2
        else:
            factor = 1.0
        other = integrals.transpose(0, 3, 2, 1) if exchange else 0.0
        return float(np.sum(integrals * (integrals - other) * factor / d))

    opposite, same = component(0, 1, 0.0), 0.5 * (component(0, 0, 1.0) + component(1, 1, 1.0))
    scale = {"scs-mp2": (1.2, 1 / 3), "sos-laplace": (1.3, 0.0)}.get(options["method"], (1.0, 1.0))
    return mf.e_tot, scale[0] * opposite + scale[1] * same + singles


def main(number: int = 100, seed: int = 1) -> None:
    """Draw, compute, compare, print."""
    warnings.simplefilter("ignore")
    rng, folder = random.Random(seed), tempfile.TemporaryDirectory()
    apart: Counter[str] = Counter()
    differences: dict[str, list[tuple[float, float]]] = defaultdict(list)
    slopes: list[float] = []
    for drawn in range(number):
        atoms, options = draw(rng)
        text = f"{len(atoms)}\n\n" + "".join(
            f"{s} {x:.12f} {y:.12f} {z:.12f}\n" for s, (x, y, z) in atoms
        )
        path = Path(folder.name) / "drawn.xyz"
        path.write_text(text, encoding="ascii")
        name = "".join(symbol for symbol, _ in atoms)
        try:
            result = dfmp2.run(path, **options, stability="off", scf_conv_tol=1e-11)
        except dfmp2.Dfmp2Error as error:
            apart[f"refused: {type(error).__name__}"] += 1
            print(f"refused: {name}, {options}: {error}", flush=True)
            continue
        if any("of nearly equal energy" in warning for warning in result.diagnostics.warnings):
            apart["warned: frozen orbitals part a shell"] += 1
            continue
        ours, theirs = (
            (result.scf_total_energy, result.correlation_energy),
            energies(atoms, options, result),
        )
        if ours[0] < theirs[0] - 1e-6:
            apart["PySCF left for a higher SCF solution"] += 1
            continue
        off = tuple(abs(x - y) for x, y in zip(ours, theirs, strict=True))
        differences[options["precision"]].append((off[0], off[1]))
        if max(off) > TOLERANCE[options["precision"]]:
            print(
                f"DIFFERS: {name}, {options}: E(SCF) {off[0]:.1e}, E(corr) {off[1]:.1e} Eh",
                flush=True,
            )
        if (
            drawn % 3
            or options["method"] not in ("mp2", "scs-mp2")
            or options["reference"] == "rohf"
        ):
            continue
        try:
            proof = dfmp2.gradient(
                path, **options, check=True, stability="off", scf_conv_tol=1e-12
            ).certificate
        except dfmp2.Dfmp2Error as error:
            apart[f"gradient refused: {type(error).__name__}"] += 1
            print(f"gradient refused: {name}, {options}: {error}", flush=True)
            continue
        slopes.append(abs(proof.analytic_slope - proof.numerical_slope))
        if proof.failures:
            print(f"DIFFERS: {name}, {options}: gradient, {', '.join(proof.failures)}", flush=True)
    for precision, found in differences.items():
        scf_most, most = np.max(found, axis=0)
        print(
            f"{precision}: {len(found)} energies, at most {scf_most:.1e} Eh in E(SCF) and "
            f"{most:.1e} Eh in E(corr)"
        )
    print(f"{len(slopes)} gradients, at most {max(slopes, default=0.0):.1e} Eh/bohr")
    print(*(f"{count} {reason}" for reason, count in apart.items()), sep="\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
