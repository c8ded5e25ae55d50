"""Run a batch: whatever is not complete is computed, each item by itself, and nothing complete
again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from dfmp2.errors import DiskFull, InputError, ResourceError
from dfmp2.errors.messages import Message, Option
from dfmp2.execution.items import (
    Compute,
    Input,
    ItemStatus,
    compute_item,
    failed,
    index_rows,
    look,
    look_at,
    read_index,
    said_energy,
)
from dfmp2.execution.manifest import Batch
from dfmp2.execution.pool import Call, Died, Pool
from dfmp2.execution.schedule import arrange, memory_needed, works
from dfmp2.host.files import discard_lock, make_folder, require_writable
from dfmp2.options import ALL
from dfmp2.output.batch_index import IndexWriter, index_name
from dfmp2.progress import Listener
from dfmp2.units import counted_text

PATIENCE = 8.0  # s that workers have to stop
# s that items of other processes are waited for: the workers of a batch that was killed end within
# that
GRACE = 15.0
LONGEST_MESSAGE = 300  # characters shown of an error


@dataclass(eq=False)
class BatchRun:
    """Which item is computed next, and what became of it.

    Attributes
    ----------
    inputs : of all items of the batch
    mine : places in the batch of the items of this run, those of its shard
    listener : hears of each item that has ended, of one that failed as a warning, and how much time
        is left
    chained : start the SCF from the orbitals of the item before, of the same atoms
    scratch : folder for what does not fit, None for the default
    command : for the provenance
    stop_asked : how often the user has asked to stop
    rows : items of this run by their places
    complete_before : how many of them were complete before
    fault : why a device must not be used any more, which ends the run; "" where none must
    full : what the disk refused, which ends the run; "" for nothing
    shard : the shard (I, N) that this run is, whose part of the index it reads and adds to; None
        for the whole batch
    optimize : finds the minimum of an item that is to be optimised
        (`dfmp2.studies.optimize.minimum`); None where no item is
    """

    batch: Batch
    inputs: Sequence[Input]
    mine: Sequence[int]
    listener: Listener
    chained: bool = False
    scratch: str | None = None
    command: str = "dfmp2 batch run"
    stop_asked: Callable[[], int] = lambda: 0
    rows: dict[int, ItemStatus] = field(default_factory=dict)
    complete_before: int = 0
    fault: str = ""
    full: str = ""
    shard: tuple[int, int] | None = None
    optimize: Compute | None = None
    # What may begin; tags are its place, and those to follow it
    _queue: deque[Call] = field(default_factory=deque)
    # Items of other processes, since when that is known
    _elsewhere: dict[int, float] = field(default_factory=dict)
    _ended: int = 0
    _cost: float = 0.0
    _cost_done: float = 0.0

    def in_state(self, status: str) -> list[ItemStatus]:
        """Rows of this run in a state."""
        return [row for row in self.rows.values() if row.status == status]

    def compute(self, pool: Pool, workers: int) -> None:
        """Compute what is not complete with up to `workers` workers of `pool`; the failure of an
        item is in its row.

        Raises
        ------
        ResourceError : the output folder cannot be written
        """
        if self.chained and any(self.batch.items[place].keep != ALL for place in self.mine):
            raise InputError(
                Option("scf_chain", True),
                " starts from the orbitals of the item before, which only ",
                Option("keep", ALL),
                " keeps: leave one of them out",
            )
        make_folder(self.batch.output)
        require_writable(self.batch.output / index_name(self.shard), overwrite=True)
        known = read_index(self.batch, self.shard)
        rows = look([self.inputs[place] for place in self.mine], known)
        self.rows = dict(zip(self.mine, rows, strict=True))
        index = IndexWriter(self.batch.output, self.shard)
        self._index = index
        try:
            self._add_to_index([row for row in rows if known.get(row.name) != row])
            self._compute(pool, workers)
        finally:
            index.close()

    def _compute(self, pool: Pool, workers: int) -> None:
        """Compute what the rows say is not complete."""
        left = [place for place in self.mine if self.rows[place].status != "complete"]
        self.complete_before = len(self.mine) - len(left)
        if left:
            with pool:
                pool.grow(min(workers, len(left)))
                self._works = works(self.inputs)  # while the workers load their libraries
                self._plan(left, len(pool.slots))
                unfinished = self._work(pool)
            for call in unfinished:
                discard_lock(call.given[0].item.target)
        for place, row in self.rows.items():
            # It was stopped when it was complete, or others have completed it
            if row.status in ("running", "pending"):
                self.rows[place] = look_at(self.inputs[place])
                self._add_to_index([self.rows[place]])

    def _add_to_index(self, rows: Iterable[ItemStatus]) -> None:
        """Add rows to the index; a disk that refuses is spoken of, for results do not depend on
        it."""
        try:
            self._index.append(index_rows(rows))
        except ResourceError as error:
            self.listener.stage(str(error))

    def disk_full(self) -> DiskFull:
        """The error for a disk that refused, with what to do."""
        left = len(self.rows) - len(self.in_state("complete"))
        return DiskFull(
            f"{left} of {counted_text(len(self.rows), 'item')} not complete: {self.full}. Complete "
            "items are kept: make room on that disk and repeat the command"
        )

    def _plan(self, left: list[int], workers: int) -> None:
        """Decide in which order items are computed."""
        for place in left:
            row = self.rows[place]
            if row.remark and row.status != "running" and self.inputs[place].fingerprint:
                self.listener.stage(f"{row.name}: {row.remark}: it is computed again")
        self._cost = sum(self._works[place].cost for place in left)
        for piece in reversed(
            arrange([self._works[k] for k in self.rows], parts=workers, chained=self.chained)
        ):
            self._begin(None, [work.place for work in piece])
        self._began = time.monotonic()

    def _begin(self, before: int | None, places: list[int]) -> None:
        """Let the first of these items that is not complete come next; the one `before` it may give
        orbitals."""
        while places and self.rows[places[0]].status == "complete":
            before, *places = places
        if places:
            start = None
            if before is not None and self.rows[before].status == "complete":
                start = self.batch.items[before].target
            self._queue.appendleft(
                Call(
                    partial(compute_item, optimize=self.optimize),
                    (self.inputs[places[0]], start, self.scratch, self.command),
                    places,
                )
            )

    def _work(self, pool: Pool) -> list[Call]:
        """Until everything is done or the user wants to stop; what had not stopped by then."""
        deadline = None
        while pool.busy or (self._queue and deadline is None):
            stops = self.stop_asked()
            if deadline is None and (stops or self.fault or self.full):
                deadline = time.monotonic() + PATIENCE
                for slot in pool.busy:
                    slot.terminate()
            if stops > 1 or (deadline is not None and time.monotonic() > deadline):
                break
            for call, found in pool.work(self._queue if deadline is None else deque()):
                self._take(call, found, stopping=deadline is not None)
        return [slot.call for slot in pool.busy]

    def _take(self, call: Call, found: ItemStatus | Died, *, stopping: bool) -> None:
        """Go on from what became of an item."""
        place, *rest = call.tag
        if isinstance(found, Died):
            row = self._after_death(place, found)
        else:
            row = found
        if row.status == "running":
            if place not in self._elsewhere:
                self._elsewhere[place] = time.monotonic()
                self.listener.stage(f"{row.name}: {row.remark}: left to it")
            self.rows[place] = row
            if self._queue or time.monotonic() - self._elsewhere[place] < GRACE:
                self._queue.append(call)  # it may have ended when the others are done
                return
        elif row.status == "pending":
            if row.disk_full:  # the next item would find the disk full as well
                self.full = self.full or str(row.error)
                return
            if not stopping:  # somebody has terminated the worker, not the batch
                self._queue.appendleft(call)
            return
        if row.device_fault:  # the next item would fail on it as well, or be wrong
            self.fault = str(row.error)
        self.rows[place] = row
        self._add_to_index([row])
        self._ended += 1
        self._cost_done += self._works[place].cost
        self._tell(place, row)
        self._begin(place, rest)

    def _tell(self, place: int, row: ItemStatus) -> None:
        """Say what became of an item, and how much time is left: what is done has taken its share
        of the cost."""
        total = len(self.rows) - self.complete_before
        spent = time.monotonic() - self._began
        if self._cost_done > 0:
            left = max(0.0, self._cost / self._cost_done - 1.0) * spent
        else:
            left = None
        self.listener.time_left(left)
        for text in row.notes:
            self.listener.stage(f"{row.name}: {text}")
        if row.status == "failed":
            message = row.error or ""
            if len(message) > LONGEST_MESSAGE:
                message = message[:LONGEST_MESSAGE]
            self.listener.warning(
                Message(f"{row.name} failed with code {row.exit_code}: ", message)
            )
        else:
            result = said_energy(self.batch.items[place], row) or row.status
            self.listener.stage(
                f"[{self._ended}/{total}] {row.name}: {result}, {row.seconds or 0.0:.1f} s"
            )
        self.listener.step(self._ended, total, "items")

    def _after_death(self, place: int, death: Died) -> ItemStatus:
        """A worker died: its item fails, unless it was complete or somebody asked the worker to
        end."""
        item, load = self.batch.items[place], self._works[place].load
        discard_lock(item.target)
        row = look_at(self.inputs[place])
        if row.status == "complete" or death.terminated:
            if row.status == "complete":
                return row
            return replace(row, status="pending")
        if load and death.share:
            need = memory_needed(load, death.share.threads)
        else:
            need = None
        return failed(item, death.exit_code, death.message(need), death.errors)
