"""One large molecule on R ranks: what is serial, what is shared out, and what eats the rest.

    T(R) = serial + pieces of integrals, transformation, fit, certificate + B to common storage + queue + terms

    loss        what T(R) has beyond T(1)/R, split into causes that add up to it
    serial      start, SCF: (1 - 1/R) of them
    pieces      integrals and the rest come in blocks: the fullest rank against the mean
    tiles       the queue of tiles or strips against pairs that could be cut at will
    store       what asking the counter adds
    B, terms    B written to and read from common storage, pair terms on their way to rank 0

The design is that of `dfmp2.ranks`: rank 0 converges the SCF with its threads while the others wait; blocks, groups of
orbitals and tiles are handed out by a shared counter (`dfmp2.fleet.strips`). Everything here is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dfmp2.fleet.queue import Store
from dfmp2.fleet.strips import Channel, by_strips, by_tiles
from dfmp2.scratch.speed import DiskRates

CAUSES = {
    "serial": "the serial part (start, SCF)",
    "pieces": "integrals, transformation and fit come in too few pieces",
    "store": "requests to the shared counter",
    "b": "B has to be written, read by every rank, or brought to accelerators",
    "terms": "pair terms have to reach rank 0",
}
IN_PAIR_STEP = ("tiles", "store", "b", "terms")


@dataclass(frozen=True, slots=True)
class Pieces:
    """Equal pieces of work: seconds of each, how many, and how many of them a rank does at the same time."""

    seconds: float
    count: int
    at_once: int

    def on(self, ranks: int) -> float:
        """Seconds on some ranks."""
        return self.seconds * -(-self.count // (ranks * self.at_once))

    @property
    def ideal(self) -> float:
        """Seconds on one rank if they could be cut at will."""
        return self.seconds * self.count / self.at_once


@dataclass(frozen=True, slots=True)
class Job:
    """A molecule as ranks of one kind see it.

    Attributes
    ----------
    serial : name -> s of what rank 0 does alone
    shared : name -> what comes in pieces of equal size
    channels : the pair tiles
    at_once : tiles a rank computes at the same time
    b_bytes, terms_bytes : of B and of the pair terms of all pairs
    upload : s in which each rank takes B to its accelerator, 0 on the host
    """

    serial: dict[str, float]
    shared: dict[str, Pieces]
    channels: tuple[Channel, ...]
    at_once: int
    b_bytes: int
    terms_bytes: int
    upload: float = 0.0

    @property
    def tiles(self) -> int:
        """Number of pair tiles."""
        return sum(len(one.tiles) for one in self.channels)

    @property
    def computing(self) -> float:
        """Seconds of all pair tiles on one worker."""
        return math.fsum(seconds for one in self.channels for seconds in one.seconds)

    @property
    def pair_single(self) -> float:
        """Seconds of the pair step on one rank, tiles cut at will."""
        return self.upload + self.computing / self.at_once

    @property
    def single(self) -> float:
        """Seconds of everything on one rank, all of it cut at will."""
        return sum(self.serial.values()) + sum(one.ideal for one in self.shared.values()) + self.pair_single

    @property
    def serial_fraction(self) -> float:
        """What rank 0 does alone, of all that one rank would do: Amdahl's bound of the speed-up is its inverse."""
        return sum(self.serial.values()) / self.single


@dataclass(frozen=True, slots=True)
class Network:
    """What lies between the ranks.

    Attributes
    ----------
    store : the shared counter
    link : bytes per second of one instance
    storage : of the shared file, all instances together; None where the link is all that counts
    ranks_each : ranks of one instance
    tiles_only : hand out tiles also where ranks are on several instances, each of which has read all of B before:
        not what `dfmp2.ranks` does, but what the queue itself could do
    """

    store: Store
    link: float
    storage: DiskRates | None
    ranks_each: int
    tiles_only: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """The molecule on some ranks.

    Attributes
    ----------
    ranks, instances : numbers
    stages : name -> s; `B` is what its common storage costs before the queue, `pairs` the queue
    losses : cause -> s beyond an R-th of one rank's time
    total, single : s on these ranks, and on one
    pair_step, pair_single : s of B, queue and terms, and of the queue on one rank
    limit : what keeps tiles or strips from being shared out evenly
    """

    ranks: int
    instances: int
    stages: dict[str, float]
    losses: dict[str, float]
    total: float
    single: float
    pair_step: float
    pair_single: float
    limit: str

    @property
    def speedup(self) -> float:
        """Of the whole job."""
        return self.single / self.total

    @property
    def efficiency(self) -> float:
        """Of the whole job."""
        return self.speedup / self.ranks

    @property
    def pair_speedup(self) -> float:
        """Of the pair step."""
        return self.pair_single / self.pair_step

    @property
    def pair_efficiency(self) -> float:
        """Of the pair step."""
        return self.pair_speedup / self.ranks

    def reason(self, *, pairs_only: bool = False) -> str:
        """The largest loss, in words."""
        worst = max(IN_PAIR_STEP if pairs_only else self.losses, key=lambda cause: self.losses[cause])
        return self.limit if worst == "tiles" else CAUSES[worst]


def spread_out(job: Job, ranks: int, network: Network) -> Row:
    """Predicted times of the molecule on `ranks` ranks."""
    instances = -(-ranks // network.ranks_each)
    pieces = {name: one.on(ranks) for name, one in job.shared.items()}
    store = network.store if ranks > 1 else Store()
    read = network.storage.read if network.storage else math.inf
    b = job.upload + _stored(job.b_bytes, instances, network)
    if instances == 1 or network.tiles_only:
        found = by_tiles(job.channels, ranks * job.at_once, store)
        b += instances * job.b_bytes / min(instances * network.link, read) if instances > 1 else 0.0
    else:
        link = network.link / network.ranks_each
        found = by_strips(job.channels, ranks, job.at_once, store, link, read)
    terms = job.terms_bytes / network.link if instances > 1 else 0.0
    stages = {**job.serial, **pieces, "B": b, "pairs": found.makespan, "terms": terms}
    losses = {
        "serial": sum(job.serial.values()) * (1 - 1 / ranks),
        "pieces": sum(pieces.values()) - sum(one.ideal for one in job.shared.values()) / ranks,
        "tiles": found.free - job.computing / (ranks * job.at_once),
        "store": found.unread - found.free,
        "b": b - job.upload / ranks + found.makespan - found.unread,
        "terms": terms,
    }
    return Row(
        ranks=ranks,
        instances=instances,
        stages=stages,
        losses=losses,
        total=math.fsum(stages.values()),
        single=job.single,
        pair_step=b + found.makespan + terms,
        pair_single=job.pair_single,
        limit=found.limit,
    )


def _stored(size: int, instances: int, network: Network) -> float:
    """Seconds to write raw integrals to common storage, read them and write B; 0 on one instance, which holds B."""
    if instances == 1:
        return 0.0
    ways = (network.storage.write, network.storage.read) if network.storage else (math.inf, math.inf)
    write, read = (min(instances * network.link, way) for way in ways)
    return 2 * size / write + size / read


def falls_under(rows: Sequence[Row], limit: float = 0.5, *, pairs_only: bool = False) -> Row | None:
    """The first row whose efficiency is below a limit, None when all are above."""
    return next((row for row in rows if (row.pair_efficiency if pairs_only else row.efficiency) < limit), None)
