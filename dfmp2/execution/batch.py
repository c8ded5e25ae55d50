"""Run a batch: whatever is not complete is computed, each item by itself, and nothing complete again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from dfmp2.backends.registry import accelerator
from dfmp2.errors import Dfmp2Error, InputError, Interrupted, ResourceError
from dfmp2.execution.items import (
    INDEX,
    STATUS_KEYS,
    Row,
    compute,
    failed,
    look,
    look_at,
    read_inputs,
    write_index,
)
from dfmp2.execution.manifest import COMPILED, Batch
from dfmp2.execution.pool import Call, Died, Pool, local_pool
from dfmp2.execution.shards import Work, arrange, memory_needed, shards, works
from dfmp2.host.files import require_writable
from dfmp2.host.locks import discard
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options, in_python
from dfmp2.output.hdf5 import read
from dfmp2.output.table import UNITS, frame
from dfmp2.planning.plan import trainium_shapes
from dfmp2.progress import Listener

if TYPE_CHECKING:
    from dfmp2.execution.aws import Copies

PATIENCE = 8.0  # s that workers have to stop
GRACE = 15.0  # s that items of other processes are waited for: the workers of a batch that was killed end within that
INDEX_EVERY = 5.0  # s between two versions of batch.json


class Observer(Protocol):
    """What a run reports (an item has ended, about `left` s remain), and how often the user has asked to stop."""

    def note(self, text: str) -> None: ...
    def item(self, row: Row, done: int, total: int, left: float | None) -> None: ...
    def stop_asked(self) -> int: ...


@dataclass(eq=False)
class BatchRun:
    """Which item is computed next, and what became of it.

    Attributes
    ----------
    shard : (I, N), None for everything
    chained : start the SCF from the orbitals of the item before, of the same atoms
    scratch : folder for what does not fit, None for the default
    command : for the provenance
    copies : of the files of this run's items where its folder does not outlive it, None where it does
    rows : items of this run by their places in the batch
    found : how many of them were complete before
    fault : why a device must not be used any more, which ends the run; "" where none must
    """

    batch: Batch
    observer: Observer
    shard: tuple[int, int] | None = None
    chained: bool = False
    scratch: str | None = None
    command: str = "dfmp2 batch run"
    copies: Copies | None = None
    rows: dict[int, Row] = field(default_factory=dict)
    found: int = 0
    fault: str = ""
    _queue: deque[Call] = field(default_factory=deque)  # what may begin; tags are its place, and those to follow it
    _elsewhere: dict[int, float] = field(default_factory=dict)  # items of other processes, since when that is known
    _ended: int = 0
    _cost_left: float = 0.0
    _cost_done: float = 0.0

    def own(self, status: str) -> list[Row]:
        """Rows of this run in a state."""
        return [row for row in self.rows.values() if row.status == status]

    def compute(self, pool: Pool, workers: int) -> None:
        """Compute what is not complete with up to `workers` workers of `pool`; the failure of an item is in its row.

        Raises
        ------
        Interrupted : copies could not be made
        ResourceError : the output folder cannot be written
        """
        batch, output = self.batch, self.batch.output
        self._inputs = read_inputs(batch)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(
                f"cannot make the folder {output}: {error.strerror}: choose another --output"
            ) from error
        require_writable(output / INDEX, overwrite=True, expected_bytes=10**6)
        cost: list[Work] = []
        mine: Sequence[int] = range(len(batch.items))
        if self.shard is not None:
            cost, (index, count) = works(self._inputs), self.shard
            mine = [work.place for work in shards(cost, count, chained=self.chained)[index]]
        if self.copies is not None:
            count = self.copies.fetch_items([batch.items[place].name for place in mine])
            self.observer.note(f"items: {len(mine)}, files of earlier attempts: {count}")
        self.rows = dict(zip(mine, look(batch, [self._inputs[place] for place in mine]), strict=True))
        left = [place for place in mine if self.rows[place].status != "complete"]
        self.found = len(mine) - len(left)
        if left:
            with pool:
                pool.grow(min(workers, len(left)))
                self._works = cost or works(self._inputs)  # while the workers load their libraries
                self._plan(left, len(pool.slots))
                unfinished = self._work(pool)
            for call in unfinished:
                discard(call.given[0].item.target)
        for place, row in self.rows.items():
            if row.status in ("running", "pending"):  # it was stopped when it was complete, or others have completed it
                self.rows[place] = look_at(self._inputs[place])
        write_index(batch, list(self.rows.values()))
        if self.copies is not None:
            try:
                self.copies.save(now=True)
            except ResourceError as error:
                raise Interrupted(f"{error}; what did not arrive is computed again by the next attempt") from error

    def _plan(self, left: list[int], workers: int) -> None:
        """Decide in which order items are computed."""
        for place in left:
            row = self.rows[place]
            if row.remark and row.status != "running" and self._inputs[place].fingerprint:
                self.observer.note(f"{row.name}: {row.remark}: it is computed again")
        self._cost_left = sum(self._works[place].cost for place in left)
        for piece in reversed(arrange([self._works[k] for k in self.rows], parts=workers, chained=self.chained)):
            self._begin(None, [work.place for work in piece])
        self._began = self._written = time.monotonic()

    def _begin(self, before: int | None, places: list[int]) -> None:
        """Let the first of these items that is not complete come next; the one `before` it may give orbitals."""
        while places and self.rows[places[0]].status == "complete":
            before, *places = places
        if places:
            start = None
            if before is not None and self.rows[before].status == "complete":
                start = self.batch.items[before].target
            self._queue.appendleft(Call(compute, (self._inputs[places[0]], start, self.scratch, self.command), places))

    def _work(self, pool: Pool) -> list[Call]:
        """Until everything is done or the user wants to stop; what had not stopped by then."""
        deadline = None
        while pool.busy or (self._queue and deadline is None):
            stops = self.observer.stop_asked()
            if deadline is None and (stops or self.fault):
                deadline = time.monotonic() + PATIENCE
                for slot in pool.busy:
                    slot.terminate()
            if stops > 1 or (deadline is not None and time.monotonic() > deadline):
                break
            for call, found in pool.work(self._queue if deadline is None else deque()):
                self._take(call, found, stopping=deadline is not None)
            self._save_now_and_then()
        return [slot.call for slot in pool.busy]

    def _take(self, call: Call, found: Row | Died, *, stopping: bool) -> None:
        """Go on from what became of an item."""
        place, *rest = call.tag
        row = self._after_death(place, found) if isinstance(found, Died) else found
        if row.status == "running":
            if place not in self._elsewhere:
                self._elsewhere[place] = time.monotonic()
                self.observer.note(f"{row.name}: {row.remark}: left to it")
            self.rows[place] = row
            if self._queue or time.monotonic() - self._elsewhere[place] < GRACE:
                self._queue.append(call)  # it may have ended when the others are done
                return
        elif row.status == "pending":
            if not stopping:  # somebody has terminated the worker, not the batch
                self._queue.appendleft(call)
            return
        for text in row.notes:
            self.observer.note(f"{row.name}: {text}")
        if row.device_fault:  # the next item would fail on it as well, or be wrong
            self.fault = str(row.error)
        self.rows[place] = row
        self._ended += 1
        self._cost_done += self._works[place].cost
        self._cost_left -= self._works[place].cost
        spent = time.monotonic() - self._began
        left = max(0.0, self._cost_left) * spent / self._cost_done if self._cost_done > 0 else None
        self.observer.item(row, self._ended, len(self.rows) - self.found, left)
        self._begin(place, rest)

    def _after_death(self, place: int, death: Died) -> Row:
        """A worker died: its item fails, unless it was complete or somebody asked the worker to end."""
        item, load = self.batch.items[place], self._works[place].load
        discard(item.target)
        row = look_at(self._inputs[place])
        if row.status == "complete" or death.terminated:
            return row if row.status == "complete" else replace(row, status="pending")
        need = memory_needed(load, death.share.threads) if load and death.share else None
        return failed(item, death.exit_code, death.message(need), death.errors)

    def _save_now_and_then(self) -> None:
        """Write what others see of the run, where it is due; the results do not depend on it."""
        try:
            if self.copies is not None:
                self.copies.save(now=False)
            if time.monotonic() - self._written > INDEX_EVERY:
                self._written = time.monotonic()
                write_index(self.batch, list(self.rows.values()))
        except Dfmp2Error as error:
            self.observer.note(f"warning: {error}; it is tried again")


class BatchResult(Mapping[str, MP2Result]):
    """What became of a batch: the results of its complete items by name, each read when it is asked for.

    Attributes
    ----------
    rows : all items, also those that failed (`dfmp2.execution.items.Row`)
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
        columns = {name: [getattr(row, name) for row in self.rows] for name in (*STATUS_KEYS[1:], "energy")}
        columns["mp2_total_energy"] = columns.pop("energy")
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
            said = f"{row.energy:18.10f}" if row.energy is not None else self.failed.get(row.name, "")
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
    return BatchResult(batch, [run.rows[place] for place in sorted(run.rows)])


def compile_programs(batch: Batch, copies: Copies | None, stop_asked: Callable[[], int]) -> int:
    """Compile what the batch will launch, in a job of its own before its array: else every task does the same.

    One program serves a bucket of sizes (virtuals to 32, fitting functions to 256). Returns the exit code of the first
    `dfmp2 kernels warmup` that fails, else 0; Interrupted when stopped, with what was compiled kept.
    """
    lane, buckets = str(batch.asks_for(*COMPILED)), dict[Any, list[str]]()
    for item, work in zip(batch.items, works(read_inputs(batch)), strict=True):
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
