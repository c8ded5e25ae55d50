"""The course of a study: run after run, each kept and written as soon as it is done.

A study stopped half way leaves a file with status "incomplete" and its finished runs in it, and beside it the state of
the run it was at; started again with `resume`, those are not repeated. (Killed without notice the file may lack the
last of many runs quicker than its writing.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dfmp2 import pipeline
from dfmp2.errors import DeviceFault, Dfmp2Error, ForeignCheckpoint, InputError, Interrupted, ResourceError
from dfmp2.io.study import MOST_RUNS, Study
from dfmp2.progress import Listener
from dfmp2.record import StartOrbitals
from dfmp2.result import MP2Result
from dfmp2.studies.keeper import Keeper
from dfmp2.studies.step import Step, named

# Errors that are not the step's own: the next step would meet them as well, or they concern the whole study.
OF_THE_STUDY = (ForeignCheckpoint, DeviceFault)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step has no result: exit code of the error and its message."""

    code: int
    message: str


Results = Mapping[str, MP2Result]
Failures = Mapping[str, Failure]
Summary = Callable[[Results, Failures, bool], Study]  # results, failures, complete -> study


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
    stored = keeper.find(steps)
    results = dict(stored)
    failures: dict[str, Failure] = {}

    def study(complete: bool) -> Study:
        return summarise({step.name: results[step.name] for step in steps if step.name in results}, failures, complete)

    with keeper.held(steps, listener):
        for name, result in stored.items():
            keeper.keep(name, result, stored=True)
        start = first_start
        try:
            for number, step in enumerate(steps, start=1):
                found = stored.get(step.name)
                listener.stage(f"[{number}/{len(steps)}] {step.who}{'' if found is None else ': finished before'}")
                if found is None:
                    journal = keeper.journal(step)
                    try:
                        found = pipeline.run(
                            *(step.molecule, step.options),
                            start=start,
                            listener=listener,
                            command=command,
                            journal=journal,
                            doubt_units=number == 1,
                        )
                    except Interrupted:
                        raise
                    except Dfmp2Error as error:
                        if not tolerant or isinstance(error, OF_THE_STUDY):
                            if not isinstance(error, ResourceError):  # where room can be made, the run can go on
                                keeper.close(journal)
                            keeper.catch_up(study)
                            raise named(error, step.who) from error
                        failures[step.name] = Failure(error.exit_code, str(error))
                        listener.warning(f"{step.who}: failed with code {error.exit_code}: {error}")
                    else:
                        results[step.name] = found
                        keeper.keep(step.name, found)
                    if number < len(steps) and keeper.due:
                        keeper.write(study(False))
                    keeper.close(journal)
                if chained and found is not None:
                    orbitals = found.reference
                    start = StartOrbitals(orbitals.mo_coeff, orbitals.mo_occ, None, f"orbitals of {step.name}")
        except (KeyboardInterrupt, Interrupted):
            keeper.catch_up(study)
            raise
        finished = study(True)
        keeper.write(finished)
        return finished
