"""`dfmp2 plan`: what a run would need, and whether it fits, without running it."""

from __future__ import annotations

from typing import Any

import click

from dfmp2 import threads as thread_settings
from dfmp2.cli.calculation import calculation_options
from dfmp2.cli.console import Console
from dfmp2.resources import usable_cores


@click.command("plan", short_help="Predict memory, operations and time of a run.")
@click.argument("molecule")
@calculation_options
@click.option("--calibrate", is_flag=True, help="Measure this host's rates and the scratch folder's again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    molecule: str,
    charge: int | None,
    multiplicity: int | None,
    units: str,
    point_charges: str | None,
    point_charge_units: str,
    calibrate: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict what `dfmp2 run MOLECULE` with the same options would need.

    Rates are measured on this host at the first use (a few seconds) and kept. The exit code is 0
    whether the run fits or not: the verdict is in the output.
    """
    from dfmp2.options import Options

    chosen = Options(**options)
    thread_settings.set_environment(chosen.threads or usable_cores())
    from dfmp2 import planning
    from dfmp2.io import plan as text
    from dfmp2.io.point_charges import read_point_charges
    from dfmp2.io.xyz import read_xyz

    read = read_xyz(molecule, units=units, charge=charge, multiplicity=multiplicity)
    whole = read.molecule.in_field(read_point_charges(point_charges, point_charge_units))
    outlook = planning.foresee(whole, chosen, Console(quiet=as_json, log=None), calibrate=calibrate)
    click.echo(text.to_json(outlook) if as_json else text.to_text(outlook), nl=False)
