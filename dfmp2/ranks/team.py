"""What a stage of a calculation knows of the other ranks; it never knows how they are reached.

    queue    numbers 0..count-1, each taken by one rank, in order
    gather   results on their way to rank 0
    tell     values of rank 0 to all
    array    memory that all ranks have in common

All ranks call the same methods in the same order. What a rank computes depends on the number it took and never on who
took it, so the number of ranks never changes a bit of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dfmp2.checkpoint.encoding import Section
from dfmp2.counting import Counter

Result = tuple[int, tuple[NDArray[np.float64], ...]]


class Queue(Protocol):
    """Pieces of work, known by number; every thread of every rank may take some."""

    def take(self) -> int | None:
        """The next number, None when there is no more, or the run is to stop."""


class Team(Protocol):
    """The ranks of one calculation.

    Attributes
    ----------
    rank, size : this rank, from 0, and their number
    local : ranks on this host
    hosts : of each rank
    in_memory : whether `array` can be used: all ranks are on one host
    """

    rank: int
    size: int
    local: int
    hosts: tuple[str, ...]
    in_memory: bool

    @property
    def stopping(self) -> bool:
        """Whether some rank was asked to stop."""

    def queue(self, count: int) -> Queue:
        """A new queue of `count` numbers."""

    def gather(
        self, count: int, work: Callable[[Queue], Iterator[Result]], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Result]:
        """On rank 0 what all ranks make of `count` pieces, as it comes; elsewhere nothing, when all is sent.

        Parameters
        ----------
        work : results of the pieces that this rank takes from a queue
        stop : whether nothing more is to be taken; rank 0 asks it for all
        """

    def told(self, make: Callable[[], Section]) -> Section:
        """What rank 0 makes, on every rank."""

    def collect(self, section: Section) -> list[Section]:
        """The sections of all ranks, in order, on every rank."""

    def meet(self) -> None:
        """Wait for all ranks."""

    def array(self, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[np.float64]:
        """Memory that all ranks of a host have in common; its content is anything."""


class Alone:
    """A process by itself."""

    rank, size, local, in_memory, stopping = 0, 1, 1, True, False
    hosts: tuple[str, ...] = ()

    def queue(self, count: int) -> Counter:
        """Numbers for the threads of this process."""
        return Counter(count)

    def gather(
        self, count: int, work: Callable[[Queue], Iterator[Result]], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Result]:
        """What it makes itself."""
        return work(Counter(count, stop))

    def told(self, make: Callable[[], Section]) -> Section:
        """What it says itself."""
        return make()

    def collect(self, section: Section) -> list[Section]:
        """Its own."""
        return [section]

    def meet(self) -> None:
        """Nobody to wait for."""

    def array(self, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[np.float64]:
        """Ordinary memory."""
        return np.empty(shape, dtype)


ALONE = Alone()


def taken(queue: Queue) -> Iterator[int]:
    """The numbers this rank takes."""
    while (number := queue.take()) is not None:
        yield number
