"""Where kernels run: an executor launches one kernel by name and counts its launches.

The backend knows only this protocol; the interpreter is one executor, a Trainium device behind a runtime another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.nki.interpreter.run import Settings, run_kernel

KERNEL_FOLDER = Path(__file__).parent / "kernels"


class Executor(Protocol):
    """One lane on which kernels run.

    Attributes
    ----------
    lane : how kernels are launched
    target : chip generation, "gen2" (trn1) or "gen3" (trn2)
    """

    lane: str
    target: str

    @property
    def launches(self) -> int:
        """Kernels launched so far."""
        ...

    def upload(self, array: NDArray[Any]) -> Any:
        """Make an array resident; what comes back is passed to `launch`."""
        ...

    def launch(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> NDArray[Any]:
        """Run a kernel of one output: resident tensors and compile-time constants by name."""
        ...

    def keep(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> Any:
        """The same, but the output stays resident; what comes back is passed to `launch`."""
        ...

    def describe(self) -> dict[str, str]:
        """Lane, chip generation, release, kernel sources, launches."""
        ...


class InterpreterExecutor:
    """Kernels in our own interpreter on the host.

    Parameters
    ----------
    settings : chip, release and arithmetic to emulate
    """

    lane = "interpreter"

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.target: str = self.settings.target
        self.launches = 0

    def upload(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array in the storage that the settings ask for."""
        return array.astype(np.float64 if self.settings.storage == "float64" else np.float32, copy=False)

    def launch(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> NDArray[Any]:
        """Run a kernel of one output.

        Raises
        ------
        KernelError : the kernel breaks a rule of its language or its chip
        """
        self.launches += 1
        (out,), _ = run_kernel(source, kernel, dict(arguments), self.settings)
        return out

    def keep(self, source: str, kernel: str, arguments: Mapping[str, Any]) -> NDArray[Any]:
        """The same: an interpreted kernel's output is on the host in any case."""
        return self.launch(source, kernel, arguments)

    def describe(self) -> dict[str, str]:
        """Lane, chip generation, release, kernel sources, launches."""
        return {
            "lane": self.lane,
            "target": self.settings.target,
            "nki release": self.settings.release,
            "products": self.settings.pe_model,
            "kernel sources": f"sha256 {source_hash()[:16]}",
            "kernel launches": str(self.launches),
        }


def source_hash() -> str:
    """SHA-256 of all kernel files, hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(KERNEL_FOLDER.glob("*.py")):
        if not path.stem.endswith("_twin"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
