"""Benchmarks of the pair step, on arrays of known size and energy, and of matrix products.

The operations of the pair step are those of its products: nocc (nocc + 1) nvir^2 naux. Shapes are
those published by trnblas; backends and precisions alternate, and ratios are taken run by run.
`dfmp2 bench --gemm` measures large square products, the best case of a BLAS, and stores the rates
of this host for `dfmp2 plan`.

Figures come with a description of the machine, its load, and the spread of repeated measurements.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.backends import registry
from dfmp2.backends.base import Backend, Tile
from dfmp2.errors import BackendUnavailable, ComparisonFailed, InputError, Option, ResourceError
from dfmp2.host import provenance, resources, threads
from dfmp2.host.resources import Others
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.certificate import certify_precision
from dfmp2.mp2.pairs import pair_energies
from dfmp2.options import BACKEND_WORDS
from dfmp2.output.document import WIDEST, Table, fitted_lines, size
from dfmp2.planning import rates
from dfmp2.progress import Listener
from dfmp2.units import counted_text, format_bytes, told_apart
from dfmp2.validation import entries
from dfmp2.validation.entries import KERNEL_CERTIFICATE, SyntheticSizes

TIMED = ("cpu", "torch", "cuda", "cuda-tf32")  # backends that run on real hardware
EMULATED = "the nki lanes are never timed here: their simulator and interpreter compute on the host"
SHAPES = {  # name -> entry of `dfmp2 validate` with its arrays and energy
    "small": "trnblas-small",
    "medium": "trnblas-medium",
    "large": "trnblas-large",
}
OF_THE_MINI_APP = ("benz", "cor", "c60", "w30", "w60")  # shapes that were timed until version 0.1

SQUARE_HOST = 2048  # rows of the square product; beyond, rates change by less than their spread
SQUARE_DEVICE = 8192
LIBRARIES = {"cpu": "numpy", "torch": "torch"}  # backend -> library whose products it uses
PRECISIONS = {"fp64": "float64", "mixed": "float32"}


@dataclass(frozen=True, slots=True)
class BenchProblem:
    """The arrays of a shape and their known energy; `tolerance` in float64, Eh."""

    name: str
    kernel: SyntheticSizes
    energy: float
    tolerance: float

    @property
    def operations(self) -> float:
        """Floating-point operations of the products of the pair step."""
        k = self.kernel
        return float(k.nocc * (k.nocc + 1) * k.nvir**2 * k.naux)


def problem(name: str) -> BenchProblem:
    """The problem of a shape.

    Raises
    ------
    InputError : no such shape
    """
    if name not in SHAPES:
        raise InputError(
            Option("shape", name),
            f": expected one of {', '.join(SHAPES)}, the shapes of trnblas",
            _replacement(name),
        )
    by_name = {entry.id: entry for entry in entries.load_entries("trnsci")}
    entry = by_name[SHAPES[name]]
    if entry.kernel is None or entry.tolerance is None:
        raise InputError(
            Option("shape", name),
            ": the table of dfmp2 validate has no arrays for it: install dfmp2 again",
        )
    return BenchProblem(
        name=name, kernel=entry.kernel, energy=entry.quantities[0].value, tolerance=entry.tolerance
    )


def _replacement(name: str) -> str:
    """The replacement of a removed shape, "" for a name that never existed."""
    if name in OF_THE_MINI_APP:
        return (
            "; those of the GAMESS mini-app are no longer timed: dfmp2 validate --only "
            "gamess-miniapp checks their energies"
        )
    if re.fullmatch(r"\d+[/,]\d+[/,]\d+", name):
        return (
            "; sizes of one's own are no longer timed: dfmp2 run --profile FILE has the rate of "
            "each stage of a molecule"
        )
    return ""


def measure_shape(
    name: str,
    backends: list[str],
    precisions: list[str],
    *,
    repeats: int,
    count: int,
    memory: int | None,
    listener: Listener,
) -> dict[str, Any]:
    """Time the pair step of a shape on all available backends in turn; returns the object that
    `--json` writes.

    Parameters
    ----------
    backends : names of backends to time, [] for all that can be timed
    precisions : "fp64", "mixed"
    count : threads
    memory : bytes the process may use, None for what is free

    Raises
    ------
    InputError : unknown shape, or a backend that cannot be timed here
    BackendUnavailable : a named backend is unavailable, or all are
    ResourceError : the arrays do not fit
    """
    task = problem(name)
    chosen, unused = _backends(task, backends, count)
    _require_memory(task, memory, chosen)
    meter = Meter(listener)
    listener.stage(f"making B: {format_bytes(8 * task.kernel.elements)}")
    lanes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    found = []
    with threads.limited(count):
        b, space = entries.make_synthetic(task.kernel, count)
        for number, backend, precision in product(range(1, repeats + 1), chosen, precisions):
            one = _measure(task, b, space, backend, precision)
            rate = task.operations / one["pairs"] / 1e9
            shown = f"{backend.name} {precision}: {one['pairs']:.2f} s, {rate:.0f} GF/s"
            listener.stage(f"[{number}/{repeats}] {shown}")
            lanes.setdefault((backend.name, precision), []).append(one)
            found.append({"backend": backend.name, "precision": precision, **one})
    return {
        "mode": "shape",
        **meter.record(),
        "problem": asdict(task),
        "operations": task.operations,
        "threads": count,
        "devices": {backend.name: backend.describe() for backend in chosen},
        "not_timed": {**unused, "nki": EMULATED},
        "results": [
            {
                "backend": backend,
                "precision": precision,
                **{
                    key: asdict(spread(values))
                    for key, values in _series(task.operations, group).items()
                },
                "energy_difference": max((one["difference"] for one in group), key=abs),
            }
            for (backend, precision), group in lanes.items()
        ],
        "ratios": _compared(
            {lane: [one["pairs"] for one in group] for lane, group in lanes.items()}
        ),
        "measurements": found,
    }


def judge(found: dict[str, Any]) -> None:
    """Raise if an energy in the result of `measure_shape` is wrong.

    Raises
    ------
    ComparisonFailed : an energy differs from the known one by more than its precision explains
    """
    task = found["problem"]
    for one in found["measurements"]:
        allowed = task["tolerance"] + (one["precision"] == "mixed") * KERNEL_CERTIFICATE * abs(
            task["energy"]
        )
        if not abs(one["difference"]) <= allowed:
            off, most = told_apart(".1e", abs(one["difference"]), allowed)
            raise ComparisonFailed(
                f"{task['name']} on {one['backend']} in {one['precision']}: the energy is off by "
                f"{off} Eh, more than {most} Eh: its time means nothing"
            )


SHOWN = {  # column of the table -> (key of a result, digits)
    "pair step / s": ("seconds", 3),
    "GF/s": ("gflops", 0),
    "certificate / s": ("certificate_seconds", 3),
}


def shape_text(found: dict[str, Any]) -> str:
    """Header and table for the result of `measure_shape`."""
    task, k = found["problem"], found["problem"]["kernel"]
    threads = counted_text(found["threads"], "thread")
    runs = counted_text(len(found["measurements"]) // len(found["results"]), "run")
    lines = [
        *header(found),
        f"{task['name']}: {k['nocc']} occupied, {k['nvir']} virtual, {k['naux']} fitting "
        f"functions; {found['operations']:.3g} operations; {threads}; {runs} of each, alternating",
        *(
            f"{name}: " + ", ".join(f"{word} {value}" for word, value in device.items())
            for name, device in found["devices"].items()
            if name.startswith("cuda")
        ),
        *(
            f"{name} not timed: {reason}"
            for name, reason in found["not_timed"].items()
            if name != "nki"
        ),
        EMULATED,
        "",
    ]
    rows = [
        (
            f"{row['backend']}, {row['precision']}",
            *(Spread(**row[key]).show(digits) for key, digits in SHOWN.values()),
            size(row["energy_difference"]),
        )
        for row in found["results"]
    ]
    lines = [part for line in lines for part in wrap(line, WIDEST) or [""]]
    lines += fitted_lines(
        Table("", ("backend", *(f"#{name}" for name in SHOWN), "#error / Eh"), rows)
    )
    if found["ratios"]:
        lines += ["", "ratio of times, run by run"]
    lines += [f"{name:<32}{Spread(**value).show():>20}" for name, value in found["ratios"].items()]
    return "\n".join(lines) + "\n"


def _series(operations: float, group: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Seconds and GF/s of each run."""
    return {
        "seconds": [one["pairs"] for one in group],
        "gflops": [operations / one["pairs"] / 1e9 for one in group],
        "put_seconds": [one["put"] for one in group],
        "certificate_seconds": [one["certificate"] for one in group],
    }


