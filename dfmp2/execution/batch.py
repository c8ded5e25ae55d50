"""Run a batch: whatever is not complete is computed, each item by itself, and nothing complete again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from dfmp2.backends.registry import accelerator
from dfmp2.errors import Dfmp2Error, InputError, Interrupted, ResourceError
from dfmp2.execution.manifest import COMPILED, Batch
from dfmp2.execution.pool import Died, Pool, local_pool
from dfmp2.execution.shards import Work, arrange, memory_needed, shards, works
from dfmp2.execution.state import (
    INDEX,
    Input,
    Row,
    look,
    look_at,
    read_inputs,
    remove_leftovers,
    table,
    write_index,
)
from dfmp2.execution.worker import PREVIOUS, Task, compute_item, failed
from dfmp2.host.files import require_writable
from dfmp2.host.locks import discard
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options, in_python
from dfmp2.output.hdf5 import read
from dfmp2.output.table import UNITS, frame
from dfmp2.planning.plan import trainium_shapes
from dfmp2.progress import Listener

if TYPE_CHECKING:
    from dfmp2.execution.aws import S3Copies

PATIENCE = 8.0  # s that workers have to stop
GRACE = 15.0  # s that items of other processes are waited for: the workers of a batch that was killed end within that
INDEX_EVERY = 5.0  # s between two versions of batch.json

Piece = tuple[int | None, list[int]]  # places of items to compute one after the other, and the place of the one before


class Observer(Protocol):
    """What a run reports (an item has ended, about `left` s remain), and how often the user has asked to stop."""

    def note(self, text: str) -> None: ...
    def item(self, row: Row, done: int, total: int, left: float | None) -> None: ...
    def stop_asked(self) -> int: ...


class BatchRun:
    """Which slot computes what next, and what became of it.

    Parameters
    ----------
    shard : (I, N), None for everything
    chained : start the SCF from the orbitals of the item before, of the same atoms
    scratch : folder for what does not fit, None for the default
    command : for the provenance
    copies : of the files of this run's items where its folder does not outlive it, None where it does

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
        copies: S3Copies | None = None,
    ) -> None:
        self.batch, self._observer, self._copies = batch, observer, copies
        self._shard, self._chained, self._scratch, self._command = shard, chained, scratch, command
        self._inputs = read_inputs(batch, observer.stop_asked)
        self.rows = look(batch, self._inputs)
        self.mine = list(range(len(self.rows)))  # until the shard is known
        self.found = sum(row.status == "complete" for row in self.rows)
        self.barred: list[str] = []
        self._queue: deque[Piece] = deque()  # what may begin
        self._elsewhere: dict[int, float] = {}  # items that other processes compute, and since when that is known
        self._works: list[Work] = []
        self._todo = self._done = 0
        self._cost_left = self._cost_done = 0.0
        self._began = self._written = time.monotonic()

    def own(self, status: str) -> list[Row]:
        """Rows of this run in a state."""
        return [self.rows[place] for place in self.mine if self.rows[place].status == status]

    def compute(self, pool: Pool, workers: int) -> None:
        """Compute what is not complete with up to `workers` workers of `pool`; the failure of an item is in its row."""
        output = self.batch.output
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(
                f"cannot make the folder {output}: {error.strerror}: choose another --output"
            ) from error
        require_writable(output / INDEX, overwrite=True, expected_bytes=10**6)
        remove_leftovers(output)
        left = sum(row.status != "complete" for row in self.rows)
        if left or self._copies is not None:
            with pool:
                pool.grow(min(workers, left or 1))
                self._plan(min(workers, pool.most))  # while the workers load their libraries
                unfinished = self._work(pool)
            for place in unfinished:
                discard(self.batch.result(self.batch.items[place]))
        elif self._shard is not None:
            self._plan(workers)
        mine = set(self.mine)
        for place, row in enumerate(self.rows):  # what others have done, and what was stopped when it was complete
            found = self._look(place) if place not in mine or row.status in ("running", "pending") else row
            if place not in mine or row.status == "running" or found.status == "complete":
                self.rows[place] = found
        write_index(self.batch, self.rows)
        if self._copies is not None:
            try:
                self._copies.save(now=True)
            except ResourceError as error:
                raise Interrupted(f"{error}; what did not arrive is computed again by the next attempt") from error

    def _work(self, pool: Pool) -> list[int]:
        """Until everything is done or the user wants to stop; places of the items that had not stopped by then."""
        deadline = None
        while (pool.busy or self._queue) and (pool.slots or not self.barred):
            stops = self._observer.stop_asked()
            if stops and deadline is None:
                deadline = time.monotonic() + PATIENCE
                for slot in pool.busy:
                    slot.terminate()
            if stops > 1 or (deadline is not None and (not pool.busy or time.monotonic() > deadline)):
                break
            for slot in pool.free if deadline is None else ():
                self._next(pool, slot)
            for slot in pool.finished():
                self._take(slot, stopping=deadline is not None)
            self._save_now_and_then()
        return [slot.task[1][0] for slot in pool.busy]

    # What comes next

    def _plan(self, workers: int) -> None:
        """Decide what is this run's, and in which order."""
        self._works = chosen = works(self.batch, self._inputs)
        if self._shard is not None:
            index, count = self._shard
            chosen = shards(chosen, count, chained=self._chained)[index]
        self.mine = [work.place for work in chosen]
        if self._copies is not None:
            count = self._copies.fetch([self.batch.items[place].name for place in self.mine])
            self._observer.note(f"items: {len(self.mine)}, files of earlier attempts: {count}")
            for place in self.mine:
                self.rows[place] = self._look(place)
        left = [place for place in self.mine if self.rows[place].status != "complete"]
        self._todo, self.found = len(left), len(self.mine) - len(left)
        self._cost_left = sum(self._works[place].cost for place in left)
        for place in left:
            row, given = self.rows[place], self._inputs[place]
            if isinstance(given, InputError):
                target, text = self.batch.result(self.batch.items[place]), "".join(traceback.format_exception(given))
                if os.path.lexists(target):  # of a molecule that could still be read
                    os.replace(target, f"{target}{PREVIOUS}")
                failure = failed(Row(row.name, row.molecule), target, given.exit_code, str(given), text)
                self._end((None, [place]), failure)
            elif row.remark and row.status != "running":
                self._observer.note(f"{row.name}: {row.remark}: it is computed again")
        pieces = arrange(chosen, parts=workers, chained=self._chained)
        self._queue.extend((None, [work.place for work in piece]) for piece in pieces)
        self._began = time.monotonic()

    def _next(self, pool: Pool, slot: Any) -> None:
        """Give a free slot the next item."""
        while self._queue and slot.device not in self.barred:
            before, (place, *rest) = piece = self._queue.popleft()
            given = self._inputs[place]
            if self.rows[place].status != "complete" and isinstance(given, Input):
                slot.submit(compute_item, self._task(slot, before, place, given), task=piece)
                return
            if rest:
                self._queue.appendleft((place, rest))
        if slot.device in self.barred:
            pool.dismiss(slot)
        else:
            slot.close()  # it holds no memory, and begins again should there be something to do

    def _task(self, slot: Any, before: int | None, place: int, given: Input) -> Task:
        start, output = None, self.batch.output.absolute()  # a worker may have another working directory
        if before is not None and self.rows[before].status == "complete":
            start = self.batch.result(self.batch.items[before]).absolute()
        share = {"memory": slot.memory, "threads": slot.threads, "scratch": self._scratch}
        return Task(self.batch.items[place], given, output, share, start, self._command, slot.token)

    # What became of it

    def _take(self, slot: Any, *, stopping: bool) -> None:
        """Go on from what a slot has ended; Dfmp2Error where workers cannot start."""
        piece: Piece = slot.task
        place = piece[1][0]
        try:
            row = slot.result()
        except Died as death:
            row = self._after_death(slot, place, death)
        if row.status == "complete":
            row = replace(row, output=str(self.batch.result(self.batch.items[place])))
        if row.status == "running" and place not in self._elsewhere:
            self._elsewhere[place] = time.monotonic()
            self._observer.note(f"{row.name}: {row.remark}: left to it")
        if row.status == "running" and (self._queue or time.monotonic() - self._elsewhere[place] < GRACE):
            self._queue.append(piece)  # it may have ended when the others are done
            self.rows[place] = row
        elif row.status != "pending":
            self._end(piece, row)
        elif not stopping:  # somebody has terminated the worker, not the batch
            self._queue.appendleft(piece)
        if row.device_fault and slot.device not in self.barred:  # the next item would fail on it as well, or be wrong
            self.barred.append(slot.device)
            self._observer.note(f"{slot.device} reported a hardware fault: it gets no more items, others do the rest")

    def _after_death(self, slot: Any, place: int, death: Died) -> Row:
        """A worker died: its item fails, unless it was complete or somebody asked the worker to end."""
        item, load = self.batch.items[place], self._works[place].load
        discard(self.batch.result(item))
        row = self._look(place)
        if row.status == "complete":
            return row
        row = Row(item.name, item.molecule)
        need = None if load is None else memory_needed(load, slot.threads)
        given = death.exit_code, death.message(need), death.errors
        return row if death.terminated else failed(row, self.batch.result(item), *given)

    def _end(self, piece: Piece, row: Row) -> None:
        """The first item of a piece has ended: the next one may begin."""
        _, (place, *rest) = piece
        for text in row.notes:
            self._observer.note(f"{row.name}: {text}")
        self.rows[place] = row
        self._done += 1
        self._cost_done += self._works[place].cost
        self._cost_left -= self._works[place].cost
        spent = time.monotonic() - self._began
        left = max(0.0, self._cost_left) * spent / self._cost_done if self._cost_done > 0 else None
        self._observer.item(row, self._done, self._todo, left)
        if rest:
            self._queue.appendleft((place, rest))

    def _look(self, place: int) -> Row:
        """The state of an item as its files say it."""
        return look_at(self.batch, self.batch.items[place], self._inputs[place])

    def _save_now_and_then(self) -> None:
        if self._copies is not None:
            try:
                self._copies.save(now=False)
            except Dfmp2Error as error:
                self._observer.note(f"warning: {error}; it is tried again")
        if time.monotonic() - self._written > INDEX_EVERY:
            self._written = time.monotonic()
            try:
                write_index(self.batch, self.rows)
            except ResourceError as error:
                self._observer.note(f"batch.json could not be written ({error}); the results do not depend on it")


