"""One shard of a batch in a container: get what there is from S3, compute what is missing, copy it back.

    s3://BUCKET/PREFIX/inputs/SHA256.tar    manifest and molecules; never changes
                       results/NAME.h5      and errors and checkpoints, as in the output folder of a batch
                       shards/I-of-N.json   when which attempt began, and how it ended
                       programs/...         compiled ones

Any host can go on with any shard, since all that is on a host is a copy.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dfmp2.backends.nki.environment import cache_folder
from dfmp2.batch.manifest import Batch, read_manifest
from dfmp2.batch.order import shard_of_job
from dfmp2.batch.outlook import foresee
from dfmp2.scratch.folder import VARIABLE
from dfmp2.submission.aws.bucket import Location, Store
from dfmp2.submission.aws.mirror import Mirror
from dfmp2.submission.aws.package import OUTPUT, unpack
from dfmp2.submission.aws.programs import SharedPrograms
from dfmp2.submission.aws.supervisor import Supervisor, say

INPUTS, RESULTS, SHARDS, PROGRAMS = "inputs", "results", "shards", "programs"  # below the location of a batch
CHAINED = "--scf-chain"
NAMES = {"job": "AWS_BATCH_JOB_ID", "attempt": "AWS_BATCH_JOB_ATTEMPT", "queue": "AWS_BATCH_JQ_NAME"}


@dataclass(frozen=True, slots=True)
class Task:
    """What a container is told.

    Attributes
    ----------
    place : of the batch in S3
    inputs : name of the package of inputs there
    programs : of compiled programs in S3, None where they are on a file system or not needed
    every : s between two copies
    options : of `dfmp2 batch run`
    """

    place: Location
    inputs: str
    programs: Location | None
    every: float
    options: tuple[str, ...]


def run_shard(task: Task, store: Store, supervisor: Supervisor, shard: tuple[int, int] | None = None) -> int:
    """Compute a shard; the exit code of `dfmp2 batch run`.

    Parameters
    ----------
    shard : (I, N), None for that of the array job, or for everything

    Raises
    ------
    Interrupted : stopped before there was anything to save
    Dfmp2Error : S3 cannot be read or written
    """
    index, count = shard or shard_of_job() or (0, 1)
    note = _Note(store, task.place / SHARDS / f"{index}-of-{count}.json", f"{index}/{count}")
    note.write(status="running")  # here a role that may not write is found, not after hours
    with working_folder() as folder:
        batch = fetch_inputs(task.place, task.inputs, store, folder)
        outlook = foresee(batch, count, chained=CHAINED in task.options)
        names = [item.name for item in outlook.items if item.shard == index]
        mirror = Mirror(store, task.place / RESULTS, batch.output, names)
        programs = SharedPrograms(store, task.programs, cache_folder())
        say(f"shard {index} of {count}: items: {len(names)}, files of earlier attempts: {mirror.fetch()}")
        programs.fetch()

        def save() -> None:
            mirror.push()
            programs.push()

        code = supervisor.run(command(batch, (index, count), task.options), save, task.every)
    note.write(status="ended", exit_code=code)
    return code


def command(batch: Batch, shard: tuple[int, int], options: Sequence[str]) -> list[str]:
    """What computes a shard."""
    own = [sys.executable, "-P", "-m", "dfmp2", "batch", "run", batch.source]
    return [*own, "--shard", f"{shard[0]}/{shard[1]}", *options]


def fetch_inputs(place: Location, name: str, store: Store, folder: Path) -> Batch:
    """The batch of a package in S3, unpacked.

    Raises
    ------
    Dfmp2Error : it is not there, or not whole
    """
    archive = folder / "inputs.tar"
    store.get(place / INPUTS / name, archive)
    manifest = unpack(archive, folder / "batch")
    archive.unlink()
    (manifest.parent / OUTPUT).mkdir(exist_ok=True)
    return read_manifest(manifest)


@contextmanager
def working_folder() -> Iterator[Path]:
    """A folder that goes with the attempt."""
    with tempfile.TemporaryDirectory(prefix="dfmp2-batch-", dir=os.environ.get(VARIABLE)) as folder:
        yield Path(folder)


class _Note:
    """How a shard stands, for people who look into S3."""

    def __init__(self, store: Store, place: Location, shard: str) -> None:
        self._store, self._place = store, place
        told = {key: os.environ[name] for key, name in NAMES.items() if name in os.environ}
        self._value: Mapping[str, Any] = {"shard": shard, **told}

    def write(self, **state: Any) -> None:
        self._value = {**self._value, **state, f"{state['status']}_at": datetime.now(UTC).isoformat(timespec="seconds")}
        self._store.write(json.dumps(self._value, indent=1).encode() + b"\n", self._place)
