"""`dfmp2 cbs`: the energy at the limit of a complete basis set, from two basis sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dfmp2.cli.calculation import calculation_options
from dfmp2.cli.console import Console
from dfmp2.cli.delivery import command_line
from dfmp2.cli.output import Display
from dfmp2.cli.study import chosen_options, run_study, study_options

SCF_FORMULAS = ["largest", "exponential", "karton-martin", "exp-sqrt", "power", "neese-valeev"]
CORRELATION_FORMULAS = ["helgaker", "truhlar", "neese-valeev"]


@click.command("cbs", short_help="Energy at the basis set limit from two basis sets.")
@click.argument("molecule")
@calculation_options
@click.option(
    "--scf-formula",
    type=click.Choice(SCF_FORMULAS),
    default="largest",
    show_default=True,
    help="Hartree-Fock limit: energy in the larger basis, exp(-1.63 X), (X+1) exp(-9 sqrt X), exp(-6.3 sqrt X), "
    "X^-3.4, exp(-alpha sqrt X) with alpha of the family.",
)
@click.option(
    "--correlation-formula",
    type=click.Choice(CORRELATION_FORMULAS),
    help="Correlation limit: X^-3, X^-2.2, X^-beta of the family.  [default: helgaker; neese-valeev for def2]",
)
@study_options
def command(
    molecule: str,
    charge: int | None,
    multiplicity: int | None,
    units: str,
    point_charges: str | None,
    point_charge_units: str,
    scf_formula: str,
    correlation_formula: str | None,
    display: Display,
    **options: Any,
) -> None:
    """Energy of MOLECULE at the basis set limit, from the two sets that --basis names: --basis 'cc-pv[tq]z'.

    Both runs go into one file. Spin components are extrapolated like the correlation energy.
    """
    chosen = chosen_options(options)
    from dfmp2.io.point_charges import read_point_charges
    from dfmp2.io.study import Study
    from dfmp2.io.xyz import read_xyz
    from dfmp2.studies.cbs import basis_set_limit
    from dfmp2.studies.keeper import Keeper

    field = read_point_charges(point_charges, point_charge_units)
    whole = read_xyz(molecule, units=units, charge=charge, multiplicity=multiplicity).molecule.in_field(field)

    def compute(keeper: Keeper, console: Console) -> Study:
        return basis_set_limit(
            whole,
            chosen,
            scf=scf_formula,
            correlation=correlation_formula,
            keeper=keeper,
            listener=console,
            command=command_line(),
        )

    def ending(study: Study) -> str:
        total, correlation = (study.values[f"cbs_mp2_{name}_energy"].value for name in ("total", "correlation"))
        return f"dfmp2 finished: E(MP2, limit) = {total:.10f} Eh, E(corr, limit) = {correlation:.10f} Eh"

    target = Path(display.output or f"{whole.name}.cbs.h5")
    run_study(compute, target, display, (molecule, *([] if point_charges is None else [point_charges])), ending=ending)
