"""`dfmp2 interaction` and `cbs`: energies of one geometry from several runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import Display, Given, one_molecule
from dfmp2.cli.studies import (
    WORKERS,
    LevelOptions,
    among_workers,
    level_options,
    run_study,
    start_workers,
    study_options,
)

if TYPE_CHECKING:
    from dfmp2.output.study import Study


@click.command("interaction", cls=AnnouncedCommand)
@click.option(
    "--fragments",
    required=True,
    metavar="RANGES|auto",
    help="Atoms of each fragment, from 1: 1-5,6-10 is two fragments, 1-3+7-9,4-6 joins two ranges "
    "in the first; auto: by bonds.",
)
@click.option("--charges", metavar="Q,Q", help="Charge of each fragment.  [default: all 0]")
@click.option(
    "--multiplicities",
    metavar="M,M",
    help="Multiplicity, 2S+1, of each fragment.  [default: all 1]",
)
@WORKERS
@level_options
@one_molecule()
@study_options
def interaction_command(
    given: Given,
    display: Display,
    level: LevelOptions,
    fragments: str,
    charges: str | None,
    multiplicities: str | None,
    workers: int | None,
) -> None:
    """Interaction energy of the fragments of MOLECULE, a file as of dfmp2 run.

    Runs the complex, every fragment in the basis of the complex (the other atoms are ghosts), and
    every fragment in its own basis. All runs go into one file. --charge and --multiplicity are
    those of the complex. --basis may be a pair such as 'aug-cc-pv[tq]z', whose limit is taken;
    --delta 'ccsd(t)/cc-pvdz' adds CCSD(T) - MP2 (see --help-all).
    """
    start_workers(workers, given.options["threads"])
    chosen = level.of(given.chosen())
    from dfmp2.studies.interaction import interaction_energy

    def ending(study: Study) -> str:
        corrected = study.values["cp_corrected_interaction_energy"].value
        kilojoules = study.values["cp_corrected_interaction_energy_kj_per_mol"].value
        return (
            f"counterpoise-corrected interaction energy = {corrected:.10f} Eh = "
            f"{kilojoules:.4f} kJ/mol"
        )

    whole = given.read().molecule
    compute = partial(
        interaction_energy, whole, fragments, chosen, charges=charges, multiplicities=multiplicities
    )
    target = display.target(f"{whole.name}.interaction.h5")
    run_study(target, among_workers(compute, workers), ending, display, given.files)


@click.command("cbs", cls=AnnouncedCommand)
@one_molecule()
@level_options
@study_options
def cbs_command(given: Given, display: Display, level: LevelOptions) -> None:
    """Energy of MOLECULE at the basis set limit, from the two sets that --basis names: --basis
    'cc-pv[tq]z'.

    All runs go into one file. Spin components are extrapolated like the correlation energy;
    --scf-formula and --correlation-formula name other formulas. --delta 'ccsd(t)/cc-pvdz' adds
    CCSD(T) - MP2; then the basis may also be a single one (see --help-all).
    """
    chosen = level.of(given.chosen())
    from dfmp2.studies.cbs import COMPOSITE, basis_set_limit

    def ending(study: Study) -> str:
        composite = study.values.get(COMPOSITE)
        if composite is not None:
            correction = study.values["delta_correction"].value
            return (
                f"E({chosen.correlation.title} + delta CCSD(T)) = {composite.value:.10f} Eh, delta "
                f"= {correction:.10f} Eh"
            )
        total = study.values["cbs_total_energy"].value
        correlation = study.values["cbs_correlation_energy"].value
        return (
            f"E({chosen.correlation.title}, limit) = {total:.10f} Eh, E(corr, limit) = "
            f"{correlation:.10f} Eh"
        )

    whole = given.read().molecule
    compute = partial(basis_set_limit, whole, chosen)
    run_study(display.target(f"{whole.name}.cbs.h5"), compute, ending, display, given.files)
