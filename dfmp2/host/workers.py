"""Numbered pieces of work in the threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait


def each(count: int, work: Callable[[int], object], workers: int) -> None:
    """Call work(0) .. work(count - 1) in threads; after an error or a signal nothing more is begun."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            futures = [pool.submit(work, number) for number in range(count)]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
