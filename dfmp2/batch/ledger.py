"""batch.json and batch.csv: the state of a batch as it was last written, for people and for the next look."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dfmp2.batch.manifest import Batch, make_batch
from dfmp2.batch.settings import read_values
from dfmp2.batch.state import Known, Row, counts
from dfmp2.errors import InputError
from dfmp2.io.batch import INDEX, TABLE, read_index, to_csv, write_index
from dfmp2.io.files import write_atomically

VERSION = 1
STATUS_KEYS = ("name", "molecule", "status", "exit_code", "error", "output", "seconds")
NUMBERS = (
    "formula",
    "charge",
    "multiplicity",
    "reference",
    "basis",
    "scf_total_energy",
    "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_energy",
    "mp2_correlation_energy",
    "mp2_total_energy",
    "scs_mp2_correlation_energy",
    "nao",
    "homo_lumo_gap",
    "backend",
    "precision",
    "warnings",
)
ABANDONED = 3600.0  # s after which half a batch.json belongs to a process that was killed


def status(rows: Sequence[Row]) -> dict[str, Any]:
    """The object `batch status --json` prints."""
    found = counts(list(rows))
    items = [{key: getattr(row, key) for key in STATUS_KEYS} for row in rows]
    return {"total": len(rows), **found, "items": items}


def write_ledger(batch: Batch, rows: Sequence[Row]) -> None:
    """Write batch.json and batch.csv.

    Raises
    ------
    ResourceError : they cannot be written
    """
    value = status(rows)
    value["items"] = [
        {
            **item,
            **({"numbers": row.numbers, "fingerprint": row.fingerprint, "stamp": row.stamp} if row.numbers else {}),
        }
        for item, row in zip(value["items"], rows, strict=True)
    ]
    recorded: dict[str, Any] = {"manifest": batch.source}
    if not batch.source:  # so that `batch status OUTPUT` knows what the batch is
        files = [item.molecule for item in batch.items]
        recorded["files"] = {"root": str(batch.root), "names": files, "options": batch.items[0].given}
    write_index(batch.output / INDEX, {"dfmp2_batch_version": VERSION, **recorded, **value})
    write_atomically(batch.output / TABLE, to_csv([flat(row) for row in rows]), overwrite=True)


def read_ledger(batch: Batch) -> Known:
    """Rows of the last batch.json, by name; empty when there is none or it cannot be understood."""
    found: dict[str, Row] = {}
    value = read_index(batch.output / INDEX)
    items = value.get("items")
    for item in items if isinstance(items, list) else ():
        row = _row(item) if value.get("dfmp2_batch_version") == VERSION and isinstance(item, Mapping) else None
        if row is not None:
            found[row.name] = row
    return found


def read_recorded(folder: Path) -> Batch:
    """The batch whose files were named on the command line, from its output folder.

    Raises
    ------
    InputError : no such batch was run there
    """
    files = read_index(folder / INDEX).get("files")
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
    for name in (INDEX, TABLE):
        for part in folder.glob(f".{name}.part-*"):
            try:
                if time.time() - part.stat().st_mtime > ABANDONED:
                    part.unlink()
            except OSError:
                continue


def flat(row: Row) -> dict[str, Any]:
    """A row of batch.csv."""
    own = {key: getattr(row, key) for key in STATUS_KEYS}
    return {
        **{key: own[key] for key in ("name", "molecule", "status", "exit_code")},
        **{key: row.numbers.get(key) for key in NUMBERS},
        **{key: own[key] for key in ("seconds", "output", "error")},
    }


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
