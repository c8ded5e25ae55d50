"""What a warm-up compiles: the sizes of all molecules, one of each bucket that compiled programs serve."""

from __future__ import annotations

from dfmp2.backends.nki.costs.shapes import Shape
from dfmp2.backends.nki.layout import padded_naux, padded_nvir
from dfmp2.batch.manifest import Batch
from dfmp2.batch.outlook import look_ahead
from dfmp2.planning import trainium_shapes

COMPILED = ("nki", "nki-xla")  # backends that launch compiled programs

Spins = tuple[Shape, ...]


def lane(batch: Batch) -> str | None:
    """The backend whose programs the batch launches, None where nothing is compiled."""
    names = {item.settings.options.backend for item in batch.items}
    return next((name for name in COMPILED if name in names), None)


def shapes(batch: Batch) -> tuple[Spins, ...]:
    """Sizes to compile for: one set of spins for each bucket (virtuals to 32, fitting functions to 256).

    Molecules that cannot be read are left out; the batch itself says why.
    """
    found, sizes = look_ahead(batch)
    buckets: dict[tuple[tuple[int, int], ...], Spins] = {}
    for item, work in zip(batch.items, found.workloads(sizes), strict=True):
        if work is None or item.settings.options.backend not in COMPILED:
            continue
        spins = trainium_shapes(work)
        if spins:
            buckets.setdefault(tuple((padded_nvir(s.nvir), padded_naux(s.naux)) for s in spins), spins)
    return tuple(buckets[key] for key in sorted(buckets))


def arguments(spins: Spins) -> list[str]:
    """Options of `dfmp2 kernels warmup` for one bucket."""
    first = spins[0]
    beta = [] if len(spins) == 1 else ["--beta", f"{spins[1].nocc},{spins[1].nvir}"]
    return ["--shape", f"{first.nocc},{first.nvir},{first.naux}", *beta]
