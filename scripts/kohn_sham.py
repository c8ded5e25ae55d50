"""Make docs/project/validation/kohn-sham.md: direct RPA on Kohn-Sham orbitals against PySCF, and its
quadrature.

    python scripts/kohn_sham.py [--rows FILE.jsonl]

Rows are added to the file as they come, and those that are there are not computed again. Half an
hour on one core. The section on integration grids is that of `scripts/grids.py` and stays as it is.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyscf import df, dft, gto, lib
from pyscf.gw import rpa, urpa

import dfmp2
from dfmp2.integrals.grid import make_grid
from dfmp2.molecule.mole import fitting_data
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2 import rpa as ours
from dfmp2.units import ANGSTROM_PER_BOHR
from scripts import grids


def pair(one: str, other: str, angstrom: float) -> Molecule:
    """A diatomic molecule."""
    places = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, angstrom / ANGSTROM_PER_BOHR]])
    return Molecule((one, other), places, name=f"{one}{other} at {angstrom} A")


ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "project" / "validation" / "kohn-sham.md"
CASES: list[tuple[Any, str, str]] = [
    ("h2o", "cc-pvdz", "pbe"),
    ("h2o", "aug-cc-pvdz", "pbe0"),
    ("h2o", "cc-pvtz", "tpss"),
    ("nh2", "cc-pvdz", "pbe"),
    ("o2", "cc-pvdz", "b3lyp"),
    ("ch2i2", "def2-svp", "pbe"),
    ("benzene", "cc-pvdz", "pbe"),
    (pair("N", "N", 2.0), "cc-pvdz", "pbe"),
]
LARGE = ("benzene", "ch2i2")  # against PySCF only
EXACT = {
    "method": "drpa",
    "scf_conv_tol": 1e-11,
    "threads": 1,
    "precision": "fp64",
    "allow_small_gap": True,
}
HEAD = """# Kohn-Sham orbitals

Made by `scripts/kohn_sham.py` on one of 2 cores of an AMD EPYC that others used as well, 23 November 2026, with PySCF
{version}.

## Against PySCF

The table compares `dfmp2 run --method drpa --xc NAME` with PySCF's RKS or UKS, same fitting sets and grid,
followed by `gw.rpa` or `gw.urpa` with 120 frequencies. Differences are dfmp2 minus PySCF, in Eh; E(EXX) is the
Hartree-Fock energy of the Kohn-Sham determinant. "Frequencies" are those of dfmp2, with the error relative to
`--tolerance` 1e-12 and the printed estimate. Times are processor seconds of the correlation energy, for PySCF
with 40 frequencies.

| molecule | basis | functional | E(KS) | E(EXX) | E(RPA) | frequencies | error | estimate | ours | PySCF |
|---|---|---|---|---|---|---|---|---|---|---|
"""
CONVERGED = """
## Convergence of the SCF

E(EXX) and E(RPA) change linearly with the error of Kohn-Sham orbitals. The table gives their change from
`--scf-conv-tol` 1e-6 and 1e-8 to 1e-11, divided by the last orbital gradient; the larger of the two.

| molecule | basis | functional | E(EXX) | E(RPA) |
|---|---|---|---|---|
"""


def named(molecule: Any) -> Any:
    """What dfmp2 is given."""
    if isinstance(molecule, str):
        return f"{ROOT}/inputs/{molecule}.xyz"
    return molecule


def clocked(work: Callable[[], Any]) -> float:
    """Processor time, s, the shorter of two."""
    spent = []
    for _ in range(2):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return min(spent)


def against(molecule: Any, basis: str, xc: str) -> list[Any]:
    """Differences to PySCF, frequencies and times."""
    kept: dict[str, Any] = {}
    compute = ours.correlation_energy

    def noted(b: Any, *rest: Any) -> Any:
        kept["b"], kept["rest"] = [np.array(one) for one in b], rest
        return compute(b, *rest)

    ours.correlation_energy = noted
    found = dfmp2.run(named(molecule), basis=basis, xc=xc, **EXACT)
    ours.correlation_energy = compute
    finer = dfmp2.run(named(molecule), basis=basis, xc=xc, tolerance=1e-12, **EXACT)
    mole = gto.loads(found.mole_json)
    restricted = found.reference.nspin == 1
    mf = (dft.RKS if restricted else dft.UKS)(mole, xc=xc)
    mf = mf.density_fit(auxbasis=fitting_data(found.molecule, found.scf_fitting))
    mf.conv_tol = 1e-11
    mf.grids = make_grid(mole, found.reference.grid_name)
    mf.kernel(
        dm0=mf.make_rdm1(
            *[
                x if not restricted else x[0]
                for x in (found.reference.mo_coeff, found.reference.mo_occ)
            ]
        )
    )
    theirs = (rpa.RPA if restricted else urpa.URPA)(mf)
    theirs.with_df, theirs.verbose = (
        df.DF(mole, auxbasis=fitting_data(found.molecule, found.mp2_fitting)),
        0,
    )
    eris = theirs.ao2mo()
    theirs.kernel(eris, nw=120)
    differences = found.scf_total_energy - mf.e_tot, found.hf_total_energy - theirs.e_hf
    error = found.correlation_energy - finer.correlation_energy
    difference = finer.correlation_energy - theirs.e_corr
    times = clocked(lambda: compute(kept["b"], *kept["rest"])), clocked(lambda: theirs.kernel(eris))
    said = [f"{x:+.0e}" for x in (*differences, difference)]
    return [
        *said,
        found.quadrature.points,
        f"{error:+.0e}",
        f"{found.quadrature.error:.0e}",
        *(f"{t:.2f}" for t in times),
    ]


def converged(molecule: Any, basis: str, xc: str) -> list[str]:
    """Errors of an SCF that ended early, relative to its gradient."""
    exact = dfmp2.run(named(molecule), basis=basis, xc=xc, tolerance=1e-11, **EXACT)
    ratios = []
    for tolerance in (1e-6, 1e-8):
        loose = {**EXACT, "scf_conv_tol": tolerance}
        found = dfmp2.run(named(molecule), basis=basis, xc=xc, tolerance=1e-11, **loose)
        gradient = found.reference.history[-1, 2]
        changes = (
            found.hf_total_energy - exact.hf_total_energy,
            found.correlation_energy - exact.correlation_energy,
        )
        ratios.append([abs(change) / gradient for change in changes])
    return [f"{max(both):.3f}" for both in zip(*ratios, strict=True)]


def main() -> None:
    """Compute what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=Path("kohn-sham.jsonl"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    lib.num_threads(1)
    if given.rows.exists():
        rows = dict(map(json.loads, given.rows.read_text().splitlines()))
    else:
        rows = {}
    tables = {"against": against, "converged": converged}
    text = dict.fromkeys(tables, "")
    for what, work in tables.items():
        for molecule, basis, xc in CASES:
            name = molecule if isinstance(molecule, str) else molecule.name
            key = f"{what} {name} {basis} {xc}"
            if what != "against" and name in LARGE:
                continue
            if key not in rows:
                rows[key] = work(molecule, basis, xc)
                with given.rows.open("a") as file:
                    file.write(json.dumps([key, rows[key]]) + "\n")
            text[what] += f"| {' | '.join(map(str, [name, basis, xc, *rows[key]]))} |\n"
    import pyscf

    page = HEAD.format(version=pyscf.__version__) + text["against"]
    PAGE.write_text(page + grids.section_of(PAGE) + CONVERGED + text["converged"])


if __name__ == "__main__":
    main()
