"""Tiles of pairs on a backend, wherever B lies and however many ranks there are.

How they are handed out depends on where B is:

    resident        every worker of every rank takes the next tile as soon as it is idle
    on disk         ranks take strips of rows; within a strip B passes by (`dfmp2.mp2.streaming`)
    untransformed   the rows of B that the tiles need are made at once (`dfmp2.mp2.gathering`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import Any

from dfmp2.backends.base import Backend, Operand, PairTerms, Tile
from dfmp2.counting import Counter, Take
from dfmp2.mp2.gathering import UntransformedOperand, gathered
from dfmp2.mp2.streaming import StoredOperand, batches, original
from dfmp2.ranks.team import ALONE, Queue, Result, Team, taken

AnyOperand = Operand | StoredOperand | UntransformedOperand
STRIPS = 4  # per rank: few enough to read B seldom, enough that nobody waits long for the last


def evaluate(
    backend: Backend,
    left: AnyOperand,
    right: AnyOperand,
    tiles: list[Tile],
    team: Team = ALONE,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Tile, PairTerms]]:
    """Tiles with their terms as they finish; every entry has its own place, so the order is free.

    Parameters
    ----------
    team : ranks that share the tiles; rank 0 gets all terms, the others none
    stop : whether no more tiles are to be begun
    """
    resident = isinstance(left, Operand) and isinstance(right, Operand)
    owned = getattr(backend, "owners", None) is not None
    single = resident and not owned
    place = {tile: number for number, tile in enumerate(tiles)}
    units = [[tile] for tile in tiles] if single else strips(tiles, STRIPS * team.size if team.size > 1 else 1)

    def work(queue: Queue) -> Iterator[Result]:
        if isinstance(left, Operand) and isinstance(right, Operand) and single:
            for number, terms in _taken(backend, left, right, tiles, queue.take):
                yield number, _arrays(terms)
            return
        for number in taken(queue):
            for tile, terms in _whole(backend, left, right, units[number]):
                yield place[tile], _arrays(terms)
                if stop() or team.stopping:
                    return

    for number, arrays in team.gather(len(units), work, stop):
        yield tiles[number], PairTerms(arrays[0], arrays[1] if len(arrays) > 1 else None)


def _arrays(terms: PairTerms) -> tuple[Any, ...]:
    return (terms.direct,) if terms.exchange is None else (terms.direct, terms.exchange)


def strips(tiles: Sequence[Tile], most: int) -> list[list[Tile]]:
    """Tiles by neighbouring rows, in at most so many parts."""
    rows = sorted({(tile.i0, tile.i1) for tile in tiles})
    count = min(most, len(rows))
    strip = {row: number * count // len(rows) for number, row in enumerate(rows)}
    return [[tile for tile in tiles if strip[tile.i0, tile.i1] == number] for number in range(count)]


def _whole(
    backend: Backend, left: AnyOperand, right: AnyOperand, tiles: list[Tile]
) -> Iterator[tuple[Tile, PairTerms]]:
    """All of these tiles, by this rank."""
    if isinstance(left, StoredOperand) and isinstance(right, StoredOperand):
        for near, far, local in batches(backend, left, right, tiles):
            yield from original(local, _resident(backend, near, far, list(local)))
    elif isinstance(left, Operand) and isinstance(right, Operand):
        yield from _resident(backend, left, right, tiles)
    elif isinstance(left, UntransformedOperand) and isinstance(right, UntransformedOperand):
        near, far, local = gathered(backend, left, right, tiles)
        yield from original(local, _resident(backend, near, far, list(local)))
    else:
        raise TypeError("both operands must be resident, or both on disk, or both untransformed")


def _resident(backend: Backend, left: Operand, right: Operand, tiles: list[Tile]) -> Iterator[tuple[Tile, PairTerms]]:
    share = getattr(backend, "owners", None)  # of workers that hold different parts of an operand, each has its tiles
    if share is not None and backend.limits.workers > 1:
        yield from _owned(backend, left, right, tiles, share(left, right, tiles))
        return
    for number, terms in _taken(backend, left, right, tiles, Counter(len(tiles)).take):
        yield tiles[number], terms


def _taken(
    backend: Backend, left: Operand, right: Operand, tiles: list[Tile], take: Take
) -> Iterator[tuple[int, PairTerms]]:
    """Numbers of the tiles that this rank takes, and their terms."""
    if backend.limits.workers == 1:
        while (number := take()) is not None:
            yield number, backend.pair_terms(left, right, tiles[number])
        return
    done: SimpleQueue[tuple[int, PairTerms] | Future[None]] = SimpleQueue()
    cancelled: list[bool] = []

    def serve() -> None:
        while not cancelled and (number := take()) is not None:
            done.put((number, backend.pair_terms(left, right, tiles[number])))

    with ThreadPoolExecutor(backend.limits.workers) as pool:
        try:
            serving = backend.limits.workers
            for _ in range(serving):
                pool.submit(serve).add_done_callback(done.put)
            while serving:
                item = done.get()
                if isinstance(item, Future):
                    item.result()  # its error, if it has one
                    serving -= 1
                else:
                    yield item
        finally:
            cancelled.append(True)  # an error or Ctrl-C must not wait for the rest


def _owned(
    backend: Backend, left: Operand, right: Operand, tiles: list[Tile], owners: list[int]
) -> Iterator[tuple[Tile, PairTerms]]:
    """Every tile on the worker that holds its part of the operands."""
    pools = [ThreadPoolExecutor(1) for _ in range(backend.limits.workers)]
    try:
        futures = {
            pools[owner].submit(backend.pair_terms, left, right, tile): tile
            for tile, owner in zip(tiles, owners, strict=True)
        }
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
