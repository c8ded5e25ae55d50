"""Where every item of a batch stands, read from its output folder at any time; and the files that say so.

complete: NAME.h5 is whole and was made from the present input. running: a living process holds its lock. failed:
NAME.error.json. pending: everything else. batch.json and batch.csv hold the state when last written; of files that were
found complete, batch.json saves reading them again while size and time of change stay the same.

A result counts when its input has the same fingerprint: geometry and point charges (their bits), charge, multiplicity
and every option that can change a result or its checks; memory, threads and scratch only decide how it is reached.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
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
from dfmp2.output.hdf5 import printed, read_verified
from dfmp2.output.series import METHOD, differences, method
from dfmp2.output.study import Column, write_table

NUMBERS: dict[str, tuple[str, str | None]] = {  # in tables: attribute of a result, unit (None for text)
    "formula": ("molecule.formula", None),
    "charge": ("molecule.charge", "elementary charge"),
    "multiplicity": ("molecule.multiplicity", ""),
    "reference": ("reference.kind", None),
    "basis": ("orbital_basis.name", None),
    "scf_total_energy": ("scf_total_energy", "hartree"),
    "mp2_same_spin_correlation_energy": ("mp2_same_spin_correlation_energy", "hartree"),
    "mp2_opposite_spin_correlation_energy": ("mp2_opposite_spin_correlation_energy", "hartree"),
    "mp2_correlation_energy": ("mp2_correlation_energy", "hartree"),
    "mp2_total_energy": ("mp2_total_energy", "hartree"),
    "scs_mp2_correlation_energy": ("scs_mp2_correlation_energy", "hartree"),
    "nao": ("sizes.nao", ""),
    "homo_lumo_gap": ("diagnostics.homo_lumo_gap", "hartree"),
    "backend": ("backend", None),
    "precision": ("precision", None),
    "warnings": ("diagnostics.warnings", ""),  # how many
}
UNITS = {"exit_code": "", "seconds": "s"} | {name: unit for name, (_, unit) in NUMBERS.items() if unit is not None}
STATES = ("complete", "failed", "pending", "running")
STATUS_KEYS = ("name", "molecule", "status", "exit_code", "error", "output", "seconds")
KEPT_KEYS = ("numbers", "fingerprint", "stamp")  # of complete items, in batch.json
START = "start orbitals sha256:"  # in the command that a result was made with
INPUT = "input sha256:"  # before the fingerprint, in the command of a task other than an energy
LARGEST_START = 4 * 10**9  # bytes of a file with start orbitals
LARGEST_ERROR = 10**6  # bytes of an error file
LARGEST_INDEX = 500 * 10**6  # bytes
INDEX, TABLE, VERSION = "batch.json", "batch.csv", 1
ABANDONED = 3600.0  # s after which half a batch.json belongs to a process that was killed


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """What an item is computed from, read once.

    Attributes
    ----------
    molecule : in its field of point charges
    fingerprint : SHA-256
    start : SHA-256 of the file with start orbitals, "" for none
    """

    molecule: Molecule
    fingerprint: str
    start: str


@dataclass(frozen=True, slots=True)
class Row:
    """One item.

    Attributes
    ----------
    name, molecule : of the item
    status : one of STATES
    exit_code : 0 when complete, the code of the error when failed, else None
    error : message of a failed item
    output : result file of a complete item
    seconds : wall time of the calculation, s
    numbers : what else a complete result says, for the table (NUMBERS)
    fingerprint, stamp : input, and size and time of change of the file of a complete result
    remark : why a result that is there does not count, or who computes the item
    notes : of its worker, for the user
    device_fault : whether the device that computed it must not be used any more
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
    stamp: tuple[int, int] = (0, 0)
    remark: str = ""
    notes: tuple[str, ...] = ()
    device_fault: bool = False


Known = Mapping[str, Row]  # rows of an earlier look, by name


# --- inputs -----------------------------------------------------------------------------------------------------------


