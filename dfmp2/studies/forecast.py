"""Forecasts for the steps of a study, before and during the run: whether each is valid and fits
into memory, whether certificates are cheap, and how much time is left."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from dfmp2.errors import Dfmp2Error, InputError, Message, ResourceError
from dfmp2.molecule.frozen_core import FrozenCore
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.methods import MP2
from dfmp2.planning import plan, system
from dfmp2.planning import time as time_plan
from dfmp2.planning.memory import MemoryPlan
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import FLOAT64
from dfmp2.progress import Listener, Relay, Silent
from dfmp2.scf.hartree_fock import reference_kind
from dfmp2.studies.composite import CompositeOptions
from dfmp2.studies.task import Step, expanded

TRUSTED = 0.3  # fraction of a run after which only its own estimate counts
CONFIRMED = 1.0  # s after which the forecast of all runs counts as confirmed
# bytes by which the first run enlarges a process, beyond what the plan of the next one allows for
GROWTH = 16 * 10**6
# s on one core, predicted with built-in rates, that certificates may add to a study
CERTIFICATES = 5.0
# of the time of a run: the largest share of the SCF iterations with which two processes that take
# turns are faster than the threads of one, since the iterations of one run follow those of another
SHARE_OF_ITERATIONS = 0.65
# s of such runs, predicted without their starts, from which starting the processes (0.6 s) pays off
LEAST_CHAIN = 5.0


def examine_steps(steps: Sequence[Step]) -> list[int]:
    """Frozen core orbitals of each step, after checking everything that its runs would reject.

    Runs of the same atoms with the same options are planned once; each must fit into memory beside
    the results of those before it.

    Raises
    ------
    Dfmp2Error : as from `dfmp2 run`, prefixed with the step's name
    """
    plans: dict[Hashable, tuple[FrozenCore, plan.Plan]] = {}
    stored = 0  # bytes of orbitals and pair energies of the previous runs
    largest: tuple[Step, MemoryPlan] | None = None
    for run in (run for step in steps for run in expanded(step)):
        try:
            if _alike(run) not in plans:
                plans[_alike(run)] = _planned(run)
            planned = plans[_alike(run)][1]
            if run.compute is not None:
                run.compute.require(run.molecule, planned.work, planned.memory.budget)
        except Dfmp2Error as error:
            raise error.prefixed(run.who, _advice(run, error)) from error
        memory = planned.memory
        if stored:
            memory = replace(memory, program=memory.program + stored + GROWTH)
        if largest is None or memory.least > largest[1].least:
            largest = run, memory
        stored += sum(FLOAT64 * (planned.work.nao**2 + 2 * s.nocc**2) for s in planned.work.spins)
    if largest is not None:
        run, memory = largest
        try:
            memory.require()
        except ResourceError as error:
            raise error.prefixed(run.who) from error
    return [plans[_alike(expanded(step)[0])][0].orbitals for step in steps]


def _advice(step: Step, error: Dfmp2Error) -> Message:
    """The advice appended to an error of a step, if its input is wrong."""
    return step.advice if isinstance(error, InputError) else Message()


def _alike(step: Step) -> Hashable:
    """A key that is equal for runs of equal cost."""
    return step.molecule.labels, step.molecule.charge, step.molecule.multiplicity, step.options


@lru_cache(maxsize=32)
def _resolved(molecule: Molecule, options: Options) -> tuple[system.System, FrozenCore]:
    """Basis sets and frozen core of a run, which is planned several times before it begins."""
    resolved = system.resolve(molecule, system.set_up_run(options, ""), Silent())
    return resolved, system.frozen_core(resolved, options, Silent())


def forget_systems() -> None:
    """Forget the planned runs, whose basis sets may be in files that change."""
    _resolved.cache_clear()
    _plan_of.cache_clear()


def _planned(step: Step, task: str = "energy") -> tuple[FrozenCore, plan.Plan]:
    return _plan_of(step.molecule, step.options.settled(step.molecule.multiplicity), task)


@lru_cache(maxsize=32)
def _plan_of(molecule: Molecule, options: Options, task: str) -> tuple[FrozenCore, plan.Plan]:
    """Frozen core and plan of a run."""
    resolved, core = _resolved(molecule, replace(options, certify_fit=False))
    kind = reference_kind(options, molecule.multiplicity)
    return core, plan.make_plan(resolved, system.set_up_run(options, ""), core, kind, task=task)


def _plans(steps: Sequence[Step], task: str) -> dict[Hashable, plan.Plan]:
    """One plan for all runs of equal cost, by `_alike`."""
    different = {_alike(step): step for step in steps}
    return {alike: _planned(step, task)[1] for alike, step in different.items()}


def longest_first(steps: Sequence[Step], task: str) -> list[Step]:
    """Independent runs in the order in which processes that share them finish early."""
    try:
        plans = _plans(steps, task)
    except Dfmp2Error:  # the run itself will report the error
        return list(steps)
    return sorted(steps, key=lambda step: plans[_alike(step)].timings.total, reverse=True)


class Certified(NamedTuple):
    """The steps of a study, with fitting errors measured if that is cheap.

    Attributes
    ----------
    steps : the requested steps, with or without certificates
    note : remark for the report
    chosen : as in Task
    """

    steps: list[Step]
    note: str
    chosen: tuple[str, ...]


def certified(steps: Sequence[Step]) -> Certified:
    """The steps, with fitting certificates if these should take at most CERTIFICATES seconds.

    The prediction ignores this host, so that the same study is certified everywhere, unless a
    certificate does not fit into memory or the method has none.

    Raises
    ------
    Dfmp2Error : as from `dfmp2 run`, prefixed with the name of the step
    """
    as_asked = list(steps)
    options = as_asked[0].options
    if isinstance(options, CompositeOptions):
        return Certified(as_asked, "fitting errors: estimated in every run", ())
    if options.certify_fit:
        return Certified(as_asked, "fitting errors: measured in every run (--certify-fit)", ())
    chosen = ("certify_fit",)
    estimated = "fitting errors: estimated; --certify-fit measures them in every run"
    if options.correlation is not MP2 or options.reference == "rohf" or options.xc is not None:
        return Certified(as_asked, "fitting errors: estimated", chosen)
    with_certificates = [
        replace(step, options=replace(step.options, certify_fit=True)) for step in as_asked
    ]
    costs: dict[Hashable, float] = {}
    total = 0.0
    for step in with_certificates:
        if _alike(step) not in costs:
            costs[_alike(step)] = _certificate_seconds(step)
        total += costs[_alike(step)]
        if total > CERTIFICATES:
            return Certified(as_asked, estimated, chosen)
    note = f"fitting errors: measured in all {len(as_asked)} runs with four-centre integrals"
    return Certified(with_certificates, note, chosen)


def _certificate_seconds(step: Step) -> float:
    """Predicted time of the fitting certificate of a run on one core, s.

    Infinite if the certificate does not fit into memory.

    Raises
    ------
    Dfmp2Error : as from `dfmp2 run`, prefixed with the step's name
    """
    try:
        planned = _planned(step)[1]
    except Dfmp2Error as error:
        raise error.prefixed(step.who, _advice(step, error)) from error
    certificate = planned.certificate
    if certificate is None or not certificate.memory.fits:
        return math.inf
    return time_plan.certificate_seconds(
        planned.work, certificate.dense, certificate.rows, len(planned.work.spins), Rates()
    )


def processes(steps: Sequence[Step], task: str, cores: int, *, chained: bool) -> int:
    """The number of processes that should share runs of one study, on `cores` cores.

    Parameters
    ----------
    chained : whether the SCF of each run starts from the orbitals of the one before
    """
    if cores == 1 or len(steps) < 2 or any(step.optimised for step in steps):
        return 1
    try:
        plans = _plans(steps, task)
    except Dfmp2Error:  # the run itself will report the error
        return 1
    if chained and not _take_turns([plans[_alike(step)] for step in steps]):
        return 1
    return time_plan.process_count(
        [plans[_alike(step)].timings.total for step in steps],
        max(planned.memory.comfortable for planned in plans.values()),
        steps[0].options.memory,
        cores,
    )


def _take_turns(plans: Sequence[plan.Plan]) -> bool:
    """Whether two processes should take turns with a chain of runs."""
    seconds = math.fsum(planned.timings.total - planned.rates.start for planned in plans)
    return seconds >= LEAST_CHAIN and all(
        planned.timings.scf - planned.pace.integrals <= SHARE_OF_ITERATIONS * planned.timings.total
        for planned in plans
    )


class Series(Relay):
    """Adds the time of the remaining runs to the time left for the current one.

    Forecasts are scaled by the ratio of actual to predicted seconds, measured for previous runs and
    estimated for the current one, whose estimate gains weight as it proceeds. `task` is what every
    run computes, as in `dfmp2.planning.plan.make_plan`.
    """

    def __init__(self, listener: Listener, steps: Sequence[Step], task: str) -> None:
        super().__init__(listener)
        self._measured = self._predicted = CONFIRMED
        self._begun = self._present = 0.0  # start of the current run, its forecast
        costs: dict[Hashable, float] = {}
        self._waiting: dict[str, float] = {}  # s, by the name of the step
        for step in steps:
            if _alike(step) not in costs:
                try:
                    costs[_alike(step)] = _planned(step, task)[1].timings.total
                except Dfmp2Error:  # the run itself will report the error
                    costs[_alike(step)] = 0.0
            self._waiting[step.name] = costs[_alike(step)]

    def begin(self, name: str) -> None:
        """Begin a run, after reporting the time left."""
        self._begun, self._present = time.perf_counter(), self._waiting.pop(name, 0.0)
        self.time_left(None)

    def end(self, result: MP2Result) -> None:
        """End the current run."""
        self._measured += result.timings.total
        self._predicted += result.predicted.total

    def stage(self, text: str) -> None:
        """Forward a stage of a run, as one of several runs."""
        self.substage(text)

    def time_left(self, seconds: float | None) -> None:
        """As in Listener."""
        elapsed = time.perf_counter() - self._begun
        whole = self._present * self._measured / self._predicted
        trust = 1.0  # weight of the run's own estimate
        if whole:
            trust = min(1.0, elapsed / (TRUSTED * whole))
        if seconds is not None:
            seconds = trust * seconds + (1 - trust) * max(0.0, whole - elapsed)
        elif whole > elapsed:
            seconds = whole - elapsed
        if seconds is not None:
            ratio = (self._measured + elapsed + seconds) / (self._predicted + self._present)
            seconds += ratio * sum(self._waiting.values())
        super().time_left(seconds)
