"""One calculation in several processes: the pair energies of a file made by `dfmp2 prepare`, or the
steps of a study.

    by_workers    the workers of a pool take parts of the tiles whenever they are free
    StepWorkers   steps of a study (`dfmp2.studies.runs.Elsewhere`)

Two numbers per pair are sent between processes; `dfmp2.output.tile_shards` explains why their sum
has the same bits as in one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dfmp2.backends.base import PairTerms
from dfmp2.errors import Dfmp2Error, Interrupted, ResultFileError
from dfmp2.execution.pool import Call, Pool, WorkerShare, awaited, local_pool, share_out
from dfmp2.host.threads import kernels
from dfmp2.mp2.calculation import NOTHING, Calculation
from dfmp2.mp2.energy import (
    converged_reference,
    energy_on_reference,
    open_energy,
    scf_integrals,
)
from dfmp2.mp2.identity import OTHER_BITS, PROCESSOR, differences, other_processor
from dfmp2.mp2.pairs import Results, TileKey
from dfmp2.mp2.prepared import open_prepared
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.prepared import opened
from dfmp2.output.tile_shards import cut, evaluator
from dfmp2.progress import Silent
from dfmp2.scf.integrals import ScfIntegrals
from dfmp2.scf.reference import Reference, StartOrbitals

if TYPE_CHECKING:
    from dfmp2.studies.runs import Unit
    from dfmp2.studies.task import Step

PARTS = 16  # at least, per worker, so that all finish at about the same time
SECONDS = 5.0  # at most, roughly, per part, which is lost if its worker dies


class Job(NamedTuple):
    """Data that a worker needs in addition to its tiles: the file of B, the options, and the
    identity of the calculation."""

    path: str
    options: Options
    identity: tuple[tuple[str, str], ...]


_jobs: dict[
    Job, tuple[ExitStack, Callable[[list[TileKey]], Results]]
] = {}  # in this process, so that B is read only once


class Tiles(NamedTuple):
    """The return value of a worker: tiles with their terms, and its kind of processor."""

    terms: list[tuple[TileKey, PairTerms]]
    processor: str


def compute_tiles(job: Job, keys: list[TileKey], share: WorkerShare) -> Tiles:
    """Compute tiles of one pass; raises ResultFileError if the worker has another file, options or
    versions."""
    if job not in _jobs:
        for stack, _ in _jobs.values():
            stack.close()
        _jobs.clear()
        options = replace(job.options, threads=share.threads, memory=share.memory)
        with ExitStack() as stack:
            source = stack.enter_context(opened(job.path))
            calculation = stack.enter_context(open_prepared(source, options, Silent(), "", NOTHING))
            here = calculation.identity
            different = differences(here, dict(job.identity), leave_out=[PROCESSOR])
            if different:
                raise ResultFileError(
                    f"a worker finds another calculation in {job.path}: {', '.join(different)}"
                )
            evaluate = evaluator(calculation, source)
            _jobs[job] = stack.pop_all(), evaluate
    return Tiles(list(_jobs[job][1](keys)), kernels())


def by_workers(pool: Pool, path: str, calculation: Calculation, keys: list[TileKey]) -> Results:
    """Yield tiles of the prepared file `path` as the workers of a pool finish them; raises as
    `share_out`."""
    options = replace(
        calculation.options, backend=calculation.setup.backend.name, certify_fit=False
    )
    job = Job(os.path.abspath(path), options, tuple(calculation.identity.items()))
    memory = calculation.plan.memory
    seconds = calculation.plan.timings.pair_energies * calculation.setup.threads
    wanted = max(PARTS * len(pool.slots), round(seconds / SECONDS))
    calls = [Call(compute_tiles, (job, part)) for part in cut(keys, min(len(keys), wanted)) if part]
    known = {""}
    for tiles in share_out(pool, calls, (memory.least, memory.comfortable)):
        processors = other_processor({PROCESSOR: tiles.processor}, calculation.identity)
        if processors not in known:
            known.add(processors)
            calculation.listener.warning(
                f"a worker runs on another kind of processor ({processors}): {OTHER_BITS}"
            )
        yield from tiles.terms


Outcome = tuple["Step", MP2Result | Dfmp2Error]


@dataclass(slots=True, eq=False)
class Begun:
    """An energy that this process has begun.

    Attributes
    ----------
    stack : closes the calculation
    integrals : of its SCF
    reference : None before it has converged
    """

    stack: ExitStack
    calculation: Calculation
    integrals: ScfIntegrals
    reference: Reference | None = None


_begun: dict[str, Begun] = {}  # in this process, by the name of the step


def compute_step(unit: Unit, share: WorkerShare) -> Outcome:
    """Compute a step; returns it with its result, or its error if the study continues without it;
    errors name the step."""
    options, how = _how(unit, share)
    try:
        result = unit.compute(unit.step.molecule, options, **how)
    except Dfmp2Error as error:
        return _failed(unit, error)
    return unit.step, replace(result, options=unit.step.options)


def begin_step(unit: Unit, share: WorkerShare) -> None:
    """Compute what an energy needs before its start orbitals are known, and keep it in this process
    for `converge_step`, which reports errors."""
    with suppress(Dfmp2Error):
        _begin(unit, share)


def _begin(unit: Unit, share: WorkerShare) -> None:
    options, how = _how(unit, share)
    with ExitStack() as stack:
        calculation = stack.enter_context(open_energy(unit.step.molecule, options, **how))
        integrals = scf_integrals(calculation, computed=True)
        _begun[unit.step.name] = Begun(stack.pop_all(), calculation, integrals)


def converge_step(unit: Unit, share: WorkerShare) -> StartOrbitals | Outcome:
    """Converge the SCF of an energy, and keep it in this process for `finish_step`.

    Returns
    -------
    The orbitals, or the step with its error as from `compute_step`.
    """
    name = unit.step.name
    try:
        if name not in _begun:
            _begin(unit, share)
        begun = _begun[name]
        begun.reference = converged_reference(
            begun.calculation, unit.start, integrals=begun.integrals
        )
    except Dfmp2Error as error:
        if name in _begun:
            _begun.pop(name).stack.close()
        return _failed(unit, error)
    return begun.reference.as_start(f"orbitals of {name}")


def finish_step(unit: Unit, following: Unit | None, share: WorkerShare) -> Outcome:
    """The same as `compute_step`, after `converge_step` in the same process; in another one, which
    replaces it if it has died, the SCF is repeated. Then begin the following step of this
    process."""
    begun = _begun.pop(unit.step.name, None)
    if begun is None or begun.reference is None:
        outcome = compute_step(unit, share)
    else:
        with begun.stack:
            try:
                result = energy_on_reference(begun.calculation, begun.reference)
                outcome = unit.step, replace(result, options=unit.step.options)
            except Dfmp2Error as error:
                outcome = _failed(unit, error)
    if following is not None:
        begin_step(following, share)
    return outcome


def _how(unit: Unit, share: WorkerShare) -> tuple[Options, dict[str, Any]]:
    """The options of a step with the worker's share of the machine, and the other keywords."""
    options = replace(unit.step.options, threads=share.threads, memory=share.memory)
    return options, {
        "start": unit.start,
        "listener": Silent(),
        "command": unit.command,
        "doubt_units": False,
    }


