"""Interface to the registry of backends: usable lanes, their backends, predictions, and compilation
in advance.

nki            compiled programs (NEFF) through the runtime bindings       nki-xla          torch-xla
nki-simulator  AWS's simulator on the CPU                                 nki-interpreter  our own, on the CPU

On a host with Neuron devices, `auto` decides once, for the whole pair step, by comparing predicted
times of device, dispatch, transfers and any missing compilation with this host's own rates. Nothing
on the device side was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfmp2.backends.base import Backend, Prediction, Shape
from dfmp2.errors import BackendUnavailable, InputError, Option
from dfmp2.trainium.backend import NkiBackend
from dfmp2.trainium.calls import programs
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.costs.model import CHIPS
from dfmp2.trainium.interpreter.rules import CHIP, GENERATION, Settings
from dfmp2.trainium.launch import compiler, environment, toolchain
from dfmp2.trainium.launch.compiler import NeffCache, Proof
from dfmp2.trainium.launch.cores import CoresBackend
from dfmp2.trainium.launch.environment import HERE, cache_folder
from dfmp2.trainium.launch.executors import InterpreterExecutor, XlaExecutor, executor
from dfmp2.trainium.layout import padded_naux, padded_nvir
from dfmp2.units import counted_text

__all__ = ["bucket", "cache_folder", "make", "named_lane", "predict", "price", "refusal", "weigh"]

# s per program; public reports mention 10 s for a tiny kernel and 27 s for 88,000 statements
COMPILE_SECONDS = 30.0


def refusal(lane: str) -> str | None:
    """Why a lane cannot be used, None if it can; cached programs may substitute for a compiler."""
    if lane == "nki-interpreter":
        return None
    stored = lane == "nki" and any(cache_folder().glob("*/*.neff"))
    found = toolchain.problems(lane, compiled=stored and not compiler.compiler_versions())
    return toolchain.told(found) or None


def make(name: str, threads: int) -> Backend:
    """The backend of a lane: one process per visible NeuronCore.

    Raises
    ------
    BackendUnavailable : a device does not answer
    InputError : the interpreter does not know the chip
    """
    if name == "nki-interpreter":
        return interpreter(HERE.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or "trn1")
    cores = visible_cores()
    if name in ("nki", "nki-xla") and len(cores) > 1:
        return CoresBackend(name, cores)
    return NkiBackend(name, executor(name))


def interpreter(target: str) -> Backend:
    """The backend that interprets the kernels under the rules of a chip, given by one of its NKI
    names.

    Raises
    ------
    InputError : unknown chip
    """
    if target not in GENERATION:
        raise InputError(
            f"NEURON_PLATFORM_TARGET_OVERRIDE={target}: nki-interpreter knows "
            f"{', '.join(GENERATION)}"
        )
    return NkiBackend("nki-interpreter", InterpreterExecutor(Settings(target=GENERATION[target])))


def visible_cores() -> tuple[int, ...]:
    """NeuronCores that this process may use."""
    return environment.visible_cores(HERE.environ.get("NEURON_RT_VISIBLE_CORES") or "0") or (0,)


def named_lane(name: str) -> tuple[str, str]:
    """The backend that a name selects given the environment variables, and a note on the reason (""
    if they change nothing).

    DFMP2_REQUIRE_NKI allows only these lanes; DFMP2_USE_SIMULATOR replaces nki and auto by the
    simulator.

    Raises
    ------
    BackendUnavailable : DFMP2_REQUIRE_NKI=1 and another backend was requested
    InputError : a variable is not a yes-or-no value
    """
    required, simulated = (
        _flag(variable) for variable in ("DFMP2_REQUIRE_NKI", "DFMP2_USE_SIMULATOR")
    )
    notes = []
    if required and name == "auto":
        name = "nki"
        notes.append("DFMP2_REQUIRE_NKI=1")
        if not simulated and toolchain.refusal("nki") and not toolchain.refusal("nki-xla"):
            name = "nki-xla"
    if required and not name.startswith("nki"):
        raise BackendUnavailable(
            "DFMP2_REQUIRE_NKI=1 allows only the nki lanes, and ",
            Option("backend", name),
            " was asked for: choose ",
            Option("backend", "nki"),
            ", or unset the variable",
        )
    if simulated and name in ("auto", "nki"):
        notes.append(f"DFMP2_USE_SIMULATOR=1 takes the simulator in place of {name}")
        name = "nki-simulator"
    return name, ", ".join(notes)


def _flag(name: str) -> bool:
    value = HERE.flag(name)
    if value is None:
        raise InputError(f"{name}={HERE.environ[name]!r}: expected 1 or 0")
    return value


def predict(spins: Sequence[Shape], own: int) -> tuple[Prediction, ...]:
    """Predicted pair energies on one core, on all cores of each chip, and on `own` cores if that is
    another number; empty if there is nothing to correlate."""
    return catalogue.offer(spins, own)


def price(sizes: tuple[int, int, int, int]) -> tuple[Prediction, ...]:
    """Prediction for a product of (batches, contracted, rows, columns) on one core of each chip."""
    return tuple(catalogue.predict_product(sizes, chip) for chip in CHIPS.values())


def weigh(spins: tuple[Shape, ...], host_seconds: float, measured: bool) -> tuple[str | None, str]:
    """For `auto` on a host with Neuron devices: the lane to use, or None for the host, and the
    reason.

    Parameters
    ----------
    host_seconds : predicted time of the pair step on the host, s; measured : from rates measured on
        this host
    """
    target = toolchain.device_target()
    problems = {lane: toolchain.refusal(lane) for lane in ("nki", "nki-xla")}
    usable = [lane for lane, why in problems.items() if why is None]
    if target is None or not usable:
        why = "; ".join(f"{lane}: {why}" for lane, why in problems.items() if why)
        return None, f"auto: a Neuron device is present, but {why}"
    if not spins:
        return None, "auto: a Neuron device is present, but there is nothing to do"
    cores = len(visible_cores())
    (found,) = catalogue.predict(spins, chips=(target,), cores=cores)
    if found.obstacle:
        return None, f"auto: a Neuron device is present, but {found.obstacle}"
    missing = _missing_programs(spins, target)
    compiling = missing * COMPILE_SECONDS
    device = found.usual + found.dispatch + found.link + compiling
    told = (
        f"predicted {device:.2f} s on {counted_text(cores, f'{target} core')} "
        f"(device {found.usual:.3f}, from {found.device:.3f} to {found.slowest:.3f}, "
        f"dispatch {found.dispatch:.3f}, if queued {found.queued:.3f}, "
        f"transfers {found.link:.3f}, compiling {counted_text(missing, 'program')} "
        f"{compiling:.0f}) "
        f"against {host_seconds:.2f} s on the host "
        f"({'rates measured here' if measured else 'built-in rates'})"
    )
    if device < host_seconds:
        return usable[0], f"auto: {told}"
    return None, f"auto: the host is faster: {told}"


def _missing_programs(spins: tuple[Shape, ...], target: str) -> int:
    """Number of programs that these shapes need and that are not compiled yet."""
    cache = NeffCache(cache_folder())
    versions = compiler.compiler_versions()
    needed = programs(spins, target)
    return sum(cache.find(program, target, versions) is None for program in needed)


def bucket(spins: Sequence[Shape]) -> tuple[tuple[int, int], ...]:
    """Padded numbers of virtual orbitals and fitting functions of each spin, for which programs are
    compiled."""
    return tuple((padded_nvir(shape.nvir), padded_naux(shape.naux)) for shape in spins)


def launch_ahead(spins: tuple[Shape, ...], nao: int) -> Proof:
    """Have torch-xla compile the programs for these shapes by launching each once; needs the
    device.

    Raises
    ------
    BackendUnavailable : the device does not answer; KernelFailed and others : see `launching`
    """
    made = XlaExecutor()
    for program in programs(spins, CHIP[made.target], nao):
        tensors = {
            name: made.upload(np.full(shape, float(name not in ("b_i", "b_j"))))
            for name, shape in program.tensors
        }
        made.launch(program.source, program.kernel, {**tensors, **dict(program.statics)})
    return made.proof
