"""The same energy on every backend that can be used here, against NumPy in float64."""

from pathlib import Path

import dfmp2
from dfmp2.errors import BackendError

INPUTS = Path(__file__).resolve().parent.parent

reference = dfmp2.run(INPUTS / "nh3.xyz", basis="cc-pvdz", backend="cpu", precision="fp64")
print(f"{'cpu':<6} {'fp64':<6} E(corr) = {reference.mp2_correlation_energy:.12f} Eh")
for backend in ("cpu", "torch", "cuda", "nki"):
    for precision in ("fp64", "mixed"):
        try:
            result = dfmp2.run(
                INPUTS / "nh3.xyz", basis="cc-pvdz", backend=backend, precision=precision
            )
        except BackendError as refusal:
            print(f"{backend:<6} {precision:<6} not here: {refusal}")
            continue
        difference = result.mp2_correlation_energy - reference.mp2_correlation_energy
        seconds = result.timings.pair_energies
        print(
            f"{backend:<6} {precision:<6} difference {difference:+.1e} Eh, pair energies in "
            f"{seconds:.3f} s"
        )
