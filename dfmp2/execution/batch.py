"""Run a batch on this host: whatever is not complete is computed, each item by itself, and nothing complete again."""

from __future__ import annotations

import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dfmp2.errors import Dfmp2Error, InputError, Interrupted, ResourceError
from dfmp2.execution.arrays import Run, arrange, shards
from dfmp2.execution.costs import SizeTable, element_sizes, read_inputs, wanted, workloads, works
from dfmp2.execution.devices import pinning
from dfmp2.execution.index import INDEX, read_index, remove_leftovers, write_failure, write_index
from dfmp2.execution.manifest import Batch
from dfmp2.execution.pool import FAULT, Death, Pool, Slot
from dfmp2.execution.state import START, Input, Row, look_at
from dfmp2.execution.worker import PREVIOUS, Reply, Task, compute_item, load_libraries, needed_memory
from dfmp2.host.files import require_writable
from dfmp2.host.locks import discard, holder

PATIENCE = 8.0  # s that workers have to stop
GRACE = 15.0  # s that items of other processes are waited for: the workers of a batch that was killed end within that
INDEX_EVERY = 5.0  # s between two versions of batch.json


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


def run_batch(batch: Batch, orders: Orders, observer: Observer, copies: Copies | None = None) -> Outcome:
    """Compute what is not complete.

    Raises
    ------
    Interrupted : before anything was computed
    Dfmp2Error : nothing could be computed at all; the failure of an item is in its row
    """
    _prepare_folder(batch)
    run = _BatchRun(batch, orders, observer, copies)
    if orders.shard is not None or copies is not None or any(row.status != "complete" for row in run.rows):
        names = [item.options.backend for item in batch.items]
        backend = next((name for name in names if name not in ("cpu", "torch", "nki-interpreter")), "cpu")
        devices = [pinning(backend, number, orders.workers) for number in range(orders.workers)]
        with Pool(devices, orders.threads, orders.memory) as pool:
            unfinished = run.work(pool)
        for place in unfinished:
            discard(batch.result(batch.items[place]))
    run.look_again()
    write_index(batch, run.rows)
    if copies is not None:
        try:
            copies.save(now=True)
        except ResourceError as error:
            raise Interrupted(f"{error}; what did not arrive is computed again by the next attempt") from error
    return Outcome(run.rows, run.mine, run.found, observer.stop_asked(), tuple(run.barred))


def _prepare_folder(batch: Batch) -> None:
    """Make the output folder and see that it can be written."""
    try:
        batch.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"cannot make the folder {batch.output}: {error.strerror}: choose another --output"
        ) from error
    require_writable(batch.output / INDEX, overwrite=True, expected_bytes=10**6)
    remove_leftovers(batch.output)


