"""Pair energies to a tolerance: in mixed precision with a certificate, in float64 where that fails.

"fp64" uses no float32 anywhere. "mixed" refuses a result whose estimated error exceeds the tolerance;
"auto" repeats the step in float64 and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dfmp2.backends import registry
from dfmp2.backends.base import Backend
from dfmp2.checkpoint.journal import Journal
from dfmp2.checkpoint.tiles import Tiles
from dfmp2.errors import NumericalError
from dfmp2.mp2.certificate import certify
from dfmp2.mp2.evaluation import AnyOperand
from dfmp2.mp2.gathering import DeviceTensor
from dfmp2.mp2.pairs import pair_energies
from dfmp2.mp2.streaming import StoredOperand
from dfmp2.mp2.summation import rounded, summation_order
from dfmp2.orbitals import ActiveSpace
from dfmp2.progress import Listener
from dfmp2.ranks.team import ALONE, Team
from dfmp2.record import Array, Certificate, PairEnergies
from dfmp2.scratch.tensor import StoredTensor


def pair_energies_to_tolerance(
    b: Sequence[Array | StoredTensor | DeviceTensor],
    spaces: list[ActiveSpace],
    backend: Backend,
    precision: str,
    tolerance: float,
    listener: Listener,
    held: int = 0,
    journal: Journal | None = None,
    team: Team = ALONE,
    threads: int = 1,
) -> tuple[PairEnergies, str, Certificate | None]:
    """Pair energies, the precision they were really computed in, and the certificate.

    Parameters
    ----------
    b : fitted integrals (nocc, nvir, naux) float64 per spin, Eh^1/2, in memory, all of them on disk, or all on the
        device in float32 with what they are made of
    spaces : active space per spin
    precision : "fp64", "mixed" or "auto"
    tolerance : largest accepted estimate of the precision error, Eh
    held : bytes of B on disk that may be in memory at a time
    journal : saves finished tiles, and may hold those of a run that was stopped
    team : ranks that share the work, and arrays in memory
    threads : for rounding B

    Raises
    ------
    NumericalError : the estimate exceeds the tolerance, and the precision is "mixed" or the device has no float64
    """

    def put(backend: Backend, precision: str) -> list[AnyOperand]:
        made = any(isinstance(tensor, DeviceTensor) for tensor in b)
        order = None if made or precision == "fp64" else summation_order(b, team)  # type: ignore[arg-type]

        def operand(tensor: Array | StoredTensor | DeviceTensor, space: ActiveSpace) -> AnyOperand:
            energies = space.eps_occ, space.eps_vir
            if isinstance(tensor, DeviceTensor):
                return tensor.at(precision)
            if isinstance(tensor, StoredTensor):
                return StoredOperand(tensor, *energies, precision, held, order)
            return backend.put(tensor if order is None else rounded(tensor, order, threads, team), *energies, precision)

        return [operand(tensor, space) for tensor, space in zip(b, spaces, strict=True)]

    course = [Tiles(journal or Journal(), number) for number in (0, 1)]
    host = registry.exact(backend)  # the backend itself, if it has float64
    exact = put(host, "fp64")
    if precision == "fp64":
        return pair_energies(exact, backend, listener.tiles, course[0], team), "fp64", None
    pairs = pair_energies(put(backend, "mixed"), backend, listener.tiles, course[0], team)
    certificate = certify(pairs, exact, host, tolerance, team)
    if certificate.accepted:
        return pairs, "mixed", certificate
    found = (
        f"the estimated precision error {certificate.correlation_error:.1e} Eh exceeds the tolerance {tolerance:.1e} Eh"
    )
    if host is not backend:
        route = "--transform host, " if any(isinstance(tensor, DeviceTensor) for tensor in b) else ""
        raise NumericalError(
            f"{found}, and --backend {backend.name} has no float64: use {route}--backend cpu or a larger --tolerance"
        )
    if precision == "mixed":
        raise NumericalError(
            f"{found}: use --precision auto (repeats in float64), --precision fp64 or a larger --tolerance"
        )
    listener.warning(f"{found}: the pair energies are repeated in float64")
    pairs = pair_energies(exact, backend, listener.tiles, course[1], team)
    return pairs, "fp64", replace(certificate, repeated_in_fp64=True)