def read_input(item: Item) -> Input:
    """Read the molecule of an item.

    Raises
    ------
    InputError : what `dfmp2 run` would say of the file
    """
    _, text = read_text(item.path, MAX_BYTES, TOO_LARGE)
    molecule = parse_xyz(
        text, file=item.molecule, units=item.units, charge=item.charge, multiplicity=item.multiplicity
    ).molecule.in_field(read_point_charges(item.point_charges, item.point_charge_units))
    start = "" if item.options.scf_from is None else _file_hash(Path(item.options.scf_from))
    asked = fingerprint(molecule, item.options, start)
    if item.task != "energy":
        asked = hashlib.sha256(f"{item.task} {asked}".encode()).hexdigest()
    return Input(molecule, asked, start)


def read_inputs(batch: Batch, stop_asked: Callable[[], int] = lambda: 0) -> list[Input | InputError]:
    """Read all molecules; an error for one that cannot be read.

    Raises
    ------
    Interrupted : the user asked to stop
    """
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
    task = re.search(re.escape(INPUT) + "([0-9a-f]{64})", result.provenance.command)
    if task is not None:
        return task[1]
    found = re.search(re.escape(START) + "([0-9a-f]{64})", result.provenance.command)
    return fingerprint(result.molecule, result.options, found[1] if found else "")


def _file_hash(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_START:
            raise InputError(f"--scf-from {path}: expected a file with start orbitals")
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"--scf-from {path}: cannot be read ({error.strerror})") from error


# --- states -----------------------------------------------------------------------------------------------------------


def look(batch: Batch, known: Known) -> list[Row]:
    """The state of all items, in their order."""
    return [look_at(batch, item, known.get(item.name)) for item in batch.items]


def look_at(batch: Batch, item: Item, known: Row | None, given: Input | None = None) -> Row:
    """The state of an item.

    Parameters
    ----------
    known : what an earlier look found
    given : its input, if it has been read already
    """
    row, path = Row(item.name, item.molecule), batch.result(item)
    other = holder(path)
    if other is not None:
        return replace(row, status="running", remark=f"it is being computed by {other}")
    try:
        given = given or read_input(item)
    except InputError as error:
        broken = _failed(row, path, known)
        return broken if broken.status == "failed" else replace(row, remark=str(error))
    now = stamp(path)
    if now == (0, 0):
        return _failed(row, path, known)
    if known is not None and known.numbers and (known.fingerprint, known.stamp) == (given.fingerprint, now):
        return replace(known, molecule=item.molecule, output=str(path))
    try:
        result = read_verified(path)
    except (InputError, ResultFileError) as error:
        return _failed(replace(row, remark=f"its result does not count ({error})"), path, known)
    if fingerprint_of(result) != given.fingerprint:
        there, here = question(result.molecule, result.options), question(given.molecule, item.options)
        what = ", ".join(changed(there, here)) or "task or start orbitals"
        return _failed(replace(row, remark=f"its input has changed since the result was made ({what})"), path, known)
    return complete_row(row, path, result, given.fingerprint)


