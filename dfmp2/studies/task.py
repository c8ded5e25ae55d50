"""The definition of a study: its steps, a function that turns their results into numbers (`Task`),
and forecasts for the steps.

At a composite level (`dfmp2.studies.composite`) a step is several runs; `expanded` makes them and
`wholes` combines their results, so that studies need not know about it.

Forecasts tell before and during the run whether each step is valid and fits into memory, whether
certificates are cheap, and how much time is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from dfmp2.errors import ConvergenceError, Dfmp2Error, InputError, Message, ResourceError
from dfmp2.host.provenance import version
from dfmp2.molecule.frozen_core import FrozenCore
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.composite import Part, combine
from dfmp2.mp2.coupled_cluster import WithCoupledCluster
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.basis_parts import title_of
from dfmp2.options.methods import MP2
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.planning import plan, system
from dfmp2.planning import time as time_plan
from dfmp2.planning.memory import MemoryPlan
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import FLOAT64
from dfmp2.progress import Listener, Relay, Silent
from dfmp2.scf.hartree_fock import reference_kind
from dfmp2.scf.reference import StartOrbitals
from dfmp2.studies.composite import CompositeOptions

Results = Mapping[str, MP2Result]
Failures = Mapping[str, Dfmp2Error]


@dataclass(frozen=True, slots=True)
class CannotBegin:
    """Raises the error of a step whose geometry cannot be made, in place of its run."""

    error: Dfmp2Error

    def __call__(self, *_: Any, **__: Any) -> MP2Result:
        raise self.error


@dataclass(frozen=True, slots=True)
class Step:
    """One calculation of a study; `who` describes it in messages.

    Attributes
    ----------
    start : name of the run whose orbitals its SCF starts from, "" for those of the task
    advice : appended to the reason why it cannot be run
    passing : an auxiliary run: `Task.passed` is applied to it at once, and the previous run is not
        reduced
    compute : function that computes it, None for `Task.compute`
    whole : the step that this run is part of, "" for itself
    part : which of the runs of that step it is
    optimised : whether its result is at a geometry other than that of the step
    """

    name: str
    who: str
    molecule: Molecule
    options: Options
    start: str = ""
    advice: Message = Message()
    passing: bool = False
    compute: WithCoupledCluster | CannotBegin | None = None
    whole: str = ""
    part: Part | None = None
    optimised: bool = False

    @property
    def separate(self) -> bool:
        """Whether the gradient of its E(SCF) counts with another weight than the rest."""
        return self.part is not None and self.part.scf != self.part.correlation


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that a study derives from the runs so far; see `dfmp2.output.study.Study`.

    Attributes
    ----------
    what : replaces `Task.what` in the title; "" to keep it
    """

    settings: Mapping[str, Any]
    notes: Sequence[str]
    values: Mapping[str, Dataset] = field(default_factory=dict)
    table: Mapping[str, Column] = field(default_factory=dict)
    arrays: Mapping[str, Dataset] = field(default_factory=dict)
    what: str = ""


class Unfinished(ConvergenceError):
    """The goal was not reached; the study holds the finished runs, and can be continued with
    `resume`.

    Attributes
    ----------
    study : set by `carry_out`
    """

    study: Study


