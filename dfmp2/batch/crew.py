"""The workers of a batch: each has at most one item, and a dead one is replaced."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfmp2.batch.accelerators import pinning
from dfmp2.batch.casualty import Casualty, killed_for_memory
from dfmp2.batch.process import Worker
from dfmp2.errors import BackendError, ConvergenceError, Dfmp2Error, InputError, NumericalError, ResourceError
from dfmp2.io.lock import REFRESH_EVERY, refresh

TICK = 0.2  # s between two looks at what the user wants
BY_CODE = {kind.exit_code: kind for kind in (InputError, ConvergenceError, NumericalError, BackendError, ResourceError)}


@dataclass(slots=True, eq=False)
class Post:
    """A place for a worker.

    Attributes
    ----------
    number : from 0; decides its accelerator
    worker : the process
    task : what it was told and has not answered
    rest : places of the items it computes after this one
    before : place of the item it computed before, in the same series
    oom : processes killed for memory before the task
    """

    number: int
    worker: Worker
    task: Mapping[str, Any] | None = None
    rest: list[int] = field(default_factory=list)
    before: int | None = None
    oom: int = 0

    @property
    def free(self) -> bool:
        """Whether it waits for a task."""
        return self.worker.ready and self.task is None


@dataclass(frozen=True, slots=True)
class Heard:
    """What a worker said, or that it died."""

    post: Post
    task: Mapping[str, Any] | None
    reply: Mapping[str, Any]
    casualty: Casualty | None = None


class Crew:
    """Workers with their shares of the machine.

    Parameters
    ----------
    size, threads, memory : number of workers, and threads and bytes of each
    backend : decides which accelerators are pinned
    """

    def __init__(self, size: int, threads: int, memory: int, backend: str) -> None:
        self._variables = [pinning(backend, number, size) for number in range(size)]
        self._threads, self._memory = threads, memory
        self._selector = selectors.DefaultSelector()
        self._refreshed = time.monotonic()
        self._barred: list[Mapping[str, str]] = []
        self.posts: list[Post] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for post in self.posts:
            self._remove(post.worker)
        self._selector.close()

    def grow(self, size: int) -> None:
        """Start workers up to `size`, or up to the number there may be."""
        for number in range(len(self.posts), min(size, len(self._variables))):
            self.posts.append(Post(number, self._start(number)))

    def give(self, post: Post, task: Mapping[str, Any]) -> None:
        """Send a worker a task; should it be dead, `listen` says so."""
        post.task, post.oom = task, killed_for_memory()
        post.worker.tell(task)

    def listen(self) -> Iterator[Heard]:
        """What happened within a moment.

        Raises
        ------
        Dfmp2Error : a worker cannot start
        """
        for key, _ in self._selector.select(TICK):
            yield from self._hear(key.data)
        due = time.monotonic() - self._refreshed >= REFRESH_EVERY
        for post in self.posts:
            if post.task is not None:
                post.worker.watch()
                if due and "target" in post.task:
                    refresh(Path(post.task["target"]))
        if due:
            self._refreshed = time.monotonic()

    def stop(self) -> None:
        """Ask every worker to stop at once."""
        for post in self.posts:
            post.worker.terminate()

    def dismiss(self, post: Post) -> None:
        """Let a worker without work go."""
        self.posts.remove(post)
        self._remove(post.worker)

    def bar(self, post: Post) -> str:
        """Never use the device of a worker again, whichever workers have it; its name."""
        device = self._variables[post.number]
        self._barred.append(device)
        return ", ".join(f"{name}={value}" for name, value in device.items()) or "the device of all workers"

    def barred(self, post: Post) -> bool:
        """Whether the device of a worker must not be used."""
        return self._variables[post.number] in self._barred

    @property
    def busy(self) -> Sequence[Post]:
        """Those with a task."""
        return [post for post in self.posts if post.task is not None]

    def _start(self, number: int) -> Worker:
        worker = Worker(self._threads, self._variables[number])
        self._selector.register(worker, selectors.EVENT_READ, worker)
        return worker

    def _remove(self, worker: Worker) -> None:
        if worker.fileno() in self._selector.get_map():
            self._selector.unregister(worker)
        worker.close()

    def _hear(self, worker: Worker) -> Iterator[Heard]:
        post = next((post for post in self.posts if post.worker is worker), None)
        if post is None:  # let go meanwhile
            return
        replies, open_ = worker.hear()
        for reply in replies:
            if reply["kind"] == "refused":
                raise BY_CODE.get(reply["code"], Dfmp2Error)(reply["message"])
            if reply["kind"] == "note":
                yield Heard(post, post.task, reply)
                continue
            task, post.task, worker.ready = post.task, None, True
            if reply["kind"] != "ready":
                yield Heard(post, task, reply)
        if not open_:
            yield from self._bury(post)

    def _bury(self, post: Post) -> Iterator[Heard]:
        """Replace a dead worker and say what it was at."""
        worker, task = post.worker, post.task
        code, errors = worker.ending()
        self._remove(worker)
        self.posts.remove(post)
        yield Heard(
            post,
            task,
            {"kind": "dead", "ready": worker.ready},
            Casualty(code, worker.peak, self._memory, killed_for_memory() > post.oom, errors),
        )

    def replace(self, post: Post) -> Post:
        """A new worker in the place of a dead one."""
        new = Post(post.number, self._start(post.number), rest=post.rest, before=post.before)
        self.posts.append(new)
        return new
