"""Where every item of a batch stands, read from its output folder at any time; and which results count.

complete: NAME.h5 is whole and was made from the present input. running: a living process holds its lock. failed:
NAME.error.json. pending: everything else. Files that were found complete are not read again while size and time of
change stay the same (`Known`).

A result counts when its input has the same fingerprint: geometry and point charges (their bits), charge, multiplicity
and every option that can change a result or its checks; memory, threads and scratch only decide how it is reached.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from dfmp2.errors import InputError, ResultFileError
from dfmp2.execution.manifest import Batch, Item
from dfmp2.host.locks import holder
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.text import read_text
from dfmp2.molecule.xyz import MAX_BYTES, TOO_LARGE, parse_xyz, read_point_charges
from dfmp2.mp2.identity import changed, fingerprint, question
from dfmp2.mp2.result import MP2Result
from dfmp2.options import Options
from dfmp2.output.hdf5 import read_verified

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
STATES = ("complete", "failed", "pending", "running")
# Options with which a finished result stays what it is.
START = "start orbitals sha256:"  # in the command that a result was made with
LARGEST_START = 4 * 10**9  # bytes of a file with start orbitals
LARGEST_ERROR = 10**6  # bytes of an error file


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
    return Input(molecule, fingerprint(molecule, item.options, start), start)


def fingerprint_of(result: MP2Result) -> str:
    """The fingerprint of the input a stored result was made from."""
    found = re.search(re.escape(START) + "([0-9a-f]{64})", result.provenance.command)
    return fingerprint(result.molecule, result.options, found[1] if found else "")


def _changes(result: MP2Result, wanted: Input, options: Options) -> str:
    """What of the input has changed since a result was made, for people."""
    there, here = question(result.molecule, result.options), question(wanted.molecule, options)
    return ", ".join(changed(there, here)) or "start orbitals"


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
    """The NUMBERS of a result."""
    found = {name: attrgetter(attribute)(result) for name, (attribute, _) in NUMBERS.items()}
    return {**found, "warnings": len(found["warnings"])}


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
        changed = _changes(result, given, item.options)
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
