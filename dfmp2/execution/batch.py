"""Run a batch: whatever is not complete is computed, each item by itself, and nothing complete again."""

from __future__ import annotations

import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

from dfmp2.errors import Dfmp2Error, InputError, Interrupted, ResourceError
from dfmp2.execution.arrays import arrange, look_ahead, memory_needed, shards, works
from dfmp2.execution.manifest import Batch
from dfmp2.execution.pool import FAULT, Pool
from dfmp2.execution.state import (
    INDEX,
    INPUT,
    START,
    Input,
    Row,
    error_file,
    look_at,
    read_index,
    read_inputs,
    remove_leftovers,
    write_failure,
    write_index,
)
from dfmp2.execution.worker import PREVIOUS, Task, compute_item, load_libraries
from dfmp2.host.files import require_writable
from dfmp2.host.locks import discard
from dfmp2.planning.sizes import Workload

PATIENCE = 8.0  # s that workers have to stop
GRACE = 15.0  # s that items of other processes are waited for: the workers of a batch that was killed end within that
INDEX_EVERY = 5.0  # s between two versions of batch.json


class Observer(Protocol):
    """What a run reports while it goes on, and what it asks."""

    def note(self, text: str) -> None:
        """Something to know about one item or the whole."""

    def item(self, row: Row, done: int, total: int, left: float | None) -> None:
        """An item has ended; about `left` seconds remain."""

    def stop_asked(self) -> int:
        """How often the user has asked to stop."""


class Copies(Protocol):
    """Where the files of this run's items are kept when its folder does not outlive it (`dfmp2.execution.s3`)."""

    def fetch(self, names: Sequence[str]) -> int:
        """Get what there is of these items, before anything is computed; the number of files."""

    def save(self, *, now: bool) -> None:
        """Copy what has changed: at once, or when it is due."""


def pinned_backend(batch: Batch) -> str:
    """The backend that decides which device each worker gets."""
    names = [item.options.backend for item in batch.items]
    return next((name for name in names if name not in ("cpu", "torch", "nki-interpreter")), "cpu")


