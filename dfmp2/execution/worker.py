"""What runs in a worker: a process is set up and loads the libraries once, then computes one item after the other.

This module is imported before threads and devices are set, so it imports nothing that imports NumPy. Everything that
happens to an item's files happens here, under the item's lock; the result is written beside its place and renamed, so
that a worker may be killed at any time.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfmp2.errors import (
    ComparisonFailed,
    DeviceFault,
    Dfmp2Error,
    InputError,
    Interrupted,
    ResourceError,
    ResultFileError,
)
from dfmp2.host import threads
from dfmp2.progress import Silent

if TYPE_CHECKING:
    from dfmp2.execution.manifest import Item
    from dfmp2.execution.state import Input, Row
    from dfmp2.output.checkpoint import FileCheckpoint

PREVIOUS = ".previous"  # behind the name of a result whose input has changed
DAMAGED = ".damaged"  # behind the name of a file that is no whole result
LEAST_FREE = 10**6  # bytes of disk without which nothing is begun
PATIENCE = 6.0  # s to come to the next safe point when the parent is gone
LOOK_EVERY = 0.5  # s between two looks for the token

_idle = threading.Event()  # nothing is computed
_idle.set()


@dataclass(frozen=True, slots=True)
class Task:
    """One item with its input, in which folder its result goes, and what its worker may use.

    Attributes
    ----------
    share : threads, memory in bytes and scratch of this worker, by the names of the options
    start : result whose orbitals the SCF starts from, None for the default
    command : for the provenance
    token : file that is there while the batch goes on, None where a signal says when it does not
    """

    item: Item
    given: Input
    output: Path
    share: Mapping[str, Any]
    start: Path | None
    command: str
    token: Path | None

    @property
    def target(self) -> Path:
        """Where the result goes."""
        return self.output / f"{self.item.name}.h5"


def begin(count: int, variables: Mapping[str, str], errors: str) -> None:
    """Set threads and devices before anything reads them; the initializer of the process, whose signals are blocked.

    Parameters
    ----------
    count : threads of each calculation
    variables : environment variables that show the process its device
    errors : file that standard output and error go to
    """
    os.environ.update(variables)
    threads.set_environment(count)
    stream = os.open(errors, os.O_WRONLY | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    faulthandler.enable(2)
    os.setsid()  # Ctrl-C on the terminal reaches the parent only, which then decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: Stop.ask())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def load_libraries() -> None:
    """Pay for the imports of a calculation now; InputError where PySCF is missing or not usable."""
    from dfmp2.host.deferred import defer_numpy_extras, defer_unused
    from dfmp2.molecule.pyscf_shield import import_pyscf

    defer_unused()  # as the command line does: 20 MB
    defer_numpy_extras()
    import_pyscf()
    for name in ("dfmp2.interop.python", "dfmp2.planning.plan", "dfmp2.execution.state", "pyscf.scf", "pyscf.df"):
        import_module(name)
    gc.freeze()  # what is loaded stays: it is spared by the collections of every item, most of whose time it takes


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        Stop.ask()
        _idle.wait(PATIENCE)
        os._exit(Interrupted.exit_code)


class Stop(Silent):
    """Ends an item at the next event of its run, or at the next safe point where there is a checkpoint."""

    asked = False  # of this process, by a signal

    def __init__(self, token: Path | None) -> None:
        self.checkpoint: FileCheckpoint | None = None
        self._token, self._looked = token, time.monotonic()

    @classmethod
    def ask(cls, stop: bool = True) -> None:
        """Ask for it, or forget it."""
        cls.asked = stop

    def stage(self, text: str) -> None:
        self._check()

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self._check()

    def step(self, done: int, total: int, what: str) -> None:
        self._check()

    def _check(self) -> None:
        """Raise `Interrupted` where the item is to stop and no safe point is waited for."""
        stop = self.asked
        if self._token is not None and time.monotonic() - self._looked > LOOK_EVERY:
            self._looked, stop = time.monotonic(), not self._token.exists()
        if stop and not (self.checkpoint is not None and self.checkpoint.ask_to_stop()):
            raise Interrupted("stopped")


def compute_item(task: Task) -> Row:
    """Compute an item and write its result or its error, unless another process is at it.

    The row says what became of it; "pending" when it was stopped. An exception that is no `Dfmp2Error` is a fault in
    dfmp2; the parent hears of it.
    """
    from dfmp2.execution.state import Row
    from dfmp2.host.locks import acquire, release

    begun, target, notes = time.perf_counter(), task.target, list[str]()
    row = Row(task.item.name, task.item.molecule)
    _idle.clear()
    try:
        other = acquire(target)
        if other is not None:
            return replace(row, status="running", remark=f"it is being computed by {other}")
        try:
            row = _compute_and_write(task, row, notes)
        finally:
            release(target)
    except Interrupted:
        pass
    except (Dfmp2Error, MemoryError, OSError) as error:
        message = str(error) or f"no more memory ({task.share['memory']} bytes were planned with)"
        code = error.exit_code if isinstance(error, Dfmp2Error) else ResourceError.exit_code
        message = message if isinstance(error, Dfmp2Error) else f"the system refused: {message}"
        if "--memory" in message:
            message += "; each worker of a batch has its share of the memory"
        row = failed(row, target, code, message, traceback.format_exc())
        row = replace(row, seconds=time.perf_counter() - begun, device_fault=isinstance(error, DeviceFault))
    finally:
        Stop.ask(False)
        _idle.set()
    return replace(row, notes=(*notes, *row.notes))


def failed(row: Row, target: Path, code: int, message: str, text: str) -> Row:
    """The row of an item that failed, after writing NAME.error.json."""
    from dfmp2.execution.state import error_file, write_failure

    try:
        write_failure(error_file(target), code, message, text)
    except ResourceError as error:
        row = replace(row, notes=(*row.notes, f"its error file is missing: {error}"))
    return replace(row, status="failed", exit_code=code, error=message)


def _compute_and_write(task: Task, row: Row, notes: list[str]) -> Row:
    """The row of an item with its result, which is there already where another process has finished it meanwhile.

    A result of another input goes when the new one is there; a file that cannot be read may be somebody else's, and
    stays under another name.
    """
    from dfmp2.execution.manifest import TASKS
    from dfmp2.execution.state import INPUT, START, complete_row, error_file, fingerprint_of
    from dfmp2.host.deferred import named
    from dfmp2.host.files import require_writable
    from dfmp2.output import hdf5
    from dfmp2.output.checkpoint import checkpointing

    item, given, target, stop = task.item, task.given, task.target, Stop(task.token)
    for part in target.parent.glob(f".{target.name}.part-*"):  # of a process that was killed while it wrote
        part.unlink(missing_ok=True)
    if os.path.lexists(target):
        kept = DAMAGED
        with suppress(InputError, ResultFileError):
            found, kept = hdf5.read_verified(target), PREVIOUS
            if fingerprint_of(found) == given.fingerprint:
                notes.append("another process has finished it meanwhile")
                return complete_row(row, target, found, given.fingerprint)
        os.replace(target, f"{target}{kept}")
    require_writable(target, overwrite=False, expected_bytes=LEAST_FREE)
    with checkpointing(
        target, resume=True, note=lambda _: None, warn=notes.append, replace_foreign=True, same_bits=True
    ) as stop.checkpoint:
        origin = task.start or item.options.scf_from
        begun = f"; {START}{given.start}" if given.start else ""
        asked = "" if item.task == "energy" else f"; {item.task}, {INPUT}{given.fingerprint}"
        result = named(TASKS[item.task])(
            given.molecule,
            replace(item.options, **task.share),
            start=None if origin is None else hdf5.read_start_orbitals(str(origin)),
            listener=stop,
            command=f"{task.command}  # item {item.name}{begun}{asked}",
            checkpoint=stop.checkpoint,
        )
        if result.check is not None and not result.check.passed:
            raise ComparisonFailed(
                f"PySCF's DF-MP2 differs by {result.check.largest_difference:.1e} Eh, more than the allowed "
                f"{result.check.allowed:.1e} Eh; the result was not written"
            )
        hdf5.write(result, target)
        stop.checkpoint.complete()
        for path in (error_file(target), Path(f"{target}{PREVIOUS}")):
            path.unlink(missing_ok=True)
    return complete_row(row, target, result, given.fingerprint)
