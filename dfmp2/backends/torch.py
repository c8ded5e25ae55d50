"""Pair terms with PyTorch, on the CPU ("torch", the plain twin) or a CUDA device ("cuda").

One class: device and workers are fields. Each occupied i of a tile is one batched contraction,

    G[j,b,a] = sum_P B_jbP B_iaP = (ia|jb).

TF32 is switched off for the products: float32 means float32.
"""

from __future__ import annotations

from copy import copy
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, Limits, Operand, PairTerms, Tile, decays
from dfmp2.backends.tensors import TorchTensors
from dfmp2.errors import ResourceError
from dfmp2.errors.messages import Option

# fraction of the free device memory used; the rest is for the allocator and cuBLAS
CUDA_RESERVE = 0.85


def refusal(name: str) -> str | None:
    """Why "torch" or "cuda" cannot be used, None if it can."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch does not import ({error}): pip install 'dfmp2[torch]'"
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 9):
        return f"PyTorch {torch.__version__} is too old: 2.9 or newer is needed"
    if name == "torch":
        return None
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA: install a CUDA build of torch"
    if torch.cuda.is_available():
        return None
    return "PyTorch finds no CUDA device: check nvidia-smi and the driver"


def make(name: str, threads: int) -> Backend:
    """The backend for the registry: "torch" is the CPU."""
    import torch

    return TorchBackend(torch, "cpu" if name == "torch" else name, threads)


class TorchBackend(Backend):
    """PyTorch on one device.

    Parameters
    ----------
    torch : the imported module (imported where it is used, since it takes seconds)
    device : "cpu" or "cuda"
    threads : CPU threads of the intra-operator pool (only for device "cpu")
    """

    def __init__(self, torch: ModuleType, device: str, threads: int) -> None:
        self._torch = torch
        self.kappa: float | None = None
        if device == "cpu":
            self.name = "torch"
        else:
            self.name = device
        self.device = torch.device(device)
        memory = None
        if device == "cpu":
            torch.set_num_threads(threads)
        else:
            torch.backends.cuda.matmul.allow_tf32 = False
            memory = int(torch.cuda.mem_get_info()[0] * CUDA_RESERVE)
        if device == "cpu":
            elements = 1 << 22
        else:
            elements = 1 << 28
        self.limits = Limits(
            ("fp64", "mixed"), tile_edge=64, tile_elements=elements, workers=1, memory=memory
        )

    def put(
        self,
        b: NDArray[np.float64],
        eps_occ: NDArray[np.float64],
        eps_vir: NDArray[np.float64],
        precision: str,
    ) -> Operand:
        """Copy B to the device in the given precision.

        Raises
        ------
        ResourceError : the device has no room for it
        """
        torch = self._torch
        if precision == "fp64":
            dtype = torch.float64
        else:
            dtype = torch.float32
        try:
            resident = torch.from_numpy(b).to(device=self.device, dtype=dtype)
        except torch.cuda.OutOfMemoryError as error:
            raise ResourceError(
                (
                    f"{self.name}: the fitted integrals need {b.size * dtype.itemsize} bytes of "
                    f"device memory and {self.limits.memory} are usable: use "
                ),
                Option("backend", "cpu"),
                ", or ",
                Option("frozen_core"),
                ", or a larger device",
            ) from error
        return Operand(resident, eps_occ, eps_vir, precision)

    def pair_terms(self, left: Operand, right: Operand, tile: Tile) -> PairTerms:
        """Direct and exchange terms of a tile of occupied pairs, float64, Eh."""
        torch = self._torch
        i0, i1, j0, j1, diagonal = tile
        dtype = left.b.dtype
        nvir, naux = left.b.shape[1:]
        nvir_right = right.b.shape[1]
        step = max(1, self.limits.tile_elements // (nvir * nvir_right))
        direct = torch.zeros((i1 - i0, j1 - j0), dtype=torch.float64, device=self.device)
        if left is right:
            exchange = torch.zeros_like(direct)
        else:
            exchange = None
        eps_ab = self._tensor(right.eps_vir[:, None] + left.eps_vir[None, :], dtype)
        damped = None
        if self.kappa is not None:
            damped = [self._tensor(x, dtype) for x in decays(self.kappa, left, right, np.float64)]
        for i in range(i0, i1):
            for start in range(i if diagonal else j0, j1, step):
                stop = min(start + step, j1)
                g = (right.b[start:stop].reshape(-1, naux) @ left.b[i].T).reshape(
                    -1, nvir_right, nvir
                )
                eps_ij = self._tensor(left.eps_occ[i] + right.eps_occ[start:stop], dtype)
                w = g / (eps_ij[:, None, None] - eps_ab)
                if damped is not None:
                    w *= (1 - damped[1][start:stop, :, None] * damped[0][i]) ** 2
                columns = slice(start - j0, stop - j0)
                # Row sums in the working precision, their sum in float64.
                direct[i - i0, columns] = (g * w).sum(dim=2).sum(dim=1, dtype=torch.float64)
                if exchange is not None:
                    rows = (w * g.transpose(1, 2)).sum(dim=2)
                    exchange[i - i0, columns] = rows.sum(dim=1, dtype=torch.float64)
        return PairTerms(direct.cpu().numpy(), None if exchange is None else exchange.cpu().numpy())

    def regularised(self, kappa: float) -> TorchBackend:
        """The same with kappa, 1/Eh."""
        made = copy(self)
        made.kappa = kappa
        return made

    def tensors(self) -> TorchTensors:
        """Products with PyTorch on this device."""
        return TorchTensors(self, self._torch, self.device)

    def describe(self) -> dict[str, str]:
        """Device name and PyTorch version."""
        torch = self._torch
        if self.device.type == "cuda":
            device = torch.cuda.get_device_name()
        else:
            device = "cpu"
        return {"device": str(device), "torch": str(torch.__version__)}

    def _tensor(self, values: NDArray[np.float64], dtype: Any) -> Any:
        return self._torch.from_numpy(values).to(device=self.device, dtype=dtype)
