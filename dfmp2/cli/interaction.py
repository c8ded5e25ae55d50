"""`dfmp2 interaction`: counterpoise-corrected and uncorrected interaction energies of fragments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dfmp2.cli.calculation import calculation_options
from dfmp2.cli.console import Console
from dfmp2.cli.delivery import command_line
from dfmp2.cli.output import Display
from dfmp2.cli.study import chosen_options, run_study, study_options


@click.command("interaction", short_help="Interaction energy of fragments, with counterpoise correction.")
@click.argument("molecule")
@click.option(
    "--fragments",
    required=True,
    metavar="RANGES",
    help="Atoms of each fragment, from 1: 1-5,6-10 is two fragments, 1-3+7-9,4-6 joins two ranges in the first.",
)
@click.option("--charges", metavar="Q,Q", help="Charge of each fragment.  [default: all 0]")
@click.option("--multiplicities", metavar="M,M", help="2S+1 of each fragment.  [default: all 1]")
@calculation_options
@study_options
def command(
    molecule: str,
    fragments: str,
    charges: str | None,
    multiplicities: str | None,
    charge: int | None,
    multiplicity: int | None,
    units: str,
    point_charges: str | None,
    point_charge_units: str,
    display: Display,
    **options: Any,
) -> None:
    """Interaction energy of the fragments of MOLECULE, an xyz file or - for standard input.

    Runs the complex, every fragment in the basis of the complex (the other atoms are ghosts), and every fragment in
    its own basis. All runs go into one file. --charge and --multiplicity are those of the complex.
    """
    chosen = chosen_options(options)
    from dfmp2.io.point_charges import read_point_charges
    from dfmp2.io.study import Study
    from dfmp2.io.xyz import read_xyz
    from dfmp2.studies.interaction import interaction_energy
    from dfmp2.studies.keeper import Keeper

    field = read_point_charges(point_charges, point_charge_units)
    whole = read_xyz(molecule, units=units, charge=charge, multiplicity=multiplicity).molecule.in_field(field)

    def compute(keeper: Keeper, console: Console) -> Study:
        return interaction_energy(
            whole,
            fragments,
            chosen,
            charges=charges,
            multiplicities=multiplicities,
            keeper=keeper,
            listener=console,
            command=command_line(),
        )

    def ending(study: Study) -> str:
        corrected = study.values["cp_corrected_interaction_energy"].value
        kilojoules = study.values["cp_corrected_interaction_energy_kj_per_mol"].value
        return (
            f"dfmp2 finished: counterpoise-corrected interaction energy = {corrected:.10f} Eh = {kilojoules:.4f} kJ/mol"
        )

    target = Path(display.output or f"{whole.name}.interaction.h5")
    run_study(compute, target, display, (molecule, *([] if point_charges is None else [point_charges])), ending=ending)