class _BatchRun:
    """Which slot computes what next, what became of it, and what to do when a worker dies."""

    def __init__(self, batch: Batch, orders: Orders, observer: Observer, copies: Copies | None) -> None:
        self.batch, self.orders, self.observer, self.copies = batch, orders, observer, copies
        known = read_index(batch)
        self.inputs = read_inputs(batch, observer.stop_asked)
        self.rows = [
            Row(item.name, item.molecule, "pending")
            if isinstance(given, InputError)
            else look_at(batch, item, known.get(item.name), given)
            for item, given in zip(batch.items, self.inputs, strict=True)
        ]
        self.mine = list(range(len(self.rows)))  # until the shard is known
        self.found = sum(row.status == "complete" for row in self.rows)
        self.barred: list[str] = []  # devices that reported a fault of the hardware
        self._barred: list[Any] = []  # their variables
        self._planned = False
        self._queue: deque[Run] = deque()
        self._costs: dict[int, float] = {}
        self._died: list[tuple[int, Task, Death]] = []  # items whose worker died, and whose need is not looked up yet
        self._elsewhere: list[int] = []  # items that other processes compute
        self._mentioned: set[int] = set()  # of them
        self._idle_since: float | None = None
        self._todo = self._done = 0
        self._cost_left = self._cost_done = 0.0
        self._began = self._written = time.monotonic()

    def work(self, pool: Pool) -> list[int]:
        """Until everything is done or the user wants to stop; places of the items that had not stopped by then."""
        pool.grow(min(self.orders.workers, sum(row.status != "complete" for row in self.rows) or 1))
        deadline = None
        while pool.slots:
            stops = self.observer.stop_asked()
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
            self._save_now_and_then(pool)
        return [slot.task[0] for slot in pool.busy if slot.function is compute_item]

    def look_again(self) -> None:
        """At what others have done, and at what was interrupted at its very end."""
        mine = set(self.mine)
        for place, row in enumerate(self.rows):
            if place not in mine or row.status == "running":
                self.rows[place] = self._look(place, row)
            elif row.status == "pending":
                found = self._look(place, row)
                self.rows[place] = found if found.status == "complete" else row

    # What comes next

    def _next(self, pool: Pool, slot: Slot) -> None:
        """Give a free slot the next item, or let it go."""
        if slot.dead:  # while it had nothing to do, so no item is to blame
            slot.death()
            slot.start()
            return
        if not self._planned:
            if not any(other.function is element_sizes for other in pool.busy):
                slot.submit(element_sizes, wanted(self.batch, self.inputs))
            return
        if self._died:
            place, task, death = self._died.pop()
            slot.submit(needed_memory, task, task=(place, death))
            return
        if slot.variables in self._barred:
            self._queue.extendleft(Run((place,), self._costs[place]) for place in reversed(slot.rest))
            pool.dismiss(slot)
            return
        while slot.rest or self._queue:
            if not slot.rest:
                slot.rest, slot.before = list(self._queue.popleft().places), None
            place = slot.rest.pop(0)
            given = self.inputs[place]
            before, slot.before = slot.before, place
            if self.rows[place].status != "complete" and isinstance(given, Input):
                task = self._task(place, given, before)
                slot.submit(compute_item, task, task=(place, task))
                return
        if not self._may_come():
            pool.dismiss(slot)

    def _may_come(self) -> bool:
        """Whether there may be more to do, once another process has let go of an item."""
        if self._elsewhere and self._idle_since is None:
            self._idle_since = time.monotonic()
        for place in list(self._elsewhere):
            if holder(self.batch.result(self.batch.items[place])) is None:
                self._queue.append(Run((place,), self._costs[place]))
            elif self._idle_since is not None and time.monotonic() - self._idle_since > GRACE:
                self._count(place)
            else:
                continue
            self._elsewhere.remove(place)
        return bool(self._elsewhere or self._queue)

    def _plan(self, table: SizeTable) -> None:
        """Decide what is this run's, and in which order."""
        chosen = works(self.batch, self.inputs, workloads(self.batch, self.inputs, table))
        self._costs = {work.place: work.cost for work in chosen}
        if self.orders.shard is not None:
            index, count = self.orders.shard
            chosen = shards(chosen, count, chained=self.orders.chained)[index]
        self._planned = True
        self.mine = [work.place for work in chosen]
        if self.copies is not None:
            count = self.copies.fetch([self.batch.items[place].name for place in self.mine])
            self.observer.note(f"items: {len(self.mine)}, files of earlier attempts: {count}")
            for place in self.mine:
                self.rows[place] = self._look(place, None)
        left = [place for place in self.mine if self.rows[place].status != "complete"]
        self._todo, self.found = len(left), len(self.mine) - len(left)
        self._cost_left = sum(self._costs[place] for place in left)
        for place in left:
            row, given = self.rows[place], self.inputs[place]
            if row.remark and row.status != "running":
                self.observer.note(f"{row.name}: {row.remark}: it is computed again")
            if isinstance(given, InputError):
                target = self.batch.result(self.batch.items[place])
                if os.path.lexists(target):  # of a molecule that could still be read
                    os.replace(target, f"{target}{PREVIOUS}")
                self._fail(place, given.exit_code, str(given), "".join(traceback.format_exception(given)))
        self._queue = deque(arrange(chosen, parts=self.orders.workers, chained=self.orders.chained))
        self._began = time.monotonic()

    def _task(self, place: int, given: Input, before: int | None) -> Task:
        item, orders = self.batch.items[place], self.orders
        chained = orders.chained and before is not None and self.rows[before].status == "complete"
        begun = f"; {START}{given.start}" if given.start else ""
        return Task(
            molecule=given.molecule,
            options=replace(item.options, memory=orders.memory, threads=orders.threads, scratch=orders.scratch),
            target=self.batch.result(item),
            failure=self.batch.failure(item),
            start=self.batch.result(self.batch.items[before]) if chained and before is not None else None,
            fingerprint=given.fingerprint,
            command=f"{orders.command}  # item {item.name}{begun}",
            workers=orders.workers,
        )

    # What became of it

    def _take(self, pool: Pool, slot: Slot, *, stopping: bool) -> None:
        """Go on from what a slot has ended.

        Raises
        ------
        Dfmp2Error : workers cannot start, or cannot do what comes before all items
        """
        function, task, future = slot.release()
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            self._take_death(pool, slot, function, task, stopping=stopping)
        elif function is load_libraries or function is element_sizes:
            if error is not None:
                raise error
            if function is element_sizes:
                self._plan(future.result())
        elif function is needed_memory:
            place, death = task
            need = None if error is not None else future.result()
            self._fail(place, death.exit_code, death.message(need), death.errors)
        elif error is not None:  # a fault in dfmp2: what the process holds is not to be trusted any more
            text = "".join(traceback.format_exception(error))
            self._fail(task[0], FAULT, f"a fault in dfmp2: {type(error).__name__}: {error}", text)
            slot.close()
            slot.start()
        else:
            self._take_reply(slot, task[0], future.result(), stopping=stopping)

    def _take_reply(self, slot: Slot, place: int, reply: Reply, *, stopping: bool) -> None:
        item, given = self.batch.items[place], self.inputs[place]
        row = Row(item.name, item.molecule, reply.status, seconds=reply.seconds)
        for text in reply.notes:
            self.observer.note(f"{item.name}: {text}")
        if reply.status == "complete" and isinstance(given, Input):
            output, numbers = str(self.batch.result(item)), reply.numbers
            row = replace(row, exit_code=0, output=output, numbers=numbers, stamp=reply.stamp)
            row = replace(row, fingerprint=given.fingerprint)
            if reply.found:
                self.observer.note(f"{item.name}: another process has finished it meanwhile")
        elif reply.status == "failed":
            row = replace(row, exit_code=reply.code, error=reply.message)
        elif reply.status == "running":
            row = replace(row, remark=reply.message)
            self._elsewhere.append(place)
            if place not in self._mentioned:
                self._mentioned.add(place)
                self.observer.note(f"{item.name}: {reply.message}: left to it")
        self.rows[place] = row
        if row.status in ("complete", "failed"):
            self._count(place)
        elif row.status == "pending" and not stopping:  # somebody has terminated the worker, not the batch
            self._queue.appendleft(Run((place,), self._costs[place]))
        if reply.device_fault and slot.variables not in self._barred:
            # The next item would fail on it as well, or be wrong.
            self._barred.append(slot.variables)
            device = ", ".join(f"{name}={value}" for name, value in slot.variables.items())
            self.barred.append(device or "the device of all workers")
            self.observer.note(
                f"{self.barred[-1]} reported a hardware fault: it gets no more items, others do the rest"
            )

    def _take_death(
        self, pool: Pool, slot: Slot, function: Callable[..., Any] | None, task: Any, *, stopping: bool
    ) -> None:
        """A worker died: its item fails, unless it was complete or somebody asked the worker to end."""
        death = slot.death()
        if function is compute_item:
            place = task[0]
            discard(self.batch.result(self.batch.items[place]))
            row = self._look(place, None)
            if row.status == "complete":
                self.rows[place] = row
                self._count(place)
            elif death.terminated:
                if not stopping:
                    self._queue.appendleft(Run((place,), self._costs[place]))
            else:
                self._died.append((place, task[1], death))
        elif function is needed_memory:
            self._fail(task[0], task[1].exit_code, task[1].message(None), task[1].errors)
        elif not death.terminated and not stopping:
            raise Dfmp2Error(f"a worker cannot start (exit code {death.code}): {death.errors.strip()[-2000:]}")
        if stopping:
            pool.slots.remove(slot)
        else:
            slot.start()

    def _fail(self, place: int, code: int, message: str, text: str) -> None:
        """Note the failure of an item, which its worker could not do."""
        item = self.batch.items[place]
        try:
            write_failure(self.batch.failure(item), code, message, text)
        except ResourceError as error:
            self.observer.note(f"{item.name}: its error file is missing: {error}")
        self.rows[place] = Row(item.name, item.molecule, "failed", exit_code=code, error=message)
        self._count(place)

    def _count(self, place: int) -> None:
        """An item has ended."""
        self._done += 1
        self._cost_done += self._costs[place]
        self._cost_left -= self._costs[place]
        spent = time.monotonic() - self._began
        left = max(0.0, self._cost_left) * spent / self._cost_done if self._cost_done > 0 else None
        self.observer.item(self.rows[place], self._done, self._todo, left)

    def _look(self, place: int, known: Row | None) -> Row:
        """The state of an item as its files say it."""
        given = self.inputs[place]
        return look_at(self.batch, self.batch.items[place], known, None if isinstance(given, InputError) else given)

    def _save_now_and_then(self, pool: Pool) -> None:
        now = time.monotonic()
        if self.copies is not None:
            try:
                self.copies.save(now=False)
            except Dfmp2Error as error:
                self.observer.note(f"warning: {error}; it is tried again")
        if now - self._written < INDEX_EVERY:
            return
        self._written = now
        try:
            write_index(self.batch, self.rows)
        except ResourceError as error:
            self.observer.note(f"batch.json could not be written ({error}); the results do not depend on it")
