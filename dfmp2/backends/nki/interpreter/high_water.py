"""How much SBUF and PSUM is alive at once: a buffer lives from its declaration to its last use.

    high water = max over instructions t of sum of bytes of all buffers with born <= t <= last use

Buffers of a dynamic loop's body are alive for the whole loop and counted once, whatever the number of rounds
(nki-dynamic-loops.rst). Every PSUM tensor takes a bank of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfmp2.backends.nki.interpreter.settings import PSUM_BANKS
from dfmp2.backends.nki.interpreter.trace import Allocation, Space
from dfmp2.backends.nki.interpreter.violations import Violation

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core


def close_loop(core: Core, first: int) -> None:
    """The dynamic loop that began at instruction `first` has ended: everything it used lived throughout."""
    last = max(core.index - 1, first)
    for life in core.lives:
        if life.loop and life.born >= first:
            life.born, life.last_use = first, last
        elif first <= life.last_use <= last:
            life.last_use = last


def finish(core: Core) -> None:
    """Writes allocations and high-water marks into the trace.

    Raises Violation (sbuf-capacity, psum-banks) with the declaration that did not fit.
    """
    allocations: dict[int, Allocation] = {}
    for s in core.lives:
        known = allocations.get(s.serial)
        if known is not None:
            s.born, s.last_use = min(s.born, known.born), max(s.last_use, known.last_use)
        allocations[s.serial] = Allocation(s.serial, s.name, s.space, s.bytes, s.born, s.last_use, s.line)
    ordered = sorted(allocations.values(), key=lambda a: (a.born, a.tensor))
    core.trace.allocations = ordered
    limit = core.settings.sbuf_limit
    trace = core.trace
    trace.sbuf_high_water, trace.sbuf_peak_line = _most(ordered, "sbuf", limit, "sbuf-capacity", "bytes per partition")
    trace.psum_high_water, trace.psum_peak_line = _most(ordered, "psum", PSUM_BANKS, "psum-banks", "banks")


def _most(allocations: list[Allocation], space: Space, limit: int, rule: str, unit: str) -> tuple[int, str]:
    """Peak of the live ranges in one space and the declaration that reached it; PSUM tensors weigh one bank each."""
    line = ""
    ends: list[tuple[int, int]] = []
    alive = peak = 0
    for allocation in (a for a in allocations if a.space == space):
        weight = 1 if space == "psum" else allocation.bytes
        done = [end for end in ends if end[0] < allocation.born]
        if done:
            alive -= sum(size for _, size in done)
            ends = [end for end in ends if end[0] >= allocation.born]
        ends.append((allocation.last_use, weight))
        alive += weight
        if alive > peak:
            peak, line = alive, allocation.line
        if alive > limit:
            raise Violation(rule, f"{alive} {unit} alive here, limit {limit}", allocation.line)
    return peak, line
