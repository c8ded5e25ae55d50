"""Pieces of work known by number, each taken once by whoever is idle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

Take = Callable[[], int | None]  # the next number, None for no more


class Counter:
    """Numbers 0..count-1 for the threads of this process.

    Parameters
    ----------
    stop : whether nothing more is to be taken
    """

    def __init__(self, count: int, stop: Callable[[], bool] = lambda: False) -> None:
        self._left, self._stop = iter(range(count)), stop
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """The next number, None when there is no more."""
        with self._lock:
            return None if self._stop() else next(self._left, None)


def each(take: Take, work: Callable[[int], object], workers: int) -> None:
    """Do the work of every number taken, in `workers` threads; an error ends it when the pieces under way are done."""
    failed = threading.Event()

    def serve(_worker: int) -> None:
        while not failed.is_set() and (number := take()) is not None:
            done = False
            try:
                work(number)
                done = True
            finally:
                if not done:
                    failed.set()

    with ThreadPoolExecutor(workers) as pool:
        try:
            list(pool.map(serve, range(workers)))
        finally:
            failed.set()  # a signal that came meanwhile is raised here, and must not wait for all the rest
