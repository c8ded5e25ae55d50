"""The only table of backends, and the choice between them, which is made once, before the SCF.

A row names the module of a backend, which is imported only when needed: `refusal(name)` returns the
reason why it cannot be used here, or None, and `make(name, threads)` creates it. An unavailable
requested backend is an error; only `auto` chooses, and reports why.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from dfmp2.backends.base import Accelerator, Backend, Prediction, Shape
from dfmp2.errors import BackendUnavailable, Option, UnsupportedByBackend
from dfmp2.options import BACKEND_WORDS as WORDS

TRAINIUM = "dfmp2.trainium.entry"
NEURON_DEVICES = "/dev/neuron[0-9]*"
NVIDIA_DRIVER = "/proc/driver/nvidia/version"
# Variables that change which backend a name selects
VARIABLES = ("DFMP2_REQUIRE_NKI", "DFMP2_USE_SIMULATOR")


class _Module(Protocol):
    def refusal(self, name: str) -> str | None: ...
    def make(self, name: str, threads: int) -> Backend: ...


@dataclass(frozen=True, slots=True)
class BackendRow:
    """One backend: its name, description, and module."""

    name: str
    description: str
    module: str

    def probe(self) -> str | None:
        """Why it cannot be used here, None if it can."""
        return self._loaded().refusal(self.name)

    def make(self, threads: int) -> Backend:
        """The backend with the given number of host threads."""
        return self._loaded().make(self.name, threads)

    def _loaded(self) -> _Module:
        return cast(_Module, import_module(self.module))


BACKENDS = (
    BackendRow("cpu", "NumPy on the host's BLAS", "dfmp2.backends.cpu"),
    BackendRow("torch", "PyTorch on the CPU", "dfmp2.backends.torch"),
    BackendRow("cuda", "PyTorch on an NVIDIA GPU", "dfmp2.backends.torch"),
    BackendRow(
        "cuda-tf32", "the same, float32 products made of three in TF32", "dfmp2.backends.torch"
    ),
    BackendRow("nki", "AWS Trainium, compiled NKI kernels", TRAINIUM),
    BackendRow("nki-xla", "AWS Trainium through torch-xla", TRAINIUM),
    BackendRow("nki-simulator", "NKI kernels in AWS's simulator", TRAINIUM),
    BackendRow("nki-interpreter", "NKI kernels in our own interpreter", TRAINIUM),
)


def names() -> list[str]:
    """Names of all backends, `auto` first."""
    return ["auto", *(row.name for row in BACKENDS)]


def known(name: str) -> str:
    """The canonical name for a backend, `auto`, or a synonym.

    Raises
    ------
    BackendUnavailable : unknown backend
    """
    name = WORDS.get(name, name)
    if name == "auto":
        return name
    return _row(name).name


def select_backend(name: str, precision: str, threads: int) -> tuple[Backend, str]:
    """The backend to use for a whole run, and the reason.

    Raises
    ------
    BackendUnavailable : the named backend is unknown or cannot be used; the reason is given
    UnsupportedByBackend : it does not support the precision
    InputError : an environment variable has an invalid value
    """
    asked = lane = known(name)
    note = ""
    if any(os.environ.get(variable) for variable in VARIABLES):
        lane, note = accelerator().named_lane(asked)
    if lane == "auto":
        row, reason = _choose()
    else:
        row = _row(lane)
        _require_usable(row, note)
        reason = "auto" if asked == "auto" else f"asked for with --backend {asked}"
        if note:
            reason += f"; {note}"
    backend = row.make(threads)
    _require_precision(backend, precision)
    return backend, reason


def _require_usable(row: BackendRow, note: str) -> None:
    """Raise if a backend cannot be used here; `note` says why it was chosen, "" if by its name."""
    refusal = row.probe()
    if refusal is not None:
        because = f" ({note})" if note else ""
        raise BackendUnavailable(
            Option("backend", row.name), f" ({row.description}) cannot be used{because}: {refusal}"
        )


def _require_precision(backend: Backend, precision: str) -> None:
    """Raise if a backend does not compute in the precision; for "auto" mixed is enough."""
    needed = "mixed" if precision == "auto" else precision
    if needed not in backend.limits.precisions:
        offered = ", ".join(backend.limits.precisions)
        raise UnsupportedByBackend(
            Option("backend", backend.name),
            " cannot do ",
            Option("precision", precision),
            f": it offers {offered}",
        )


def foreseen(name: str, precision: str, threads: int) -> tuple[Backend, str]:
    """As `select_backend`, for a plan: a Trainium lane that is not on this host gets the limits of
    the interpreter.

    `Backend.name` is that of the lane, and the reason says why it is unavailable here.
    """
    try:
        return select_backend(name, precision, threads)
    except BackendUnavailable as error:
        row = next((one for one in BACKENDS if one.name == name and one.module == TRAINIUM), None)
        if row is None:
            raise
        backend = _row("nki-interpreter").make(threads)
        reason = f"not on this host: predicted below ({error})"
    backend.name = row.name
    _require_precision(backend, precision)
    return backend, reason


def float64_backend(backend: Backend) -> Backend:
    """The backend that evaluates pair terms in float64: itself, or the host if the device has no
    float64."""
    if "fp64" in backend.limits.precisions:
        return backend
    return _row("cpu").make(1)


def accelerator() -> Accelerator:
    """The Trainium module, for queries before a backend exists; imported now."""
    return cast(Accelerator, import_module(TRAINIUM))


def predictions(backend: Backend, spins: Sequence[Shape]) -> tuple[Prediction, ...] | None:
    """Predicted pair energies on Trainium if the backend is for it or this host has it; otherwise
    None."""
    if any(row.name == backend.name and row.module == TRAINIUM for row in BACKENDS):
        return accelerator().predict(spins, backend.limits.workers)
    if _neuron_devices():
        return accelerator().predict(spins, 1)
    return None


def weigh_trainium(
    spins: tuple[Shape, ...], seconds: float, measured: bool, threads: int
) -> tuple[Backend | None, str] | None:
    """The lane that `auto` selects on a host with Neuron devices (None: the host), and the reason;
    None without devices.

    Parameters
    ----------
    spins : shapes of the pair step
    seconds : predicted time of the pair step on the host; measured : from rates measured on this
        host
    """
    if not _neuron_devices():
        return None
    lane, reason = accelerator().weigh(spins, seconds, measured)
    return None if lane is None else _row(lane).make(threads), reason


def _neuron_devices() -> bool:
    return bool(glob.glob(NEURON_DEVICES))


def _choose() -> tuple[BackendRow, str]:
    """CUDA if a device is present, otherwise the host; torch is imported only if there is a
    driver."""
    if not os.path.exists(NVIDIA_DRIVER):
        return _row("cpu"), "auto: no accelerator on this host"
    refusal = _row("cuda").probe()
    if refusal is None:
        return _row("cuda"), "auto: a CUDA device is present"
    return _row("cpu"), f"auto: an NVIDIA driver is present, but {refusal}"


def _row(name: str) -> BackendRow:
    for row in BACKENDS:
        if row.name == name:
            return row
    raise BackendUnavailable(
        Option("backend", name), f" is unknown: expected one of {', '.join(names())}"
    )
