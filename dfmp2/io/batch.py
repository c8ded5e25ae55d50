"""The files of a batch beside its results: batch.json, batch.csv, NAME.error.json, and tables of collected results."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dfmp2.io.files import write_atomically
from dfmp2.io.table import Column, write_table

INDEX = "batch.json"
TABLE = "batch.csv"
LARGEST_INDEX = 500 * 10**6  # bytes
UNITS = {  # columns of numbers; every other one is text
    "exit_code": "",
    "charge": "elementary charge",
    "multiplicity": "",
    "scf_total_energy": "hartree",
    "mp2_same_spin_correlation_energy": "hartree",
    "mp2_opposite_spin_correlation_energy": "hartree",
    "mp2_correlation_energy": "hartree",
    "mp2_total_energy": "hartree",
    "scs_mp2_correlation_energy": "hartree",
    "nao": "",
    "homo_lumo_gap": "hartree",
    "warnings": "",
    "seconds": "s",
}


def write_failure(path: Path, code: int, message: str, traceback: str) -> None:
    """Write NAME.error.json.

    Raises
    ------
    ResourceError : it cannot be written
    """
    value = {"code": code, "message": message, "traceback": traceback}
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode(), overwrite=True)


def write_index(path: Path, value: Mapping[str, Any]) -> None:
    """Write batch.json.

    Raises
    ------
    ResourceError : it cannot be written
    """
    write_atomically(path, to_json(value).encode(), overwrite=True)


def read_index(path: Path) -> dict[str, Any]:
    """What batch.json says, empty when it is not there or cannot be understood."""
    try:
        if path.stat().st_size > LARGEST_INDEX:
            return {}
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


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
