"""The torch-xla lane on a host without Trainium: its own executor, with the kernels' plain twins traced in their place.

    PJRT_DEVICE=CPU     resolve: (module, kernel) -> twin     lane "xla-cpu-twin"

Uploads, residency, synchronisation, counting and read-back are those of the lane `nki-xla`; the arithmetic is that of
XLA on the CPU. It is no backend a user can name, and everything it says of itself names it.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from dfmp2.backends.nki import xla_twin
from dfmp2.backends.nki.native import Kernel
from dfmp2.backends.nki.xla_executor import XlaExecutor

STAND_IN = "plain twins traced by XLA on the host CPU: not Trainium and not the kernels; their times mean nothing"


class XlaTwinExecutor(XlaExecutor):
    """Plain twins through torch-xla on the CPU.

    Raises
    ------
    BackendUnavailable : torch-xla has taken another device than the CPU
    """

    lane = "xla-cpu-twin"

    def __init__(self) -> None:
        super().__init__(traced_twin, platform="CPU")

    def describe(self) -> dict[str, str]:
        """What the lane says of itself, and that a stand-in ran."""
        return {**super().describe(), "stand-in": STAND_IN}


def traced_twin(source: str, kernel: str) -> Kernel:
    """The twin of a kernel as a function of device tensors.

    Raises
    ------
    UnsupportedByBackend : the kernel has none that XLA can trace
    """
    return partial(xla_twin.find(kernel), import_module("torch"))
