"""Spin-component scaled MP2: E = c_OS E_OS + c_SS E_SS on stored, unscaled components."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scaling:
    """A pair of spin-component factors.

    Attributes
    ----------
    name : how the scaled energy is called
    opposite_spin, same_spin : dimensionless factors c_OS, c_SS
    source : where the factors were published
    """

    name: str
    opposite_spin: float
    same_spin: float
    source: str

    def apply(self, opposite_spin_energy: float, same_spin_energy: float) -> float:
        """Scaled correlation energy, Eh, from the two unscaled components, Eh."""
        return self.opposite_spin * opposite_spin_energy + self.same_spin * same_spin_energy


MP2 = Scaling("MP2", 1.0, 1.0, "Moller and Plesset, Phys. Rev. 46, 618 (1934)")
SCS = Scaling("SCS-MP2", 6.0 / 5.0, 1.0 / 3.0, "Grimme, J. Chem. Phys. 118, 9095 (2003)")
SOS = Scaling("SOS-MP2", 1.3, 0.0, "Jung et al., J. Chem. Phys. 121, 9793 (2004)")


def custom(opposite_spin: float | None, same_spin: float | None) -> Scaling | None:
    """The user's own factors; a factor left out is 1. None when neither was given."""
    if opposite_spin is None and same_spin is None:
        return None
    return Scaling(
        "scaled MP2",
        1.0 if opposite_spin is None else opposite_spin,
        1.0 if same_spin is None else same_spin,
        "user",
    )