class BatchResult(Mapping[str, MP2Result]):
    """What became of a batch: the results of its complete items by name, each read when it is asked for.

    Attributes
    ----------
    rows : all items, also those that failed (`dfmp2.execution.state.Row`)
    output : folder of the results
    """

    def __init__(self, batch: Batch, rows: Sequence[Row]) -> None:
        self.rows, self.output = tuple(rows), batch.output

    @property
    def failed(self) -> dict[str, str]:
        """Message of each item that failed, by name."""
        return {row.name: in_python(row.error or "") for row in self.rows if row.status == "failed"}

    def to_dataframe(self) -> Any:
        """A row for each item as a pandas DataFrame, whose index is its name; units are in `attrs["units"]`.

        Raises
        ------
        InputError : pandas is not installed
        """
        rows = table(self.rows)
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "name"}
        return frame(columns, UNITS, [row.name for row in self.rows])

    def __getitem__(self, name: str) -> MP2Result:
        row = next((row for row in self.rows if row.name == name), None)
        if row is None or row.output is None:
            why = "there is no such item" if row is None else self.failed.get(name, row.status)
            raise KeyError(f"{name}: {why}")
        return read(row.output)

    def __iter__(self) -> Iterator[str]:
        return (row.name for row in self.rows if row.status == "complete")

    def __len__(self) -> int:
        return sum(row.status == "complete" for row in self.rows)

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"BatchResult({len(self)} of {len(self.rows)} items complete{failed} -> {self.output})"

    def __str__(self) -> str:
        lines = [f"{'item':<24}{'status':<10}{'E(MP2, total) / Eh':>18}"]
        for row in self.rows:
            energy = row.numbers.get("mp2_total_energy")
            said = f"{energy:18.10f}" if energy is not None else self.failed.get(row.name, "")
            lines.append(f"{row.name:<24}{row.status:<10}{said}")
        return "\n".join([*lines, repr(self)])


