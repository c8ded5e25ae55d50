"""P2, P4 and P5: what instructions and transfers cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from dfmp2.trainium.costs.chips import DMA_QUEUES, FLOAT32_PASSES, RECIPROCAL, Assumptions
from neuron_probes.arithmetic import ELEMENTWISE, PE_MODEL, PRODUCTS
from neuron_probes.probe import CHIP, Bench, Check, Decision, Numbers, Setting

TRANSFERS = "neuron_probes.transfers"
SHORT, LONG = 64, 512
RUNS = (
    (512, 512, "24.6 kB"),
    (672, 336, "1.3 kB"),
)  # columns of the source, columns loaded, run length
SLICES = 12
MODES = (
    "static",
    "unknown",
    "hardware",
)  # who makes descriptors: the host, whom the compiler takes, DGE (trn2)
CHOICES = {
    "none": "static descriptors are as good",
    "unknown": "let the compiler choose the descriptors",
    "hwdge": "let the hardware make the descriptors, on trn2 only",
}
COSTS = "dfmp2.trainium.costs."
CUBE = "2048^3 product, us"
CUBE_TILES = 16 * 16 * 4  # products of 128 x 128 x 512
# us of trntensor's 2048^3 product. Its docs/design/matmul_dispatch_findings.md has 0.67 ms in that column for 128^3 and
# for 1024^3 alike, and says that it holds the submission only: no product of any precision takes the same for both.
SUBMITTED = 568.0


def _close(expected: np.ndarray, tolerance: float = 1e-4) -> Check:
    """Whether a result is what one turn gives, times the number of turns."""
    return lambda found, turns: bool(np.allclose(found, expected * turns, rtol=tolerance, atol=0.0))


def products(bench: Bench) -> Numbers:
    """P2: cycles per moving row, with zeros and ones, of transposes, and the error of a float32 product."""
    rng = np.random.default_rng(2)
    a = rng.uniform(0.5, 1.5, (128, 512)).astype(np.float32)
    dense = rng.uniform(0.5, 1.5, (128, 512)).astype(np.float32)
    binary = rng.integers(0, 2, (128, 512)).astype(np.float32)
    stationary = a.astype(np.float64).reshape(128, 4, 128).mean(axis=1)  # of four in turn
    cycles = {}
    for name, b, hint in (
        ("dense", dense, False),
        ("zeros and ones", binary, False),
        ("hinted", binary, True),
    ):
        given = {"a": a, "b": b, "one_zero": hint}
        time = bench.nanoseconds(
            PRODUCTS, "repeated_products", given, "repeats", _close(stationary.T @ b)
        )
        cycles[f"{name}, cycles per row"] = time * CHIP.tensor / 512
        if name == "dense":
            cycles[CUBE] = CUBE_TILES * time / 1e3
    given = {"a": a, "identity": np.eye(128, dtype=np.float32)}
    sums = a.astype(np.float64).reshape(128, 4, 128).sum(axis=(0, 1))[:, None]
    for name, marked in (("transpose", False), ("marked transpose", True)):
        time = bench.nanoseconds(
            PRODUCTS, "repeated_transposes", {**given, "transpose": marked}, "banks", _close(sums)
        )
        cycles[f"{name}, cycles per row"] = time * CHIP.tensor / 512
    result = bench.run(
        PRODUCTS, "repeated_products", {"a": a, "b": dense, "repeats": 12, "one_zero": False}
    )
    exact = 12 * stationary.T @ dense
    return {
        **cycles,
        "largest relative error of 12 x 128 terms": float(np.max(np.abs(result / exact - 1))),
    }


def decide_products(found: Numbers) -> Decision:
    """P2's rule."""
    passes = max(1, round(found["dense, cycles per row"]))
    hint = found["hinted, cycles per row"] < 0.75 * found["zeros and ones, cycles per row"]
    fast = found["marked transpose, cycles per row"] < 0.75 * found["transpose, cycles per row"]
    error = found["largest relative error of 12 x 128 terms"]
    if error < 1e-6:
        model = '"fp32"'
    elif error < 1e-4:
        model = '"split4"'
    else:
        model = "none of ours: bfloat16 passes"
    if passes == FLOAT32_PASSES:
        verdict = "as predicted"
    else:
        verdict = f"{passes} passes in place of {FLOAT32_PASSES}"
    if error < 1e-6:
        accurate = "float32 products are float32"
    else:
        accurate = f"float32 products are off by {error:.0e}: check flags"
    if found[CUBE] > 1.1 * SUBMITTED:
        other = f"the {SUBMITTED:.0f} us published elsewhere were its submission"
    else:
        other = (
            f"as fast as the {SUBMITTED:.0f} us published elsewhere: {passes} passes, see the error"
        )
    verdict += f"; a 2048^3 product takes {found[CUBE]:.0f} us, {other}"
    return Decision(
        f"{verdict}; the hint for zeros and ones {'halves' if hint else 'does not halve'} the cost; {accurate}",
        (
            Setting(f"{COSTS}chips:FLOAT32_PASSES", str(passes)),
            Setting(f"{COSTS}chips:Assumptions.one_zero_hint", str(hint)),
            Setting(f"{COSTS}chips:Chip.fast_transpose", f"{fast} for {CHIP.name}"),
            Setting(PE_MODEL, model),
        ),
    )


