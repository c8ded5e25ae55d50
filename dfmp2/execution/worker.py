"""What runs in a worker process: it is set up, loads the libraries once, then computes one item after the other.

This module is imported before threads and devices are set, so it imports nothing that imports NumPy. Tasks run in the
main thread, where signals are heard. Everything that happens to an item's files happens here, under the item's lock;
the result is written beside its place and renamed.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
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
from dfmp2.progress import Listener

if TYPE_CHECKING:
    from dfmp2.molecule.molecule import Molecule
    from dfmp2.mp2.result import MP2Result
    from dfmp2.options import Options
    from dfmp2.output.checkpoint import FileCheckpoint

PREVIOUS = ".previous"  # behind the name of a result whose input has changed
DAMAGED = ".damaged"  # behind the name of a file that is no whole result
LEAST_FREE = 10**6  # bytes of disk without which nothing is begun
PATIENCE = 6.0  # s to come to the next safe point after SIGTERM
TERMINATED = "terminated (SIGTERM)"


@dataclass(frozen=True, slots=True)
class Task:
    """One item.

    Attributes
    ----------
    molecule, options : what is computed; memory and threads are those of this worker
    target, failure : where the result and the error go
    start : result whose orbitals the SCF starts from, None for the default
    fingerprint : of the input
    command : for the provenance
    workers : how many share the memory of the batch
    """

    molecule: Molecule
    options: Options
    target: Path
    failure: Path
    start: Path | None
    fingerprint: str
    command: str
    workers: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of an item.

    Attributes
    ----------
    status : "complete", "failed", "running" (elsewhere) or "pending" (stopped)
    seconds : of a calculation, wall time
    numbers, stamp : of a complete result, for the table
    found : whether another process has completed it meanwhile
    code, message : of a failure; the message also says who else is computing it
    device_fault : whether the device must not be used any more
    notes : for the user
    """

    status: str
    seconds: float | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    stamp: tuple[int, int] = (0, 0)
    found: bool = False
    code: int = 0
    message: str = ""
    device_fault: bool = False
    notes: tuple[str, ...] = ()


# --- signals ----------------------------------------------------------------------------------------------------------


class Interruption(Listener):
    """SIGTERM: come to the next safe point where there is a checkpoint, else stop wherever the run is.

    Never between a result and its name. The interpreter drops what is raised in some of its callbacks, so the signal is
    remembered and raised again at the next event of the run, which this object hears.
    """

    def __init__(self) -> None:
        self._received = self._holding = self._finishing = self._computing = False
        self._checkpoint: FileCheckpoint | None = None
        self._orphan = False

    def listen(self) -> None:
        """Handle SIGTERM from here on, and the end of the parent like one; Ctrl-C is the parent's business."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGALRM, self._lose_patience)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._end_with_parent, daemon=True).start()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Raise `Interrupted` on SIGTERM in the block; outside of it the process ends at once."""
        self._computing = True
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if self._orphan:
                os._exit(Interrupted.exit_code)
            self._computing = self._received = False

    @contextmanager
    def finishing(self, checkpoint: FileCheckpoint) -> Iterator[None]:
        """Let the run that `checkpoint` saves come to its next safe point in the block."""
        self._checkpoint = checkpoint
        try:
            yield
        finally:
            self._checkpoint, self._finishing = None, False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let files be replaced in the block; the signal has no effect in it."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def check(self) -> None:
        """Raise `Interrupted` if the signal has come and no safe point is waited for."""
        if self._received and not self._finishing:
            raise Interrupted(TERMINATED)

    def stage(self, text: str) -> None:
        self.check()

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self.check()

    def tiles(self, done: int, total: int) -> None:
        self.check()

    def warning(self, text: str) -> None:
        """Kept in the result."""

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._computing:
            os._exit(Interrupted.exit_code)
        self._received = True
        if self._holding or self._finishing:
            return
        if self._checkpoint is not None and self._checkpoint.ask_to_stop():
            self._finishing = True
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            return
        raise Interrupted(TERMINATED)

    def _end_with_parent(self) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            self._orphan = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _lose_patience(self, _number: int, _frame: FrameType | None) -> None:
        self._finishing = False
        if not self._holding:
            self.check()


_interruption = Interruption()


# --- set-up -----------------------------------------------------------------------------------------------------------


