"""SCFs of the inputs begun with float32 exchange against float64 ones, as a Markdown table.

python scripts/exchange_precision.py
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import dfmp2
from dfmp2.mp2.result import MP2Result

INPUTS = Path(__file__).resolve().parents[1] / "inputs"
SCFS = (
    ("water-8", "cc-pvdz"),
    ("benzene", "cc-pvtz"),
    ("glycine", "cc-pvtz"),
    ("water-8", "cc-pvtz"),
)
CONVERGED = (1e-10, 1e-12)  # Eh: the default, and an orbital gradient ten times smaller


def energies(name: str, basis: str, scf: str, scf_conv_tol: float) -> MP2Result:
    """The result of an SCF in the precision `scf`, with pair energies in float64."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "b.h5"
        dfmp2.prepare(
            INPUTS / f"{name}.xyz", basis, prepared, precision=scf, scf_conv_tol=scf_conv_tol
        )
        return dfmp2.energy(prepared, precision="fp64", backend="cpu")


def exchange() -> None:
    """E(SCF) and E(corr) of SCFs begun with float32 exchange against pure float64 ones, pair energies in float64."""
    print(
        "| input | scf-conv-tol / Eh | iterations: float64, begun in float32 | dE(SCF) / Eh | dE(corr) / Eh |"
    )
    print("|---|---|---|---|---|")
    for name, basis in SCFS:
        for tolerance in CONVERGED:
            exact = energies(name, basis, "fp64", tolerance)
            begun = energies(name, basis, "auto", tolerance)
            print(
                f"| {name} {basis} | {tolerance:.0e} | {exact.reference.cycles}, {begun.reference.cycles} "
                f"| {begun.scf_total_energy - exact.scf_total_energy:.0e} "
                f"| {begun.mp2_correlation_energy - exact.mp2_correlation_energy:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    exchange()
