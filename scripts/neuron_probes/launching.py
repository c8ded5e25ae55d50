"""P6, P7 and P8: dispatch, programs, compilation."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from dfmp2.trainium import calls
from dfmp2.trainium.calls import SHAPES
from dfmp2.trainium.costs.chips import Assumptions
from dfmp2.trainium.costs.schedule import schedule_call
from dfmp2.trainium.interpreter.rules import Shape
from neuron_probes.arithmetic import ELEMENTWISE
from neuron_probes.probe import CHIP, Bench, Decision, Numbers, Setting

DISPATCH = "dfmp2.trainium.costs.prediction:"
SIZES = (("medium", 8), ("medium", 16), ("large", 16))  # 6, 25 and 85 thousand statements
QUEUED = 10
ON_DEVICE = "pair block, by the device's clock, ms"
MANY = 100
LONGEST = 600.0  # s that compiling one program may take
MOST_MEMORY = 24 * 2**30  # bytes, of the 32 GiB of a trn1.2xlarge


def queue(bench: Bench) -> Numbers:
    """P6: ms of one call and of each further call in a queue, of a kernel that does nothing and of a pair block."""
    tiny = {"x": np.ones((128, 64), np.float32), "rounds": 1}
    block = calls.pair_energy_calls(*SHAPES["medium"], CHIP.target)[0]
    rng = np.random.default_rng(6)
    given = {
        name: rng.uniform(0.1, 1.0, value.shape).astype(np.float32)
        if isinstance(value, Shape)
        else value
        for name, value in block.arguments.items()
    }
    given["identity"] = np.eye(128, dtype=np.float32)
    found = {}
    for name, source, kernel, arguments in (
        ("empty kernel", ELEMENTWISE, "copies", tiny),
        ("pair block", block.source, block.kernel, given),
    ):
        one = bench.calls(source, kernel, arguments, 1)
        ten = bench.calls(source, kernel, arguments, QUEUED)
        found[f"{name}, one call, ms"] = one * 1e3
        found[f"{name}, each further call, ms"] = (ten - one) / (QUEUED - 1) * 1e3
    return {**found, ON_DEVICE: bench.device(block.source, block.kernel, given)}


def decide_queue(found: Numbers) -> Decision:
    """P6's rule: a queued block may take little more than its own predicted time."""
    own, busy = predicted_block()
    submit, trip = found["empty kernel, each further call, ms"], found["empty kernel, one call, ms"]
    further, device = found["pair block, each further call, ms"], found[ON_DEVICE]
    hidden = further < own + 0.5 * submit
    use = busy / (further if math.isnan(device) else device)
    if hidden:
        text = "dispatch hides behind the call before it"
    else:
        text = "dispatch adds to every call: larger blocks pay"
    if use >= 0.85:
        gaps = ""
    else:
        gaps = "; below 85 %: profile it, and give every pair tiles of its own again"
    return Decision(
        f"{text}; the Tensor Engine works {100 * use:.0f} % of a block, which takes {further:.2f} ms in a queue, "
        f"{device:.2f} by the device's clock and {own:.2f} by the model{gaps}",
        (
            Setting(f"{DISPATCH}SUBMIT", f"{0.0 if hidden else submit:.2f}"),
            Setting(f"{DISPATCH}ROUND_TRIP", f"{trip:.2f}"),
            Setting("dfmp2.trainium.layout:EDGE", "8" if hidden else "16, where P8 allows it"),
        ),
    )


@cache
def predicted_block() -> tuple[float, float]:
    """Predicted ms of an off-diagonal block of the medium shape, and of its Tensor Engine."""
    _, account, _ = schedule_call(
        calls.pair_energy_calls(*SHAPES["medium"], CHIP.target)[0], CHIP, Assumptions()
    )
    return account.makespan / 1e6, account.busy["tensor"] / 1e6


def programs(bench: Bench) -> Numbers:
    """P7: programs for 3 and for 5 blocks of occupied orbitals, and ms of each of 100 calls of a loaded one."""
    found = {f"programs for {blocks} blocks": bench.programs(blocks) for blocks in (3, 5)}
    tiny = {"x": np.ones((128, 64), np.float32), "rounds": 1}
    return {
        **found,
        f"each of {MANY} calls, ms": bench.calls(ELEMENTWISE, "copies", tiny, MANY) / MANY * 1e3,
    }


def decide_programs(found: Numbers) -> Decision:
    """P7's rule: two programs for the first number of blocks, none for the second."""
    first, second = found["programs for 3 blocks"], found["programs for 5 blocks"]
    settles = (Setting("dfmp2.trainium.calls:pair_energy_calls", "two programs per padded shape"),)
    if math.isnan(first):
        return Decision("this lane does not count its programs", settles)
    if first <= 2 and second == 0:
        return Decision("programs do not depend on the number of occupied orbitals", settles)
    return Decision(
        f"{first:.0f} programs for 3 blocks and {second:.0f} more for 5: something of a molecule is compiled in; "
        "compare the names in the cache folder",
        settles,
    )


def compilation(bench: Bench) -> Numbers:
    """P8: seconds and GiB to compile a pair block of 6, 25 and 85 thousand statements."""
    found = {}
    for name, edge in SIZES:
        seconds, memory = bench.compilation(SHAPES[name], edge)
        found[f"{name}, edge {edge}, s"] = seconds
        found[f"{name}, edge {edge}, GiB"] = memory / 2**30
        if seconds > LONGEST or memory > MOST_MEMORY:
            break  # what is larger would only take longer
    return found


def decide_compilation(found: Numbers) -> Decision:
    """P8's rule: edge 16 where it compiles in time and fits a trn1.2xlarge."""
    if all(math.isnan(value) for value in found.values()):
        return Decision(
            "nothing predicts this: the larger blocks are taken only where they compile", ()
        )
    fits = [
        f"{name}, edge {edge}"
        for name, edge in SIZES
        if found.get(f"{name}, edge {edge}, s", math.inf) <= LONGEST
        and found.get(f"{name}, edge {edge}, GiB", math.inf) * 2**30 <= MOST_MEMORY
    ]
    edge = "16" if len(fits) == len(SIZES) else "8"
    text = f"within {LONGEST:.0f} s and {MOST_MEMORY // 2**30} GiB: {'; '.join(fits) or 'none'}"
    if "medium, edge 8" not in fits:
        text += "; even the default block is too large: split it, or compile on a larger host and copy the cache folder"
    return Decision(text, (Setting("dfmp2.trainium.layout:EDGE", edge),))
