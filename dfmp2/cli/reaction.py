"""`dfmp2 reaction`, `interaction` and `cbs`: energies that are combined from several runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dfmp2.cli.help import AnnouncedCommand
from dfmp2.cli.options import (
    ALL,
    Display,
    Given,
    SecondaryOption,
    as_one,
    basis_files,
    one_molecule,
    options_of,
    prepare_libraries,
)
from dfmp2.cli.studies import (
    WORKERS,
    LevelOptions,
    among_workers,
    convergence_option,
    level_options,
    max_steps_option,
    run_study,
    start_workers,
    study_options,
)
from dfmp2.cli.thermochemistry import QUASI_HARMONIC, TEMPERATURE, GasOptions
from dfmp2.errors import InputError, Option
from dfmp2.options import Options

if TYPE_CHECKING:
    from dfmp2.output.study import Study
    from dfmp2.studies.ideal_gas import GasConditions
    from dfmp2.studies.reaction import ReactionPlan
    from dfmp2.studies.species import Reaction

OF_ONE_MOLECULE = ("charge", "multiplicity", "point_charges", "point_charge_units")
# Quantities in the last line: symbol and name.
SHOWN = (("dE", "reaction_energy"), ("dH", "reaction_enthalpy"), ("dG", "reaction_gibbs_energy"))
OF_A_REACTION = tuple(name for name in ALL if name not in OF_ONE_MOLECULE)


@dataclass(frozen=True, slots=True)
class ReactionOptions:
    """The reaction given on the command line."""

    file: str | None
    reactants: str | None
    products: str | None
    charges: str | None
    multiplicities: str | None
    symmetry_numbers: str | None
    transition_states: str | None

    def read(self) -> Reaction:
        """The reaction from the file or from the options.

        Raises
        ------
        InputError : neither or both are given, or the file cannot be read
        """
        from dfmp2.studies.species import Reaction, parse_numbers, parse_terms, read_reaction

        if self.file is not None:
            beside = [name for name in self.__slots__ if name != "file" and getattr(self, name)]
            if beside:
                raise InputError(
                    f"--{beside[0].replace('_', '-')} with {self.file}: the file says what "
                    f"reacts: write {beside[0]} into it, or leave the file out"
                )
            return read_reaction(self.file)
        if self.reactants is None or self.products is None:
            raise InputError(
                "no reaction: name both --reactants and --products, as in --reactants "
                "'ch4.xyz,2*o2.xyz' --products 'co2.xyz,2*h2o.xyz', or a TOML file"
            )
        states = []
        if self.transition_states is not None:
            states = [name.strip() for name in self.transition_states.split(",")]
        return Reaction(
            reactants=parse_terms(self.reactants, Option("reactants")),
            products=parse_terms(self.products, Option("products")),
            charges=parse_numbers(self.charges, Option("charges")),
            multiplicities=parse_numbers(self.multiplicities, Option("multiplicities")),
            symmetry_numbers=parse_numbers(self.symmetry_numbers, Option("symmetry_numbers")),
            transition_states=states,
        )


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What to compute for each species, as given on the command line."""

    optimize: bool
    frequencies: bool
    convergence: str | None
    max_steps: int | None
    allow_gradient: bool

    def plan(self, gas: GasConditions) -> ReactionPlan:
        """The plan for `dfmp2.studies.reaction`."""
        from dfmp2.studies.reaction import make_reaction_plan

        return make_reaction_plan(
            optimize=self.optimize,
            frequencies=self.frequencies,
            convergence=self.convergence,
            max_steps=self.max_steps,
            gas=gas,
            allow_gradient=self.allow_gradient,
        )


