"""The definition of a study: its steps, and a function that turns their results into numbers
(`Task`).

At a composite level (`dfmp2.studies.composite`) a step is several runs; `expanded` makes them and
`wholes` combines their results, so that studies need not know about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from dfmp2.errors import ConvergenceError, Dfmp2Error, Message
from dfmp2.host.provenance import version
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.composite import Part, combine
from dfmp2.mp2.coupled_cluster import WithCoupledCluster
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.options.basis_parts import title_of
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.scf.reference import StartOrbitals
from dfmp2.studies.composite import CompositeOptions

Results = Mapping[str, MP2Result]
Failures = Mapping[str, Dfmp2Error]


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
    compute: WithCoupledCluster | None = None
    whole: str = ""
    part: Part | None = None
    optimised: bool = False


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
    goes_on : whether `resume` can help
    """

    study: Study
    goes_on: bool = True


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
        closely enough
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
