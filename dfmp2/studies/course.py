"""The course of a study: run after run, each kept and written as soon as it is done.

A study stopped half way leaves a file with status "incomplete" and its finished runs in it; started again with
`resume`, those are not repeated. (Killed without notice it may lack the last of many runs quicker than its writing.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path

from dfmp2 import pipeline, planning, system
from dfmp2.errors import Dfmp2Error, InputError, Interrupted
from dfmp2.io.study import MOST_RUNS, Study, StudyWriter, read_study
from dfmp2.molecule import Molecule
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.record import StartOrbitals
from dfmp2.reference.mean_field import reference_kind
from dfmp2.result import MP2Result

REST = 5.0  # pause after writing the file, in units of the time that took
# Options that decide how, or whether, but not what.
NOT_COMPARED = ("memory", "threads", "backend", "scratch", "scf_from", "scf_max_cycles", "allow_small_gap")


@dataclass(frozen=True, slots=True)
class Step:
    """One calculation of a study; `who` describes it to people, and so in errors."""

    name: str
    who: str
    molecule: Molecule
    options: Options


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step has no result: exit code of the error and its message."""

    code: int
    message: str


Results = Mapping[str, MP2Result]
Failures = Mapping[str, Failure]
Summary = Callable[[Results, Failures, bool], Study]  # results, failures, complete -> study


class Quiet(Listener):
    """Hears nothing: what is warned about before the runs is warned about again by the run itself."""

    def warning(self, text: str) -> None:
        """Not yet."""


class Keeper:
    """Keeps finished runs in a file, or nowhere when there is no path.

    Parameters
    ----------
    path : file of the study, None for none
    overwrite : replace an existing file
    resume : take finished runs from the file if it exists
    undisturbed : context in which the file is written (the command line defers signals there)
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        overwrite: bool = False,
        resume: bool = False,
        undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        if resume and overwrite:
            raise InputError("--resume keeps the finished runs of the file and --overwrite drops them: choose one")
        self._path, self._undisturbed = path, undisturbed
        self._stored: Study | None = None
        if resume and path is not None and path.exists():
            self._stored = read_study(path)
        self._writer = None if path is None else StudyWriter(path, overwrite=overwrite or self._stored is not None)
        self.written = self._stored is not None
        self._behind = False  # whether a run is kept that the file lacks
        self._next = 0.0  # time.monotonic() from which on the file is worth writing

    def require_kind(self, kind: str) -> None:
        """Refuse to go on with the file of another kind of study."""
        if self._stored is not None and self._stored.kind != kind:
            raise InputError(
                f"--resume: {self._path} holds a study of kind {self._stored.kind}, not {kind}: name another file"
            )

    def find(self, step: Step) -> MP2Result | None:
        """The stored result of a step, if there is one.

        Raises
        ------
        InputError : the run of that name is another calculation
        """
        found = None if self._stored is None else self._stored.runs.get(step.name)
        if found is None:
            return None
        names = [field.name for field in fields(Options) if field.name not in NOT_COMPARED]
        changed = [name for name in names if getattr(found.options, name) != getattr(step.options, name)]
        if found.molecule != step.molecule:
            changed.insert(0, "molecule")
        if changed:
            raise InputError(
                f"--resume: run {step.name} in {self._path} is another calculation (different {', '.join(changed)}): "
                "use the options it was started with, or start anew with --overwrite"
            )
        return found

    def keep(self, name: str, result: MP2Result) -> None:
        """Put a finished run aside for the file."""
        if self._writer is not None:
            with self._undisturbed():
                self._writer.add(name, result)
                self._behind = True

    @property
    def due(self) -> bool:
        """Whether the file should be written now: writing it takes a small part of the time, however long it is."""
        return self._writer is not None and time.monotonic() >= self._next

    def write(self, study: Study) -> None:
        """Write everything kept so far."""
        if self._writer is not None:
            begun = time.monotonic()
            with self._undisturbed():
                self._writer.write(study)
                self.written, self._behind = True, False
            ended = time.monotonic()
            self._next = ended + REST * (ended - begun)

    def catch_up(self, study: Callable[[bool], Study]) -> None:
        """Write what the file lacks, before the study is left unfinished."""
        if self._behind:
            self.write(study(False))


def carry_out(
    steps: Sequence[Step],
    summarise: Summary,
    keeper: Keeper,
    listener: Listener,
    command: str,
    *,
    first_start: StartOrbitals | None = None,
    chained: bool = False,
    tolerant: bool = False,
) -> Study:
    """Run all steps in order and return the study of them.

    Parameters
    ----------
    steps : what to compute
    summarise : makes the study of the results, failures, and whether it is complete
    keeper : where finished runs go
    first_start : start orbitals of the first run
    chained : start every SCF from the converged orbitals of the run before
    tolerant : a step that fails is recorded and the next one goes on; else its error ends the study

    Raises
    ------
    Dfmp2Error : of the step that failed, with its name in front
    """
    if len(steps) > MOST_RUNS:
        raise InputError(f"{len(steps)} runs: at most {MOST_RUNS} go into one study; split it")
    stored = {step.name: found for step in steps if (found := keeper.find(step)) is not None}
    results = dict(stored)
    failures: dict[str, Failure] = {}

    def study(complete: bool) -> Study:
        return summarise({step.name: results[step.name] for step in steps if step.name in results}, failures, complete)

    for name, result in stored.items():
        keeper.keep(name, result)
    start = first_start
    try:
        for number, step in enumerate(steps, start=1):
            found = stored.get(step.name)
            listener.stage(f"[{number}/{len(steps)}] {step.who}{'' if found is None else ': finished before'}")
            if found is None:
                try:
                    found = pipeline.run(step.molecule, step.options, start=start, listener=listener, command=command)
                except Interrupted:
                    raise
                except Dfmp2Error as error:
                    if not tolerant:
                        keeper.catch_up(study)
                        raise named(error, step.who) from error
                    failures[step.name] = Failure(error.exit_code, str(error))
                    listener.warning(f"{step.who}: failed with code {error.exit_code}: {error}")
                else:
                    results[step.name] = found
                    keeper.keep(step.name, found)
                if number < len(steps) and keeper.due:
                    keeper.write(study(False))
            if chained and found is not None:
                orbitals = found.reference
                start = StartOrbitals(orbitals.mo_coeff, orbitals.mo_occ, None, f"orbitals of {step.name}")
    except (KeyboardInterrupt, Interrupted):
        keeper.catch_up(study)
        raise
    finished = study(True)
    keeper.write(finished)
    return finished


def examine(step: Step) -> int:
    """Find everything a run would be refused for, before any run; returns the number of frozen core orbitals.

    Raises
    ------
    Dfmp2Error : what `dfmp2 run` would say, with the step's name in front
    """
    try:
        setup = system.prepare(step.options, "")
        found = system.resolve(step.molecule, setup, Quiet())
        kind = reference_kind(step.options.reference, step.molecule.multiplicity)
        core = system.frozen_core(found, step.options, Quiet())
        planning.make_plan(found, setup, core, kind).memory.require()
    except Dfmp2Error as error:
        raise named(error, step.who) from error
    return core.orbitals


def named(error: Dfmp2Error, who: str) -> Dfmp2Error:
    """The same error with what it happened to in front."""
    return type(error)(f"{who}: {error}")
