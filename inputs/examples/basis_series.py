"""Correlation energy of water in cc-pVDZ, TZ and QZ, and its limit from pairs of them (X^-3)."""

from pathlib import Path

from dfmp2.molecule.xyz import read_xyz
from dfmp2.options import Options
from dfmp2.studies.cbs import basis_set_limit

INPUTS = Path(__file__).resolve().parent.parent

water = read_xyz(INPUTS / "h2o.xyz").molecule
energies = {}
for bracket in ("cc-pv[dt]z", "cc-pv[tq]z"):
    study = basis_set_limit(water, Options(basis=bracket, frozen_core="auto"))
    for name, run in study.runs.items():
        energies[name] = run.mp2_correlation_energy
    energies[f"limit {bracket}"] = study.values["cbs_mp2_correlation_energy"].value

for name in ("cc-pvdz", "cc-pvtz", "cc-pvqz", "limit cc-pv[dt]z", "limit cc-pv[tq]z"):
    print(f"{name:<18} E(corr) = {energies[name]:.8f} Eh")
print(study.notes[1])