class _Heard:
    """A listener that hears of the items of a batch, and never asks it to stop: KeyboardInterrupt does."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def note(self, text: str) -> None:
        self._listener.stage(text)

    def item(self, row: Row, done: int, total: int, left: float | None) -> None:
        self._listener.time_left(left)
        if row.status == "failed":
            self._listener.warning(f"{row.name} failed with code {row.exit_code}: {row.error}")
        self._listener.step(done, total, "items")

    def stop_asked(self) -> int:
        return 0


def compute_batch(
    batch: Batch, workers: int, machine: Options, listener: Listener, *, chained: bool = False
) -> BatchResult:
    """Compute what is not complete by processes of this host.

    Parameters
    ----------
    machine : its memory, threads and scratch win over those of the batch

    Raises
    ------
    Dfmp2Error : before anything is computed; the failure of an item is in its row
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"--workers {workers!r}: expected a whole number, 1 or more")
    common = batch.items[0].options
    threads, memory = machine.threads or common.threads, machine.memory or common.memory
    scratch = machine.scratch or common.scratch
    run = BatchRun(batch, _Heard(listener), chained=chained, scratch=scratch, command="dfmp2.batch")
    run.compute(local_pool(batch.asks_for(*COMPILED, "cuda", "auto") or "cpu", workers, threads, memory), workers)
    return BatchResult(batch, run.rows)


def compile_programs(batch: Batch, copies: S3Copies | None, stop_asked: Callable[[], int]) -> int:
    """Compile what the batch will launch, in a job of its own before its array: else every task does the same.

    One program serves a bucket of sizes (virtuals to 32, fitting functions to 256). Returns the exit code of the first
    `dfmp2 kernels warmup` that fails, else 0; Interrupted when stopped, with what was compiled kept.
    """
    lane, buckets = str(batch.asks_for(*COMPILED)), dict[Any, list[str]]()
    for item, work in zip(batch.items, works(batch, read_inputs(batch)), strict=True):
        spins = trainium_shapes(work.load) if work.load and item.options.backend in COMPILED else ()
        if spins:
            beta = ["--beta", f"{spins[1].nocc},{spins[1].nvir}"] if len(spins) > 1 else []
            shape = ["--shape", f"{spins[0].nocc},{spins[0].nvir},{spins[0].naux}", *beta]
            buckets.setdefault(accelerator().bucket(spins), shape)
    for _, shape in sorted(buckets.items()):
        command = [sys.executable, "-P", "-m", "dfmp2", "kernels", "warmup", "--lane", lane, *shape]
        # A session of its own: a signal reaches it once, from here.
        with subprocess.Popen(command, start_new_session=True) as child:
            while child.poll() is None and not stop_asked():
                time.sleep(0.2)
            child.terminate()
        if copies is not None:
            copies.save(now=True)
        if stop_asked():
            raise Interrupted("stopped while kernels were compiled: the same command goes on")
        if child.returncode:
            return child.returncode
    return 0
