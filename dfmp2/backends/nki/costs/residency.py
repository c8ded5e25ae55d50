"""Which released buffer a new one is put in place of: the allocator's side of the schedule.

Kernels declare a fresh buffer where they need it and leave its address to the compiler. Here the
oldest released memory is taken first, without fragmentation: PSUM tensors get one of 8 banks, SBUF
tensors bytes of every partition. A new buffer may be written when the last user of every buffer
it replaces has finished; this is where too little double buffering shows.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from dfmp2.backends.nki.costs.chips import PSUM_BANKS, Chip
from dfmp2.backends.nki.interpreter.trace import Allocation, Trace
from dfmp2.errors import KernelError


@dataclass(slots=True)
class Residency:
    """Where the buffers of a trace lie.

    Attributes
    ----------
    replaces : tensor -> tensors whose memory it takes over
    bank : PSUM tensor -> its bank
    """

    replaces: dict[int, tuple[int, ...]] = field(default_factory=dict)
    bank: dict[int, int] = field(default_factory=dict)


def place(trace: Trace, chip: Chip) -> Residency:
    """Give every on-chip buffer of a trace a place.

    Raises
    ------
    KernelError : more is alive at once than the chip has
    """
    found = Residency()
    _place_psum([a for a in trace.allocations if a.space == "psum"], found)
    _place_sbuf([a for a in trace.allocations if a.space == "sbuf"], chip.sbuf, found)
    return found


def _place_psum(allocations: list[Allocation], found: Residency) -> None:
    free: deque[tuple[int, int | None]] = deque((bank, None) for bank in range(PSUM_BANKS))
    alive: list[tuple[int, int]] = []  # (last use, tensor)
    for allocation in allocations:
        while alive and alive[0][0] < allocation.born:
            tensor = heapq.heappop(alive)[1]
            free.append((found.bank[tensor], tensor))
        if not free:
            raise KernelError(f"{allocation.line}: {PSUM_BANKS + 1} PSUM banks are in use: a core has {PSUM_BANKS}")
        bank, former = free.popleft()
        found.bank[allocation.tensor] = bank
        found.replaces[allocation.tensor] = () if former is None else (former,)
        heapq.heappush(alive, (allocation.last_use, allocation.tensor))


def _place_sbuf(allocations: list[Allocation], capacity: int, found: Residency) -> None:
    free: deque[tuple[int, int | None]] = deque([(capacity, None)])  # (bytes, former tenant), oldest first
    alive: list[tuple[int, int, int]] = []  # (last use, tensor, bytes)
    for allocation in allocations:
        while alive and alive[0][0] < allocation.born:
            _, tensor, size = heapq.heappop(alive)
            free.append((size, tensor))
        wanted, former = allocation.bytes, []
        while wanted:
            if not free:
                raise KernelError(
                    f"{allocation.line}: {allocation.bytes} bytes per partition do not fit beside what is alive: "
                    f"a core has {capacity}"
                )
            size, tenant = free.popleft()
            if tenant is not None:
                former.append(tenant)
            if size > wanted:
                free.appendleft((size - wanted, tenant))
            wanted -= min(size, wanted)
        found.replaces[allocation.tensor] = tuple(former)
        heapq.heappush(alive, (allocation.last_use, allocation.tensor, allocation.bytes))
