"""The runs of a study, one after the other, each kept and written as soon as it is done.

A study is its steps and a function that makes numbers of their results (`Task`); all else is here.
Steps that follow from results, as those of an optimisation, come group by group (`Task.then`);
stored ones are recalled as they come, so that a study which goes on takes the same way again. One
stopped half way leaves a file with status "incomplete" and its finished runs in it, and beside it
the state of the run it was at; started again, those are not repeated. (Killed without notice the
file may lack the last of many runs quicker than its writing.)

While the file grows:

    x.scan.h5               every finished run, written anew as a whole, status "incomplete" until the last one
    x.scan.h5.checkpoint    the present run (`dfmp2.output.checkpoint`); its identity names run and start

One process at a time: the lock of the file is held as long as the study goes on.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from dfmp2.errors import (
    ConvergenceError,
    DeviceFault,
    Dfmp2Error,
    DiskFull,
    ForeignCheckpoint,
    InputError,
    Interrupted,
    ResourceError,
    ResultFileError,
)
from dfmp2.errors.messages import Message, Option
from dfmp2.host.files import OUTPUT, require_writable
from dfmp2.host.locks import locked
from dfmp2.host.provenance import blas_and_kernels, version
from dfmp2.host.resources import usable_cores
from dfmp2.molecule.frozen_core import FrozenCore
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2 import energy
from dfmp2.mp2.calculation import NOTHING, Checkpoint, State
from dfmp2.mp2.composite import Part, combine
from dfmp2.mp2.coupled_cluster import WithCoupledCluster
from dfmp2.mp2.identity import changed, question
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.basis_parts import title_of
from dfmp2.options.methods import MP2
from dfmp2.output.checkpoint import FileCheckpoint, checkpoint_of, found_beside, remove
from dfmp2.output.hdf5 import start_of
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import (
    MOST_RUNS,
    Column,
    Study,
    StudyWriter,
    is_unfinished,
    read_study,
)
from dfmp2.planning import plan, system
from dfmp2.planning import time as time_plan
from dfmp2.planning.memory import FLOAT64
from dfmp2.planning.rates import Rates
from dfmp2.progress import Collector, Listener, Relay, Silent
from dfmp2.scf.hartree_fock import reference_kind
from dfmp2.scf.reference import StartOrbitals
from dfmp2.studies.composite import CompositeOptions

TRUSTED = 0.3  # of a run: from there on what it says of itself counts alone
CONFIRMED = 1.0  # s by which the forecast of all runs counts as confirmed
LATER = (
    16 * 10**6
)  # bytes by which a process grows with its first run, beyond what the plan of the next one credits
# bohr; what rounding on another machine changes of a geometry that follows from results
NEAR = 1e-6
# s of one core, predicted with built-in rates: what certificates may add to a study
CERTIFICATES = 10.0
REST = 5.0  # pause after writing the file, in units of the time that took
# Errors that are not the step's own: the next step would meet them as well, or they concern the
# whole study.
OF_THE_STUDY = (ForeignCheckpoint, DeviceFault, DiskFull)


@dataclass(frozen=True, slots=True)
class Step:
    """One calculation of a study; `who` describes it to people, and so in errors.

    Attributes
    ----------
    start : the run whose orbitals its SCF starts from, "" for those of the task
    advice : what is said behind the reason why it cannot be run
    passing : a run beside the way of the study: `Task.passed` is applied to it at once, and the run
        before stays whole
    compute : what computes it, None for `Task.compute`
    whole : the step that it is a run of, "" for itself
    part : which of its runs
    optimised : its result is at another geometry than that of the step
    """

    name: str
    who: str
    molecule: Molecule
    options: Options
    start: str = ""
    advice: Message = Message()
    passing: bool = False
    compute: WithCoupledCluster | None = None
    whole: str = ""
    part: Part | None = None
    optimised: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a study makes of the runs so far; see `dfmp2.output.study.Study`.

    Attributes
    ----------
    what : in the title in place of `Task.what`, "" for that
    """

    settings: Mapping[str, Any]
    notes: Sequence[str]
    values: Mapping[str, Dataset] = field(default_factory=dict)
    table: Mapping[str, Column] = field(default_factory=dict)
    arrays: Mapping[str, Dataset] = field(default_factory=dict)
    what: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """A step as another process computes it.

    Attributes
    ----------
    compute : as of Task; a function of a module
    start : start orbitals of its SCF
    tolerant : return the error of the step in place of its result
    """

    step: Step
    compute: Callable[..., MP2Result]
    start: StartOrbitals | None
    command: str
    tolerant: bool = False


