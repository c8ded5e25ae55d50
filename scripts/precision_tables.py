"""Tables of what reduced precision costs, as Markdown, from SCFs and pair energies of the inputs.

python scripts/precision_tables.py certificate   # mixed pair energies of the same B: the estimate, the true error
python scripts/precision_tables.py exchange      # SCFs begun with float32 exchange against float64 ones
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import dfmp2
from dfmp2.mp2.result import MP2Result

INPUTS = Path(__file__).resolve().parents[1] / "inputs"
PAIRS = (
    ("h2o", "cc-pvdz"),
    ("nh2", "cc-pvdz"),
    ("o2", "cc-pvdz"),
    ("glycine", "cc-pvdz"),
    ("formic-acid-dimer", "cc-pvdz"),
    ("ch2i2", "def2-svp"),
    ("benzene", "cc-pvtz"),
    ("water-10", "cc-pvdz"),
    ("water-8", "cc-pvtz"),
)
SCFS = (("water-8", "cc-pvdz"), ("benzene", "cc-pvtz"), ("glycine", "cc-pvtz"), ("water-8", "cc-pvtz"))
CONVERGED = (1e-10, 1e-12)  # Eh: the default, and an orbital gradient ten times smaller


def energies(name: str, basis: str, scf: str, *pairs: str, scf_conv_tol: float = 1e-10) -> list[MP2Result]:
    """Results of one SCF in the precision `scf` and pair energies in each of `pairs`."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "b.h5"
        dfmp2.prepare(INPUTS / f"{name}.xyz", basis, prepared, precision=scf, scf_conv_tol=scf_conv_tol)
        return [dfmp2.energy(prepared, precision=precision, tolerance=1e-3, backend="cpu") for precision in pairs]


def certificate() -> None:
    """Pair energies of the same B in float64 and in mixed precision: the certificate's estimate, the true error."""
    print("| input | E(corr) / Eh | pairs redone | estimate / Eh | true error / Eh |")
    print("|---|---|---|---|---|")
    for name, basis in PAIRS:
        exact, mixed = energies(name, basis, "fp64", "fp64", "mixed")
        found = mixed.certificate
        if found is None:
            raise SystemExit(f"{name}: a mixed run without a certificate")
        error = abs(mixed.mp2_correlation_energy - exact.mp2_correlation_energy)
        print(
            f"| {name} {basis} | {exact.mp2_correlation_energy:.8f} | {found.sampled} of {found.pairs} "
            f"| {found.correlation_error:.1e} | {error:.1e} |",
            flush=True,
        )


def exchange() -> None:
    """E(SCF) and E(corr) of SCFs begun with float32 exchange against pure float64 ones, pair energies in float64."""
    print("| input | scf-conv-tol / Eh | iterations: float64, begun in float32 | dE(SCF) / Eh | dE(corr) / Eh |")
    print("|---|---|---|---|---|")
    for name, basis in SCFS:
        for tolerance in CONVERGED:
            [exact] = energies(name, basis, "fp64", "fp64", scf_conv_tol=tolerance)
            [begun] = energies(name, basis, "auto", "fp64", scf_conv_tol=tolerance)
            print(
                f"| {name} {basis} | {tolerance:.0e} | {exact.reference.cycles}, {begun.reference.cycles} "
                f"| {begun.scf_total_energy - exact.scf_total_energy:.0e} "
                f"| {begun.mp2_correlation_energy - exact.mp2_correlation_energy:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    table = {"certificate": certificate, "exchange": exchange}.get(" ".join(sys.argv[1:]))
    if table is None:
        raise SystemExit(__doc__)
    warnings.simplefilter("ignore")
    table()
