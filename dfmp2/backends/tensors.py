"""Tensor operations on a device, as called by `dfmp2.tensor`, for the host and for PyTorch.

An array is sent once and used for many products. For each it is folded: its axes are reordered and
merged into (batches, contracted, free), which on the host is a view. Everything is computed in the
type of the arrays, float32 or float64. The values returned by `send` and the products belong to the
device and are opaque to others.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, Operand

Energies = NDArray[np.float64]
PRECISION = {"float64": "fp64", "float32": "mixed"}


class Folding(NamedTuple):
    """How an array enters a product: the order of its axes, and (batches, contracted, free)
    sizes."""

    axes: tuple[int, ...]
    sizes: tuple[int, int, int]


class Tensors:
    """Products with NumPy; the base class of other devices.

    Attributes
    ----------
    backend : backend for pair energies; dtypes : names of the accepted array types
    """

    dtypes: tuple[str, ...] = ("float32", "float64")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def send(self, array: NDArray[Any]) -> Any:
        """An array in the device's memory."""
        return array

    def fetch(self, value: Any) -> NDArray[Any]:
        """A value on the host, in its original shape."""
        return np.asarray(value)

    def unfold(self, value: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
        """The result of a product in `shape`, with axes then reordered; raises UnsupportedByBackend
        if impossible."""
        return self._ordered(value.reshape(shape), axes)

    def product(self, a: Any, b: Any, how: tuple[Folding, Folding]) -> Any:
        """C_g = A_g^t B_g: (batches, free of A, free of B)."""
        left, right = (
            self._ordered(x, one.axes).reshape(one.sizes)
            for x, one in zip((a, b), how, strict=True)
        )
        return left.swapaxes(1, 2) @ right

    def gram(self, a: Any, how: Folding) -> Any:
        """C = A^t A, (1, free, free), symmetric to the bit."""
        folded = self._ordered(a, how.axes).reshape(how.sizes)[0]
        return self._mirrored(folded.T @ folded)[None]

    def _mirrored(self, square: Any) -> Any:
        """The upper triangle of `square` on both sides.

        Whether a product A^t A is exactly symmetric depends on the library and the processor.
        """
        return np.triu(square) + np.triu(square, 1).T

    def solve(self, lower: Any, b: Any) -> Any:
        """X of L X = B, (n, columns); the part above the diagonal of L is not read."""
        from scipy.linalg import solve_triangular

        return solve_triangular(lower, b, lower=True, check_finite=False)

    def energies(self, t: Any, eps_occ: Energies, eps_vir: Energies) -> Energies:
        """e_ij = sum_ab T_iajb (2 T_iajb - T_ibja) / (e_i + e_j - e_a - e_b), Eh; row sums in the
        type of T."""
        name = str(t.dtype).removeprefix("torch.")
        found = np.empty((len(eps_occ), len(eps_occ)))
        for i, eps in enumerate(eps_occ):
            part = self._ordered(t[i], (1, 0, 2))
            gaps = (eps + eps_occ)[:, None, None] - eps_vir[:, None] - eps_vir
            rows = (part * (2 * part - part.swapaxes(1, 2)) / self.send(gaps.astype(name))).sum(-1)
            found[i] = self.fetch(rows).sum(-1, dtype=np.float64)
        return found

    def transform(self, a: Any, c_occ: Any, c_vir: Any) -> Any:
        """B_iaP = sum_mu nu A_P(mu, nu) C_occ(mu, i) C_vir(nu, a), for A (naux, nao, nao) symmetric
        in mu and nu."""
        b = self._ordered(c_occ.T @ a @ c_vir, (1, 2, 0))
        return b.reshape(-1).reshape(b.shape)  # in the layout that pair energies read

    def operand(self, b: Any, eps_occ: Energies, eps_vir: Energies) -> Operand:
        """B (nocc, nvir, naux) as an operand of `pair_terms` of `backend`."""
        return Operand(b, eps_occ, eps_vir, PRECISION[str(b.dtype).removeprefix("torch.")])

    def _ordered(self, value: Any, axes: tuple[int, ...]) -> Any:
        return value.transpose(axes)


class TorchTensors(Tensors):
    """PyTorch on one device; `torch` : the imported module, `device` : its own."""

    def __init__(self, backend: Backend, torch: ModuleType, device: Any) -> None:
        super().__init__(backend)
        self._torch, self._device = torch, device

    def send(self, array: NDArray[Any]) -> Any:
        """A tensor on the device."""
        return self._torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self._device)

    def operand(self, b: Any, eps_occ: Energies, eps_vir: Energies) -> Operand:
        """As in Tensors; B is already on the device."""
        precision = PRECISION[str(b.dtype).removeprefix("torch.")]
        made: Operand = self.backend.operand(  # type: ignore[attr-defined]
            b, eps_occ, eps_vir, precision, kept=True
        )
        return made

    def fetch(self, value: Any) -> NDArray[Any]:
        """A value as a NumPy array."""
        return np.asarray(value.cpu().numpy())

    def solve(self, lower: Any, b: Any) -> Any:
        """X of L X = B, by PyTorch's triangular solve."""
        return self._torch.linalg.solve_triangular(lower, b, upper=False)

    def _mirrored(self, square: Any) -> Any:
        return self._torch.triu(square) + self._torch.triu(square, 1).T

    def _ordered(self, value: Any, axes: tuple[int, ...]) -> Any:
        return value.permute(axes)
