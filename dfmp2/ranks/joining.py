"""How the processes that torchrun has started become a group.

The store of torchrun outlives a restart of the processes, so every group has its own names in it. Rank 0 invents them;
another rank believes what it reads only when rank 0 has answered it.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from dfmp2.backends.registry import BACKENDS
from dfmp2.errors import BackendUnavailable, ResourceError
from dfmp2.ranks.group import Group
from dfmp2.ranks.place import Place
from dfmp2.ranks.store import Store
from dfmp2.ranks.watch import Watch

HELLO = "dfmp2"
MEETING = 600.0  # s for all processes to come: a first import of PyTorch from a cold disk takes a while
ANSWER = 1.0  # s for rank 0 to answer before its name is read again
FOREVER = timedelta(days=365)  # an SCF may take long, and `Watch` notices who is gone


def require_torch() -> None:
    """Several ranks need PyTorch.

    Raises
    ------
    BackendUnavailable : it is missing, too old, or was built without gloo
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # warnings about names of hosts that do not matter here
    reason = next(row.probe() for row in BACKENDS if row.name == "torch")
    if reason is None:
        import torch.distributed

        if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
            reason = "PyTorch was built without gloo: pip install 'dfmp2[torch]'"
    if reason is not None:
        raise BackendUnavailable(f"several ranks need PyTorch: {reason}")


def join(place: Place, wake: Callable[[], None]) -> Group:
    """The group of all ranks, when every one of them is there.

    Parameters
    ----------
    wake : called once, in another thread, when a rank has ended before its time

    Raises
    ------
    BackendUnavailable : PyTorch is missing
    ResourceError : the ranks cannot reach each other
    """
    require_torch()
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)  # its threads are not used, and backends set their own
    if place.size == place.local_size and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        store = distributed.TCPStore(
            place.address,
            place.port,
            is_master=place.rank == 0 and not place.hosted,
            timeout=timedelta(seconds=MEETING),
            wait_for_workers=False,
            multi_tenant=not place.hosted,
        )
        name = f"{HELLO}/{_agree(store, place)}"
        own, theirs = (distributed.PrefixStore(f"{name}/{part}", store) for part in ("run", "gloo"))
        distributed.init_process_group("gloo", store=theirs, rank=place.rank, world_size=place.size, timeout=FOREVER)
        hosts = _hosts(own, place)
    except RuntimeError as error:
        raise ResourceError(
            f"the ranks cannot reach each other at {place.address}, port {place.port} ({str(error).splitlines()[0]}): "
            "check --master-addr or --rdzv-endpoint, firewalls, and GLOO_SOCKET_IFNAME"
        ) from error
    ours = Store(own)
    watch = Watch(ours, place.rank, hosts, wake)
    watch.start(lambda peer, tag: distributed.irecv(torch.zeros(1, dtype=torch.uint8), src=peer, tag=tag))
    return Group(torch, distributed, ours, place.rank, hosts, place.local_size, watch)


def _agree(store: Any, place: Place) -> str:
    """A name for this group.

    Raises
    ------
    ResourceError : not everybody came
    """
    deadline = time.monotonic() + MEETING
    if place.rank == 0:
        token = secrets.token_hex(8)
        store.set(HELLO, token)
        missing = set(range(1, place.size))
        while missing:
            for rank in sorted(missing):
                key = f"{HELLO}/{token}/{rank}"
                if store.check([key]):
                    store.set(f"{key}/{store.get(key).decode()}", "1")
                    missing.discard(rank)
            _patient(deadline, f"ranks {sorted(missing)} have not come")
        return token
    nonce = secrets.token_hex(8)
    while True:
        if store.check([HELLO]):
            token = str(store.get(HELLO).decode())
            key = f"{HELLO}/{token}/{place.rank}"
            store.set(key, nonce)
            until = time.monotonic() + ANSWER
            while time.monotonic() < until:
                if store.check([f"{key}/{nonce}"]):
                    return token
                _patient(deadline, "rank 0 has not come")
        _patient(deadline, "rank 0 has not come")


def _patient(deadline: float, missing: str) -> None:
    if time.monotonic() > deadline:
        raise ResourceError(f"{missing} within {MEETING:.0f} s: look at what they printed, or start them again")
    time.sleep(0.01)


def _hosts(store: Any, place: Place) -> tuple[str, ...]:
    store.set(f"host/{place.rank}", socket.gethostname())
    return tuple(store.get(f"host/{rank}").decode() for rank in range(place.size))
