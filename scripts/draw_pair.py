#!/usr/bin/env python3
"""Draw one pair in the fused kernel: tiles of T, and when each engine works on them, from the predicted schedule.

    python scripts/draw_pair.py [--shape medium] [--target trn1] [--pair 12] [--output docs/trainium/one-pair.svg]

The timeline is the in-order schedule of the kernel's own instructions at documented costs: predicted, not measured. The
products of a pair come first; its elementwise work is emitted between the products of the next pair.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dfmp2.trainium import calls
from dfmp2.trainium.costs.chips import CHIPS, Assumptions
from dfmp2.trainium.costs.schedule import Schedule, schedule_call
from dfmp2.trainium.interpreter.trace import Instruction, Trace
from dfmp2.trainium.kernels.sizes import BANK, P, upper_columns
from dfmp2.trainium.layout import padded_nvir

OUTPUT = Path(__file__).resolve().parent.parent / "docs/trainium/one-pair.svg"
WIDTH, ROW, LEFT, TOP = 1000, 34, 90, 300  # pixels
BLOCK = 46  # pixels of 128 orbitals
ENGINES = {"tensor": "Tensor", "vector": "Vector", "scalar": "Scalar", "dma": "DMA"}
COLOURS = {
    "products": "#2b6cb0",
    "copies and squares": "#2f855a",
    "transposes": "#805ad5",
    "denominators": "#b7791f",
    "reciprocals": "#c53030",
    "products with R": "#dd6b20",
    "row sums": "#319795",
    "transfers": "#4a5568",
    "other pairs": "#cbd5e0",
}
KINDS = {
    "tensor_scalar": "denominators",
    "reciprocal": "reciprocals",
    "tensor_tensor": "products with R",
    "dma_copy": "transfers",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shape", default="medium", choices=tuple(calls.SHAPES))
    parser.add_argument("--target", default="trn1", choices=tuple(CHIPS))
    parser.add_argument(
        "--pair", type=int, default=12, help="of the block, in the order of emission (default: 12)"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE")
    given = parser.parse_args(arguments)
    given.output.write_text(picture(given.shape, given.target, given.pair))
    return 0


def picture(shape: str, target: str, pair: int) -> str:
    """The SVG file."""
    chip = CHIPS[target]
    call = calls.pair_energy_calls(*calls.SHAPES[shape], chip.target)[0]
    trace, _, plan = schedule_call(call, chip, Assumptions())
    nvir = padded_nvir(calls.SHAPES[shape].nvir)
    owner = owners(
        trace,
        products=-(-nvir // P) * call.arguments["slices"],
        chunks=-(-upper_columns(nvir) // BANK),
    )
    lines = [*tiles(nvir), *timeline(trace, plan, owner, pair, f"{shape} shape, {target}")]
    height = TOP + ROW * len(ENGINES) + 110
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
    return "\n".join(
        [
            f'{head} font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            *lines,
            "</svg>",
            "",
        ]
    )


def owners(trace: Trace, products: int, chunks: int) -> list[int]:
    """The pair that each instruction belongs to, by the order of emission; -1 where to none.

    Parameters
    ----------
    products : of a pair, before its copies; chunks : of 512 packed columns, each from its transposes to its row sums
    """
    found: list[int] = []
    count, chunk, inside, summed = 0, -1, False, False
    for one in trace.instructions:
        plain = one.name == "nc_matmul" and not one.one_zero
        inside = inside and not plain and not (summed and not one.reduces)  # row sums end a chunk
        if one.name == "nc_matmul" and one.one_zero and not inside:
            inside, chunk = True, chunk + 1
        summed = one.reduces
        if inside and one.engine != "dma":
            found.append(chunk // chunks)
        elif plain or (one.name == "activation" and _from_psum(one)):
            found.append(max(0, count - (not plain)) // products)
            count += plain
        else:
            found.append(-1)
    return found


def _from_psum(one: Instruction) -> bool:
    return any(access.space == "psum" for access in one.reads)


def kind(one: Instruction) -> str:
    """What an instruction of a pair does."""
    if one.name == "nc_matmul":
        return "transposes" if one.one_zero else "products"
    if one.name == "activation":
        return "row sums" if one.reduces else "copies and squares"
    return KINDS.get(one.name, "other pairs")


def timeline(trace: Trace, plan: Schedule, owner: list[int], pair: int, title: str) -> list[str]:
    """One row per engine, from the first to the last instruction of the pair."""
    own = [index for index, which in enumerate(owner) if which == pair]
    begin, end = min(plan.start[own]), max(plan.end[own])
    scale = (WIDTH - LEFT - 20) / (end - begin)
    lines = [
        text(
            LEFT,
            TOP - 34,
            f"pair {pair + 1} of a block, {title}: {(end - begin) / 1e3:.0f} us, predicted",
            bold=True,
        )
    ]
    shown = set()
    for row, (engine, name) in enumerate(ENGINES.items()):
        y = TOP + row * ROW
        lines.append(text(8, y + 16, name))
        for index, one in enumerate(trace.instructions):
            if one.engine != engine or plan.end[index] <= begin or plan.start[index] >= end:
                continue
            mine = owner[index] == pair or engine == "dma"
            what = kind(one) if mine else "other pairs"
            shown.add(what)
            low, high = max(begin, plan.start[index]), min(end, plan.end[index])
            x, width = LEFT + (low - begin) * scale, max(0.6, (high - low) * scale - 0.3)
            lines.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 10}" fill="{COLOURS[what]}"/>'
            )
    bottom = TOP + ROW * len(ENGINES)
    for step in range(0, int((end - begin) / 1e3) + 1, 10):
        x = LEFT + step * 1e3 * scale
        lines += [
            f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#a0aec0" stroke-dasharray="2 3"/>'
        ]
        lines += [text(x, bottom + 14, f"{step} us")]
    x = LEFT
    for what in COLOURS:
        if what in shown:
            lines += [
                f'<rect x="{x:.1f}" y="{bottom + 34}" width="12" height="12" fill="{COLOURS[what]}"/>'
            ]
            lines += [text(x + 16, bottom + 44, what)]
            x += 30 + 6.2 * len(what)
    return lines


def tiles(nvir: int) -> list[str]:
    """T in blocks of 128 orbitals, and where each block goes."""
    edges = [*range(0, nvir, P), nvir]
    count = len(edges) - 1
    lines = [
        text(
            LEFT,
            22,
            f"T_ab of a pair, {nvir} x {nvir}, in blocks of {P} (packed in this order)",
            bold=True,
        )
    ]
    order = {(a, a): a + 1 for a in range(count)}
    order |= {
        place: count + n + 1
        for n, place in enumerate((a, b) for a in range(count) for b in range(a + 1, count))
    }
    for a in range(count):
        for b in range(count):
            x, y = LEFT + edges[b] * BLOCK / P, 34 + edges[a] * BLOCK / P
            w, h = ((edges[k + 1] - edges[k]) * BLOCK / P for k in (b, a))
            colour = "#90cdf4" if a < b else "#fbd38d" if a == b else "#d6bcfa"
            lines.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{w - 2:.1f}" height="{h - 2:.1f}" fill="{colour}"/>'
            )
            if a <= b:
                lines.append(text(x + w / 2 - 5, y + h / 2 + 4, str(order[a, b])))
    right = LEFT + nvir * BLOCK / P + 30
    told = (
        ("#90cdf4", "above the diagonal: X, copied from PSUM to xu, packed"),
        ("#fbd38d", "on the diagonal: X, with 2 D in place of D"),
        (
            "#d6bcfa",
            "below: copied to tl, then transposed, like the diagonal, on the Tensor Engine into PSUM: Y",
        ),
        (
            "none",
            f"per {BANK} packed columns: D = eu + neg, R = 1 / D, then row sums of X^2 R and Y^2 R, and of X R Y",
        ),
        ("none", "the sums, one per partition, go to the host, which adds them in float64"),
    )
    for number, (colour, sentence) in enumerate(told):
        y = 46 + 26 * number
        if colour != "none":
            lines.append(f'<rect x="{right}" y="{y}" width="14" height="14" fill="{colour}"/>')
        lines.append(text(right + 20, y + 12, sentence))
    return lines


def text(x: float, y: float, words: str, *, bold: bool = False) -> str:
    """A line of text."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#1a202c"{weight}>{words}</text>'


if __name__ == "__main__":
    sys.exit(main())
