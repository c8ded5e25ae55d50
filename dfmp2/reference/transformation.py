"""AO to MO transformation of three-centre integrals, one fitting function after another:

    (ia|P) = sum_m X_Pi,m C_ma        X_Pi,m = sum_n (P|mn) C_ni

on our own single-threaded workers, each with its own share of a block and its own work space.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from dfmp2.orbitals import ActiveSpace
from dfmp2.reference.half_transform import half_transform
from dfmp2.reference.pair_list import every_pair

Array = NDArray[np.float64]

HALF_BYTES = 12 * 10**6  # of half-transformed integrals per product; stays in the shared cache


class Transformation:
    """Transforms blocks of packed (P|mn), float64.

    Parameters
    ----------
    spaces : each a pair of orbital ranges, such as the active space of a spin; what is a part of a wider first range
        is not made again
    threads : workers
    """

    def __init__(self, spaces: list[ActiveSpace], threads: int) -> None:
        ranges: list[Array] = []
        for space in sorted(spaces, key=lambda space: -space.nocc):  # the widest first: others may be parts of it
            _found(space.c_occ, ranges)
        self._halves = [_found(space.c_occ, ranges) for space in spaces]
        width = sum(c.shape[1] for c in ranges)
        self._step = max(1, HALF_BYTES // (8 * max(1, len(ranges[0]) * width)))
        self._threads = threads
        self._parts = [np.empty((0, space.nocc, space.nvir)) for space in spaces]  # reused: touched first once
        self._virtual = [np.ascontiguousarray(space.c_vir) for space in spaces]
        pairs = every_pair(len(ranges[0]))
        self._transforms = [half_transform(ranges, self._step, pairs, single=False) for _ in range(threads)]

    def __call__(self, packed: Array) -> list[Array]:
        """(ia|P) of each space, (count, nocc, nvir), from packed (P|mn), (count, npair) float64, C order.

        Valid until the next call.
        """
        if len(packed) > len(self._parts[0]):
            self._parts = [np.empty((len(packed), *part.shape[1:])) for part in self._parts]
        parts = [part[: len(packed)] for part in self._parts]
        bounds = np.linspace(0, len(packed), self._threads + 1).round().astype(int)

        def share(worker: int) -> None:
            transform = self._transforms[worker]
            for start in range(bounds[worker], bounds[worker + 1], self._step):
                stop = min(start + self._step, bounds[worker + 1])
                transform.put(0, packed[start:stop])
                halves = transform.halves(stop - start)
                for (number, columns), virtual, part in zip(self._halves, self._virtual, parts, strict=True):
                    x = halves[number][:, columns]
                    if x.flags.c_contiguous:
                        x = x.reshape(1, -1, x.shape[2])
                    np.matmul(x, virtual, out=part[start:stop].reshape(*x.shape[:2], virtual.shape[1]))

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(share, range(self._threads)))
        return parts


def _found(orbitals: Array, ranges: list[Array]) -> tuple[int, slice]:
    """Where these orbitals (nao, n) are among the columns of `ranges`, which get them if they are in none."""
    count = orbitals.shape[1]
    for number, known in enumerate(ranges):
        for first in range(known.shape[1] - count + 1):
            if np.array_equal(known[:, first : first + count], orbitals):
                return number, slice(first, first + count)
    ranges.append(orbitals)
    return len(ranges) - 1, slice(0, count)
