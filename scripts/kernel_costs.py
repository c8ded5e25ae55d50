"""Print predicted costs of the pair-energy kernel beside published figures of the public trn1 kernels, as markdown.

python scripts/kernel_costs.py
"""

from __future__ import annotations

import published_kernels as published

from dfmp2.trainium.calls import SHAPES
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.costs.catalogue import Price
from dfmp2.trainium.costs.chips import CHIPS, Assumptions

MS, GB = 1e6, 1e9
MEASURED = {
    ("small", "trn1"): f"{published.BATCHED_SMALL.value:.0f} ms",
    ("medium", "trn1"): f"{published.BATCHED_MEDIUM.value:.0f} ms",
    ("large", "trn1"): "does not load",
}
HEADER = (
    "| shape, core | variant | calls, programs | TE / ms | VE / ms | ACT / ms | DMA / ms | makespan / ms | TE use | "
    "floor / ms | HBM / GB | SBUF / B | published, energy step |"
)


def main() -> None:
    """Print both tables."""
    given, row = Assumptions(), catalogue.find("pair_energy")
    print(HEADER)
    print("|" + "---|" * 13)
    for name, shape in SHAPES.items():
        for chip in CHIPS.values():
            for variant in row.variants(shape):
                price, _ = catalogue.best(row, shape, chip, given, variant)
                print(_line(f"{name} {chip.name}", price, MEASURED.get((name, chip.name), "-")), flush=True)
    print()
    print("| published kernel on trn1 | what | model | published |")
    print("|---|---|---|---|")
    for text in _checks(given):
        print(text)


def _line(name: str, price: Price, measured: str) -> str:
    busy = " | ".join(f"{price.busy(engine) / MS:.2f}" for engine in ("tensor", "vector", "scalar", "dma"))
    return (
        f"| {name} | {price.variant} | {price.calls}, {price.neffs} | {busy} | {price.makespan / MS:.2f} "
        f"| {price.utilisation:.3f} | {price.floor / MS:.2f} | {price.hbm_bytes / GB:.2f} | {price.sbuf} | {measured} |"
    )


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