Results = Mapping[str, MP2Result]
Failures = Mapping[str, Dfmp2Error]
Elsewhere = Callable[
    [Sequence[Unit]], Iterable[tuple[Step, MP2Result | Dfmp2Error]]
]  # in the order in which they are done


class CarryOutKeywords(TypedDict, total=False):
    """The keywords of `carry_out`, which every study takes."""

    keeper: Keeper | None
    listener: Listener | None
    command: str
    elsewhere: Elsewhere | None


class Unfinished(ConvergenceError):
    """What was looked for is not reached; the study holds what was computed, and goes on with
    `resume`.

    Attributes
    ----------
    study : set by `carry_out`
    goes_on : whether `resume` can change anything
    """

    study: Study
    goes_on: bool = True


@dataclass(frozen=True, slots=True)
class Task:
    """A study.

    Attributes
    ----------
    kind : one of `dfmp2.output.study.KINDS`
    what : of which molecule, in a few words
    molecule, options : the molecule of the first step, and how every run is made
    steps : what to compute, in this order
    evaluate : results, failures, whether that is all -> numbers
    chained : start every SCF from the converged orbitals of the run before
    tolerant : a step that fails is recorded and the next one goes on; else its error ends the study
    start : start orbitals of the first run, None for those that the options name
    then : the steps after those, in groups whose steps do not need each other, from the results so
        far (which grow); raises Unfinished where it gives up
    compute : a run of a step, None for `dfmp2.mp2.energy.mp2_energy`
    passed : what is left of a run when the next one that is not `Step.passing` is done, None for
        all of it
    free : options that may be others where an unfinished study goes on, since the numbers agree to
        what it needs
    chosen : options that the study sets by itself: stored runs may have others
    warnings : what is wrong with the question itself, said before the first run
    question : settings that a stored study must agree in for its runs to be taken; one that it
        lacks counts as False
    stored : results of steps, by name, that another file holds and that are not computed
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
        """The study as far as it has come; `steps` and `warnings` are those so far."""
        runs = {step.name: results[step.name] for step in steps if step.name in results}
        failed = {step.whole or name: failures[name] for name, step in steps_named(steps, failures)}
        found, molecule = self.evaluate(wholes(steps, runs), failed, complete), self.molecule
        charges = molecule.point_charges
        if charges is None:
            common = []
        else:
            common = [f"every run in the field of the same {len(charges)} point charges"]
        if self.options.solvent is not None:
            common.append(f"every run in a solvent: {self.options.solvent_title}")
        if self.options.relativity == "x2c":
            common.insert(0, "relativity in every run: spin-free one-electron X2C")
        basis = title_of(self.options.basis)
        of_runs = {text for run in runs.values() for text in run.diagnostics.warnings}
        kept = of_runs.union(found.notes)  # failed steps are listed among the notes
        level = f"{self.options.correlation.level}/{basis}"
        settings = {"name": molecule.name, "basis": basis, **found.settings}
        notes = [*common, *found.notes]
        if isinstance(self.options, CompositeOptions):
            level = self.options.level
            settings |= self.options.settings()
            of_level = self.options.notes(list(wholes(steps, runs).values()))
            notes += [note for note in of_level if note not in notes]
        return Study(
            kind=self.kind,
            title=f"{found.what or self.what}, {level}",
            settings=settings,
            notes=tuple(notes),
            values=found.values,
            table=found.table,
            arrays=found.arrays,
            runs=runs,
            complete=complete,
            version=version(),
            command=command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            warnings=tuple(text for text in dict.fromkeys(warnings) if text not in kept),
        )


def steps_named(steps: Sequence[Step], names: Iterable[str]) -> list[tuple[str, Step]]:
    """The steps of these names, with them."""
    known = {step.name: step for step in steps}
    return [(name, known[name]) for name in names if name in known]


def expanded(step: Step) -> list[Step]:
    """The runs of a step: several at a composite level, else itself."""
    if not isinstance(step.options, CompositeOptions):
        return [step]
    runs = []
    for run in step.options.runs:
        start = ""
        if step.start:
            start = f"{step.start}-{run.part.name}"
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
    """The results of the steps that were asked for, each of all its runs.

    Parameters
    ----------
    steps : sequence of Step
        As `expanded` has made them.
    results : mapping
        Of these steps, as far as there are any.
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


