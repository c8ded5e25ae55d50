"""The O-H bond of water stretched: energies, minimum, and the curve as SVG text."""

from pathlib import Path

import dfmp2
from dfmp2.output.drawings.studies import scan_curve

INPUTS = Path(__file__).resolve().parent.parent

study = dfmp2.scan(INPUTS / "h2o.xyz", "cc-pvdz", ("bond", "1,2", "0.90:1.02:7"))
for distance, energy in zip(
    study.table["bond_1_2"].values, study.table["mp2_total_energy"].values, strict=True
):
    print(f"r(OH) = {distance:.2f} angstrom   E(MP2) = {energy:.8f} Eh")
minimum = study.values["minimum_quartic"]
print(
    f"minimum at {minimum.value:.4f} {minimum.units}; the curve as SVG has "
    f"{len(scan_curve(study))} characters"
)
