"""The SCF solutions that were found on the way to the one that is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dfmp2.units import quantity as _q

SOLUTION = ("start", "origin", "energy", "spin_square", "lowest_eigenvalue", "kind")  # columns of Solutions


@dataclass(frozen=True, slots=True)
class Solutions:
    """SCF solutions in the order in which they were found: columns of equal length.

    Within a start each solution but the first follows the instability of the one before.
    """

    start: tuple[int, ...] = _q("", "start that the solution belongs to, from 1")
    origin: tuple[str, ...] = _q("", "where the orbitals of that start came from")
    energy: tuple[float, ...] = _q("hartree", "SCF energy, NaN where it did not converge")
    spin_square: tuple[float, ...] = _q("", "<S^2>")
    lowest_eigenvalue: tuple[float, ...] = _q("hartree", "lowest of the orbital Hessian, NaN where not examined")
    kind: tuple[str, ...] = _q("", "kind of rotation that eigenvalue belongs to")
    chosen: int = _q("", "the solution that is used, from 1")

    def __post_init__(self) -> None:
        """Raise ValueError where the columns differ in length, or there is no such solution."""
        lengths = {len(getattr(self, name)) for name in SOLUTION}
        if len(lengths) != 1 or not 1 <= self.chosen <= len(self.energy):
            raise ValueError(f"columns of {sorted(lengths)} SCF solutions, of which {self.chosen} is used")

    def rows(self) -> list[dict[str, Any]]:
        """Each solution by the names of the columns."""
        columns = zip(*(getattr(self, name) for name in SOLUTION), strict=True)
        return [dict(zip(SOLUTION, values, strict=True)) for values in columns]

    @property
    def followed(self) -> int:
        """Instabilities followed on the way to the solution that is used."""
        return self.start[: self.chosen - 1].count(self.start[self.chosen - 1])
