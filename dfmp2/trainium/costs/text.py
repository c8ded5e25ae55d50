"""Predicted costs of kernels as JSON and as text, labelled as predictions; the first microseconds of a schedule.

A drawing has one row per engine and one column per step: a letter for what ran longest in that step, '.' where the
engine stood idle. Below it the idle stretches of the Tensor Engine with their causes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill
from typing import Any

from dfmp2.backends.base import Shape
from dfmp2.trainium.costs.catalogue import (
    KERNELS,
    SLOWEST,
    USUAL,
    Price,
    Requirement,
    b_bytes,
    find,
)
from dfmp2.trainium.costs.chips import Assumptions, Chip
from dfmp2.trainium.costs.prediction import Dispatch
from dfmp2.trainium.costs.schedule import ENGINES, PORT, Schedule
from dfmp2.trainium.interpreter.rules import MOVED_BYTES
from dfmp2.trainium.interpreter.trace import Instruction, Trace
from dfmp2.trainium.layout import padded_naux, padded_nvir
from dfmp2.units import format_bytes

NAMES = {
    "tensor": "Tensor Engine",
    "vector": "Vector Engine",
    "scalar": "Scalar Engine",
    "gpsimd": "GpSimd",
    "dma": "DMA queues",
}
MS = 1e6  # ns
COLUMNS = 70
MOST = 8  # reasons listed
SHORTEST = 0.05  # us of a stall
LETTERS = {
    "nc_matmul": "M",
    "activation": "a",
    "reciprocal": "R",
    "tensor_tensor": "x",
    "tensor_scalar": "s",
    "tensor_copy": "c",
    "memset": "0",
    "dma_copy": "D",
}
LEGEND = (
    "M matmul  T hinted matmul  a activation  + row sum  R reciprocal  x tensor_tensor  s tensor_scalar  c copy  "
    "0 memset  D transfer"
)


def price_dict(price: Price, launched: Dispatch) -> dict[str, Any]:
    """The object `dfmp2 kernels cost --json` prints; all of it predicted."""
    return {
        "makespan_ms": price.makespan / MS,
        "makespan_usual_ms": price.at(USUAL) / MS,
        "makespan_slowest_ms": price.at(SLOWEST) / MS,
        "variant": price.variant,
        "dispatch_ms": launched.calls,
        "dispatch_queued_ms": launched.queued,
        "engine_ms": {engine: price.busy(engine) / MS for engine in ENGINES},
        "te_utilisation": price.utilisation,
        "hbm_bytes": price.hbm_bytes,
        "neffs": price.neffs,
        "sbuf_high_water_bytes": price.sbuf,
        "dma_written_bytes": price.moved,
        "floor_ms": price.floor / MS,
    }


def price_text(
    kernel: str, shape: Shape, chip: Chip, price: Price, launched: Dispatch, others: Sequence[str]
) -> str:
    """The engine table of a shape, for reading."""
    sizes = ", ".join(
        f"{name} {size}" for name, size in zip(find(kernel).sizes, shape, strict=True)
    )
    lines = [
        f"{kernel}, {sizes}: predicted, not measured",
        f"variant {price.variant}: {price.calls} calls of {price.neffs} programs, one {chip.name} core, float32",
        "",
        f"{'predicted':<20}{'busy / ms':>12}{'without overhead':>18}",
    ]
    for engine in ENGINES:
        bare = price.busy(engine, overhead=False) / MS
        lines.append(f"{NAMES[engine]:<20}{price.busy(engine) / MS:>12.3f}{bare:>18.3f}")
    if chip.shared_ports:
        lines.append(
            f"{'shared PSUM port':<20}{price.total(lambda account: account.port) / MS:>12.3f}"
        )
    ratio = price.makespan / price.floor if price.floor else 0.0
    lines += [
        "",
        f"{'makespan':<20}{price.makespan / MS:>12.3f} ms  in order; busiest engine alone {price.bound / MS:.3f} ms",
        f"{'at ' + format(USUAL, '.0%'):<20}{price.at(USUAL) / MS:>12.3f} ms  of the peak (AWS); "
        f"{price.at(SLOWEST) / MS:.3f} ms at {SLOWEST:.0%} (others)",
        f"{'floor':<20}{price.floor / MS:>12.3f} ms  makespan / floor {ratio:.2f}; peak used {price.utilisation:.3f}",
        f"{'dispatch, ' + launched.lane:<20}{launched.calls:>12.3f} ms  each call waited for; "
        f"queued {launched.queued:.3f} ms",
        f"{'device, dispatch':<20}{(price.makespan + MS * launched.queued) / MS:>12.3f} ms  at best; "
        f"{(price.at(SLOWEST) + MS * launched.calls) / MS:.3f} ms at worst",
        f"{'host link':<20}{launched.link:>12.3f} ms  operands up once, results down",
    ]
    if launched.compile:
        lines.append(f"{'compilation':<20}{launched.compile:>12.0f} ms  inside the calls")
    if launched.flagged:
        lines.append(fill(f"warning: {launched.flagged}", 80))
    lines += [
        f"{'HBM traffic':<20}{format_bytes(price.hbm_bytes):>12}",
        f"{'descriptor rings':<20}{format_bytes(price.rings):>12}",
        f"{'SBUF high water':<20}{price.sbuf:>12} of {chip.sbuf} bytes per partition",
        f"{'written by DMA':<20}{price.moved:>12} of {MOVED_BYTES} bytes per partition (trn1)",
        f"{'PSUM high water':<20}{price.psum:>12} of 8 banks",
        "",
        f"{'program':<32}{'calls':>6}{'ms each':>10}{'TE use':>8}{'statements':>12}{'SBUF bytes':>12}",
    ]
    for part in price.parts:
        account = part.account
        count, call = sum(account.statements.values()), part.call
        if call.arguments.get("diagonal"):
            label = f"{call.kernel}, diagonal"
        else:
            label = call.kernel
        lines.append(
            f"{label:<32}{call.count:>6}{account.makespan / MS:>10.3f}{account.utilisation:>8.3f}"
            f"{count:>12}{account.sbuf:>12}"
        )
    return "\n".join([*lines, *(fill(one, 80) for one in others)]) + "\n"


def assumptions_text(given: Assumptions) -> str:
    """What the numbers rest on."""
    hint = "credited" if given.one_zero_hint else "not credited"
    text = (
        f"assumed: {given.vector_overhead} and {given.scalar_overhead} cycles per Vector and Scalar instruction, "
        f"{given.cross_engine_wait} cycles between engines, {given.dma_start / 1e3:g} us to start a transfer, one/zero "
        f"hint {hint}"
    )
    return fill(text, 80) + "\n"


def catalogue_dict(
    spins: Sequence[Shape], programs: Sequence[Requirement], sent: Sequence[int]
) -> dict[str, Any]:
    """The object `dfmp2 kernels list --json` prints; `sent`: bytes of B that each core is sent."""
    return {
        "kernels": {row.name: {"short": row.short, "about": row.about} for row in KERNELS},
        "shapes": [list(shape) for shape in spins],
        "buckets": [[padded_nvir(shape.nvir), padded_naux(shape.naux)] for shape in spins],
        "neffs": len(programs) if spins else None,
        "programs": [asdict(program) for program in programs],
        "b_bytes_by_core": list(sent),
    }


def catalogue_text(
    spins: Sequence[Shape], programs: Sequence[Requirement], chip: Chip, sent: Sequence[int]
) -> str:
    """The kernels, and the programs of a molecule."""
    lines = [
        fill(f"{row.name:<20}{row.short:<5}{row.about}", 80, subsequent_indent=" " * 25)
        for row in KERNELS
    ]
    if not spins:
        return (
            "\n".join(
                [*lines, "", "give a molecule with --basis, or --shape, for the programs it needs"]
            )
            + "\n"
        )
    for shape in spins:
        lines += [
            "",
            f"nocc {shape.nocc}, nvir {shape.nvir}, naux {shape.naux}: bucket of nvir {padded_nvir(shape.nvir)}, "
            f"naux {padded_naux(shape.naux)}",
        ]
    lines += [
        "",
        f"{len(programs)} compiled programs (NEFFs) for {chip.name}; as many for any nocc above 8",
    ]
    for program in programs:
        lines.append(
            f"  {program.kernel}, {program.purpose}: {program.calls} calls\n    {program.neff}"
        )
    if len(sent) > 1:
        whole = sum(map(b_bytes, spins))
        each = f"at most {format_bytes(max(sent))} to one core (all of it is {format_bytes(whole)})"
        lines.append(fill(f"B on {len(sent)} cores: {format_bytes(sum(sent))} sent, {each}", 80))
    return "\n".join(lines) + "\n"


def draw(
    trace: Trace, plan: Schedule, *, begin: float = 0.0, length: float = float(COLUMNS)
) -> str:
    """Text of the schedule from `begin` on; begin, length : microseconds."""
    step = length / COLUMNS
    rows = {engine: _row(trace, plan, engine, begin, step) for engine in ENGINES}
    ruler = "".join(f"{begin + k * step:<10.4g}" for k in range(0, COLUMNS, 10))
    lines = [f"{'us':<8}{ruler}".rstrip()]
    lines += [
        f"{engine:<8}{row}"
        for engine, row in rows.items()
        if set(row) != {"."} or engine == "tensor"
    ]
    lines += [
        fill(
            f"each column {step:.4g} us: {LEGEND}",
            80,
            initial_indent=8 * " ",
            subsequent_indent=8 * " ",
        )
    ]
    return "\n".join(lines) + "\n"


def _row(trace: Trace, plan: Schedule, engine: str, begin: float, step: float) -> str:
    share: list[dict[str, float]] = [defaultdict(float) for _ in range(COLUMNS)]
    for index, one in enumerate(trace.instructions):
        if one.engine != engine:
            continue
        start, end = plan.start[index] / 1e3 - begin, plan.end[index] / 1e3 - begin
        if end <= 0.0 or start >= COLUMNS * step:
            continue
        for column in range(max(0, int(start / step)), min(COLUMNS, int(end / step) + 1)):
            covered = min(end, (column + 1) * step) - max(start, column * step)
            if covered > 0.0:
                share[column][_letter(one)] += covered
    return "".join(
        max(s, key=s.__getitem__) if s and sum(s.values()) >= 0.5 * step else "." for s in share
    )


def _letter(one: Instruction) -> str:
    if one.reduces:
        return "+"
    if one.name == "nc_matmul" and (one.one_zero or one.transpose):
        return "T"
    return LETTERS.get(one.name, "?")


def stalls(trace: Trace, plan: Schedule) -> list[tuple[float, float, str]]:
    """Idle stretches of the Tensor Engine: begin and length, us, and what ended the wait; longest first."""
    found, free = [], 0.0
    for index, one in enumerate(trace.instructions):
        if one.engine == "tensor":
            found.append(
                (free / 1e3, (plan.start[index] - free) / 1e3, _reason(trace, plan, index))
            )
            free = float(plan.end[index])
    found.append((free / 1e3, (plan.makespan - free) / 1e3, "the rest of the kernel"))
    return sorted((stall for stall in found if stall[1] >= SHORTEST), key=lambda stall: -stall[1])


def summary(trace: Trace, plan: Schedule) -> str:
    """The stalls of the Tensor Engine, grouped by what they waited for."""
    groups: dict[str, list[float]] = defaultdict(list)
    for _, idle, reason in stalls(trace, plan):
        groups[reason].append(idle)
    total = sum(sum(times) for times in groups.values())
    lines = [f"Tensor Engine idle {total:.1f} us of {plan.makespan / 1e3:.1f} us:"]
    for reason, times in sorted(groups.items(), key=lambda item: -sum(item[1]))[:MOST]:
        lines.append(
            f"  {sum(times):8.1f} us in {len(times):4d} waits <= {max(times):6.1f} us: {reason}"
        )
    return "\n".join(lines) + "\n"


def _reason(trace: Trace, plan: Schedule, index: int) -> str:
    blocker = int(plan.blocker[index])
    if blocker < 0:
        return "its own engine"
    other = trace.instructions[blocker]
    if plan.cause[index] == PORT:
        return f"a port held by {other.name} at {other.line}"
    return f"{other.name} on {other.engine} at {other.line}".rstrip()
