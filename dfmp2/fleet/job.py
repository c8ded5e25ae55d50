"""A molecule as a job for ranks: what is serial, what comes in pieces, and the seconds of its tiles on one machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dfmp2.backends.base import Limits
from dfmp2.backends.nki.layout import EDGE
from dfmp2.errors import InputError
from dfmp2.fitting import orbital_groups
from dfmp2.fleet.instances import Instance
from dfmp2.fleet.item import accelerated, limits_of, misfit, share_of, timings
from dfmp2.fleet.large import Job, Pieces
from dfmp2.fleet.rates import Host, rates_on
from dfmp2.fleet.strips import Channel
from dfmp2.fleet.tiles import Kind, TileTimes, channels, drawn, from_rates, queue, sizes_of
from dfmp2.mp2.certificate import FRACTION, LEAST_SAMPLED
from dfmp2.workload import Workload

FLOAT64 = 8
IMPORT_TORCH = 1.0  # s, which ranks need and a plain run does not (measured by `dfmp2 bench --gemm`)


def make_job(
    work: Workload, instance: Instance, host: Host, measured: TileTimes | None = None, seed: int | None = 0
) -> Job:
    """The job on machines of one kind.

    Parameters
    ----------
    measured : tile times of this host, None for those of the rates
    seed : of the draw from them, None to replay them

    Raises
    ------
    InputError : the times are of another molecule, or it does not fit the instance
    """
    reason = misfit(work, instance, share_of(instance, 1))
    if reason:
        raise InputError(f"instance {instance.name}: {reason}: it cannot compute this molecule")
    if not queue(work, limits_of(1)):
        raise InputError("there are no pairs of electrons to correlate: ranks have nothing to share")
    threads = share_of(instance, instance.ranks).threads
    rank = replace(share_of(instance, 1), threads=threads)  # B is shared, so each rank sees all memory
    stages = timings(work, instance, rank, host)
    blocks = -(-work.naux // max(1, work.block_functions))
    groups = sum(len(orbital_groups(spin.nocc, spin.nvir, work.naux)) for spin in work.spins)
    shared = {
        "integrals": Pieces(stages.integrals / blocks, blocks, 1),
        "transform": Pieces(stages.transform / blocks, blocks, 1),
        "fit": Pieces(stages.fit * threads / max(1, groups), max(1, groups), threads),
    }
    if work.precision != "fp64":
        redone = _redone(work)
        one = work.flops()["pairs_fp64"] / rates_on(instance, 1, host).pairs_fp64 / redone
        shared["certificate"] = Pieces(one, redone, threads)
    return Job(
        serial={"start": rates_on(instance, 1, host).start + IMPORT_TORCH, "scf": stages.scf},
        shared=shared,
        channels=tuple(_channels(work, instance, host, measured, seed)),
        at_once=1 if instance.accelerator else threads,
        b_bytes=FLOAT64 * work.elements * work.naux,
        terms_bytes=FLOAT64 * 2 * sum(kind.pairs for kind in queue(work, limits_of(1))),
        upload=sum(one.link for one in accelerated(work, instance)) if instance.accelerator else 0.0,
    )


def check_times(work: Workload, measured: TileTimes) -> None:
    """Refuse tile times of another molecule.

    Raises
    ------
    InputError : sizes or precision differ
    """
    ours = sizes_of(work), "fp64" if work.precision == "fp64" else "mixed"
    if (measured.sizes, measured.precision) != ours:
        raise InputError(
            f"tile times of nocc, nvir, naux {_shown(measured.sizes)} in {measured.precision}, and this molecule has "
            f"{_shown(ours[0])} in {ours[1]}: measure its own with --measure-tiles"
        )


def _redone(work: Workload) -> int:
    """Pairs of the certificate."""
    same = [spin.nocc * (spin.nocc + 1) // 2 for spin in work.spins]
    pairs = [*same, work.spins[0].nocc * work.spins[1].nocc] if len(same) == 2 else same
    return max(1, sum(min(count, max(LEAST_SAMPLED, math.ceil(FRACTION * count))) for count in pairs))


def _channels(
    work: Workload, instance: Instance, host: Host, measured: TileTimes | None, seed: int | None
) -> Iterator[Channel]:
    limits = limits_of(1) if not instance.accelerator else Limits(("mixed",), EDGE, 1, 1, instance.memory, EDGE)
    kinds = queue(work, limits)
    seconds = iter(_seconds(work, kinds, instance, host, measured, seed))
    for (_, right), tiles in channels(work, limits).items():
        row = FLOAT64 * work.spins[right].nvir * work.naux
        if tiles:
            yield Channel(tuple(tiles), tuple(next(seconds) for _ in tiles), row)


def _seconds(
    work: Workload,
    kinds: Sequence[Kind],
    instance: Instance,
    host: Host,
    measured: TileTimes | None,
    seed: int | None,
) -> Sequence[float]:
    """Of each tile on one worker of an instance."""
    if instance.accelerator:  # blocks are padded to one shape, so all calls are alike
        found = accelerated(work, instance)
        return [sum(one.device + one.dispatch for one in found) / len(kinds)] * len(kinds)
    rates = rates_on(instance, 1, host)
    if measured is None:
        return from_rates(work, kinds, rates)
    missing = {kind.name() for kind in kinds} - set(measured.seconds)
    if missing:
        raise InputError(f"tile times without {sorted(missing)[0]}: measure them again with --measure-tiles")
    slower = host.rates.pairs_mixed / host.threads / rates.pairs_mixed
    return [slower * one for one in drawn(kinds, measured, seed)]


def _shown(sizes: Sequence[tuple[int, int, int]]) -> str:
    return " and ".join("/".join(map(str, one)) for one in sizes)
