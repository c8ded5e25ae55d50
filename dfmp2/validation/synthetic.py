"""Kernel shapes without a molecule: arrays whose MP2 energy is known before anything is computed.

"closed-form", the arrays of the GAMESS RI-MP2 mini-app with its orbital energies exchanged, so that
denominators are negative as in a molecule: B_iaP = 1/naux, e_i = 1, e_a = 2, hence

    (ia|jb) = 1/naux,  D = -2,  E = sum_ij (2 direct_ij - exchange_ij) = -nvir^2 nocc^2 / (2 naux^2)

"trnblas", the pseudo-random arrays of the public example of trnblas: `torch.manual_seed(42)`, then
in this order and in float32 (n = nocc + nvir; randn normal, rand uniform in [0, 1))

    C_occ = 0.1 randn(n, nocc)        C_vir = 0.1 randn(n, nvir)       (mu nu|P) = 0.01 randn(n, n, naux)
    R = 0.01 randn(naux, naux)        (P|Q) = R R^T + naux 1
    e_i = -sort(rand(nocc)) - 0.5     e_a = sort(rand(nvir)) + 0.1

PyTorch's stream is the 32-bit Mersenne twister, which NumPy has too, so PyTorch is not needed.

Sources: jkwack/GAMESS_RI-MP2_MiniApp, source/rimp2_energy_whole_KERN.f90; trnsci/trnblas,
examples/df_mp2.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import ResourceError
from dfmp2.errors.messages import Option
from dfmp2.host import resources
from dfmp2.integrals.metric import factorise, fit
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.units import format_bytes

Array = NDArray[np.float64]
Single = NDArray[np.float32]

SEED = 42
DRAWN_AT_ONCE = 1 << 18  # random numbers; a multiple of 16, PyTorch's block of normal deviates
BLOCK_FUNCTIONS = 128  # fitting functions transformed at a time
# Largest certificate accepted for a kernel, of its energy: sums of equal numbers round
# systematically in float32 (6e-6 for the arrays of the GAMESS mini-app), which nothing in a
# molecule does.
KERNEL_CERTIFICATE = 2e-5


@dataclass(frozen=True, slots=True)
class SyntheticSizes:
    """Sizes of a synthetic problem.

    Attributes
    ----------
    recipe : "closed-form" or "trnblas"
    nocc, nvir, naux : occupied, virtual, fitting functions
    """

    recipe: str
    nocc: int
    nvir: int
    naux: int

    @property
    def elements(self) -> int:
        """Elements of B."""
        return self.nocc * self.nvir * self.naux


def require_host_memory(kernel: SyntheticSizes, held: int, memory: int | None) -> None:
    """Refuse arrays that do not fit; while B is made, "trnblas" also holds the half-transformed
    integrals.

    Parameters
    ----------
    held : bytes held while the pair energies are evaluated
    memory : bytes the process may use, None for what is free

    Raises
    ------
    ResourceError : more is needed
    """
    if kernel.recipe == "trnblas":
        half = kernel.nocc * (kernel.nocc + kernel.nvir) * kernel.naux
    else:
        half = 0
    needed = (
        resources.resident_memory() + max(held, 8 * (kernel.elements + half)) + 16 * kernel.naux**2
    )
    budget = memory or resources.usable_memory()
    if needed > budget:
        raise ResourceError(
            (
                f"the arrays of {kernel.nocc}/{kernel.nvir}/{kernel.naux} need "
                f"{format_bytes(needed)} and {format_bytes(budget)} may be used: allow more with"
                " "
            ),
            Option("memory"),
            ", or use a larger machine",
        )


def make_synthetic(kernel: SyntheticSizes, workers: int) -> tuple[Array, ActiveSpace]:
    """Fitted integrals B (nocc, nvir, naux) float64, Eh^1/2, and orbital energies of a synthetic
    problem."""
    if kernel.recipe == "closed-form":
        b = np.full((kernel.nocc, kernel.nvir, kernel.naux), 1.0 / kernel.naux)
        return b, _space(np.ones(kernel.nocc), np.full(kernel.nvir, 2.0))
    return _trnblas(kernel, workers)


def _trnblas(kernel: SyntheticSizes, workers: int) -> tuple[Array, ActiveSpace]:
    nocc, nvir, naux = kernel.nocc, kernel.nvir, kernel.naux
    n = nocc + nvir
    stream = TorchStream(SEED)
    c_occ = (np.float32(0.1) * stream.normal(n * nocc).reshape(n, nocc)).astype(np.float64)
    c_vir = (np.float32(0.1) * stream.normal(n * nvir).reshape(n, nvir)).astype(np.float64)
    half = np.zeros(
        (nocc, n * naux)
    )  # sum_mu C_mui (mu nu|P); the integrals themselves are never held
    rows = max(1, (1 << 24) // (n * naux))
    for start in range(0, n, rows):
        count = min(rows, n - start)
        integrals = np.float32(0.01) * stream.normal(count * n * naux).reshape(count, n * naux)
        half += c_occ[start : start + count].T @ integrals.astype(np.float64)
    root = (np.float32(0.01) * stream.normal(naux * naux).reshape(naux, naux)).astype(np.float64)
    metric = root @ root.T + naux * np.eye(naux)
    eps_occ = -np.sort(stream.uniform(nocc)).astype(np.float64) - 0.5
    eps_vir = np.sort(stream.uniform(nvir)).astype(np.float64) + 0.1
    raw = half.reshape(nocc, n, naux)

    def blocks() -> Iterator[tuple[int, int, list[Array]]]:
        for p0 in range(0, naux, BLOCK_FUNCTIONS):
            p1 = min(p0 + BLOCK_FUNCTIONS, naux)
            yield p0, p1, [np.matmul(c_vir.T, raw[:, :, p0:p1]).transpose(2, 0, 1)]

    [b] = fit(blocks(), factorise(metric), [(nocc, nvir)], naux, workers)
    return b, _space(eps_occ, eps_vir)


def _space(eps_occ: Array, eps_vir: Array) -> ActiveSpace:
    """Orbital energies alone: a synthetic problem has no basis functions."""
    return ActiveSpace(np.empty((0, eps_occ.size)), np.empty((0, eps_vir.size)), eps_occ, eps_vir)


class TorchStream:
    """The numbers PyTorch's CPU generator gives after `torch.manual_seed(seed)`, to float32
    rounding."""

    def __init__(self, seed: int) -> None:
        self._twister = np.random.RandomState(seed)

    def uniform(self, count: int) -> Single:
        """torch.rand(count): the lower 24 bits of each 32-bit draw, in [0, 1)."""
        bits = self._twister.randint(0, 2**32, count, dtype=np.uint32) & np.uint32((1 << 24) - 1)
        return bits.astype(np.float32) * np.float32(2.0**-24)

    def normal(self, count: int) -> Single:
        """torch.randn(count) for multiples of 16: Box-Muller on blocks of 8 radii and 8 angles."""
        if count % 16:
            raise ValueError(f"{count} normal deviates: PyTorch draws them in blocks of 16")
        numbers = np.empty(count, dtype=np.float32)
        for start in range(0, count, DRAWN_AT_ONCE):
            part = self.uniform(min(DRAWN_AT_ONCE, count - start)).reshape(-1, 2, 8)
            radius = np.sqrt(np.float32(-2.0) * np.log(np.float32(1.0) - part[:, 0]))
            angle = np.float32(2.0 * np.pi) * part[:, 1]
            block = numbers[start : start + part.size].reshape(-1, 2, 8)
            np.multiply(radius, np.cos(angle), out=block[:, 0])
            np.multiply(radius, np.sin(angle), out=block[:, 1])
        return numbers
