"""Which of several processes this one is, from the variables that torchrun sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dfmp2 import resources
from dfmp2.errors import InputError

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """One rank.

    Attributes
    ----------
    rank, size : number of this process, from 0, and of all processes
    local_rank, local_size : the same among the processes of this host
    address, port : where the processes meet
    hosted : whether the launcher has the store there, else rank 0 makes it
    attempt : how often the processes were started again
    elastic : whether torchrun watches over the processes, and takes any code but 0 for a failure
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    hosted: bool
    attempt: int
    elastic: bool

    @property
    def threads(self) -> int:
        """Threads of a rank where nobody has said how many: its part of the host's cores.

        torchrun sets OMP_NUM_THREADS to 1 where it is not set, so 1 says nothing.
        """
        if os.environ.get("OMP_NUM_THREADS", "1") != "1":
            return resources.usable_cores()
        return max(1, resources.cores() // self.local_size)


def here(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place of this process, None where it is by itself.

    Raises
    ------
    InputError : the variables make no sense
    """
    if not all(environ.get(name) for name in LAUNCHED):
        return None
    given = {name: environ.get(name) for name in (*LAUNCHED, "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        place = Place(
            rank,
            size,
            int(environ.get("LOCAL_RANK") or rank),
            int(environ.get("LOCAL_WORLD_SIZE") or size),
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            int(environ.get("TORCHELASTIC_RESTART_COUNT") or 0),
            "TORCHELASTIC_RESTART_COUNT" in environ,
        )
    except ValueError as error:
        raise InputError(f"this process was started as one of several, but not by torchrun: {given}") from error
    if not (0 <= place.rank < place.size and 0 <= place.local_rank < place.local_size <= place.size):
        raise InputError(f"this process was started as one of several with impossible numbers: {given}")
    return place
