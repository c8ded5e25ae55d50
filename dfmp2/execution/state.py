"""Where every item of a batch stands, read from its output folder at any time; and the files that say so.

complete: NAME.h5 is whole and was made from the present input. running: a living process holds its lock. failed:
NAME.error.json. pending: everything else. batch.json and batch.csv hold the state when last written; of files that were
found complete, batch.json saves reading them again while size and time of change stay the same.

A result counts when its input has the same fingerprint: geometry and point charges (their bits), charge, multiplicity
and every option that can change a result or its checks; memory, threads and scratch only decide how it is reached.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dfmp2.errors import InputError, Interrupted, ResultFileError
from dfmp2.execution.manifest import Batch, Item, make_batch, read_values
from dfmp2.host.files import write_atomically
from dfmp2.host.locks import holder
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import read_text
from dfmp2.molecule.xyz import MAX_BYTES, TOO_LARGE, parse_xyz, read_point_charges
from dfmp2.mp2.identity import changed, fingerprint, question
from dfmp2.mp2.result import MP2Result
from dfmp2.output.hdf5 import read_verified
from dfmp2.output.series import METHOD, differences, method
from dfmp2.output.table import NUMBERS, numbers_of, to_csv, to_json

STATES = ("complete", "failed", "pending", "running")
STATUS_KEYS = ("name", "molecule", "status", "exit_code", "error", "output", "seconds")
KEPT_KEYS = ("numbers", "fingerprint", "stamp")  # of complete items, in batch.json
START = "start orbitals sha256:"  # in the command that a result was made with
INPUT = "input sha256:"  # before the fingerprint, in the command of a task other than an energy
LARGEST_START, LARGEST_ERROR, LARGEST_INDEX = 4 * 10**9, 10**6, 500 * 10**6  # bytes of files that are read
INDEX, TABLE, VERSION = "batch.json", "batch.csv", 1
ABANDONED = 3600.0  # s after which half a batch.json belongs to a process that was killed
NO_FILE = (0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """What an item is computed from: molecule in its field, SHA-256 of all, and of the start orbitals ("" for none)."""

    molecule: Molecule
    fingerprint: str
    start: str


@dataclass(frozen=True, slots=True)
class Row:
    """One item.

    Attributes
    ----------
    status : one of STATES
    exit_code, error : of a failed item; 0 and None of a complete one
    output, seconds : of a complete item: its file, and the wall time of the calculation
    numbers, fingerprint, stamp : what else a complete result says, its input, size and change of its file
    remark : why a result that is there does not count, or who computes the item
    notes, device_fault : of its worker: for the user, and whether its device must not be used any more
    """

    name: str
    molecule: str
    status: str = "pending"
    exit_code: int | None = None
    error: str | None = None
    output: str | None = None
    seconds: float | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    stamp: tuple[int, int] = NO_FILE
    remark: str = ""
    notes: tuple[str, ...] = ()
    device_fault: bool = False


Inputs = Sequence[Input | InputError]  # of all items, by their places; an error for a molecule that cannot be read


def read_input(item: Item) -> Input:
    """Read the molecule of an item; InputError with what `dfmp2 run` would say of it."""
    _, text = read_text(item.path, MAX_BYTES, TOO_LARGE)
    given = {"units": "angstrom", "point_charge_units": "angstrom", **item.given}
    state: dict[str, Any] = {name: given.get(name) for name in ("charge", "multiplicity", "units")}
    charges = read_point_charges(given.get("point_charges"), given["point_charge_units"])
    molecule = parse_xyz(text, file=item.molecule, **state).molecule.in_field(charges)
    start = "" if item.options.scf_from is None else _file_hash(Path(item.options.scf_from))
    asked = fingerprint(molecule, item.options, start)
    if item.task != "energy":
        asked = hashlib.sha256(f"{item.task} {asked}".encode()).hexdigest()
    return Input(molecule, asked, start)


def read_inputs(batch: Batch, stop_asked: Callable[[], int] = lambda: 0) -> Inputs:
    """Read all molecules; Interrupted when the user asks to stop."""
    found: list[Input | InputError] = []
    for item in batch.items:
        if stop_asked():
            raise Interrupted("stopped before anything was computed: nothing was changed")
        try:
            found.append(read_input(item))
        except InputError as error:
            found.append(error)
    return found


def fingerprint_of(result: MP2Result) -> str:
    """The fingerprint of the input a stored result was made from; of a task that is no energy its command says it."""
    said = {mark: re.search(re.escape(mark) + "([0-9a-f]{64})", result.provenance.command) for mark in (INPUT, START)}
    if task := said[INPUT]:
        return task[1]
    return fingerprint(result.molecule, result.options, start[1] if (start := said[START]) else "")


def _file_hash(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_START:
            raise InputError(f"--scf-from {path}: expected a file with start orbitals")
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"--scf-from {path}: cannot be read ({error.strerror})") from error


def look(batch: Batch, inputs: Inputs) -> list[Row]:
    """The state of all items, in their order."""
    known = _read_index(batch)
    return [look_at(batch, item, inputs[k], known.get(item.name)) for k, item in enumerate(batch.items)]


def look_at(
    batch: Batch,
    item: Item,
    given: Input | InputError,
    known: Row | None = None,
    use: Callable[[MP2Result], None] = lambda _: None,
) -> Row:
    """The state of an item as its files say it.

    Parameters
    ----------
    known : what an earlier look found
    use : gets the result where it counts and is read
    """
    path = batch.result(item)
    row, now = Row(item.name, item.molecule), stamp(path)
    if other := holder(path):
        return replace(row, status="running", remark=f"it is being computed by {other}")
    if isinstance(given, InputError):
        row = replace(row, remark=str(given))
    elif now != NO_FILE:
        if known is not None and known.numbers and (known.fingerprint, known.stamp) == (given.fingerprint, now):
            return replace(known, molecule=item.molecule, output=str(path))
        try:
            result = read_verified(path)
            if fingerprint_of(result) == given.fingerprint:
                use(result)
                return complete_row(row, path, result, given.fingerprint)
            there, here = question(result.molecule, result.options), question(given.molecule, item.options)
            what = ", ".join(changed(there, here)) or "task or start orbitals"
            row = replace(row, remark=f"its input has changed since the result was made ({what})")
        except (InputError, ResultFileError) as error:
            row = replace(row, remark=f"its result does not count ({error})")
    failure = _read_json(error_file(path), LARGEST_ERROR)
    if not isinstance(failure.get("code"), int):
        return row
    seconds = known.seconds if known is not None and known.status == "failed" else None
    return replace(row, status="failed", exit_code=failure["code"], error=str(failure.get("message")), seconds=seconds)


def complete_row(row: Row, path: Path, result: MP2Result, fingerprint: str) -> Row:
    """The row of an item with its result, which is at `path`."""
    known: dict[str, Any] = {"numbers": numbers_of(result), "fingerprint": fingerprint, "stamp": stamp(path)}
    done: dict[str, Any] = {"exit_code": 0, "output": str(path), "seconds": result.timings.total}
    return Row(row.name, row.molecule, "complete", **done, **known)


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of change of a file, NO_FILE when there is none."""
    try:
        status = path.stat()
    except OSError:
        return NO_FILE
    return status.st_size, status.st_mtime_ns


