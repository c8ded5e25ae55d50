"""Correlation energy of water in cc-pVDZ, TZ and QZ, and its limit from pairs of them (X^-3)."""

from pathlib import Path

import dfmp2

INPUTS = Path(__file__).resolve().parent.parent

energies = {}
for bracket in ("cc-pv[dt]z", "cc-pv[tq]z"):
    study = dfmp2.cbs(INPUTS / "h2o.xyz", bracket, frozen_core="auto")
    for name, run in study.runs.items():
        energies[name] = run.mp2_correlation_energy
    energies[f"limit {bracket}"] = study.values["cbs_mp2_correlation_energy"].value

for name in ("cc-pvdz", "cc-pvtz", "cc-pvqz", "limit cc-pv[dt]z", "limit cc-pv[tq]z"):
    print(f"{name:<18} E(corr) = {energies[name]:.8f} Eh")
print(study.notes[1])
