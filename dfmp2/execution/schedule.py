"""Scheduling of items: their cost, order and distribution over shards, and the shard of an array
job.

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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from dfmp2.errors import Dfmp2Error, InputError, Option
from dfmp2.execution.items import Input, inputs_to_share, read_inputs
from dfmp2.execution.manifest import Batch, BatchItem, options_of_item
from dfmp2.host import resources
from dfmp2.host.files import make_folder, put, read_json, settled, stamp
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.mp2.identity import FREE
from dfmp2.planning import memory, plan, time
from dfmp2.planning import rates as calibration
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import Workload
from dfmp2.progress import Silent

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


def works(inputs: Sequence[Input]) -> list[Work]:
    """The work of all items. Sizes follow from atoms and options, so each composition is examined
    only once."""
    import_pyscf()
    found, known = [], dict[str, Workload]()
    for place, (item, molecule, *_) in enumerate(inputs):
        series, load = f"alone {place}", None
        if not isinstance(molecule, InputError):
            asked = sorted(
                (name, value) for name, value in asdict(item.options).items() if name not in FREE
            )
            state = molecule.charge, molecule.multiplicity, asked
            alike = repr((sorted(molecule.labels), state))
            with suppress(Dfmp2Error):  # the item itself will report the error
                load = known[alike] = known.get(alike) or plan.workload_sizes(
                    molecule, item.options, Silent()
                )
                series = repr((molecule.labels, state))
        if load is not None and item.task != "energy":  # an optimisation counts as one gradient
            load = replace(load, task="properties" if item.task == "properties" else "gradient")
        found.append(Work(place=place, cost=shard_cost(load), series=series, load=load))
    return found


def shard_cost(load: Workload | None, rates: Rates | None = None) -> float:
    """Predicted time of an item at the given rates, by default those of all hosts, s; 0 for one
    that will be rejected."""
    if load is None:
        return 0.0
    rates = rates or Rates()
    # A warm worker has already loaded its libraries
    return PER_ITEM + time.time_text(load, rates).total - rates.start


def memory_needed(load: Workload, threads: int) -> tuple[int, int]:
    """Approximate bytes that a worker needs for an item: with large arrays on disk, and with
    everything in memory."""
    from dfmp2.backends.registry import select_backend

    limits = select_backend("cpu", "fp64", threads)[0].limits
    found = memory.memory_plan(load, limits, threads, program=resources.resident_memory(), budget=0)
    return found.least, found.comfortable


def foresee_shards(batch: Batch, count: int, *, chained: bool = False) -> dict[str, Any]:
    """The object that `batch plan --json` prints: sizes and times of all items in `count` shards,
    whether complete or not.

    `nao` and `naux` are None for an item that will be rejected, `error` says why its molecule
    cannot be read, and `measured` whether the times are based on rates of this machine.
    """
    inputs, common = read_inputs(batch), batch.items[0].options
    backend = "cpu" if common.backend == "auto" else common.backend
    rates = calibration.load_rates(backend, common.threads or resources.usable_cores())
    rows, parts = dict[int, dict[str, Any]](), []
    for number, members in enumerate(shards(works(inputs), count, chained=chained)):
        for work in members:
            rows[work.place] = _foreseen(inputs[work.place], work, number, rates)
        spent = sum(rows[work.place]["seconds"] for work in members)
        parts.append({"shard": f"{number}/{count}", "items": len(members), "seconds": spent})
    return {
        "total": len(rows),
        "seconds": sum(part["seconds"] for part in parts),
        "measured": rates is not None,
        "shards": parts,
        "items": [row for _, row in sorted(rows.items())],
    }


def _foreseen(given: Input, work: Work, shard: int, rates: Rates | None) -> dict[str, Any]:
    """The row of an item in `foresee_shards`."""
    return {
        "name": given.item.name,
        "molecule": given.item.molecule,
        "shard": shard,
        "nao": None if work.load is None else work.load.nao,
        "naux": None if work.load is None else work.load.naux,
        "seconds": shard_cost(work.load, rates),
        "error": str(given.molecule) if isinstance(given.molecule, InputError) else "",
    }


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
    inputs: Sequence[Input], shard: tuple[int, int] | None, *, chained: bool = False
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
        if names[0] in environment:
            index, first, count = given = [environment.get(name, "0") for name in names]
            if not all(map(str.isdecimal, given)) or not 0 <= int(index) - int(first) < int(count):
                wrong = f"{names[0]} = {index} is not one of {count} tasks in steps of one"
                raise InputError(
                    f"{wrong}: use an array such as 0-7, or pass ", Option("shard", "I/N")
                )
            return int(index) - int(first), int(count)
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
    options = options_of_item(row["given"], str(row["molecule"]))
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