@click.command("reaction", cls=AnnouncedCommand)
@click.argument("file", metavar="[REACTION.toml]", required=False)
@click.option(
    "--reactants", metavar="N*FILE,...", help="Files, with coefficients: 2*h2.xyz,o2.xyz."
)
@click.option("--products", metavar="LIST", help="Products, written like the reactants.")
@click.option("--charges", metavar="LIST", help="By file name: oh=-1,na=1.  [default: of files]")
@click.option("--multiplicities", metavar="LIST", help="Multiplicity, 2S+1, by file name: o2=3.")
@click.option(
    "--symmetry-numbers",
    metavar="LIST",
    help="Rotational symmetry, by file name: o2=2.  [default: counted]",
)
@click.option(
    "--transition-states", metavar="LIST", help="Species that --optimize takes to saddle points."
)
@click.option("--optimize", is_flag=True, help="Optimise every geometry first.")
@click.option(
    "--frequencies", is_flag=True, help="Compute Hessians, for enthalpy and Gibbs energy."
)
@convergence_option(
    "Convergence of --optimize.  [default: GAU]", default=None, kind=SecondaryOption
)
@max_steps_option(
    "Limit on the steps of --optimize.  [default: 100]", default=None, kind=SecondaryOption
)
@TEMPERATURE
@click.option(
    "--standard-state",
    type=click.Choice(["1atm", "1bar", "1M"]),
    help="1M is 1 mol/l.  [default: 1atm]",
)
@click.option(
    "--pressure",
    cls=SecondaryOption,
    type=float,
    metavar="PA",
    help="Pressure, instead of --standard-state.",
)
@click.option(
    "--scale",
    cls=SecondaryOption,
    metavar="NUMBER|auto",
    default="1",
    show_default=True,
    help="Factor of the wavenumbers; auto: the published one.",
)
@QUASI_HARMONIC
@click.option(
    "--cutoff",
    cls=SecondaryOption,
    type=float,
    metavar="CM",
    help="Cutoff of --quasi-harmonic, cm^-1.  [default: 100]",
)
@click.option(
    "--allow-gradient",
    cls=SecondaryOption,
    is_flag=True,
    help="Continue even if a gradient is not small.",
)
@WORKERS
@level_options
@options_of(*OF_A_REACTION, basis_required=False)  # known for stored results
@study_options
@as_one("asked", ReactionOptions)
@as_one("computed", PlanOptions)
@as_one("gas", GasOptions)
def reaction_command(
    asked: ReactionOptions,
    computed: PlanOptions,
    gas: GasOptions,
    level: LevelOptions,
    display: Display,
    workers: int | None,
    units: str,
    **options: Any,
) -> None:
    """Energy of a reaction, with --frequencies its enthalpy and Gibbs energy.

    FILE is a molecule as of dfmp2 run, or the .h5 file of a result or of dfmp2 frequencies at the
    same level of theory. REACTION.toml lists reactants and products. Atoms and charge must
    balance. All runs go into one file.
    """
    chosen = None
    prepare_libraries(options["threads"])
    start_workers(workers, options["threads"])
    reaction = asked.read()
    from dfmp2.studies.reaction import reaction_energy, require_basis
    from dfmp2.studies.species import read_species

    if options["basis"] is not None:
        chosen = level.of(Options(**options))
    else:
        source = click.get_current_context().get_parameter_source
        names = [*options, *(field.name for field in fields(level))]
        require_basis(name for name in names if source(name) is ParameterSource.COMMANDLINE)
    plan = computed.plan(gas.conditions())
    species = read_species(reaction, units)
    name = "reaction"
    if asked.file is not None:
        name = asked.file.rpartition("/")[2].removesuffix(".toml")

    def ending(study: Study) -> str:
        differences = []
        for symbol, quantity in SHOWN:
            value = study.values.get(f"{quantity}_kj_per_mol")
            if value is not None:
                differences.append(f"{symbol} = {value.value:.4f}")
        return f"{study.settings['equation']}: {', '.join(differences)} kJ/mol"

    files = {
        "REACTION.toml": asked.file,
        "--scf-from": options["scf_from"],
        **basis_files(options["basis"]),
    }
    terms = (*reaction.reactants, *reaction.products)
    for number, molecule in enumerate(dict.fromkeys(file for _, file in terms), start=1):
        files[f"FILE {number}"] = molecule
    compute = partial(reaction_energy, species, chosen, plan)
    target = display.target(f"{name}.reaction.h5")
    run_study(target, among_workers(compute, workers), ending, display, files)


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
