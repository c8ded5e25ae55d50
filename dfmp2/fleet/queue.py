"""The queue of pair tiles by discrete events: ranks ask a shared counter for the next tile until none is left.

    a rank asks at t        the request reaches the counter at t + wire, wire = (latency - service) / 2
    the counter answers     one request after the other, `service` seconds each
    the answer arrives      wire later; the rank computes that tile, and asks again

Tiles are handed out in the order of `mp2.tiling`, the large ones first. A rank that is told that none is left stops.
Limits: without latency this is greedy list scheduling, at most 2 - 1/R times the best possible (Graham, Bell Syst.
Tech. J. 45, 1563 (1966)); with many ranks the counter answers one request per `service`, whatever they compute.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

# Of `dfmp2.ranks`: a rank takes a number, numbers its result and sends it; rank 0 looks for it, gets it and removes it.
WAITED, REQUESTS = 2, 6


@dataclass(frozen=True, slots=True)
class Store:
    """The shared counter.

    Attributes
    ----------
    latency : s from a request to its answer while nobody else asks
    service : of these, s during which the counter can answer nobody else
    """

    latency: float = 0.0
    service: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.service <= self.latency:
            raise ValueError(f"service {self.service} s is not between 0 and the latency {self.latency} s")


@dataclass(frozen=True, slots=True)
class Course:
    """What happened to a queue.

    Attributes
    ----------
    makespan : s until the last rank knows that nothing is left
    computing : s of tiles, summed over ranks
    asking : s between requests and answers, summed over ranks
    tiles : tiles of each rank
    """

    makespan: float
    computing: float
    asking: float
    tiles: tuple[int, ...]


def drain(times: Sequence[float], ranks: int, store: Store) -> Course:
    """Let `ranks` ranks empty a queue of tiles that take `times` seconds, in this order."""
    wire = (store.latency - store.service) / 2
    counts = [0] * ranks
    waiting = [(0.0, rank) for rank in range(ranks)]  # (when a rank asks, rank): a heap already
    free = makespan = asking = 0.0
    coming = iter(times)
    while waiting:
        asked, rank = heapq.heappop(waiting)
        free = max(asked + wire, free) + store.service
        told = free + wire
        asking += told - asked
        tile = next(coming, None)
        if tile is None:
            makespan = max(makespan, told)
        else:
            counts[rank] += 1
            heapq.heappush(waiting, (told + tile, rank))
    return Course(makespan, sum(times), asking, tuple(counts))
