"""Predicted costs of kernels as JSON and text, labelled as predictions."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from dfmp2.backends.base import Shape
from dfmp2.trainium.calls import KernelCall
from dfmp2.trainium.costs.catalogue import (
    KERNELS,
    ROUND_TRIP,
    Price,
    Row,
    queued_ms,
)
from dfmp2.trainium.costs.model import SLOWEST, USUAL, Chip
from dfmp2.trainium.interpreter.rules import MOVED_BYTES, Settings
from dfmp2.trainium.interpreter.run import run_kernel
from dfmp2.trainium.interpreter.trace import Trace
from dfmp2.trainium.layout import padded_naux, padded_nvir
from dfmp2.units import format_bytes

NAMES = {
    "tensor": "Tensor Engine",
    "vector": "Vector Engine",
    "scalar": "Scalar Engine",
    "port": "shared PSUM port",
    "dma": "DMA queues",
}
MS = 1e6  # ns


def largest_trace(price: Price, chip: Chip) -> Trace:
    """The trace of the longest call, run without arithmetic, for memory use and broken rules.

    Raises
    ------
    KernelError : the kernel breaks a rule of the chip
    """
    call: KernelCall = max(price.parts, key=lambda part: part[1].at(1.0))[0]
    settings = Settings(target=chip.target, arithmetic=False, measured=False)
    return run_kernel(call.source, call.kernel, call.arguments, settings)[1]


def price_dict(price: Price, trace: Trace) -> dict[str, Any]:
    """The object that `dfmp2 kernels cost --json` prints; all of it predicted."""
    engine_ms = {
        name: price.total(lambda engines, name=name: getattr(engines, name)) / MS  # type: ignore[misc]
        for name in NAMES
    }
    return {
        "makespan_ms": price.at() / MS,
        "makespan_usual_ms": price.at(USUAL) / MS,
        "makespan_slowest_ms": price.at(SLOWEST) / MS,
        "variant": price.variant,
        "calls": price.calls,
        "dispatch_ms": price.calls * ROUND_TRIP,
        "dispatch_queued_ms": queued_ms([price]),
        "engine_ms": {**engine_ms, "gpsimd": 0.0},
        "te_utilisation": engine_ms["tensor"] / (price.at() / MS),
        "floor_share": price.floor / price.at(),
        "hbm_bytes": round(price.total(lambda engines: engines.read + engines.written)),
        "neffs": price.neffs,
        "sbuf_high_water_bytes": trace.sbuf_high_water,
        "dma_written_bytes": trace.moved_high_water,
        "floor_ms": price.floor / MS,
    }


def price_text(row: Row, shape: Shape, chip: Chip, price: Price, trace: Trace) -> str:
    """The engine table of a shape, as text."""
    found = price_dict(price, trace)
    sizes = ", ".join(f"{name} {size}" for name, size in zip(row.sizes, shape, strict=True))
    lines = [
        f"{row.name}, {sizes}: predicted, not measured",
        f"variant {price.variant}: calls {price.calls}, programs {price.neffs}; one {chip.name} "
        "core, float32",
    ]
    if row.name.startswith("pair_energy"):
        lines.append(
            f"computed as nvir {padded_nvir(shape.nvir)}, naux {padded_naux(shape.naux)}; no "
            "padded pairs"
        )
    lines += ["", f"{'predicted':<22}{'busy / ms':>12}"]
    for name, label in NAMES.items():
        if found["engine_ms"][name]:
            lines.append(f"{label:<22}{found['engine_ms'][name]:>12.3f}")
    times = (
        ("time at best", "makespan_ms", "busiest engine, without waits"),
        (f"at {USUAL:.0%}", "makespan_usual_ms", "of its peak, as AWS's tuned products"),
        (f"at {SLOWEST:.0%}", "makespan_slowest_ms", "of its peak, as float32 kernels of others"),
        ("floor", "floor_ms", f"real products alone, {found['floor_share']:.0%} of the best time"),
        (
            "launches",
            "dispatch_ms",
            f"each waited for; queued {found['dispatch_queued_ms']:.3f} ms",
        ),
    )
    lines += ["", *(f"{label:<22}{found[key]:>12.3f} ms  {about}" for label, key, about in times)]
    lines += [
        f"{'HBM traffic':<22}{format_bytes(found['hbm_bytes']):>12}",
        f"{'SBUF high water':<22}{trace.sbuf_high_water:>12} of {chip.sbuf} bytes per partition",
        f"{'written by DMA':<22}{trace.moved_high_water:>12} of {MOVED_BYTES} bytes per partition "
        "(trn1)",
        f"{'PSUM high water':<22}{trace.psum_high_water:>12} of 8 banks",
    ]
    return "\n".join(lines) + "\n"


def kernels_text() -> str:
    """The list of kernels, as text."""
    return "".join(
        fill(f"{row.name:<20}{row.short:<5}{row.about}", 80, subsequent_indent=" " * 25) + "\n"
        for row in KERNELS
    )
