"""The pair step on arrays of a known size and energy, against the products of the same machine in the same run.

Operations of the pair step are those of its products: nocc (nocc + 1) nvir^2 naux.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from dfmp2 import resources, threads
from dfmp2.backends import registry
from dfmp2.backends.base import Backend, Tile
from dfmp2.bench import machine
from dfmp2.bench.machine import Machine
from dfmp2.bench.products import SQUARE_DEVICE, SQUARE_HOST, shaped_rate, square_rate
from dfmp2.errors import BackendUnavailable, ComparisonFailed, InputError, ResourceError
from dfmp2.mp2.certificate import certify
from dfmp2.mp2.pairs import pair_energies
from dfmp2.orbitals import ActiveSpace
from dfmp2.progress import Listener
from dfmp2.record import PairEnergies
from dfmp2.units import format_bytes
from dfmp2.validation import entries, synthetic
from dfmp2.validation.session import KERNEL_CERTIFICATE
from dfmp2.validation.synthetic import Kernel

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
_OWN = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", re.ASCII)  # nocc/nvir/naux
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

    @property
    def elements(self) -> int:
        """Elements of B."""
        return self.kernel.nocc * self.kernel.nvir * self.kernel.naux


@dataclass(frozen=True, slots=True)
class Measurement:
    """One backend and precision, once.

    Attributes
    ----------
    put, pairs : seconds to bring B to the device, and of the pair step
    certificate : seconds to redo its sample of pairs in float64, 0 in float64
    square, shaped : operations per second of the products, measured just before
    difference : energy found minus the known one, Eh
    """

    backend: str
    precision: str
    put: float
    pairs: float
    certificate: float
    square: float
    shaped: float
    difference: float


@dataclass(frozen=True, slots=True)
class ShapeTimes:
    """All measurements of a shape.

    Attributes
    ----------
    unused : why a backend is missing
    foreign : cores that others used meanwhile
    """

    machine: Machine
    problem: Problem
    threads: int
    measurements: tuple[Measurement, ...]
    unused: dict[str, str]
    load_after: float
    foreign: float


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
    known = {entry.id: entry for table in ("trnsci", "main") for entry in entries.load(table)}
    entry = known[FROM_TABLE[name]]
    if entry.kernel is None:
        raise InputError(f"--shape {name}: the table of dfmp2 validate has no arrays for it: install dfmp2 again")
    return Problem(name, entry.kernel, entry.quantities[0].value, entry.tolerance)


def measure(
    name: str, *, backends: list[str], precisions: list[str], repeats: int, count: int, memory: int | None,
    listener: Listener,
) -> ShapeTimes:  # fmt: skip
    """Time the pair step of a shape on every backend that is there, alternating.

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
    header = machine.watch()
    for warning in header.warnings():
        listener.warning(warning)
    listener.stage(f"making B: {format_bytes(8 * task.elements)}")
    found = []
    meter = machine.Meter()
    with threads.limited(count):
        b, space = synthetic.make(task.kernel, count)
        for number in range(1, repeats + 1):
            for backend in chosen:
                for precision in precisions:
                    one = _measure(task, b, space, backend, precision, count)
                    rate = task.operations / one.pairs / 1e9
                    listener.stage(
                        f"[{number}/{repeats}] {one.backend} {precision}: {one.pairs:.2f} s, {rate:.0f} GF/s"
                    )
                    found.append(one)
    foreign = meter.foreign()
    for warning in machine.disturbance(foreign):
        listener.warning(warning)
    return ShapeTimes(header, task, count, tuple(found), unused, machine.load_average(), foreign)


def judge(times: ShapeTimes) -> None:
    """Raise when an energy is wrong.

    Raises
    ------
    ComparisonFailed : it differs from the known one by more than its precision explains
    """
    task = times.problem
    for one in times.measurements:
        allowed = task.tolerance + (one.precision == "mixed") * KERNEL_CERTIFICATE * abs(task.energy)
        if not abs(one.difference) <= allowed:
            raise ComparisonFailed(
                f"{task.name} on {one.backend} in {one.precision}: the energy is off by {one.difference:.1e} Eh, more "
                f"than {allowed:.1e} Eh: its time means nothing"
            )


