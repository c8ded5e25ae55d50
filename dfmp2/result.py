"""The result of a calculation. Derived energies are properties; names follow QCSchema where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dfmp2 import summary
from dfmp2.basis import BasisSet
from dfmp2.molecule import Molecule
from dfmp2.mp2 import scaling
from dfmp2.options import Options
from dfmp2.record import (
    Certificate,
    Check,
    Diagnostics,
    Memory,
    PairEnergies,
    Preparation,
    Provenance,
    Ranks,
    Reference,
    Sizes,
    Storage,
    Timings,
)


@dataclass(frozen=True, slots=True, eq=False)
class MP2Result:
    """A finished DF-MP2 calculation.

    The unscaled components are sums of `pairs`; every total is arithmetic on them.
    """

    molecule: Molecule
    options: Options
    orbital_basis: BasisSet
    scf_fitting: BasisSet | None
    mp2_fitting: BasisSet
    reference: Reference
    pairs: PairEnergies
    sizes: Sizes
    backend: str
    backend_reason: str
    precision: str
    diagnostics: Diagnostics
    timings: Timings
    predicted: Timings
    memory: Memory
    provenance: Provenance
    frozen_core_note: str
    certificate: Certificate | None = None
    check: Check | None = None
    mole_json: str = ""
    storage: Storage | None = None
    ranks: Ranks | None = None
    preparation: Preparation | None = None

    @property
    def scf_total_energy(self) -> float:
        """E(HF), Eh."""
        return self.reference.scf_total_energy

    @property
    def mp2_same_spin_correlation_energy(self) -> float:
        """E_SS, unscaled, Eh."""
        return self.pairs.same_spin_energy

    @property
    def mp2_opposite_spin_correlation_energy(self) -> float:
        """E_OS, unscaled, Eh."""
        return self.pairs.opposite_spin_energy

    @property
    def mp2_correlation_energy(self) -> float:
        """E_SS + E_OS, Eh."""
        return self._scaled(scaling.MP2)

    @property
    def mp2_total_energy(self) -> float:
        """E(HF) + E(MP2 correlation), always unscaled, Eh."""
        return self.scf_total_energy + self.mp2_correlation_energy

    @property
    def scs_mp2_correlation_energy(self) -> float:
        """SCS-MP2 correlation energy, Eh."""
        return self._scaled(scaling.SCS)

    @property
    def sos_mp2_correlation_energy(self) -> float:
        """SOS-MP2 correlation energy, Eh."""
        return self._scaled(scaling.SOS)

    @property
    def scaled_mp2_correlation_energy(self) -> float | None:
        """Correlation energy with the user's own factors, Eh; None when they were not asked for."""
        own = scaling.custom(self.options.os_scale, self.options.ss_scale)
        return None if own is None else self._scaled(own)

    def _scaled(self, factors: scaling.Scaling) -> float:
        return factors.apply(self.mp2_opposite_spin_correlation_energy, self.mp2_same_spin_correlation_energy)

    def to_dict(self) -> dict[str, Any]:
        """The object `dfmp2 run --json` prints; energies in hartree."""
        return summary.to_dict(self)

    def _repr_html_(self) -> str:
        return summary.to_html(self)
