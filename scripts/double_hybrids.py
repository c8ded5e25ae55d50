"""Hold double hybrids against other programs, and make docs/project/validation/double-hybrids.md.

    python scripts/double_hybrids.py [--keep FILE.json]

Three tables: Psi4 on this machine, the published energies of `dfmp2 validate --tag double-hybrid`,
and the error that fitting leaves in long-range exchange.
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from long_tables import shortened
from pyscf import df, gto

import dfmp2
from dfmp2.molecule.molecule import Molecule
from dfmp2.scf.jk import JKFitting
from dfmp2.validation import entries, validate
from dfmp2.validation.psi4 import run_psi4

PAGE = Path(__file__).resolve().parents[1] / "docs" / "project" / "validation" / "double-hybrids.md"
ANGSTROM = 1 / 0.52917721092  # bohr
HEAD = """# Double hybrids

Made by `scripts/double_hybrids.py` on {date}. [Which functional?](../../howto/double-hybrids.md)
"""
PSI4 = """
## Psi4 on the same machine

Psi4 1.3.2 with the same fitting sets and 99,590 points for each atom, which the programs prune in
different ways; cc-pVDZ, no dispersion. Differences in Eh, ours less Psi4's; E(SS) and E(OS) are
unscaled. Psi4 has the functionals of an older libxc.

| molecule | method | E(KS) | E(SS) | E(OS) | total |
|---|---|---|---|---|---|
"""
PUBLISHED = """
## Published energies

`dfmp2 validate --tag double-hybrid --slow`: total energies and those of the functional, Eh, ours less
those of the source. Conventional MP2 in the source is shown without a verdict: the difference is
that of density fitting.

| entry | program | difference | tolerance | why that much |
|---|---|---|---|---|
"""
RANGES = """
## Long-range exchange

Largest element of K(omega) from fitted integrals less that from four-centre ones, Eh, of the
Hartree-Fock density; cc-pVDZ and cc-pvdz-jkfit. Omega "full" is the operator 1/r of every SCF. The
metric of a long-range operator is nearly singular, and its small eigenvalues are cut.

| molecule | omega / bohr^-1 | error of K | functions dropped |
|---|---|---|---|
"""
MOLECULES = {
    "H2O": ("O H H", "0.02 0 0.117  0 0.757 -0.47  0 -0.76 -0.45", 0, 1),
    "HCN": ("H C N", "0 0 -1.06  0 0 0  0.02 0 1.16", 0, 1),
    "H2CO": ("C O H H", "0 0 -0.53  0 0 0.68  0 0.94 -1.11  0.05 -0.93 -1.13", 0, 1),
    "NH2": ("N H H", "0 0 0.14  0 0.80 -0.49  0 -0.80 -0.5", 0, 2),
    "O2": ("O O", "0 0 0  0 0 1.21", 0, 3),
    "H2CO+": ("C O H H", "0 0 -0.53  0 0 0.68  0 0.96 -1.11  0.05 -0.97 -1.13", 1, 2),
}
METHODS = ("b2plyp", "dsd-pbep86", "pbe0-dh")
OMEGAS = (0.18, 0.3, 0.7)


def molecule(name: str) -> Molecule:
    """One of MOLECULES."""
    symbols, positions, charge, multiplicity = MOLECULES[name]
    coordinates = np.array(positions.split(), dtype=float).reshape(-1, 3) * ANGSTROM
    return Molecule(tuple(symbols.split()), coordinates, charge=charge, multiplicity=multiplicity)


def against_psi4() -> list[str]:
    """Rows of the first table."""
    rows = []
    for name in MOLECULES:
        for method in METHODS:
            ours = dfmp2.run(
                molecule(name),
                basis="cc-pvdz",
                auxbasis="cc-pvdz-ri",
                scf_auxbasis="cc-pvdz-jkfit",
                method=method,
                grid="99,590",
                precision="fp64",
                scf_conv_tol=1e-11,
                threads=1,
                allow_small_gap=True,
            )
            theirs = run_psi4(ours, 1)
            factors = ours.options.correlation
            total = theirs.scf_total_energy + factors.apply(theirs.opposite_spin, theirs.same_spin)
            same, opposite = ours.components
            gaps = (
                ours.scf_total_energy - theirs.scf_total_energy,
                same - theirs.same_spin,
                opposite - theirs.opposite_spin,
                ours.total_energy - total,
            )
            rows.append(f"| {name} | {method} | {' | '.join(f'{gap:+.1e}' for gap in gaps)} |\n")
            print(rows[-1], end="", flush=True)
    return rows


def published() -> list[str]:
    """Rows of the second table."""
    session, rows = validate.Session(backend="cpu", precision="fp64", count=1), []
    for entry in entries.load_entries():
        if "double-hybrid" not in entry.tags:
            continue
        values = session.calculate(entry.calculations[0]).values
        gaps = {q.name: values[q.of] - q.value for q in entry.quantities}
        words = {"scf_total_energy": "E(KS)", "total_energy": "total"}
        shown = ", ".join(
            f"{words[name]} {gap:+.1e}" for name, gap in gaps.items() if name in words
        )
        allowed = "-" if entry.tolerance is None else f"{entry.tolerance:.0e}"
        rows.append(
            f"| {entry.id} | {entry.program} | {shown} | {allowed} | {entry.tolerance_reason} |\n"
        )
        print(rows[-1], end="", flush=True)
    return rows


def long_range() -> list[str]:
    """Rows of the third table."""
    rows = []
    for name in ("H2O", "H2CO"):
        ours = molecule(name)
        atoms: Any = list(zip(ours.symbols, ours.coordinates, strict=True))
        mole = gto.M(atom=atoms, unit="bohr", basis="cc-pvdz", verbose=0)
        mf = mole.RHF().run()
        auxmole = df.addons.make_auxmol(mole, "cc-pvdz-jkfit")
        builder, density = JKFitting(mole, auxmole, 1), mf.make_rdm1()
        for omega in (0.0, *OMEGAS):
            exact = mf.get_k(mole, density, omega=omega or None)
            error = np.abs(builder.get_jk(density, omega=omega)[1] - exact).max()
            fitted = builder.at_long_range(omega) if omega else builder
            dropped = auxmole.nao - len(fitted.build()._cderi)
            rows.append(f"| {name} | {omega or 'full'} | {error:.1e} | {dropped} |\n")
            print(rows[-1], end="", flush=True)
    return rows


def main() -> None:
    """Write the page; with --keep the rows that were made before are taken from a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="file of the rows that were made")
    keep = parser.parse_args().keep
    rows: dict[str, list[str]] = {}
    if keep is not None and keep.exists():
        rows = json.loads(keep.read_text())
    tables = {"long range": long_range, "published": published, "psi4": against_psi4}
    for name, make in tables.items():
        if name not in rows:
            rows[name] = make()
            if keep is not None:
                keep.write_text(json.dumps(rows))
    heads = {"psi4": PSI4, "published": PUBLISHED, "long range": RANGES}
    date = f"{datetime.now(UTC):%d %B %Y}"
    text = "".join(head + "".join(rows[name]) for name, head in heads.items())
    PAGE.write_text(shortened(HEAD.format(date=date) + text, PAGE), encoding="utf-8")


if __name__ == "__main__":
    main()
