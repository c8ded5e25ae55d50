"""ONE table of backends, and the choice between them: made once, before the SCF, never changed after.

A row has a probe that answers with the reason a backend cannot be used, or None when it can. A
requested backend that is not there is an error; only `auto` chooses, and says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from dfmp2.backends.base import Backend
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


def _not_built() -> str | None:
    return "not built yet: the Trainium kernels are not part of this version; use --backend cpu"


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


BACKENDS = (
    Row("cpu", "NumPy on the host's BLAS", _always, _make_cpu),
    Row("torch", "PyTorch on the CPU", _probe_torch, _make_torch),
    Row("cuda", "PyTorch on an NVIDIA GPU", _probe_cuda, _make_cuda),
    Row("nki", "AWS Trainium, compiled NKI kernels", _not_built, None),
    Row("nki-xla", "AWS Trainium through torch-xla", _not_built, None),
    Row("nki-simulator", "NKI kernels in AWS's simulator", _not_built, None),
    Row("nki-interpreter", "NKI kernels in our own interpreter", _not_built, None),
)


def names() -> list[str]:
    """Names of all backends, `auto` first."""
    return ["auto", *(row.name for row in BACKENDS)]


def select(name: str, precision: str, threads: int) -> tuple[Backend, str]:
    """The backend to use for a whole run, and the reason.

    Raises
    ------
    BackendUnavailable : the named backend is unknown or cannot be used; the reason is given
    UnsupportedByBackend : it cannot do the precision
    """
    if name == "auto":
        row, reason = _choose()
    else:
        row, reason = _row(name), f"asked for with --backend {name}"
        refusal = row.probe()
        if refusal is not None:
            raise BackendUnavailable(f"--backend {name} ({row.description}) cannot be used: {refusal}")
    if row.make is None:
        raise BackendUnavailable(f"--backend {name} cannot be made: {row.description}")
    backend = row.make(threads)
    wanted = "mixed" if precision == "auto" else precision
    if wanted not in backend.limits.precisions:
        offered = ", ".join(backend.limits.precisions)
        raise UnsupportedByBackend(f"--backend {name} cannot do --precision {precision}: it offers {offered}")
    return backend, reason


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
