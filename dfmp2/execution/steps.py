"""Steps of a study that do not need each other, computed by the workers of a pool (`dfmp2.studies.runs.Elsewhere`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dfmp2.errors import Dfmp2Error
from dfmp2.execution.pool import Call, local_pool, share_out
from dfmp2.mp2.result import MP2Result
from dfmp2.progress import Silent
from dfmp2.studies.runs import Step, Unit


def compute_unit(unit: Unit, threads: int, memory: int) -> tuple[Step, MP2Result]:
    """A step and its result, with the share of the machine that its worker has.

    Raises
    ------
    Dfmp2Error : of the run, with the name of the step in front
    """
    step = unit.step
    share = replace(step.options, threads=threads, memory=memory)
    try:
        result = unit.compute(
            *(step.molecule, share), start=unit.start, listener=Silent(), command=unit.command, doubt_units=False
        )
    except Dfmp2Error as error:
        raise type(error)(f"{step.who}: {error}") from error
    return step, replace(result, options=step.options)


def by_workers(workers: int, units: Sequence[Unit]) -> Iterator[tuple[Step, MP2Result]]:
    """Steps with their results, in the order in which `workers` processes of this host finish them.

    Raises
    ------
    Dfmp2Error : of a step, or of workers that die
    """

    def call(slot: Any, unit: Unit) -> Call:
        return compute_unit, unit, slot.threads, slot.memory

    options = units[0].step.options
    count = min(workers, len(units))
    with local_pool(options.backend, count, options.threads, options.memory) as pool:
        pool.grow(count)
        yield from share_out(pool, units, call)
