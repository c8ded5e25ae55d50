"""P1, P3 and P9: what the engines compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from neuron_probes.probe import Bench, Decision, Numbers, Setting

PRODUCTS, ELEMENTWISE, LOOP = (
    "neuron_probes." + name for name in ("products", "elementwise", "counted_loop")
)
# format, number in the kernel, k: (1 + 2^-k)^2 = 1 + 2^(1-k) + 2^-2k, of which a narrow product keeps the first two.
FORMATS = (("float32", 0, 11), ("bfloat16", 1, 7), ("float16", 2, 10))
FUNCTIONS = (
    "Vector reciprocal",
    "Vector sum with a column",
    "Scalar square",
    "Scalar reciprocal",
    "Scalar rsqrt",
)
LOW, HIGH = 0.1, 300.0  # Eh: denominators of small and large gaps, deep core orbitals included
ROUNDED = 2.0**-24  # relative error of a correctly rounded float32 operation
MENDED = 2e-4  # relative error of a reciprocal that a Newton step, which squares it, makes as good as rounding
GOOD = 4 * ROUNDED  # what the certificate's estimate allows for each step

PE_MODEL = "dfmp2.trainium.interpreter.rules:Settings.pe_model"


def product_width(bench: Bench) -> Numbers:
    """P1: the part of (1 + 2^-k)^2 - 1 - 2^(1-k) = 2^-2k that is left of a product; 1 where products are whole."""
    found = {}
    for name, number, k in FORMATS:
        left, right = np.ones((2, 128), np.float32), np.ones((2, 128), np.float32)
        left[0], right[0] = 1 + 2.0**-k, 1 + 2.0**-k
        left[1] = -(1 + 2.0 ** (1 - k))
        result = bench.run(
            PRODUCTS, "product_width", {"left": left, "right": right, "format_number": number}
        )
        found[f"{name} excess / expected"] = float(result[0, 0]) / 2.0 ** (-2 * k)
    return found


def decide_width(found: Numbers) -> Decision:
    """P1's rule."""
    whole = {name: found[f"{name} excess / expected"] == 1.0 for name, _, _ in FORMATS}
    narrow = whole["float16"] and whole["bfloat16"]
    settles = (Setting(PE_MODEL, '"fp32"' if narrow else '"bf16prod"'),)
    if not whole["float32"]:
        return Decision(
            "float32 products are cut: the accuracy stated for the kernels does not hold; stop here",
            settles,
        )
    if whole["float16"]:
        return Decision(
            "16-bit products are whole: float32 as three products of float16 halves is worth building (43-51 ms for "
            "the medium shape by the model, in place of 65-67)",
            settles,
        )
    return Decision(
        "16-bit products are rounded: splitting float32 into halves gains nothing; keep float32",
        settles,
    )


def functions(bench: Bench) -> Numbers:
    """P3: largest relative error over 65,536 points between 0.1 and 300."""
    x = np.geomspace(LOW, HIGH, 65_536).astype(np.float32).reshape(128, 512)
    column = np.linspace(0.6, 40.0, 128, dtype=np.float32)[:, None]
    wide = x.astype(np.float64)
    exact = (1 / wide, wide + column, wide**2, 1 / wide, 1 / np.sqrt(wide))
    found = {}
    for number, (name, expected) in enumerate(zip(FUNCTIONS, exact, strict=True)):
        result = bench.run(ELEMENTWISE, "function", {"x": x, "column": column, "which": number})
        found[f"{name}, largest relative error"] = _relative(result, expected)
    return found


def decide_functions(found: Numbers) -> Decision:
    """P3's rule: reciprocal and sum with a column of the Vector Engine, and square of the Scalar Engine are needed."""
    error = {name: found[f"{name}, largest relative error"] for name in FUNCTIONS}
    mended = GOOD < error["Vector reciprocal"] <= MENDED
    needed = {
        "Vector reciprocal": "the Newton step"
        if mended
        else "a pair kernel without a reciprocal (Laplace transform)",
        "Vector sum with a column": "denominators from nl.relu with a bias on the Scalar Engine",
        "Scalar square": "squares from tensor_tensor on the Vector Engine",
    }
    bad = [name for name in needed if not error[name] <= GOOD]
    worst = max(error[name] for name in needed)
    settles = (
        Setting(
            "dfmp2.trainium.kernels.pair_energy:emit_chunk",
            "as it is" if not bad else "; ".join(needed[name] for name in bad),
        ),
        Setting("dfmp2.trainium.kernels.tiles:NEWTON", str(mended)),
        Setting("dfmp2.backends.contract:PAIR_TOLERANCE", f"{max(2e-6, 8 * worst):.0e}"),
    )
    if bad:
        return Decision(f"too coarse (more than {GOOD:.1e}): {', '.join(bad)}", settles)
    faster = error["Scalar reciprocal"] <= GOOD
    if faster:
        other = "could take over reciprocals"
    else:
        other = "is too coarse for reciprocals"
    return Decision(
        f"all three instructions of the pair kernel are good to {GOOD:.1e}; the Scalar Engine {other}",
        settles,
    )


def counted_loop(bench: Bench) -> Numbers:
    """P9: part of the blocks that a loop with a counter in SBUF found, read and wrote rightly."""
    rounds = 8
    x = np.random.default_rng(9).uniform(0.5, 1.5, (rounds * 128, 64)).astype(np.float32)
    result = bench.run(LOOP, "doubled", {"x": x, "rounds": rounds})
    right = (result == 2 * x).reshape(rounds, -1).all(axis=1)
    return {"blocks right / blocks": float(right.mean())}


def decide_loop(found: Numbers) -> Decision:
    """P9's rule."""
    works = found["blocks right / blocks"] == 1.0
    edge = Setting(
        "dfmp2.trainium.layout:EDGE",
        "8, or one dispatch per molecule with a loop" if works else "8",
    )
    if works:
        return Decision(
            "a hardware loop with a counter works: all blocks of a molecule could be one program",
            (edge,),
        )
    return Decision("the loop went astray: keep static blocks, one call each", (edge,))


def _relative(found: NDArray[np.float32], expected: NDArray[np.float64]) -> float:
    return float(np.max(np.abs(found.astype(np.float64) / expected - 1)))
