"""The pair step on arrays of a known size and energy, against the products of the same machine in the same run.

Operations of the pair step are those of its products: nocc (nocc + 1) nvir^2 naux.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any

from dfmp2.backends import registry
from dfmp2.backends.base import Backend, Tile
from dfmp2.errors import BackendUnavailable, ComparisonFailed, InputError, ResourceError
from dfmp2.host import threads
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.mp2.certificate import certify
from dfmp2.mp2.pairs import pair_energies
from dfmp2.options import BACKEND_WORDS
from dfmp2.output.document import WIDEST, Table, fitted, size
from dfmp2.progress import Listener
from dfmp2.units import format_bytes
from dfmp2.validation import entries, synthetic
from dfmp2.validation.machine import Meter, Spread, header, ratios, spread
from dfmp2.validation.products import SQUARE_DEVICE, SQUARE_HOST, shaped_rate, square_rate
from dfmp2.validation.synthetic import KERNEL_CERTIFICATE, Kernel

TIMED = ("cpu", "torch", "cuda")  # what runs on hardware of its own speed
EMULATED = "the nki lanes are never timed here: their simulator and interpreter compute on the host"
SMALL = "the shapes of trnblas: 128/16/384, 512/64/1536, 768/96/2304 functions, occupied, fitting functions"
FROM_TABLE = {  # shape -> entry of `dfmp2 validate`, which has its arrays and its energy
    "small": "trnblas-small",
    "medium": "trnblas-medium",
    "large": "trnblas-large",
    "benz": "gamess-miniapp-benz",
    "cor": "gamess-miniapp-cor",
    "c60": "gamess-miniapp-c60",
    "w30": "gamess-miniapp-w30",
}
W60 = Kernel("closed-form", 240, 1140, 5040)  # jkwack/GAMESS_RI-MP2_MiniApp, source/rimp2_energy_whole_KERN.f90
GPU_ONLY = ("w60",)
ROUNDING = 1e-11  # of an energy in float64
_OWN = re.compile(r"([1-9][0-9]{0,5})[/,]([1-9][0-9]{0,5})[/,]([1-9][0-9]{0,5})", re.ASCII)  # nocc/nvir/naux
NAMES = (*FROM_TABLE, *GPU_ONLY)


@dataclass(frozen=True, slots=True)
class Problem:
    """Arrays of a shape and the energy they must give; `tolerance` in float64, Eh."""

    name: str
    kernel: Kernel
    energy: float
    tolerance: float

    @property
    def operations(self) -> float:
        """Floating-point operations of the products of the pair step."""
        k = self.kernel
        return float(k.nocc * (k.nocc + 1) * k.nvir**2 * k.naux)


def problem(name: str) -> Problem:
    """The problem of a shape.

    Raises
    ------
    InputError : no such shape
    """
    own = _OWN.fullmatch(name)
    if own is None and name not in NAMES:
        raise InputError(
            f"--shape {name!r}: expected one of {', '.join(NAMES)} ({SMALL}; the others of the GAMESS mini-app), or "
            "occupied/virtual/fitting functions, such as 50/190/840"
        )
    if own is not None or name == "w60":
        kernel = W60 if own is None else Kernel("closed-form", *map(int, own.groups()))
        energy = -((kernel.nvir * kernel.nocc / kernel.naux) ** 2) / 2
        return Problem(name, kernel, energy, ROUNDING * abs(energy))
    entry = {entry.id: entry for table in ("trnsci", "main") for entry in entries.load(table)}[FROM_TABLE[name]]
    if entry.kernel is None or entry.tolerance is None:
        raise InputError(f"--shape {name}: the table of dfmp2 validate has no arrays for it: install dfmp2 again")
    return Problem(name, entry.kernel, entry.quantities[0].value, entry.tolerance)


def measure(
    name: str,
    backends: list[str],
    precisions: list[str],
    *,
    repeats: int,
    count: int,
    memory: int | None,
    listener: Listener,
) -> dict[str, Any]:
    """Time the pair step of a shape on every backend that is there, alternating; the object `--json` writes.

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
        b, space = synthetic.make(task.kernel, count)
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
        "not_timed": {**unused, "nki": EMULATED},
        "results": [
            {
                "backend": backend,
                "precision": precision,
                **{key: asdict(spread(values)) for key, values in _series(task.operations, group).items()},
                "energy_difference": max((one["difference"] for one in group), key=abs),
            }
            for (backend, precision), group in lanes.items()
        ],
        "ratios": _compared({lane: [one["pairs"] for one in group] for lane, group in lanes.items()}),
        "measurements": found,
    }


def judge(found: dict[str, Any]) -> None:
    """Raise when an energy in what `measure` returns is wrong.

    Raises
    ------
    ComparisonFailed : it differs from the known one by more than its precision explains
    """
    task = found["problem"]
    for one in found["measurements"]:
        allowed = task["tolerance"] + (one["precision"] == "mixed") * KERNEL_CERTIFICATE * abs(task["energy"])
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


