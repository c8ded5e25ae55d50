"""The fitted integrals as a backend takes them, in float64 or rounded to float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import Backend, TileSource
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.threads import each
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.planning.sizes import SAMPLED

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PairOperands:
    """B of each spin, wherever it lies.

    Attributes
    ----------
    b : sequence
        (nocc, nvir, naux) float64 per spin, Eh^1/2: in memory, all of them on disk, or all on the
        device in float32 with what they are made of.
    spaces : sequence of ActiveSpace
        One per spin.
    stream_bytes : int
        Of B on disk, how much may be in memory at a time.
    threads : int
        Workers that round B.
    """

    b: Sequence[Any]
    spaces: Sequence[ActiveSpace]
    stream_bytes: int = 0
    threads: int = 1

    @property
    def on_device(self) -> bool:
        """Whether B was made on the device."""
        return not all(isinstance(tensor, np.ndarray | StoredTensor) for tensor in self.b)

    def on(self, backend: Backend, precision: str) -> list[TileSource]:
        """B of each spin as the backend takes it.

        Parameters
        ----------
        backend : Backend
        precision : str
            "fp64" or "mixed".
        """
        if self.on_device:
            return [tensor.at(precision) for tensor in self.b]
        order = None
        if precision != "fp64":
            order = summation_order(self.b)
        sources: list[TileSource] = []
        for tensor, space in zip(self.b, self.spaces, strict=True):
            if isinstance(tensor, StoredTensor):
                from dfmp2.mp2.streaming import StoredOperand

                sources.append(
                    StoredOperand(
                        tensor, space.eps_occ, space.eps_vir, precision, self.stream_bytes, order
                    )
                )
                continue
            if order is not None:
                tensor = rounded(tensor, order, self.threads)
            sources.append(backend.put(tensor, space.eps_occ, space.eps_vir, precision))
        return sources


def summation_order(b: Sequence[Any]) -> NDArray[np.intp]:
    """Fitting functions by growing weight, the same for all spins; wherever B lies, the same
    numbers.

    Parameters
    ----------
    b : sequence
        (nocc, nvir, naux) float64 per spin, in memory or on disk.
    """
    weights = np.zeros(b[0].shape[2])
    for tensor in b:
        nocc = tensor.shape[0]
        for i in np.unique(np.linspace(0, nocc - 1, min(nocc, SAMPLED)).round().astype(int)):
            rows = tensor[i]
            weights += np.einsum("ap,ap->p", rows, rows)
    return np.argsort(weights, kind="stable")


def rounded(b: Array, order: NDArray[np.intp], threads: int) -> NDArray[np.float32]:
    """B, (nocc, nvir, naux), in float32 with its fitting functions in this order."""
    single = np.empty(b.shape, np.float32)
    each(
        len(b),
        lambda i: np.take(b[i].astype(np.float32), order, axis=1, out=single[i], mode="clip"),
        threads,
    )
    return single
