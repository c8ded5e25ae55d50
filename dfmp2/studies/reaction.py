"""Energies of a reaction at one level of theory, and its thermochemistry if there are Hessians.

    X(reaction) = sum_products n X - sum_reactants n X          X: E, E + zero-point energy, H, S, G

Every species is run once. With `optimize` each is first optimised to a stationary point; with
`frequencies` its Hessian is computed by differences of gradients (`dfmp2.studies.frequencies`). The
species advance in parallel, so that their runs can be distributed among processes:

    LABEL                     the energy, at the given or optimised geometry
    LABEL:step-003            of an optimisation
    LABEL:plus-001-x          of a Hessian; of a search for a saddle point, that of its first geometry
    LABEL:hessian-plus-001-x  of the Hessian of the saddle point that was found
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, Unpack

from dfmp2.errors import Command, InputError, Option
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.energy import mp2_energy
from dfmp2.mp2.identity import method, method_differences, method_of
from dfmp2.mp2.result import MP2Result
from dfmp2.options import OF_THE_MACHINE, Options
from dfmp2.options.basis_parts import common_basis, for_elements, require_elements, with_contents
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import MOST_RUNS, Column, Study
from dfmp2.progress import Listener
from dfmp2.studies.composite import CompositeOptions
from dfmp2.studies.frequencies import gradient_alone
from dfmp2.studies.geometric_search import Search
from dfmp2.studies.ideal_gas import ROOM, GasConditions, without_gas
from dfmp2.studies.interaction import PARTS, in_units, precision_error, require_cancelling
from dfmp2.studies.runs import CarryOutKeywords, carry_out
from dfmp2.studies.species import Species, SpeciesCourse, equation
from dfmp2.studies.species_results import (
    SpeciesResult,
    find_result,
    notes_on_gas,
    notes_on_modes,
    omitted_modes,
)
from dfmp2.studies.task import Failures, Numbers, Results, Step, Task, certified, examine_steps
from dfmp2.studies.thermochemistry import scale_factor
from dfmp2.studies.vibrations import masses

OF_A_GAS = {  # value of a species -> name and description of its difference
    "total_energy_at_0_kelvin": ("reaction_energy_at_0_kelvin", "with zero-point energies"),
    "enthalpy": ("reaction_enthalpy", "enthalpy"),
    "gibbs_energy": ("reaction_gibbs_energy", "Gibbs energy"),
}


@dataclass(frozen=True, slots=True)
class ReactionPlan:
    """What to compute for each species.

    Attributes
    ----------
    optimize : Search or None
        How geometries are optimised; None to keep the given ones.
    frequencies : bool
        Whether to compute Hessians.
    gas : GasConditions
        Conditions for species with Hessians; a single temperature and pressure.
    allow_gradient : bool
        Continue at geometries that are not stationary points.
    """

    optimize: Search | None = None
    frequencies: bool = False
    gas: GasConditions = ROOM
    allow_gradient: bool = False

    def __post_init__(self) -> None:
        self.gas.require_single("a reaction")


ENERGIES = ReactionPlan()


def make_reaction_plan(
    *,
    optimize: bool,
    frequencies: bool,
    convergence: str | None,
    max_steps: int | None,
    gas: GasConditions,
    allow_gradient: bool,
) -> ReactionPlan:
    """The plan from options as people write them.

    Parameters
    ----------
    convergence, max_steps
        As in `Search`; None for the usual ones.

    Raises
    ------
    InputError : an option without the one that it belongs to
    """
    given = {"convergence": convergence, "max_steps": max_steps}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    search = None
    if optimize:
        search = Search(**settings)
    else:
        for name, value in settings.items():
            raise _without_effect(Option(name, value), Option("optimize", True))
    if allow_gradient and not frequencies:
        raise _without_effect(Option("allow_gradient", True), Option("frequencies", True))
    return ReactionPlan(search, frequencies, gas, allow_gradient)


def _without_effect(option: Option, owner: Option) -> InputError:
    """The error for an option without the one that it belongs to."""
    return InputError(option, " belongs to ", owner, ": add it, or leave this out")


def reaction_energy(
    species: Sequence[Species],
    options: Options | None,
    plan: ReactionPlan,
    **how: Unpack[CarryOutKeywords],
) -> Study:
    """Energies of a reaction.

    Parameters
    ----------
    species : as from `dfmp2.studies.species.read_species`
    options : options of every run; None if every species is a stored result
    how : as in `dfmp2.studies.runs.carry_out`

    Returns
    -------
    Study whose values are `reaction_energy`, also with the prefixes of
    `dfmp2.studies.interaction.PARTS`, and with Hessians `reaction_energy_at_0_kelvin`,
    `reaction_enthalpy`, `reaction_gibbs_energy` (Eh, and with `_kj_per_mol` and `_kcal_per_mol`)
    and `reaction_entropy` (J/(mol K)); its table has a row for each species, and its arrays are
    `LABEL_hessian`, `LABEL_wavenumbers` and `LABEL_geometry`

    Raises
    ------
    Unfinished : an optimisation did not converge
    Dfmp2Error : errors that can be detected in advance, before any run; then that of a failed run
    """
    asked = options is not None
    options = _common_options(species, options)
    _require_comparable(options, species, plan, asked=asked)
    courses = [
        SpeciesCourse(one, options, plan, how.get("listener") or Listener()) for one in species
    ]
    steps = [course.first for course in courses]
    stored = {one.label: one.stored.result for one in species if one.stored is not None}
    computed = [step for step in steps if step.name not in stored]
    _require_same_core(species, steps, stored)
    note = ""
    chosen: tuple[str, ...] = ()
    energies_alone = plan.optimize is None and not plan.frequencies
    if energies_alone and not stored:
        steps, note, chosen = certified(steps)
    elif computed:
        _require_room(courses)

    def then(results: Results) -> Iterator[Sequence[Step]]:
        ways = [course.then(results) for course in courses]
        while ways:
            group: list[Step] = []
            going = []
            for way in ways:
                following = next(way, None)
                if following is not None:
                    group += following
                    going.append(way)
            ways = going
            if group:
                yield group

    def evaluate(results: Results, _failures: Failures, complete: bool) -> Numbers:
        return _numbers(courses, plan, results, note, complete=complete)

    task = Task(
        kind="reaction",
        what=f"reaction {equation(species)}",
        molecule=species[0].molecule,
        options=options,
        steps=steps,
        evaluate=evaluate,
        chosen=chosen,
        stored=stored,
    )
    if not energies_alone:
        for course in courses:
            course.require_gradient()
        free = ("precision", "tolerance")  # affect only pair energies; amplitudes are in float64
        task = replace(task, then=then, compute=_gradient, free=free)
    return carry_out(task, **how)


def _gradient(
    molecule: Molecule, options: Options, *, separate: bool = False, **rest: Any
) -> MP2Result:
    """The result of a run with its gradient, `separate` as in `mp2_gradient`; for an atom, which
    has none, only its energy."""
    if molecule.natom == 1:
        return mp2_energy(molecule, options, **rest)
    return gradient_alone(molecule, options, separate=separate, **rest)


# --- input checks --------------------------------------------------------------------------------


def _common_options(species: Sequence[Species], options: Options | None) -> Options:
    """The options of the command, or of the first stored result if there is nothing to compute."""
    if options is not None:
        require_elements(
            options.basis, [symbol for one in species for symbol in one.molecule.elements]
        )
        return options
    stored = []
    for one in species:
        if one.stored is None:
            raise InputError(
                f"{one.label} is to be computed, and no ",
                Option("basis"),
                " is named: name one, such as ",
                Option("basis", "cc-pvdz"),
            )
        stored.append(one.stored.result.options)
    basis = common_basis(options.basis for options in stored)
    if basis is None:
        return stored[0]
    return replace(stored[0], basis=basis)


def require_basis(options: Iterable[str]) -> None:
    """Raise for options of a calculation without its basis, which would have no effect.

    Parameters
    ----------
    options : names of the given options

    Raises
    ------
    InputError : naming the first of them
    """
    known = {field.name for field in fields(CompositeOptions)} - set(OF_THE_MACHINE)
    for name in options:
        if name in known:
            raise InputError(
                Option(name),
                " says how species are computed, and without ",
                Option("basis"),
                " none is: name the basis, or leave it out",
            )


def _require_comparable(
    options: Options, species: Sequence[Species], plan: ReactionPlan, *, asked: bool
) -> None:
    """Raise for options under which errors of the molecules do not cancel, and for stored results
    at different levels of theory or, if `asked`, at a different level from the options."""
    require_cancelling(options, "the species of a reaction")
    all_stored = all(one.stored is not None for one in species)
    if plan.optimize is not None and all_stored:
        raise InputError(
            Option("optimize", True),
            ": every species is a stored result, whose geometry stays as it is: leave it out, or "
            "name the files of their geometries",
        )
    geometries = plan.optimize is not None or plan.frequencies
    if isinstance(options, CompositeOptions) and options.delta is not None and geometries:
        raise InputError(
            Option("delta", options.delta),
            " has no gradient: leave it out, or ",
            Option("optimize", True),
            " and ",
            Option("frequencies", True),
        )
    methods: dict[str, dict[str, str]] = {}
    by_options = method_of(options)
    if asked and all_stored:
        methods["the options"] = by_options
    for one in species:
        methods[one.label] = by_options
        if one.stored is not None:
            methods[one.label] = _method_of_stored(one.stored.result, options)
    different = method_differences(methods)
    if different:
        raise InputError(
            f"species of different levels of theory, {different}: compute all of them at one level"
        )
    _require_hessians(options, species, plan)


def _method_of_stored(result: MP2Result, options: Options) -> dict[str, str]:
    """The method of a stored result, with the basis of the options if it is their part for this
    molecule."""
    its = method(result)
    if its["basis"] == with_contents(for_elements(options.basis, result.molecule.elements)):
        its["basis"] = with_contents(options.basis)
    return its


def _require_hessians(options: Options, species: Sequence[Species], plan: ReactionPlan) -> None:
    """Raise if thermochemistry lacks a stored Hessian, a scale factor or a mass, or was not asked
    for beside its conditions."""
    stored = [one.stored for one in species if one.stored is not None]
    _require_sought(species, plan)
    if not plan.frequencies and all(one.hessian is None for one in stored):
        why = (
            "no species has a Hessian: add ",
            Option("frequencies", True),
            ", or leave it out",
        )
        plan.gas.require_usual(why)
        for one in species:
            if one.symmetry is not None:
                number = Option("symmetry_numbers", f"{one.label}={one.symmetry}")
                raise without_gas(number, why)
        return
    for one in species:
        without = one.stored is not None and one.stored.hessian is None
        if plan.frequencies and without and one.molecule.natom > 1:
            raise InputError(
                f"{one.label} is a stored energy without a Hessian: name its file of ",
                Command("frequencies"),
                ", or its geometry",
            )
    scale_factor(plan.gas.scale, options.correlation.name, options.basis, options.frozen_core)
    for one in species:
        masses(one.molecule)


def _require_sought(species: Sequence[Species], plan: ReactionPlan) -> None:
    """Raise for a transition state that is neither searched for nor known by its Hessian."""
    for one in species:
        if one.stored is None:
            has_effect = plan.optimize is not None or plan.frequencies
        else:
            has_effect = one.stored.hessian is not None
        if one.transition_state and not has_effect:
            raise InputError(
                Option("transition_states", one.label),
                " belongs to ",
                Option("optimize", True),
                " or ",
                Option("frequencies", True),
                ", and neither is done for it: add one, or leave this out",
            )


def _require_same_core(
    species: Sequence[Species], steps: Sequence[Step], stored: Mapping[str, MP2Result]
) -> None:
    """Check every run, and raise if the frozen cores do not balance."""
    computed = [step for step in steps if step.name not in stored]
    counts = examine_steps(computed) if computed else []
    cores = {step.name: count for step, count in zip(computed, counts, strict=True)}
    total = Fraction(0)
    for one, step in zip(species, steps, strict=True):
        core = cores.get(step.name)
        if core is None:
            core = stored[one.label].sizes.frozen_core
        total += one.coefficient * core
    if total:
        raise InputError(
            Option("frozen_core", steps[0].options.frozen_core),
            " freezes different numbers of orbitals on the two sides: they do not cancel; name "
            "another dialect, or none",
        )


def _require_room(courses: Sequence[SpeciesCourse]) -> None:
    runs = sum(course.least_runs for course in courses)
    if runs > MOST_RUNS:
        raise InputError(
            f"these species take {runs} runs and more, and a study holds at most {MOST_RUNS}: "
            "compute species by ",
            Command("frequencies"),
            " of their own, and name their .h5 files",
        )


# --- numbers --------------------------------------------------------------------------------------


def _numbers(
    courses: Sequence[SpeciesCourse],
    plan: ReactionPlan,
    results: Results,
    note: str,
    *,
    complete: bool,
) -> Numbers:
    known = any(course.has_hessian for course in courses)
    lacking = [
        course.species.label
        for course in courses
        if not course.has_hessian and course.species.molecule.natom > 1
    ]
    gas = not lacking and (plan.frequencies or known)
    settings: dict[str, Any] = {
        "equation": equation([course.species for course in courses]),
        "optimized": plan.optimize is not None,
        "species": [_about(course) for course in courses],
    }
    notes = [text for text in (note,) if text]
    if gas:
        settings |= {
            "temperature": plan.gas.temperature,
            "pressure": plan.gas.pressure,
            "standard_state": plan.gas.standard_state,
            "quasi_harmonic": plan.gas.low_modes.treatment,
        }
    if not complete:
        return Numbers(settings, notes)
    found = [find_result(course, plan.gas, results, gas=gas) for course in courses]
    notes += _notes(found, plan, gas=gas)
    if lacking and known:
        notes.append(f"no enthalpy and no Gibbs energy: {', '.join(lacking)} without a Hessian")
    return Numbers(
        settings=settings,
        notes=notes,
        values=_values(found, plan, gas=gas),
        table=_table(found, gas=gas),
        arrays=_arrays(found, plan),
    )


def _about(course: SpeciesCourse) -> dict[str, Any]:
    """A species as stored in the settings."""
    species = course.species
    return {
        "name": species.label,
        "coefficient": float(species.coefficient),
        "formula": species.molecule.formula,
        "charge": species.molecule.charge,
        "multiplicity": species.molecule.multiplicity,
        "transition_state": species.transition_state,
        "stored": species.stored is not None,
        "run": course.final,
    }


def _difference(found: Sequence[SpeciesResult], values: Sequence[float | None]) -> float:
    """Products minus reactants; NaN if a species has no such value."""
    parts = [
        math.nan if value is None else one.weight * value
        for one, value in zip(found, values, strict=True)
    ]
    return math.fsum(parts)


def _values(found: Sequence[SpeciesResult], plan: ReactionPlan, *, gas: bool) -> dict[str, Dataset]:
    values: dict[str, Dataset] = {}
    for prefix, (words, energy) in PARTS.items():
        difference = _difference(found, [energy(one.result) for one in found])
        if not math.isnan(difference):
            about = f"{words}, products less reactants"
            values |= in_units(f"{prefix}reaction_energy", difference, about)
    if gas:
        about_gas = f"ideal gas at {plan.gas.temperature:g} K and {plan.gas.pressure:g} Pa"
        for name, (of_reaction, words) in OF_A_GAS.items():
            parts = [float(one.values[name].value) for one in found]
            about = words
            if name != "total_energy_at_0_kelvin":
                about = f"{words}, {about_gas}"
            values |= in_units(of_reaction, _difference(found, parts), about)
        entropies = [float(one.values["entropy"].value) for one in found]
        values["reaction_entropy"] = Dataset(
            _difference(found, entropies), "J/(mol K)", f"entropy, {about_gas}"
        )
    return values | precision_error((one.weight, one.result) for one in found)


def _table(found: Sequence[SpeciesResult], *, gas: bool) -> dict[str, Column]:
    """A row for each species, reactants first."""

    def value(name: str) -> list[float]:
        return [float(one.values[name].value) for one in found]

    molecules = [one.result.molecule for one in found]
    table = {
        "species": Column([one.species.label for one in found], "", "its name"),
        "coefficient": Column([one.weight for one in found], "", "negative: a reactant"),
        "formula": Column([molecule.formula for molecule in molecules], "", "its atoms"),
        "charge": Column([float(molecule.charge) for molecule in molecules], "", "of it"),
        "multiplicity": Column(
            [float(molecule.multiplicity) for molecule in molecules], "", "2S+1"
        ),
        "total_energy": Column(
            [one.result.total_energy for one in found], "hartree", "total energy"
        ),
    }
    if gas:
        about = "of an ideal gas"
        table |= {
            "zero_point_energy": Column(value("zero_point_energy"), "hartree", "of vibrations"),
            "enthalpy": Column(value("enthalpy"), "hartree", about),
            "entropy": Column(value("entropy"), "J/(mol K)", about),
            "gibbs_energy": Column(value("gibbs_energy"), "hartree", about),
            "symmetry_number": Column(
                [float(one.symmetry) for one in found], "", "rotations onto itself"
            ),
            "imaginary_modes": Column(
                [float(len(omitted_modes(one))) for one in found], "", "left out of the gas"
            ),
        }
    return table


def _arrays(found: Sequence[SpeciesResult], plan: ReactionPlan) -> dict[str, Dataset]:
    arrays: dict[str, Dataset] = {}
    for one in found:
        label = one.species.label
        if one.hessian is not None and one.wavenumbers is not None:
            about = f"second derivatives of the energy of {label} (3 natom, 3 natom)"
            arrays[f"{label}_hessian"] = Dataset(one.hessian, "hartree/bohr^2", about)
            about = f"of {label}, negative where imaginary (n)"
            arrays[f"{label}_wavenumbers"] = Dataset(one.wavenumbers, "cm^-1", about)
        if plan.optimize is not None and one.species.stored is None:
            about = f"positions of the atoms of {label} (natom, 3)"
            arrays[f"{label}_geometry"] = Dataset(one.result.molecule.coordinates, "bohr", about)
    return arrays


def _notes(found: Sequence[SpeciesResult], plan: ReactionPlan, *, gas: bool) -> list[str]:
    """What the numbers are, and what to know of each species."""
    notes = ["products minus reactants: negative if energy is released"]
    if plan.optimize is not None:
        notes.append(f"geometries optimised to {plan.optimize.convergence.upper()}")
    for one in found:
        if one.species.stored is not None:
            notes.append(f"{one.species.label} is a stored result, computed before")
        if one.hessian is not None and one.wavenumbers is not None:
            notes += notes_on_modes(one)
    if gas:
        notes += notes_on_gas(found, plan.gas)
    return notes
