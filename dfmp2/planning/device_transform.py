"""B made on the device, where `--transform device` asks for it: what it needs of the host, and how long it takes.

    host     (ia|Q) in the orbitals, fit of nocc nvir columns, B goes up
    device   fit of nao (nao + 1) / 2 columns, A_P goes up, K1 and K2;  B of the certificate's orbitals on the host

Either way the metric is applied in float64 before anything is rounded.
"""

from __future__ import annotations

from dataclasses import replace

from dfmp2.backends.base import Backend, Shape
from dfmp2.errors import KernelError, ResourceError, UnsupportedByBackend
from dfmp2.planning.figures import Timings
from dfmp2.planning.memory import FLOAT32, FLOAT64, SOLVE_BYTES
from dfmp2.planning.sizes import Workload
from dfmp2.units import format_bytes

TILE = 128  # rows of a tile on the device, and fitting functions that go up together


def require(backend: Backend, spins: tuple[Shape, ...], work: Workload, room: int) -> None:
    """Refuse what cannot be done.

    Parameters
    ----------
    room : bytes the host may hold

    Raises
    ------
    UnsupportedByBackend : the device cannot make B
    ResourceError : the host's part does not fit into memory
    """
    if not backend.limits.transforms or not spins:
        why = "this backend takes B from the host" if spins else "there is nothing to correlate"
        raise UnsupportedByBackend(f"--transform device: {why}; use an nki lane on one core, or --transform host")
    try:
        backend.transform_seconds(spins, work.nao)
    except KernelError as error:
        raise UnsupportedByBackend(f"--transform device: {error}; use --transform host") from error
    held = host_bytes(work)
    if held > room:
        raise ResourceError(
            f"--transform device holds {format_bytes(held)} of fitted integrals on the host, where "
            f"{format_bytes(room)} are left: allow {format_bytes(held - room)} more with --memory, or use "
            "--transform host"
        )


def retimed(timings: Timings, backend: Backend, spins: tuple[Shape, ...], work: Workload) -> Timings:
    """Predicted times where the device makes B: more columns to fit, and K1 and K2 in place of the host's products."""
    fit = timings.fit * work.pairs_of_functions / sum(s.nocc * s.nvir for s in spins)
    transform = backend.transform_seconds(spins, work.nao)
    more = fit - timings.fit + transform - timings.transform
    return replace(timings, fit=fit, transform=transform, total=timings.total + more)


def host_bytes(work: Workload) -> int:
    """Bytes the host holds: fitted integrals, and beside them the metric, a batch that goes up, or B of the sample."""
    tiles, groups = -(-work.nao // TILE), -(-work.naux // TILE)
    integrals = work.naux * work.pairs_of_functions * FLOAT64
    metric = 2 * work.naux**2 * FLOAT64 + work.block_functions * work.pairs_of_functions * FLOAT64
    batch = TILE * FLOAT64 * (work.nao**2 + (tiles * TILE) ** 2 * 3 // 2)
    halves = sum(groups * tiles * TILE**2 * (s.nocc + TILE) * FLOAT32 for s in work.spins)
    b = work.elements * work.naux * FLOAT64
    frontier = 2 * work.frontier_elements * work.naux * FLOAT64
    return integrals + max(metric + 2 * SOLVE_BYTES, batch + halves + b // 2, 2 * b, frontier)