def chains(bench: Bench) -> Numbers:
    """P4: cycles per element and per instruction of the elementwise engines, from rows of 64 and of 512."""
    found = {}
    kinds: tuple[tuple[str, str, dict[str, bool], float, int], ...] = (
        ("reciprocal", "reciprocals", {}, CHIP.vector, 2),
        ("multiply from PSUM", "multiplies", {"from_psum": True}, CHIP.vector, 1),
        ("multiply from SBUF", "multiplies", {"from_psum": False}, CHIP.vector, 1),
        ("Scalar copy", "copies", {}, CHIP.scalar, 1),
    )
    for name, kernel, options, clock, instructions in kinds:
        cycles = []
        for columns in (SHORT, LONG):
            x = np.random.default_rng(columns).uniform(0.5, 1.5, (128, columns)).astype(np.float32)
            given: dict[str, Any] = {"x": x, **options}
            if kernel == "multiplies":
                given["f"] = np.where(x > 1, 1.0, -1.0).astype(np.float32)  # x f^n is x or x f
            check = _unchanged(given)
            cycles.append(
                bench.nanoseconds(ELEMENTWISE, kernel, given, "rounds", check)
                * clock
                / instructions
            )
        per_element = (cycles[1] - cycles[0]) / (LONG - SHORT)
        found[f"{name}, cycles per element"] = per_element
        found[f"{name}, cycles besides"] = cycles[0] - SHORT * per_element
    return found


def _unchanged(given: dict[str, Any]) -> Check:
    """Whether x came back, times f where the number of products is odd; 1/(1/x) may drift by roundings."""

    def check(found: np.ndarray, turns: int) -> bool:
        if "f" in given and turns % 2:
            expected = given["x"] * given["f"]
        else:
            expected = given["x"]
        return bool(np.allclose(found, expected, rtol=0.05, atol=0.0))

    return check


def decide_chains(found: Numbers) -> Decision:
    """P4's rule."""
    names = ("reciprocal", "multiply from PSUM", "multiply from SBUF", "Scalar copy")
    per = {name: found[f"{name}, cycles per element"] for name in names}
    besides = {name: max(0.0, found[f"{name}, cycles besides"]) for name in names}
    shared = per["multiply from PSUM"] < 0.75 * per["multiply from SBUF"]
    vector = (
        besides["multiply from PSUM"] + besides["multiply from SBUF"] + besides["reciprocal"]
    ) / 3
    if shared:
        text = "an operand in PSUM halves a product"
    else:
        text = "an operand in PSUM saves nothing: keep R in SBUF"
    if per["reciprocal"] > 1.25 * RECIPROCAL["vector"]:
        text += f"; the reciprocal takes {per['reciprocal']:.1f} cycles per element: see whether the Vector Engine binds"
    return Decision(
        text,
        (
            Setting(f"{COSTS}chips:RECIPROCAL", f"vector {per['reciprocal']:.1f}"),
            Setting(f"{COSTS}chips:Assumptions.vector_overhead", f"{vector:.0f}"),
            Setting(f"{COSTS}chips:Assumptions.scalar_overhead", f"{besides['Scalar copy']:.0f}"),
            Setting(
                "dfmp2.trainium.kernels.pair_energy:emit_chunk",
                f"r in {'PSUM' if shared else 'SBUF'}",
            ),
        ),
    )


def transfers(bench: Bench) -> Numbers:
    """P5: bytes per ns of loads in long and in short runs, with static descriptors and with what the compiler takes."""
    found = {}
    for columns, width, name in RUNS:
        source = np.ones((4 * 128, SLICES, columns), np.float32)
        size = 128 * SLICES * width * 4
        for number, mode in enumerate(MODES if CHIP.target == "gen3" else MODES[:2]):
            given = {"source": source, "width": width, "mode_number": number}
            time = bench.nanoseconds(
                TRANSFERS, "loads", given, "repeats", _close(np.ones((128, 1)))
            )
            found[f"{name} runs, {mode}, GB/s"] = size / time
    return found


def decide_transfers(found: Numbers) -> Decision:
    """P5's rule: rate = queues * peak * b / (b + half) through the two measured points."""
    runs = [4 * width * (SLICES if width == columns else 1) for columns, width, _ in RUNS]
    slow = [1 / found[f"{name} runs, static, GB/s"] for _, _, name in RUNS]
    # 1 / rate = (1 + half / b) / top: a straight line in 1 / b
    inverse = (slow[1] - slow[0]) / (1 / runs[1] - 1 / runs[0])
    top = 1 / max(slow[0] - inverse / runs[0], 1e-9)
    half = max(0.0, inverse * top)
    mode, least = "none", 1.05  # what is gained on static descriptors, in long and in short runs
    for name, member in (("unknown", "unknown"), ("hardware", "hwdge")):
        speeds = [
            (found.get(f"{run} runs, {name}, GB/s", 0.0), found[f"{run} runs, static, GB/s"])
            for _, _, run in RUNS
        ]
        gain = min(speed / static for speed, static in speeds)
        if gain > least:
            mode, least = member, gain
    return Decision(
        f"{top:.0f} GB/s for endless runs, half of it at {half:.0f} bytes; " + CHOICES[mode],
        (
            Setting(
                f"{COSTS}chips:Chip.dma", f"{top / DMA_QUEUES:.1f} for {CHIP.name} (now {CHIP.dma})"
            ),
            Setting(
                f"{COSTS}chips:Assumptions.dma_half", f"{half:.0f} (now {Assumptions().dma_half})"
            ),
            Setting("dfmp2.trainium.kernels.tiles:DGE", f"nisa.dge_mode.{mode}"),
        ),
    )
