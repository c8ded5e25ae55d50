"""The first microseconds of a schedule as text, and what the Tensor Engine waited for.

One row per engine, one column per step; a letter for what ran longest in that step, '.' where the
engine stood idle. Below it the idle stretches of the Tensor Engine with their causes.
"""

from __future__ import annotations

from collections import defaultdict

from dfmp2.trainium.costs.schedule import ENGINES, INSTRUCTION, PORT, Schedule
from dfmp2.trainium.interpreter.trace import Instruction, Trace

COLUMNS = 100
LABELS = {"tensor": "tensor", "vector": "vector", "scalar": "scalar", "gpsimd": "gpsimd", "dma": "dma"}
LETTERS = {
    "nc_matmul": "M",
    "activation": "a",
    "reciprocal": "R",
    "tensor_tensor": "x",
    "tensor_copy": "c",
    "memset": "0",
    "dma_copy": "D",
}
LEGEND = (
    "M matmul  T hinted matmul  a activation  + row sum  R reciprocal  x tensor_tensor  c copy  0 memset  D transfer"
)


def draw(trace: Trace, plan: Schedule, *, begin: float = 0.0, length: float = 100.0, columns: int = COLUMNS) -> str:
    """Text of the schedule from `begin` on.

    Parameters
    ----------
    begin, length : microseconds; columns : steps of the drawing
    """
    step = length / columns
    rows = {engine: _row(trace, plan, engine, begin, step, columns) for engine in ENGINES}
    ruler = "".join(f"{begin + k * step:<10.4g}" for k in range(0, columns, 10))
    lines = [f"{'us':<8}{ruler}".rstrip()]
    lines += [f"{LABELS[engine]:<8}{row}" for engine, row in rows.items() if set(row) != {"."} or engine == "tensor"]
    lines += [f"        each column {step:.4g} us: {LEGEND}"]
    return "\n".join(lines) + "\n"


def _row(trace: Trace, plan: Schedule, engine: str, begin: float, step: float, columns: int) -> str:
    share: list[dict[str, float]] = [defaultdict(float) for _ in range(columns)]
    for index, one in enumerate(trace.instructions):
        if one.engine != engine:
            continue
        start, end = plan.start[index] / 1e3 - begin, plan.end[index] / 1e3 - begin
        if end <= 0.0 or start >= columns * step:
            continue
        for column in range(max(0, int(start / step)), min(columns, int(end / step) + 1)):
            covered = min(end, (column + 1) * step) - max(start, column * step)
            if covered > 0.0:
                share[column][_letter(one)] += covered
    return "".join(max(s, key=s.__getitem__) if s and sum(s.values()) >= 0.5 * step else "." for s in share)


def _letter(one: Instruction) -> str:
    if one.reduces:
        return "+"
    if one.name == "nc_matmul" and (one.one_zero or one.transpose):
        return "T"
    return LETTERS.get(one.name, "?")


def stalls(
    trace: Trace, plan: Schedule, engine: str = "tensor", shortest: float = 0.05
) -> list[tuple[float, float, str]]:
    """Idle stretches of an engine: begin and length, us, and what ended the wait; longest first."""
    found, free = [], 0.0
    for index, one in enumerate(trace.instructions):
        if one.engine != engine:
            continue
        idle = (plan.start[index] - free) / 1e3
        if idle >= shortest:
            found.append((free / 1e3, idle, _reason(trace, plan, index)))
        free = float(plan.end[index])
    tail = (plan.makespan - free) / 1e3
    if tail >= shortest:
        found.append((free / 1e3, tail, "the rest of the kernel"))
    return sorted(found, key=lambda stall: -stall[1])


def summary(trace: Trace, plan: Schedule, most: int = 8) -> str:
    """The stalls of the Tensor Engine, grouped by what they waited for."""
    groups: dict[str, list[float]] = defaultdict(list)
    for _, idle, reason in stalls(trace, plan):
        groups[reason].append(idle)
    total = sum(sum(times) for times in groups.values())
    lines = [f"Tensor Engine idle {total:.1f} us of {plan.makespan / 1e3:.1f} us:"]
    for reason, times in sorted(groups.items(), key=lambda item: -sum(item[1]))[:most]:
        lines.append(f"  {sum(times):8.1f} us in {len(times):4d} waits, longest {max(times):6.1f} us, for {reason}")
    return "\n".join(lines) + "\n"


def _reason(trace: Trace, plan: Schedule, index: int) -> str:
    cause, blocker = int(plan.cause[index]), int(plan.blocker[index])
    if cause == INSTRUCTION and blocker >= 0:
        other = trace.instructions[blocker]
        return f"{other.name} on {other.engine} at {other.line}".rstrip()
    if cause == PORT and blocker >= 0:
        return f"a port held by {trace.instructions[blocker].name} at {trace.instructions[blocker].line}"
    return "its own engine"
