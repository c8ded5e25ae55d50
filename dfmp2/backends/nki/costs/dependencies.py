"""What an instruction has to wait for: data it reads, data it overwrites, and buffers it replaces.

    RAW  a read waits for the writes of the region       WAR  a write waits for the reads of the region
    WAW  a write waits for earlier writes of it          release: a new buffer waits for the old one's users

Engines issue in program order, so what the same engine did before needs no waiting.
"""

from __future__ import annotations

from dfmp2.backends.nki.costs.residency import Residency
from dfmp2.backends.nki.interpreter.trace import Access, Trace

Region = tuple[int, int, int, int]  # partition start and stop, byte start and stop


def find(trace: Trace, residency: Residency) -> list[tuple[int, ...]]:
    """For every instruction the earlier ones of other engines it waits for (transfers also for transfers)."""
    writes: dict[int, dict[Region, int]] = {}
    reads: dict[int, dict[tuple[str, Region], int]] = {}
    last: dict[int, dict[str, int]] = {}  # tensor -> engine -> its last user
    begun: set[tuple[int, str]] = set()
    result = []
    for index, instruction in enumerate(trace.instructions):
        engine, needed = instruction.engine, set[int]()
        for access in instruction.reads:
            own, earlier = access[2:], writes.get(access.tensor)
            if earlier:
                exact = earlier.get(own)
                if exact is not None and len(earlier) == 1:
                    needed.add(exact)
                else:
                    needed.update(done for region, done in earlier.items() if _overlap(region, own))
        for access in instruction.writes:
            needed.update(_overwritten(access, writes.setdefault(access.tensor, {}), reads.get(access.tensor)))
            if (access.tensor, engine) not in begun:
                begun.add((access.tensor, engine))
                for former in residency.replaces.get(access.tensor, ()):
                    needed.update(last.get(former, {}).values())
        for access in instruction.reads:
            reads.setdefault(access.tensor, {})[(engine, access[2:])] = index
            last.setdefault(access.tensor, {})[engine] = index
        for access in instruction.writes:
            writes[access.tensor][access[2:]] = index
            last.setdefault(access.tensor, {})[engine] = index
        needed.discard(index)
        kept = (n for n in needed if engine == "dma" or trace.instructions[n].engine != engine)
        result.append(tuple(sorted(kept)))
    return result


def _overwritten(access: Access, writes: dict[Region, int], reads: dict[tuple[str, Region], int] | None) -> list[int]:
    """Earlier users of the region; those it covers entirely are forgotten, since they are waited for now."""
    own = access[2:]
    found = []
    for region in [region for region in writes if _overlap(region, own)]:
        found.append(writes[region])
        if _covers(own, region):
            del writes[region]
    if reads:
        for key in [key for key in reads if _overlap(key[1], own)]:
            found.append(reads[key])
            if _covers(own, key[1]):
                del reads[key]
    return found


def _overlap(a: Region, b: Region) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def _covers(a: Region, b: Region) -> bool:
    return a[0] <= b[0] and b[1] <= a[1] and a[2] <= b[2] and b[3] <= a[3]
