"""AO to MO transformation of three-centre integrals, one fitting function after another:

    (ia|P) = sum_m X_Pi,m C_ma        X_Pi,m = sum_n (P|mn) C_ni

on our own single-threaded workers, each with its own share of a block and its own work space.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from pyscf import lib

from dfmp2.orbitals import ActiveSpace
from dfmp2.reference.half_transform import half_transform
from dfmp2.reference.pair_list import every_pair

Array = NDArray[np.float64]

HALF_BYTES = 12 * 10**6  # of half-transformed integrals per product; stays in the shared cache


class Transformation:
    """Transforms blocks of packed (P|mn), float64.

    Parameters
    ----------
    spaces : active space of each spin
    threads : workers
    """

    def __init__(self, spaces: list[ActiveSpace], threads: int) -> None:
        occupied = [space.c_occ for space in spaces]
        pairs = every_pair(len(occupied[0]))
        self._step = max(1, HALF_BYTES // (8 * max(1, *(c.size for c in occupied))))
        self._spaces, self._threads = spaces, threads
        self._virtual = [np.ascontiguousarray(space.c_vir) for space in spaces]
        self._halves = [half_transform(occupied, self._step, pairs, single=False) for _ in range(threads)]

    def __call__(self, packed: Array) -> list[Array]:
        """(ia|P) of each spin, (count, nocc, nvir), from packed (P|mn), (count, npair) float64, C order."""
        parts = [np.empty((len(packed), space.nocc, space.nvir)) for space in self._spaces]
        bounds = np.linspace(0, len(packed), self._threads + 1).round().astype(int)

        def share(worker: int) -> None:
            lib.num_threads(1)  # of this thread alone
            for start in range(bounds[worker], bounds[worker + 1], self._step):
                stop = min(start + self._step, bounds[worker + 1])
                halves = self._halves[worker](packed[start:stop])
                for x, virtual, part in zip(halves, self._virtual, parts, strict=True):
                    np.matmul(x, virtual, out=part[start:stop].reshape(len(x), virtual.shape[1]))

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(share, range(self._threads)))
        return parts