def error_file(path: Path) -> Path:
    """NAME.error.json beside NAME.h5."""
    return path.with_suffix(".error.json")


def write_failure(path: Path, code: int, message: str, traceback: str) -> None:
    """Write NAME.error.json; ResourceError where that cannot be."""
    value = {"code": code, "message": message, "traceback": traceback}
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode(), overwrite=True)


def status(rows: Sequence[Row]) -> dict[str, Any]:
    """The object `batch status --json` prints."""
    items = [{key: getattr(row, key) for key in STATUS_KEYS} for row in rows]
    counts = Counter(row.status for row in rows)
    return {"total": len(rows), **{state: counts[state] for state in STATES}, "items": items}


def write_index(batch: Batch, rows: Sequence[Row]) -> None:
    """Write batch.json and batch.csv; ResourceError where that cannot be."""
    value = status(rows)
    for item, row in zip(value["items"], rows, strict=True):
        if row.numbers:
            item |= {key: getattr(row, key) for key in KEPT_KEYS}
    recorded: dict[str, Any] = {"manifest": batch.source}
    if not batch.source:  # so that `batch status OUTPUT` knows what the batch is
        files = [item.molecule for item in batch.items]
        recorded["files"] = {"root": str(batch.root), "names": files, "options": batch.items[0].given}
    content = to_json({"dfmp2_batch_version": VERSION, **recorded, **value})
    write_atomically(batch.output / INDEX, content.encode(), overwrite=True)
    write_atomically(batch.output / TABLE, to_csv(table(rows)), overwrite=True)


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of batch.csv."""
    return [
        {key: getattr(row, key) for key in ("name", "molecule", "status", "exit_code")}
        | {key: row.numbers.get(key) for key in NUMBERS}
        | {key: getattr(row, key) for key in ("seconds", "output", "error")}
        for row in rows
    ]


def _read_index(batch: Batch) -> dict[str, Row]:
    """Rows of the last batch.json that may be known still, by name; empty when there is none of this version."""
    value = _read_json(batch.output / INDEX, LARGEST_INDEX)
    found = {}
    if value.get("dfmp2_batch_version") == VERSION:
        for item in value.get("items") or []:
            try:
                row = Row(**{key: item[key] for key in (*STATUS_KEYS, *KEPT_KEYS) if key in item})
                numbers = row.numbers if row.numbers.keys() >= NUMBERS.keys() else {}  # of an earlier dfmp2: too few
                found[row.name] = replace(row, numbers=numbers, stamp=(row.stamp[0], row.stamp[1]))
            except (TypeError, LookupError, AttributeError):
                continue
    return found


def read_recorded(folder: Path) -> Batch:
    """The batch whose files were named on the command line, from its output folder; InputError where none was run."""
    files: Any = _read_json(folder / INDEX, LARGEST_INDEX).get("files")
    try:
        names, root = [str(name) for name in files["names"]], Path(str(files["root"]))
        given = read_values(dict(files["options"]), (), str(folder / INDEX))
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder}: expected a manifest (.toml), or the output folder of a batch whose files were named on the "
            "command line"
        ) from error
    return make_batch(names, given, folder, root)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process had written of batch.json and batch.csv."""
    for part in folder.glob(".batch.*.part-*"):
        if time.time() - stamp(part)[1] / 1e9 > ABANDONED:
            part.unlink(missing_ok=True)


