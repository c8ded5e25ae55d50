"""The pair step on arrays of a known size and energy, against the matrix products that bound its
rate.

Operations of the pair step are those of its products: nocc (nocc + 1) nvir^2 naux. Products are
timed with the arrays and workers of a backend, in the same run: one large square product, the most
a BLAS can do, and the products of the pair step in their own shape, (nj nvir, naux) times (naux, ni
nvir), without anything done to what comes out. `dfmp2 bench --gemm` keeps the rates of this host
for `dfmp2 plan` and `dfmp2 report`.
"""

from __future__ import annotations

import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from textwrap import wrap
from typing import Any

import numpy as np

from dfmp2.backends import registry, tiling
from dfmp2.backends.base import Backend, Limits, Operand, Tile
from dfmp2.errors import BackendUnavailable, ComparisonFailed, InputError, ResourceError
from dfmp2.errors.messages import Option
from dfmp2.host import threads
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.certificate import certify_precision
from dfmp2.mp2.pairs import pair_energies
from dfmp2.options import BACKEND_WORDS
from dfmp2.output.document import WIDEST, Table, fitted_lines, size
from dfmp2.planning import rates
from dfmp2.planning.rates import ProductRates
from dfmp2.progress import Listener
from dfmp2.units import format_bytes
from dfmp2.validation import entries, synthetic
from dfmp2.validation.machine import Meter, Spread, header, ratios, spread
from dfmp2.validation.synthetic import KERNEL_CERTIFICATE, SyntheticSizes

TIMED = ("cpu", "torch", "cuda", "cuda-tf32")  # what runs on hardware of its own speed
EMULATED = "the nki lanes are never timed here: their simulator and interpreter compute on the host"
SMALL = (
    "the shapes of trnblas: 128/16/384, 512/64/1536, 768/96/2304 functions, occupied, fitting "
    "functions"
)
FROM_TABLE = {  # shape -> entry of `dfmp2 validate`, which has its arrays and its energy
    "small": "trnblas-small",
    "medium": "trnblas-medium",
    "large": "trnblas-large",
    "benz": "gamess-miniapp-benz",
    "cor": "gamess-miniapp-cor",
    "c60": "gamess-miniapp-c60",
    "w30": "gamess-miniapp-w30",
}
W60 = SyntheticSizes(
    "closed-form", 240, 1140, 5040
)  # jkwack/GAMESS_RI-MP2_MiniApp, source/rimp2_energy_whole_KERN.f90
GPU_ONLY = ("w60",)
ROUNDING = 1e-11  # of an energy in float64
_OWN = re.compile(
    r"([1-9][0-9]{0,5})[/,]([1-9][0-9]{0,5})[/,]([1-9][0-9]{0,5})", re.ASCII
)  # nocc/nvir/naux
NAMES = (*FROM_TABLE, *GPU_ONLY)

SQUARE_HOST, SQUARE_DEVICE = (
    2048,
    8192,
)  # rows of the square product; beyond, rates change by less than their spread
SHAPED_SECONDS = 1.0  # the products of the pair step are repeated or cut to about this long
LIBRARIES = {"cpu": "numpy", "torch": "torch"}  # backend -> library whose products it uses
PRECISIONS = {"fp64": "float64", "mixed": "float32"}


