"""The files of a batch beside its results: batch.json and batch.csv (its state when last written), NAME.error.json, and
tables of collected results."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dfmp2.errors import InputError
from dfmp2.execution.manifest import Batch, make_batch, read_values
from dfmp2.execution.state import NUMBERS, Known, Row, counts
from dfmp2.host.files import write_atomically
from dfmp2.output.study import Column, write_table

INDEX = "batch.json"
TABLE = "batch.csv"
VERSION = 1
LARGEST_INDEX = 500 * 10**6  # bytes
ABANDONED = 3600.0  # s after which half a batch.json belongs to a process that was killed
STATUS_KEYS = ("name", "molecule", "status", "exit_code", "error", "output", "seconds")
# Columns of numbers; every other one is text.
UNITS = {"exit_code": "", "seconds": "s"} | {name: unit for name, (_, unit) in NUMBERS.items() if unit is not None}


def status(rows: Sequence[Row]) -> dict[str, Any]:
    """The object `batch status --json` prints."""
    items = [{key: getattr(row, key) for key in STATUS_KEYS} for row in rows]
    return {"total": len(rows), **counts(list(rows)), "items": items}


def write_index(batch: Batch, rows: Sequence[Row]) -> None:
    """Write batch.json and batch.csv.

    Raises
    ------
    ResourceError : they cannot be written
    """
    value = status(rows)
    for item, row in zip(value["items"], rows, strict=True):
        if row.numbers:
            item |= {"numbers": row.numbers, "fingerprint": row.fingerprint, "stamp": row.stamp}
    recorded: dict[str, Any] = {"manifest": batch.source}
    if not batch.source:  # so that `batch status OUTPUT` knows what the batch is
        files = [item.molecule for item in batch.items]
        recorded["files"] = {"root": str(batch.root), "names": files, "options": batch.items[0].given}
    content = to_json({"dfmp2_batch_version": VERSION, **recorded, **value})
    write_atomically(batch.output / INDEX, content.encode(), overwrite=True)
    write_atomically(batch.output / TABLE, to_csv([_flat(row) for row in rows]), overwrite=True)


def read_index(batch: Batch) -> Known:
    """Rows of the last batch.json, by name; empty when there is none, or one of another version."""
    value = _read(batch.output)
    items = value.get("items") if value.get("dfmp2_batch_version") == VERSION else None
    rows = [_row(item) for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
    return {row.name: row for row in rows if row is not None}


def read_recorded(folder: Path) -> Batch:
    """The batch whose files were named on the command line, from its output folder.

    Raises
    ------
    InputError : no such batch was run there
    """
    files = _read(folder).get("files")
    try:
        if not isinstance(files, Mapping):
            raise TypeError
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
    for part in [*folder.glob(f".{INDEX}.part-*"), *folder.glob(f".{TABLE}.part-*")]:
        try:
            if time.time() - part.stat().st_mtime > ABANDONED:
                part.unlink()
        except OSError:
            continue


def write_failure(path: Path, code: int, message: str, traceback: str) -> None:
    """Write NAME.error.json.

    Raises
    ------
    ResourceError : it cannot be written
    """
    value = {"code": code, "message": message, "traceback": traceback}
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode(), overwrite=True)


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
        write_atomically(path, to_csv(rows), overwrite=overwrite)
    elif path.suffix == ".json":
        write_atomically(path, to_json({**notes, "items": list(rows)}).encode(), overwrite=overwrite)
    else:
        columns = {name: _column(name, [row[name] for row in rows]) for name in rows[0]}
        write_table(path, "batch", columns, notes, overwrite=overwrite)


def to_json(value: Any) -> str:
    """JSON text with a newline; numbers that JSON cannot hold are null."""
    return json.dumps(_plain(value), indent=1, allow_nan=False) + "\n"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A table with the keys of the first row as its head; numbers with all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(rows[0]) if rows else []
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if row[name] is None else row[name] for name in names])
    return _encodable(text.getvalue()).encode()


def _flat(row: Row) -> dict[str, Any]:
    """A row of batch.csv."""
    head = {key: getattr(row, key) for key in ("name", "molecule", "status", "exit_code")}
    numbers = {key: row.numbers.get(key) for key in NUMBERS}
    return head | numbers | {key: getattr(row, key) for key in ("seconds", "output", "error")}


def _read(folder: Path) -> dict[str, Any]:
    """What batch.json says, empty when it is not there or cannot be understood."""
    path = folder / INDEX
    try:
        if path.stat().st_size > LARGEST_INDEX:
            return {}
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _row(item: Mapping[str, Any]) -> Row | None:
    """A row out of batch.json, as far as it is what we wrote."""
    try:
        seconds = item.get("seconds")
        numbers, stamp = item.get("numbers", {}), item.get("stamp", (0, 0))
        return Row(
            str(item["name"]),
            str(item["molecule"]),
            str(item["status"]),
            exit_code=None if item.get("exit_code") is None else int(item["exit_code"]),
            seconds=None if seconds is None else float(seconds),
            numbers=numbers if isinstance(numbers, Mapping) and set(NUMBERS) <= set(numbers) else {},
            fingerprint=str(item.get("fingerprint", "")),
            stamp=(int(stamp[0]), int(stamp[1])),
        )
    except (LookupError, TypeError, ValueError, OverflowError):
        return None


def _column(name: str, values: list[Any]) -> Column:
    described = name.replace("_", " ")
    if name in UNITS:
        return Column([None if value is None else float(value) for value in values], UNITS[name], described)
    return Column([_encodable(str(value)) for value in values], "", described)


def _encodable(text: str) -> str:
    """Text as UTF-8 can hold it: a file name may have bytes that no encoding explains."""
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
