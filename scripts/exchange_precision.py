"""E(SCF) and E(corr) of SCFs begun with float32 exchange against pure float64 ones, pair energies in float64: markdown.

python scripts/exchange_precision.py
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import dfmp2
from dfmp2.result import MP2Result

INPUTS = Path(__file__).parent.parent / "inputs"
CASES = (("water-8", "cc-pvdz"), ("benzene", "cc-pvtz"), ("glycine", "cc-pvtz"), ("water-8", "cc-pvtz"))
CONVERGED = (1e-10, 1e-12)  # Eh: the default, and an orbital gradient ten times smaller


def calculated(name: str, basis: str, precision: str, tolerance: float) -> MP2Result:
    """The result of an SCF in this precision, with pair energies in float64."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "b.h5"
        dfmp2.prepare(INPUTS / f"{name}.xyz", basis, prepared, precision=precision, scf_conv_tol=tolerance)
        return dfmp2.energy(prepared, precision="fp64")


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| input | scf-conv-tol / Eh | iterations: float64, begun in float32 | dE(SCF) / Eh | dE(corr) / Eh |")
    print("|---|---|---|---|---|")
    for name, basis in CASES:
        for tolerance in CONVERGED:
            exact, begun = (calculated(name, basis, precision, tolerance) for precision in ("fp64", "auto"))
            print(
                f"| {name} {basis} | {tolerance:.0e} | {exact.reference.cycles}, {begun.reference.cycles} "
                f"| {begun.scf_total_energy - exact.scf_total_energy:.0e} "
                f"| {begun.mp2_correlation_energy - exact.mp2_correlation_energy:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
