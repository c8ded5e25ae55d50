"""How the pair tiles of a molecule reach the workers: one by one, or by strips of rows.

    one host, B in memory     every thread of every rank takes the next tile
    several hosts, B on disk  ranks take strips of rows; B passes by while the threads of the rank compute their tiles

The channels of spins are done one after the other (`dfmp2.mp2.evaluation`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dfmp2.backends.base import Tile
from dfmp2.fleet.queue import REQUESTS, WAITED, Store, drain
from dfmp2.mp2.evaluation import STRIPS, strips


@dataclass(frozen=True, slots=True)
class Channel:
    """Tiles of two spins.

    Attributes
    ----------
    tiles, seconds : in the order of the queue, and what each takes one worker
    row_bytes : of an occupied orbital of the right side on disk
    """

    tiles: tuple[Tile, ...]
    seconds: tuple[float, ...]
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Course:
    """Seconds of the pair step on some ranks, and what they would be.

    Attributes
    ----------
    makespan : all of it; unread : if B were there at once; free : also without the counter
    limit : what keeps the work from being shared out evenly
    """

    makespan: float
    unread: float
    free: float
    limit: str


def by_tiles(channels: tuple[Channel, ...], workers: int, store: Store) -> Course:
    """Every worker takes the next tile."""
    each = Store(max(WAITED * store.latency, REQUESTS * store.service), REQUESTS * store.service)
    told = sum(drain(one.seconds, workers, each).makespan for one in channels)
    free = sum(drain(one.seconds, workers, Store()).makespan for one in channels)
    return Course(told, told, free, _limit("tile", "tiles", [one.seconds for one in channels], workers))


def by_strips(
    channels: tuple[Channel, ...], ranks: int, at_once: int, store: Store, link: float, storage: float
) -> Course:
    """Every rank takes the next strip and computes its tiles `at_once`.

    Parameters
    ----------
    link, storage : bytes of B per second that can come to one rank, and that storage gives to all
    """
    makespan = unread = free = 0.0
    units = []
    for one in channels:
        cut = list(_cut(one, STRIPS * ranks))
        computing = [drain(seconds, at_once, Store()).makespan for seconds, _ in cut]
        bandwidth = min(link, storage / min(ranks, len(cut)))
        reading = [max(a, size / bandwidth) for a, (_, size) in zip(computing, cut, strict=True)]
        service = REQUESTS * store.service * len(one.tiles) / len(cut)  # terms are sent while the threads compute
        each = Store(max(store.latency, service), service)
        makespan += drain(reading, ranks, each).makespan
        unread += drain(computing, ranks, each).makespan
        free += drain(computing, ranks, Store()).makespan
        units.append(tuple(computing))
    return Course(makespan, unread, free, _limit("strip of rows", "strips of rows", units, ranks))


def _cut(channel: Channel, most: int) -> Iterator[tuple[list[float], int]]:
    """Seconds of the tiles of each strip, and bytes of B that have to pass by."""
    seconds = dict(zip(channel.tiles, channel.seconds, strict=True))
    for strip in strips(list(channel.tiles), most):
        orbitals = {i for tile in strip for span in ((tile.i0, tile.i1), (tile.j0, tile.j1)) for i in range(*span)}
        yield [seconds[tile] for tile in strip], len(orbitals) * channel.row_bytes


def _limit(one: str, many: str, units: list[tuple[float, ...]], takers: int) -> str:
    """Of the channel with most work: why its units cannot be shared out evenly."""
    times = max(units, key=math.fsum, default=())
    if takers > len(times):
        return f"too few {many} ({len(times)} for {takers})"
    longest = max(times)
    if longest > math.fsum(times) / takers:
        return f"the longest {one} ({longest:.3g} s) is longer than an equal share"
    return f"{many} end unevenly"