def _read_json(path: Path, most: int) -> dict[str, Any]:
    """The object in a file, empty when it is not there or cannot be understood."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= most else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def collect_results(batch: Batch, *, allow_mixed: bool) -> tuple[list[dict[str, Any]], dict[str, str], list[str]]:
    """Rows of all complete results, their hashes checked; what holds for all of them; and what there is to remark.

    InputError where there is none, or their methods differ, so that their energies do not belong beside each other.
    """
    rows, remarks, methods, read = [], [], dict[str, dict[str, str]](), list[MP2Result]()
    for item, given in zip(batch.items, read_inputs(batch), strict=True):
        row = look_at(batch, item, given, use=read.append)
        if row.status == "complete":
            methods[item.name] = method(read.pop())
            rows.append({"name": row.name, "molecule": row.molecule, **row.numbers, "seconds": row.seconds})
        elif row.remark and stamp(batch.result(item)) != NO_FILE:
            remarks.append(f"{item.name} is left out: {row.remark}")
    if not rows:
        raise InputError(f"no complete result in {batch.output}: run the batch first (dfmp2 batch run)")
    different = differences(methods)
    if different and not allow_mixed:
        raise InputError(
            f"the results were computed with different methods, {different}: collect them apart, or pass --allow-mixed"
        )
    if different:
        remarks.append(f"different methods in one table: {different}")
    if missing := len(batch.items) - len(rows):
        remarks.append(f"{missing} of {len(batch.items)} items are not complete and not in the table")
    notes = {field: ", ".join(dict.fromkeys(found[field] for found in methods.values())) for field in METHOD}
    return rows, notes, remarks
