"""P10, P11 and P12: what others met on trn1 and no page of AWS says; whether it holds here."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from dfmp2.errors import KernelError
from dfmp2.trainium.interpreter.rules import MOVED_BYTES
from dfmp2.trainium.launch.proof import RAMP
from neuron_probes.arithmetic import PRODUCTS
from neuron_probes.probe import Bench, Decision, Numbers, Setting
from neuron_probes.rates import COSTS

BIASES, RESIDENTS = "neuron_probes.biases", "neuron_probes.residents"
KIB = (48, 64, 80, 96, 112)  # of a partition that resident tiles take
TILE = 2048  # columns of one of them, 8 KiB
STEEP = 2.0  # times slower than the smallest: beyond the line
SETTLED = 1.1  # times the last second's median: no longer slow
LONG = (
    4  # times a bench's many turns are in a launch that is watched: about 3 ms of the Tensor Engine
)


def biases(bench: Bench) -> Numbers:
    """P10: the part of a column that relu and copy add to their operand; 1 where it is added, 0 where it is not."""
    x = np.linspace(1.0, 2.0, 128 * 64, dtype=np.float32).reshape(128, 64)
    column = np.linspace(3.0, 4.0, 128, dtype=np.float32)[:, None]
    found = {}
    for which, name in enumerate(("relu", "copy")):
        try:
            result = bench.run(BIASES, "biased", {"x": x, "column": column, "which": which})
            found[f"{name}, part of the bias added"] = float(np.median((result - x) / column))
        except KernelError:  # the interpreter refuses it, and a compiler may
            found[f"{name}, part of the bias added"] = math.nan
    return found


def decide_biases(found: Numbers) -> Decision:
    """P10's rule: nothing depends on it, but the rule of the lint may go where copy adds its bias."""
    relu, copy = (found[f"{name}, part of the bias added"] for name in ("relu", "copy"))
    if math.isnan(copy):
        text = "nothing is known of the bias of a copy"
    else:
        text = ""
    if abs(copy) < 1e-3:
        text = "a copy leaves its bias out, as issue 1296 says; kernels add columns with nisa.tensor_scalar"
    elif not text:
        if abs(copy - 1) < 1e-3:
            text = "a copy adds its bias here"
        else:
            text = f"a copy adds {copy:.3g} of its bias: report it"
    if not math.isnan(relu):
        text += (
            "; relu adds its bias"
            if abs(relu - 1) < 1e-3
            else f"; relu adds {relu:.3g} of its bias"
        )
    return Decision(
        text, (Setting("dfmp2.trainium.kernels.tiles:add_column", "nisa.tensor_scalar, as it is"),)
    )


def residents(bench: Bench) -> Numbers:
    """P11: ns of each streamed tile, beside resident tiles that transfers have written."""
    found = {}
    for size in KIB:
        count = size * 256 // TILE
        given = {
            "resident": np.ones((128, count * TILE), np.float32),
            "source": np.ones((4 * 128, 512), np.float32),
        }
        found[f"{size} KiB resident, ns per tile"] = bench.nanoseconds(
            RESIDENTS, "streamed", given, "repeats", partial(_all_used, count)
        )
    return found


def _all_used(count: int, result: np.ndarray, turns: int) -> bool:
    """Whether `turns` products of ones, and one for each of `count` residents, were added up."""
    return bool((result == 128 * (turns + count)).all())


def decide_residents(found: Numbers) -> Decision:
    """P11's rule: the last size before the time per tile leaps."""
    times = [found[f"{size} KiB resident, ns per tile"] for size in KIB]
    slow = [size for size, time in zip(KIB, times, strict=True) if time > STEEP * times[0]]
    line = slow[0] if slow else KIB[-1] + 1
    worst = max(times) / times[0]
    if slow:
        text = f"streaming is {worst:.1f} times slower from {line} KiB on: keep what transfers write below that"
    else:
        text = f"no leap up to {KIB[-1]} KiB ({worst:.2f} times at most): the budget of 64 KiB may grow"
    if line * 1024 <= MOVED_BYTES:
        text += "; THE KERNELS ARE PLANNED FOR MORE: their times mean nothing until the budget is lowered"
    return Decision(
        text,
        (
            Setting(f"{COSTS}chips:Assumptions.moved_line", f"{line} * 1024"),
            Setting(f"{COSTS}chips:Assumptions.moved_factor", f"{worst:.1f}"),
            Setting(
                "dfmp2.trainium.interpreter.rules:MOVED_BYTES",
                "64 * 1024" if line > 64 else "lower",
            ),
        ),
    )


def ramp(bench: Bench) -> Numbers:
    """P12: how much slower launches of the first second are than those of the last, and when that ends."""
    rng = np.random.default_rng(12)
    given: dict[str, Any] = {"a": rng.uniform(0.5, 1.5, (128, 512)).astype(np.float32)}
    given["b"] = rng.uniform(0.5, 1.5, (128, 512)).astype(np.float32)
    given |= {"repeats": LONG * bench.many, "one_zero": False}
    watched = bench.watch(PRODUCTS, "repeated_products", given, 2 * RAMP)
    if not watched:
        return {"first second, times as slow": math.nan, "settled after, s": math.nan}
    begin, end = watched[0][0], watched[-1][0]
    by_second = [
        float(np.median(taken))
        for low in np.arange(begin, end, 1.0)
        if (taken := [seconds for at, seconds in watched if low <= at < low + 1.0])
    ]
    slow = [number for number, median in enumerate(by_second) if median > SETTLED * by_second[-1]]
    settled = begin + slow[-1] + 1.0 if slow else 0.0
    return {
        "first second, times as slow": by_second[0] / by_second[-1],
        "settled after, s": settled,
    }


def decide_ramp(found: Numbers) -> Decision:
    """P12's rule."""
    factor, settled = found["first second, times as slow"], found["settled after, s"]
    if math.isnan(factor):
        return Decision("nothing predicts this; 2.2 times for a few seconds was measured elsewhere")
    if factor < SETTLED:
        return Decision(
            "the first seconds are as fast as the last", (Setting(_RAMP, f"{RAMP:g}, as it is"),)
        )
    if settled <= RAMP:
        enough = "times before that are discarded already"
    else:
        enough = "TIMES TAKEN BEFORE THAT COUNT TODAY"
    return Decision(
        f"the first second is {factor:.1f} times slower, for {settled:.1f} s; {enough}",
        (Setting(_RAMP, f"{max(RAMP, math.ceil(settled) + 1.0):g}"),),
    )


_RAMP = "dfmp2.trainium.launch.proof:RAMP"
