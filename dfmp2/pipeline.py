"""One DF-MP2 calculation from a molecule to a result; reads as the method section of a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dfmp2.agreement import same_backend, same_threads, sharing
from dfmp2.case import Settled, opened
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import InputError
from dfmp2.molecule import Molecule
from dfmp2.options import Options, make_options
from dfmp2.planning import make_plan, settle_backend
from dfmp2.progress import Collector, Listener, Stopwatch
from dfmp2.ranks.team import ALONE, Team
from dfmp2.record import StartOrbitals
from dfmp2.reference import mean_field, stability
from dfmp2.reference.adopt import adopt, require_repeatable
from dfmp2.reference.fitting_sets import with_errors
from dfmp2.reference.shield import import_pyscf
from dfmp2.result import MP2Result
from dfmp2.stages import converge, correlated, fitted
from dfmp2.system import Setup, System, assemble, frozen_core, prepare, resolve


def run(
    molecule: Molecule,
    options: Options,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.run",
    journal: Journal | None = None,
    team: Team = ALONE,
    doubt_units: bool = True,
) -> MP2Result:
    """DF-MP2 energy of one molecule.

    Parameters
    ----------
    molecule, options : what to compute and how
    start : start orbitals of the SCF, None for those of options.guess
    listener : receives progress and warnings
    command : stored in the provenance
    journal : saves what is done, and may hold what a run that was stopped has done
    team : ranks that share the work and call this together; start, listener and journal are those of rank 0
    doubt_units : as in `dfmp2.system.resolve`

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`; nothing is written by this function but by the journal
    """
    listener = Collector(listener or Listener())
    clock = Stopwatch()
    options = options.settled(molecule.multiplicity)
    setup = same_threads(prepare(options, command, sharing=team.local), team)
    system = resolve(molecule, setup, listener, doubt_units=doubt_units)
    kind = mean_field.reference_kind(options, molecule.multiplicity)
    settle = partial(_settle, system, kind, listener, team=team)
    with opened(system, setup, kind, settle, listener, clock, journal or Journal(), start, team=team) as case:
        reference = converge(case, kind, start)
        tensors = fitted(case, reference)
        return correlated(case, tensors)


def run_mean_field(
    converged: Any, auxbasis: str | None, given: Mapping[str, Any], listener: Listener | None = None
) -> MP2Result:
    """The MP2 step alone, on a mean field the user converged with PySCF."""
    import_pyscf()
    listener = Collector(listener or Listener())
    clock = Stopwatch()
    found = adopt(converged)
    reference = found.reference
    of_the_scf = ("basis", "reference", "relativity", "scf", "scf_auxbasis", "guess", "scf_from", "scf_starts")
    fixed = {*of_the_scf, "scf_max_cycles"} & set(given)
    if fixed:
        raise InputError(f"{sorted(fixed)[0]} belongs to the SCF, which has already been done: leave it out")
    if given.get("stability") == "follow":
        raise InputError(
            "stability follow converges the SCF again, which has already been done: follow it in PySCF "
            "(mf.stability()), or give full, auto or off"
        )
    options = make_options(
        **{"stability": "off", **given, "auxbasis": auxbasis},
        basis=found.orbital.name,
        reference=reference.kind,
        relativity=found.relativity,
        scf=reference.scf_type,
    )
    jk = found.jk
    if jk is not None:
        jk = with_errors(jk, found.orbital, allow_poor=options.allow_poor_fit)
    setup = prepare(options, "dfmp2.from_mean_field")
    system = assemble(found.molecule, found.orbital, jk, setup, listener)
    settle = partial(_settle, system, reference.kind, listener, scf=False)
    with opened(system, setup, reference.kind, settle, listener, clock, Journal()) as case:
        require_repeatable(converged, found, system.mole, system.jk_auxmole)
        if options.stability == "full":
            reference = replace(reference, stability=stability.full_stability(converged))
        return correlated(case, fitted(case, reference))


def _settle(
    system: System, kind: str, listener: Collector, setup: Setup, *, scf: bool = True, team: Team = ALONE
) -> Settled:
    """Frozen core, backend and memory of a calculation in one piece, with or without its SCF."""
    core = frozen_core(system, setup.options, listener)
    setup = same_backend(settle_backend(setup, system, core, kind), team)
    plan = make_plan(system, setup, core, kind, scf=scf and team.rank == 0, sharing=sharing(team))
    plan.memory.require()
    return core, setup, plan
