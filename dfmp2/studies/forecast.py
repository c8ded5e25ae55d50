"""What the steps of a study will take, before and while they run: whether each can be run and fits
into memory, whether certificates cost little, and how long is left."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dfmp2.errors import Dfmp2Error, InputError, ResourceError
from dfmp2.errors.messages import Message
from dfmp2.molecule.frozen_core import FrozenCore
from dfmp2.mp2.result import MP2Result
from dfmp2.options.methods import MP2
from dfmp2.planning import plan, system
from dfmp2.planning import time as time_plan
from dfmp2.planning.memory import FLOAT64, MemoryPlan
from dfmp2.planning.rates import Rates
from dfmp2.progress import Listener, Relay, Silent
from dfmp2.scf.hartree_fock import reference_kind
from dfmp2.studies.composite import CompositeOptions
from dfmp2.studies.task import Step, expanded

TRUSTED = 0.3  # of a run: from there on what it says of itself counts alone
CONFIRMED = 1.0  # s by which the forecast of all runs counts as confirmed
# bytes by which a process grows with its first run, beyond what the plan of the next one credits
GROWTH = 16 * 10**6
# s of one core, predicted with built-in rates: what certificates may add to a study
CERTIFICATES = 10.0


def examine_steps(steps: Sequence[Step]) -> list[int]:
    """Frozen core orbitals of each step, after everything that its runs would be refused for has
    been looked at.

    Runs of the same atoms with the same options are planned once; each must fit into memory beside
    the results of those before it.

    Raises
    ------
    Dfmp2Error : what `dfmp2 run` would say, with the step's name in front
    """
    plans: dict[Hashable, tuple[FrozenCore, plan.Plan]] = {}
    stored = 0  # bytes of orbitals and pair energies of the runs before
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
    """What is said behind an error of a step: its advice, where its input is wrong."""
    if isinstance(error, InputError):
        return step.advice
    return Message()


def _alike(step: Step) -> Hashable:
    """What runs that cost the same have in common."""
    return step.molecule.labels, step.molecule.charge, step.molecule.multiplicity, step.options


def _planned(step: Step, task: str = "energy") -> tuple[FrozenCore, plan.Plan]:
    options = step.options.settled(step.molecule.multiplicity)
    setup = system.set_up_run(options, "")
    resolved = system.resolve(step.molecule, setup, Silent())
    kind = reference_kind(options, step.molecule.multiplicity)
    core = system.frozen_core(resolved, options, Silent())
    return core, plan.make_plan(resolved, setup, core, kind, task=task)


class Certified(NamedTuple):
    """The steps of a study whose fitting errors are measured where that costs little.

    Attributes
    ----------
    steps : those that were asked for, with certificates or without
    note : what is said of it in the report
    chosen : as of Task
    """

    steps: list[Step]
    note: str
    chosen: tuple[str, ...]


def certified(steps: Sequence[Step]) -> Certified:
    """The steps with fitting certificates, where these are to take CERTIFICATES seconds at most.

    The prediction knows nothing of this host, so that the same study is certified everywhere; it
    is not where a certificate does not fit into memory, or where the method has none.

    Raises
    ------
    Dfmp2Error : what `dfmp2 run` would say of a step, with its name in front
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
    note = (
        f"fitting errors: measured in all {len(as_asked)} runs with four-centre integrals, which "
        "costs little here"
    )
    return Certified(with_certificates, note, chosen)


def _certificate_seconds(step: Step) -> float:
    """Predicted time of the fitting certificate of a run on one core, s.

    Infinite where the certificate does not fit into memory.

    Raises
    ------
    Dfmp2Error : what `dfmp2 run` would say, with the step's name in front
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


class Series(Relay):
    """Adds the time of the runs to come to what is left of the present one.

    Forecasts are scaled with the ratio of measured to predicted seconds of the runs before, and of
    the present one as it is expected now; its own estimate counts more and more while it goes on.
    `task` is what every run computes, as of `dfmp2.planning.plan.make_plan`.
    """

    def __init__(self, listener: Listener, steps: Sequence[Step], task: str) -> None:
        super().__init__(listener)
        self._measured = self._predicted = CONFIRMED
        self._begun = self._present = 0.0  # when the present run began, its forecast
        costs: dict[Hashable, float] = {}
        self._waiting: dict[str, float] = {}  # s, by the name of the step
        for step in steps:
            if _alike(step) not in costs:
                try:
                    costs[_alike(step)] = _planned(step, task)[1].timings.total
                except Dfmp2Error:  # the run itself will say what is wrong
                    costs[_alike(step)] = 0.0
            self._waiting[step.name] = costs[_alike(step)]

    def begin(self, name: str) -> None:
        """A run begins; says what is left before it does."""
        self._begun, self._present = time.perf_counter(), self._waiting.pop(name, 0.0)
        self.time_left(None)

    def end(self, result: MP2Result) -> None:
        """It has ended."""
        self._measured += result.timings.total
        self._predicted += result.predicted.total

    def stage(self, text: str) -> None:
        """Pass a stage of a run on as one among those of others."""
        self.substage(text)

    def time_left(self, seconds: float | None) -> None:
        """As of Listener."""
        elapsed = time.perf_counter() - self._begun
        whole = self._present * self._measured / self._predicted
        trust = 1.0  # in what the run says of itself
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
