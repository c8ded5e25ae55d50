"""Starting processes of our own: workers of a batch, and one for each NeuronCore."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from dfmp2.errors import Interrupted
from dfmp2.host import threads


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
