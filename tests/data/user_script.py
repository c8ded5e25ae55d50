"""What a user may write, with ten mistakes that a type checker finds: each line that ends in `#
wrong`."""

from pathlib import Path

import dfmp2

water = dfmp2.Molecule.from_string("O 0 0 0; H 0 0 0.96; H 0.93 0 -0.24")
result = dfmp2.run(
    water, basis="cc-pvdz", frozen_core="auto", memory="8GB", precision="fp64", threads=2
)
energy: float = result.mp2_total_energy
dfmp2.run(water, basis="cc-pvdz", frozen_cor="auto")  # wrong
dfmp2.run(water, basis="cc-pvdz", frozen_core="atuo")  # wrong
dfmp2.run(water, basis="cc-pvdz", scf="density-fitted")  # wrong
dfmp2.run(water, basis="cc-pvdz", method="mp3")  # wrong
dfmp2.run(water, basis="cc-pvdz", threads="two")  # wrong
dfmp2.run(["water.xyz"], basis="cc-pvdz")  # wrong
print(result.mp2_totl_energy)  # wrong

forces = -dfmp2.gradient(Path("water.xyz"), "cc-pvdz", units="bohr", os_scale=1.3).gradient
study = dfmp2.scan(
    "water.xyz", "cc-pvdz", ("bond", "1,2", [0.9, 1.0, 1.1]), output="scan.h5", resume=True
)
print(study.table["bond_1_2"].values, study.to_dataframe(), forces)
dfmp2.interaction(water, "cc-pvdz", [[1, 2], ["3"]])  # wrong
dfmp2.prepare(water, "cc-pvdz", "water.prepared.h5", os_scale=1.3)  # wrong
dfmp2.energy("water.prepared.h5", frozen_core="auto")  # wrong


class Progress(dfmp2.Listener):
    """Prints what is done."""

    def stage(self, text: str) -> None:
        """Print a stage."""
        print(text)


try:
    found = dfmp2.batch(
        ["a.xyz", water], "cc-pvdz", Path("results"), workers=2, listener=Progress()
    )
    print(found["a"].correlation_energy, dfmp2.plan(water, "cc-pvqz").to_dict())
except dfmp2.ConvergenceError as error:
    print(error.exit_code)
