"""Where every item of a batch stands, read from its output folder at any time.

complete: NAME.h5 is whole and was made from the present input. running: a living process holds its lock. failed:
NAME.error.json. pending: everything else. Files that were found complete are not read again while size and time of
change stay the same (`Known`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dfmp2.batch.inputs import Input, differences, fingerprint_of, read_input
from dfmp2.batch.manifest import Batch, Item
from dfmp2.errors import InputError, ResultFileError
from dfmp2.io.lock import holder
from dfmp2.io.verified import read_verified
from dfmp2.result import MP2Result

STATES = ("complete", "failed", "pending", "running")
LARGEST_ERROR = 10**6  # bytes of an error file


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
    numbers : what else a complete result says, for the table (`summary`)
    fingerprint, stamp : input, and size and time of change of the file of a complete result
    remark : why a result that is there does not count
    """

    name: str
    molecule: str
    status: str
    exit_code: int | None = None
    error: str | None = None
    output: str | None = None
    seconds: float | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    stamp: tuple[int, int] = (0, 0)
    remark: str = ""


Known = Mapping[str, Row]  # rows of an earlier look, by name


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
    row = Row(item.name, item.molecule, "pending")
    other = holder(batch.result(item))
    if other is not None:
        return replace(row, status="running", remark=f"it is being computed by {other}")
    try:
        given = given or read_input(item)
    except InputError as error:
        broken = _failed(batch, item, row, known)
        return broken if broken.status == "failed" else replace(row, remark=str(error))
    row = _complete(batch, item, given, row, known)
    return row if row.status == "complete" else _failed(batch, item, row, known)


def counts(rows: list[Row]) -> dict[str, int]:
    """Number of items in each state."""
    return {state: sum(row.status == state for row in rows) for state in STATES}


def summary(result: MP2Result) -> dict[str, Any]:
    """Numbers of a result for a table; energies in hartree."""
    return {
        "formula": result.molecule.formula,
        "charge": result.molecule.charge,
        "multiplicity": result.molecule.multiplicity,
        "reference": result.reference.kind,
        "basis": result.orbital_basis.name,
        "scf_total_energy": result.scf_total_energy,
        "mp2_same_spin_correlation_energy": result.mp2_same_spin_correlation_energy,
        "mp2_opposite_spin_correlation_energy": result.mp2_opposite_spin_correlation_energy,
        "mp2_correlation_energy": result.mp2_correlation_energy,
        "mp2_total_energy": result.mp2_total_energy,
        "scs_mp2_correlation_energy": result.scs_mp2_correlation_energy,
        "nao": result.sizes.nao,
        "homo_lumo_gap": result.diagnostics.homo_lumo_gap,
        "backend": result.backend,
        "precision": result.precision,
        "warnings": len(result.diagnostics.warnings),
    }


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of change of a file, zeros when there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _complete(batch: Batch, item: Item, given: Input, row: Row, known: Row | None) -> Row:
    path = batch.result(item)
    now = stamp(path)
    if now == (0, 0):
        return row
    same = known is not None and known.status == "complete" and known.fingerprint == given.fingerprint
    if known is not None and same and known.stamp == now and known.numbers:
        return replace(known, molecule=item.molecule, output=str(path))
    try:
        result = read_verified(path)
    except (InputError, ResultFileError) as error:
        return replace(row, remark=f"its result does not count ({error})")
    if fingerprint_of(result) != given.fingerprint:
        changed = differences(result, given, item.settings.options)
        return replace(row, remark=f"its input has changed since the result was made ({changed})")
    return Row(
        item.name,
        item.molecule,
        "complete",
        exit_code=0,
        output=str(path),
        seconds=result.timings.total,
        numbers=summary(result),
        fingerprint=given.fingerprint,
        stamp=now,
    )


def _failed(batch: Batch, item: Item, row: Row, known: Row | None) -> Row:
    """The row as failed, if there is an error file."""
    path = batch.failure(item)
    try:
        if path.stat().st_size > LARGEST_ERROR:
            return row
        found = json.loads(path.read_text(encoding="utf-8"))
        code, message = int(found["code"]), str(found["message"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return row
    seconds = known.seconds if known is not None and known.status == "failed" else None
    return replace(row, status="failed", exit_code=code, error=message, seconds=seconds)
