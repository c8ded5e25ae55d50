"""Run a batch: compute every incomplete item, independently of the others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from dfmp2.errors import DiskFull, InputError, Message, Option, ResourceError
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
from dfmp2.execution.schedule import Work, arrange, memory_needed, works
from dfmp2.host.files import discard_lock, make_folder, require_writable
from dfmp2.options import ALL
from dfmp2.output.batch_index import IndexWriter, index_name
from dfmp2.planning.time import process_count
from dfmp2.progress import Listener
from dfmp2.units import counted_text

PATIENCE = 8.0  # s allowed for workers to stop
# s to wait for items of other processes; the workers of a killed batch end within this time
GRACE = 15.0
LONGEST_MESSAGE = 300  # characters of an error that are shown


@dataclass(eq=False)
class BatchRun:
    """The state of a batch run: which item comes next, and the outcome of each.

    Attributes
    ----------
    inputs : inputs of all items of the batch
    mine : indices in the batch of the items of this run or shard
    listener : notified of each finished item (of a failed one by a warning), and of the time left
    chained : start the SCF from the orbitals of the previous item with the same atoms
    scratch : folder for data that do not fit into memory, None for the default
    command : recorded as provenance
    stop_asked : number of times the user has asked to stop
    rows : items of this run by index
    complete_before : how many of them were already complete
    fault : why a device must no longer be used, which ends the run; "" for none
    full : error of a full disk, which ends the run; "" for none
    shard : the shard (I, N) of this run, whose part of the index it reads and extends; None for the
        whole batch
    optimize : function that optimises the geometry of an item (`dfmp2.studies.optimize.minimum`);
        None if not needed
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
    # Calls ready to begin; tags are the index of the item and of those to follow it
    _queue: deque[Call] = field(default_factory=deque)
    # Items of other processes, with the time when this was noticed
    _elsewhere: dict[int, float] = field(default_factory=dict)
    _ended: int = 0
    _cost: float = 0.0
    _cost_done: float = 0.0

    def in_state(self, status: str) -> list[ItemStatus]:
        """Rows of this run in a state."""
        return [row for row in self.rows.values() if row.status == status]

    @cached_property
    def left(self) -> list[int]:
        """Indices of the incomplete items; their files are looked at when this is first asked for.

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
        self._changed = [row for row in rows if known.get(row.name) != row]
        return [place for place in self.mine if self.rows[place].status != "complete"]

    @cached_property
    def _works(self) -> list[Work]:
        """The work of all items."""
        return works(self.inputs)

    def suitable_workers(self, cores: int, memory: int | None) -> int:
        """The number of workers for the incomplete items on `cores` cores, with `memory` bytes for
        all."""
        loads = [load for place in self.left if (load := self._works[place].load)]
        if cores == 1 or not loads:
            return 1
        largest = max(loads, key=lambda load: load.nao)
        costs = [self._works[place].cost for place in self.left]
        return process_count(costs, memory_needed(largest, 1)[1], memory, cores)

    def compute(self, pool: Pool, workers: int) -> None:
        """Compute incomplete items with up to `workers` workers of `pool`; failures are recorded in
        the rows.

        Raises
        ------
        ResourceError : the output folder cannot be written
        """
        self.complete_before = len(self.mine) - len(self.left)
        with closing(IndexWriter(self.batch.output, self.shard)) as self._index:
            self._add_to_index(self._changed)
            self._compute(pool, workers)

    def _compute(self, pool: Pool, workers: int) -> None:
        """Compute the items whose rows are incomplete."""
        if self.left:
            with pool:
                pool.grow(min(workers, len(self.left)))
                self._plan(self.left, len(pool.slots))
                unfinished = self._work(pool)
            for call in unfinished:
                discard_lock(call.given[0].item.target)
        for place, row in self.rows.items():
            # It was stopped after completion, or others have completed it
            if row.status in ("running", "pending"):
                self.rows[place] = look_at(self.inputs[place])
                self._add_to_index([self.rows[place]])

    def _add_to_index(self, rows: Iterable[ItemStatus]) -> None:
        """Add rows to the index; a failure is only reported, since results do not depend on the
        index."""
        try:
            self._index.append(index_rows(rows))
        except ResourceError as error:
            self.listener.stage(str(error))

    def disk_full(self) -> DiskFull:
        """The error for a full disk, with advice."""
        left = len(self.rows) - len(self.in_state("complete"))
        return DiskFull(
            f"{left} of {counted_text(len(self.rows), 'item')} not complete: {self.full}. Complete "
            "items are kept: make room on that disk and repeat the command"
        )

    def _plan(self, left: list[int], workers: int) -> None:
        """Decide the order in which items are computed."""
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
        """Queue the first incomplete one of these items, which may start from the orbitals of the
        one `before`."""
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
        """Work until everything is done or the user wants to stop; returns the calls that did not
        stop in time."""
        deadline = None
        while pool.busy or (self._queue and deadline is None):
            stops = self.stop_asked()
            if deadline is None and (stops or self.fault or self.full):
                deadline = time.monotonic() + PATIENCE
                for slot in pool.busy:
                    slot.terminate()
            if stops > 1 or (deadline is not None and time.monotonic() > deadline):
                break
            for call, outcome in pool.work(self._queue if deadline is None else deque()):
                self._take(call, outcome, stopping=deadline is not None)
        return [slot.call for slot in pool.busy]

    def _take(self, call: Call, outcome: ItemStatus | Died, *, stopping: bool) -> None:
        """Process the outcome of an item: it has ended, or another process has it, or it was
        stopped."""
        place, *rest = call.tag
        row = self._after_death(place, outcome) if isinstance(outcome, Died) else outcome
        if row.status == "pending":
            self._put_back(call, row, stopping=stopping)
        elif row.status == "running" and self._waits_for_other(place, row):
            self._queue.append(call)
        else:
            self._end(place, row)
            self._begin(place, rest)

    def _put_back(self, call: Call, row: ItemStatus, *, stopping: bool) -> None:
        """Let an item that was stopped begin again, unless the batch stops or its disk is full."""
        if row.disk_full:  # it would be full for the next item as well
            self.full = self.full or str(row.error)
        elif not stopping:  # the worker was terminated, not the batch
            self._queue.appendleft(call)

    def _waits_for_other(self, place: int, row: ItemStatus) -> bool:
        """Whether to look later at an item of another process, which may be done by the time the
        rest is."""
        if place not in self._elsewhere:
            self._elsewhere[place] = time.monotonic()
            self.listener.stage(f"{row.name}: {row.remark}: left to it")
        self.rows[place] = row
        return bool(self._queue) or time.monotonic() - self._elsewhere[place] < GRACE

    def _end(self, place: int, row: ItemStatus) -> None:
        """Record the final outcome of an item."""
        if row.device_fault:  # the next item would fail on it too, or be wrong
            self.fault = str(row.error)
        self.rows[place] = row
        self._add_to_index([row])
        self._ended += 1
        self._cost_done += self._works[place].cost
        self._tell(place, row)

    def _tell(self, place: int, row: ItemStatus) -> None:
        """Report the outcome of an item and the time left, estimated from the fraction of the cost
        that is done."""
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
        """Process the death of a worker: its item fails, unless it was complete or the worker was
        asked to end."""
        item, load = self.batch.items[place], self._works[place].load
        discard_lock(item.target)
        row = look_at(self.inputs[place])
        if row.status == "complete":
            return row
        if death.terminated:
            return replace(row, status="pending")
        need = None
        if load is not None and death.share is not None:
            need = memory_needed(load, death.share.threads)
        return failed(item, death.exit_code, death.message(need), death.errors)
