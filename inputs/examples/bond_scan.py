"""The O-H bond of water stretched: energies, minimum, and the curve as SVG text."""

from pathlib import Path

from dfmp2.molecule.xyz import read_xyz
from dfmp2.options import Options
from dfmp2.output.html.svg import scan_curve
from dfmp2.studies.coordinate import make_coordinate
from dfmp2.studies.scan import along, scan_energies

INPUTS = Path(__file__).resolve().parent.parent

water = read_xyz(INPUTS / "h2o.xyz").molecule
coordinate = make_coordinate("bond", "1,2", "0.90:1.02:7", water)
study = scan_energies(along(water, coordinate, Options(basis="cc-pvdz")))
for distance, energy in zip(study.table["bond_1_2"].values, study.table["mp2_total_energy"].values, strict=True):
    print(f"r(OH) = {distance:.2f} angstrom   E(MP2) = {energy:.8f} Eh")
minimum = study.values["minimum_quartic"]
print(f"minimum at {minimum.value:.4f} {minimum.units}; the curve as SVG has {len(scan_curve(study))} characters")
