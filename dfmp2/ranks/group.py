"""The ranks of a run by torch.distributed: gloo between processes on CPUs, and a store of small values beside it.

Waiting is sleeping: whoever waits looks into the store now and then, the more rarely the longer it lasts, so that its
cores are free and a signal is heard. Arrays go by gloo or through shared memory, never over a device's own network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dfmp2.checkpoint.encoding import Section
from dfmp2.errors import Interrupted, ResourceError
from dfmp2.ranks import shared_memory
from dfmp2.ranks.mail import Inbox, Outbox
from dfmp2.ranks.message import pack, unpack
from dfmp2.ranks.store import Store
from dfmp2.ranks.team import Queue, Result
from dfmp2.ranks.watch import Watch, final

SHORTEST, LONGEST = 0.0005, 0.05  # s between two looks
PART = 0.05  # of the time waited so far that passes until the next look
SMALL = 1 << 16  # bytes that go through the store
PATIENCE = 3.0  # s that ranks get to finish what they have begun when the run is to stop


class Group:
    """The ranks of one run; made by `dfmp2.ranks.joining`.

    Parameters
    ----------
    torch, distributed : the modules
    store : that all ranks have in common
    rank, hosts : this rank and the host of each
    local : ranks on this host

    Attributes
    ----------
    in_memory, attempt : whether all ranks see each other's memory, and the largest number of starts again of any (every
        host counts its own), after `look_around`
    saved, saving, path : as of a journal (`dfmp2.cli.signals`); rank 0 keeps that
    """

    saved, saving, path = True, False, ""

    def __init__(
        self, torch: Any, distributed: Any, store: Store, rank: int, hosts: tuple[str, ...], local: int, watch: Watch
    ) -> None:
        self._torch, self._distributed, self._store = torch, distributed, store
        self.rank, self.size, self.hosts, self.local = rank, len(hosts), hosts, local
        self.watch = watch
        self._calls = 0
        self._working = self.leaving = False
        self.in_memory, self.attempt = False, 0

    @property
    def stopping(self) -> bool:
        """Whether this rank or another was asked to stop."""
        return self.leaving or self.watch.ending is not None

    def ask_to_stop(self) -> bool:
        """Take no more work; false when there is none at hand, so that nothing is to be waited for."""
        self.leaving = True
        return self._working

    def queue(self, count: int) -> SharedQueue:
        """A queue that all ranks take from."""
        return SharedQueue(self, f"{self._next()}/taken", count)

    def add(self, key: str, amount: int = 0) -> int:
        """Change a number of the store; its new value."""
        return self._store.add(key, amount)

    def gather(
        self, count: int, work: Callable[[Queue], Iterator[Result]], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Result]:
        """On rank 0 what all ranks make of `count` pieces, as it comes; elsewhere nothing, when all is sent."""
        name = self._next()
        queue = SharedQueue(self, f"{name}/taken", count, stop)
        self._working = True
        try:
            if self.rank:
                outbox = Outbox(self._store, name, self.rank)
                for result in work(queue):
                    outbox.send(result)
                outbox.close()
            else:
                yield from self._led(name, work(queue), queue)
        finally:
            self._working = False

    def told(self, make: Callable[[], Section]) -> Section:
        """What rank 0 makes, on every rank."""
        name = self._next()
        if self.rank == 0:
            section = make()
            content = pack(section)
            small = len(content) <= SMALL
            self._store.set(name, content if small else str(len(content)))
            if not small:
                self._broadcast(bytearray(content))
            return section
        self._await(lambda: self._store.has(name))
        found = self._store.get(name)
        if found.isdigit():
            buffer = bytearray(int(found))
            self._broadcast(buffer)
            found = bytes(buffer)
        return unpack(found)

    def collect(self, section: Section) -> list[Section]:
        """The sections of all ranks, in order, on every rank."""
        name = self._next()
        self._store.set(f"{name}/{self.rank}", pack(section))
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        self._await(lambda: self._store.has(*keys))
        return [unpack(self._store.get(key)) for key in keys]

    def meet(self) -> None:
        """Wait for all ranks."""
        name = self._next()
        self.add(name, 1)
        self._await(lambda: self.add(name) >= self.size)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[np.float64]:
        """Memory that all ranks have in common.

        Raises
        ------
        ResourceError : there is none to share
        """
        made: list[shared_memory.Segment] = []

        def make() -> Section:
            made.append(shared_memory.Segment(int(np.prod(shape)) * np.dtype(dtype).itemsize))
            return Section({"path": made[0].path})

        path = self.told(make).values["path"]
        try:
            array = shared_memory.mapped(path, shape, dtype)
        except OSError as error:
            raise ResourceError(f"memory of rank 0 cannot be opened ({error.strerror})") from error
        self.meet()
        for segment in made:
            segment.close()
        return array

    def look_around(self, attempt: int) -> None:
        """Find out whether all ranks see each other's memory, and how often any was started again; all call it once."""
        made: list[shared_memory.Segment | None] = []

        def make() -> Section:
            segment, section = shared_memory.probe()
            made.append(segment)
            return section

        seen = shared_memory.reached(self.told(make))
        answers = self.collect(Section({"seen": seen, "attempt": attempt}))
        for segment in made:
            if segment is not None:
                segment.close()
        self.in_memory = all(answer.values["seen"] for answer in answers)
        self.attempt = max(int(answer.values["attempt"]) for answer in answers)

    def _next(self) -> str:
        self._calls += 1
        return str(self._calls)

    def _await(self, ready: Callable[[], bool]) -> None:
        waiting = _Wait()
        while not ready():
            if self.leaving:
                raise Interrupted("this rank was asked to stop")
            self.watch.check()
            waiting.sleep()

    def _led(self, name: str, mine: Iterator[Result], queue: SharedQueue) -> Iterator[Result]:
        """Rank 0's own results and those of the others, until all is there, or as much as can be when it is to stop."""
        inbox = Inbox(self._store, name, range(1, self.size))
        for result in mine:
            yield result
            yield from inbox.now_and_then()
        deadline, waiting = 0.0, _Wait()
        while not inbox.complete():
            if queue.closed():
                deadline = deadline or time.monotonic() + PATIENCE
                if final(self.watch.ending) or time.monotonic() > deadline:
                    return
            for result in inbox.arrived():
                waiting = _Wait()
                yield result
            waiting.sleep()

    def _broadcast(self, content: bytearray) -> None:
        try:
            self._distributed.broadcast(self._torch.frombuffer(content, dtype=self._torch.uint8), src=0)
        except RuntimeError as error:
            raise Interrupted(f"the connection between ranks broke: {error}") from error


class SharedQueue:
    """Numbers that all ranks take from one counter; `stop` as of `Team.gather`."""

    def __init__(self, group: Group, key: str, count: int, stop: Callable[[], bool] = lambda: False) -> None:
        self._group, self._key, self._count, self._stop = group, key, count, stop

    def take(self) -> int | None:
        """The next number, None when there is no more, or the run is to stop."""
        if self.closed():
            return None
        number = self._group.add(self._key, 1) - 1
        return number if number < self._count else None

    def closed(self) -> bool:
        """Whether nothing more is to be taken; where this rank has just learnt that, the others take no more either."""
        if self._stop() and self._count:
            self._group.add(self._key, self._count)
            self._count = 0
        return self._count == 0 or self._group.stopping


class _Wait:
    """Sleeps a little longer each time."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def sleep(self) -> None:
        time.sleep(min(LONGEST, max(SHORTEST, PART * (time.monotonic() - self._begun))))