def _compared(seconds: dict[tuple[str, str], list[float]]) -> dict[str, dict[str, float]]:
    """Ratios of times, run by run: mixed to fp64 for a backend, and each backend to the first with
    the same precision."""
    first = next(iter(seconds))
    found = {}
    for backend, precision in seconds:
        if precision == "mixed":
            others = [(backend, "fp64")]
        else:
            others = []
        others += [first] if precision == first[1] and backend != first[0] else []
        for other in (other for other in others if other in seconds):
            name = f"{backend} {precision} / {' '.join(other)}"
            found[name] = asdict(ratios(seconds[backend, precision], seconds[other]))
    return found


def _measure(
    task: BenchProblem,
    b: Array,
    space: ActiveSpace,
    backend: Backend,
    precision: str,
) -> dict[str, float]:
    """Measure one backend and precision once.

    Returns
    -------
    put, pairs : seconds to transfer B to the device, and for the pair step
    certificate : seconds to recompute a sample of pairs in float64, 0 if everything is in float64
    difference : computed minus known energy, Eh
    """
    start = time.perf_counter()
    operand = backend.put(b, space.eps_occ, space.eps_vir, precision)
    # Waits for the device, and warms it up
    backend.pair_terms(operand, operand, Tile(0, 1, 0, 1, True))
    found = {"put": time.perf_counter() - start, "pairs": 0.0, "certificate": 0.0}
    start = time.perf_counter()
    pairs = pair_energies([operand], backend)
    found["pairs"] = time.perf_counter() - start
    if precision == "mixed":
        exact = backend.put(b, space.eps_occ, space.eps_vir, "fp64")
        start = time.perf_counter()
        certify_precision(pairs, [exact], backend, KERNEL_CERTIFICATE * abs(task.energy))
        found["certificate"] = time.perf_counter() - start
    return {
        **found,
        "difference": pairs.opposite_spin_energy + pairs.same_spin_energy - task.energy,
    }


