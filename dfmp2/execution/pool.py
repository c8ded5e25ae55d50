"""Worker processes of this host: one executor with one process per slot, so that a death blames exactly one task.

    slot = Slot(threads=2, memory=4 * 10**9, variables={"CUDA_VISIBLE_DEVICES": "1"})
    slot.submit(compute_item, task);  slot.future.result()

Processes are spawned. Their initializer (`worker.begin`) sets threads and device before NumPy is imported; tasks run in
the main thread of the process. No port is open.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from dfmp2.errors import Interrupted, ResourceError
from dfmp2.execution.worker import begin, load_libraries
from dfmp2.units import format_bytes

TICK = 0.2  # s between two looks at what the user wants
LAST_BYTES = 16_000  # of what a worker wrote on standard error
FAULT = 1  # exit code of a fault in dfmp2
COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))  # lines "oom_kill N"


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a worker process that had a task.

    Attributes
    ----------
    code : of the process, negative for a signal
    peak : its largest resident size when last seen, bytes
    memory : what it was allowed, bytes
    out_of_memory : whether the system's count of processes killed for memory went up meanwhile
    errors : the last it wrote on standard error
    """

    code: int
    peak: int
    memory: int
    out_of_memory: bool
    errors: str

    @property
    def terminated(self) -> bool:
        """Whether somebody has asked it to end."""
        return self.code in (-signal.SIGTERM, Interrupted.exit_code)

    @property
    def exit_code(self) -> int:
        """Of its item."""
        return ResourceError.exit_code if self.code == -signal.SIGKILL else FAULT

    def message(self, need: tuple[int, int] | None) -> str:
        """Why its item failed.

        Parameters
        ----------
        need : bytes the item is predicted to need with arrays on disk and in memory, None where that is not known
        """
        held = f"it held {format_bytes(self.peak)} when last seen and was allowed {format_bytes(self.memory)}"
        if need is None:
            return f"{self._cause()}; {held}"
        fits = max(need[1], self.peak)
        advice = f"{format_bytes(fits)} per worker would fit ({format_bytes(need[0])} with large arrays on disk)"
        if fits <= self.memory:
            advice += ", so the machine had less free than it seemed: use fewer --workers or less --memory"
        else:
            advice += ": use fewer --workers or more --memory"
        return f"{self._cause()}; {held}: {advice}"

    def _cause(self) -> str:
        if self.code == -signal.SIGKILL:
            killer = "the system's out-of-memory killer"
            return f"its worker process was ended by {killer if self.out_of_memory else f'SIGKILL, as {killer} does'}"
        if self.code < 0:
            known = {-number.value: number.name for number in signal.Signals}
            name = known.get(self.code, f"signal {-self.code}")
            return f"its worker process crashed ({name}): a fault in dfmp2 or a library it uses"
        lines = [line for line in self.errors.strip().splitlines() if line.strip()]
        return f"its worker process failed (exit code {self.code}): {lines[-1][:300] if lines else 'it said nothing'}"


@dataclass(slots=True, eq=False)
class Slot:
    """A place for a worker process with its share of the machine; a new one starts when the process has died.

    Attributes
    ----------
    threads, memory : of its calculations; memory in bytes
    variables : environment variables that show it its device
    future, function, task : what it is doing, None when it is free
    rest : places of the items it computes after this one
    before : place of the item it computed before, in the same series
    """

    threads: int
    memory: int
    variables: Mapping[str, str]
    future: Future[Any] | None = None
    function: Callable[..., Any] | None = None
    task: Any = None
    rest: list[int] = field(default_factory=list)
    before: int | None = None
    _executor: ProcessPoolExecutor = field(init=False)
    _process: Any = field(init=False)
    _errors: Any = field(init=False)
    _peak: int = 0
    _killed_before: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a process; its first task is to load the libraries."""
        self._errors = tempfile.NamedTemporaryFile(prefix="dfmp2-worker-")  # noqa: SIM115 - lives as long as the process
        self._peak = 0
        given = self.threads, dict(self.variables), self._errors.name
        before = set(multiprocessing.active_children())
        with _clean_start():
            self._executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin, given)
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # until it can listen
            try:
                self.submit(load_libraries)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        (self._process,) = set(multiprocessing.active_children()) - before

    def submit(self, function: Callable[..., Any], *arguments: Any, task: Any = None) -> None:
        """Give it something to do; should the process be dead, the future says so."""
        self.function, self.task, self._killed_before = function, task, _killed_for_memory()
        try:
            self.future = self._executor.submit(function, *arguments)
        except RuntimeError as error:  # BrokenProcessPool: it died while it had nothing to do
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

    def watch(self) -> None:
        """Note the largest resident size so far."""
        try:
            text = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return
        for line in text.splitlines():
            if line.startswith("VmHWM:"):
                self._peak = int(line.split()[1]) * 1024

    def terminate(self) -> None:
        """Ask the process to stop at once."""
        self._process.terminate()

    def death(self) -> Death:
        """How the process ended; a new one may then `start`."""
        self._executor.shutdown(wait=True)
        while not self.dead:  # the thread of the executor may be about to hear it
            self._process.join(0.1)
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_BYTES))
        errors = self._errors.read().decode(errors="replace")
        self._errors.close()
        out_of_memory = _killed_for_memory() > self._killed_before
        return Death(self._process.exitcode, self._peak, self.memory, out_of_memory, errors)

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
        self._devices, self._threads, self._memory = devices, threads, memory
        self.slots: list[Slot] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self.slots:
            slot.close()

    @property
    def busy(self) -> list[Slot]:
        """Those with something to do."""
        return [slot for slot in self.slots if slot.future is not None]

    @property
    def free(self) -> list[Slot]:
        """Those without."""
        return [slot for slot in self.slots if slot.future is None]

    def grow(self, size: int) -> None:
        """Start processes up to `size`, or up to the number there may be."""
        for variables in self._devices[len(self.slots) : size]:
            self.slots.append(Slot(self._threads, self._memory, variables))

    def dismiss(self, slot: Slot) -> None:
        """Let a slot without work go."""
        self.slots.remove(slot)
        slot.close()

    def finished(self) -> list[Slot]:
        """Slots that have ended what they do within a moment."""
        busy = self.busy
        if busy:
            wait([slot.future for slot in busy if slot.future is not None], TICK, FIRST_COMPLETED)
        else:
            time.sleep(TICK)
        for slot in busy:
            slot.watch()
        return [slot for slot in busy if slot.future is not None and slot.future.done()]


@contextmanager
def _clean_start() -> Iterator[None]:
    """Start processes that do not run __main__ again and find no modules in the working directory."""
    main, before = sys.modules["__main__"], os.environ.get("PYTHONSAFEPATH")
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def _killed_for_memory() -> int:
    """How many processes of this machine, or of this control group, were killed for memory so far."""
    found = 0
    for path in COUNTERS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        found += sum(int(words[1]) for words in map(str.split, lines) if words[0] == "oom_kill")
    return found
