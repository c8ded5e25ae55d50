"""A worker process: loads the libraries once, then computes one item after the other as it is told.

Tasks come as lines of JSON on standard input, replies go as lines of JSON to what was standard output; what a library
prints goes to standard error. Everything that happens to an item's files happens here, under the item's lock.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from dfmp2 import threads
from dfmp2.batch.interruption import Interruption, die_with_parent, first_to_be_killed
from dfmp2.errors import (
    ComparisonFailed,
    DeviceFault,
    Dfmp2Error,
    InputError,
    Interrupted,
    ResourceError,
    ResultFileError,
)

PREVIOUS = ".previous"  # behind the name of a result whose input has changed
DAMAGED = ".damaged"  # behind the name of a file that is no whole result
NO_MEMORY = 7
LEAST_FREE = 10**6  # bytes of disk without which nothing is begun

Say = Callable[[str], None]


def main() -> int:
    """Read tasks until standard input ends; the exit code is 75 after SIGTERM."""
    faulthandler.enable()
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    interruption = Interruption()
    try:
        with interruption:
            die_with_parent(int(sys.argv[2]))
            first_to_be_killed()
            threads.set_environment(int(sys.argv[1]))
            _load_libraries()
            _send(channel, {"kind": "ready"})
            for line in sys.stdin:
                _send(channel, _answer(json.loads(line), interruption, partial(_say, channel)))
                interruption.check()
    except Interrupted:
        return Interrupted.exit_code
    except BrokenPipeError:  # the parent is gone
        return Interrupted.exit_code
    except Dfmp2Error as error:
        _send(channel, {"kind": "refused", "code": error.exit_code, "message": str(error)})
        return error.exit_code
    return 0


def compute(task: Mapping[str, Any], interruption: Interruption, journal: Any) -> Any:
    """The result of a task, not yet written; `journal` saves what is done and may hold what was done before.

    Raises
    ------
    Dfmp2Error : what `dfmp2 run` would say
    """
    from dfmp2 import pipeline
    from dfmp2.io.start_orbitals import read_start_orbitals

    molecule, options = read_task(task)
    origin = task["start"] or options.scf_from
    start = None if origin is None else read_start_orbitals(origin)
    listener = interruption.listener()
    return pipeline.run(molecule, options, start=start, listener=listener, command=task["command"], journal=journal)


def read_task(task: Mapping[str, Any]) -> tuple[Any, Any]:
    """Molecule and options of a task."""
    from dfmp2.io.xyz import parse_xyz
    from dfmp2.options import Options

    read = parse_xyz(
        task["text"],
        file=task["molecule"],
        units=task["units"],
        charge=task["charge"],
        multiplicity=task["multiplicity"],
    )
    return read.molecule.in_field(task["point_charges"]), Options(**task["options"])


def _load_libraries() -> None:
    """Pay for the imports of a calculation now."""
    import importlib

    from dfmp2.reference.shield import import_pyscf

    import_pyscf()
    for name in ("dfmp2.api", "dfmp2.planning", "dfmp2.batch.state", "pyscf.scf", "pyscf.df"):
        importlib.import_module(name)


def _send(channel: IO[str], reply: Mapping[str, Any]) -> None:
    channel.write(json.dumps(reply) + "\n")
    channel.flush()


def _say(channel: IO[str], text: str) -> None:
    """Tell the user something about the present item."""
    _send(channel, {"kind": "note", "text": text})


def _answer(task: Mapping[str, Any], interruption: Interruption, say: Say) -> dict[str, Any]:
    if task["kind"] == "sizes":
        return {"kind": "sizes", "sizes": _sizes(task["wanted"])}
    if task["kind"] == "need":
        return {"kind": "need", **_need(task)}
    start = time.perf_counter()
    try:
        reply = _carry_out(task, interruption, say)
    except Interrupted:
        reply = {"status": "pending"}
    return {"kind": "item", "place": task["place"], "seconds": time.perf_counter() - start, **reply}


def _carry_out(task: Mapping[str, Any], interruption: Interruption, say: Say) -> dict[str, Any]:
    """Compute an item and write its result or its error, unless another process is at it."""
    from dfmp2.io.lock import acquire, release

    target = Path(task["target"])
    try:
        other = acquire(target)
    except ResourceError as error:
        return _failure(task, error.exit_code, str(error))
    if other is not None:
        return {"status": "running", "message": f"it is being computed by {other}"}
    try:
        return _compute_and_write(task, target, interruption, say)
    except Interrupted:
        raise
    except Dfmp2Error as error:
        return _failure(task, error.exit_code, str(error)) | {"device_fault": isinstance(error, DeviceFault)}
    except MemoryError:
        share = task["options"].get("memory")
        return _failure(task, NO_MEMORY, f"the system refused to give more memory ({share} bytes were planned with)")
    except OSError as error:
        return _failure(task, ResourceError.exit_code, f"the system refused: {error}")
    finally:
        release(target)


def _compute_and_write(task: Mapping[str, Any], target: Path, interruption: Interruption, say: Say) -> dict[str, Any]:
    from dfmp2.batch.state import stamp, summary
    from dfmp2.io import hdf5
    from dfmp2.io.checkpoint import checkpointing
    from dfmp2.io.files import require_writable

    found = _set_aside(target, task["fingerprint"])
    if found is not None:
        return {"status": "complete", "numbers": summary(found), "stamp": stamp(target), "found": True}
    require_writable(target, overwrite=False, expected_bytes=LEAST_FREE)
    with (
        checkpointing(target, resume=True, note=_unsaid, warn=say, replace_foreign=True) as kept,
        interruption.finishing(kept.journal),
    ):
        result = compute(task, interruption, kept.journal)
        if result.check is not None and not result.check.passed:
            raise ComparisonFailed(
                f"PySCF's DF-MP2 differs by {result.check.largest_difference:.1e} Eh, more than the allowed "
                f"{result.check.allowed:.1e} Eh; the result was not written"
            )
        interruption.check()
        with interruption.held():
            hdf5.write(result, target)
            kept.complete()
            for name in (task["failure"], f"{target}{PREVIOUS}"):
                Path(name).unlink(missing_ok=True)
    return {"status": "complete", "numbers": summary(result), "stamp": stamp(target), "spent": result.timings.total}


def _unsaid(text: str) -> None:
    """That a checkpoint is there or not is no news in a batch."""


def _set_aside(target: Path, fingerprint: str) -> Any:
    """The result at `target` if it is complete and of this input; else it is renamed, and there is none.

    One of another input goes when the new one is there; what cannot be read may be somebody else's, and stays.
    """
    from dfmp2.batch.inputs import fingerprint_of
    from dfmp2.io.verified import read_verified

    for part in target.parent.glob(f".{target.name}.part-*"):  # of a process that was killed while it wrote
        part.unlink(missing_ok=True)
    if not os.path.lexists(target):
        return None
    try:
        found = read_verified(target)
    except (InputError, ResultFileError):
        os.replace(target, f"{target}{DAMAGED}")
        return None
    if fingerprint_of(found) == fingerprint:
        return found
    os.replace(target, f"{target}{PREVIOUS}")
    return None


def _failure(task: Mapping[str, Any], code: int, message: str) -> dict[str, Any]:
    from dfmp2.io.batch import write_failure

    if "--memory" in message and task["workers"] > 1:
        message += f"; each of the {task['workers']} workers has its share of the --memory of the batch"
    reply = {"status": "failed", "code": code, "message": message}
    try:
        write_failure(Path(task["failure"]), code, message, traceback.format_exc())
    except ResourceError as error:
        reply["unwritten"] = str(error)
    return reply


def _sizes(wanted: list[list[Any]]) -> list[list[Any]]:
    """[key, {symbol: numbers}] for every [key, symbols]."""
    from dataclasses import astuple

    from dfmp2.batch.sizes import element_sizes

    found = []
    for key, symbols in wanted:
        sizes = element_sizes(tuple(key), symbols)
        found.append([key, {symbol: astuple(size) for symbol, size in sizes.items()}])
    return found


def _need(task: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes an item needs: at least, and with everything in memory. Nothing is computed."""
    from dfmp2.planning import make_plan
    from dfmp2.progress import Listener
    from dfmp2.reference.mean_field import reference_kind
    from dfmp2.system import frozen_core, prepare, resolve

    class Quiet(Listener):
        def warning(self, text: str) -> None:
            """Said when the item was computed."""

    try:
        molecule, options = read_task(task)
        options = options.settled(molecule.multiplicity)
        setup = prepare(options, "")
        system = resolve(molecule, setup, Quiet())
        kind = reference_kind(options, molecule.multiplicity)
        plan = make_plan(system, setup, frozen_core(system, options, Quiet()), kind).memory
    except Dfmp2Error:
        return {"least": None, "most": None}
    return {"least": plan.least, "most": plan.comfortable}