@dataclass(frozen=True, slots=True)
class Task:
    """A study.

    Attributes
    ----------
    kind : one of `dfmp2.output.study.KINDS`
    what : short description of the molecule
    molecule, options : the molecule of the first step, and the options of every run
    steps : the calculations, in order
    evaluate : function (results, failures, complete) -> numbers
    chained : start every SCF from the converged orbitals of the previous run
    tolerant : record a failed step and continue with the next; otherwise its error ends the study
    start : start orbitals of the first run, None for those named by the options
    then : further steps, in groups of independent steps, from the results so far (which grow);
        raises Unfinished to give up
    compute : function that runs a step, None for `dfmp2.mp2.energy.mp2_energy`
    passed : reduces a run once the next one that is not `Step.passing` is done; None to keep all of
        it
    free : options that may change when an unfinished study is continued, since the numbers agree
        closely enough; a complete one may have runs with several values of them
    chosen : options that the study sets by itself; stored runs may differ in them
    warnings : about the task itself, given before the first run
    question : settings in which a stored study must agree for its runs to be reused; a missing one
        counts as False
    stored : results of steps, by name, taken from another file instead of computed
    """

    kind: str
    what: str
    molecule: Molecule
    options: Options
    steps: Sequence[Step]
    evaluate: Callable[[Results, Failures, bool], Numbers]
    chained: bool = False
    tolerant: bool = False
    start: StartOrbitals | None = None
    then: Callable[[Results], Iterator[Sequence[Step]]] | None = None
    compute: Callable[..., MP2Result] | None = None
    passed: Callable[[MP2Result], MP2Result] | None = None
    free: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    question: Mapping[str, Any] = field(default_factory=dict)
    stored: Mapping[str, MP2Result] = field(default_factory=dict)

    def study(
        self,
        steps: Sequence[Step],
        results: Results,
        failures: Failures,
        command: str,
        warnings: Sequence[str],
        *,
        complete: bool,
    ) -> Study:
        """The study so far, with the `steps` and `warnings` up to now."""
        runs = {step.name: results[step.name] for step in steps if step.name in results}
        complete_steps = wholes(steps, runs)
        failed = {
            step.whole or step.name: failures[step.name] for step in steps if step.name in failures
        }
        numbers = self.evaluate(complete_steps, failed, complete)
        basis = title_of(self.options.basis)
        level = self.options.level_in(basis)
        settings = {"name": self.molecule.name, "basis": basis, **numbers.settings}
        notes = [*self._surroundings(), *numbers.notes]
        if isinstance(self.options, CompositeOptions):
            level = self.options.level
            settings |= self.options.settings()
            of_level = self.options.notes(list(complete_steps.values()))
            notes += [note for note in of_level if note not in notes]
        said = {text for run in runs.values() for text in run.diagnostics.warnings}
        said |= set(numbers.notes)  # which list the failed steps
        return Study(
            kind=self.kind,
            title=f"{numbers.what or self.what}, {level}",
            settings=settings,
            notes=tuple(notes),
            values=numbers.values,
            table=numbers.table,
            arrays=numbers.arrays,
            runs=runs,
            complete=complete,
            version=version(),
            command=command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            warnings=tuple(text for text in dict.fromkeys(warnings) if text not in said),
        )

    def _surroundings(self) -> list[str]:
        """Notes on the surroundings that the molecules of all runs share."""
        notes = []
        if self.options.relativity == "x2c":
            notes.append("relativity in every run: spin-free one-electron X2C")
        charges = self.molecule.point_charges
        if charges is not None:
            notes.append(f"every run in the field of the same {len(charges)} point charges")
        if self.options.solvent is not None:
            notes.append(f"every run in a solvent: {self.options.solvent_title}")
        return notes


def expanded(step: Step) -> list[Step]:
    """The runs of a step: several at a composite level, otherwise itself."""
    if not isinstance(step.options, CompositeOptions):
        return [step]
    runs = []
    for run in step.options.runs:
        start = f"{step.start}-{run.part.name}" if step.start else ""
        runs.append(
            replace(
                step,
                name=f"{step.name}-{run.part.name}",
                who=f"{step.who} in {run.options.basis}",
                options=run.options,
                start=start,
                compute=run.compute,
                whole=step.name,
                part=run.part,
            )
        )
    return runs


def wholes(steps: Sequence[Step], results: Results) -> dict[str, MP2Result]:
    """The results of the requested steps, each combined from its runs.

    Parameters
    ----------
    steps : sequence of Step
        Runs as returned by `expanded`.
    results : mapping
        Results of these runs so far.
    """
    runs: dict[str, list[Step]] = {}
    for step in steps:
        runs.setdefault(step.whole or step.name, []).append(step)
    complete: dict[str, MP2Result] = {}
    for name, parts in runs.items():
        if any(step.name not in results for step in parts):
            continue
        combined = [(step.part, results[step.name]) for step in parts if step.part is not None]
        if combined:
            complete[name] = combine(combined)
        else:
            complete[name] = results[name]
    return complete


# --- forecasts ------------------------------------------------------------------------------------

TRUSTED = 0.3  # fraction of a run after which only its own estimate counts
CONFIRMED = 1.0  # s after which the forecast of all runs counts as confirmed
# bytes by which the first run enlarges a process, beyond what the plan of the next one allows for
GROWTH = 16 * 10**6
# s on one core, predicted with built-in rates, that certificates may add to a study
CERTIFICATES = 5.0


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
            if isinstance(run.compute, WithCoupledCluster):
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
    if options.certify_fit:
        return Certified(as_asked, "fitting errors: measured in every run (--certify-fit)", ())
    if isinstance(options, CompositeOptions):
        return Certified(as_asked, "fitting errors: estimated in every run", ())
    chosen = ("certify_fit",)
    estimated = "fitting errors: estimated; --certify-fit measures them in every run"
    if options.correlation is not MP2 or not _has_certificate(options):
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
    note = "fitting errors: measured in every run with four-centre integrals"
    return Certified(with_certificates, note, chosen)


def _has_certificate(options: Options) -> bool:
    """Whether --certify-fit may be added to the options: not with ROHF, in a solvent, ..."""
    try:
        replace(options, certify_fit=True)
    except InputError:
        return False
    return True


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


def processes(steps: Sequence[Step], task: str, cores: int) -> int:
    """The number of processes that should share independent runs of one study, on `cores` cores."""
    if cores == 1 or len(steps) < 2 or any(step.optimised for step in steps):
        return 1
    try:
        plans = _plans(steps, task)
    except Dfmp2Error:  # the run itself will report the error
        return 1
    return time_plan.process_count(
        [plans[_alike(step)].timings.total for step in steps],
        max(planned.memory.comfortable for planned in plans.values()),
        steps[0].options.memory,
        cores,
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
