"""The contract between chemistry and devices.

A backend knows arrays, never molecules, spin cases or files. For a tile of occupied pairs it
returns two numbers per pair, with D = e_i + e_j - e_a - e_b:

    direct_ij   = sum_ab (ia|jb)^2 / D              exchange_ij = sum_ab (ia|jb) (ib|ja) / D

and (ia|jb) = sum_P B_iaP B_jbP. RHF, UHF, SCS and frozen core are arithmetic above these two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can take; the tiling reads this, nobody asks what kind of backend it is.

    Attributes
    ----------
    precisions : subset of ("fp64", "mixed")
    tile_edge : most occupied orbitals along one edge of a tile of pairs
    tile_elements : most elements of (ia|jb) a device wants to hold for one tile
    workers : number of tiles that may run at the same time
    memory : bytes of device memory for operands and work space, None where it is the host's
    least_edge : occupied orbitals that a device pads a shorter edge of a tile to, 1 where it does not pad
    transforms : chip that makes B itself (`put_untransformed`), "" where B comes from the host
    work_elements : elements of work space for one tile beside them; None for twice as many
    square : whether one product takes a block of i and j, rather than one i and several j
    """

    precisions: tuple[str, ...]
    tile_edge: int
    tile_elements: int
    workers: int
    memory: int | None = None
    least_edge: int = 1
    transforms: str = ""
    work_elements: int | None = None
    square: bool = False


class Tile(NamedTuple):
    """A rectangle of occupied pairs i0 <= i < i1, j0 <= j < j1; `diagonal` keeps only i <= j."""

    i0: int
    i1: int
    j0: int
    j1: int
    diagonal: bool


class PairTerms(NamedTuple):
    """Pair terms of a tile, float64, Eh.

    direct : (i1-i0, j1-j0); exchange : the same shape, or None where the two spins differ.
    Entries i > j of a diagonal tile are zero.
    """

    direct: NDArray[np.float64]
    exchange: NDArray[np.float64] | None


@dataclass(frozen=True, slots=True)
class Operand:
    """One spin's B and orbital energies where the device wants them, put once and used for many tiles.

    Attributes
    ----------
    b : (nocc, nvir, naux), Eh^1/2, in the device's own array type
    eps_occ : (nocc,) float64, Eh
    eps_vir : (nvir,) float64, Eh
    precision : "fp64" or "mixed" (float32 products and elementwise, float64 from the row sums on)
    """

    b: Any
    eps_occ: NDArray[np.float64]
    eps_vir: NDArray[np.float64]
    precision: str


class Backend(Protocol):
    """A device that evaluates pair terms.

    Two verbs that not every backend has: `put_untransformed(tensors, energies)`, where `limits.transforms` names a
    chip, gives operands of all spins made on the device; `owners(left, right, tiles)`, where workers hold different
    parts of an operand, gives the worker of each tile.
    """

    name: str
    limits: Limits

    def put(
        self, b: NDArray[Any], eps_occ: NDArray[np.float64], eps_vir: NDArray[np.float64], precision: str
    ) -> Operand:
        """Make (nocc, nvir, naux) B resident in the given precision; for "mixed" it comes in float32 or float64."""
        ...

    def pair_terms(self, left: Operand, right: Operand, tile: Tile) -> PairTerms:
        """Direct and exchange terms of a tile; exchange only when `left is right`."""
        ...

    def describe(self) -> dict[str, str]:
        """Device and library versions, for the result's provenance."""
        ...
