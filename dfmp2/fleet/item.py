"""One molecule on one machine: predicted seconds per stage and the memory it needs there, or why it cannot run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from dfmp2.backends.base import Limits
from dfmp2.backends.cpu import CpuBackend
from dfmp2.backends.nki.costs import prediction
from dfmp2.backends.nki.costs.prediction import Prediction
from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.fleet.instances import Instance
from dfmp2.fleet.rates import Host, disk_on, rates_on
from dfmp2.forecast import seconds
from dfmp2.memory import MemoryPlan
from dfmp2.planning import memory_plan, trainium_shapes
from dfmp2.record import Timings
from dfmp2.traffic import traffic
from dfmp2.units import format_bytes
from dfmp2.workload import Workload

PROGRAM = 120 * 10**6  # bytes of Python and its libraries before a run (measured: 100 to 115 MB)
USABLE = 0.9  # of the memory of an instance; as `dfmp2 batch run` takes of what is free
LEAST_BLOCK = 16  # fitting functions in a block of integrals, where the sizes of shells are not known
EXACT_ONLY = "--precision fp64 cannot be had on Trainium"


@dataclass(frozen=True, slots=True)
class Share:
    """What one process has of an instance: threads, bytes, cores of an accelerator."""

    threads: int
    memory: int
    accelerators: int


def share_of(instance: Instance, processes: int) -> Share:
    """An equal part of an instance."""
    return Share(
        max(1, instance.cores // processes),
        int(USABLE * instance.memory) // processes,
        0 if not instance.accelerator else max(1, instance.accelerators // processes),
    )


def planned(work: Workload, share: Share) -> MemoryPlan:
    """Memory of a run on the host part of a share."""
    known = work if work.block_functions > 1 else replace(work, block_functions=LEAST_BLOCK)
    return memory_plan(known, limits_of(share.threads), share.threads, program=PROGRAM, budget=share.memory)


def limits_of(count: int) -> Limits:
    """Of the host's own backend with `count` threads."""
    return CpuBackend(count).limits


def misfit(work: Workload, instance: Instance, share: Share) -> str:
    """Why a molecule cannot be computed with this share, "" if it can."""
    plan = planned(work, share)
    if not plan.fits:
        return f"needs {format_bytes(plan.least)}, has {format_bytes(share.memory)}"
    if not instance.accelerator:
        return ""
    if work.precision == "fp64":
        return EXACT_ONLY
    return "; ".join(one.obstacle.partition(": ")[0] for one in accelerated(work, instance) if one.obstacle)


def timings(work: Workload, instance: Instance, share: Share, host: Host) -> Timings:
    """Predicted wall time per stage, s.

    Pair energies are computed on the accelerator where there is one and their certificate on one core of the host; the
    predictions for Trainium were never measured on a device.
    """
    plan, rates = planned(work, share), rates_on(instance, share.threads, host)
    moved = traffic(work, plan, limits_of(share.threads))
    found = seconds(work, rates, moved, disk_on(instance, host))
    if not instance.accelerator:
        return found
    pairs = sum(one.device + one.dispatch + one.link for one in accelerated(work, instance)) / share.accelerators
    pairs += work.flops()["pairs_fp64"] / rates_on(instance, 1, host).pairs_fp64
    return replace(found, pair_energies=pairs, total=found.total - found.pair_energies + pairs)


def accelerated(work: Workload, instance: Instance) -> tuple[Prediction, ...]:
    """Pair energies on one core of the accelerator; nothing where there is nothing to correlate."""
    return _predicted(trainium_shapes(work), instance.accelerator)


@lru_cache(maxsize=4096)
def _predicted(shapes: tuple[Shape, ...], chip: str) -> tuple[Prediction, ...]:
    return prediction.predict(shapes, chips=(chip,))
