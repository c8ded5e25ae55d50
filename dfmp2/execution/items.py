"""An item of a batch: its input, status, and computation by a worker.

complete: NAME.h5 is intact and was computed from the current input. running: a live process holds
its lock. failed: NAME.error.json exists. pending: everything else. An index
(`dfmp2.output.batch_index`) caches the status, so that results are not reread while size and
modification time stay the same.

A result counts if its input has the same fingerprint: geometry and point charges (bit by bit),
charge, multiplicity and every option that can change a result or its checks; memory, threads and
scratch do not.

All changes to an item's files are made in `compute_item`, under the item's lock; the result is
written to a temporary file and renamed, so that a worker may be killed at any time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from dfmp2.errors import (
    DeviceFault,
    Dfmp2Error,
    DiskFull,
    InputError,
    Interrupted,
    Message,
    Option,
    ResourceError,
    ResultFileError,
)
from dfmp2.execution.manifest import Batch, BatchItem
from dfmp2.execution.pool import WorkerShare, stops
from dfmp2.host.files import (
    NO_FILE,
    acquire_lock,
    disk_refusal,
    folder_refusal,
    lock_holder,
    read_json,
    release_lock,
    require_writable,
    stamp,
    write_atomically,
)
from dfmp2.host.provenance import version
from dfmp2.molecule.files import read_file, read_frame, read_point_charges
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.identity import changed, fingerprint, question
from dfmp2.mp2.result import MP2Result
from dfmp2.options import ALL, KEPT, Options
from dfmp2.options.basis_parts import for_elements, parse_parts, require_elements
from dfmp2.options.methods import MP2
from dfmp2.output import batch_index, hdf5
from dfmp2.output.checkpoint import Stop, checkpointing
from dfmp2.output.hdf5_datasets import reduced

# Function of a molecule and options, such as `dfmp2.mp2.energy.mp2_energy`.
Compute = Callable[..., MP2Result]
STATES = ("complete", "failed", "pending", "running")
STATUS_KEYS = ("name", "molecule", "status", "exit_code", "error", "output", "seconds")
START = "start orbitals sha256:"  # in the command stored with a result
INPUT = "input sha256:"  # precedes the fingerprint, in the command of a task other than an energy
PREVIOUS = ".previous"  # suffix for a file that is not the result of the current input


class Input(NamedTuple):
    """The input of an item: its molecule with point charges, or why it cannot be read; SHA-256 of
    everything, and of the start orbitals ("" for none); the stamp of the molecule's file before it
    was read."""

    item: BatchItem
    molecule: Molecule | InputError
    fingerprint: str = ""
    start: str = ""
    source: tuple[int, int] = NO_FILE


@dataclass(frozen=True, slots=True)
class ItemStatus:
    """The status of an item.

    Attributes
    ----------
    status : one of STATES
    exit_code, error : of a failed item; 0 and None for a complete one
    output, seconds, energy, method : of a complete item: its file, wall time of the calculation,
        total energy of the method in Eh, and title of the method; "" if an index of an earlier
        version has the energy of plain MP2
    fingerprint, stamp : of a complete item: fingerprint of its input; size and modification time of
        its file
    kept : how much of the result is stored
    asked, source : hash of the specification of the item, and stamp of its molecule's file when it
        was read
    remark : why an existing result does not count, or who computes the item
    notes, device_fault : from its worker: notes for the user, and whether its device must no longer
        be used
    blocked : DiskFull or ResourceError if it was abandoned because the disk is full, or because
        nothing can be written into its folder; details are in `error`
    """

    name: str
    molecule: str
    status: str = "pending"
    exit_code: int | None = None
    error: str | None = None
    output: str | None = None
    seconds: float | None = None
    energy: float | None = None
    method: str = ""
    fingerprint: str = ""
    stamp: tuple[int, int] = NO_FILE
    kept: str = ALL
    asked: str = ""
    source: tuple[int, int] = NO_FILE
    remark: str = ""
    notes: tuple[str, ...] = ()
    device_fault: bool = False
    blocked: type[ResourceError] | None = None


def said_energy(item: BatchItem, row: ItemStatus) -> str:
    """The energy of a complete item as printed, "" if an index of an earlier version has none."""
    if row.energy is None or math.isnan(row.energy):
        return ""
    title = row.method
    if not title:  # from an earlier version, whose energy, if any, is that of MP2
        method = item.options.correlation
        title = MP2.title if method.scaled_mp2 else method.title
    return f"E({title}) = {row.energy:.10f} Eh"


# --- input ----------------------------------------------------------------------------------------


def read_input(item: BatchItem) -> Input:
    """The input of an item, with the error of `dfmp2 run` in place of an unreadable molecule."""
    given = {"units": "angstrom", **item.given}
    state: dict[str, Any] = {name: given.get(name) for name in ("charge", "multiplicity", "units")}
    source = stamp(item.path)
    try:
        charges = None
        if "point_charges" in given:
            charges = read_point_charges(
                given["point_charges"], given.get("point_charge_units", "angstrom")
            )
        if "frame" in given:
            molecule = read_frame(item.path, given["frame"], called=item.molecule, **state)
        else:
            molecule = read_file(item.path, called=item.molecule, **state).molecule
        molecule = molecule.in_field(charges)
        basis = for_elements(item.options.basis, molecule.elements)
        if basis != item.options.basis:
            item = replace(item, options=replace(item.options, basis=basis))
        start = ""
        if item.options.scf_from is not None:
            start = _file_hash(Path(item.options.scf_from))
        asked = fingerprint(molecule, item.options, start)
    except InputError as error:
        return Input(item, error)
    if item.task != "energy":
        asked = hashlib.sha256(f"{item.task} {asked}".encode()).hexdigest()
    return Input(item=item, molecule=molecule, fingerprint=asked, start=start, source=source)


def read_inputs(batch: Batch, *, whole: bool = True) -> list[Input]:
    """The inputs of all items.

    Parameters
    ----------
    whole : bool, optional
        Whether these are all items, not those of one shard, so that `unused_sets` can be detected.
    """
    inputs = [read_input(item) for item in batch.items]
    if not whole:
        return inputs
    refused = unused_sets(batch, inputs)
    return [
        one._replace(molecule=refused.get(item.options.basis, one.molecule))
        for item, one in zip(batch.items, inputs, strict=True)
    ]


def unused_sets(batch: Batch, inputs: Sequence[Input]) -> dict[str, InputError]:
    """Errors about bases with a set for an element that none of their molecules contains, by
    basis."""
    elements: dict[str, set[str]] = {}
    unread = set()  # bases with an unreadable molecule
    for item, one in zip(batch.items, inputs, strict=True):
        basis = item.options.basis
        if isinstance(one.molecule, InputError):
            unread.add(basis)
        else:
            elements.setdefault(basis, set()).update(one.molecule.elements)
    errors: dict[str, InputError] = {}
    for basis in elements.keys() - unread:
        try:
            require_elements(basis, elements[basis])
        except InputError as error:
            errors[basis] = error
    return errors


def inputs_to_share(batch: Batch) -> list[Input]:
    """The inputs of all items of a batch that is to be divided into shards.

    Raises
    ------
    InputError : a basis has a set for an element that none of its molecules contains, which a
        single shard cannot detect
    """
    inputs = read_inputs(batch, whole=False)
    for error in unused_sets(batch, inputs).values():
        raise error
    return inputs


def fingerprint_of(result: MP2Result) -> str:
    """The fingerprint of the input of a stored result; for tasks other than energies it is in the
    command."""
    said = {
        mark: re.search(re.escape(mark) + "([0-9a-f]{64})", result.provenance.command)
        for mark in (INPUT, START)
    }
    if task := said[INPUT]:
        return task[1]
    return fingerprint(result.molecule, result.options, start[1] if (start := said[START]) else "")


def _file_hash(path: Path) -> str:
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(
            Option("scf_from", path), f": expected a file with start orbitals ({error.strerror})"
        ) from error


# --- state ----------------------------------------------------------------------------------------


def look(inputs: Iterable[Input], known: Mapping[str, ItemStatus]) -> list[ItemStatus]:
    """The status of items; `known` is their status in the index, by name."""
    return [look_at(given, known.get(given.item.name)) for given in inputs]


def look_items(batch: Batch) -> list[ItemStatus]:
    """The status of all items; molecules and results unchanged since the index was written are not
    reread."""
    known = read_index(batch)
    rows = []
    for item in batch.items:
        row = unchanged(item, known.get(item.name))
        if row is None:
            row = look_at(read_input(item), known.get(item.name))
        rows.append(row)
    return rows


def unchanged(item: BatchItem, known: ItemStatus | None) -> ItemStatus | None:
    """The `known` status of a complete item if its options and its molecule and result files are
    unchanged; None otherwise."""
    if known is None or known.status != "complete" or not known.asked:
        return None
    if known.asked != asked_hash(item) or known.source != stamp(item.path):
        return None
    if (
        not _keeps(known.kept, item)
        or known.stamp != stamp(item.target)
        or lock_holder(item.target)
    ):
        return None
    return replace(known, molecule=item.molecule, output=str(item.target))


def asked_hash(item: BatchItem) -> str:
    """Hash of the specification of an item; "" if it names further files, whose content counts."""
    if item.options.scf_from is not None or "point_charges" in item.given:
        return ""
    if parse_parts(item.options.basis).files:
        return ""
    said = sorted((name, repr(value)) for name, value in item.given.items())
    return hashlib.sha256(repr((version(), said)).encode()).hexdigest()[:16]


def _keeps(kept: str, item: BatchItem) -> bool:
    """Whether a file that keeps this much of a result satisfies the item."""
    return kept in KEPT and KEPT.index(kept) >= KEPT.index(item.keep)


def look_at(given: Input, known: ItemStatus | None = None) -> ItemStatus:
    """The status of an item from its files, or the `known` one of a complete item if its file is
    unchanged."""
    item = given.item
    if other := lock_holder(item.target):
        return ItemStatus(
            item.name, item.molecule, "running", remark=f"it is being computed by {other}"
        )
    now = given.fingerprint, stamp(item.target)
    same = known is not None and (known.fingerprint, known.stamp) == now
    if known is not None and known.status == "complete" and same and _keeps(known.kept, item):
        return replace(
            known,
            molecule=item.molecule,
            output=str(item.target),
            asked=asked_hash(item),
            source=given.source,
        )
    row, _ = read_result(given)
    if row.status == "complete":
        return row
    failure = read_json(error_file(item.target))
    if not isinstance(failure.get("code"), int):
        return row
    message = Message.from_json(failure.get("parts"), str(failure.get("message")))
    return replace(row, status="failed", exit_code=failure["code"], error=message)


def read_result(given: Input) -> tuple[ItemStatus, MP2Result | None]:
    """The row of an item and its result; "pending" and None, with a remark, if a file does not
    count."""
    item = given.item
    row = ItemStatus(given.item.name, given.item.molecule)
    if isinstance(given.molecule, InputError):
        return replace(row, remark=str(given.molecule)), None
    if not os.path.lexists(item.target):
        return row, None
    try:
        result = hdf5.read(item.target)
    except (InputError, ResultFileError) as error:
        return replace(row, remark=f"its result does not count ({error})"), None
    if fingerprint_of(result) == given.fingerprint:
        if _keeps(result.kept, item):
            return _complete(given, result), result
        remark = f"its file keeps {result.kept}, and {item.keep} is asked for"
        return replace(row, remark=remark), None
    there = question(result.molecule, result.options)
    here = question(given.molecule, item.options)
    what = ", ".join(changed(there, here)) or "task or start orbitals"
    return replace(row, remark=f"its input has changed since the result was made ({what})"), None


def _complete(given: Input, result: MP2Result) -> ItemStatus:
    item = given.item
    return ItemStatus(
        name=item.name,
        molecule=item.molecule,
        status="complete",
        exit_code=0,
        error=None,
        output=str(item.target),
        seconds=result.timings.total,
        energy=result.total_energy,
        method=result.options.correlation.title,
        fingerprint=given.fingerprint,
        stamp=stamp(item.target),
        kept=result.kept,
        asked=asked_hash(item),
        source=given.source,
    )


def error_file(target: Path) -> Path:
    """NAME.error.json beside NAME.h5."""
    return target.with_suffix(".error.json")


def index_rows(rows: Iterable[ItemStatus]) -> list[dict[str, Any]]:
    """Rows in the form of the index, without default values."""
    return [
        {name: value for name, value in asdict(row).items() if value != DEFAULTS.get(name)}
        for row in rows
    ]


DEFAULTS = {field.name: field.default for field in fields(ItemStatus)}


def read_index(batch: Batch, shard: tuple[int, int] | None = None) -> dict[str, ItemStatus]:
    """The status of items in the index, by name: from all of its files, or only that of a shard."""
    rows = {}
    for name, values in batch_index.read_rows(batch.output, shard).items():
        known = {field: values[field] for field in DEFAULTS if field in values}
        try:
            row = ItemStatus(**known)
            size, changed_at = map(int, row.stamp)
            size_there, changed_there = map(int, row.source)
        except (TypeError, ValueError):
            continue
        rows[name] = replace(row, stamp=(size, changed_at), source=(size_there, changed_there))
    return rows


# --- computation ----------------------------------------------------------------------------------


def compute_item(
    given: Input,
    start: Path | None,
    scratch: str | None,
    command: str,
    share: WorkerShare,
    optimize: Compute | None = None,
) -> ItemStatus:
    """Compute an item and write its result or its error, unless another process is working on it.

    The returned row tells the outcome; "pending" if it was stopped. Any exception other than
    `Dfmp2Error` is a bug in dfmp2 and propagates to the parent.

    Parameters
    ----------
    start : result file whose orbitals the SCF starts from, None for the default
    scratch : folder for data that do not fit into memory, None for the default
    command : recorded as provenance
    share : share of the machine for this worker
    optimize : function that optimises the geometry of an item
    """
    begun = time.perf_counter()
    target = given.item.target
    notes = list[str]()
    row = ItemStatus(given.item.name, given.item.molecule)
    try:
        if other := acquire_lock(target):
            return replace(row, status="running", remark=f"it is being computed by {other}")
        try:
            options = replace(
                given.item.options, threads=share.threads, memory=share.memory, scratch=scratch
            )
            compute = _function_of(given.item.task, optimize)
            row = _compute(given, options, start, command, Stop(share.stop_asked), notes, compute)
        finally:
            release_lock(target)
    except Interrupted:
        pass
    except (Dfmp2Error, MemoryError, OSError) as error:
        # Not the item's fault: it is computed once it can be written
        obstacle = folder_refusal(target.parent)
        if obstacle is not None:
            return replace(
                row,
                status="pending",
                error=f"{target.parent} can no longer be written ({obstacle.strerror})",
                notes=tuple(notes),
                blocked=ResourceError,
            )
        if isinstance(error, DiskFull) or (
            isinstance(error, OSError) and disk_refusal(error) is DiskFull
        ):
            said = error.message if isinstance(error, Dfmp2Error) else str(error)
            return replace(row, status="pending", error=said, notes=tuple(notes), blocked=DiskFull)
        row = _row_of_error(given.item, error, share)
        row = replace(row, seconds=time.perf_counter() - begun)
    finally:
        stops.clear()
    return replace(row, notes=(*notes, *row.notes))


def _row_of_error(
    item: BatchItem, error: Dfmp2Error | MemoryError | OSError, share: WorkerShare
) -> ItemStatus:
    """The row of an item that ended with an error, which is being handled."""
    if isinstance(error, Dfmp2Error):
        code, message = error.exit_code, error.message
    else:
        code = ResourceError.exit_code
        message = Message(f"the system refused: {str(error) or 'no more memory'}")
    if share.token is None:  # workers of a Dask cluster have the whole limit each
        message = of_one_worker(message)
    row = failed(item, code, message, traceback.format_exc())
    return replace(row, device_fault=isinstance(error, DeviceFault))


def of_one_worker(message: Message) -> Message:
    """A message with a reminder, if it advises a limit on memory, that workers divide it."""
    if not any(option.name == "memory" for option in message.options):
        return message
    return Message(
        message,
        "; that is for each worker of the batch, and they divide ",
        Option("memory"),
        " among them: use fewer ",
        Option("workers"),
        ", or give more",
    )


def failed(item: BatchItem, code: int, message: Message, text: str) -> ItemStatus:
    """Write NAME.error.json with the traceback `text`, and return the row of the failed item."""
    content = {"code": code, "message": message, "parts": message.to_json(), "traceback": text}
    value = json.dumps(content, indent=2)
    notes = tuple[str, ...]()
    try:
        write_atomically(error_file(item.target), f"{value}\n".encode(), overwrite=True)
    except ResourceError as error:
        notes = (f"its error file is missing: {error}",)
    return ItemStatus(
        name=item.name,
        molecule=item.molecule,
        status="failed",
        exit_code=code,
        error=message,
        notes=notes,
    )


def _function_of(task: str, optimize: Compute | None) -> Compute:
    """The function that performs a task; `optimize` is that for optimisations."""
    if task == "energy":
        from dfmp2.mp2.energy import mp2_energy

        return mp2_energy
    if task == "properties":
        from dfmp2.gradients.gradient import certified_properties

        return certified_properties
    if task == "gradient":
        from dfmp2.gradients.gradient import certified_gradient

        return certified_gradient
    if optimize is None:
        raise ValueError(f"no function computes the task {task!r}")
    return optimize


def _compute(
    given: Input,
    options: Options,
    start: Path | None,
    command: str,
    stop: Stop,
    notes: list[str],
    compute: Compute,
) -> ItemStatus:
    """Compute an item and return its row, unless another process has finished it meanwhile."""
    item, target = given.item, given.item.target
    row, _ = read_result(given)
    if row.status == "complete":
        notes.append("another process has finished it meanwhile")
        return row
    if isinstance(given.molecule, InputError):
        raise given.molecule
    if os.path.lexists(target):
        os.replace(target, f"{target}{PREVIOUS}")
    require_writable(target, overwrite=False)
    with checkpointing(
        target,
        resume=True,
        note=lambda _: None,
        warn=notes.append,
        replace_foreign=True,
        in_batch=True,
    ) as stop.checkpoint:
        origin = start or options.scf_from
        result = compute(
            given.molecule,
            options,
            start=None if origin is None else hdf5.read_start_orbitals(str(origin)),
            listener=stop,
            command=_command_of(given, command),
            checkpoint=stop.checkpoint,
        )
        if result.check is not None:
            result.check.require("; the result was not written")
        result = reduced(result, item.keep)
        hdf5.write(result, target, packed=True)
        stop.checkpoint.complete()
        error_file(target).unlink(missing_ok=True)
    return _complete(given, result)


def _command_of(given: Input, command: str) -> str:
    """The command stored with the result of an item, from which `fingerprint_of` reads."""
    command = f"{command}  # item {given.item.name}"
    if given.start:
        command += f"; {START}{given.start}"
    if given.item.task != "energy":
        command += f"; {given.item.task}, {INPUT}{given.fingerprint}"
    return command
