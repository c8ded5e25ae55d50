"""What a calculation hands to whoever saves its state, and what it takes back when it goes on.

The calculation reads the attributes before each stage and calls the methods after it. `dfmp2.output.checkpoint` keeps
them in a file; the class here keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.base import PairTerms
from dfmp2.mp2.pairs import TileKey
from dfmp2.progress import Listener
from dfmp2.scf.reference import Reference, StartOrbitals

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StoredB:
    """B in the scratch folder of a run that was stopped.

    Attributes
    ----------
    folder : the scratch folder
    shapes : (nocc, nvir, naux) per spin
    digests : per spin, SHA-256 of the numbers of every group of orbitals
    condition, dropped, threshold : of the fitting metric
    """

    folder: str
    shapes: tuple[tuple[int, int, int], ...]
    digests: tuple[tuple[str, ...], ...]
    condition: float
    dropped: int
    threshold: float


class Checkpoint:
    """The state of a calculation; this class saves nothing and has nothing to go on from.

    Attributes
    ----------
    path : of the file, "" for none
    layout : (program, budget) of the memory plan, bytes: the cut of the integrals decides about last bits
    orbitals : of the last SCF iteration, while the SCF has not converged
    reference : converged
    b : where B lies on disk
    tiles : pair terms of finished tiles
    """

    path: str = ""
    layout: tuple[int, int] | None = None
    orbitals: StartOrbitals | None = None
    reference: Reference | None = None
    b: StoredB | None = None
    tiles: Mapping[TileKey, PairTerms] = {}

    def begin(self, identity: Mapping[str, str], listener: Listener) -> None:
        """Say what is computed, before the first number is.

        Parameters
        ----------
        identity : of `dfmp2.mp2.identity.identity`

        Raises
        ------
        ForeignCheckpoint : the state that was found belongs to another calculation
        """

    def add_layout(self, program: int, budget: int) -> None:
        """How memory is divided, bytes."""

    def add_orbitals(self, mo_coeff: Array, mo_occ: Array) -> None:
        """Orbitals after an SCF iteration, (nspin, nao, nmo) and (nspin, nmo).

        Raises
        ------
        Interrupted : the run was asked to stop; what was done is saved. The same holds for the methods below
        """

    def add_reference(self, reference: Reference) -> None:
        """The converged reference."""

    def add_b(self, b: StoredB | None) -> None:
        """B is complete on disk; None: what was found there is not used."""

    def add_tile(self, key: TileKey, terms: PairTerms) -> None:
        """A tile is finished."""


NOTHING = Checkpoint()
