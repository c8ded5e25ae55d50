"""How a batch is run on one machine, what a run tells meanwhile, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dfmp2.batch.state import Row


@dataclass(frozen=True, slots=True)
class Orders:
    """How a batch is run on this machine.

    Attributes
    ----------
    workers : processes
    threads, memory : of each, memory in bytes
    scratch : folder for what does not fit, None for the default
    shard : (I, N), None for everything
    chained : start the SCF from the orbitals of the item before, of the same atoms
    command : for the provenance
    """

    workers: int
    threads: int
    memory: int
    scratch: str | None = None
    shard: tuple[int, int] | None = None
    chained: bool = False
    command: str = "dfmp2 batch run"


class Observer(Protocol):
    """What a run tells while it goes on, and what it asks."""

    def note(self, text: str) -> None:
        """Something to know about one item or the whole."""

    def item(self, row: Row, done: int, total: int, left: float | None) -> None:
        """An item has ended; about `left` seconds remain."""

    def stop_asked(self) -> int:
        """How often the user has asked to stop."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished or interrupted run.

    Attributes
    ----------
    rows : all items of the batch, whoever computed them
    mine : places of those that were this run's to compute
    found : how many of them were complete before
    stopped : how often the user asked to stop
    barred : devices that reported a fault of the hardware and were used no more
    """

    rows: list[Row]
    mine: list[int]
    found: int
    stopped: int
    barred: tuple[str, ...] = ()

    def own(self, status: str) -> list[Row]:
        """Rows of this run in a state."""
        return [self.rows[place] for place in self.mine if self.rows[place].status == status]
