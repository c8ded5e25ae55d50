"""The runs of a study, one after another, each stored as soon as it is done.

A study is defined by a `Task` (`dfmp2.studies.task`) and carried out here. Steps that depend on
results, such as those of an optimisation, come in groups (`Task.then`); stored ones are recalled as
they come (`dfmp2.studies.keeper`), so that a resumed study retraces its path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypedDict

import numpy as np

from dfmp2.errors import (
    DeviceFault,
    Dfmp2Error,
    DiskFull,
    ForeignCheckpoint,
    InputError,
    Interrupted,
    Message,
    ResourceError,
)
from dfmp2.host.resources import pinning, usable_cores
from dfmp2.mp2 import energy
from dfmp2.mp2.composite import Part
from dfmp2.mp2.result import MP2Result
from dfmp2.output.hdf5 import start_of
from dfmp2.output.study import MOST_RUNS, Study
from dfmp2.progress import Collector, Listener
from dfmp2.scf.reference import StartOrbitals
from dfmp2.studies.composite import CompositeOptions
from dfmp2.studies.keeper import Keeper
from dfmp2.studies.task import (
    Series,
    Step,
    Task,
    Unfinished,
    examine_steps,
    expanded,
    forget_systems,
    longest_first,
    processes,
    wholes,
)

# Errors not specific to a step: the next one would meet them as well, or they concern the whole
# study.
OF_THE_STUDY = (ForeignCheckpoint, DeviceFault, DiskFull)


@dataclass(frozen=True, slots=True)
class Unit:
    """A step to be computed by another process.

    Attributes
    ----------
    compute : as in Task; a module-level function
    start : start orbitals of its SCF
    tolerant : return the error of the step instead of its result
    """

    step: Step
    compute: Callable[..., MP2Result]
    start: StartOrbitals | None
    command: str
    tolerant: bool = False


class Elsewhere(Protocol):
    """Other processes that compute steps."""

    @property
    def workers(self) -> int | None:
        """Number of processes, None for one per core if the runs are small."""

    def steps(
        self, units: Sequence[Unit], count: int, threads: int
    ) -> Iterable[tuple[Step, MP2Result | Dfmp2Error]]:
        """The steps with their results, in order of completion, from `count` processes."""


class CarryOutKeywords(TypedDict, total=False):
    """The keywords of `carry_out`, accepted by every study."""

    keeper: Keeper | None
    listener: Listener | None
    command: str
    elsewhere: Elsewhere | None


def without_densities(result: MP2Result) -> MP2Result:
    """The result with dipole moments and natural occupations, but empty densities (nspin, 0, 0)."""
    properties = result.properties
    if properties is None:
        return result
    none = np.empty((result.reference.nspin, 0, 0))
    lighter = replace(properties, unrelaxed_density=none, relaxed_density=none)
    return replace(result, properties=lighter)


def carry_out(
    task: Task,
    keeper: Keeper | None = None,
    listener: Listener | None = None,
    command: str = "dfmp2.studies",
    elsewhere: Elsewhere | None = None,
) -> Study:
    """Check all steps, run them in order, and return the study.

    Parameters
    ----------
    keeper : stores finished runs; None to store nothing
    command : recorded as provenance
    elsewhere : processes that may share the steps of a group

    Raises
    ------
    Unfinished : `task.then` gave up
    Dfmp2Error : error of the failed step, prefixed with its name
    """
    examine_steps([step for step in task.steps if step.name not in task.stored])
    runs = _StudyRuns(task, keeper or Keeper(), Collector(listener or Listener()), command)
    try:
        return runs.carry_out(elsewhere)
    finally:
        forget_systems()


class _StudyRuns:
    """The progress of a study.

    Parameters
    ----------
    task, keeper, command
        As in `carry_out`.
    listener : Collector
        Collects the warnings for the study.

    Attributes
    ----------
    steps : list of Step
        The runs requested so far; those of a composite level are separate.
    results : dict of str to MP2Result
        Results of these runs, by name.
    failures : dict of str to Dfmp2Error
        Errors of the failed runs, by name.
    asked : dict of str to MP2Result
        Results of the steps of the task: `results`, or the combined results at a composite level.
    number : int
        Number of the current run, from 1.
    starts : dict of Part or None to StartOrbitals
        Orbitals of the previous run, if the steps are chained; at a composite level, by part.
    """

    def __init__(self, task: Task, keeper: Keeper, listener: Collector, command: str) -> None:
        self.task = task
        self.keeper = keeper
        self.listener = listener
        self.command = command
        self.steps: list[Step] = []
        self.results: dict[str, MP2Result] = {}
        self.failures: dict[str, Dfmp2Error] = {}
        self._kind = "gradient" if task.compute is not None else "energy"
        self.composite = isinstance(task.options, CompositeOptions)
        self.asked: dict[str, MP2Result] = self.results
        if self.composite:
            self.asked = {}
        self.number = 0
        self.first = task.start or start_of(task.options)
        self.starts: dict[Part | None, StartOrbitals] = {}

    def study(self, *, complete: bool = False) -> Study:
        """The study so far."""
        return self.task.study(
            self.steps,
            self.results,
            self.failures,
            self.command,
            self.listener.warnings,
            complete=complete,
        )

    def carry_out(self, elsewhere: Elsewhere | None) -> Study:
        """Run all groups of steps; as in `carry_out`."""
        task = self.task
        for text in task.warnings:
            self.listener.warning(text)
        with self.keeper.held(task, self.listener), self.keeper.up_to_date(self.study):
            try:
                self._run_group(task.steps, elsewhere, follow=False)
                if task.then is not None:
                    for steps in task.then(self.asked):
                        self._run_group(steps, elsewhere, follow=True)
            except Unfinished as error:
                error.study = self.study()
                self.keeper.write(error.study)
                raise
            finished = self.study(complete=True)
            self.keeper.write(finished)
        return finished

    def _run_group(
        self, steps: Sequence[Step], elsewhere: Elsewhere | None, *, follow: bool
    ) -> None:
        """Recall or compute the runs of independent steps.

        Parameters
        ----------
        follow : bool
            Whether the steps depend on results.
        """
        group = [run for step in steps for run in expanded(step)]
        count, threads = self._division(group, elsewhere)
        waiting = self._waiting(group, threads, follow=follow)
        total = ""
        if len(group) > 1 or self.task.then is None:
            total = f"/{len(self.steps)}"
        if elsewhere is not None and count > 1 and waiting:
            self.number += len(group) - len(waiting)
            shared = elsewhere.steps(self._units(waiting), min(count, len(waiting)), threads)
            self._take(shared, total)
        else:
            self._run_here(group, waiting, total)
        if self.composite:
            self.asked |= wholes(group, self.results)

    def _division(self, group: Sequence[Step], elsewhere: Elsewhere | None) -> tuple[int, int]:
        """The number of processes for a group of steps, and of the threads of each."""
        given = self.task.options.threads
        cores = given or usable_cores()
        if elsewhere is None:
            return 1, cores
        if elsewhere.workers is not None:
            count = max(1, min(elsewhere.workers, len(group)))
            return count, given or max(1, cores // count)
        if self.task.chained or pinning(self.task.options.backend, 0, 1):
            return 1, cores
        count = processes(group, self._kind, cores)
        return count, cores // count

    def _waiting(self, group: Sequence[Step], threads: int, *, follow: bool) -> list[Step]:
        """The steps of a group still to be computed with `threads` threads, after recalling the
        others."""
        task = self.task
        self.steps.extend(group)
        if len(self.steps) > MOST_RUNS:
            raise InputError(
                f"{len(self.steps)} runs: at most {MOST_RUNS} go into one study; split it"
            )
        self.results |= self.keeper.recall(
            group, self.listener, threads, task.free, task.chosen, follow=follow
        )
        for step in group:
            if step.name in task.stored and step.name not in self.results:
                self._keep(step, task.stored[step.name])
        return [step for step in group if step.name not in self.results]

    def _units(self, waiting: Sequence[Step]) -> list[Unit]:
        """Steps for other processes, the longest ones first."""
        return [
            Unit(
                step=step,
                compute=self._function_of(step),
                start=self._start_of(step),
                command=self.command,
                tolerant=self.task.tolerant,
            )
            for step in longest_first(waiting, self._kind)
        ]

    def _take(self, shared: Iterable[tuple[Step, MP2Result | Dfmp2Error]], total: str) -> None:
        """Keep the results of other processes."""
        self.keeper.wait_for_no_run()
        for step, result in shared:
            self.number += 1
            if isinstance(result, Dfmp2Error):
                self._fail(step, result)
                continue
            self.listener.stage(f"[{self.number}{total}] {step.who}: done")
            self._keep(step, result)

    def _run_here(self, group: Sequence[Step], waiting: Sequence[Step], total: str) -> None:
        """Compute steps in this process, one after the other."""
        series = Series(self.listener, waiting, self._kind)
        for step in group:
            self.number += 1
            announced = f"[{self.number}{total}] {step.who}"
            if step not in waiting:
                self.listener.stage(f"{announced}: finished before")
            elif total:
                self.listener.stage(announced)
            else:  # the study itself reports the outcome
                self.listener.substage(announced)
            if step in waiting:
                self._run(step, series)
            if self.task.chained and step.name in self.results:
                self.starts[step.part] = _orbitals_of(step.name, self.results[step.name])

    def _run(self, step: Step, series: Series) -> None:
        """Compute a step, keeping a checkpoint meanwhile."""
        series.begin(step.name)
        checkpoint = self.keeper.checkpoint(step)
        try:
            result = self._function_of(step)(
                step.molecule,
                step.options,
                start=self._start_of(step),
                listener=series,
                command=self.command,
                checkpoint=checkpoint,
                doubt_units=self.number == 1,
            )
        except Interrupted:
            raise
        except Dfmp2Error as error:
            if self._ends(error) and not isinstance(error, ResourceError):  # else it can go on
                self.keeper.close(checkpoint)
            self._fail(step, error)
        else:
            series.end(result)
            self._keep(step, result)
        self.keeper.close(checkpoint)

    def _function_of(self, step: Step) -> Callable[..., MP2Result]:
        """The function that computes a step."""
        if step.compute is not None:
            return step.compute
        if self.task.compute is None:
            return energy.mp2_energy
        if step.part is None:
            return self.task.compute
        return partial(self.task.compute, separate=step.separate)

    def _start_of(self, step: Step) -> StartOrbitals | None:
        """Start orbitals of a step."""
        if step.start:
            return _orbitals_of(step.start, self.results[step.start])
        return self.starts.get(step.part, self.first)

    def _keep(self, step: Step, result: MP2Result) -> None:
        """Keep the result of a step; reduce the previous run, or the step itself if `passing`, by
        `Task.passed`."""
        passed = self.task.passed
        if passed is not None and step.passing:
            result = passed(result)
        elif passed is not None:
            for before in reversed(self.steps):
                if before.name in self.results and not before.passing:
                    self.results[before.name] = passed(self.results[before.name])
                    self.keeper.replace(before.name, self.results[before.name])
                    break
        self.results[step.name] = result
        self.keeper.keep(step, result, self.study)

    def _ends(self, error: Dfmp2Error) -> bool:
        """Whether the error of a step ends the study."""
        return not self.task.tolerant or isinstance(error, OF_THE_STUDY)

    def _fail(self, step: Step, error: Dfmp2Error) -> None:
        """Record the error of a step, or raise it if it ends the study."""
        if self._ends(error):
            raise error.prefixed(step.who) from error
        self.failures[step.name] = error
        self.listener.warning(
            Message(f"{step.who}: failed with code {error.exit_code}: ", error.message)
        )


def _orbitals_of(name: str, result: MP2Result) -> StartOrbitals:
    """The converged orbitals of a run."""
    return result.reference.as_start(f"orbitals of {name}")
