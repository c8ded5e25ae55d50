"""Rates of matrix products with NumPy and PyTorch, kept for `dfmp2 plan` and for the choice of `--backend auto`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from dfmp2 import calibration, product_rates
from dfmp2.backends import registry
from dfmp2.backends.base import Backend
from dfmp2.bench import machine
from dfmp2.bench.machine import Machine
from dfmp2.bench.products import square_rate
from dfmp2.bench.spread import Spread, spread
from dfmp2.forecast import Rates
from dfmp2.product_rates import CLEARLY, PAYS, QUIET, ProductRates
from dfmp2.progress import Listener

LIBRARIES = {"cpu": "numpy", "torch": "torch"}  # backend -> whose products it uses
PRECISIONS = {"fp64": "float64", "mixed": "float32"}
LONG_JOB = 1e14  # operations of the pair step of C40H82 in cc-pVDZ, about; for the sentence on what auto would do
_IMPORT = "import time, numpy; start = time.perf_counter(); import torch; print(time.perf_counter() - start)"


@dataclass(frozen=True, slots=True)
class GemmTimes:
    """What was measured.

    Attributes
    ----------
    rates : (library, precision, threads) -> operations per second of a large square product
    plan : backend -> the rates `dfmp2 plan` uses from now on
    record : what `auto` reads; unused : why a library is missing
    foreign : cores that others used meanwhile
    """

    machine: Machine
    threads: int
    rates: dict[tuple[str, str, int], Spread]
    plan: dict[str, Rates]
    record: ProductRates
    unused: dict[str, str]
    load_after: float
    foreign: float


def measure(count: int, repeats: int, listener: Listener) -> GemmTimes:
    """Measure and store the rates of this host for up to `count` threads.

    The libraries alternate; of all repetitions the median is kept.
    """
    header = machine.watch()
    for warning in header.warnings():
        listener.warning(warning)
    rows = [row for row in registry.BACKENDS if row.name in LIBRARIES]
    unused = {LIBRARIES[row.name]: reason for row in rows if (reason := row.probe()) is not None}
    usable = [row for row in rows if LIBRARIES[row.name] not in unused and row.make is not None]
    found: dict[tuple[str, str, int], list[float]] = {}
    meter = machine.Meter()
    for number in range(1, repeats + 1):
        listener.stage(f"[{number}/{repeats}] square products of {', '.join(LIBRARIES[row.name] for row in usable)}")
        for threads in _counts(count):
            for row in usable:
                backend = _made(row, threads)
                for precision in PRECISIONS:
                    rate = square_rate(backend, precision, threads)
                    found.setdefault((LIBRARIES[row.name], precision, threads), []).append(rate)
    listener.stage("rates of the stages of a run, for dfmp2 plan")
    plan = {row.name: calibration.measure(_made(row, count), count) for row in usable}
    foreign = meter.foreign()
    for warning in machine.disturbance(foreign):
        listener.warning(warning)
    rates = {name: spread(values) for name, values in found.items()}
    record = ProductRates(
        products={f"{library} {precision} {n}": rate.median for (library, precision, n), rate in rates.items()},
        pairs={
            f"{name} {precision}": getattr(one, f"pairs_{precision}")
            for name, one in plan.items()
            for precision in PRECISIONS
        },
        torch_import=None if "torch" in unused else _torch_import(),
        foreign=foreign,
        date=header.date,
    )
    product_rates.store(count, record)
    return GemmTimes(header, count, rates, plan, record, unused, machine.load_average(), foreign)


def to_dict(times: GemmTimes) -> dict[str, Any]:
    """The object `--json` writes."""
    return {
        "mode": "gemm",
        "machine": asdict(times.machine),
        "load_average_after": times.load_after,
        "foreign_cores": times.foreign,
        "threads": times.threads,
        "rates": [
            {"library": library, "precision": PRECISIONS[precision], "threads": n, "flops_per_second": asdict(rate)}
            for (library, precision, n), rate in times.rates.items()
        ],
        "pair_step_flops_per_second": times.record.pairs,
        "torch_import_seconds": times.record.torch_import,
        "plan": {name: asdict(rates) for name, rates in times.plan.items()},
        "not_measured": times.unused,
        "auto": verdict(times),
    }


def to_json(times: GemmTimes) -> str:
    """JSON text with a newline."""
    return json.dumps(to_dict(times), indent=2, allow_nan=False) + "\n"


def to_text(times: GemmTimes) -> str:
    """Header and table."""
    lines = [
        *times.machine.lines(),
        f"load average at the end {times.load_after:.2f} (our own work included)",
        f"others used {times.foreign:.2f} cores meanwhile",
        *(f"{name} not measured: {reason}" for name, reason in times.unused.items()),
        "",
        f"{'library':<10}{'precision':<12}{'threads':>8}{'GF/s':>20}",
    ]
    for (library, precision, n), rate in times.rates.items():
        scaled = Spread(rate.median / 1e9, rate.low / 1e9, rate.high / 1e9)
        lines.append(f"{library:<10}{PRECISIONS[precision]:<12}{n:>8}{scaled.show(0):>20}")
    pairs = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in times.record.pairs.items())
    return "\n".join([*lines, "", f"pair step with {times.threads} threads, GF/s: {pairs}", verdict(times)]) + "\n"


def verdict(times: GemmTimes) -> str:
    """What `--backend auto` does on this host from now on, where there is no GPU."""
    reason = product_rates.torch_reason(times.record, "auto", LONG_JOB)
    if times.foreign > QUIET:
        return (
            f"auto does not act on this record: others used {times.foreign:.2f} cores; measure again on a quiet machine"
        )
    rule = f"{CLEARLY:g} times NumPy's rate, and {PAYS:g} times its import saved"
    if reason is None:
        return f"auto stays with NumPy (PyTorch would have to reach {rule})"
    return f"auto takes PyTorch for long runs ({rule}): for C40H82 in cc-pVDZ it would say: {reason}"


def _counts(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return sorted({*counts, most})


def _made(row: registry.Row, threads: int) -> Backend:
    if row.make is None:
        raise TypeError(f"backend {row.name} cannot be made")
    return row.make(threads)


def _torch_import() -> float:
    """Seconds to import PyTorch in a fresh process with NumPy loaded, its files in the system's cache."""
    done = subprocess.run([sys.executable, "-P", "-c", _IMPORT], capture_output=True, text=True, check=True)
    return float(done.stdout)
