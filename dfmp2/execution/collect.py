"""Collection of the results of a batch: a table of energies, or a data set
(`dfmp2.output.dataset`).

Every file is read once and its hash checked. The values are cached beside the results
(batch.collected.jsonl), so that a later collection reads only new or changed files.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dfmp2.errors import InputError, Message, Option, ResourceError
from dfmp2.execution.items import (
    ItemStatus,
    index_rows,
    read_index,
    read_input,
    read_result,
    unchanged,
)
from dfmp2.execution.manifest import Batch, BatchItem
from dfmp2.execution.pool import Call, WorkerShare, local_pool, share_out
from dfmp2.host.files import require_all_writable, write_atomically
from dfmp2.host.provenance import version
from dfmp2.mp2.identity import METHOD, method_differences, with_common_basis
from dfmp2.output.batch_index import IndexWriter
from dfmp2.output.dataset import SPLITS, WRITERS, DataRecord, make_record, write_dataset
from dfmp2.output.json import NUMBERS, write_rows
from dfmp2.units import counted_text

COLLECTED = "batch.collected.jsonl"
TABLES = (".h5", ".csv", ".json")
CHUNK = 100  # items per call of a worker


class Reading(NamedTuple):
    """Data read for an item: its row, and its record if it is complete."""

    row: ItemStatus
    record: DataRecord | None


class Collection(NamedTuple):
    """The collected results of a batch.

    Attributes
    ----------
    records : records of the complete items, in order
    molecules : the file of each item's molecule, by item name
    remarks : remarks for the user on omitted items
    """

    records: list[DataRecord]
    molecules: Mapping[str, str]
    remarks: list[Message]

    def rows(self) -> list[dict[str, Any]]:
        """The table of energies."""
        return [
            {
                "name": record.name,
                "molecule": self.molecules[record.name],
                **record.numbers,
                "seconds": record.seconds,
            }
            for record in self.records
        ]

    def notes(self) -> dict[str, str]:
        """Options that apply to the whole table: those that define the method."""
        methods = with_common_basis(record.method for record in self.records)
        return {
            field: ", ".join(dict.fromkeys(method[field] for method in methods)) for field in METHOD
        }


def collect(batch: Batch, *, workers: int = 1, allow_mixed: bool = False) -> Collection:
    """Collect the records of all complete results, with hashes checked, and remarks.

    Parameters
    ----------
    workers : number of processes that read files
    allow_mixed : allow results of different methods

    Raises
    ------
    InputError : there is no result, or the methods differ, so that energies are not comparable
    """
    readings = _readings(batch, workers)
    records, remarks = [], list[Message]()
    for item in batch.items:
        row, record = readings[item.name]
        if record is not None:
            records.append(record)
        elif row.remark and os.path.lexists(item.target):
            remarks.append(Message(f"{row.name} is left out: {row.remark}"))
    if not records and remarks:
        others = ""
        if len(remarks) > 1:
            others = f"; {len(remarks) - 1} more as well"
        raise InputError(f"no complete result in {batch.output}: ", remarks[0], others)
    if not records:
        raise InputError(
            f"no complete result in {batch.output}: run the batch first (dfmp2 batch run)"
        )
    names = [record.name for record in records]
    methods = with_common_basis(record.method for record in records)
    different = method_differences(dict(zip(names, methods, strict=True)))
    if different:
        remarks.append(Message(f"different methods in one table: {different}"))
        if not allow_mixed:
            raise InputError(
                remarks[-1], ": collect them apart, or pass ", Option("allow_mixed", True)
            )
    missing = len(batch.items) - len(records)
    if missing:
        remarks.append(
            Message(
                f"{missing} of {counted_text(len(batch.items), 'item')} left out of the table: "
                "not complete"
            )
        )
    return Collection(records, {item.name: item.molecule for item in batch.items}, remarks)


def fit_for_dataset(
    collected: Collection, *, duplicates: bool = False, uncertified: bool = False
) -> Collection:
    """The collection without items unfit for a data set, which are listed as remarks.

    Parameters
    ----------
    duplicates : keep every one of several equal geometries of one method, of which otherwise the
        first that has forces is kept, or the first
    uncertified : keep results whose certificate fails
    """
    fit, remarks = [], list(collected.remarks)
    for record in collected.records:
        if record.unsaid:
            remarks.append(
                Message(f"{record.name} is left out: {record.unsaid}, which a data set cannot say")
            )
        elif record.unfit and not uncertified:
            remarks.append(
                Message(
                    f"{record.name} is left out: {record.unfit}; ",
                    Option("uncertified", True),
                    " keeps it",
                )
            )
        else:
            fit.append(record)
    records = []
    for record, chosen in zip(fit, _of_same_geometry(fit), strict=True):
        if chosen is record or duplicates:
            records.append(record)
            continue
        remarks.append(
            Message(
                f"{record.name} is left out: it is the geometry of {chosen.name}; ",
                Option("duplicates", True),
                " keeps it",
            )
        )
    having = Counter(record.forces is not None for record in records)
    if having[True] and having[False]:
        remarks.append(Message(f"{having[False]} of {len(records)} molecules have no forces"))
    return Collection(records, collected.molecules, remarks)


def _of_same_geometry(records: Sequence[DataRecord]) -> list[DataRecord]:
    """For each record the one of its geometry and method to keep: the first that has forces, or the
    first."""
    keys = [(record.positions_hash, tuple(sorted(record.method.items()))) for record in records]
    kept: dict[Any, DataRecord] = {}
    for key, record in zip(keys, records, strict=True):
        if key not in kept or (kept[key].forces is None and record.forces is not None):
            kept[key] = record
    return [kept[key] for key in keys]


def _readings(batch: Batch, workers: int) -> dict[str, Reading]:
    """Readings of all items by name, from the cache or from files; new ones are cached."""
    known = read_index(batch)
    kept = _read_collected(batch.output / COLLECTED)
    readings, left = dict[str, Reading](), list[BatchItem]()
    for item in batch.items:
        row = unchanged(item, known.get(item.name))
        record = kept.get(item.name)
        if row is not None and record is not None and record[0] == row.stamp:
            readings[item.name] = Reading(row, record[1])
        else:
            left.append(item)
    fresh = {reading.row.name: reading for reading in _read_files(left, workers)}
    if any(reading.record is not None for reading in fresh.values()):
        readings |= fresh
        with suppress(ResourceError):  # a folder of another user: reread next time
            _keep(batch, readings, [reading.row for reading in fresh.values()])
    return readings | fresh


def _read_files(items: Sequence[BatchItem], workers: int) -> list[Reading]:
    """Readings of items from their files, by several processes if there are many."""
    parts = [items[first : first + CHUNK] for first in range(0, len(items), CHUNK)]
    count = min(workers, len(parts))
    if count < 2:
        return read_part(items)
    with local_pool("cpu", count, 1, None) as pool:
        pool.grow(count)
        of_parts = list(share_out(pool, [Call(read_part, (part,)) for part in parts]))
    return [reading for of_part in of_parts for reading in of_part]


def read_part(items: Sequence[BatchItem], share: WorkerShare | None = None) -> list[Reading]:
    """Read the files of some items; called in a worker."""
    readings = []
    for item in items:
        row, result = read_result(read_input(item))
        record = None
        if result is not None:
            record = make_record(result, name=item.name, smiles=str(item.given.get("smiles", "")))
        readings.append(Reading(row, record))
    return readings


def _keep(batch: Batch, readings: Mapping[str, Reading], rows: Sequence[ItemStatus]) -> None:
    lines = [json.dumps({"dfmp2": version()})]
    for row, record in readings.values():
        if record is not None:
            values = {"stamp": row.stamp, "record": asdict(record)}
            lines.append(json.dumps(values, separators=(",", ":")))
    write_atomically(batch.output / COLLECTED, "\n".join([*lines, ""]).encode(), overwrite=True)
    with closing(IndexWriter(batch.output, None)) as index:
        index.append(index_rows(row for row in rows if row.status == "complete"))


def _read_collected(path: Path) -> dict[str, tuple[tuple[int, int], DataRecord]]:
    """Cached records by name, each with the stamp of its file; empty if written by another version
    or with other columns."""
    found = {}
    try:
        with open(path, encoding="utf-8") as stream:
            if json.loads(stream.readline()) != {"dfmp2": version()}:
                return {}
            for line in stream:
                value = json.loads(line)
                size, changed_at = value["stamp"]
                record = DataRecord(**value["record"])
                if record.numbers.keys() != NUMBERS.keys():
                    return {}
                found[record.name] = ((size, changed_at), record)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return found


# --- where it goes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Destination:
    """What to write, and where.

    Attributes
    ----------
    target : the file
    to : format of a data set, None for a table
    shares : fractions of the parts of a data set, by name; empty for a single file
    """

    target: Path
    to: str | None
    shares: dict[str, float]
    overwrite: bool

    @classmethod
    def chosen(
        cls,
        results: Path,
        file: str,
        to: str | None,
        split: str | None,
        *,
        overwrite: bool,
        named: str = "-o",
    ) -> Destination:
        """The destination specified by the options.

        Parameters
        ----------
        results : folder of the batch, where every .h5 file is a result
        named : option that names the file

        Raises
        ------
        InputError : the options are incompatible
        """
        target = Path(file)
        if to is None:
            if split is not None:
                raise InputError(
                    Option("split", split), " belongs to a data set: choose one with ", Option("to")
                )
            if target.suffix not in TABLES:
                forms = {ending: name for name, (ending, _) in WRITERS.items()}
                hint = forms.get(target.suffix, "extxyz, h5, parquet, csv, json or ase.db")
                raise InputError(
                    f"{named} {file}: expected a name ending in .h5, .csv or .json for a table of "
                    "energies; for a data set add ",
                    Option("to"),
                    f" {hint}",
                )
        if target.suffix == ".h5" and target.parent.resolve() == results.resolve():
            raise InputError(
                f"{named} {file}: every .h5 in {results} is the result of an item: name another "
                "folder"
            )
        shares = _shares(split) if split is not None else {}
        return cls(target, to, shares, overwrite)

    def targets(self) -> dict[str, Path]:
        """The files by part of the data set, "" for all of it."""
        if not self.shares:
            return {"": self.target}
        return {
            part: self.target.with_name(f"{self.target.stem}.{part}{self.target.suffix}")
            for part, share in self.shares.items()
            if share
        }

    def collect(
        self,
        batch: Batch,
        warn: Callable[[str], None],
        *,
        workers: int,
        allow_mixed: bool,
        duplicates: bool,
        uncertified: bool,
    ) -> Iterator[str]:
        """Collect and write; returns a line for each file."""
        files = [(Option("table", flag="o"), path) for path in self.targets().values()]
        require_all_writable(files, overwrite=self.overwrite)
        collected = collect(batch, workers=workers, allow_mixed=allow_mixed)
        if self.to is not None:
            collected = fit_for_dataset(collected, duplicates=duplicates, uncertified=uncertified)
        for remark in collected.remarks:
            warn(remark)
        if self.to is None:
            write_rows(self.target, collected.rows(), collected.notes(), overwrite=self.overwrite)
            items = counted_text(len(batch.items), "item")
            yield f"{len(collected.records)} of {items} -> {self.target}"
            return
        for part, path in self.targets().items():
            yield self._write_part(batch, collected, part, path)

    def _write_part(self, batch: Batch, collected: Collection, part: str, path: Path) -> str:
        records = collected.records
        if part:
            shares = list(self.shares.values())
            records = [record for record in records if record.split(shares) == part]
        if part and not records:
            return f"no item belongs to {part}: {path} is not written"
        write_dataset(path, str(self.to), records, overwrite=self.overwrite)
        return f"{len(records)} of {counted_text(len(batch.items), 'item')} -> {path}"


def _shares(text: str) -> dict[str, float]:
    """Fractions of train, validation and test from a text such as "8:1:1"."""
    try:
        shares = [float(part) for part in text.split(":")]
    except ValueError:
        shares = []
    sound = len(shares) == len(SPLITS) and all(0 <= share < 1e9 for share in shares)
    if not sound or not sum(shares):
        raise InputError(
            Option("split", text), ": expected three shares of train:validation:test, as 8:1:1"
        )
    return dict(zip(SPLITS, shares, strict=True))
