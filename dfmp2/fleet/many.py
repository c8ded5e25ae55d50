"""Many molecules on k instances: the shards of `dfmp2 batch run --shard I/k`, each computed by one instance's workers.

wall time       boot + the longest shard            instance hours   sum over shards of boot + shard
cost            instance hours x price              interruptions    rate x instance hours, each costs a boot and
                                                                    what was done since the last checkpoint
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from dfmp2.batch.order import Work, arrange, shards
from dfmp2.batch.sizes import PER_ITEM
from dfmp2.checkpoint.journal import EVERY
from dfmp2.fleet.instances import Instance
from dfmp2.fleet.item import Share, misfit, share_of, timings
from dfmp2.fleet.rates import Host, rates_on
from dfmp2.workload import Workload

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Molecule:
    """One item of a batch: sizes, None when it will be refused anyway, and what decides its shard."""

    name: str
    size: Workload | None
    work: Work


@dataclass(frozen=True, slots=True)
class Misfit:
    """An item that an instance cannot compute, and why."""

    item: str
    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """k instances of a kind.

    Attributes
    ----------
    instance, count : name and k
    wall : s from the request until all is done
    hours, cost : paid for, of all instances together, in the currency of the fleet
    shards : s of each instance without its boot
    interruptions : expected; wall, hours and cost contain what they cost
    items : computed; the others are misfits
    """

    instance: str
    count: int
    wall: float
    hours: float
    cost: float
    shards: tuple[float, ...]
    interruptions: float
    items: int

    @property
    def balance(self) -> float:
        """Mean shard to longest shard, 1 when all end together."""
        longest = max(self.shards)
        return sum(self.shards) / len(self.shards) / longest if longest else 1.0


def estimate(
    molecules: Sequence[Molecule], instance: Instance, counts: Sequence[int], host: Host, *, chained: bool = False
) -> tuple[list[Estimate], list[Misfit]]:
    """Time and cost on each of `counts` instances of one kind, and what does not fit there."""
    share = share_of(instance, instance.workers)
    seconds, misfits = _seconds(molecules, instance, share, host)
    ready = rates_on(instance, share.threads, host).start
    found = []
    for count in counts:
        loads = []
        for shard in shards([one.work for one in molecules], count, chained=chained):
            mine = [work for work in shard if work.place in seconds]
            runs = [
                sum(seconds[place] for place in run.places)
                for run in arrange(mine, parts=instance.workers, chained=chained)
            ]
            loads.append(ready + makespan(runs, instance.workers) if runs else 0.0)
        found.append(_paid(instance, count, loads, len(seconds)))
    return found, misfits


def makespan(runs: Sequence[float], workers: int) -> float:
    """When the last of `workers` workers is done that take runs in this order as they become free, s."""
    free = [0.0] * workers
    for run in runs:
        heapq.heappush(free, heapq.heappop(free) + run)
    return max(free)


def _seconds(
    molecules: Sequence[Molecule], instance: Instance, share: Share, host: Host
) -> tuple[dict[int, float], list[Misfit]]:
    """Seconds of the items that fit, by their place in the manifest, and those that do not."""
    seconds, misfits = {}, []
    start = rates_on(instance, share.threads, host).start
    for one in molecules:
        if one.size is None:
            continue
        reason = misfit(one.size, instance, share)
        if reason:
            misfits.append(Misfit(one.name, instance.name, reason))
        else:
            seconds[one.work.place] = PER_ITEM + timings(one.size, instance, share, host).total - start
    return seconds, misfits


def _paid(instance: Instance, count: int, loads: Sequence[float], items: int) -> Estimate:
    used = [load for load in loads if load]
    running = sum(used) + len(used) * instance.boot
    interruptions = instance.interruptions * running / HOUR
    lost = interruptions * (instance.boot + EVERY)
    hours = (running + lost) / HOUR
    wall = (instance.boot + max(used) + lost / len(used)) if used else 0.0
    return Estimate(
        instance.name, count, wall, hours, hours * (instance.price or 0.0), tuple(loads), interruptions, items
    )