def complete_row(row: Row, path: Path, result: MP2Result, fingerprint: str) -> Row:
    """The row of an item with its result, which is at `path`."""
    numbers = {name: attrgetter(attribute)(result) for name, (attribute, _) in NUMBERS.items()}
    return Row(
        row.name,
        row.molecule,
        "complete",
        exit_code=0,
        output=str(path),
        seconds=result.timings.total,
        numbers={**numbers, "warnings": len(numbers["warnings"])},
        fingerprint=fingerprint,
        stamp=stamp(path),
    )


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Number of items in each state."""
    return {state: sum(row.status == state for row in rows) for state in STATES}


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of change of a file, zeros when there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _failed(row: Row, path: Path, known: Row | None) -> Row:
    """The row as failed, if there is an error file beside `path`."""
    value = _read_json(error_file(path), LARGEST_ERROR)
    if not isinstance(value.get("code"), int):
        return row
    seconds = known.seconds if known is not None and known.status == "failed" else None
    return replace(row, status="failed", exit_code=value["code"], error=str(value.get("message")), seconds=seconds)


# --- files of a batch -------------------------------------------------------------------------------------------------


def error_file(path: Path) -> Path:
    """NAME.error.json beside NAME.h5."""
    return path.with_suffix(".error.json")


def write_failure(path: Path, code: int, message: str, traceback: str) -> None:
    """Write NAME.error.json.

    Raises
    ------
    ResourceError : it cannot be written
    """
    value = {"code": code, "message": message, "traceback": traceback}
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode(), overwrite=True)


def status(rows: Sequence[Row]) -> dict[str, Any]:
    """The object `batch status --json` prints."""
    items = [{key: getattr(row, key) for key in STATUS_KEYS} for row in rows]
    return {"total": len(rows), **counts(rows), "items": items}


def write_index(batch: Batch, rows: Sequence[Row]) -> None:
    """Write batch.json and batch.csv.

    Raises
    ------
    ResourceError : they cannot be written
    """
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
    table = [
        {key: getattr(row, key) for key in ("name", "molecule", "status", "exit_code")}
        | {key: row.numbers.get(key) for key in NUMBERS}
        | {key: getattr(row, key) for key in ("seconds", "output", "error")}
        for row in rows
    ]
    write_atomically(batch.output / TABLE, _csv(table), overwrite=True)


def read_index(batch: Batch) -> Known:
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
    """The batch whose files were named on the command line, from its output folder.

    Raises
    ------
    InputError : no such batch was run there
    """
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


def to_json(value: Any) -> str:
    """JSON text with a newline; numbers that JSON cannot hold are null."""
    return json.dumps(_plain(value), indent=1, allow_nan=False) + "\n"


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A table with the keys of the first row as its head; numbers with all their digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return printed(text.getvalue())


def _read_json(path: Path, most: int) -> dict[str, Any]:
    """The object in a file, empty when it is not there or cannot be understood."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= most else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- one table of all results -----------------------------------------------------------------------------------------


def collect_results(batch: Batch, *, allow_mixed: bool) -> tuple[list[dict[str, Any]], dict[str, str], list[str]]:
    """Rows of all complete results, their hashes checked; what holds for all of them; and what there is to remark.

    Energies of different methods do not belong beside each other.

    Raises
    ------
    InputError : there is none, or they are of different methods and `allow_mixed` is false
    """
    rows, remarks = [], []
    methods: dict[str, dict[str, str]] = {}
    for item in batch.items:
        path = batch.result(item)
        if not path.exists():
            continue
        try:
            result, wanted = read_verified(path), read_input(item).fingerprint
        except (InputError, ResultFileError) as error:
            remarks.append(f"{item.name} is left out: {error}")
            continue
        if fingerprint_of(result) != wanted:
            remarks.append(f"{item.name} is left out: its input has changed since it was computed")
            continue
        methods[item.name] = method(result)
        row = complete_row(Row(item.name, item.molecule), path, result, wanted)
        rows.append({"name": row.name, "molecule": row.molecule, **row.numbers, "seconds": row.seconds})
    if not rows:
        raise InputError(f"no complete result in {batch.output}: run the batch first (dfmp2 batch run)")
    different = differences(methods)
    if different and not allow_mixed:
        raise InputError(
            f"the results were computed with different methods, {different}: collect them apart, or pass --allow-mixed"
        )
    if different:
        remarks.append(f"different methods in one table: {different}")
    missing = len(batch.items) - len(rows)
    if missing:
        remarks.append(f"{missing} of {len(batch.items)} items are not complete and not in the table")
    notes = {field: ", ".join(dict.fromkeys(found[field] for found in methods.values())) for field in METHOD}
    return rows, notes, remarks


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], notes: Mapping[str, str], *, overwrite: bool) -> None:
    """Write collected rows as HDF5, CSV or JSON, by the end of the file's name.

    Parameters
    ----------
    notes : what holds for the whole table

    Raises
    ------
    ResultFileError : the file exists and `overwrite` is false
    ResourceError : it cannot be written
    """
    if path.suffix == ".csv":
        write_atomically(path, _csv(rows), overwrite=overwrite)
    elif path.suffix == ".json":
        write_atomically(path, to_json({**notes, "items": list(rows)}).encode(), overwrite=overwrite)
    else:
        columns = {name: _column(name, [row[name] for row in rows]) for name in rows[0]}
        write_table(path, "batch", columns, notes, overwrite=overwrite)


def _column(name: str, values: list[Any]) -> Column:
    described = name.replace("_", " ")
    if name in UNITS:
        return Column([None if value is None else float(value) for value in values], UNITS[name], described)
    return Column([printed(str(value)).decode() for value in values], "", described)
