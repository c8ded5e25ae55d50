"""Finished tiles of pairs: the matrices they have filled, and which of them are done.

A pass over all pairs is numbered: 0 the first, 1 its repetition in float64. A channel is a pair of spins. Tiles are
known by their place in the list that `dfmp2.mp2.tiling` makes from sizes alone, so that list is the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfmp2.checkpoint.encoding import Section
from dfmp2.checkpoint.journal import Journal

Channel = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """What is known of one channel; the arrays are filled in place.

    Attributes
    ----------
    direct : (nleft, nright) float64, Eh
    exchange : the same, or None between different spins
    done : (ntiles,) bool
    """

    direct: NDArray[np.float64]
    exchange: NDArray[np.float64] | None
    done: NDArray[np.bool_]


class Tiles:
    """One pass over all pairs.

    Parameters
    ----------
    journal : of the run
    number : of the pass
    """

    def __init__(self, journal: Journal, number: int) -> None:
        self.journal = journal
        self._name = f"pairs {number}"
        self._found = journal.section(self._name) or Section()
        self._arrays: dict[str, NDArray[np.float64] | NDArray[np.bool_]] = dict(self._found.arrays)
        if journal.active:
            journal.keep(self._name, lambda: Section({}, dict(self._arrays)))

    def channel(self, spins: Channel, shape: tuple[int, int], count: int, *, exchange: bool) -> Progress:
        """What an earlier run has done of a channel, or zeros.

        Parameters
        ----------
        shape : occupied orbitals of the two spins; count : tiles
        """
        names = [f"{spins[0]}{spins[1]} {kind}" for kind in ("direct", "exchange", "done")]
        direct, other, done = (self._arrays.get(name) for name in names)
        progress = Progress(
            np.zeros(shape) if direct is None else np.asarray(direct, dtype=np.float64),
            None if not exchange else np.zeros(shape) if other is None else np.asarray(other, dtype=np.float64),
            np.zeros(count, dtype=np.bool_) if done is None else np.asarray(done, dtype=np.bool_),
        )
        if progress.direct.shape != shape or progress.done.shape != (count,):
            raise ValueError("the tiles of the checkpoint are not those of this calculation")
        arrays = (progress.direct, progress.exchange, progress.done)
        self._arrays |= {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
        return progress
