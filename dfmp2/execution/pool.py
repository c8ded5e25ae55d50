"""Worker processes of this host: one executor with one process per slot, so that a death blames exactly one task.

    slot = Slot(threads=2, memory=4 * 10**9, variables={"CUDA_VISIBLE_DEVICES": "1"})
    slot.submit(compute_item, task);  slot.result()

Processes are spawned. Their initializer (`worker.begin`) sets threads and device before NumPy is imported; tasks run in
the main thread of the process. No port is open. `dfmp2.execution.dask` has slots of the same kind on a Dask cluster.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from dfmp2.errors import Dfmp2Error, Interrupted, ResourceError
from dfmp2.execution.worker import begin, load_libraries
from dfmp2.host.devices import pinning
from dfmp2.host.resources import available_memory, usable_cores
from dfmp2.units import format_bytes

TICK = 0.2  # s between two looks at what the user wants
LAST_BYTES = 16_000  # of what a worker wrote on standard error
FAULT = 1  # exit code of a fault in dfmp2
TRIES = 3  # of a part whose worker dies
SHARE_OF_FREE = 0.9  # of the memory that is free

Call = tuple[Any, ...]  # a function of a module and its arguments


class Died(Exception):
    """A worker ended with its task: why, the exit code of its item, and what it was allowed, bytes (0: no matter).

    `terminated`: somebody has asked it to end, or its task had not begun; `errors`: the last that it wrote.
    """

    def __init__(self, cause: str, exit_code: int, memory: int, errors: str = "", *, terminated: bool = False) -> None:
        super().__init__(cause)
        self.exit_code, self.memory, self.errors, self.terminated = exit_code, memory, errors, terminated

    def message(self, need: tuple[int, int] | None) -> str:
        """Why its item failed; `need` are bytes foreseen with arrays on disk and in memory, None where not known."""
        text = f"{self}; it was allowed {format_bytes(self.memory)}" if self.memory else str(self)
        if need is None or not self.memory:
            return text
        least, most = map(format_bytes, need)
        text += f": about {most} per worker would fit ({least} with large arrays on disk)"
        if need[1] <= self.memory:
            return f"{text}, so the machine had less free than it seemed: use fewer --workers or less --memory"
        return f"{text}: use fewer --workers or more --memory"


def fault(error: BaseException) -> Died:
    """What stands for an exception that no task should raise."""
    text = "".join(traceback.format_exception(error))
    return Died(f"a fault in dfmp2: {type(error).__name__}: {error}", FAULT, 0, text)


def process_death(code: int, memory: int, errors: str) -> Died:
    """The death of a process with an exit code, negative for a signal."""
    if code == -signal.SIGKILL:
        cause = "its worker process was killed (SIGKILL), as the system's out-of-memory killer does"
        return Died(cause, ResourceError.exit_code, memory, errors)
    if code < 0:
        name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
        cause = f"its worker process crashed ({name}): a fault in dfmp2 or a library it uses"
    else:
        last = next((line for line in reversed(errors.split("\n")) if line.strip()), "it said nothing")
        cause = f"its worker process failed (exit code {code}): {last[:300]}"
    return Died(cause, FAULT, memory, errors, terminated=code in (-signal.SIGTERM, Interrupted.exit_code))


class Slot:
    """A place for a worker process with its share of the machine; a new one starts where a task finds none.

    Attributes
    ----------
    threads, memory : of its calculations; memory in bytes
    device : what it computes on, as the environment variables that show it say
    token : file whose disappearance asks the task to stop; a process is asked by a signal and has none
    future, task : what it is doing, None when it is free
    """

    token: Path | None = None
    future: Future[Any] | None = None
    task: Any = None
    _failed_starts = 0

    def __init__(self, threads: int, memory: int, variables: Mapping[str, str]) -> None:
        self.threads, self.memory, self._variables = threads, memory, dict(variables)
        self.device = ", ".join(f"{name}={value}" for name, value in variables.items()) or "the device of all workers"
        self._start()

    def _start(self) -> None:
        """Begin a process, which loads the libraries."""
        self._errors = tempfile.NamedTemporaryFile(prefix="dfmp2-worker-")  # noqa: SIM115 - lives as long as the process
        given, before = (self.threads, self._variables, self._errors.name), set(multiprocessing.active_children())
        with _clean_start():
            self._executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin, given)
            self._loaded = self._executor.submit(load_libraries)
        (self._process,) = set(multiprocessing.active_children()) - before

    @property
    def ready(self) -> bool:
        """Whether it may have a task: the libraries are loaded, or were when its process ended."""
        return self._loaded.done()

    def submit(self, function: Callable[..., Any], *arguments: Any, task: Any = None) -> None:
        """Give it something to do."""
        if self._process.exitcode is not None:
            self.close()
            self._start()
        self.task, self.future = task, self._executor.submit(function, *arguments)

    def result(self) -> Any:
        """What its `task` gives or raises; Died where the process has, Dfmp2Error where none can start."""
        future, self.future = self.future or Future(), None
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, Dfmp2Error):
            raise error
        if not isinstance(error, BrokenExecutor):  # what the process holds is not to be trusted any more
            self.close()
            raise fault(error) from error
        self._executor.shutdown(wait=True)
        while self._process.exitcode is None:  # the thread of the executor may be about to hear it
            self._process.join(0.1)
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_BYTES))
        errors = self._errors.read().decode(errors="replace")
        died = process_death(self._process.exitcode, self.memory, errors)
        if isinstance(self._loaded.exception(), BrokenExecutor) and not died.terminated:  # no fault of its task
            died.terminated, self._failed_starts = True, self._failed_starts + 1
            if self._failed_starts == TRIES:
                raise Dfmp2Error(f"a worker cannot start: {died}\n{errors.strip()[-2000:]}") from error
        raise died from error

    def terminate(self) -> None:
        """Ask the task to stop at its next safe point."""
        self._process.terminate()

    def close(self) -> None:
        """End the process, whatever it is doing; the next task starts another one."""
        self._process.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._errors.close()


class Pool:
    """The slots of a batch, `threads` and `memory` of each; `devices` are the environment variables of each."""

    def __init__(self, devices: Sequence[Mapping[str, str]], threads: int, memory: int) -> None:
        self._devices, self.threads, self.memory = devices, threads, memory
        self.slots: list[Any] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self.slots:
            slot.close()

    @property
    def most(self) -> int:
        """How many slots there may be."""
        return len(self._devices)

    @property
    def busy(self) -> list[Any]:
        """Those with something to do."""
        return [slot for slot in self.slots if slot.future is not None]

    @property
    def free(self) -> list[Any]:
        """Those without."""
        return [slot for slot in self.slots if slot.future is None and slot.ready]

    def grow(self, size: int) -> None:
        """Start processes up to `size`, or up to the number there may be."""
        self.slots += [Slot(self.threads, self.memory, given) for given in self._devices[len(self.slots) : size]]

    def dismiss(self, slot: Any) -> None:
        """Use a slot no more."""
        self.slots.remove(slot)
        slot.close()

    def finished(self) -> list[Any]:
        """Slots that have ended what they do within a moment."""
        busy = self.busy
        if busy:
            wait([slot.future for slot in busy], TICK, FIRST_COMPLETED)
        else:
            time.sleep(TICK / 10)
        return [slot for slot in busy if slot.future.done()]


def share_out(
    pool: Pool, parts: Sequence[Any], call: Callable[[Any, Any], Call], need: tuple[int, int] | None = None
) -> Iterator[Any]:
    """What parts of a work give, as the workers finish them; a part whose worker dies goes to another, TRIES times.

    Parameters
    ----------
    call : slot, part -> what the worker calls
    need : as of Died.message, of a part
    """
    waiting, deaths = deque(enumerate(parts)), Counter[int]()
    while waiting or pool.busy:
        for slot in pool.free[: len(waiting)]:
            task = waiting.popleft()
            slot.submit(*call(slot, task[1]), task=task)
        for slot in pool.finished():
            try:
                yield slot.result()
            except Died as death:
                deaths[slot.task[0]] += 1
                if deaths[slot.task[0]] == TRIES:
                    kind = ResourceError if death.exit_code == ResourceError.exit_code else Dfmp2Error
                    raise kind(
                        f"{TRIES} workers died: {death.message(need)}\n{death.errors[-2000:]}".strip()
                    ) from death
                waiting.appendleft(slot.task)


def local_pool(backend: str, count: int, threads: int | None, memory: int | None, *, others: int = 0) -> Pool:
    """Workers of this host, among which it is divided, each with its device.

    `threads` are those of each, None to divide the cores; `memory` in bytes is that of all and of `others` processes
    beside them, None for most of what is free.
    """
    threads = threads or max(1, usable_cores() // count)
    memory = (memory or int(SHARE_OF_FREE * available_memory())) // (count + others)
    return Pool([pinning(backend, number, count) for number in range(count)], threads, memory)


@contextmanager
def _clean_start() -> Iterator[None]:
    """Start processes that do not run __main__ again, find no modules in the working directory, and have their
    signals blocked until they can listen."""
    main, before = sys.modules["__main__"], os.environ.get("PYTHONSAFEPATH")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    sys.modules["__main__"], os.environ["PYTHONSAFEPATH"] = ModuleType("__main__"), "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
