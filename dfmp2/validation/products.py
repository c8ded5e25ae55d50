"""Matrix products alone, with the arrays and workers of a backend: what bounds the rate of the pair step.

Two kinds are timed: one large square product, the most a BLAS can do, and the products of the pair step in
their own shape, (nj nvir, naux) times (naux, ni nvir), without anything done to what comes out.
`dfmp2 bench --gemm` keeps the rates of this host for `dfmp2 plan` and `dfmp2 report`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import cycle, islice
from typing import Any

import numpy as np

from dfmp2.backends import registry, tiling
from dfmp2.backends.base import Backend, Limits, Operand
from dfmp2.host import threads
from dfmp2.planning import rates
from dfmp2.planning.rates import ProductRates
from dfmp2.progress import Listener
from dfmp2.validation.machine import Meter, Spread, header, spread

SQUARE_HOST, SQUARE_DEVICE = 2048, 8192  # rows of the square product; beyond, rates change by less than their spread
SHAPED_SECONDS = 1.0  # the products of the pair step are repeated or cut to about this long
LIBRARIES = {"cpu": "numpy", "torch": "torch"}  # backend -> library whose products it uses
PRECISIONS = {"fp64": "float64", "mixed": "float32"}


def square_rate(backend: Backend, precision: str, count: int) -> float:
    """Operations per second of a large square product: the best of the ways the host can share it out.

    Parameters
    ----------
    count : threads
    """
    n = SQUARE_HOST if backend.limits.memory is None else SQUARE_DEVICE
    rng = np.random.default_rng(0)
    operand = backend.put(rng.standard_normal((2, n, n)), np.zeros(2), np.zeros(n), precision)
    a, b = operand.b[0], operand.b[1].T
    workers = backend.limits.workers
    rows = [slice(k * n // workers, (k + 1) * n // workers) for k in range(workers)]
    with threads.limited(count), ThreadPoolExecutor(workers) as pool:
        seconds = [_timed(lambda: list(pool.map(lambda part: _finish(a[part] @ b), rows)))]
    if workers > 1:  # one product with all threads inside the BLAS
        with threads.limited(count, blas=count):
            seconds.append(_timed(lambda: _finish(a @ b)))
    return 2.0 * float(n) ** 3 / min(seconds)


def shaped_rate(backend: Backend, operand: Operand, count: int, expected: float) -> float:
    """Operations per second of the products of the pair step, in their shape and all workers at once.

    Parameters
    ----------
    operand : B of the pair step, resident
    count : threads
    expected : operations per second, to choose how many products are done
    """
    nocc, nvir, naux = (int(size) for size in operand.b.shape)
    rows, columns = _orbitals(nocc, nvir, naux, backend.limits)
    per_product = 2.0 * rows * columns * nvir * nvir * naux
    workers = backend.limits.workers
    number = max(1, int(SHAPED_SECONDS * expected / per_product / workers))
    blocks = [(i, j) for i in range(0, nocc - rows + 1, rows) for j in range(0, nocc - columns + 1, columns)]
    endless = cycle(blocks)
    work = [list(islice(endless, number)) for _ in range(workers)]

    def products(part: list[tuple[int, int]]) -> None:
        for i, j in part:
            result = operand.b[j : j + columns].reshape(-1, naux) @ operand.b[i : i + rows].reshape(-1, naux).T
        _finish(result)

    with threads.limited(count), ThreadPoolExecutor(workers) as pool:
        return per_product * number * workers / _timed(lambda: list(pool.map(products, work)), repeats=1)


def measure(count: int, repeats: int, listener: Listener) -> dict[str, Any]:
    """Measure and store the rates of this host for up to `count` threads; the object `--json` writes.

    The libraries alternate; of all repetitions the median is kept.
    """
    meter = Meter(listener)
    reasons = {row.name: row.probe() for row in registry.BACKENDS if row.name in LIBRARIES}
    usable = {row.name: row.make for row in registry.BACKENDS if reasons.get(row.name, "") is None}
    counts = sorted({count, *(1 << k for k in range(count.bit_length()) if 1 << k <= count)})  # 1, 2, 4, ... and count
    found: dict[tuple[str, str, int], list[float]] = {}
    for number in range(1, repeats + 1):
        listener.stage(f"[{number}/{repeats}] square products of {', '.join(LIBRARIES[name] for name in usable)}")
        for n in counts:
            for name, make in usable.items():
                for precision in PRECISIONS:
                    found.setdefault((LIBRARIES[name], precision, n), []).append(square_rate(make(n), precision, n))
    listener.stage("rates of the stages of a run, for dfmp2 plan")
    plan = {name: rates.measure(make(count), count) for name, make in usable.items()}
    record = meter.record()
    spreads = {name: spread(values) for name, values in found.items()}
    kept = {f"{library} {precision} {n}": rate.median for (library, precision, n), rate in spreads.items()}
    rates.store_products(count, ProductRates(kept, record["foreign_cores"], meter.machine.date))
    return {
        "mode": "gemm",
        **record,
        "threads": count,
        "rates": [
            {"library": library, "precision": PRECISIONS[precision], "threads": n, "flops_per_second": asdict(rate)}
            for (library, precision, n), rate in spreads.items()
        ],
        "pair_step_flops_per_second": {
            f"{name} {precision}": getattr(one, f"pairs_{precision}")
            for name, one in plan.items()
            for precision in PRECISIONS
        },
        "plan": {name: asdict(one) for name, one in plan.items()},
        "not_measured": {LIBRARIES[name]: reason for name, reason in reasons.items() if reason is not None},
    }


def to_text(found: dict[str, Any]) -> str:
    """Header and table of what `measure` returns."""
    lines = header(found)
    lines += [f"{name} not measured: {reason}" for name, reason in found["not_measured"].items()]
    lines += ["", f"{'library':<10}{'precision':<12}{'threads':>8}{'GF/s':>20}"]
    for row in found["rates"]:
        rate = Spread(**{name: value / 1e9 for name, value in row["flops_per_second"].items()})
        lines.append(f"{row['library']:<10}{row['precision']:<12}{row['threads']:>8}{rate.show(0):>20}")
    pairs = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in found["pair_step_flops_per_second"].items())
    return "\n".join([*lines, "", f"pair step with {found['threads']} threads, GF/s: {pairs}"]) + "\n"


def _orbitals(nocc: int, nvir: int, naux: int, limits: Limits) -> tuple[int, int]:
    """Occupied orbitals i and j in most products of the pair step."""
    fitting = limits.tile_elements // nvir**2
    if not limits.square:
        return 1, max(1, min(nocc, fitting))
    edge = max(1, min(tiling.edge(nocc, limits, nvir * naux), math.isqrt(fitting)))
    return edge, edge


def _finish(result: Any) -> float:
    """Wait for a device: an element can only be read when the product is done."""
    return float(result[-1, -1])


def _timed(work: Callable[[], object], repeats: int = 3) -> float:
    """Shortest time of a few repetitions, s."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
