"""Worker processes on this host: one executor with one process per slot, so that a death is
attributed to exactly one call.

    slot = Slot(Share(threads=2, memory=4 * 10**9), {"CUDA_VISIBLE_DEVICES": "1"})
    slot.submit(Call(compute, (task,)));  slot.result()

Processes are spawned and import this module before threads and devices are set, so nothing here may
import NumPy. Calls run in the main thread of the process. No ports are opened.
`dfmp2.execution.dask` has the same kind of slots on a Dask cluster.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from dfmp2.errors import Dfmp2Error, Interrupted, Message, Option, ResourceError
from dfmp2.host import threads
from dfmp2.host.processes import exit_code, has_ended, start_process
from dfmp2.host.resources import (
    available_memory,
    exclude_existing,
    peak_of_process,
    pinning,
    usable_cores,
)
from dfmp2.units import format_bytes

TICK = 0.2  # s between checks for user requests
PATIENCE = 6.0  # s allowed to reach the next safe point when the parent is gone
LAST_BYTES = 16_000  # of a worker's standard error
FAULT = 1  # exit code for a bug in dfmp2
TRIES = 3  # for a call whose worker dies
LITTLE = 0.5  # of its share; a worker that used less was not killed for its memory
# what the first calculation of a process would load
LOADED = (
    "dfmp2.backends.cpu",
    "dfmp2.gradients.gradient",
    "dfmp2.mp2.energy",
    "dfmp2.scf.following",
    "dfmp2.scf.jk",
    "dfmp2.scf.stability",
    "pyscf.df",
    "pyscf.scf",
    "pyscf.scf.atom_hf",
)
SHARE_OF_FREE = 0.9  # of the free memory


class WorkerShare(NamedTuple):
    """The resources a worker may use, and a file that exists while it may work (None: a signal
    stops it)."""

    threads: int
    memory: int  # bytes
    token: Path | None = None

    def stop_asked(self) -> bool:
        """Whether the worker should stop at its next safe point."""
        return bool(stops) or (self.token is not None and not self.token.exists())


class Call(NamedTuple):
    """A call for a worker: a module-level function with arguments `given` and the worker's share.

    Items of a batch, parts of the tiles of a molecule and steps of a study are calls. The return
    value or `Dfmp2Error` is sent back; `tag` stays with the caller.
    """

    function: Callable[..., Any]
    given: tuple[Any, ...]
    tag: Any = None

    def run(self, share: WorkerShare) -> Any:
        """Run it in a worker of this host; Dask workers use `run_call` instead, since they have
        other clients too."""
        with at_work:
            return self.function(*self.given, share)


# --- in the worker --------------------------------------------------------------------------------

stops: set[int] = set()  # signals that have asked this process to stop its work
at_work = threading.Lock()  # held during a call


def begin(count: int, variables: Mapping[str, str], errors: str) -> None:
    """Set threads and devices before anything reads them; the initializer of a process, with
    signals blocked.

    Parameters
    ----------
    count : threads of each calculation
    variables : environment variables that show the process its device
    errors : file for standard output and standard error
    """
    os.environ.update(variables)
    threads.set_environment(count)
    stream = os.open(errors, os.O_WRONLY | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    faulthandler.enable(2)
    os.setsid()  # Ctrl-C on the terminal reaches only the parent, which decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _frame: stops.add(number))
    threading.Thread(target=_end_with_parent, args=(errors,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def load_libraries() -> None:
    """Import everything a calculation needs now; raises InputError if PySCF is missing or
    unusable."""
    from dfmp2.host.deferred import defer_numpy_extras, defer_unused
    from dfmp2.molecule.pyscf_shield import import_pyscf

    defer_unused()  # as on the command line; saves 20 MB
    defer_numpy_extras()
    import_pyscf()
    for name in LOADED:
        import_module(name)
    exclude_existing()  # the modules, from the collections of every item


def _end_with_parent(errors: str) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        stops.add(signal.SIGTERM)
        at_work.acquire(timeout=PATIENCE)
        with suppress(OSError):  # the process ends anyway
            os.unlink(errors)  # a killed parent has not removed it
        os._exit(Interrupted.exit_code)


# --- in the parent --------------------------------------------------------------------------------


class Died(Exception):
    """A worker died during its call: the reason, the exit code of its item, and its share (None:
    irrelevant).

    `terminated`: it was asked to end, or its call had not begun; `errors`: the end of its error
    output.
    """

    def __init__(
        self,
        cause: str,
        code: int,
        share: WorkerShare | None,
        errors: str = "",
        terminated: bool = False,
        peak: int = 0,
    ) -> None:
        super().__init__(cause)
        self.peak = peak
        self.exit_code, self.share, self.errors, self.terminated = code, share, errors, terminated

    def message(self, need: tuple[int, int] | None) -> Message:
        """Why its item failed; `need` is the predicted memory in bytes with arrays on disk and in
        memory, None if unknown."""
        if self.share is None:
            return Message(str(self))
        text = f"{self}; it was allowed {format_bytes(self.share.memory)}"
        suffices = True
        if need is not None:
            least, most = map(format_bytes, need)
            text += f": about {most} per worker would fit ({least} with large arrays on disk)"
            suffices = need[1] <= self.share.memory
        if suffices and 0 < self.peak < LITTLE * self.share.memory:
            return Message(
                f"{text}. It had {format_bytes(self.peak)} when it was last looked at, so that other "
                "programs or a limit of the system have taken the memory, or somebody has killed "
                "it: the same command tries it again; if that happens again, use fewer ",
                Option("workers"),
            )
        if need is None:
            return Message(text)
        change = "less" if suffices else "more"  # than was actually free
        return Message(f"{text}: use fewer ", Option("workers"), f" or {change} ", Option("memory"))


def fault(error: BaseException) -> Died:
    """The substitute for an exception that no call should raise."""
    text = "".join(traceback.format_exception(error))
    return Died(f"a fault in dfmp2: {type(error).__name__}: {error}", FAULT, None, text)


def process_death(code: int | None, share: WorkerShare, errors: str, peak: int = 0) -> Died:
    """The death of a process with an exit code, negative for a signal, None if it was reported
    elsewhere; `peak` is the largest memory observed, bytes, 0 if it was not observed."""
    if code is None:
        cause = "its worker process ended, and another part of this program was told how"
        return Died(cause, FAULT, share, errors)
    if code == -signal.SIGKILL:
        cause = "its worker process was killed (SIGKILL), as the system's out-of-memory killer does"
        return Died(cause, ResourceError.exit_code, share, errors, peak=peak)
    if code < 0:
        name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
        cause = f"its worker process crashed ({name}): a fault in dfmp2 or a library it uses"
    else:
        last = next(
            (line for line in reversed(errors.split("\n")) if line.strip()), "it said nothing"
        )
        cause = f"its worker process failed (exit code {code}): {last[:300]}"
    return Died(cause, FAULT, share, errors, code in (-signal.SIGTERM, Interrupted.exit_code))


class Slot:
    """A slot for a worker process with its share of the machine; a process is started if a call
    finds none.

    `future` and `call` are its current work, None if it is free.
    """

    future: Future[Any] | None = None
    call: Any = None
    _failed_starts = 0

    def __init__(self, share: WorkerShare, variables: Mapping[str, str]) -> None:
        self.share, self._variables = share, dict(variables)
        self._start()

    def _start(self) -> None:
        """Start a process, which loads the libraries."""
        self._peak = 0
        self._errors = tempfile.NamedTemporaryFile(prefix="dfmp2-worker-")  # noqa: SIM115 - lives as long as the process
        # The fork server has an earlier environment, and one device for all
        variables = {**os.environ, **self._variables}
        self._executor, self._loaded, self._process = start_process(
            begin,
            (self.share.threads, variables, self._errors.name),
            load_libraries,
            served=not self._variables,
        )

    @property
    def ready(self) -> bool:
        """Whether it can take a call: the libraries are loaded, or were when its process ended."""
        return self._loaded.done()

    def submit(self, call: Call) -> None:
        """Submit a call."""
        if has_ended(self._process):  # while it was idle
            self.close()
            self._start()
        run = call._replace(tag=None).run
        try:
            future = self._executor.submit(run, self.share)
        except BrokenExecutor:  # at this moment
            self.close()
            self._start()
            future = self._executor.submit(run, self.share)
        self.call, self.future = call, future

    def result(self) -> Any:
        """The value of its call; raises its exception, Died if the process died, or Dfmp2Error if
        none can start."""
        future, self.future = self.future or Future(), None
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, Dfmp2Error):
            raise error
        # The state of the process can no longer be trusted
        if not isinstance(error, BrokenExecutor):
            self.close()
            raise fault(error) from error
        code = exit_code(self._process)
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_BYTES))
        errors = self._errors.read().decode(errors="replace")
        died = process_death(code, self.share, errors, self._peak)
        # Not the fault of its call
        if isinstance(self._loaded.exception(), BrokenExecutor) and not died.terminated:
            died.terminated, self._failed_starts = True, self._failed_starts + 1
            if self._failed_starts == TRIES:
                raise Dfmp2Error(
                    f"a worker cannot start: {died}\n{errors.strip()[-2000:]}"
                ) from error
        raise died from error

    def look_at_memory(self) -> None:
        """Record the peak memory of the process, for the message if it is killed."""
        self._peak = peak_of_process(self._process.pid or 0) or self._peak

    def terminate(self) -> None:
        """Ask the call to stop at its next safe point."""
        self._process.terminate()

    def close(self) -> None:
        """End the process even if it is busy; the next call starts another one."""
        self._process.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._errors.close()


class Pool:
    """Slots with equal shares of this host; `devices` are the environment variables of each."""

    def __init__(self, devices: Sequence[Mapping[str, str]], share: WorkerShare) -> None:
        self._devices, self.share = devices, share
        self.slots: list[Any] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self.slots:
            slot.close()

    @property
    def busy(self) -> list[Any]:
        """Slots that are working."""
        return [slot for slot in self.slots if slot.future is not None]

    def grow(self, size: int) -> None:
        """Start processes up to `size`, or up to the number allowed."""
        self.slots += [Slot(self.share, given) for given in self._devices[len(self.slots) : size]]

    def work(self, queue: deque[Call]) -> Iterator[tuple[Call, Any]]:
        """Give free slots the next calls; yields each call that ends within a moment, with its
        value or Died."""
        for slot in self.slots:
            if queue and slot.future is None and slot.ready:
                slot.submit(queue.popleft())
        for slot in self.finished():
            try:
                yield slot.call, slot.result()
            except Died as death:
                yield slot.call, death

    def finished(self) -> list[Any]:
        """Slots that finish within a moment."""
        busy = self.busy
        for slot in busy:
            if isinstance(slot, Slot):
                slot.look_at_memory()
        if busy:
            wait([slot.future for slot in busy], TICK, FIRST_COMPLETED)
        else:
            time.sleep(TICK / 10)
        return [slot for slot in busy if slot.future.done()]


def share_out(
    pool: Pool, calls: Sequence[Call], need: tuple[int, int] | None = None
) -> Iterator[Any]:
    """Yield the values of calls as workers finish them; a call whose worker dies goes to another,
    up to TRIES times.

    `need` is the memory of each call, as in Died.message.
    """
    queue, deaths = deque(calls), Counter[int]()
    while queue or pool.busy:
        for call, found in pool.work(queue):
            if not isinstance(found, Died):
                yield found
                continue
            deaths[id(call)] += 1
            if deaths[id(call)] == TRIES:
                kind: type[Dfmp2Error] = Dfmp2Error
                if found.exit_code == ResourceError.exit_code:
                    kind = ResourceError
                raise kind(
                    f"{TRIES} workers died: {found.message(need)}\n{found.errors[-2000:]}".strip()
                ) from found
            queue.appendleft(call)


def local_pool(
    backend: str, count: int, threads: int | None, memory: int | None, *, others: int = 0
) -> Pool:
    """A pool of workers that divide this host among them, each with its own device.

    Other parameters as in `worker_share`.
    """
    return Pool(
        [pinning(backend, number, count) for number in range(count)],
        worker_share(count, threads, memory, others=others),
    )


def worker_share(
    count: int, threads: int | None, memory: int | None, *, others: int = 0
) -> WorkerShare:
    """What each of `count` workers may use of this host.

    `threads` is the number for each, None to divide the cores; `memory` in bytes is for all of them
    and `others` further processes, None for most of the free memory.
    """
    threads = threads or max(1, usable_cores() // count)
    memory = (memory or int(SHARE_OF_FREE * available_memory())) // (count + others)
    return WorkerShare(threads, memory)