def _failed(unit: Unit, error: Dfmp2Error) -> Outcome:
    """The step with its error; raises it if it ends the study."""
    if unit.tolerant and not isinstance(error, Interrupted):
        return unit.step, error
    raise error.prefixed(unit.step.who) from error


@dataclass(frozen=True, slots=True)
class StepWorkers:
    """Processes of this host that share the steps of a study, as `dfmp2.studies.runs.Elsewhere`."""

    workers: int | None = None

    def steps(self, units: Sequence[Unit], count: int, threads: int) -> Iterator[Outcome]:
        """Yield steps with their results as `count` processes finish them."""
        options = units[0].step.options
        with local_pool(options.backend, count, threads, options.memory) as pool:
            pool.grow(count)
            yield from share_out(pool, [Call(compute_step, (unit,)) for unit in units])

    def chain(self, units: Sequence[Unit], threads: int) -> Iterator[Outcome]:
        """Yield the steps with their results; one without start orbitals starts from those of the
        step before.

        Two processes take turns: one converges the SCF of a step while the other completes the step
        before and computes the integrals of the next one.
        """
        options = units[0].step.options
        start = None
        with local_pool(options.backend, 2, threads, options.memory) as pool:
            pool.grow(2)
            if len(units) > 1:
                pool.slots[1].submit(Call(begin_step, (units[1],)))
            for number, unit in enumerate(units):
                slot = pool.slots[number % 2]
                following = None
                if number + 2 < len(units):
                    following = units[number + 2]
                unit = replace(unit, start=unit.start or start)
                complete = awaited(slot)
                slot.submit(Call(converge_step, (unit,)))
                if complete is not None:
                    yield complete
                converged = awaited(slot)
                if isinstance(converged, StartOrbitals):
                    start = converged
                    slot.submit(Call(finish_step, (unit, following)))
                else:
                    yield converged
            for slot in pool.busy:
                yield awaited(slot)
