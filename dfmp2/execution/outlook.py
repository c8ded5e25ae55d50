"""What a batch will need: sizes, time and memory of every item, or why it will be refused, and the
shards that divide it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dfmp2.errors import Dfmp2Error, InputError
from dfmp2.execution.batch import Work, composition_of, plan_item, shards, time_in_worker, works
from dfmp2.execution.items import Input, of_one_worker, read_inputs
from dfmp2.execution.manifest import Batch
from dfmp2.execution.pool import WorkerShare
from dfmp2.host.scratch import require_space
from dfmp2.planning.plan import PlannedRun
from dfmp2.planning.sizes import Workload
from dfmp2.planning.system import workload


@dataclass(frozen=True, slots=True)
class Prospect:
    """What an item will need, or why it will be refused.

    Attributes
    ----------
    run : its plan, None if its input will be refused
    error : why it will be refused, as the item itself will report; None if it will not
    """

    run: PlannedRun | None
    error: Dfmp2Error | None

    @property
    def seconds(self) -> float:
        """Time in a worker that has loaded its libraries, of one step of an optimisation, s; 0 if
        it will be refused."""
        if self.run is None or self.error is not None:
            return 0.0
        return time_in_worker(self.run.plan.timings, self.run.plan.rates)


def foresee_shards(
    batch: Batch, count: int, share: WorkerShare, *, chained: bool = False
) -> dict[str, Any]:
    """The object that `batch plan --json` prints: what all items need in `count` shards, whether
    complete or not.

    `nao`, `naux` and `memory_bytes` are None for an item whose input will be refused, `error` says
    why an item will be refused with exit code `code`, and `measured` whether the times are based on
    rates of this machine. The seconds of an optimisation are those of one step.

    Parameters
    ----------
    share : what each worker may use
    """
    inputs = read_inputs(batch)
    prospects = _prospects(inputs, share)
    rows, parts = dict[int, dict[str, Any]](), []
    items = works(inputs, _loads(inputs, prospects))
    for number, members in enumerate(shards(items, count, chained=chained)):
        for work in members:
            row = _row(inputs[work.place], work, number, prospects[work.place])
            rows[work.place] = row | {"error": str(batch.worded(row["error"]))}
        spent = sum(rows[work.place]["seconds"] for work in members)
        parts.append({"shard": f"{number}/{count}", "items": len(members), "seconds": spent})
    runs = [one.run for one in prospects if one.run is not None]
    return {
        "total": len(rows),
        "seconds": sum(part["seconds"] for part in parts),
        "measured": bool(runs) and all(run.plan.rates.date for run in runs),
        "threads": share.threads,
        "memory_bytes": share.memory,
        "shards": parts,
        "items": [row for _, row in sorted(rows.items())],
    }


def _prospects(inputs: list[Input], share: WorkerShare) -> list[Prospect]:
    """What each item needs; of several with the same atoms and options, the first one is
    planned."""
    found, known = [], dict[str, PlannedRun]()
    for item, molecule, *_ in inputs:
        if isinstance(molecule, InputError):
            found.append(Prospect(None, molecule))
            continue
        key = f"{composition_of(molecule, item.options)} {item.task}"
        run = known.get(key)
        try:
            if run is None:
                run = known[key] = plan_item(item, molecule, share)
            run.plan.memory.require()
            if run.plan.memory.scratch:
                require_space(run.setup.scratch, run.plan.memory.scratch)
        except Dfmp2Error as error:
            found.append(Prospect(run, error))
        else:
            found.append(Prospect(run, None))
    return found


def _loads(inputs: list[Input], prospects: list[Prospect]) -> dict[str, Workload]:
    """The sizes of planned items by composition, as `works` finds them."""
    loads = dict[str, Workload]()
    for (item, molecule, *_), prospect in zip(inputs, prospects, strict=True):
        run = prospect.run
        if run is None or isinstance(molecule, InputError):
            continue
        composition = composition_of(molecule, item.options)
        if composition not in loads:
            options = item.options.settled(molecule.multiplicity)
            loads[composition] = workload(run.system, options, run.core, run.kind)
    return loads


def _row(given: Input, work: Work, shard: int, prospect: Prospect) -> dict[str, Any]:
    """The row of an item in `foresee_shards`."""
    row = {
        "name": given.item.name,
        "molecule": given.item.molecule,
        "shard": shard,
        "task": given.item.task,
        "nao": None,
        "naux": None,
        "seconds": prospect.seconds,
        "memory_bytes": None,
        "code": 0,
        "error": "",
    }
    if prospect.run is not None:
        planned = prospect.run.plan
        row["nao"], row["naux"] = planned.work.nao, planned.work.naux
        row["memory_bytes"] = {
            "peak": planned.memory.predicted_peak,
            "least": planned.memory.least,
            "comfortable": planned.memory.comfortable,
            "scratch": planned.memory.scratch,
        }
    if prospect.error is not None:
        row["code"] = prospect.error.exit_code
        row["error"] = of_one_worker(prospect.error.message)
    return row