def to_text(found: dict[str, Any]) -> str:
    """Header and table of what `measure` returns."""
    task, k = found["problem"], found["problem"]["kernel"]
    lines = [
        *header(found),
        f"{task['name']}: {k['nocc']} occupied, {k['nvir']} virtual, {k['naux']} fitting functions; "
        f"{found['operations']:.3g} operations; {found['threads']} threads; "
        f"{len(found['measurements']) // len(found['results'])} runs of each, alternating",
        *(f"{name} not timed: {reason}" for name, reason in found["not_timed"].items() if name != "nki"),
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
    lines += fitted(Table("", ("backend", *(f"#{name}" for name in SHOWN), "#error / Eh"), rows))
    if found["ratios"]:
        lines += ["", "ratio of times, run by run"]
    lines += [f"{name:<32}{Spread(**value).show():>20}" for name, value in found["ratios"].items()]
    return "\n".join(lines) + "\n"


def _series(operations: float, group: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Run by run: seconds, GF/s, and per cent of the products' rates measured just before."""
    rates = {"": [operations / one["pairs"] for one in group]}
    rates |= {f"{kind}_": [one[kind] for one in group] for kind in ("square", "shaped")}
    return {
        "seconds": [one["pairs"] for one in group],
        **{f"{kind}gflops": [rate / 1e9 for rate in values] for kind, values in rates.items()},
        **{
            f"percent_of_{kind}": [100 * a / b for a, b in zip(rates[""], rates[f"{kind}_"], strict=True)]
            for kind in ("square", "shaped")
        },
        "put_seconds": [one["put"] for one in group],
        "certificate_seconds": [one["certificate"] for one in group],
    }


def _compared(seconds: dict[tuple[str, str], list[float]]) -> dict[str, dict[str, float]]:
    """Ratios of times, run by run: mixed to fp64 of a backend, and each backend to the first one in its precision."""
    first = next(iter(seconds))
    found = {}
    for backend, precision in seconds:
        others = [(backend, "fp64")] if precision == "mixed" else []
        others += [first] if precision == first[1] and backend != first[0] else []
        for other in (other for other in others if other in seconds):
            name = f"{backend} {precision} / {' '.join(other)}"
            found[name] = asdict(ratios(seconds[backend, precision], seconds[other]))
    return found


def _measure(
    task: Problem, b: synthetic.Array, space: ActiveSpace, backend: Backend, precision: str, count: int
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
    backend.pair_terms(operand, operand, Tile(0, 1, 0, 1, True))  # waits for the device, and warms it
    found = {"put": time.perf_counter() - start, "pairs": 0.0, "certificate": 0.0}
    found["square"] = square_rate(backend, precision, count)
    found["shaped"] = shaped_rate(backend, operand, count, found["square"])
    start = time.perf_counter()
    pairs = pair_energies([operand], backend)
    found["pairs"] = time.perf_counter() - start
    if precision == "mixed":
        exact = backend.put(b, space.eps_occ, space.eps_vir, "fp64")
        start = time.perf_counter()
        certify(pairs, [exact], backend, KERNEL_CERTIFICATE * abs(task.energy))
        found["certificate"] = time.perf_counter() - start
    return {**found, "difference": pairs.opposite_spin_energy + pairs.same_spin_energy - task.energy}


def _backends(task: Problem, names: list[str], count: int) -> tuple[list[Backend], dict[str, str]]:
    """Backends to time, and why the others are not."""
    names = [BACKEND_WORDS.get(name, name) for name in names]
    for name in names:
        if name not in TIMED:
            raise InputError(f"--backend {name}: expected {', '.join(TIMED)}; {EMULATED}")
    chosen, unused = [], {}
    for row in registry.BACKENDS:
        if row.name not in (names or TIMED):
            continue
        reason = row.probe()
        if task.name in GPU_ONLY and row.name != "cuda":
            reason = f"{task.name} would take a host many minutes and is timed on a GPU only; w30 is the largest for it"
        if reason is None:
            chosen.append(row.make(count))
        elif names:
            raise BackendUnavailable(f"--backend {row.name} cannot be timed: {reason}")
        else:
            unused[row.name] = reason
    if not chosen:
        raise BackendUnavailable(f"--shape {task.name}: {'; '.join(f'{name}: {why}' for name, why in unused.items())}")
    return chosen, unused


def _require_memory(task: Problem, memory: int | None, chosen: list[Backend]) -> None:
    """Refuse arrays that do not fit, on the host or on a device."""
    single = 12 * task.kernel.elements  # float64 B and one float32 copy
    products = 24 * max(SQUARE_DEVICE if b.limits.memory is not None else SQUARE_HOST for b in chosen) ** 2
    synthetic.require_memory(task.kernel, single + products, memory)
    held = max(single, 8 * task.kernel.elements + products)
    for backend in chosen:
        if backend.limits.memory is not None and backend.limits.memory < held:
            raise ResourceError(
                f"--shape {task.name} needs {format_bytes(held)} of the memory of {backend.name}, "
                f"which has {format_bytes(backend.limits.memory)}: take a smaller shape, or another --backend"
            )
