"""ONE table of backends, and the choice between them: made once, before the SCF, never changed after.

A row has a probe that answers with the reason a backend cannot be used, or None when it can. A
requested backend that is not there is an error; only `auto` chooses, and says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from dfmp2 import product_rates
from dfmp2.backends.base import Backend
from dfmp2.backends.nki import choice
from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.backends.nki.environment import HERE
from dfmp2.errors import BackendUnavailable, UnsupportedByBackend


@dataclass(frozen=True, slots=True)
class Row:
    """One backend: its name, what it is, why it cannot be used (None if it can), how to make it."""

    name: str
    description: str
    probe: Callable[[], str | None]
    make: Callable[[int], Backend] | None


def _always() -> str | None:
    return None


def _probe_torch() -> str | None:
    try:
        import torch
    except ImportError as error:
        return f"PyTorch does not import ({error}): pip install 'dfmp2[torch]'"
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return None if version >= (2, 9) else f"PyTorch {torch.__version__} is too old: 2.9 or newer is needed"


def _probe_cuda() -> str | None:
    reason = _probe_torch()
    if reason is not None:
        return reason
    import torch

    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA: install a CUDA build of torch"
    return None if torch.cuda.is_available() else "PyTorch finds no CUDA device: check nvidia-smi and the driver"


def _make_cpu(threads: int) -> Backend:
    from dfmp2.backends.cpu import CpuBackend

    return CpuBackend(threads)


def _make_torch(threads: int) -> Backend:
    import torch

    from dfmp2.backends.torch import TorchBackend

    return TorchBackend(torch, "cpu", threads)


def _make_cuda(threads: int) -> Backend:
    import torch

    from dfmp2.backends.torch import TorchBackend

    return TorchBackend(torch, "cuda", threads)


def _make_interpreter(threads: int) -> Backend:
    from dfmp2.backends.nki.backend import NkiBackend
    from dfmp2.backends.nki.executor import InterpreterExecutor

    return NkiBackend("nki-interpreter", InterpreterExecutor())


def _lane(name: str, description: str) -> Row:
    """A lane of the Trainium kernels that needs AWS's packages."""

    def probe() -> str | None:
        from dfmp2.backends.nki.lanes import refusal

        return refusal(name)

    def make(threads: int) -> Backend:
        from dfmp2.backends.nki.lanes import backend

        return backend(name)

    return Row(name, description, probe, make)


BACKENDS = (
    Row("cpu", "NumPy on the host's BLAS", _always, _make_cpu),
    Row("torch", "PyTorch on the CPU", _probe_torch, _make_torch),
    Row("cuda", "PyTorch on an NVIDIA GPU", _probe_cuda, _make_cuda),
    _lane("nki", "AWS Trainium, compiled NKI kernels"),
    _lane("nki-xla", "AWS Trainium through torch-xla"),
    _lane("nki-simulator", "NKI kernels in AWS's simulator"),
    Row("nki-interpreter", "NKI kernels in our own interpreter", _always, _make_interpreter),
)


def names() -> list[str]:
    """Names of all backends, `auto` first."""
    return ["auto", *(row.name for row in BACKENDS)]


def select(name: str, precision: str, threads: int) -> tuple[Backend, str]:
    """The backend to use for a whole run, and the reason; `choice` holds the variables that have a say.

    Raises
    ------
    BackendUnavailable : the named backend is unknown or cannot be used; the reason is given
    UnsupportedByBackend : it cannot do the precision
    InputError : a variable has no value that is understood
    """
    asked = name
    name, note = choice.named_lane(name)
    if name == "auto":
        row, reason = _choose()
    else:
        row, reason = _row(name), f"asked for with --backend {asked}" if asked != "auto" else "auto"
        reason += f"; {note}" if note else ""
        refusal = row.probe()
        if refusal is not None:
            because = f" ({note})" if note else ""
            raise BackendUnavailable(f"--backend {name} ({row.description}) cannot be used{because}: {refusal}")
    if row.make is None:
        raise BackendUnavailable(f"--backend {name} cannot be made: {row.description}")
    backend = row.make(threads)
    wanted = "mixed" if precision == "auto" else precision
    if wanted not in backend.limits.precisions:
        offered = ", ".join(backend.limits.precisions)
        raise UnsupportedByBackend(f"--backend {name} cannot do --precision {precision}: it offers {offered}")
    return backend, reason


def exact(backend: Backend) -> Backend:
    """The backend that evaluates pair terms in float64: itself, or the host where the device has no float64."""
    return backend if "fp64" in backend.limits.precisions else _make_cpu(1)


def faster_torch(precision: str, threads: int, operations: float) -> tuple[Backend, str] | None:
    """PyTorch on the host and the reason, where `auto` should take it in place of NumPy; None where it should not.

    PyTorch is imported only when what was measured on this host speaks for it.

    Parameters
    ----------
    operations : floating-point operations of the pair step
    """
    reason = product_rates.torch_reason(product_rates.load(threads), precision, operations)
    row = _row("torch")
    if reason is None or row.make is None or row.probe() is not None:
        return None
    return row.make(threads), reason


def concerns_trainium(backend: Backend) -> bool:
    """Whether this host has Neuron devices, or the kernels are to run in a simulator."""
    return backend.name.startswith("nki") or bool(HERE.devices())


def trainium(
    spins: tuple[Shape, ...], seconds: float, measured: bool, threads: int
) -> tuple[Backend | None, str] | None:
    """The lane that `auto` takes on a host with Neuron devices (None: the host), and the reason; None without devices.

    Parameters
    ----------
    spins : shapes of the pair step
    seconds : predicted time of the pair step on the host; measured : from rates measured on this host
    """
    if not HERE.devices():
        return None
    lane, reason = choice.weigh(spins, seconds, measured)
    make = None if lane is None else _row(lane).make
    return None if make is None else make(threads), reason


def _choose() -> tuple[Row, str]:
    """CUDA where a device is present, else the host; torch is imported only if a driver is there."""
    if not os.path.exists("/proc/driver/nvidia/version"):
        return _row("cpu"), "auto: no accelerator on this host"
    refusal = _row("cuda").probe()
    if refusal is None:
        return _row("cuda"), "auto: a CUDA device is present"
    return _row("cpu"), f"auto: an NVIDIA driver is present, but {refusal}"


def _row(name: str) -> Row:
    for row in BACKENDS:
        if row.name == name:
            return row
    raise BackendUnavailable(f"--backend {name!r} is unknown: expected one of {', '.join(names())}")
