"""The kernels as the real nki sees them, and the record that all lanes with it share."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.nki import toolchain
from dfmp2.backends.nki.environment import HERE, Host
from dfmp2.backends.nki.executor import source_hash
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
