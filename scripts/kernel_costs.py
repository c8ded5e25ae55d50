"""Print the tables of docs/trainium/costs.md: predicted costs, bytes that transfers write, published figures beside.

python scripts/kernel_costs.py
"""

from __future__ import annotations

import published_kernels as published

from dfmp2.backends.base import Shape
from dfmp2.errors import Dfmp2Error
from dfmp2.trainium.calls import SHAPES
from dfmp2.trainium.costs import catalogue, schedule
from dfmp2.trainium.costs.catalogue import Price
from dfmp2.trainium.costs.chips import CHIPS, Assumptions
from dfmp2.trainium.interpreter.rules import MOVED_BYTES

MS, GB = 1e6, 1e9
MOVED = {  # shapes of the second table: those of the first, and some with one large dimension
    **SHAPES,
    "16/448/6144": Shape(16, 448, 6144),
    "16/896/2304": Shape(16, 896, 2304),
    "16/96/12288": Shape(16, 96, 12288),
}
HEADER = (
    "| shape, core | variant | calls, programs | TE / ms | VE / ms | ACT / ms | DMA / ms | schedule / ms | at 85 % "
    "/ ms | at 40 % / ms | floor / ms | HBM / GB | SBUF / B |"
)


def main() -> None:
    """Print both tables."""
    given, row = Assumptions(), catalogue.find("pair_energy")
    print(HEADER)
    print("|" + "---|" * 13)
    for name, shape in SHAPES.items():
        for chip in CHIPS.values():
            for variant in row.variants(shape, chip.target):
                price, _ = catalogue.best(row, shape, chip, given, variant)
                print(_line(f"{name} {chip.name}", price), flush=True)
    print()
    print(f"| written by DMA, bytes per partition of {MOVED_BYTES} | {' | '.join(MOVED)} |")
    print("|---|" + "---|" * len(MOVED))
    for kernel, cells in _moved().items():
        print(f"| {kernel} | {' | '.join(cells)} |")
    print()
    print("| published kernel on trn1 | what | model | published |")
    print("|---|---|---|---|")
    for text in _checks(given):
        print(text)


def _line(name: str, price: Price) -> str:
    busy = " | ".join(f"{price.busy(engine) / MS:.2f}" for engine in ("tensor", "vector", "scalar", "dma"))
    return (
        f"| {name} | {price.variant} | {price.calls}, {price.neffs} | {busy} | {price.makespan / MS:.2f} "
        f"| {price.at(catalogue.USUAL) / MS:.1f} | {price.at(catalogue.SLOWEST) / MS:.1f} | {price.floor / MS:.2f} "
        f"| {price.hbm_bytes / GB:.2f} | {price.sbuf} |"
    )


def _moved() -> dict[str, list[str]]:
    """Most bytes of any call of each kernel, shape after shape; what cannot run there has a dash."""
    found: dict[str, dict[str, int]] = {}
    for place, shape in MOVED.items():
        for row in catalogue.KERNELS:
            for variant in row.variants(shape):
                try:
                    made = row.calls(shape, "gen2", variant)
                    traces = [(call.kernel, schedule.trace_of(call, CHIPS["trn1"])) for call in made]
                except Dfmp2Error:
                    continue
                for kernel, trace in traces:
                    most = found.setdefault(kernel, {})
                    most[place] = max(most.get(place, 0), trace.moved_high_water)
    return {kernel: [str(most.get(place, "-")) for place in MOVED] for kernel, most in found.items()}


def _checks(given: Assumptions) -> list[str]:
    chip = CHIPS["trn1"]
    strip, strips = published.elementwise_strip(), published.elementwise_strips()
    medium, blocks = published.batched_block(1536), published.batched_blocks(64, 448)
    chunked, pieces = published.batched_block(512), published.batched_blocks(16, 384)
    vector = published.engine_time(strip, strips, "vector", chip, given)
    moved = published.engine_time(medium, blocks, "dma", chip, given)
    calls = published.engine_time(chunked, pieces, "dma", chip, given) + 16 * published.ROUND_TRIP
    rows = (
        ("elementwise, medium", published.ELEMENTWISE_VECTOR, f"{vector:.0f} ms"),
        ("elementwise, medium", published.ELEMENTWISE_READS, f"{published.traffic(strip, strips):,} bytes"),
        ("batched pairs, medium", published.BATCHED_MEDIUM, f"{moved:.0f} ms of DMA"),
        ("batched pairs, 16/384/512", published.BATCHED_CHUNKED, f"{calls:.1f} ms"),
    )
    return [f"| {name} | {p.what.split(', ')[-1]} | {model} | {p.value:,.1f} {p.unit} |" for name, p, model in rows]


if __name__ == "__main__":
    main()