def begin(count: int, variables: Mapping[str, str], errors: str) -> None:
    """Set threads and devices before anything reads them; the initializer of the process, which starts with its
    signals blocked.

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
    _interruption.listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def load_libraries() -> None:
    """Pay for the imports of a calculation now.

    Raises
    ------
    InputError : PySCF is missing or not usable
    """
    import importlib

    from dfmp2.molecule.pyscf_shield import import_pyscf

    import_pyscf()
    for name in ("dfmp2.interop.python", "dfmp2.planning.plan", "dfmp2.execution.state", "pyscf.scf", "pyscf.df"):
        importlib.import_module(name)


# --- items ------------------------------------------------------------------------------------------------------------


def compute_item(task: Task) -> Reply:
    """Compute an item and write its result or its error, unless another process is at it.

    An exception that is no `Dfmp2Error` is a fault in dfmp2; the parent hears of it.
    """
    from dfmp2.host.locks import acquire, release

    begun = time.perf_counter()
    notes: list[str] = []
    try:
        with _interruption.computing():
            try:
                other = acquire(task.target)
                if other is not None:
                    return Reply("running", message=f"it is being computed by {other}")
                try:
                    reply = _compute_and_write(task, notes)
                finally:
                    release(task.target)
            except Interrupted:
                raise
            except Dfmp2Error as error:
                reply = _failure(task, error.exit_code, str(error), begun, notes)
                reply = replace(reply, device_fault=isinstance(error, DeviceFault))
            except MemoryError:
                share = task.options.memory
                message = f"the system refused to give more memory ({share} bytes were planned with)"
                reply = _failure(task, ResourceError.exit_code, message, begun, notes)
            except OSError as error:
                reply = _failure(task, ResourceError.exit_code, f"the system refused: {error}", begun, notes)
            return replace(reply, notes=tuple(notes))
    except Interrupted:
        return Reply("pending", notes=tuple(notes))


def needed_memory(task: Task) -> tuple[int, int] | None:
    """Bytes an item needs: at least, and with everything in memory; None if it would be refused."""
    from dfmp2.planning.plan import make_plan
    from dfmp2.planning.system import frozen_core, prepare, resolve
    from dfmp2.scf.hartree_fock import reference_kind

    try:
        options = task.options.settled(task.molecule.multiplicity)
        setup = prepare(options, "")
        system = resolve(task.molecule, setup, _interruption)
        kind = reference_kind(options, task.molecule.multiplicity)
        plan = make_plan(system, setup, frozen_core(system, options, _interruption), kind).memory
    except Dfmp2Error:
        return None
    return plan.least, plan.comfortable


def _compute_and_write(task: Task, notes: list[str]) -> Reply:
    from dfmp2.execution.state import stamp, summary
    from dfmp2.host.files import require_writable
    from dfmp2.output import hdf5
    from dfmp2.output.checkpoint import checkpointing

    target = task.target
    found = _usable_result(target, task.fingerprint)
    if found is not None:
        return Reply("complete", numbers=summary(found), stamp=stamp(target), found=True)
    require_writable(target, overwrite=False, expected_bytes=LEAST_FREE)
    with (
        checkpointing(
            target, resume=True, note=lambda _: None, warn=notes.append, replace_foreign=True, same_bits=True
        ) as kept,
        _interruption.finishing(kept),
    ):
        result = _compute(task, kept)
        if result.check is not None and not result.check.passed:
            raise ComparisonFailed(
                f"PySCF's DF-MP2 differs by {result.check.largest_difference:.1e} Eh, more than the allowed "
                f"{result.check.allowed:.1e} Eh; the result was not written"
            )
        _interruption.check()
        with _interruption.held():
            hdf5.write(result, target)
            kept.complete()
            for path in (task.failure, Path(f"{target}{PREVIOUS}")):
                path.unlink(missing_ok=True)
    return Reply("complete", result.timings.total, summary(result), stamp(target))


def _compute(task: Task, checkpoint: FileCheckpoint) -> MP2Result:
    """The result of an item, not yet written; `checkpoint` saves what is done and may hold what was done before."""
    from dfmp2.mp2 import energy
    from dfmp2.output.hdf5 import read_start_orbitals

    origin = task.start or task.options.scf_from
    start = None if origin is None else read_start_orbitals(str(origin))
    return energy.mp2_energy(
        task.molecule, task.options, start=start, listener=_interruption, command=task.command, checkpoint=checkpoint
    )


def _usable_result(target: Path, fingerprint: str) -> MP2Result | None:
    """The result at `target` if it is complete and of this input; else it is renamed, and there is none.

    One of another input goes when the new one is there; what cannot be read may be somebody else's, and stays.
    """
    from dfmp2.execution.state import fingerprint_of
    from dfmp2.output.hdf5 import read_verified

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


def _failure(task: Task, code: int, message: str, begun: float, notes: list[str]) -> Reply:
    """Write NAME.error.json of the exception that is being handled."""
    from dfmp2.execution.index import write_failure

    if "--memory" in message and task.workers > 1:
        message += f"; each of the {task.workers} workers has its share of the --memory of the batch"
    try:
        write_failure(task.failure, code, message, traceback.format_exc())
    except ResourceError as error:
        notes.append(f"its error file is missing: {error}")
    return Reply("failed", time.perf_counter() - begun, code=code, message=message)
