"""The second lane: torch-xla tensors that stay on the device, one graph per kernel.

Blocks are separate device buffers and never slices of one, since a slice becomes part of the traced graph and every
offset another program. Every launch is synchronised, so that a graph holds one kernel only. torch-xla takes the CPU
in silence where PJRT_DEVICE is not set before its import; so it is set, and the device's type asserted afterwards.
On the CPU only stand-ins of the kernels can run, which `resolve` names. Unverified on hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.nki import environment, toolchain
from dfmp2.backends.nki.environment import HERE, Host
from dfmp2.backends.nki.faults import launching
from dfmp2.backends.nki.host_executors import one_output
from dfmp2.backends.nki.native import DeviceExecutor, DeviceTensor, Kernel, Record, native_kernel
from dfmp2.backends.nki.programs import GENERATION, Program
from dfmp2.backends.nki.proof import Proof
from dfmp2.errors import BackendUnavailable

COMPILATIONS = ("UncachedCompile", "CachedCompile")  # torch-xla's own counters


class XlaExecutor(DeviceExecutor):
    """Kernels through torch-xla.

    Parameters
    ----------
    resolve : (module, kernel) -> function of device tensors and constants by name
    platform : PJRT device type, "NEURON" but for tests
    core : the core this process owns, None for what NEURON_RT_VISIBLE_CORES says, else the first

    Raises
    ------
    BackendUnavailable : torch-xla has taken another device
    """

    lane = "nki-xla"

    def __init__(
        self,
        resolve: Callable[[str, str], Kernel] = native_kernel,
        platform: str = "NEURON",
        host: Host = HERE,
        core: int | None = None,
    ) -> None:
        target = toolchain.device_target(host) or "trn1"
        if platform == "NEURON":
            environment.apply(environment.settings(self.lane, target, host, core))
        else:
            environment.apply({"PJRT_DEVICE": platform})
        self.target = GENERATION[target]
        self.proof = Proof()
        self._resolve, self._platform = resolve, platform
        self._record = Record(self.lane, target if platform == "NEURON" else platform, self.proof, host)
        with launching("start of torch-xla"):
            self._torch, self._xla = import_module("torch"), import_module("torch_xla")
            self._metrics = import_module("torch_xla.debug.metrics")
            taken = str(import_module("torch_xla.runtime").device_type())
            if taken != platform:
                raise BackendUnavailable(
                    f"--backend nki-xla cannot be used: torch-xla has taken the device {taken} and not {platform}: "
                    "start a new process with PJRT_DEVICE unset, and look at the import of libneuronxla"
                )
            self._device = self._xla.device()

    def graphs(self) -> int:
        """Graphs compiled in this process so far, by torch-xla's own counter."""
        data = self._metrics.metric_data("CompileTime")
        return int(data[0]) if data else 0

    def describe(self) -> dict[str, str]:
        """Lane, chip, versions, kernel sources, launches, times, graphs, counters."""
        counts = {name: self._metrics.counter_value(name) or 0 for name in COMPILATIONS}
        graphs = f"{self.graphs()} compiled; " + ", ".join(f"{name} {count}" for name, count in counts.items())
        return self._record.describe(**{"device type": self._platform, "graphs": graphs})

    def _sent(self, array: NDArray[np.float32]) -> Any:
        return self._torch.from_numpy(array).to(self._device)

    def _run(self, program: Program, arguments: Mapping[str, Any], *, kept: bool = False) -> DeviceTensor:
        given = {name: a.value if isinstance(a, DeviceTensor) else a for name, a in arguments.items()}
        result = self._resolve(program.source, program.kernel)(**given)
        self._xla.sync()
        self._count_graphs()
        return DeviceTensor(result, tuple(int(n) for n in result.shape))

    def _fetched(self, program: Program, out: DeviceTensor) -> NDArray[np.float32]:
        return one_output(np.asarray(out.value.cpu().numpy()), program.kernel)

    def _count_graphs(self) -> None:
        data = self._metrics.metric_data("CompileTime")
        if data:
            self.proof.compiled, self.proof.compile_seconds = int(data[0]), float(data[1]) / 1e9
        self.proof.cache_hits = int(self._metrics.counter_value("CachedCompile") or 0)
