"""The course of one run: who computes what next, what became of it, and what to do when a worker dies."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dfmp2.batch.casualty import Casualty
from dfmp2.batch.crew import Crew, Heard, Post
from dfmp2.batch.inputs import START, Input
from dfmp2.batch.ledger import write_ledger
from dfmp2.batch.manifest import Batch
from dfmp2.batch.order import Run, arrange, shards
from dfmp2.batch.orders import Observer, Orders
from dfmp2.batch.state import Row
from dfmp2.batch.survey import Survey
from dfmp2.batch.worker import PREVIOUS
from dfmp2.errors import Dfmp2Error, Interrupted, ResourceError
from dfmp2.io.batch import write_failure
from dfmp2.io.lock import discard, holder

PATIENCE = 8.0  # s that workers have to stop
GRACE = 15.0  # s that items of other processes are waited for: the workers of a batch that was killed end within that
LEDGER_EVERY = 5.0  # s between two versions of batch.json


class Session:
    """The course of one run."""

    def __init__(self, batch: Batch, orders: Orders, observer: Observer, found: Survey) -> None:
        self.batch, self.orders, self.observer = batch, orders, observer
        self.inputs, self.rows, self.survey = found.inputs, list(found.rows), found
        self.mine = list(range(len(self.rows)))  # until the shard is known
        self.found = sum(row.status == "complete" for row in self.rows)
        self.unfinished: list[int] = []
        self.barred: list[str] = []  # devices that reported a fault of the hardware
        self._asked = self._planned = False
        self._queue: deque[Run] = deque()
        self._costs: dict[int, float] = {}
        self._dead: dict[int, tuple[Mapping[str, Any], Casualty]] = {}  # items whose worker died
        self._unasked: list[int] = []  # those of them whose need of memory is not being looked up yet
        self._elsewhere: list[int] = []  # items that other processes compute
        self._told: set[int] = set()
        self._idle_since: float | None = None
        self._todo = self._done = 0
        self._cost_left = self._cost_done = 0.0
        self._began = self._written = time.monotonic()

    def work(self, crew: Crew) -> None:
        """Until everything is done or the user wants to stop."""
        crew.grow(min(self.orders.workers, sum(row.status != "complete" for row in self.rows) or 1))
        deadline = None
        while crew.posts:
            stops = self.observer.stop_asked()
            if stops and deadline is None:
                deadline = time.monotonic() + PATIENCE
                crew.stop()
            if stops > 1 or (deadline is not None and (not crew.busy or time.monotonic() > deadline)):
                break
            if deadline is None:
                free = [post for post in crew.posts if post.free]
                if not self._asked and free:
                    self._asked = True
                    crew.give(free[0], {"kind": "sizes", "wanted": self.survey.wanted()})
                elif self._planned:
                    for post in free:
                        self._next(crew, post)
            for heard in crew.listen():
                self._take(crew, heard, stopping=deadline is not None)
            self._write_now_and_then()
        self.unfinished = [post.task["place"] for post in crew.busy if post.task and "place" in post.task]

    def _take(self, crew: Crew, heard: Heard, *, stopping: bool) -> None:
        kind = heard.reply["kind"]
        if kind == "sizes":
            self._plan(heard.reply["sizes"])
        elif kind == "item" and heard.task is not None:
            self._finish(heard.task["place"], heard.reply, stopping=stopping)
            if heard.reply.get("device_fault"):
                self._bar(crew, heard.post)
        elif kind == "need" and heard.task is not None:
            self._give_up(heard.task["place"], heard.reply)
        elif kind == "note" and heard.task is not None:
            self.observer.note(f"{self.rows[heard.task['place']].name}: {heard.reply['text']}")
        elif kind == "dead" and not stopping:
            self._mourn(crew, heard)
        elif kind == "dead" and heard.task is not None and "place" in heard.task:
            discard(self.batch.result(self.batch.items[heard.task["place"]]))

    def _plan(self, sizes: Sequence[Any]) -> None:
        """Decide what is this run's, and in which order."""
        works = self.survey.works(sizes)
        self._costs = {work.place: work.cost for work in works}
        chained = self.orders.chained
        if self.orders.shard is None:
            chosen = works
        else:
            index, count = self.orders.shard
            chosen = shards(works, count, chained=chained)[index]
        self._planned = True
        self.mine = [work.place for work in chosen]
        left = [place for place in self.mine if self.rows[place].status != "complete"]
        self._todo, self.found = len(left), len(self.mine) - len(left)
        self._cost_left = sum(self._costs[place] for place in left)
        for place in left:
            if self.rows[place].remark and self.rows[place].status != "running":
                self.observer.note(f"{self.rows[place].name}: {self.rows[place].remark}: it is computed again")
            self._refuse(place)
        self._queue = deque(arrange(chosen, parts=self.orders.workers, chained=chained))
        self._began = time.monotonic()

    def _refuse(self, place: int) -> None:
        """Note the failure of an item whose molecule cannot be read."""
        error = self.survey.errors.get(place)
        if error is not None:
            target = self.batch.result(self.batch.items[place])
            if os.path.lexists(target):  # of a molecule that could still be read
                os.replace(target, f"{target}{PREVIOUS}")
            self._fail(place, error.exit_code, str(error), self.survey.traceback(place))

    def _next(self, crew: Crew, post: Post) -> None:
        """Give a free worker the next item, or let it go."""
        if self._unasked:
            task, _ = self._dead[self._unasked.pop()]
            crew.give(post, {**task, "kind": "need"})
            return
        if crew.barred(post):
            self._queue.extendleft(Run((place,), self._costs.get(place, 0.0)) for place in reversed(post.rest))
            crew.dismiss(post)
            return
        while post.rest or self._queue:
            if not post.rest:
                post.rest, post.before = list(self._queue.popleft().places), None
            place = post.rest.pop(0)
            given = self.inputs[place]
            if self.rows[place].status != "complete" and given is not None:
                crew.give(post, self._task(place, given, post.before))
                post.before = place
                return
            post.before = place
        if not self._wait():
            crew.dismiss(post)

    def _wait(self) -> bool:
        """Whether there may be more to do, once another process has let go of an item."""
        if self._elsewhere and self._idle_since is None:
            self._idle_since = time.monotonic()
        for place in list(self._elsewhere):
            let_go = holder(self.batch.result(self.batch.items[place])) is None
            if let_go:
                self._queue.append(Run((place,), self._costs.get(place, 0.0)))
            elif self._idle_since is not None and time.monotonic() - self._idle_since > GRACE:
                self._count(place)
            else:
                continue
            self._elsewhere.remove(place)
        return bool(self._elsewhere or self._queue)

    def _task(self, place: int, given: Input, before: int | None) -> dict[str, Any]:
        item, orders = self.batch.items[place], self.orders
        settings, charges = item.settings, given.molecule.point_charges
        chained = orders.chained and before is not None and self.rows[before].status == "complete"
        options = replace(settings.options, memory=orders.memory, threads=orders.threads, scratch=orders.scratch)
        begun = f"; {START}{given.start}" if given.start else ""
        return {
            "kind": "run",
            "place": place,
            "molecule": given.file,
            "text": given.text,
            "units": settings.units,
            "charge": settings.charge,
            "multiplicity": settings.multiplicity,
            "point_charges": None if charges is None else charges.tolist(),
            "options": asdict(options),
            "workers": orders.workers,
            "target": str(self.batch.result(item)),
            "failure": str(self.batch.failure(item)),
            "start": str(self.batch.result(self.batch.items[before])) if chained and before is not None else None,
            "fingerprint": given.fingerprint,
            "command": f"{orders.command}  # item {item.name}{begun}",
        }

    def _finish(self, place: int, reply: Mapping[str, Any], *, stopping: bool) -> None:
        """What a worker said of an item."""
        item, row = self.batch.items[place], Row(self.rows[place].name, self.rows[place].molecule, reply["status"])
        given = self.inputs[place]
        if row.status == "complete" and given is not None:
            row = replace(
                row,
                exit_code=0,
                output=str(self.batch.result(item)),
                seconds=reply.get("spent"),
                numbers=reply["numbers"],
                fingerprint=given.fingerprint,
                stamp=tuple(reply["stamp"]),
            )
            if reply.get("found"):
                self.observer.note(f"{item.name}: another process has finished it meanwhile")
        elif row.status == "failed":
            row = replace(row, exit_code=reply["code"], error=reply["message"], seconds=reply["seconds"])
            if "unwritten" in reply:
                self.observer.note(f"{item.name}: its error file is missing: {reply['unwritten']}")
        elif row.status == "running":
            row = replace(row, remark=reply["message"])
            self._elsewhere.append(place)
            if place not in self._told:
                self._told.add(place)
                self.observer.note(f"{item.name}: {reply['message']}: left to it")
        self.rows[place] = row
        if row.status in ("complete", "failed"):
            self._count(place)
        elif row.status == "pending" and not stopping:  # somebody has terminated the worker, not the batch
            self._queue.appendleft(Run((place,), self._costs.get(place, 0.0)))

    def _bar(self, crew: Crew, post: Post) -> None:
        """Use a device no more whose hardware has failed: the next item would fail on it as well, or be wrong."""
        if crew.barred(post):
            return
        device = crew.bar(post)
        self.barred.append(device)
        self.observer.note(f"{device} reported a hardware fault: it gets no more items, what is left goes to others")

    def _mourn(self, crew: Crew, heard: Heard) -> None:
        """A worker died: its item fails, and a new one takes its place."""
        casualty, task = heard.casualty, heard.task
        if casualty is None:
            return
        terminated = casualty.code in (-signal.SIGTERM, Interrupted.exit_code)
        if not terminated and (not heard.reply["ready"] or (task is not None and task["kind"] == "sizes")):
            raise Dfmp2Error(f"a worker cannot start (exit code {casualty.code}): {casualty.errors.strip()[-2000:]}")
        if task is not None and task["kind"] == "sizes":
            self._asked = False
        elif task is not None and task["kind"] == "need":
            self._give_up(task["place"], {})
        elif task is not None:
            discard(Path(task["target"]))
            self._dead[task["place"]] = task, casualty
            self._unasked.append(task["place"])
        crew.replace(heard.post)

    def _give_up(self, place: int, need: Mapping[str, Any]) -> None:
        """Note the failure of an item whose worker died."""
        _, casualty = self._dead.pop(place)
        self._fail(place, casualty.exit_code, casualty.message(need), casualty.errors)

    def _fail(self, place: int, code: int, message: str, traceback: str) -> None:
        item = self.batch.items[place]
        try:
            write_failure(self.batch.failure(item), code, message, traceback)
        except ResourceError as error:
            self.observer.note(f"{item.name}: its error file is missing: {error}")
        self.rows[place] = Row(item.name, item.molecule, "failed", exit_code=code, error=message)
        self._count(place)

    def _count(self, place: int) -> None:
        self._done += 1
        self._cost_done += self._costs.get(place, 0.0)
        self._cost_left -= self._costs.get(place, 0.0)
        spent = time.monotonic() - self._began
        left = max(0.0, self._cost_left) * spent / self._cost_done if self._cost_done > 0 else None
        self.observer.item(self.rows[place], self._done, self._todo, left)

    def _write_now_and_then(self) -> None:
        if time.monotonic() - self._written < LEDGER_EVERY:
            return
        try:
            write_ledger(self.batch, self.rows)
        except ResourceError as error:
            self.observer.note(f"batch.json could not be written ({error}); the results do not depend on it")
        self._written = time.monotonic()