def examine_steps(steps: Sequence[Step]) -> list[int]:
    """Frozen core orbitals of each step, after everything that its runs would be refused for has
    been looked at.

    Runs of the same atoms with the same options are planned once; each must fit into memory beside
    the results of those before it.

    Raises
    ------
    Dfmp2Error : what `dfmp2 run` would say, with the step's name in front
    """
    asked, steps = steps, [run for step in steps for run in expanded(step)]
    plans: dict[Hashable, tuple[FrozenCore, plan.Plan]] = {}
    kept, needed = 0, []
    for step in steps:
        try:
            if _alike(step) not in plans:
                plans[_alike(step)] = _planned(step)
            if step.compute is not None:
                planned = plans[_alike(step)][1]
                step.compute.require(step.molecule, planned.work, planned.memory.budget)
        except Dfmp2Error as error:
            if isinstance(error, InputError):
                advice = step.advice
            else:
                advice = Message()
            raise error.prefixed(step.who, advice) from error
        work, memory = plans[_alike(step)][1].work, plans[_alike(step)][1].memory
        needed.append(
            (step, replace(memory, program=memory.program + kept + (LATER if kept else 0)))
        )
        kept += sum(
            FLOAT64 * (work.nao**2 + 2 * s.nocc**2) for s in work.spins
        )  # orbitals, pair energies
    step, most = max(needed, key=lambda pair: pair[1].least)
    try:
        most.require()
    except ResourceError as error:
        raise error.prefixed(step.who) from error
    return [plans[_alike(expanded(step)[0])][0].orbitals for step in asked]


def _alike(step: Step) -> Hashable:
    """What runs that cost the same have in common."""
    return step.molecule.labels, step.molecule.charge, step.molecule.multiplicity, step.options


def _planned(step: Step, task: str = "energy") -> tuple[FrozenCore, plan.Plan]:
    options = step.options.settled(step.molecule.multiplicity)
    setup = system.set_up_run(options, "")
    found = system.resolve(step.molecule, setup, Silent())
    kind = reference_kind(options, step.molecule.multiplicity)
    core = system.frozen_core(found, options, Silent())
    return core, plan.make_plan(found, setup, core, kind, task=task)


