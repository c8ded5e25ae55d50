"""A calculation up to its pair energies, and the files that it goes to and comes from (`dfmp2.parts`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dfmp2.basis import BasisSet
from dfmp2.errors import InputError
from dfmp2.memory import FLOAT64
from dfmp2.molecule import Molecule
from dfmp2.options import BOTH_PARTS, PAIRS, Options
from dfmp2.record import Diagnostics, Memory, Provenance, Reference, Sizes, Storage, Timings
from dfmp2.scratch.tensor import StoredTensor


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A calculation up to its pair energies. B itself stays in its file.

    The fields are those of `MP2Result`; timings, memory, storage and provenance are of the first part alone.
    """

    molecule: Molecule
    options: Options
    orbital_basis: BasisSet
    scf_fitting: BasisSet | None
    mp2_fitting: BasisSet
    reference: Reference
    sizes: Sizes
    diagnostics: Diagnostics
    timings: Timings
    predicted: Timings
    memory: Memory
    provenance: Provenance
    frozen_core_note: str
    mole_json: str
    storage: Storage

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """(nocc, nvir, naux) of B per spin; fewer naux than the fitting set has where the metric was near singular."""
        naux = self.sizes.naux - self.diagnostics.metric_dropped
        spins = zip(self.sizes.nocc, self.sizes.nvir, strict=True)
        return tuple((nocc, nvir, naux) for nocc, nvir in spins)[: self.reference.nspin]

    @property
    def tensor_bytes(self) -> int:
        """Of B, all spins."""
        return sum(FLOAT64 * nocc * nvir * naux for nocc, nvir, naux in self.shapes)


class Target(Protocol):
    """The file that a preparation is written to."""

    def require(self, size: int) -> None:
        """Refuse a disk on which `size` bytes of B find no room."""

    def place(self, shapes: list[tuple[int, int]], naux: int) -> list[StoredTensor]:
        """Room in the file for B of each spin, (nocc, nvir) and naux."""

    def fill(self, b: list[Any], workers: int) -> None:
        """Store B of each spin, unless it was made in its place."""

    def seal(self, prepared: Prepared) -> None:
        """Store everything else, and see that it is on disk."""


class Source(Protocol):
    """A file that was prepared, open.

    Attributes
    ----------
    path : its name
    prepared : what it holds beside B
    sha256 : hash of its content
    fingerprint : what the bits of the pair energies depend on
    tensors : B of each spin
    read : bytes of B read so far
    """

    path: str
    prepared: Prepared
    sha256: str
    fingerprint: str
    tensors: list[StoredTensor]

    @property
    def read(self) -> int: ...

    def load(self, workers: int) -> list[Any]:
        """B of each spin in memory, its hashes checked."""

    def check(self) -> None:
        """Compare B with its hashes."""


def options_for(prepared: Prepared, given: Mapping[str, Any]) -> Options:
    """Options of the whole calculation: those of the first part, and what is `given` for the second.

    Raises
    ------
    InputError : an option belongs to the first part
    """
    for name in given:
        if name in Options.__slots__ and name not in (*PAIRS, *BOTH_PARTS):
            raise InputError(
                f"--{name.replace('_', '-')} belongs to what dfmp2 prepare has already done: leave it out, or prepare "
                "another file with it"
            )
        if name not in Options.__slots__:
            raise InputError(f"unknown option {name!r}: the options are {', '.join(sorted((*PAIRS, *BOTH_PARTS)))}")
    here = {"memory": None, "scratch": None, "threads": None}  # of the machine, not of the calculation
    return replace(prepared.options, **{**here, **{name: value for name, value in given.items() if value is not None}})
