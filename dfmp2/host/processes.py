"""Starting processes of our own: workers of a batch, and one for each NeuronCore."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

from dfmp2.errors import Interrupted
from dfmp2.host import threads

REAPED = 10.0  # s that the thread which has waited for a process has to say how it ended


class OneProcess(SpawnContext):
    """Spawns processes as usual, and remembers the last one."""

    process: SpawnProcess

    def Process(self, *given: Any, **named: Any) -> SpawnProcess:  # type: ignore[override] # noqa: N802
        """As of `multiprocessing`."""
        self.process = SpawnProcess(*given, **named)
        return self.process


def start_process(
    initializer: Callable[..., None],
    given: tuple[Any, ...],
    first: Callable[..., Any],
    *arguments: Any,
) -> tuple[ProcessPoolExecutor, Future[Any], SpawnProcess]:
    """Start a process that does what it is given, one call after the other.

    Parameters
    ----------
    initializer : called in the process with `given`, its signals blocked
    first : its first call, with `arguments`

    Returns
    -------
    the executor that leads to the process, the future of the first call, and the process
    """
    context = OneProcess()
    with clean_start():
        executor = ProcessPoolExecutor(1, context, initializer, given)
        future = executor.submit(first, *arguments)
    return executor, future, context.process


def has_ended(process: SpawnProcess) -> bool:
    """Whether a process is no more, also where nobody has been told yet how it ended."""
    return bool(connection.wait([process.sentinel], 0))


def exit_code(process: SpawnProcess) -> int | None:
    """How a process ended, once it has; negative for a signal.

    Several threads may wait for it, the executor's and this one: the system tells one of them, which
    notes it for the others a moment later. None where somebody else was told.
    """
    connection.wait([process.sentinel])
    deadline = time.monotonic() + REAPED
    while process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.exitcode


@contextmanager
def clean_start() -> Iterator[None]:
    """Start processes that do not run __main__ again, find no modules in the working directory, and
    have their signals blocked until they can listen.

    Python starts one that removes the semaphores of a parent that is killed, which it says with a
    warning: that is what it is for, and nothing for the user to do.
    """
    main = sys.modules["__main__"]
    before = {name: os.environ.get(name) for name in ("PYTHONSAFEPATH", "PYTHONWARNINGS")}
    silent = "ignore:resource_tracker:UserWarning"
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before["PYTHONWARNINGS"], silent)))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    sys.modules["__main__"], os.environ["PYTHONSAFEPATH"] = ModuleType("__main__"), "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def begin_quietly(variables: Mapping[str, str]) -> None:
    """Set the variables and one thread before any library is loaded: the initializer of a process
    that serves a device.

    What it prints goes to standard error; Ctrl-C is the parent's, and it ends when that ends.
    """
    os.environ.update(variables)
    threads.set_environment(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(Interrupted.exit_code)
