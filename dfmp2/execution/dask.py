"""Workers of a Dask cluster that is already running, as the slots of a batch: the contract of `dfmp2.execution.pool`.

One slot per Dask worker and one task per slot, bound to its worker, so that a death blames exactly one task and Dask
tries none again. Each task carries the versions of its client. Results go to the output folder, which all workers see:
the first task on each looks for a token file there, whose disappearance later asks tasks to stop.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dfmp2.errors import BackendUnavailable, Dfmp2Error, InputError, ResourceError
from dfmp2.execution.pool import Death, Pool
from dfmp2.execution.worker import load_libraries
from dfmp2.host import provenance, threads

LOOK_EVERY = 1.0  # s between two looks at the workers
ANSWER = 5.0  # s that the scheduler has for an answer
WAIT = 60.0  # s that a cluster may be without any worker
SHARE_OF_LIMIT = 0.8  # of a worker's memory limit; at 0.95 its nanny ends it


def read_engine(text: str) -> str:
    """The address of the scheduler that --engine names, by itself or in a scheduler file.

    Raises
    ------
    InputError : neither, or one that others may reach and that is not encrypted
    """
    try:
        address = text if "://" in text else str(json.loads(Path(text).read_text(encoding="utf-8"))["address"])
        parts = urlsplit(address)
        host = parts.hostname or ""
        if parts.scheme not in ("tcp", "tls") or not host or not parts.port:
            raise ValueError(address)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"--engine {text}: expected the file of dask scheduler --scheduler-file, tcp://HOST:PORT or "
            f"tls://HOST:PORT ({error})"
        ) from error
    if parts.scheme == "tcp" and not re.fullmatch(r"localhost|::1|127(\.\d+){3}", host):
        raise InputError(
            f"--engine {text}: {address} is not encrypted, and whoever reaches it can run any program as you: start "
            "scheduler and workers with TLS (docs/clusters/dask.md)"
        )
    return address


def run_task(versions: dict[str, str], token: Path, worker_id: str, count: int, function: Any, *given: Any) -> Any:
    """What a Dask worker executes: the identity of its process, and the result of `function`.

    `worker_id` is the process that the task is bound to, "" for the first task; `count` are threads.
    """
    from distributed import get_worker

    worker, here = get_worker(), provenance.versions()
    if here != versions:
        shown = [", ".join(f"{name} {version}" for name, version in one.items()) for one in (here, versions)]
        raise InputError(f"the Dask worker {worker.address} has {shown[0]}, and here is {shown[1]}: install the same")
    if not worker_id and not token.exists():
        raise InputError(
            f"the Dask worker {worker.address} does not see {token.parent}: name an --output that all workers share"
        )
    if worker_id not in ("", worker.id):
        raise BrokenExecutor("the worker was started again at the same address")
    with threads.limited(count):
        return worker.id, function(*given)


class DaskSlot:
    """A Dask worker; another one takes its place when it is gone. Attributes and methods are those of `pool.Slot`."""

    future: Future[Any] | None = None
    function: Callable[..., Any] | None = None
    task: Any = None

    def __init__(self, pool: DaskPool) -> None:
        self._pool, self.token, self.address = pool, pool.token, ""
        self.start()

    def start(self) -> None:
        """Take a worker that no slot has, if there is one; its first task is to load the libraries."""
        pool = self._pool
        pool.taken.discard(self.address)
        self.address, self._worker_id = next((one for one in pool.workers if one not in pool.taken), ""), ""
        self.variables = {"Dask worker": self.address}  # what names its device
        if not self.address:
            return
        pool.taken.add(self.address)
        info = pool.workers[self.address]
        self.threads = pool.threads or info["nthreads"]
        self.memory = pool.memory or int(SHARE_OF_LIMIT * (info["memory_limit"] or 0))
        if not self.memory:
            raise InputError(f"the Dask worker {self.address} has no memory limit: pass --memory, that of each worker")
        self._executor = pool.client.get_executor(
            workers=[self.address], allow_other_workers=False, pure=False, retries=0
        )
        self.submit(load_libraries)

    def submit(self, function: Callable[..., Any], *arguments: Any, task: Any = None) -> None:
        """Give it something to do."""
        self.function, self.task = function, task
        bound = provenance.versions(), self.token, self._worker_id, self.threads
        self.future = self._executor.submit(run_task, *bound, function, *arguments)

    def release(self) -> tuple[Callable[..., Any] | None, Any, Future[Any]]:
        """What it has done: function, task and future; it is free again."""
        function, task, future, ended = self.function, self.task, self.future or Future(), Future[Any]()
        self.future = self.function = self.task = None
        error = BrokenExecutor("lost") if future.cancelled() else future.exception()
        if type(error).__name__ == "KilledWorker":
            error = BrokenExecutor(str(error))
        elif error is not None and not self._worker_id and not isinstance(error, Dfmp2Error | BrokenExecutor):
            error = InputError(f"the Dask worker {self.address} cannot run dfmp2 ({error}): install it there")
        if error is not None:
            ended.set_exception(error)
        else:
            self._worker_id, result = future.result()
            ended.set_result(result)
        return function, task, ended

    @property
    def dead(self) -> bool:
        """Whether the worker is gone."""
        return self.address not in self._pool.workers

    def terminate(self) -> None:
        """Ask the tasks of all slots to stop at their next safe point."""
        self.token.unlink(missing_ok=True)

    def death(self) -> Death:
        """How the worker ended; another one may then `start`."""
        cause = f"its Dask worker {self.address} was lost: killed, as for want of memory, or its host is gone"
        return Death(cause, ResourceError.exit_code, self.memory)

    def close(self) -> None:
        """Forget what it is doing."""
        if self.future is not None:
            self.future.cancel()


class DaskPool(Pool):
    """The workers of a Dask cluster, also those that join it later.

    Parameters
    ----------
    engine : scheduler file or address
    folder : output, which all workers see
    threads, memory : of each task, memory in bytes; 0 for those of its Dask worker
    """

    def __init__(self, engine: str, folder: Path, threads: int, memory: int) -> None:
        super().__init__((), threads, memory)
        self._address = read_engine(engine)
        self.token = folder.resolve() / f".dask-{uuid.uuid4().hex[:12]}"
        self.workers: dict[str, Any] = {}  # by address
        self.taken: set[str] = set()  # addresses that a slot has, or had when it was dismissed
        self._size, self._looked, self._since = 0, -LOOK_EVERY, time.monotonic()

    def __enter__(self) -> DaskPool:
        try:
            from distributed import Client, Security
        except ImportError as error:
            raise BackendUnavailable(f"--engine needs Dask ({error}): pip install 'dfmp2[dask]'") from error
        for name in ("distributed", "distributed.client"):  # what goes wrong is said here
            logging.getLogger(name).setLevel(logging.CRITICAL)
        security = Security(require_encryption=self._address.startswith("tls"))
        try:
            self.client = Client(self._address, security=security, set_as_default=False, timeout=ANSWER)
        except (OSError, ValueError, TypeError) as error:
            raise self._gone(error) from error
        with suppress(ValueError):  # of a scheduler that executes nothing itself
            if self.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.worker_ttl) is None:
                raise InputError(f"{self._address} never gives up a worker that hangs: set its worker-ttl")
        self.token.touch()
        return self

    def __exit__(self, *_: object) -> None:
        self.token.unlink(missing_ok=True)
        super().__exit__()
        with suppress(OSError):
            self.client.close(timeout=2)

    @property
    def most(self) -> int:
        """How many workers there are now."""
        return len(self.workers)

    def grow(self, size: int) -> None:
        """Take up to `size` workers, now or when they come; ResourceError without a scheduler or a worker."""
        self._size = size
        self._look()
        while not self.slots:
            time.sleep(LOOK_EVERY)
            self._look()

    def finished(self) -> list[Any]:
        """Slots that have ended what they do within a moment; ResourceError without a scheduler or a worker."""
        self._look()
        for slot in [slot for slot in self.busy if slot.dead and not slot.future.done()]:
            slot.close()
        ended = super().finished()
        self._look()  # without a scheduler everything is cancelled, and no worker is to blame
        return ended

    def _look(self) -> None:
        """See which workers there are, when it is due."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY and self.client.status == "running":
            return
        self._looked = now
        try:
            if self.client.status != "running":
                raise OSError("the connection was lost")
            self.workers = self.client.sync(self.client.scheduler.identity, callback_timeout=ANSWER)["workers"]
        except OSError as error:
            raise self._gone(error) from error
        if self.workers:
            self._since = now
        elif now - self._since > WAIT:
            raise ResourceError(f"the Dask cluster of {self._address} has no worker: start some, and run this again")
        while len(self.slots) < self._size and self.workers.keys() - self.taken:
            self.slots.append(DaskSlot(self))

    def _gone(self, error: Exception) -> ResourceError:
        return ResourceError(
            f"the Dask scheduler {self._address} does not answer ({error}): start it, with TLS name the certificates; "
            "finished items are kept, and the same command goes on"
        )
