"""One calculation in several processes: the pair energies of a file made by `dfmp2 prepare`, or the
steps of a study.

    by_workers    the workers of a pool take parts of the tiles whenever they are free
    StepWorkers   independent steps of a study (`dfmp2.studies.runs.Elsewhere`)

Two numbers per pair are sent between processes; `dfmp2.output.tile_shards` explains why their sum
has the same bits as in one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dfmp2.backends.base import PairTerms
from dfmp2.errors import Dfmp2Error, Interrupted, ResultFileError
from dfmp2.execution.pool import Call, Pool, WorkerShare, local_pool, share_out
from dfmp2.host.threads import kernels
from dfmp2.mp2.calculation import NOTHING, Calculation
from dfmp2.mp2.identity import OTHER_BITS, PROCESSOR, differences, other_processor
from dfmp2.mp2.pairs import Results, TileKey
from dfmp2.mp2.prepared import open_prepared
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.prepared import opened
from dfmp2.output.tile_shards import cut, evaluator
from dfmp2.progress import Silent

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


def compute_step(unit: Unit, share: WorkerShare) -> tuple[Step, MP2Result | Dfmp2Error]:
    """Compute a step; returns it with its result, or its error if the study continues without it;
    errors name the step."""
    step = unit.step
    options = replace(step.options, threads=share.threads, memory=share.memory)
    how: dict[str, Any] = {
        "start": unit.start,
        "listener": Silent(),
        "command": unit.command,
        "doubt_units": False,
    }
    try:
        result = unit.compute(step.molecule, options, **how)
        # The share of a worker is none of the options of the study.
        options = replace(result.options, threads=step.options.threads, memory=step.options.memory)
        return step, replace(result, options=options)
    except Dfmp2Error as error:
        if unit.tolerant and not isinstance(error, Interrupted):
            return step, error
        raise error.prefixed(step.who) from error


@dataclass(frozen=True, slots=True)
class StepWorkers:
    """Processes of this host that share the steps of a study, as `dfmp2.studies.runs.Elsewhere`."""

    workers: int | None = None

    def steps(
        self, units: Sequence[Unit], count: int, threads: int
    ) -> Iterator[tuple[Step, MP2Result | Dfmp2Error]]:
        """Yield steps with their results as `count` processes finish them."""
        options = units[0].step.options
        with local_pool(options.backend, count, threads, options.memory) as pool:
            pool.grow(count)
            yield from share_out(pool, [Call(compute_step, (unit,)) for unit in units])
