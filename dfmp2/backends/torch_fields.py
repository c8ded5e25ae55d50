"""Coulomb and exchange matrices on a PyTorch device, from fitted integrals computed by the host:

    J_c = sum_P B_Pc sum_d B_Pd D_d        K_mn = sum_Pi X_Pi,m X_Pi,n        X_P = B_P C

c and d are pairs of basis functions. B is uploaded once if the device has room for it, otherwise
for each J and K in blocks of fitting functions. Their sums stay on the device until all blocks are
done. Source: Weigend, Phys. Chem. Chem. Phys. 4, 4285 (2002).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array

if TYPE_CHECKING:
    from dfmp2.backends.torch import TorchBackend


class DeviceFields:
    """J and K for densities, from B in host memory.

    Parameters
    ----------
    backend : backend of the device
    b : (naux, ncolumn) float64, Eh^1/2, pairs of basis functions that are not negligible
    places : (nao, nao) column of each pair; ncolumn for a negligible one
    """

    def __init__(self, backend: TorchBackend, b: Array, places: NDArray[np.intp]) -> None:
        self._backend = backend
        self._b = b
        self._nao = len(places)
        self._places = backend.transfers.up(places.reshape(-1), backend.index)
        self._resident: Any = None
        room = backend.room()
        if room is None or b.nbytes <= room:
            self._resident = backend.transfers.up(b, backend.double)
            backend.transfers.hold(self._resident, b.nbytes)

    @property
    def resident(self) -> bool:
        """Whether all of B is on the device."""
        return self._resident is not None

    def matrices(
        self, folded: Array, occupied: Sequence[Array], *, single: bool, exchange: bool
    ) -> tuple[Array, Array]:
        """J for each density, (nspin, ncolumn), and K, (nspin, nao, nao), float64, Eh.

        Parameters
        ----------
        folded : (nspin, ncolumn) density, with off-diagonal elements doubled
        occupied : (nao, n) orbitals of each spin, scaled with the root of their occupation
        single : whether K uses float32 products, whose blocks are added up in float64
        exchange : whether to compute K; otherwise it is 0
        """
        backend, up = self._backend, self._backend.transfers.up
        dtype = backend.single if single else backend.double
        density = up(folded, backend.double)
        orbitals = [up(c, dtype) for c in occupied]
        j = density.new_zeros(density.shape)
        k = density.new_zeros((len(occupied), self._nao, self._nao))
        for block in self._blocks():
            j += (density @ block.T) @ block
            if not exchange:
                continue
            padded = block.new_zeros((len(block), block.shape[1] + 1), dtype=dtype)
            padded[:, :-1] = block
            whole = padded.index_select(1, self._places).view(-1, self._nao, self._nao)
            for spin, c in enumerate(orbitals):
                half = (whole @ c).transpose(1, 2).reshape(-1, self._nao)  # ((P, i), m)
                k[spin] += half.T @ half
        fetch = backend.transfers.down(j), backend.transfers.down(k)
        return fetch[0](), fetch[1]()

    def _blocks(self) -> Iterator[Any]:
        step = max(1, self._backend.limits.tile_elements // self._nao**2)
        for start in range(0, len(self._b), step):
            if self._resident is None:
                yield self._backend.transfers.up(
                    self._b[start : start + step], self._backend.double
                )
            else:
                yield self._resident[start : start + step]
