"""The production lane: programs compiled once to NEFF files, loaded once, called many times on resident tensors.

    compiler process (nki) -> NEFF file in our cache -> this process (runtime bindings): load, launch, read back

The bindings are nrtpy's NrtpyModel and NrtpyTensor as its pages document them (SDK 2.32 on), under their older names
where only these are there. Unverified on hardware.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.nki import compiler, environment, toolchain
from dfmp2.backends.nki.environment import HERE, Host
from dfmp2.backends.nki.faults import launching
from dfmp2.backends.nki.native import DeviceExecutor, DeviceTensor, Record
from dfmp2.backends.nki.neff_cache import NeffCache
from dfmp2.backends.nki.programs import GENERATION, Program
from dfmp2.backends.nki.proof import Proof
from dfmp2.errors import BackendUnavailable, KernelFailed

PATTERN = np.arange(256, dtype=np.float32).reshape(2, 128) / 7


class Loaded:
    """A program on the device: the model, and the output tensors of its first call, which later calls reuse."""

    def __init__(self, model: Any, program: Program, entry: str) -> None:
        self.model = model
        self.entry = entry
        self.outputs: dict[str, Any] | None = None
        inputs, outputs = set(model.input_tensors_info), list(model.output_tensors_info)
        expected = {name for name, _ in program.tensors}
        if inputs != expected or len(outputs) != 1:
            raise KernelFailed(
                f"the compiled {program.label} takes {sorted(inputs)} and gives {outputs}; expected {sorted(expected)} "
                "and one output: the compiler and dfmp2 do not fit each other"
            )
        self.output = outputs[0]
        self.shape = tuple(int(n) for n in model.output_tensors_info[self.output].shape)

    def run(self, inputs: dict[str, Any], *, kept: bool) -> Any:
        """Run it; the output stays on the device, and is overwritten by the next call unless it is `kept`."""
        if kept or self.outputs is None:
            made = dict(self.model(inputs=inputs))
            if kept:
                return made[self.output]
            self.outputs = made
        else:
            self.model(inputs=inputs, outputs=self.outputs)
        return self.outputs[self.output]

    def read(self, tensor: Any) -> NDArray[np.float32]:
        """An output on the host."""
        raw = np.ascontiguousarray(tensor.numpy())
        # The runtime does not always know the type and answers bytes; the kernels give float32 only.
        return raw.reshape(-1).view(np.float32).reshape(self.shape)


class NeffExecutor(DeviceExecutor):
    """Compiled kernels on one NeuronCore.

    Parameters
    ----------
    core : the core this process owns, None for what NEURON_RT_VISIBLE_CORES says, else the first

    Raises
    ------
    BackendUnavailable : the bindings or the device do not answer
    """

    lane = "nki"

    def __init__(self, host: Host = HERE, core: int | None = None) -> None:
        target = toolchain.device_target(host)
        found = toolchain.bindings()
        if target is None or found is None:
            raise BackendUnavailable(f"--backend nki cannot be used: {toolchain.refusal('nki', host)}")
        environment.apply(environment.settings("nki", target, host, core))
        self.target = GENERATION[target]
        self.proof = Proof()
        self._chip, self._host = target, host
        self._cache = NeffCache(environment.cache_folder(host))
        self._record = Record(self.lane, target, self.proof, host)
        with launching("start of the Neuron runtime"):
            module = import_module(found[0])
            name = next((prefix for prefix in found[1] if hasattr(module, f"{prefix}Model")), found[1][0])
            self._model, self._tensor = getattr(module, f"{name}Model"), getattr(module, f"{name}Tensor")
            self._bindings = f"{found[0]}.{name}Model"
            self._prove_device()
        self._loaded: dict[Program, Loaded] = {}

    def prepare(self, program: Program) -> None:
        """Have a program compiled and loaded."""
        if program not in self._loaded:
            compiled = compiler.ensure(program, self._chip, self._cache, self.proof, self._host)
            begin = time.perf_counter()
            with launching(f"loading {program.label}"):
                model = self._model.load_from_neff(str(compiled.path))
                self._loaded[program] = Loaded(model, program, f"{compiled.entry}, {compiled.compiler}")
            self.proof.load_seconds += time.perf_counter() - begin

    def describe(self) -> dict[str, str]:
        """Lane, chip, versions, kernel sources, launches, times, counters."""
        entries = sorted({loaded.entry for loaded in self._loaded.values()})
        return self._record.describe(
            **{"runtime bindings": self._bindings, "compiled through": "; ".join(entries) or "nothing launched"}
        )

    def _ready(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> Program:
        program = super()._ready(source, kernel, arguments)
        self.prepare(program)
        return program

    def _sent(self, array: NDArray[np.float32]) -> Any:
        return self._tensor.from_numpy(array)

    def _run(self, program: Program, arguments: Mapping[str, Any], *, kept: bool = False) -> DeviceTensor:
        loaded = self._loaded[program]
        inputs = {name: arguments[name].value for name, _ in program.tensors}
        return DeviceTensor(loaded.run(inputs, kept=kept), loaded.shape)

    def _fetched(self, program: Program, out: DeviceTensor) -> NDArray[np.float32]:
        return self._loaded[program].read(out.value)

    def _prove_device(self) -> None:
        """Write to the device and read back: an occupied core or a broken driver shows before the SCF."""
        back = np.ascontiguousarray(self._tensor.from_numpy(PATTERN).numpy()).reshape(-1).view(np.float32)
        if not np.array_equal(back, PATTERN.reshape(-1)):
            raise BackendUnavailable(
                "--backend nki cannot be used: the device does not give back what was written to it: run neuron-ls and "
                "look at dmesg"
            )
