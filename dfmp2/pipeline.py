"""One DF-MP2 calculation from a molecule to a result; reads as the method section of a paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dfmp2 import threads
from dfmp2.agreement import require_common_scratch, same_backend, same_plan, same_threads, sharing
from dfmp2.case import Case
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import InputError
from dfmp2.identity import identity
from dfmp2.molecule import Molecule
from dfmp2.options import Options, make_options
from dfmp2.planning import make_plan, prepare_programs, settle_backend
from dfmp2.progress import Collector, Listener, Stopwatch
from dfmp2.ranks.team import ALONE, Team
from dfmp2.record import StartOrbitals
from dfmp2.reference import mean_field, stability
from dfmp2.reference.adopt import adopt
from dfmp2.reference.shield import import_pyscf
from dfmp2.result import MP2Result
from dfmp2.stages import converge, correlated, fitted, scratch_space
from dfmp2.system import Setup, System, assemble, frozen_core, prepare, resolve, useful_threads


def run(
    molecule: Molecule,
    options: Options,
    *,
    start: StartOrbitals | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.run",
    journal: Journal | None = None,
    team: Team = ALONE,
) -> MP2Result:
    """DF-MP2 energy of one molecule.

    Parameters
    ----------
    molecule, options : what to compute and how
    start : start orbitals of the SCF, None for atomic densities
    listener : receives progress and warnings
    command : stored in the provenance
    journal : saves what is done, and may hold what a run that was stopped has done
    team : ranks that share the work and call this together; start, listener and journal are those of rank 0

    Raises
    ------
    Dfmp2Error : see `dfmp2.errors`; nothing is written by this function but by the journal
    """
    listener = Collector(listener or Listener())
    clock = Stopwatch()
    setup = same_threads(prepare(options, command, sharing=team.local), team)
    system = resolve(molecule, setup, listener)
    kind = mean_field.reference_kind(options.reference, molecule.multiplicity)
    with opened(system, setup, kind, listener, clock, journal or Journal(), start, team=team) as case:
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
    molecule, orbital, jk, reference = adopt(converged)
    fixed = {"basis", "reference", "scf", "scf_auxbasis", "scf_from", "scf_max_cycles"} & set(given)
    if fixed:
        raise InputError(f"{sorted(fixed)[0]} belongs to the SCF, which has already been done: leave it out")
    options = make_options(
        **{"stability": "off", **given, "auxbasis": auxbasis},
        basis=orbital.name,
        reference=reference.kind,
        scf=reference.scf_type,
    )
    setup = prepare(options, "dfmp2.from_mean_field")
    system = assemble(molecule, orbital, jk, setup, listener)
    with opened(system, setup, reference.kind, listener, clock, Journal(), scf=False) as case:
        if options.stability == "full":
            reference = replace(reference, stability=stability.full_stability(converged))
        return correlated(case, fitted(case, reference))


@contextmanager
def opened(
    system: System,
    setup: Setup,
    kind: str,
    listener: Collector,
    clock: Stopwatch,
    journal: Journal,
    start: StartOrbitals | None = None,
    *,
    scf: bool = True,
    team: Team = ALONE,
) -> Iterator[Case]:
    """Settle backend, frozen core and memory, begin or go on, and hold threads and scratch space meanwhile.

    Parameters
    ----------
    kind : "rhf" or "uhf"
    scf : whether the SCF is a part of the calculation
    team : ranks that share the work

    Raises
    ------
    Dfmp2Error : whatever can be refused before a number is computed
    """
    setup = useful_threads(setup, system)
    with threads.limited(setup.active):
        core = frozen_core(system, setup.options, listener)
        setup = same_backend(settle_backend(setup, system, core, kind), team)
        plan = make_plan(system, setup, core, kind, scf=scf and team.rank == 0, sharing=sharing(team))
        plan.memory.require()
        prepare_programs(setup, plan.work, listener)
        journal.begin(identity(system, setup, core, kind, start), listener)
        plan = same_plan(plan, journal, listener, team)
        with scratch_space(plan, setup, listener, team) as space:
            require_common_scratch(plan, space, team)
            yield Case(system, setup, core, plan, space, listener, clock, journal, team)
