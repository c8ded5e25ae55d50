"""Worker processes of this host: one executor with one process per slot, so that a death blames
exactly one call.

    slot = Slot(Share(threads=2, memory=4 * 10**9), {"CUDA_VISIBLE_DEVICES": "1"})
    slot.submit(Call(compute, (task,)));  slot.result()

Processes are spawned, and import this module before threads and devices are set: so nothing here
imports NumPy. Calls run in the main thread of the process. No port is open. `dfmp2.execution.dask`
has slots of the same kind on a Dask cluster.
"""

from __future__ import annotations

import faulthandler
import gc
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

from dfmp2.errors import Dfmp2Error, Interrupted, ResourceError
from dfmp2.errors.messages import Message, Option
from dfmp2.host import threads
from dfmp2.host.processes import exit_code, has_ended, start_process
from dfmp2.host.resources import available_memory, peak_of_process, pinning, usable_cores
from dfmp2.units import format_bytes

TICK = 0.2  # s between two looks at what the user wants
PATIENCE = 6.0  # s to come to the next safe point when the parent is gone
LAST_BYTES = 16_000  # of what a worker wrote on standard error
FAULT = 1  # exit code of a fault in dfmp2
TRIES = 3  # of a call whose worker dies
LITTLE = 0.5  # of its share: a worker with less was not killed for its memory
SHARE_OF_FREE = 0.9  # of the memory that is free


class WorkerShare(NamedTuple):
    """What a worker may use, and the file that is there while the work goes on (None: a signal ends
    it)."""

    threads: int
    memory: int  # bytes
    token: Path | None = None

    def stop_asked(self) -> bool:
        """Whether the worker is to stop, at its next safe point."""
        return bool(stops) or (self.token is not None and not self.token.exists())


class Call(NamedTuple):
    """What a worker does: a function of a module is called with `given` and the worker's Share.

    Items of a batch, parts of the tiles of a molecule and steps of a study are calls. What the
    function returns or raises as `Dfmp2Error` comes back; `tag` stays with the one who asked.
    """

    function: Callable[..., Any]
    given: tuple[Any, ...]
    tag: Any = None

    def run(self, share: WorkerShare) -> Any:
        """What it gives, in a worker of this host; one of Dask has other clients too."""
        with at_work:
            return self.function(*self.given, share)


# --- in the worker --------------------------------------------------------------------------------

stops: set[int] = set()  # signals that have asked this process to stop what it does
at_work = threading.Lock()  # held during a call


def begin(count: int, variables: Mapping[str, str], errors: str) -> None:
    """Set threads and devices before anything reads them; the initializer of the process, whose
    signals are blocked.

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
    signal.signal(signal.SIGTERM, lambda number, _frame: stops.add(number))
    threading.Thread(target=_end_with_parent, args=(errors,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def load_libraries() -> None:
    """Pay for the imports of a calculation now; InputError where PySCF is missing or not usable."""
    from dfmp2.host.deferred import defer_numpy_extras, defer_unused
    from dfmp2.molecule.pyscf_shield import import_pyscf

    defer_unused()  # as the command line does: 20 MB
    defer_numpy_extras()
    import_pyscf()
    for name in ("dfmp2.mp2.energy", "dfmp2.execution.items", "pyscf.scf", "pyscf.df"):
        import_module(name)
    # what is loaded stays: it is spared by the collections of every item, most of whose time it
    # takes
    gc.freeze()


def _end_with_parent(errors: str) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        stops.add(signal.SIGTERM)
        at_work.acquire(timeout=PATIENCE)
        with suppress(OSError):  # the process ends all the same
            os.unlink(errors)  # a parent that was killed has not removed it
        os._exit(Interrupted.exit_code)


# --- in the parent --------------------------------------------------------------------------------


class Died(Exception):
    """A worker ended with its call: why, the exit code of its item, and what it was allowed (None:
    no matter).

    `terminated`: somebody has asked it to end, or its call had not begun; `errors`: the last that
    it wrote.
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
        """Why its item failed; `need` are bytes foreseen with arrays on disk and in memory, None
        where not known."""
        if self.share is None:
            return Message(str(self))
        text = f"{self}; it was allowed {format_bytes(self.share.memory)}"
        little = 0 < self.peak < LITTLE * self.share.memory
        if need is not None:
            least, most = map(format_bytes, need)
            text += f": about {most} per worker would fit ({least} with large arrays on disk)"
            little = little and need[1] <= self.share.memory
        if little:
            return Message(
                f"{text}. It had {format_bytes(self.peak)} when it was last looked at, so that other "
                "programs or a limit of the system have taken the memory, or somebody has killed "
                "it: the same command tries it again; if that happens again, use fewer ",
                Option("workers"),
            )
        if need is None:
            return Message(text)
        change = "more" if need[1] > self.share.memory else "less"  # than what was free in fact
        return Message(f"{text}: use fewer ", Option("workers"), f" or {change} ", Option("memory"))


