"""The kernels as the real nki sees them, and what the lanes with it share: launches on a device, and the record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.nki import toolchain
from dfmp2.backends.nki.environment import HERE, Host
from dfmp2.backends.nki.executor import source_hash
from dfmp2.backends.nki.faults import launching
from dfmp2.backends.nki.programs import Program, program_of
from dfmp2.backends.nki.proof import Proof, counted, inferences

Kernel = Callable[..., Any]
DISTRIBUTIONS = ("nki", "neuronx-cc", "nrtpy", "spike", "torch", "torch-xla", "torch-neuronx", "libneuronxla")


class DeviceTensor(NamedTuple):
    """A float32 tensor on a device: what the runtime gave for it, and its shape."""

    value: Any
    shape: tuple[int, ...]


def native_kernel(source: str, kernel: str) -> Kernel:
    """The function of a kernel file that the real `@nki.jit` has decorated."""
    found: Kernel = getattr(import_module(source), kernel)
    return found


def float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """The array as the device stores it: float32, contiguous."""
    return np.ascontiguousarray(array, dtype=np.float32)


class DeviceExecutor(ABC):
    """What executors of a device have in common: uploads, launches, and the book of both.

    Attributes
    ----------
    lane : how kernels are launched; target : chip generation
    proof : counts
    """

    lane: str
    target: str
    proof: Proof

    @property
    def launches(self) -> int:
        """Kernels launched so far."""
        return self.proof.launches

    def upload(self, array: NDArray[Any]) -> DeviceTensor:
        """A float32 copy in device memory."""
        stored = float32(array)
        with launching(f"upload of {stored.nbytes} bytes"):
            value = self._sent(stored)
        self.proof.uploaded(stored.nbytes)
        return DeviceTensor(value, stored.shape)

    def launch(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> NDArray[Any]:
        """Run a kernel of one output and read it back.

        Raises
        ------
        BackendUnavailable, KernelError : it is not compiled and cannot be
        DeviceFault, KernelFailed, NumericalError, ResourceError : see `faults`
        """
        program = self._ready(source, kernel, arguments)
        with launching(f"kernel {kernel} on lane {self.lane}"), self.proof.launch(program):
            out = self._fetched(program, self._run(program, arguments))
        self.proof.bytes_down += out.nbytes
        return out

    def keep(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> DeviceTensor:
        """Run a kernel of one output and leave it on the device; raises as `launch` does."""
        program = self._ready(source, kernel, arguments)
        with launching(f"kernel {kernel} on lane {self.lane}"), self.proof.launch(program):
            return self._run(program, arguments, kept=True)

    def _ready(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> Program:
        """The program of a call, compiled and loaded where that is done ahead of a launch."""
        return program_of(source, kernel, arguments)

    @abstractmethod
    def _sent(self, array: NDArray[np.float32]) -> Any:
        """The runtime's tensor of an array."""

    @abstractmethod
    def _run(self, program: Program, arguments: Mapping[str, Any], *, kept: bool = False) -> DeviceTensor:
        """The output of a program on the device; `kept` outputs outlive the next launch."""

    @abstractmethod
    def _fetched(self, program: Program, out: DeviceTensor) -> NDArray[np.float32]:
        """The output on the host."""


class Record:
    """What a lane can say of itself, its launches and the device's counters since it was made.

    Parameters
    ----------
    lane, target : how kernels are launched, and on which chip ("trn1" or "trn2")
    proof : counts
    """

    def __init__(self, lane: str, target: str, proof: Proof, host: Host = HERE) -> None:
        self.lane = lane
        self.target = target
        self.proof = proof
        self._host = host
        self._before = inferences(host)

    def describe(self, **more: str) -> dict[str, str]:
        """Everything, as texts."""
        versions = toolchain.versions(DISTRIBUTIONS, self._host)
        return {
            "lane": self.lane,
            "target": self.target,
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items()) or "unknown",
            "kernel sources": f"sha256 {source_hash()[:16]}",
            **more,
            **self.proof.describe(),
            "inference counters": counted(self._before, inferences(self._host)),
        }
