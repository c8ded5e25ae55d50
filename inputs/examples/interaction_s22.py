"""Interaction energy of the formic acid dimer (S22 no. 3) with counterpoise correction, beside
Psi4's value."""

from pathlib import Path

import dfmp2

INPUTS = Path(__file__).resolve().parent.parent
PSI4 = -0.0224119246  # Eh, Psi4 test dfmp2-1

study = dfmp2.interaction(INPUTS / "formic-acid-dimer.xyz", "cc-pvdz", "1-5,6-10")
print(study)

corrected = study.values["cp_corrected_interaction_energy"].value
raw = study.values["uncorrected_interaction_energy"].value
print(f"counterpoise-corrected {corrected:.10f} Eh, uncorrected {raw:.10f} Eh")
print(f"difference from Psi4: {corrected - PSI4:+.1e} Eh")