@dataclass(frozen=True, slots=True)
class BenchProblem:
    """Arrays of a shape and the energy they must give; `tolerance` in float64, Eh."""

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
    own = _OWN.fullmatch(name)
    if own is None and name not in NAMES:
        raise InputError(
            Option("shape", name),
            (
                f": expected one of {', '.join(NAMES)} ({SMALL}; the others of the GAMESS "
                "mini-app), or occupied/virtual/fitting functions, such as 50/190/840"
            ),
        )
    if own is not None or name == "w60":
        if own is None:
            kernel = W60
        else:
            kernel = SyntheticSizes("closed-form", *map(int, own.groups()))
        energy = -((kernel.nvir * kernel.nocc / kernel.naux) ** 2) / 2
        return BenchProblem(name, kernel, energy, ROUNDING * abs(energy))
    entry = {
        entry.id: entry for table in ("trnsci", "main") for entry in entries.load_entries(table)
    }[FROM_TABLE[name]]
    if entry.kernel is None or entry.tolerance is None:
        raise InputError(
            Option("shape", name),
            ": the table of dfmp2 validate has no arrays for it: install dfmp2 again",
        )
    return BenchProblem(name, entry.kernel, entry.quantities[0].value, entry.tolerance)


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
    """Time the pair step of a shape on every backend that is there, alternating; the object
    `--json` writes.

    Parameters
    ----------
    backends : names to time, [] for all that can be timed
    precisions : "fp64", "mixed"
    count : threads
    memory : bytes the process may use, None for what is free

    Raises
    ------
    InputError : no such shape, or a backend that cannot be timed here
    BackendUnavailable : a named backend is not there, or none is
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
        b, space = synthetic.make_synthetic(task.kernel, count)
        for number in range(1, repeats + 1):
            for backend in chosen:
                for precision in precisions:
                    one = _measure(task, b, space, backend, precision, count)
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
    """Raise when an energy in what `measure_shape` returns is wrong.

    Raises
    ------
    ComparisonFailed : it differs from the known one by more than its precision explains
    """
    task = found["problem"]
    for one in found["measurements"]:
        allowed = task["tolerance"] + (one["precision"] == "mixed") * KERNEL_CERTIFICATE * abs(
            task["energy"]
        )
        if not abs(one["difference"]) <= allowed:
            raise ComparisonFailed(
                f"{task['name']} on {one['backend']} in {one['precision']}: the energy is off by "
                f"{one['difference']:.1e} Eh, more than {allowed:.1e} Eh: its time means nothing"
            )


SHOWN = {  # column of the table -> (key of a result, digits)
    "pair step / s": ("seconds", 3),
    "GF/s": ("gflops", 0),
    "square product": ("square_gflops", 0),
    "% of it": ("percent_of_square", 0),
    "same shapes": ("shaped_gflops", 0),
    "% of them": ("percent_of_shaped", 0),
    "certificate / s": ("certificate_seconds", 3),
}


def shape_text(found: dict[str, Any]) -> str:
    """Header and table of what `measure_shape` returns."""
    task, k = found["problem"], found["problem"]["kernel"]
    lines = [
        *header(found),
        f"{task['name']}: {k['nocc']} occupied, {k['nvir']} virtual, {k['naux']} fitting "
        f"functions; {found['operations']:.3g} operations; {found['threads']} threads; "
        f"{len(found['measurements']) // len(found['results'])} runs of each, alternating",
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
    """Run by run: seconds, GF/s, and per cent of the products' rates measured just before."""
    speeds = {"": [operations / one["pairs"] for one in group]}
    speeds |= {f"{kind}_": [one[kind] for one in group] for kind in ("square", "shaped")}
    return {
        "seconds": [one["pairs"] for one in group],
        **{f"{kind}gflops": [rate / 1e9 for rate in values] for kind, values in speeds.items()},
        **{
            f"percent_of_{kind}": [
                100 * a / b for a, b in zip(speeds[""], speeds[f"{kind}_"], strict=True)
            ]
            for kind in ("square", "shaped")
        },
        "put_seconds": [one["put"] for one in group],
        "certificate_seconds": [one["certificate"] for one in group],
    }


def _compared(seconds: dict[tuple[str, str], list[float]]) -> dict[str, dict[str, float]]:
    """Ratios of times, run by run: mixed to fp64 of a backend, and each backend to the first one in
    its precision."""
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
    b: synthetic.Array,
    space: ActiveSpace,
    backend: Backend,
    precision: str,
    count: int,
) -> dict[str, float]:
    """One backend and precision, once.

    Returns
    -------
    put, pairs : seconds to bring B to the device, and of the pair step
    certificate : seconds to redo its sample of pairs in float64, 0 in float64
    square, shaped : operations per second of the products, measured just before
    difference : energy found minus the known one, Eh
    """
    start = time.perf_counter()
    operand = backend.put(b, space.eps_occ, space.eps_vir, precision)
    backend.pair_terms(
        operand, operand, Tile(0, 1, 0, 1, True)
    )  # waits for the device, and warms it
    found = {"put": time.perf_counter() - start, "pairs": 0.0, "certificate": 0.0}
    found["square"] = square_rate(backend, precision, count)
    found["shaped"] = shaped_rate(backend, operand, count, found["square"])
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
    """Backends to time, and why the others are not."""
    names = [BACKEND_WORDS.get(name, name) for name in names]
    for name in names:
        if name not in TIMED:
            raise InputError(Option("backend", name), f": expected {', '.join(TIMED)}; {EMULATED}")
    chosen, unused = [], {}
    for row in registry.BACKENDS:
        if row.name not in (names or TIMED):
            continue
        reason = row.probe()
        if task.name in GPU_ONLY and not row.name.startswith("cuda"):
            reason = (
                f"{task.name} would take a host many minutes and is timed on a GPU only; w30 "
                "is the largest for it"
            )
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
    """Refuse arrays that do not fit, on the host or on a device."""
    single = 12 * task.kernel.elements  # float64 B and one float32 copy
    products = (
        24 * max(SQUARE_DEVICE if b.limits.memory is not None else SQUARE_HOST for b in chosen) ** 2
    )
    synthetic.require_host_memory(task.kernel, single + products, memory)
    held = max(single, 8 * task.kernel.elements + products)
    for backend in chosen:
        if backend.limits.memory is not None and backend.limits.memory < held:
            raise ResourceError(
                Option("shape", task.name),
                (
                    f" needs {format_bytes(held)} of the memory of {backend.name}, which has "
                    f"{format_bytes(backend.limits.memory)}: take a smaller shape, or another "
                ),
                Option("backend"),
            )