def _backends(
    task: BenchProblem, names: list[str], count: int
) -> tuple[list[Backend], dict[str, str]]:
    """Backends to time, and reasons for omitting the others."""
    names = [BACKEND_WORDS.get(name, name) for name in names]
    for name in names:
        if name not in TIMED:
            raise InputError(
                Option("backend", name), f": expected one of {', '.join(TIMED)}; {EMULATED}"
            )
    chosen, unused = [], {}
    for row in registry.BACKENDS:
        if row.name not in (names or TIMED):
            continue
        reason = row.probe()
        if reason is None:
            chosen.append(row.make(count))
        elif names:
            raise BackendUnavailable(Option("backend", row.name), f" cannot be timed: {reason}")
        else:
            unused[row.name] = reason
    if not chosen:
        raise BackendUnavailable(
            Option("shape", task.name),
            f": {'; '.join((f'{name}: {why}' for name, why in unused.items()))}",
        )
    return chosen, unused


def _require_memory(task: BenchProblem, memory: int | None, chosen: list[Backend]) -> None:
    """Raise if the arrays do not fit on the host or on a device."""
    numbers = task.kernel.elements
    entries.require_host_memory(task.kernel, 12 * numbers, memory)  # B, and a copy in float32
    for backend in chosen:
        held = (8 + backend.limits.single_bytes) * numbers
        if backend.limits.memory is not None and backend.limits.memory < held:
            needed, there = told_apart("bytes", held, backend.limits.memory)
            raise ResourceError(
                Option("shape", task.name),
                (
                    f" needs {needed} of the memory of {backend.name}, which has {there}: take a "
                    "smaller shape, or another "
                ),
                Option("backend"),
            )


