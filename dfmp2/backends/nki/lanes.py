"""The lanes: ways to launch the same kernels, and the backends made of them.

nki            compiled programs (NEFF) through the runtime bindings       nki-xla        torch-xla
nki-simulator  AWS's simulator on the CPU                                 interpreter    our own, on the CPU
nki-call       plain calls, for probes and small tests; no backend
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfmp2.backends.base import Backend
from dfmp2.backends.nki import compiler, environment, toolchain
from dfmp2.backends.nki.backend import NkiBackend
from dfmp2.backends.nki.cores import CoresBackend
from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.backends.nki.environment import HERE, Host
from dfmp2.backends.nki.executor import Executor, InterpreterExecutor
from dfmp2.backends.nki.guard import GuardedBackend
from dfmp2.backends.nki.host_executors import HostExecutor
from dfmp2.backends.nki.neff_cache import NeffCache
from dfmp2.backends.nki.neff_executor import NeffExecutor
from dfmp2.backends.nki.programs import CHIP, programs
from dfmp2.backends.nki.proof import Proof
from dfmp2.backends.nki.xla_executor import XlaExecutor
from dfmp2.errors import BackendUnavailable

LANES = ("nki", "nki-xla", "nki-simulator", "nki-call", "interpreter")


def executor(lane: str, core: int | None = None, host: Host = HERE) -> Executor:
    """The executor of a lane; `core` is the NeuronCore it owns, None for the first that is visible.

    Raises
    ------
    BackendUnavailable : there is no such lane, or its device does not answer
    """
    if lane == "nki":
        return NeffExecutor(host, core)
    if lane == "nki-xla":
        return XlaExecutor(host=host, core=core)
    if lane == "nki-simulator":
        return HostExecutor(lane, "trn1", host)
    if lane == "nki-call":
        return HostExecutor(lane, toolchain.device_target(host) or "trn1", host)
    if lane == "interpreter":
        return InterpreterExecutor()
    if lane == "xla-cpu-twin":  # tests of the torch-xla lane without a device; no backend
        from dfmp2.backends.nki.xla_twin_executor import XlaTwinExecutor

        return XlaTwinExecutor()
    raise BackendUnavailable(f"lane {lane!r} is unknown: expected one of {', '.join(LANES)}")


def refusal(lane: str, host: Host = HERE) -> str | None:
    """Why a lane cannot be used, None if it can; programs in the cache may stand for a compiler."""
    stored = lane == "nki" and any(environment.cache_folder(host).glob("*/*.neff"))
    found = toolchain.problems(lane, host, compiled=stored and not compiler.compiler_versions(host))
    return toolchain.told(found) or None


def backend(name: str, host: Host = HERE) -> Backend:
    """The backend of a lane: one process per visible NeuronCore, pairs of it recomputed on the host now and then.

    Raises
    ------
    BackendUnavailable : a device does not answer
    """
    cores = environment.cores(host.environ.get("NEURON_RT_VISIBLE_CORES") or "0") or (0,)
    if name in ("nki", "nki-xla") and len(cores) > 1:
        return GuardedBackend(ManyCores(name, cores, host))
    return GuardedBackend(NkiBackend(name, executor(name, None, host)))


class ManyCores(CoresBackend):
    """Several cores of a lane; programs are compiled here, once, before the cores load them."""

    def __init__(self, name: str, cores: Sequence[int], host: Host = HERE) -> None:
        single = NkiBackend(name, InterpreterExecutor())  # limits do not depend on the executor
        super().__init__(name, name, cores, single.limits)
        self.compiles = name == "nki"
        self._host = host

    def prepare(self, spins: Sequence[Shape], nao: int = 0) -> None:
        """Have the programs compiled that these shapes need."""
        if self.compiles:
            compile_ahead(tuple(spins), toolchain.device_target(self._host) or "trn1", self._host)


def launch_ahead(spins: tuple[Shape, ...], nao: int = 0, host: Host = HERE) -> Proof:
    """Have torch-xla compile what these shapes need, by launching each program once; needs the device.

    Raises
    ------
    BackendUnavailable : the device does not answer; KernelFailed and others : see `faults`
    """
    made = XlaExecutor(host=host)
    for program in programs(spins, CHIP[made.target], nao):
        tensors = {
            name: made.upload(np.full(shape, float(name not in ("b_i", "b_j")))) for name, shape in program.tensors
        }
        made.launch(program.source, program.kernel, {**tensors, **dict(program.statics)})
    return made.proof


def compile_ahead(spins: tuple[Shape, ...], target: str, host: Host = HERE, nao: int = 0) -> Proof:
    """Compile what the pair energies of these shapes need, unless it is in the cache; needs no device.

    Parameters
    ----------
    nao : basis functions where the device transforms, else 0

    Raises
    ------
    BackendUnavailable : nothing can be compiled here; KernelError : the compiler refuses a kernel
    """
    proof, cache = Proof(), NeffCache(environment.cache_folder(host))
    for program in programs(spins, target, nao):
        compiler.ensure(program, target, cache, proof, host)
    return proof
