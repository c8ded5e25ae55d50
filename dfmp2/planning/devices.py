"""The memory of a device, and of its host if the device makes B."""

from __future__ import annotations

from dfmp2.backends.base import Limits
from dfmp2.backends.torch_b import device_bytes
from dfmp2.backends.transfers import STAGE_BYTES
from dfmp2.planning.memory import SOLVE_BYTES
from dfmp2.planning.sizes import FLOAT32, FLOAT64, Workload

TILE = 128  # rows of a tile on a device, and fitting functions of a slice
PIECE = 2**30  # bytes of fitted integrals uploaded together, but at least one slice


def stays_on_card(work: Workload, limits: Limits) -> bool:
    """Whether a card has room for the B that it computes, so that none of it is sent to the
    host."""
    wanted = device_bytes(work.elements, work.naux, work.naux, work.nao)
    return limits.fits and limits.room is not None and wanted <= limits.room


def card_bytes(work: Workload, limits: Limits, *, made_there: bool) -> int:
    """Bytes of a card's memory that a run takes: products, and B or what of it there is room for,
    for mixed precision in float64 (the certificate's) and in float32; 0 without a card.

    Parameters
    ----------
    made_there : whether the card computes B, from integrals beside it, and J and K
    """
    if limits.memory is None or limits.room is None:
        return 0
    held = work.b_bytes
    if work.precision != "fp64":
        held += work.elements * work.naux * limits.single_bytes
    if made_there:
        held = max(held, work.naux_scf * work.kept_pairs * FLOAT64)
        if stays_on_card(work, limits):
            held = max(held, device_bytes(work.elements, work.naux, work.naux, work.nao))
    return limits.memory - limits.room + min(held, limits.room)


def card_host_bytes(work: Workload) -> int:
    """Bytes held by the host if a card computes B and keeps it: the metric and its inverse, a block
    of integrals with the returned frontier orbitals, the matrix of the stability check, and
    transfer buffers."""
    block = work.block_functions * (work.pairs_of_functions + work.frontier_elements) * FLOAT64
    integrals = 2 * work.metric_bytes + 2 * SOLVE_BYTES + block
    return 2 * work.frontier_bytes + max(integrals, work.hessian_bytes) + 2 * STAGE_BYTES


def host_bytes(work: Workload) -> int:
    """Bytes held by the host if a device computes B from fitted integrals over basis functions:
    these integrals, and in addition the metric, an uploaded piece, or B of the certificate's
    sample."""
    tiles = -(-work.nao // TILE)
    groups = -(-work.naux // TILE)
    integrals = work.naux * work.pairs_of_functions * FLOAT64
    metric = 2 * work.metric_bytes + work.block_functions * work.pairs_of_functions * FLOAT64
    packed = TILE * (tiles * TILE) ** 2 * FLOAT32  # of a slice of fitting functions
    piece = TILE * work.nao**2 * FLOAT64 + max(packed, min(groups * packed, PIECE))
    b = work.b_bytes
    return integrals + max(metric + 2 * SOLVE_BYTES, piece + b // 2, 2 * b, 2 * work.frontier_bytes)
