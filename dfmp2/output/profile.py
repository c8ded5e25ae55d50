"""The timeline of a run in the Trace Event Format, which Perfetto and chrome://tracing show.

Tracks: the steps reported by the run, with SCF iterations and counted parts nested in them; the
stages that its time is charged to, as in the table of a report; the tasks of each worker. Counters:
memory and, for a completed run, the rate of each stage (operations over time). Times are in
microseconds from the start of the profile.

Source: Trace Event Format, Google
(docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dfmp2.errors import Option, ResourceError
from dfmp2.host import resources
from dfmp2.host.files import require_writable, write_atomically
from dfmp2.host.threads import Workers
from dfmp2.mp2.result import MP2Result
from dfmp2.output.reports.result import AFTER, STAGES, operations
from dfmp2.progress import Listener, Relay

RUN, CHARGED = "run", "stages"  # tracks; each worker has its own, by name
SET_UP = "bases and plan"
TITLES = STAGES | AFTER
SAMPLED = 0.01  # s between samples of the memory


class Profile(Relay):
    """A listener that forwards all events and writes `path` on leaving its context, even after an
    error.

    Nothing is written if the run was rejected before it began.

    Parameters
    ----------
    overwrite : whether an existing file may be replaced

    Raises
    ------
    InputError, ResultExists, ResourceError : the file cannot be written, raised at the start or at
        the end
    """

    def __init__(self, listener: Listener, path: Path, *, overwrite: bool) -> None:
        super().__init__(listener)
        require_writable(path, overwrite=overwrite, option=Option("profile"))
        self._path, self._overwrite = path, overwrite
        self._events: list[dict[str, Any]] = []
        self._begin = self._last = self._sampled = time.perf_counter()
        self._stage = SET_UP, self._begin
        self._facts: dict[str, Any] = {}

    def __enter__(self) -> Profile:
        Workers.watch = self._add
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        Workers.watch = None
        if self._stage[0] == SET_UP:
            return
        self._next("")
        try:
            write_atomically(
                self._path,
                self._text().encode(),
                overwrite=self._overwrite,
                option=Option("profile"),
            )
        except ResourceError as error:
            if kind is None:
                raise
            self.warning(str(error))

    def stage(self, text: str) -> None:
        self._next(text)
        super().stage(text)

    def scf_cycle(self, cycle: int, energy: float, change: float, gradient: float) -> None:
        self._part(f"SCF iteration {cycle}", energy=energy, change=change, gradient=gradient)
        super().scf_cycle(cycle, energy, change, gradient)

    def step(self, done: int, total: int, what: str) -> None:
        self._part(what, done=done, of=total)
        super().step(done, total, what)

    def spent(self, stage: str, begin: float, end: float) -> None:
        self._add(CHARGED, stage, begin, end)
        super().spent(stage, begin, end)

    def finished(self, result: MP2Result) -> None:
        """Add the rate of each stage, 10^9 operations (or integrals) per second."""
        seconds, run = asdict(result.timings), result.provenance
        rates = {
            name: n / seconds[name] / 1e9
            for name, n in operations(result).items()
            if n and seconds[name]
        }
        for event in [
            event for event in self._events if event["tid"] == CHARGED and event["name"] in rates
        ]:
            name = f"{TITLES[event['name']]}, 10^9/s"
            self._count(name, event["ts"], {"rate": rates[event["name"]]})
            self._count(name, event["ts"] + event["dur"], {"rate": 0.0})
        self._facts = {
            "command": run.command,
            "version": run.version,
            "host": run.host,
            "threads": run.threads,
        }
        self._next("result file")

    def _next(self, stage: str) -> None:
        """Begin a stage, which ends the previous one."""
        name, begin = self._stage
        self._last = time.perf_counter()
        self._stage = stage, self._last
        self._add(RUN, name, begin, self._last)
        self._sample()

    def _part(self, name: str, **facts: Any) -> None:
        """Add a part that covers the time since the last event."""
        begin, self._last = self._last, time.perf_counter()
        self._add(RUN, name, begin, self._last, facts)
        if self._last > self._sampled + SAMPLED:
            self._sample()

    def _sample(self) -> None:
        self._sampled = self._last
        memory = {"resident": resources.resident_memory(), "peak": resources.peak_resident_memory()}
        self._count(
            "memory / MB",
            self._since(self._last),
            {name: size / 1e6 for name, size in memory.items()},
        )

    def _add(
        self, track: str, name: str, begin: float, end: float, facts: dict[str, Any] | None = None
    ) -> None:
        since = self._since(begin)
        event = {
            "ph": "X",
            "tid": track,
            "name": name,
            "ts": since,
            "dur": self._since(end) - since,
        }
        self._events.append(event | ({"args": facts} if facts else {}))

    def _count(self, name: str, at: float, values: dict[str, float]) -> None:
        self._events.append({"ph": "C", "tid": RUN, "name": name, "ts": at, "args": values})

    def _since(self, at: float) -> int:
        return round(1e6 * (at - self._begin))

    def _text(self) -> str:
        """The content of the file; on a track, a part follows its parent and ends before it
        does."""
        events = self._events[::-1]
        events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
        tracks = [RUN, CHARGED, *sorted({event["tid"] for event in events} - {RUN, CHARGED})]
        names = [
            {"ph": "M", "name": "thread_name", "tid": name, "args": {"name": name}}
            for name in tracks
        ]
        for event in names + events:
            event |= {
                "pid": os.getpid(),
                "tid": tracks.index(event["tid"]),
                "name": TITLES.get(event["name"], event["name"]),
            }
        return json.dumps(
            {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": self._facts}
        )
