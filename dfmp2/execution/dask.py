"""Workers of a running Dask cluster as slots of a batch, with the interface of
`dfmp2.execution.pool`.

One slot per Dask worker and one call per slot, bound to the worker's process, so that a death is
attributed to exactly one call and Dask does not retry it. Each call carries the versions of its
client. Results go to the output folder, which must be visible to all workers: each call looks for a
token file there, whose later disappearance asks it to stop.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dfmp2.errors import BackendUnavailable, Dfmp2Error, InputError, Option, ResourceError
from dfmp2.execution.pool import Call, Died, Pool, WorkerShare, fault
from dfmp2.host import provenance, threads

LOOK_EVERY = 1.0  # s between checks of the workers
ANSWER = 15.0  # s allowed for an answer of the scheduler; a busy one needs more than 5
WAIT = 60.0  # s to wait for a cluster without workers
SHARE_OF_LIMIT = 0.8  # of a worker's memory limit; at 0.95 its nanny terminates it


def read_engine(text: str) -> str:
    """The address of the scheduler given by --engine, directly or by its file; raises InputError
    for one open to others."""
    try:
        if "://" in text:
            address = text
        else:
            stored = json.loads(Path(text).read_text(encoding="utf-8"))
            if not isinstance(stored, dict) or "address" not in stored:
                raise ValueError("it names no address")
            address = str(stored["address"])
        parts = urlsplit(address)
        if parts.scheme not in ("tcp", "tls") or not parts.hostname or not parts.port:
            raise ValueError(address)
    except (OSError, ValueError) as error:
        raise InputError(
            Option("engine", text),
            ": expected the file of dask scheduler --scheduler-file=FILE, tcp://HOST:PORT or "
            f"tls://HOST:PORT ({error})",
        ) from error
    if parts.scheme == "tcp" and not re.fullmatch(r"localhost|::1|127(\.\d+){3}", parts.hostname):
        raise InputError(
            Option("engine", text),
            (
                f": {address} is not encrypted, and whoever reaches it can run any program as "
                "you: start scheduler and workers with TLS (docs/howto/dask.md)"
            ),
        )
    return address


def run_call(versions: dict[str, str], process: str, call: Call, share: WorkerShare) -> Any:
    """Run a call in a Dask worker, if it is the intended `process` (identified by its folder)."""
    from distributed import get_worker

    worker = get_worker()
    here = provenance.versions()
    token = share.token or Path()
    if here != versions:
        shown = [
            ", ".join(f"{name} {version}" for name, version in one.items())
            for one in (here, versions)
        ]
        raise InputError(
            f"the Dask worker {worker.address} has {shown[0]}, and here is {shown[1]}: install the "
            "same"
        )
    if not token.exists():
        where = f"the Dask worker {worker.address} does not see {token.parent}"
        raise InputError(f"{where}: name an ", Option("output"), " that all workers share")
    if worker.local_directory != process:
        raise BrokenExecutor("the worker was started again at the same address")
    with threads.limited(share.threads):
        return call.function(*call.given, share)


class DaskSlot:
    """The worker at an address, until its process dies. Attributes and methods are those of
    `pool.Slot`."""

    future: Future[Any] | None = None
    call: Any = None

    def __init__(self, pool: DaskPool, address: str) -> None:
        info, (count, memory, _) = pool.workers[address], pool.share
        memory = memory or int(SHARE_OF_LIMIT * (info["memory_limit"] or 0))
        if not memory:
            raise InputError(
                f"the Dask worker {address} has no memory limit: pass ",
                Option("memory"),
                ", that of each worker",
            )
        self._pool, self.address, self._process = pool, address, info["local_directory"]
        self.share = WorkerShare(count or info["nthreads"], memory, pool.token)
        self._executor = pool.client.get_executor(
            workers=[address], allow_other_workers=False, pure=False, retries=0
        )

    @property
    def ready(self) -> bool:
        """Whether the worker is there."""
        return self.address in self._pool.workers

    def submit(self, call: Call) -> None:
        """Submit a call; raises ResourceError if the scheduler is gone."""
        given = provenance.versions(), self._process, call._replace(tag=None), self.share
        if self._pool.client.status != "running":
            raise self._pool.lost(OSError("the connection was lost"))
        self.call, self.future = call, self._executor.submit(run_call, *given)

    def result(self) -> Any:
        """The value or exception of its call; Died if the worker died, or was asked to stop before
        it began."""
        future, self.future = self.future or Future(), None
        error = BrokenExecutor("lost") if future.cancelled() else future.exception()
        if error is None:
            return future.result()
        if isinstance(error, ImportError):
            error = InputError(
                f"the Dask worker {self.address} cannot run dfmp2 ({error}): install it there"
            )
        if isinstance(error, Dfmp2Error) and not self._pool.stopping:
            raise error
        address, self.address = self.address, ""  # from now on, another process answers there
        killed = type(error).__name__ == "KilledWorker"
        if not killed and not isinstance(error, Dfmp2Error | BrokenExecutor):
            raise fault(error) from error
        raise Died(
            f"its Dask worker {address} was lost: killed, as for want of memory, or its host is "
            "gone",
            ResourceError.exit_code,
            self.share,
            terminated=self._pool.stopping,
        ) from error

    def terminate(self) -> None:
        """Ask the calls of all slots to stop at their next safe point."""
        self._pool.stopping = True
        self._pool.token.unlink(missing_ok=True)

    def close(self) -> None:
        """Forget the current call."""
        if self.future is not None:
            self.future.cancel()


class DaskPool(Pool):
    """The workers of a Dask cluster, including those that join later.

    `engine` is a scheduler file or address, `folder` the output folder, visible to all workers;
    threads and memory in the `share` of each call are 0 to use those of its Dask worker.
    """

    def __init__(self, engine: str, folder: Path, share: WorkerShare) -> None:
        super().__init__((), share)
        self._address = read_engine(engine)
        self.token, self.stopping = folder.resolve() / f".dask-{uuid.uuid4().hex[:12]}", False
        self.workers: dict[str, Any] = {}  # the scheduler's information on each, by address
        self._size, self._looked, self._since = 0, -LOOK_EVERY, time.monotonic()

    def __enter__(self) -> DaskPool:
        try:
            from distributed import Client, Security
        except ImportError as error:
            raise BackendUnavailable(
                Option("engine"), f" needs Dask ({error}): pip install 'dfmp2[dask]'"
            ) from error
        for name in ("distributed", "distributed.client"):  # errors are reported by us
            logging.getLogger(name).setLevel(logging.CRITICAL)
        security = Security(require_encryption=self._address.startswith("tls"))
        try:
            self.client = Client(
                self._address, security=security, set_as_default=False, timeout=ANSWER
            )
        except (OSError, ValueError, TypeError) as error:
            raise self.lost(error) from error
        with suppress(ValueError):  # for a scheduler that runs no tasks itself
            if (
                self.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.worker_ttl)
                is None
            ):
                raise InputError(
                    f"{self._address} never gives up a worker that hangs: set its worker-ttl"
                )
        self.token.touch()
        return self

    def __exit__(self, *_: object) -> None:
        self.token.unlink(missing_ok=True)
        super().__exit__()
        with suppress(OSError):
            self.client.close(timeout=2)

    def grow(self, size: int) -> None:
        """Use up to `size` workers, now or when they join; raises ResourceError without a scheduler
        or worker."""
        self._size = size
        self._look()
        while not self.slots:
            time.sleep(LOOK_EVERY)
            self._look()

    def finished(self) -> list[Any]:
        """Slots that finish within a moment; raises ResourceError without a scheduler or worker."""
        self._look()
        for slot in self.busy:
            if not slot.ready and not slot.future.done():
                slot.close()
        ended = super().finished()
        self._look()  # without a scheduler everything is cancelled, through no fault of a worker
        return ended

    def _look(self) -> None:
        """Update the list of workers, if due."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY and self.client.status == "running":
            return
        self._looked = now
        try:
            if self.client.status != "running":
                raise OSError("the connection was lost")
            self.workers = self.client.sync(
                self.client.scheduler.identity, callback_timeout=ANSWER
            )["workers"]
        except OSError as error:
            raise self.lost(error) from error
        if self.workers:
            self._since = now
        elif now - self._since > WAIT:
            raise ResourceError(
                f"the Dask cluster of {self._address} has no worker: start some, and run this again"
            )
        self.slots = [slot for slot in self.slots if slot.future is not None or slot.ready]
        new = self.workers.keys() - {slot.address for slot in self.slots}
        self.slots += [
            DaskSlot(self, address) for address in sorted(new)[: self._size - len(self.slots)]
        ]

    def lost(self, error: Exception) -> ResourceError:
        """The error if the scheduler cannot be reached."""
        return ResourceError(
            f"the Dask scheduler {self._address} does not answer ({error}): start it, with TLS "
            "name the certificates; finished items are kept; repeat the command to continue"
        )