class BatchRun:
    """Which slot computes what next, and what became of it.

    Parameters
    ----------
    shard : (I, N), None for everything
    chained : start the SCF from the orbitals of the item before, of the same atoms
    scratch : folder for what does not fit, None for the default
    command : for the provenance
    copies : where the files of the items are kept, None for their folder

    Attributes
    ----------
    rows : all items of the batch, whoever computed them
    mine : places of those that are this run's to compute
    found : how many of them were complete before
    barred : devices that reported a fault of the hardware and were used no more

    Raises
    ------
    Interrupted : the user asked to stop before anything was computed
    """

    def __init__(
        self,
        batch: Batch,
        observer: Observer,
        *,
        shard: tuple[int, int] | None = None,
        chained: bool = False,
        scratch: str | None = None,
        command: str = "dfmp2 batch run",
        copies: Copies | None = None,
    ) -> None:
        self.batch, self._observer, self._copies = batch, observer, copies
        self._shard, self._chained, self._scratch, self._command = shard, chained, scratch, command
        known = read_index(batch)
        self._inputs = read_inputs(batch, observer.stop_asked)
        self.rows = [
            Row(item.name, item.molecule)
            if isinstance(given, InputError)
            else look_at(batch, item, known.get(item.name), given)
            for item, given in zip(batch.items, self._inputs, strict=True)
        ]
        self.mine = list(range(len(self.rows)))  # until the shard is known
        self.found = sum(row.status == "complete" for row in self.rows)
        self.barred: list[str] = []
        self._queue: deque[int] = deque()  # places of items that may begin
        self._after: dict[int, int] = {}  # place of the item that may begin when one has ended, in a series
        self._before: dict[int, int] = {}
        self._elsewhere: dict[int, float] = {}  # items that other processes compute, and since when that is known
        self._loads: list[Workload | None] = []
        self._costs: dict[int, float] = {}
        self._todo = self._done = 0
        self._cost_left = self._cost_done = 0.0
        self._began = self._written = time.monotonic()

    def own(self, status: str) -> list[Row]:
        """Rows of this run in a state."""
        return [self.rows[place] for place in self.mine if self.rows[place].status == status]

    def compute(self, pool: Pool, workers: int) -> None:
        """Compute what is not complete, with up to `workers` workers of `pool`.

        Raises
        ------
        Dfmp2Error : nothing could be computed at all; the failure of an item is in its row
        """
        try:
            self.batch.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(
                f"cannot make the folder {self.batch.output}: {error.strerror}: choose another --output"
            ) from error
        require_writable(self.batch.output / INDEX, overwrite=True, expected_bytes=10**6)
        remove_leftovers(self.batch.output)
        left = sum(row.status != "complete" for row in self.rows)
        if left or self._copies is not None:
            with pool:
                pool.grow(min(workers, left or 1))
                self._plan(min(workers, pool.most))
                unfinished = self._work(pool)
            for place in unfinished:
                discard(self.batch.result(self.batch.items[place]))
        elif self._shard is not None:
            self._plan(workers)
        self._look_again()
        write_index(self.batch, self.rows)
        if self._copies is not None:
            try:
                self._copies.save(now=True)
            except ResourceError as error:
                raise Interrupted(f"{error}; what did not arrive is computed again by the next attempt") from error

    def _work(self, pool: Pool) -> list[int]:
        """Until everything is done or the user wants to stop; places of the items that had not stopped by then."""
        deadline = None
        while pool.slots:
            stops = self._observer.stop_asked()
            if stops and deadline is None:
                deadline = time.monotonic() + PATIENCE
                for slot in pool.busy:
                    slot.terminate()
            if stops > 1 or (deadline is not None and (not pool.busy or time.monotonic() > deadline)):
                break
            if deadline is None:
                for slot in pool.free:
                    self._next(pool, slot)
            for slot in pool.finished():
                self._take(pool, slot, stopping=deadline is not None)
            self._save_now_and_then()
        return [slot.task for slot in pool.busy if slot.function is compute_item]

    def _look_again(self) -> None:
        """At what others have done, and at what was interrupted at its very end."""
        mine = set(self.mine)
        for place, row in enumerate(self.rows):
            if place not in mine or row.status == "running":
                self.rows[place] = self._look(place, row)
            elif row.status == "pending":
                found = self._look(place, row)
                self.rows[place] = found if found.status == "complete" else row

    # What comes next

    def _plan(self, workers: int) -> None:
        """Decide what is this run's, and in which order, while the workers load their libraries."""
        self._loads = look_ahead(self.batch, self._inputs)
        chosen = works(self.batch, self._inputs, self._loads)
        self._costs = {work.place: work.cost for work in chosen}
        if self._shard is not None:
            index, count = self._shard
            chosen = shards(chosen, count, chained=self._chained)[index]
        self.mine = [work.place for work in chosen]
        if self._copies is not None:
            count = self._copies.fetch([self.batch.items[place].name for place in self.mine])
            self._observer.note(f"items: {len(self.mine)}, files of earlier attempts: {count}")
            for place in self.mine:
                self.rows[place] = self._look(place, None)
        left = [place for place in self.mine if self.rows[place].status != "complete"]
        self._todo, self.found = len(left), len(self.mine) - len(left)
        self._cost_left = sum(self._costs[place] for place in left)
        for place in left:
            row, given = self.rows[place], self._inputs[place]
            if row.remark and row.status != "running":
                self._observer.note(f"{row.name}: {row.remark}: it is computed again")
            if isinstance(given, InputError):
                target = self.batch.result(self.batch.items[place])
                if os.path.lexists(target):  # of a molecule that could still be read
                    os.replace(target, f"{target}{PREVIOUS}")
                self._fail(place, given.exit_code, str(given), "".join(traceback.format_exception(given)))
        for piece in arrange(chosen, parts=workers, chained=self._chained):
            places = [work.place for work in piece]
            self._after |= pairwise(places)
            self._before |= pairwise(reversed(places))
            self._queue.append(places[0])
        self._began = time.monotonic()

    def _next(self, pool: Pool, slot: Any) -> None:
        """Give a free slot the next item, or let it go."""
        if _device(slot) in self.barred or not self._queue:
            pool.dismiss(slot)
            return
        if slot.dead:  # while it had nothing to do, so no item is to blame
            slot.death()
            slot.start()
            return
        while self._queue:
            place = self._queue.popleft()
            given = self._inputs[place]
            if self.rows[place].status == "complete" or isinstance(given, InputError):
                self._go_on_after(place)
            else:
                slot.submit(compute_item, self._task(slot, place, given), task=place)
                return

    def _task(self, slot: Any, place: int, given: Input) -> Task:
        item, before = self.batch.items[place], self._before.get(place)
        start = None if before is None or self.rows[before].status != "complete" else self.batch.items[before]
        begun = f"; {START}{given.start}" if given.start else ""
        asked = "" if item.task == "energy" else f"; {item.task}, {INPUT}{given.fingerprint}"
        return Task(
            row=Row(item.name, item.molecule),
            kind=item.task,
            molecule=given.molecule,
            options=replace(item.options, memory=slot.memory, threads=slot.threads, scratch=self._scratch),
            output=self.batch.output.absolute(),  # a worker may have another working directory
            start=None if start is None else self.batch.result(start).absolute(),
            fingerprint=given.fingerprint,
            command=f"{self._command}  # item {item.name}{begun}{asked}",
            token=slot.token,
        )

    # What became of it

    def _take(self, pool: Pool, slot: Any, *, stopping: bool) -> None:
        """Go on from what a slot has ended.

        Raises
        ------
        Dfmp2Error : workers cannot start, or cannot do what comes before all items
        """
        function, place, future = slot.release()
        error = future.exception()
        if isinstance(error, BrokenExecutor):
            self._take_death(pool, slot, function, place, stopping=stopping)
        elif function is load_libraries:
            future.result()
        elif error is not None:  # a fault in dfmp2: what the process holds is not to be trusted any more
            text = "".join(traceback.format_exception(error))
            self._fail(place, FAULT, f"a fault in dfmp2: {type(error).__name__}: {error}", text)
            slot.close()
            slot.start()
        else:
            self._take_row(slot, place, future.result(), stopping=stopping)

    def _take_row(self, slot: Any, place: int, row: Row, *, stopping: bool) -> None:
        for text in row.notes:
            self._observer.note(f"{row.name}: {text}")
        if row.status == "complete":
            row = replace(row, output=str(self.batch.result(self.batch.items[place])))
        if row.status in ("complete", "failed"):
            self._end(place, row)
        elif row.status == "running":
            if place not in self._elsewhere:
                self._elsewhere[place] = time.monotonic()
                self._observer.note(f"{row.name}: {row.remark}: left to it")
            if self._queue or time.monotonic() - self._elsewhere[place] < GRACE:
                self._queue.append(place)  # it may have ended when the others are done
                self.rows[place] = row
            else:
                self._end(place, row)
        elif not stopping:  # somebody has terminated the worker, not the batch
            self._queue.appendleft(place)
        if row.device_fault and _device(slot) not in self.barred:  # the next item would fail on it as well, or be wrong
            self.barred.append(_device(slot))
            self._observer.note(f"{_device(slot)} reported a hardware fault: it gets no more items, others do the rest")

    def _take_death(
        self, pool: Pool, slot: Any, function: Callable[..., Any] | None, place: int, *, stopping: bool
    ) -> None:
        """A worker died: its item fails, unless it was complete or somebody asked the worker to end."""
        death = slot.death()
        if function is compute_item:
            discard(self.batch.result(self.batch.items[place]))
            row = self._look(place, None)
            load = self._loads[place]
            if row.status == "complete":
                self._end(place, row)
            elif not death.terminated:
                need = None if load is None else memory_needed(load, slot.threads)
                self._fail(place, death.exit_code, death.message(need), death.errors)
            elif not stopping:
                self._queue.appendleft(place)
        elif not death.terminated and not stopping:
            raise Dfmp2Error(f"a worker cannot start: {death.cause}\n{death.errors.strip()[-2000:]}")
        if stopping:
            pool.slots.remove(slot)
        else:
            slot.start()

    def _fail(self, place: int, code: int, message: str, text: str) -> None:
        """Note the failure of an item, which its worker could not do."""
        item = self.batch.items[place]
        try:
            write_failure(error_file(self.batch.result(item)), code, message, text)
        except ResourceError as error:
            self._observer.note(f"{item.name}: its error file is missing: {error}")
        self._end(place, Row(item.name, item.molecule, "failed", exit_code=code, error=message))

    def _end(self, place: int, row: Row) -> None:
        """An item has ended: the next of its series may begin."""
        self.rows[place] = row
        self._done += 1
        self._cost_done += self._costs[place]
        self._cost_left -= self._costs[place]
        spent = time.monotonic() - self._began
        left = max(0.0, self._cost_left) * spent / self._cost_done if self._cost_done > 0 else None
        self._observer.item(row, self._done, self._todo, left)
        self._go_on_after(place)

    def _go_on_after(self, place: int) -> None:
        after = self._after.pop(place, None)
        if after is not None:
            self._queue.appendleft(after)

    def _look(self, place: int, known: Row | None) -> Row:
        """The state of an item as its files say it."""
        given = self._inputs[place]
        return look_at(self.batch, self.batch.items[place], known, None if isinstance(given, InputError) else given)

    def _save_now_and_then(self) -> None:
        now = time.monotonic()
        if self._copies is not None:
            try:
                self._copies.save(now=False)
            except Dfmp2Error as error:
                self._observer.note(f"warning: {error}; it is tried again")
        if now - self._written < INDEX_EVERY:
            return
        self._written = now
        try:
            write_index(self.batch, self.rows)
        except ResourceError as error:
            self._observer.note(f"batch.json could not be written ({error}); the results do not depend on it")


def _device(slot: Any) -> str:
    """What a slot computes on, as its variables name it."""
    return ", ".join(f"{name}={value}" for name, value in slot.variables.items()) or "the device of all workers"
