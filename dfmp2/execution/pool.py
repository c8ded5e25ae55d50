"""Worker processes of this host: one executor with one process per slot, so that a death blames exactly one task.

    slot = Slot(threads=2, memory=4 * 10**9, variables={"CUDA_VISIBLE_DEVICES": "1"})
    slot.submit(compute_item, task);  slot.future.result()

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
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from dfmp2.errors import Dfmp2Error, Interrupted, ResourceError
from dfmp2.execution.devices import pinning
from dfmp2.execution.worker import begin, load_libraries
from dfmp2.host.resources import available_memory, usable_cores
from dfmp2.units import format_bytes

TICK = 0.2  # s between two looks at what the user wants
LAST_BYTES = 16_000  # of what a worker wrote on standard error
FAULT = 1  # exit code of a fault in dfmp2
TRIES = 3  # of a part whose worker dies
SHARE_OF_FREE = 0.9  # of the memory that is free

Call = tuple[Any, ...]  # a function of a module and its arguments


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a worker that had a task.

    Attributes
    ----------
    cause : in words
    exit_code : of its item
    memory : what it was allowed, bytes
    terminated : whether somebody has asked it to end
    errors : the last it wrote on standard error
    """

    cause: str
    exit_code: int
    memory: int
    terminated: bool = False
    errors: str = ""

    def message(self, need: tuple[int, int] | None) -> str:
        """Why its item failed.

        Parameters
        ----------
        need : bytes the item is predicted to need with arrays on disk and in memory, None where that is not known
        """
        text = f"{self.cause}; it was allowed {format_bytes(self.memory)}"
        if need is None:
            return text
        text += (
            f": about {format_bytes(need[1])} per worker would fit ({format_bytes(need[0])} with large arrays on disk)"
        )
        if need[1] <= self.memory:
            return f"{text}, so the machine had less free than it seemed: use fewer --workers or less --memory"
        return f"{text}: use fewer --workers or more --memory"


def process_death(code: int, memory: int, errors: str) -> Death:
    """The death of a process with an exit code, negative for a signal."""
    if code == -signal.SIGKILL:
        cause = "its worker process was killed (SIGKILL), as the system's out-of-memory killer does"
        return Death(cause, ResourceError.exit_code, memory, errors=errors)
    if code < 0:
        name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
        cause = f"its worker process crashed ({name}): a fault in dfmp2 or a library it uses"
    else:
        lines = errors.split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        cause = f"its worker process failed (exit code {code}): {last[:300]}"
    return Death(cause, FAULT, memory, code in (-signal.SIGTERM, Interrupted.exit_code), errors)


@dataclass(slots=True, eq=False)
class Slot:
    """A place for a worker process with its share of the machine; a new one starts when the process has died.

    Attributes
    ----------
    threads, memory : of its calculations; memory in bytes
    variables : environment variables that show it its device
    token : file whose disappearance asks the task to stop; a process is asked by a signal and has none
    future, function, task : what it is doing, None when it is free
    """

    threads: int
    memory: int
    variables: Mapping[str, str]
    token: Path | None = None
    future: Future[Any] | None = None
    function: Callable[..., Any] | None = None
    task: Any = None
    _executor: ProcessPoolExecutor = field(init=False)
    _process: Any = field(init=False)
    _errors: Any = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a process; its first task is to load the libraries."""
        self._errors = tempfile.NamedTemporaryFile(prefix="dfmp2-worker-")  # noqa: SIM115 - lives as long as the process
        given = self.threads, dict(self.variables), self._errors.name
        before = set(multiprocessing.active_children())
        with _clean_start():
            self._executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin, given)
            self.submit(load_libraries)
        (self._process,) = set(multiprocessing.active_children()) - before

    def submit(self, function: Callable[..., Any], *arguments: Any, task: Any = None) -> None:
        """Give it something to do; should the process be dead, the future says so (BrokenExecutor)."""
        self.function, self.task = function, task
        try:
            self.future = self._executor.submit(function, *arguments)
        except RuntimeError as error:  # it died while it had nothing to do
            self.future = Future()
            self.future.set_exception(error)

    def release(self) -> tuple[Callable[..., Any] | None, Any, Future[Any]]:
        """What it has done: function, task and future; it is free again."""
        ended = self.function, self.task, self.future or Future()
        self.future = self.function = self.task = None
        return ended

    @property
    def dead(self) -> bool:
        """Whether the process has ended."""
        return self._process.exitcode is not None

    def terminate(self) -> None:
        """Ask the task to stop at its next safe point."""
        self._process.terminate()

    def death(self) -> Death:
        """How the process ended; a new one may then `start`."""
        self._executor.shutdown(wait=True)
        while not self.dead:  # the thread of the executor may be about to hear it
            self._process.join(0.1)
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_BYTES))
        errors = self._errors.read().decode(errors="replace")
        self._errors.close()
        return process_death(self._process.exitcode, self.memory, errors)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._errors.close()


class Pool:
    """The slots of a batch.

    Parameters
    ----------
    devices : environment variables of each slot
    threads, memory : of each slot, memory in bytes
    """

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
        return [slot for slot in self.slots if slot.future is None]

    def grow(self, size: int) -> None:
        """Start processes up to `size`, or up to the number there may be."""
        for variables in self._devices[len(self.slots) : size]:
            self.slots.append(Slot(self.threads, self.memory, variables))

    def dismiss(self, slot: Any) -> None:
        """Let a slot without work go."""
        self.slots.remove(slot)
        slot.close()

    def finished(self) -> list[Any]:
        """Slots that have ended what they do within a moment."""
        busy = self.busy
        if busy:
            wait([slot.future for slot in busy], TICK, FIRST_COMPLETED)
        else:
            time.sleep(TICK)
        return [slot for slot in busy if slot.future.done()]


def share_out(
    pool: Pool, parts: Sequence[Any], call: Callable[[Any, Any], Call], need: tuple[int, int] | None = None
) -> Iterator[Any]:
    """What parts of a work give, as the workers finish them; a part whose worker dies goes to another.

    Parameters
    ----------
    call : slot, part -> what the worker calls
    need : as of Death.message, of a part

    Raises
    ------
    ResourceError : TRIES workers died of one part; the message says what they would need
    Dfmp2Error : what a worker raises, or workers that cannot start
    """
    waiting, deaths = deque(enumerate(parts)), Counter[int]()
    while waiting or pool.busy:
        for slot in pool.free:
            if slot.dead:  # while it had nothing to do
                slot.death()
                slot.start()
            elif waiting:
                task = waiting.popleft()
                slot.submit(*call(slot, task[1]), task=task)
        for slot in pool.finished():
            _, task, future = slot.release()
            error = future.exception()
            if error is None:
                if task is not None:
                    yield future.result()
            elif not isinstance(error, BrokenExecutor):
                raise error
            else:
                death = slot.death()
                if task is None:
                    raise Dfmp2Error(f"a worker cannot start: {death.message(None)}")
                deaths[task[0]] += 1
                if deaths[task[0]] == TRIES:
                    failed = ResourceError if death.exit_code == ResourceError.exit_code else Dfmp2Error
                    raise failed(f"{TRIES} workers died: {death.message(need)}")
                waiting.appendleft(task)
                slot.start()


def local_pool(backend: str, count: int, threads: int | None, memory: int | None, *, others: int = 0) -> Pool:
    """Workers of this host, among which it is divided, each with its device.

    Parameters
    ----------
    backend : as asked for
    threads : of each, None to divide the cores
    memory : of all, bytes, None for most of what is free
    others : processes beside them that share the memory
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
