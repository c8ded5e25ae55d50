"""What is asked of a scheduler, whichever it is: a batch cut into shards, and the share of a machine each task gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Request:
    """The options that all schedulers share.

    Attributes
    ----------
    manifest : as it was given
    root, output : as given, None for the manifest's
    shards : tasks of the array
    workers : processes of a task
    threads : of each worker
    memory : of a task, bytes; None for the default of the scheduler
    seconds : limit on the wall time of a task, s; None for the default of the scheduler
    chained : start the SCF from the item before, of the same atoms
    submit : whether to submit, else only show
    folder : where the rendered files go, None for the default
    as_json : print one JSON object
    """

    manifest: str
    root: str | None
    output: str | None
    shards: int
    workers: int
    threads: int
    memory: int | None
    seconds: int | None
    chained: bool
    submit: bool
    folder: Path | None
    as_json: bool
