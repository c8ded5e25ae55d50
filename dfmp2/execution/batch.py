"""Run a batch: compute every incomplete item, independently of the others, in an order and on a
shard that follow from its cost.

Costs are forecast by the plan (`dfmp2.planning.time`) at fixed rates, the same on every host, so
that the shards of a batch agree on who computes what. Large items come first, so that none of them
is left over at the end. Items are assigned largest first, each to the shard with the least work so
far.

The items of each shard are also listed in a file, so that a task of an array job reads only its
own:

    OUTPUT/batch.shards/I-of-N.json     manifest with size and time of change, options of the items

`batch submit` writes these lists, and `batch run MANIFEST --output OUTPUT --shard I/N` looks for
them. An outdated one is not used; the shard is then determined from the whole batch.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from dfmp2.errors import (
    BackendUnavailable,
    Dfmp2Error,
    DiskFull,
    InputError,
    Message,
    Option,
    ResourceError,
)
from dfmp2.execution.items import (
    Compute,
    Input,
    ItemStatus,
    compute_item,
    failed,
    index_rows,
    inputs_to_share,
    look,
    look_at,
    read_index,
    said_energy,
)
from dfmp2.execution.manifest import Batch, BatchItem, options_of_item
from dfmp2.execution.pool import Call, Died, Pool, WorkerShare
from dfmp2.host import resources
from dfmp2.host.files import (
    discard_lock,
    make_folder,
    put,
    read_json,
    require_place,
    settled,
    stamp,
)
from dfmp2.host.scratch import choose_root
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.mp2.identity import FREE
from dfmp2.options import ALL, Options
from dfmp2.options.basis_parts import parse_parts
from dfmp2.output.batch_index import IndexWriter, index_name
from dfmp2.output.checkpoint import seconds_text
from dfmp2.planning import plan
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import Workload
from dfmp2.planning.time import Timings, process_count, time_text
from dfmp2.progress import Listener, Silent
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
    blocked : the item that ended the run because nothing can be written into the output folder
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
    blocked: ItemStatus | None = None
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
        require_place(self.batch.output / index_name(self.shard))
        known = read_index(self.batch, self.shard)
        rows = look([self.inputs[place] for place in self.mine], known)
        self.rows = dict(zip(self.mine, rows, strict=True))
        self._indexed = known
        return [place for place in self.mine if self.rows[place].status != "complete"]

    @cached_property
    def _works(self) -> list[Work]:
        """The work of all items."""
        return works(self.inputs)

    def require_surroundings(self) -> None:
        """Raise InputError for a scratch folder or a variable that would fail every item alike."""
        if self.left:
            choose_root(self.scratch)
            seconds_text()

    def suitable_workers(self, cores: int, memory: int | None) -> int:
        """The number of workers for the incomplete items on `cores` cores, with `memory` bytes for
        all."""
        if cores == 1 or not self.left:
            return 1
        largest = max(self.left, key=lambda place: self._works[place].cost)
        share = WorkerShare(1, memory or resources.usable_memory())
        needed = memory_needed(self.inputs[largest], share)
        if needed is None:
            return 1
        costs = [self._works[place].cost for place in self.left]
        return process_count(costs, needed[1], memory, cores)

    def compute(self, pool: Pool, workers: int) -> None:
        """Compute incomplete items with up to `workers` workers of `pool`; failures are recorded in
        the rows.

        Raises
        ------
        ResourceError : the output folder cannot be written
        """
        self.complete_before = len(self.mine) - len(self.left)
        with closing(IndexWriter(self.batch.output, self.shard)) as self._index:
            self._add_to_index(self.rows.values())
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
        """Add rows to the index that it does not hold yet; a failure is only reported, since results
        do not depend on the index."""
        new = [row for row in rows if self._indexed.get(row.name) != row]
        try:
            self._index.append(index_rows(new))
        except ResourceError as error:
            self.listener.stage(str(error))
            return
        self._indexed.update({row.name: row for row in new})

    def unwritable(self, blocked: ItemStatus) -> ResourceError:
        """The error for an output folder that can no longer be written, with advice."""
        left = len(self.rows) - len(self.in_state("complete"))
        advice = "make the folder writable"
        if blocked.blocked is DiskFull:
            advice = "make room on that disk"
        return (blocked.blocked or ResourceError)(
            f"{left} of {counted_text(len(self.rows), 'item')} not complete: {blocked.error}. "
            f"Complete items are kept: {advice} and repeat the command"
        )

    def _plan(self, left: list[int], workers: int) -> None:
        """Decide the order in which items are computed."""
        for place in left:
            row = self.rows[place]
            refused = isinstance(self.inputs[place].molecule, InputError)
            if row.remark and row.status != "running" and not refused:
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
            if deadline is None and (stops or self.fault or self.blocked):
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
        """Let an item that was stopped begin again, unless the batch stops or nothing can be
        written."""
        if row.blocked is not None:  # the next item could not be written either
            self.blocked = self.blocked or row
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
            message = self.batch.worded(row.error or "")
            if len(message) > LONGEST_MESSAGE:
                message = shorten(message, LONGEST_MESSAGE, placeholder=" ...")
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
        item = self.batch.items[place]
        discard_lock(item.target)
        row = look_at(self.inputs[place])
        if row.status == "complete":
            return row
        if death.terminated:
            return replace(row, status="pending")
        need = None
        if death.share is not None:
            need = memory_needed(self.inputs[place], death.share)
        return failed(item, death.exit_code, death.message(need), death.errors)


# --- cost, order and shards of items --------------------------------------------------------------

PER_ITEM = 0.1  # s in addition to the calculation itself: reading, planning, writing
MOST_SHARDS = 100_000
SCHEDULERS = (  # variables: index, first index (0 if there is none), count
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"),
    ("AWS_BATCH_JOB_ARRAY_INDEX", "", "AWS_BATCH_JOB_ARRAY_SIZE"),
)


class Work(NamedTuple):
    """An item as seen by the scheduler: index, cost in s, workload (None: it will be rejected).

    Items of one `series` may start from each other's orbitals.
    """

    place: int
    cost: float
    series: str
    load: Workload | None = None


def works(inputs: Sequence[Input], loads: Mapping[str, Workload] | None = None) -> list[Work]:
    """The work of all items. Sizes follow from atoms and options, so each composition is examined
    only once, and not at all if it is among the `loads` that are known."""
    import_pyscf()
    found, known = [], dict(loads or {})
    for place, (item, molecule, *_) in enumerate(inputs):
        series, load = f"alone {place}", None
        if not isinstance(molecule, InputError):
            composition = composition_of(molecule, item.options)
            with suppress(Dfmp2Error):  # the item itself will report the error
                load = known[composition] = known.get(composition) or plan.workload_sizes(
                    molecule, item.options, Silent()
                )
                series = f"{composition} {molecule.labels}"
        if load is not None and item.task != "energy":
            load = replace(load, task=item.planned_task)
        found.append(Work(place=place, cost=shard_cost(load), series=series, load=load))
    return found


def composition_of(molecule: Molecule, options: Options) -> str:
    """What the sizes of a calculation follow from: charge, multiplicity, options and atoms, in any
    order unless the basis names some by their number."""
    asked = sorted((name, value) for name, value in asdict(options).items() if name not in FREE)
    atoms = list(molecule.labels)
    if not parse_parts(options.basis).of_atoms:
        atoms.sort()
    return repr((atoms, molecule.charge, molecule.multiplicity, asked))


def shard_cost(load: Workload | None) -> float:
    """Predicted time of an item at the rates of all hosts, s; 0 for one that will be rejected."""
    if load is None:
        return 0.0
    rates = Rates()
    return time_in_worker(time_text(load, rates), rates)


def time_in_worker(timings: Timings, rates: Rates) -> float:
    """Predicted time of an item in a worker, which has already loaded its libraries, s."""
    return PER_ITEM + timings.total - rates.start


def plan_item(item: BatchItem, molecule: Molecule, share: WorkerShare) -> plan.PlannedRun:
    """The plan of an item in a worker, at the rates known so far; what only the computing host has,
    a device or a scratch folder, is replaced by what this one has.

    Raises
    ------
    Dfmp2Error : the item will be rejected, for any reason except memory
    """
    options = replace(item.options, threads=share.threads, memory=share.memory)
    if options.scratch is not None and not os.path.isdir(options.scratch):
        options = replace(options, scratch=None)
    foresee = partial(plan.foresee_unmeasured, molecule, task=item.planned_task, doubt_units=False)
    try:
        return foresee(options=options, listener=Silent())[1]
    except BackendUnavailable:
        options = replace(options, backend="cpu", precision="auto", transform="auto")
        return foresee(options=options, listener=Silent())[1]


def memory_needed(given: Input, share: WorkerShare) -> tuple[int, int] | None:
    """Bytes that a worker needs for an item, with large arrays on disk and with everything in
    memory; None if it will be rejected."""
    if isinstance(given.molecule, InputError):
        return None
    try:
        needed = plan_item(given.item, given.molecule, share).plan.memory
    except Dfmp2Error:
        return None
    return needed.least, needed.comfortable


def arrange(items: Sequence[Work], *, parts: int, chained: bool) -> list[list[Work]]:
    """Groups of items that one worker computes in sequence, in the order in which they should
    begin.

    A chained series is cut into `parts`, so that as many workers can share it.
    """
    series: dict[str | int, list[Work]] = {}
    for item in sorted(items):
        series.setdefault(item.series if chained else item.place, []).append(item)
    pieces = []
    for members in series.values():
        length = -(-len(members) // parts)
        pieces += [members[first : first + length] for first in range(0, len(members), length)]
    return sorted(pieces, key=lambda piece: (-_cost(piece), piece[0].place))


def shards(items: Sequence[Work], count: int, *, chained: bool = False) -> list[list[Work]]:
    """The items of each shard, in manifest order; the same on every host."""
    filled: list[list[Work]] = [[] for _ in range(count)]
    least_first = [(0.0, 0, number) for number in range(count)]  # a heap: load, items, shard
    for piece in arrange(items, parts=count, chained=chained):
        load, _, number = least_first[0]
        filled[number] += piece
        heapq.heapreplace(least_first, (load + _cost(piece), len(filled[number]), number))
    return [sorted(members, key=lambda item: item.place) for members in filled]


def of_shard(
    inputs: Sequence[Input], shard: tuple[int, int] | None, *, chained: bool
) -> Sequence[int]:
    """Indices of the items of shard (I, N), or of all items for None."""
    if shard is None:
        return range(len(inputs))
    return [work.place for work in shards(works(inputs), shard[1], chained=chained)[shard[0]]]


def _cost(piece: Sequence[Work]) -> float:
    return sum(item.cost for item in piece)


def read_shard(text: str) -> tuple[int, int]:
    """(I, N) from "I/N", with I from 0 to N - 1; raises InputError otherwise."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    if match is None or not int(match[1]) < int(match[2]) <= MOST_SHARDS:
        raise InputError(
            Option("shard", text), ": expected I/N with I from 0 to N - 1, for example 0/8"
        )
    return int(match[1]), int(match[2])


