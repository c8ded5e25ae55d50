"""Notices at once when another rank has ended before its time, while this one computes or sleeps.

A rank that can speak leaves its ending in the store. One that was killed cannot: its connection breaks, and whoever was
waiting at its other end tells the others. Rank 0 waits for a word of every rank, and every rank for one of rank 0;
nobody ever speaks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dfmp2.errors import Interrupted
from dfmp2.ranks.ending import DONE, LOST, STOPPED, Ending, decode
from dfmp2.ranks.store import Store

EVERY = 0.2  # s between two looks into the store
END, LEFT = "end", "left"
TAG = 7  # of the message that never comes
LAUNCHER = -1  # in place of a rank


class Watch:
    """Two kinds of threads beside the calculation; they end with the process.

    Parameters
    ----------
    store : that the ranks have in common
    rank, hosts : this rank, and the host of each
    wake : called once, in another thread, when something has ended
    """

    def __init__(self, store: Store, rank: int, hosts: tuple[str, ...], wake: Callable[[], None]) -> None:
        self._store, self._rank, self._hosts, self._wake = store, rank, hosts, wake
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.ending: Ending | None = None

    def start(self, receive: Callable[[int, int], Any]) -> None:
        """Begin; `receive(rank, tag)` returns what waits for a message of that rank."""
        peers = range(1, len(self._hosts)) if self._rank == 0 else (0,)
        for peer in peers:
            self._begin(self._listen, peer, receive(peer, TAG))
        self._begin(self._look)

    def check(self) -> None:
        """Go no further when something has ended.

        Raises
        ------
        Interrupted : it has
        """
        if self.ending is not None:
            raise Interrupted(self.ending.told)

    def look(self) -> Ending | None:
        """What has ended, as of now."""
        if self.ending is None:
            with suppress(Interrupted):
                if self._store.has(END):
                    found = decode(self._store.get(END))
                    with self._lock:
                        self.ending = self.ending or found
        return self.ending

    def announce(self, ending: Ending) -> None:
        """Let all ranks know, unless another ending came first; nothing is lost when nobody can be reached."""
        with suppress(Interrupted):
            self._store.claim(END, ending.encode())

    def leave(self) -> None:
        """This rank is about to end, and nobody need be alarmed."""
        self._closed.set()
        with suppress(Interrupted):
            self._store.set(f"{LEFT}/{self._rank}", "1")

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _look(self) -> None:
        while not self._closed.wait(EVERY):
            try:
                found = self._store.get(END) if self._store.has(END) else b""
            except Interrupted:
                self._ended(Ending(LOST, LAUNCHER, self._hosts[0], 1, ""))
                return
            if found:
                self._ended(decode(found))
                return

    def _listen(self, peer: int, message: Any) -> None:
        with suppress(RuntimeError):
            message.wait()
        if self._closed.is_set():
            return
        try:
            if self._store.has(f"{LEFT}/{peer}"):
                return
        except Interrupted:
            return  # `_look` will say so
        ending = Ending(LOST, peer, self._hosts[peer], 1, "")
        self.announce(ending)
        self._ended(ending)

    def _ended(self, ending: Ending) -> None:
        with self._lock:
            first, self.ending = self.ending is None, self.ending or ending
        if first and not self._closed.is_set():
            self._wake()


def final(ending: Ending | None) -> bool:
    """Whether nothing more is to be expected of the others."""
    return ending is not None and ending.kind not in (STOPPED, DONE)