class Certified(NamedTuple):
    """The steps of a study whose fitting errors are measured where that costs little.

    Attributes
    ----------
    steps : those that were given, with certificates or without
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
    given = list(steps)
    options = given[0].options
    if isinstance(options, CompositeOptions):
        return Certified(given, "fitting errors: estimated in every run", ())
    if options.certify_fit:
        return Certified(given, "fitting errors: measured in every run (--certify-fit)", ())
    chosen = ("certify_fit",)
    estimated = "fitting errors: estimated; --certify-fit measures them in every run"
    if options.correlation is not MP2 or options.reference == "rohf" or options.xc is not None:
        return Certified(given, "fitting errors: estimated", chosen)
    with_certificates = [
        replace(step, options=replace(step.options, certify_fit=True)) for step in given
    ]
    costs: dict[Hashable, float] = {}
    total = 0.0
    for step in with_certificates:
        if _alike(step) not in costs:
            costs[_alike(step)] = _certificate_seconds(step)
        total += costs[_alike(step)]
        if total > CERTIFICATES:
            return Certified(given, estimated, chosen)
    note = (
        f"fitting errors: measured in all {len(given)} runs with four-centre integrals, which "
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
        advice = Message()
        if isinstance(error, InputError):
            advice = step.advice
        raise type(error)(f"{step.who}: ", error.message, advice) from error
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
        elapsed, whole = (
            time.perf_counter() - self._begun,
            self._present * self._measured / self._predicted,
        )
        if whole:
            own = min(1.0, elapsed / (TRUSTED * whole))
        else:
            own = 1.0
        if seconds is not None:
            seconds = own * seconds + (1 - own) * max(0.0, whole - elapsed)
        elif whole > elapsed:
            seconds = whole - elapsed
        if seconds is not None:
            ratio = (self._measured + elapsed + seconds) / (self._predicted + self._present)
            seconds += ratio * sum(self._waiting.values())
        super().time_left(seconds)


def without_densities(result: MP2Result) -> MP2Result:
    """The result with its dipole moments and natural occupations, its densities left out (nspin, 0,
    0)."""
    own = result.properties
    if own is None:
        return result
    none = np.empty((result.reference.nspin, 0, 0))
    return replace(result, properties=replace(own, unrelaxed_density=none, relaxed_density=none))


def carry_out(
    task: Task,
    keeper: Keeper | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.studies",
    elsewhere: Elsewhere | None = None,
) -> Study:
    """Run all steps in order and return the study of them.

    Parameters
    ----------
    keeper : where finished runs go, None for nowhere
    command : for the provenance
    elsewhere : computes the steps of a group in other processes

    Raises
    ------
    Unfinished : `task.then` gave up
    Dfmp2Error : of the step that failed, with its name in front
    """
    keeper = keeper or Keeper()
    listener = Collector(listener or Listener())
    steps: list[Step] = []
    results: dict[str, MP2Result] = {}
    failures: dict[str, Dfmp2Error] = {}
    composite = isinstance(task.options, CompositeOptions)
    asked: dict[str, MP2Result] = {}  # of the steps of the task, where those are several runs each
    if not composite:
        asked = results
    first, number = task.start or start_of(task.options), 0
    starts: dict[Part | None, StartOrbitals] = {}

    def study(*, complete: bool = False) -> Study:
        return task.study(steps, results, failures, command, listener.warnings, complete=complete)

    def keep(step: Step, result: MP2Result) -> None:
        if task.passed is not None and step.passing:
            result = task.passed(result)
        elif task.passed is not None:
            for before in reversed(steps):
                if before.name in results and not before.passing:
                    results[before.name] = task.passed(results[before.name])
                    keeper.replace(before.name, results[before.name])
                    break
        results[step.name] = result
        keeper.keep(step.name, result, study)

    def fail(step: Step, error: Dfmp2Error) -> None:
        if not task.tolerant or isinstance(error, OF_THE_STUDY):
            raise error.prefixed(step.who) from error
        failures[step.name] = error
        listener.warning(
            Message(f"{step.who}: failed with code {error.exit_code}: ", error.message)
        )

    def begin(step: Step) -> StartOrbitals | None:
        if step.start:
            return _orbitals_of(step.start, results[step.start])
        return starts.get(step.part, first)

    def computing_of(step: Step) -> Callable[..., MP2Result]:
        own: Callable[..., MP2Result] = step.compute or task.compute or energy.mp2_energy
        if step.compute is None and task.compute is not None and step.part is not None:
            return partial(own, separate=step.part.scf != step.part.correlation)
        return own

    def run(step: Step, series: Series) -> None:
        series.begin(step.name)
        checkpoint = keeper.checkpoint(step)
        try:
            result = computing_of(step)(
                step.molecule,
                step.options,
                start=begin(step),
                listener=series,
                command=command,
                checkpoint=checkpoint,
                doubt_units=number == 1,
            )
        except Interrupted:
            raise
        except Dfmp2Error as error:
            ends = not task.tolerant or isinstance(error, OF_THE_STUDY)
            if ends and not isinstance(error, ResourceError):  # else the run can go on
                keeper.close(checkpoint)
            fail(step, error)
        else:
            series.end(result)
            keep(step, result)
        keeper.close(checkpoint)

    for text in task.warnings:
        listener.warning(text)
    with keeper.held(task, listener), keeper.up_to_date(study), _few_collections():
        try:
            for given in chain([task.steps], task.then(asked) if task.then else ()):
                group = [run for step in given for run in expanded(step)]
                steps.extend(group)
                if len(steps) > MOST_RUNS:
                    raise InputError(
                        f"{len(steps)} runs: at most {MOST_RUNS} go into one study; split it"
                    )
                results |= keeper.recall(
                    group, listener, task.free, task.chosen, follow=given is not task.steps
                )
                for step in group:
                    if step.name in task.stored and step.name not in results:
                        keep(step, task.stored[step.name])
                left = [step for step in group if step.name not in results]
                if len(group) > 1 or task.then is None:
                    total = f"/{len(steps)}"
                else:
                    total = ""
                if elsewhere is not None and len(left) > 1:
                    keeper.wait_for_no_run()
                    number += len(group) - len(left)
                    units = [
                        Unit(step, computing_of(step), begin(step), command, task.tolerant)
                        for step in left
                    ]
                    for step, result in elsewhere(units):
                        number += 1
                        if isinstance(result, Dfmp2Error):
                            fail(step, result)
                            continue
                        listener.stage(f"[{number}{total}] {step.who}: done")
                        keep(step, result)
                    if composite:
                        asked |= wholes(group, results)
                    continue
                series = Series(listener, left, "energy" if task.compute is None else "gradient")
                for step in group:
                    number += 1
                    announced = f"[{number}{total}] {step.who}"
                    if step not in left:
                        listener.stage(f"{announced}: finished before")
                    elif total:
                        listener.stage(announced)
                    else:  # the study itself says what came of the step
                        listener.substage(announced)
                    if step in left:
                        run(step, series)
                    if task.chained and step.name in results:
                        starts[step.part] = _orbitals_of(step.name, results[step.name])
                if composite:
                    asked |= wholes(group, results)
        except Unfinished as error:
            error.study = study()
            keeper.write(error.study)
            raise
        finished = study(complete=True)
        keeper.write(finished)
    return finished


@contextmanager
def _few_collections() -> Iterator[None]:
    """What is there already is spared by the garbage collections of the runs, most of whose time
    they take where the molecule is small."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _orbitals_of(name: str, result: MP2Result) -> StartOrbitals:
    """The converged orbitals of a run."""
    return StartOrbitals(
        result.reference.mo_coeff, result.reference.mo_occ, None, f"orbitals of {name}"
    )


