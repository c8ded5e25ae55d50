"""What a fleet would make of a batch or of one molecule: reads, plans and estimates; nothing is computed."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dfmp2 import calibration, planning, resources
from dfmp2.batch.inputs import read_input
from dfmp2.batch.manifest import Batch, Item
from dfmp2.batch.outlook import look_ahead
from dfmp2.errors import InputError
from dfmp2.fleet import many
from dfmp2.fleet.instances import Fleet, Instance
from dfmp2.fleet.item import misfit, share_of
from dfmp2.fleet.job import check_times, make_job
from dfmp2.fleet.large import Network, spread_out
from dfmp2.fleet.many import Estimate, Misfit, Molecule
from dfmp2.fleet.queue import Store
from dfmp2.fleet.rates import Host
from dfmp2.fleet.report import Scaling
from dfmp2.fleet.tiles import TileTimes
from dfmp2.forecast import Rates
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.scratch import speed
from dfmp2.scratch.folder import choose_root
from dfmp2.workload import Workload

BACKEND = "cpu"  # whose rates are scaled to other machines
HERE = "this host"


@dataclass(frozen=True, slots=True)
class Ask:
    """How one molecule is to be spread out.

    Attributes
    ----------
    ranks : numbers to show; counts : numbers of instances instead, each full of ranks; () for those of `ranks`
    store : the shared counter
    measured : tile times, None for those of the rates
    seed : of the draw from them, None to replay them
    tiles_only : hand out tiles also across instances, where `dfmp2.ranks` hands out strips of rows
    """

    ranks: tuple[int, ...]
    counts: tuple[int, ...]
    store: Store
    measured: TileTimes | None
    seed: int | None
    tiles_only: bool = False


def this_host(options: Options) -> Host:
    """Rates of this host as far as they were measured."""
    threads = options.threads or resources.usable_cores()
    rates = calibration.load(BACKEND, threads)
    disk = speed.load(choose_root(options.scratch))
    return Host(rates or Rates(), threads, disk or speed.BUILT_IN, rates is not None)


def host_instance(host: Host) -> Instance:
    """This host as an instance without a price."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    today = "the last calibration" if host.measured else "no measurement"
    return Instance(HERE, host.threads, host.threads, memory, None, "", "", today)


def estimate_many(
    batch: Batch, fleet: Fleet, counts: Sequence[int], *, chained: bool
) -> tuple[list[Estimate], list[Misfit], Host]:
    """Every kind of instance in every number.

    Raises
    ------
    InputError : PySCF is missing
    """
    survey, sizes = look_ahead(batch)
    works, loads = survey.works(sizes), survey.workloads(sizes)
    molecules = [Molecule(item.name, load, work) for item, load, work in zip(batch.items, loads, works, strict=True)]
    unread = [
        Misfit(one.name, "every instance", str(survey.errors.get(place, "")) or "it will be refused")
        for place, one in enumerate(molecules)
        if one.size is None
    ]
    host = this_host(batch.items[0].settings.options)
    found, misfits = [], unread
    for instance in fleet.instances:
        rows, missing = many.estimate(molecules, instance, counts, host, chained=chained)
        found += rows
        misfits += missing
    return found, misfits, host


def choose(batch: Batch, name: str | None) -> Item:
    """The item to spread out: the one that is named, or the only one.

    Raises
    ------
    InputError : there is no such item, or none was named among several
    """
    if name is None and len(batch.items) == 1:
        return batch.items[0]
    found = [item for item in batch.items if name in (item.name, item.molecule)]
    if not found:
        raise InputError(f"--molecule {name}: expected one of the batch's items, such as {batch.items[0].name}")
    return found[0]


def workload_of(item: Item, listener: Listener) -> Workload:
    """Sizes of one molecule.

    Raises
    ------
    Dfmp2Error : `dfmp2 run` would refuse it
    """
    options = replace(item.settings.options, backend=BACKEND, memory=None)
    molecule = read_input(item).molecule
    return planning.sizes(molecule, options, listener, scf=True)


def estimate_large(work: Workload, fleet: Fleet, host: Host, ask: Ask) -> tuple[list[Scaling], list[Misfit]]:
    """One molecule on the ranks of every kind of instance.

    Raises
    ------
    InputError : the tile times are of another molecule
    """
    if ask.measured is not None:
        check_times(work, ask.measured)
    found, misfits = [], []
    for instance in fleet.instances:
        reason = misfit(work, instance, share_of(instance, 1))
        if reason:
            misfits.append(Misfit("the molecule", instance.name, reason))
            continue
        job = make_job(work, instance, host, ask.measured, ask.seed)
        network = Network(ask.store, instance.network, fleet.storage, instance.ranks, ask.tiles_only)
        ranks = [instance.ranks * count for count in ask.counts] or list(ask.ranks)
        rows = tuple(spread_out(job, number, network) for number in ranks)
        found.append(Scaling(instance, job, network, rows))
    return found, misfits


def shared_storage(fleet: Fleet) -> str:
    """What is assumed of how B travels."""
    if fleet.storage is None and all(math.isinf(one.network) for one in fleet.instances):
        return "B reaches other instances at no cost: give network_gb_per_s and [storage] in the fleet's file"
    shared = fleet.storage
    return "B is written to and read from storage at " + (
        "the speed of each instance's network"
        if shared is None
        else f"{shared.write / 1e9:g} and {shared.read / 1e9:g} GB/s for all instances together ({shared.date})"
    )
