"""Hold a calculation against PySCF's own DF-MP2, component by component."""

from __future__ import annotations

from dfmp2.record import Certificate, Check, NativeEnergies, PairEnergies, Reference

SAME_ORBITALS = 1e-8  # Eh, on the same orbitals and fitting set; a mixed-precision certificate is added


def allowed_difference(certificate: Certificate | None, precision: str) -> float:
    """Largest difference two programs may show on the same orbitals, Eh."""
    if certificate is None or precision == "fp64":
        return SAME_ORBITALS
    errors = (certificate.correlation_error, certificate.same_spin_error, certificate.opposite_spin_error)
    return SAME_ORBITALS + max(errors)


def compare(reference: Reference, pairs: PairEnergies, theirs: NativeEnergies, allowed: float) -> Check:
    """Differences of every component, ours - theirs, Eh."""
    return Check(
        program=theirs.program,
        scf_total_energy=theirs.scf_total_energy,
        same_spin=theirs.same_spin,
        opposite_spin=theirs.opposite_spin,
        scf_difference=reference.scf_total_energy - theirs.scf_total_energy,
        same_spin_difference=pairs.same_spin_energy - theirs.same_spin,
        opposite_spin_difference=pairs.opposite_spin_energy - theirs.opposite_spin,
        allowed=allowed,
    )