def fault(error: BaseException) -> Died:
    """What stands for an exception that no call should raise."""
    text = "".join(traceback.format_exception(error))
    return Died(f"a fault in dfmp2: {type(error).__name__}: {error}", FAULT, None, text)


def process_death(code: int | None, share: WorkerShare, errors: str, peak: int = 0) -> Died:
    """The death of a process with an exit code, negative for a signal, None where another part of
    the program was told; `peak` is the memory that it was last seen with, bytes, 0 where nobody has
    looked."""
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
    """A place for a worker process with its share of the machine; a new one starts where a call
    finds none.

    `future` and `call` are what it is doing, None when it is free.
    """

    future: Future[Any] | None = None
    call: Any = None
    _failed_starts = 0
    _peak = 0

    def __init__(self, share: WorkerShare, variables: Mapping[str, str]) -> None:
        self.share, self._variables = share, dict(variables)
        self._start()

    def _start(self) -> None:
        """Begin a process, which loads the libraries."""
        self._errors = tempfile.NamedTemporaryFile(prefix="dfmp2-worker-")  # noqa: SIM115 - lives as long as the process
        self._executor, self._loaded, self._process = start_process(
            begin, (self.share.threads, self._variables, self._errors.name), load_libraries
        )

    @property
    def ready(self) -> bool:
        """Whether it may have a call: the libraries are loaded, or were when its process ended."""
        return self._loaded.done()

    def submit(self, call: Call) -> None:
        """Give it something to do."""
        if has_ended(self._process):  # while it had nothing to do
            self.close()
            self._start()
        run = call._replace(tag=None).run
        try:
            future = self._executor.submit(run, self.share)
        except BrokenExecutor:  # in this moment
            self.close()
            self._start()
            future = self._executor.submit(run, self.share)
        self.call, self.future = call, future

    def result(self) -> Any:
        """The value of its call, or the exception that it raised: Died if the process died,
        Dfmp2Error if none can start."""
        future, self.future = self.future or Future(), None
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, Dfmp2Error):
            raise error
        # What the process holds is not to be trusted any more
        if not isinstance(error, BrokenExecutor):
            self.close()
            raise fault(error) from error
        code = exit_code(self._process)
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_BYTES))
        errors = self._errors.read().decode(errors="replace")
        died = process_death(code, self.share, errors, self._peak)
        # No fault of its call
        if isinstance(self._loaded.exception(), BrokenExecutor) and not died.terminated:
            died.terminated, self._failed_starts = True, self._failed_starts + 1
            if self._failed_starts == TRIES:
                raise Dfmp2Error(
                    f"a worker cannot start: {died}\n{errors.strip()[-2000:]}"
                ) from error
        raise died from error

    def look_at_memory(self) -> None:
        """Note the most memory that the process has had, for what is said if it is killed."""
        self._peak = peak_of_process(self._process.pid or 0) or self._peak

    def terminate(self) -> None:
        """Ask the call to stop at its next safe point."""
        self._process.terminate()

    def close(self) -> None:
        """End the process, whatever it is doing; the next call starts another one."""
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
        """Those with something to do."""
        return [slot for slot in self.slots if slot.future is not None]

    def grow(self, size: int) -> None:
        """Start processes up to `size`, or up to the number there may be."""
        self.slots += [Slot(self.share, given) for given in self._devices[len(self.slots) : size]]

    def work(self, queue: deque[Call]) -> Iterator[tuple[Call, Any]]:
        """Give free slots what comes next; each call that has ended within a moment, and what it
        gives, or Died."""
        for slot in self.slots:
            if queue and slot.future is None and slot.ready:
                slot.submit(queue.popleft())
        for slot in self.finished():
            try:
                yield slot.call, slot.result()
            except Died as death:
                yield slot.call, death

    def finished(self) -> list[Any]:
        """Slots that have ended what they do within a moment."""
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
    """What calls give, as workers finish them; one whose worker dies goes to another, TRIES times.

    `need` is that of Died.message, of each call.
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
    """Workers of this host, among which it is divided, each with its device.

    `threads` are those of each, None to divide the cores; `memory` in bytes is that of all and of
    `others` processes beside them, None for most of what is free.
    """
    threads = threads or max(1, usable_cores() // count)
    memory = (memory or int(SHARE_OF_FREE * available_memory())) // (count + others)
    return Pool(
        [pinning(backend, number, count) for number in range(count)], WorkerShare(threads, memory)
    )
