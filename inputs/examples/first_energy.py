"""A first DF-MP2 energy: water in cc-pVDZ, stored and read back."""

from pathlib import Path
from tempfile import TemporaryDirectory

import dfmp2

INPUTS = Path(__file__).resolve().parent.parent

result = dfmp2.run(INPUTS / "h2o.xyz", basis="cc-pvdz", frozen_core="auto")
print(f"E(HF)   = {result.scf_total_energy:.10f} Eh")
print(f"E(SS)   = {result.mp2_same_spin_correlation_energy:.10f} Eh")
print(f"E(OS)   = {result.mp2_opposite_spin_correlation_energy:.10f} Eh")
print(f"E(MP2)  = {result.mp2_total_energy:.10f} Eh")
print(f"E(SCS)  = {result.scs_mp2_correlation_energy:.10f} Eh (correlation)")
print(f"fitting sets: {result.scf_fitting.describe()[0]}; {result.mp2_fitting.describe()[0]}")
print(
    f"backend {result.backend}, precision {result.precision}, frozen core orbitals "
    f"{result.sizes.frozen_core}"
)

with TemporaryDirectory() as folder:
    file = Path(folder) / "h2o.dfmp2.h5"
    dfmp2.write(result, file)
    same = dfmp2.read(file).mp2_total_energy == result.mp2_total_energy
print(f"read back: {'the same to the last bit' if same else 'DIFFERENT'}")
