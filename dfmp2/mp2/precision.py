"""Pair energies to a tolerance: in mixed precision with a certificate, in float64 where that fails.

"fp64" uses no float32 anywhere. "mixed" refuses a result whose estimated error exceeds the tolerance;
"auto" repeats the step in float64 and says so.
"""

from __future__ import annotations

from dataclasses import replace

from dfmp2.backends.base import Backend
from dfmp2.errors import NumericalError
from dfmp2.mp2.certificate import certify
from dfmp2.mp2.pairs import pair_energies
from dfmp2.orbitals import ActiveSpace
from dfmp2.progress import Listener
from dfmp2.record import Array, Certificate, PairEnergies


def pair_energies_to_tolerance(
    b: list[Array], spaces: list[ActiveSpace], backend: Backend, precision: str, tolerance: float, listener: Listener
) -> tuple[PairEnergies, str, Certificate | None]:
    """Pair energies, the precision they were really computed in, and the certificate.

    Parameters
    ----------
    b : fitted integrals (nocc, nvir, naux) float64 per spin, Eh^1/2
    spaces : active space per spin
    precision : "fp64", "mixed" or "auto"
    tolerance : largest accepted estimate of the precision error, Eh

    Raises
    ------
    NumericalError : "mixed" and the estimate exceeds the tolerance
    """
    exact = [backend.put(tensor, s.eps_occ, s.eps_vir, "fp64") for tensor, s in zip(b, spaces, strict=True)]
    if precision == "fp64":
        return pair_energies(exact, backend, listener.tiles), "fp64", None
    mixed = [backend.put(tensor, s.eps_occ, s.eps_vir, "mixed") for tensor, s in zip(b, spaces, strict=True)]
    pairs = pair_energies(mixed, backend, listener.tiles)
    certificate = certify(pairs, exact, backend, tolerance)
    if certificate.accepted:
        return pairs, "mixed", certificate
    found = (
        f"the estimated precision error {certificate.correlation_error:.1e} Eh exceeds the tolerance {tolerance:.1e} Eh"
    )
    if precision == "mixed":
        raise NumericalError(
            f"{found}: use --precision auto (repeats in float64), --precision fp64 or a larger --tolerance"
        )
    listener.warning(f"{found}: the pair energies are repeated in float64")
    return pair_energies(exact, backend, listener.tiles), "fp64", replace(certificate, repeated_in_fp64=True)