class Keeper:
    """Keeps finished runs in a file and the state of the present one beside it; nowhere when there
    is no path.

    Parameters
    ----------
    path : file of the study, None for none; the finished runs of one that was stopped are taken
        from it, and the present one goes on from the checkpoint beside it
    overwrite : replace a file that is complete, or what has been done of another study
    resume : take the runs of a file that is complete, too, and compute those that failed again
    beside : files that are made of the study when it is done, by the option that names them
    undisturbed : context in which the file is written (the command line defers signals there)
    finishing : told of the checkpoint of every run (the command line lets a signal wait for the
        next iteration or tile)
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        overwrite: bool = False,
        resume: bool = False,
        beside: Mapping[Option, Path] | None = None,
        undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
        finishing: Callable[[FileCheckpoint], None] = lambda _: None,
    ) -> None:
        if resume and overwrite:
            raise InputError(
                Option("resume", True),
                " keeps the finished runs of the file and ",
                Option("overwrite", True),
                " drops them: choose one",
            )
        self._path, self._undisturbed, self._finishing = path, undisturbed, finishing
        self._resume, self._discards = resume, overwrite
        if path is None:
            self._files = {}
        else:
            self._files = {OUTPUT: path, **(beside or {})}
        self._stored: Study | None = None
        if path is not None and path.exists() and (resume or is_unfinished(path)):
            try:
                self._stored = read_study(path)
            except ResultFileError:
                if not overwrite:
                    raise
        self.replaces = overwrite or resume or self._stored is not None
        if path is None:
            self._writer = None
        else:
            self._writer = StudyWriter(path, overwrite=overwrite or self._stored is not None)
        self._begun: State | None = None  # what a stopped study had done of a run
        self.written = self._stored is not None
        self._behind = False  # whether a run is kept that the file lacks
        self._next = 0.0  # time.monotonic() from which on the file is worth writing

    def recall(
        self,
        steps: Sequence[Step],
        listener: Listener,
        free: tuple[str, ...] = (),
        chosen: tuple[str, ...] = (),
        *,
        follow: bool,
    ) -> dict[str, MP2Result]:
        """The stored results of steps, by name.

        Parameters
        ----------
        free, chosen : as of Task
        follow : the steps follow from other results; a run at another geometry is left out

        Raises
        ------
        InputError : a run of that name is another calculation, or steps are missing and the stored
            ones had other last bits
        """
        recalled: dict[str, MP2Result] = {}
        if self._stored is None or self._writer is None:
            return recalled
        stored = [step for step in steps if step.name in self._stored.runs]
        for step in stored:
            found = self._stored.runs[step.name]
            there = found.molecule.coordinates
            moved = np.abs(there - step.molecule.coordinates).max() > NEAR
            if follow and moved and not step.optimised:
                listener.stage(
                    f"run {step.name} in {self._path} is at another geometry: it is computed again"
                )
                continue
            if follow:
                molecule = replace(step.molecule, coordinates=there)
            else:
                molecule = step.molecule
            if self._stored.complete:
                names = chosen
            else:
                names = (*chosen, *free)
            kept = {name: getattr(found.options, name) for name in names}
            here = replace(step.options, **kept)
            different = changed(question(found.molecule, found.options), question(molecule, here))
            threads = here.threads or usable_cores()
            if not follow and len(stored) < len(steps) and found.provenance.threads != threads:
                different.append(f"threads: {found.provenance.threads} there, {threads} here")
            if different:
                text = (
                    f"run {step.name} in {self._path} is another calculation (different "
                    f"{', '.join(different)})"
                )
                if self._discards:
                    listener.stage(f"starting from the beginning: {text}")
                    self._stored = None
                    return {}
                raise InputError(
                    f"{text}: use the options it was started with, or start anew with ",
                    Option("overwrite", True),
                )
            recalled[step.name] = found
        for name, found in recalled.items():
            self._writer.add(name, found)
        products = blas_and_kernels()
        if any(result.provenance.blas != products for result in recalled.values()):
            listener.stage(
                f"runs in {self._path} were made with other products than those of this host "
                f"({products}): their last bits may differ from those of a run here"
            )
        return recalled

    @contextmanager
    def held(self, task: Task, listener: Listener) -> Iterator[None]:
        """The file for this process alone; in the end nothing but the file is left, unless the
        study was stopped.

        Raises
        ------
        InputError : it holds a study of another kind
        ResultExists : it is there, or a file to be made of it is, and may not be replaced
        ResultFileError : another process is writing it
        ForeignCheckpoint : what lies beside it is of none of these runs
        """
        if self._path is None:
            yield
            return
        if self._stored is not None and self._stored.kind != task.kind:
            if not self._discards:
                raise InputError(
                    f"{self._path} holds a study of kind {self._stored.kind}, not {task.kind}: "
                    "name another file, or start anew with ",
                    Option("overwrite", True),
                )
            self._stored = None
        self._require_same(task)
        checkpoint = checkpoint_of(self._path)
        for option, file in self._files.items():
            require_writable(file, overwrite=self.replaces, option=option)
        with locked(self._path):
            if os.path.lexists(checkpoint):
                self._begun = found_beside(
                    self._path,
                    resume=self._resume,
                    replace_foreign=self._discards,
                    note=listener.stage,
                    warn=listener.warning,
                )
            known = {step.name for step in task.steps}
            if (
                self._begun is not None
                and self._begun.run not in known
                and not (task.then and self._begun.run)
            ):
                if not self._discards:
                    raise ForeignCheckpoint(
                        f"{checkpoint} belongs to another calculation "
                        f"({self._begun.run or 'a single run'} there): name another file, or start "
                        "anew with ",
                        Option("overwrite", True),
                    )
                self._begun = None
            yield
            remove(checkpoint)

    def _require_same(self, task: Task) -> None:
        """Refuse a stored study of the same kind that asked for something else.

        Raises
        ------
        InputError : a setting that its runs depend on is another one
        """
        if self._stored is None:
            return
        settings = self._stored.settings
        different = [
            name for name, value in task.question.items() if settings.get(name, False) != value
        ]
        if not different:
            return
        if not self._discards:
            raise InputError(
                f"{self._path} holds another {task.kind} (different "
                f"{', '.join(different).replace('_', ' ')}): name another file, or start anew with ",
                Option("overwrite", True),
            )
        self._stored = None

    @contextmanager
    def up_to_date(self, study: Callable[[], Study]) -> Iterator[None]:
        """Whatever ends the block, the file holds every finished run."""
        try:
            yield
        finally:
            if self._behind:
                self.write(study())

    def checkpoint(self, step: Step) -> Checkpoint:
        """Saves the state of a run beside the file, and holds what a stopped study had done of that
        run."""
        if self._path is None:
            return NOTHING
        if step.optimised:  # several runs, which begin again
            self.wait_for_no_run()
            return NOTHING
        if self._begun is not None and self._begun.run == step.name:
            found = self._begun
        else:
            found = None
        made = FileCheckpoint(
            self._path,
            found,
            replace_foreign=self._discards,
            run=step.name,
            eager=self.written or self._behind,
        )
        self._finishing(made)
        return made

    def wait_for_no_run(self) -> None:
        """Other processes compute: a signal need not wait for an iteration or tile of this one."""
        if self._path is not None:
            self._finishing(FileCheckpoint(self._path))

    def close(self, checkpoint: Checkpoint) -> None:
        """The run is kept, or has failed for good: there is nothing to go on from."""
        if isinstance(checkpoint, FileCheckpoint) and checkpoint.saved:
            checkpoint.complete()

    def keep(self, name: str, result: MP2Result, study: Callable[[], Study]) -> None:
        """Put a finished run into the file; a little later where writing it takes longer than the
        runs do."""
        if self._writer is not None:
            with self._undisturbed():
                self._writer.add(name, result)
                self._behind = True
            if time.monotonic() >= self._next:
                self.write(study())

    def replace(self, name: str, result: MP2Result) -> None:
        """Put a run in the place of one that is kept; written with the next."""
        if self._writer is not None:
            self._writer.replace(name, result)

    def write(self, study: Study) -> None:
        """Write everything kept so far."""
        if self._writer is not None:
            begun = time.monotonic()
            with self._undisturbed():
                self._writer.write(study)
                self.written, self._behind = True, False
            self._next = time.monotonic() + REST * (time.monotonic() - begun)
