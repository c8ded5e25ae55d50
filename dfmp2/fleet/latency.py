"""What a request to the shared counter of the ranks costs: torch's TCPStore on this host's loopback, measured once.

    latency    median time of a request       service    processor time of the server per request

Between machines a request takes the network's round trip on top: give it with --store-latency.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from dfmp2 import host_cache
from dfmp2.errors import BackendUnavailable
from dfmp2.fleet.queue import Store

LIBRARIES = ("torch",)
BUILT_IN = Store(2.5e-5, 1.2e-5)  # s, where it was never measured: 2 cores of an AMD EPYC virtual machine, rounded up
REQUESTS = 2000
KEY = "next"


def load() -> Store | None:
    """What was measured earlier on this host, or None."""
    stored = host_cache.load(_key())
    try:
        return None if stored is None else Store(float(stored["latency"]), float(stored["service"]))
    except (KeyError, TypeError, ValueError):
        return None


def measure() -> Store:
    """Measure and store, a second or so.

    Raises
    ------
    BackendUnavailable : PyTorch is not installed
    """
    try:
        from torch.distributed import TCPStore
    except ImportError as error:
        raise BackendUnavailable(
            f"the shared counter is PyTorch's, which does not import ({error}): pip install 'dfmp2[torch]', or give "
            "--store-latency"
        ) from error
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    before = time.process_time() - time.thread_time()  # of all threads but this one: the server is one
    latency = statistics.median(_timed(lambda: client.add(KEY, 1)) for _ in range(REQUESTS))
    service = (time.process_time() - time.thread_time() - before) / REQUESTS
    found = Store(latency, min(latency, service))
    host_cache.store(_key(), {"latency": found.latency, "service": found.service})
    return found


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _key() -> str:
    return host_cache.key("TCPStore.add on loopback", LIBRARIES)
