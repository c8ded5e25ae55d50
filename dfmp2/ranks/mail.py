"""Results of other ranks on their way to rank 0: each rank numbers its own, and says how many it has sent.

Sending costs one access to the store. Rank 0 has its own work, so it looks for mail now and then only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from dfmp2.checkpoint.encoding import Section
from dfmp2.ranks.message import pack, unpack
from dfmp2.ranks.store import Store
from dfmp2.ranks.team import Result

EVERY = 0.05  # s between two letters of a rank, and between two looks while rank 0 computes


class Outbox:
    """What one rank sends.

    Parameters
    ----------
    name : of the work that all ranks share
    """

    def __init__(self, store: Store, name: str, rank: int) -> None:
        self._store, self._name, self._sent = store, f"{name}/{rank}", 0
        self._waiting: list[Result] = []
        self._last = time.monotonic()

    def send(self, result: Result) -> None:
        """Send one, together with others that come soon."""
        self._waiting.append(result)
        if time.monotonic() - self._last >= EVERY:
            self._post()

    def close(self) -> None:
        """There are no more."""
        if self._waiting:
            self._post()
        self._store.set(f"{self._name}/sent", str(self._sent))

    def _post(self) -> None:
        arrays = {f"{n} {k}": array for n, (_, found) in enumerate(self._waiting) for k, array in enumerate(found)}
        shape = [[number, len(found)] for number, found in self._waiting]
        self._waiting, self._last = [], time.monotonic()
        self._sent += 1
        self._store.set(f"{self._name}/{self._sent}", pack(Section({"results": shape}, arrays)))


class Inbox:
    """What rank 0 receives from `ranks`."""

    def __init__(self, store: Store, name: str, ranks: Sequence[int]) -> None:
        self._store, self._name = store, name
        self._received = dict.fromkeys(ranks, 0)
        self._looked = time.monotonic()

    def now_and_then(self) -> Iterator[Result]:
        """What has come, when it is time to look."""
        if time.monotonic() - self._looked >= EVERY:
            yield from self.arrived()

    def arrived(self) -> Iterator[Result]:
        """What has come."""
        for rank in self._received:
            while self._store.has(key := f"{self._name}/{rank}/{self._received[rank] + 1}"):
                section = unpack(self._store.get(key))
                self._store.drop(key)
                self._received[rank] += 1
                for n, (number, count) in enumerate(section.values["results"]):
                    yield int(number), tuple(section.arrays[f"{n} {k}"] for k in range(count))
        self._looked = time.monotonic()

    def complete(self) -> bool:
        """Whether every rank has said how many there are, and all have come."""
        for rank in list(self._received):
            key = f"{self._name}/{rank}/sent"
            if self._store.has(key) and int(self._store.get(key)) == self._received[rank]:
                del self._received[rank]
        return not self._received
