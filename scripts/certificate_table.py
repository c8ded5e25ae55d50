"""Pair energies of the same B in float64 and in mixed precision: the certificate's estimate beside the true error.

python scripts/certificate_table.py
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import dfmp2

INPUTS = Path(__file__).parent.parent / "inputs"
CASES = (
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


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| input | E(corr) / Eh | pairs redone | estimate / Eh | true error / Eh |")
    print("|---|---|---|---|---|")
    for name, basis in CASES:
        with tempfile.TemporaryDirectory() as folder:
            prepared = Path(folder) / "b.h5"
            dfmp2.prepare(INPUTS / f"{name}.xyz", basis, prepared, precision="fp64")
            exact = dfmp2.energy(prepared, precision="fp64", backend="cpu")
            mixed = dfmp2.energy(prepared, precision="mixed", tolerance=1e-3, backend="cpu")
        found = mixed.certificate
        if found is None:
            raise SystemExit(f"{name}: a mixed run without a certificate")
        error = abs(mixed.mp2_correlation_energy - exact.mp2_correlation_energy)
        print(
            f"| {name} {basis} | {exact.mp2_correlation_energy:.8f} | {found.sampled} of {found.pairs} "
            f"| {found.correlation_error:.1e} | {error:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
