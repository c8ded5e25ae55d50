"""Two lanes that hand NumPy arrays to the real nki: AWS's simulator, and the plain call.

The simulator runs a kernel as Python on the CPU, slowly and with AWS's own checks of arguments; it models trn3 unless
NEURON_PLATFORM_TARGET_OVERRIDE says otherwise, which the launcher sets. The plain call compiles anew each time by
public evidence and keeps nothing on the device: probes and small tests only, so it is no backend a user can name.
Unverified: no release of nki was available to try them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.nki import environment
from dfmp2.backends.nki.environment import HERE, Host
from dfmp2.backends.nki.faults import launching
from dfmp2.backends.nki.native import Kernel, Record, float32, native_kernel
from dfmp2.backends.nki.programs import GENERATION, program_of
from dfmp2.backends.nki.proof import Proof
from dfmp2.errors import KernelFailed


class HostExecutor:
    """Kernels called with NumPy arrays.

    Parameters
    ----------
    lane : "nki-simulator" or "nki-call"
    target : "trn1" or "trn2"
    """

    def __init__(self, lane: str, target: str = "trn1", host: Host = HERE) -> None:
        environment.apply(environment.settings(lane, target, host))
        self.lane = lane
        self.target = GENERATION[target]
        self.proof = Proof()
        self._record = Record(lane, target, self.proof, host)
        with launching("import of nki"):
            self._nki = import_module("nki")

    @property
    def launches(self) -> int:
        """Kernels launched so far."""
        return self.proof.launches

    def upload(self, array: NDArray[Any]) -> NDArray[np.float32]:
        """The array in float32; it stays on the host."""
        return float32(array)

    def launch(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> NDArray[Any]:
        """Run a kernel of one output.

        Raises
        ------
        KernelFailed, NumericalError, ResourceError : see `faults`
        """
        with (
            launching(f"kernel {kernel} on lane {self.lane}"),
            self.proof.launch(program_of(source, kernel, arguments)),
        ):
            out = self._runnable(source, kernel)(**arguments)
        return one_output(out, kernel)

    def keep(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> NDArray[Any]:
        """The same: outputs are on the host in any case."""
        return self.launch(source, kernel, arguments)

    def describe(self) -> dict[str, str]:
        """Lane, chip, versions, kernel sources, launches."""
        return self._record.describe()

    def _runnable(self, source: str, kernel: str) -> Kernel:
        function = native_kernel(source, kernel)
        if self.lane != "nki-simulator":
            return function
        simulated: Kernel = self._nki.simulate(function)
        return simulated


def one_output(out: Any, kernel: str) -> NDArray[Any]:
    """The single float32 output of a kernel.

    Raises
    ------
    KernelFailed : it is something else
    """
    only = out[0] if isinstance(out, tuple | list) and len(out) == 1 else out
    array = np.asarray(only)
    if array.dtype != np.float32 or array.ndim < 2:
        raise KernelFailed(
            f"kernel {kernel} returned {array.dtype} of shape {array.shape} where one float32 tensor was expected: the "
            "release of nki and dfmp2 do not fit each other"
        )
    return array
