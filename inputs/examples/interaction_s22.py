"""Interaction energy of the formic acid dimer (S22 no. 3) with counterpoise correction, beside Psi4's value."""

from pathlib import Path

from dfmp2.molecule.xyz import read_xyz
from dfmp2.options import Options
from dfmp2.output.text import study_report
from dfmp2.studies.interaction import interaction_energy

INPUTS = Path(__file__).resolve().parent.parent
PSI4 = -0.0224119246  # Eh, Psi4 test dfmp2-1

dimer = read_xyz(INPUTS / "formic-acid-dimer.xyz").molecule
study = interaction_energy(dimer, "1-5,6-10", Options(basis="cc-pvdz"))
print(study_report(study))

corrected = study.values["cp_corrected_interaction_energy"].value
raw = study.values["uncorrected_interaction_energy"].value
print(f"counterpoise-corrected {corrected:.10f} Eh, uncorrected {raw:.10f} Eh")
print(f"difference from Psi4: {corrected - PSI4:+.1e} Eh")