def _measure(
    task: Problem, b: synthetic.Array, space: ActiveSpace, backend: Backend, precision: str, count: int
) -> Measurement:
    start = time.perf_counter()
    operand = backend.put(b, space.eps_occ, space.eps_vir, precision)
    backend.pair_terms(operand, operand, Tile(0, 1, 0, 1, True))  # waits for the device, and warms it
    put = time.perf_counter() - start
    square = square_rate(backend, precision, count)
    shaped = shaped_rate(backend, operand, count, square)
    start = time.perf_counter()
    pairs = pair_energies([operand], backend)
    seconds = time.perf_counter() - start
    certificate = 0.0
    if precision == "mixed":
        exact = backend.put(b, space.eps_occ, space.eps_vir, "fp64")
        start = time.perf_counter()
        certify(pairs, [exact], backend, KERNEL_CERTIFICATE * abs(task.energy))
        certificate = time.perf_counter() - start
    difference = _energy(pairs) - task.energy
    return Measurement(backend.name, precision, put, seconds, certificate, square, shaped, difference)


def _energy(pairs: PairEnergies) -> float:
    return pairs.opposite_spin_energy + pairs.same_spin_energy


def _backends(task: Problem, names: list[str], count: int) -> tuple[list[Backend], dict[str, str]]:
    """Backends to time, and why the others are not."""
    for name in names:
        if name not in TIMED:
            raise InputError(f"--backend {name}: expected {', '.join(TIMED)}; {EMULATED}")
    chosen, unused = [], {}
    for row in registry.BACKENDS:
        if row.name not in (names or TIMED) or row.make is None:
            continue
        reason = row.probe()
        if task.name in GPU_ONLY and row.name != "cuda":
            reason = f"{task.name} would take a host many minutes and is timed on a GPU only"
        if reason is None:
            chosen.append(row.make(count))
        elif names:
            raise BackendUnavailable(f"--backend {row.name} cannot be timed: {reason}")
        else:
            unused[row.name] = reason
    if not chosen:
        raise BackendUnavailable(
            f"--shape {task.name} is timed on a GPU only, where it needs {format_bytes(12 * task.elements)}, and there "
            f"is none: {unused['cuda']}; w30 is the largest for a host"
        )
    return chosen, unused


def _require_memory(task: Problem, memory: int | None, chosen: list[Backend]) -> None:
    """Refuse arrays that do not fit, on the host or on a device."""
    held = 12 * task.elements  # float64 B and one float32 copy
    if task.kernel.recipe == "trnblas":
        half = task.kernel.nocc * (task.kernel.nocc + task.kernel.nvir) * task.kernel.naux
        held = max(held, 8 * (task.elements + half))
    products = 24 * max(SQUARE_DEVICE if b.limits.memory is not None else SQUARE_HOST for b in chosen) ** 2
    needed = resources.resident_memory() + held + products + 16 * task.kernel.naux**2
    budget = memory or resources.resident_memory() + int(0.9 * resources.available_memory())
    if needed > budget:
        raise ResourceError(
            f"--shape {task.name} needs {format_bytes(needed)} and {format_bytes(budget)} may be used: take a smaller "
            "shape, allow more with --memory, or use a larger machine"
        )
    held = max(12 * task.elements, 8 * task.elements + products)
    for backend in chosen:
        if backend.limits.memory is not None and backend.limits.memory < held:
            raise ResourceError(
                f"--shape {task.name} needs {format_bytes(held)} of the memory of {backend.name}, "
                f"which has {format_bytes(backend.limits.memory)}: take a smaller shape, or another --backend"
            )