# --- products ---


def square_rate(backend: Backend, precision: str, count: int) -> float:
    """Operations per second of a large square product: the best of the ways the host can share it
    out.

    Parameters
    ----------
    count : threads
    """
    if backend.limits.memory is None:
        n = SQUARE_HOST
    else:
        n = SQUARE_DEVICE
    rng = np.random.default_rng(0)
    operand = backend.put(rng.standard_normal((2, n, n)), np.zeros(2), np.zeros(n), precision)
    a, b = operand.b[0], operand.b[1].T
    workers = backend.limits.workers
    rows = [slice(k * n // workers, (k + 1) * n // workers) for k in range(workers)]
    with threads.limited(count), ThreadPoolExecutor(workers) as pool:
        seconds = [rates.shortest(lambda: list(pool.map(lambda part: _finish(a[part] @ b), rows)))]
    if workers > 1:  # one product with all threads inside the BLAS
        with threads.limited(count, blas=count):
            seconds.append(rates.shortest(lambda: _finish(a @ b)))
    return 2.0 * float(n) ** 3 / min(seconds)


def shaped_rate(backend: Backend, operand: Operand, count: int, expected: float) -> float:
    """Operations per second of the products of the pair step, in their shape and all workers at
    once.

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
    blocks = [
        (i, j)
        for i in range(0, nocc - rows + 1, rows)
        for j in range(0, nocc - columns + 1, columns)
    ]
    endless = cycle(blocks)
    work = [list(islice(endless, number)) for _ in range(workers)]

    def products(part: list[tuple[int, int]]) -> None:
        for i, j in part:
            result = (
                operand.b[j : j + columns].reshape(-1, naux)
                @ operand.b[i : i + rows].reshape(-1, naux).T
            )
        _finish(result)

    with threads.limited(count), ThreadPoolExecutor(workers) as pool:
        return (
            per_product
            * number
            * workers
            / rates.shortest(lambda: list(pool.map(products, work)), 1)
        )


def measure_products(count: int, repeats: int, listener: Listener) -> dict[str, Any]:
    """Measure and store the rates of this host for up to `count` threads; the object `--json`
    writes.

    The libraries alternate; of all repetitions the median is kept.
    """
    meter = Meter(listener)
    reasons = {row.name: row.probe() for row in registry.BACKENDS if row.name in LIBRARIES}
    usable = {row.name: row.make for row in registry.BACKENDS if reasons.get(row.name, "") is None}
    counts = sorted(
        {count, *(1 << k for k in range(count.bit_length()) if 1 << k <= count)}
    )  # 1, 2, 4, ... and count
    found: dict[tuple[str, str, int], list[float]] = {}
    for number in range(1, repeats + 1):
        listener.stage(
            f"[{number}/{repeats}] square products of "
            f"{', '.join(LIBRARIES[name] for name in usable)}"
        )
        for n in counts:
            for name, make in usable.items():
                for precision in PRECISIONS:
                    found.setdefault((LIBRARIES[name], precision, n), []).append(
                        square_rate(make(n), precision, n)
                    )
    listener.stage("rates of the stages of a run, for dfmp2 plan")
    plan = {name: rates.measure_rates(make(count), count) for name, make in usable.items()}
    record = meter.record()
    spreads = {name: spread(values) for name, values in found.items()}
    kept = {
        f"{library} {precision} {n}": rate.median
        for (library, precision, n), rate in spreads.items()
    }
    rates.store_products(count, ProductRates(kept, record["foreign_cores"], meter.machine.date))
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
    """Header and table of what `measure_products` returns."""
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
    return (
        "\n".join([*lines, "", f"pair step with {found['threads']} threads, GF/s: {pairs}"]) + "\n"
    )


def _orbitals(nocc: int, nvir: int, naux: int, limits: Limits) -> tuple[int, int]:
    """Occupied orbitals i and j in most products of the pair step."""
    fitting = limits.tile_elements // nvir**2
    if not limits.square:
        rows, columns = tiling.strip(limits, nvir, nvir, nocc)
        return rows, min(columns, nocc)
    edge = max(1, min(tiling.edge(nocc, limits, nvir * naux), math.isqrt(fitting)))
    return edge, edge


def _finish(result: Any) -> float:
    """Wait for a device: an element can only be read when the product is done."""
    return float(result[-1, -1])