def shard_of_job(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """(I, N) of a task in a Slurm or AWS Batch array job; None outside one."""
    for names in SCHEDULERS:
        if names[0] not in environment:
            continue
        index, first, count = given = [environment.get(name, "0") for name in names]
        if all(map(str.isdecimal, given)) and 0 <= int(index) - int(first) < int(count):
            return int(index) - int(first), int(count)
        wrong = f"= {index} is not one of {count} tasks in steps of one: use an array such as 0-7"
        if names[2] not in environment:
            wrong = f"is set without {names[2]}, the number of tasks: set it"
        raise InputError(f"{names[0]} {wrong}, or pass ", Option("shard", "I/N"))
    return None


# --- lists of shards ------------------------------------------------------------------------------

FOLDER = "batch.shards"
VERSION = 1


def write_lists(batch: Batch, count: int, *, chained: bool) -> None:
    """Write the lists of `count` shards to the output folder.

    Raises
    ------
    ResourceError : a list cannot be written
    """
    folder = batch.output / FOLDER
    make_folder(folder)
    parts = shards(works(inputs_to_share(batch)), count, chained=chained)
    head = _head(batch.source, batch.root, chained)
    with settled(folder):
        for number, members in enumerate(parts):
            items = [_described(batch.items[work.place]) for work in members]
            text = json.dumps({**head, "items": items}, ensure_ascii=True)
            put(_path(folder, (number, count)), text.encode())


def read_list(
    source: str, root: str | None, output: Path, shard: tuple[int, int], *, chained: bool
) -> Batch | None:
    """The items of a shard as a separate batch, from its stored list; None if there is none, or it
    does not match the current manifest."""
    try:
        value = read_json(_path(output / FOLDER, shard))
        folder = Path(source).parent if root is None else Path(root)
        head = _head(source, folder, chained)
        if {name: value.get(name) for name in head} != head:
            return None
        items = tuple(_item(row, output.absolute()) for row in value["items"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError, InputError):
        return None
    if not items:
        return None
    return Batch(source=source, root=folder, output=output, items=items)


def _path(folder: Path, shard: tuple[int, int]) -> Path:
    return folder / f"{shard[0]}-of-{shard[1]}.json"


def _head(source: str, root: Path, chained: bool) -> dict[str, Any]:
    """The manifest and version that a stored list must match."""
    return {
        "dfmp2_shard_version": VERSION,
        "manifest": os.path.abspath(source),
        "stamp": list(stamp(Path(source))),
        "root": os.path.abspath(root),
        "chained": chained,
    }


def _described(item: BatchItem) -> dict[str, Any]:
    return {
        "name": item.name,
        "molecule": item.molecule,
        "path": os.path.abspath(item.path),
        "given": dict(item.given),
    }


def _item(row: Mapping[str, Any], output: Path) -> BatchItem:
    options = options_of_item(row["given"])
    name = str(row["name"])
    if name != os.path.basename(name):
        raise ValueError(f"{name!r} is no name of an item")
    return BatchItem(
        name=name,
        molecule=str(row["molecule"]),
        path=Path(row["path"]),
        options=options,
        given=row["given"],
        target=output / f"{name}.h5",
    )