# --- products ---


def square_rate(backend: Backend, precision: str, count: int) -> float:
    """Operations per second of a large square product, for the best way of distributing it over
    threads.

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
        seconds = [rates.shortest(lambda: list(pool.map(lambda part: _finish(a[part] @ b), rows)))]
    if workers > 1:  # a single product with all threads in the BLAS
        with threads.limited(count, blas=count):
            seconds.append(rates.shortest(lambda: _finish(a @ b)))
    return 2.0 * float(n) ** 3 / min(seconds)


def measure_products(count: int, repeats: int, listener: Listener) -> dict[str, Any]:
    """Measure rates of products with up to `count` threads, and of the stages of a run, which are
    stored for plans; returns the object that `--json` writes.

    The libraries alternate; the median of all repetitions is used.
    """
    meter = Meter(listener)
    reasons = {row.name: row.probe() for row in registry.BACKENDS if row.name in LIBRARIES}
    usable = {row.name: row.make for row in registry.BACKENDS if reasons.get(row.name, "") is None}
    # 1, 2, 4, ... and count
    counts = sorted({count, *(1 << k for k in range(count.bit_length()) if 1 << k <= count)})
    found: dict[tuple[str, str, int], list[float]] = {}
    for number in range(1, repeats + 1):
        listener.stage(
            f"[{number}/{repeats}] square products of "
            f"{', '.join(LIBRARIES[name] for name in usable)}"
        )
        for n, (name, make), precision in product(counts, usable.items(), PRECISIONS):
            rate = square_rate(make(n), precision, n)
            found.setdefault((LIBRARIES[name], precision, n), []).append(rate)
    listener.stage("rates of the stages of a run, for dfmp2 plan")
    plan = {name: rates.measure_rates(make(count), count) for name, make in usable.items()}
    record = meter.record()
    spreads = {name: spread(values) for name, values in found.items()}
    return {
        "mode": "gemm",
        **record,
        "threads": count,
        "rates": [
            {
                "library": library,
                "precision": PRECISIONS[precision],
                "threads": n,
                "flops_per_second": asdict(rate),
            }
            for (library, precision, n), rate in spreads.items()
        ],
        "pair_step_flops_per_second": {
            f"{name} {precision}": getattr(one, f"pairs_{precision}")
            for name, one in plan.items()
            for precision in PRECISIONS
        },
        "plan": {name: asdict(one) for name, one in plan.items()},
        "not_measured": {
            LIBRARIES[name]: reason for name, reason in reasons.items() if reason is not None
        },
    }


def products_text(found: dict[str, Any]) -> str:
    """Header and table for the result of `measure_products`."""
    lines = header(found)
    lines += [f"{name} not measured: {reason}" for name, reason in found["not_measured"].items()]
    lines += ["", f"{'library':<10}{'precision':<12}{'threads':>8}{'GF/s':>20}"]
    for row in found["rates"]:
        rate = Spread(**{name: value / 1e9 for name, value in row["flops_per_second"].items()})
        lines.append(
            f"{row['library']:<10}{row['precision']:<12}{row['threads']:>8}{rate.show(0):>20}"
        )
    pairs = ", ".join(
        f"{name} {rate / 1e9:.0f}" for name, rate in found["pair_step_flops_per_second"].items()
    )
    threads = counted_text(found["threads"], "thread")
    return "\n".join([*lines, "", f"pair step with {threads}, GF/s: {pairs}"]) + "\n"


def _finish(result: Any) -> float:
    """Wait for a device by reading an element, which is only possible when the product is done."""
    return float(result[-1, -1])


# --- the machine and its load -------------------------------------------------------------------

WATCHED = 1.0  # s to watch the machine before anything is timed
QUIET = 0.1  # cores used by other processes, above which figures count as disturbed
MEASURED_LIBRARIES = ("numpy", "scipy", "pyscf", "torch")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and its state at the start of the measurement.

    Attributes
    ----------
    processor, cores, memory : model, cores this process may use, bytes
    versions : of dfmp2, Python and the libraries; of NumPy's BLAS
    date : UTC, ISO 8601
    load : load average over the last minute
    busy : cores used by other processes while ours was idle
    """

    processor: str
    cores: int
    memory: int
    versions: dict[str, str]
    date: str
    load: float
    busy: float

    def lines(self) -> list[str]:
        """The header of a report."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [
            f"machine: {self.processor}, {counted_text(self.cores, 'usable core')}, "
            f"{format_bytes(self.memory)}; {platform.platform()}",
            f"versions: {versions}",
            f"date: {self.date}",
        ]


def watch(listener: Listener | None) -> Machine:
    """Watch the machine for a second while our process is idle; tell the listener if it is not
    quiet."""
    others = Others()
    time.sleep(WATCHED)
    busy = others.used()
    if listener is not None and busy > QUIET:
        listener.warning(
            f"other processes keep {busy:.2f} cores busy: times are too long; use a quiet machine"
        )
    return Machine(
        processor=_processor(),
        cores=resources.usable_cores(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        versions={
            "dfmp2": provenance.version(),
            "Python": platform.python_version(),
            **{
                name: found
                for name in MEASURED_LIBRARIES
                if (found := provenance.installed_version(name)) is not None
            },
            "BLAS of NumPy": provenance.blas(),
        },
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        load=os.getloadavg()[0],
        busy=busy,
    )


class Meter:
    """The machine, and what other processes use while this one measures."""

    def __init__(self, listener: Listener) -> None:
        self.machine, self._listener, self._others = watch(listener), listener, Others()

    def record(self) -> dict[str, Any]:
        """Machine, load, and cores used by others since the meter was created (0 if the system does
        not tell)."""
        foreign = self._others.used()
        if foreign > QUIET:
            self._listener.warning(
                f"meanwhile others used {foreign:.2f} cores: the rates are too low"
            )
        load = os.getloadavg()[0]
        return {
            "machine": asdict(self.machine),
            "load_average_after": load,
            "foreign_cores": foreign,
        }


def header(record: dict[str, Any]) -> list[str]:
    """The result of `Meter.record` as lines."""
    machine = Machine(**record["machine"])
    lines = [
        *machine.lines(),
        f"load average: {machine.load:.2f} before, {record['load_average_after']:.2f} after; cores "
        f"used by others: {machine.busy:.2f} before, {record['foreign_cores']:.2f} meanwhile",
    ]
    return [part for line in lines for part in wrap(line, WIDEST, subsequent_indent="  ")]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float

    def show(self, digits: int = 2) -> str:
        """Median and range, e.g. "1.26 (1.20-1.31)"; only the median if the range is zero."""
        middle, low, high = (f"{value:.{digits}f}" for value in (self.median, self.low, self.high))
        return middle if low == high else f"{middle} ({low}-{high})"


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of some values."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Spread of ours/theirs, paired by measurement so that simultaneous slowdowns cancel."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if named:
        return named[0]
    return platform.processor() or platform.machine()
