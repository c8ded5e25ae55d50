"""The cost of every item and the shards they fall into, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dfmp2 import calibration, resources
from dfmp2.batch.manifest import Batch
from dfmp2.batch.order import shards
from dfmp2.batch.sizes import cost, element_sizes
from dfmp2.batch.survey import Survey, survey
from dfmp2.reference.shield import import_pyscf


@dataclass(frozen=True, slots=True)
class Forecast:
    """One item.

    Attributes
    ----------
    name, molecule : of the item
    shard : that computes it, from 0
    nao, naux : functions of the orbital and of the MP2 fitting set, None when it will be refused
    seconds : predicted, in a warm worker
    error : why its molecule cannot be read, "" if it can
    """

    name: str
    molecule: str
    shard: int
    nao: int | None
    naux: int | None
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """All items, in the manifest's order; `loads` are the seconds of each shard.

    `measured` : whether the times rest on rates of this machine.
    """

    items: tuple[Forecast, ...]
    loads: tuple[float, ...]
    measured: bool

    def to_dict(self) -> dict[str, Any]:
        """What `batch plan --json` prints."""
        return {
            "total": len(self.items),
            "seconds": sum(self.loads),
            "measured": self.measured,
            "shards": [
                {"shard": f"{k}/{len(self.loads)}", "items": sum(i.shard == k for i in self.items), "seconds": load}
                for k, load in enumerate(self.loads)
            ],
            "items": [asdict(item) for item in self.items],
        }


class _Patient:
    """Hears nothing and never asks to stop."""

    def note(self, text: str) -> None:
        """Not said."""

    def item(self, row: Any, done: int, total: int, left: float | None) -> None:
        """Not said."""

    def stop_asked(self) -> int:
        """Never."""
        return 0


def look_ahead(batch: Batch) -> tuple[Survey, Sequence[Any]]:
    """Every molecule read, and the numbers of functions that `Survey.workloads` makes their sizes of.

    Raises
    ------
    InputError : PySCF is missing
    """
    import_pyscf()
    found = survey(batch, {}, _Patient())
    sizes = [
        (key, {symbol: list(asdict(size).values()) for symbol, size in element_sizes(key, symbols).items()})
        for key, symbols in found.wanted()
    ]
    return found, sizes


def foresee(batch: Batch, count: int, *, chained: bool = False) -> Outlook:
    """Sizes, times and `count` shards; results that are there make no difference.

    Raises
    ------
    InputError : PySCF is missing
    """
    found, sizes = look_ahead(batch)
    loads = found.workloads(sizes)
    common = batch.items[0].settings.options
    backend = "cpu" if common.backend == "auto" else common.backend
    rates = calibration.load(backend, common.threads or resources.usable_cores())
    seconds = [cost(work, rates) for work in loads]
    shard_of = {
        work.place: k for k, works in enumerate(shards(found.works(sizes), count, chained=chained)) for work in works
    }
    items = tuple(
        Forecast(
            item.name,
            item.molecule,
            shard_of[place],
            None if work is None else work.nao,
            None if work is None else work.naux,
            seconds[place],
            str(found.errors.get(place, "")),
        )
        for place, (item, work) in enumerate(zip(batch.items, loads, strict=True))
    )
    totals = tuple(sum(item.seconds for item in items if item.shard == k) for k in range(count))
    return Outlook(items, totals, rates is not None)
