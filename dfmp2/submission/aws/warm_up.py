"""Compile what a batch will launch, in a job of its own before the array: else every task compiles the same.

Programs go to S3 as soon as they are there, so that an attempt that is stopped leaves them to the next one.
"""

from __future__ import annotations

import sys

from dfmp2.backends.nki.environment import cache_folder
from dfmp2.batch.manifest import Batch
from dfmp2.submission import warm_up
from dfmp2.submission.aws.bucket import Location, Store
from dfmp2.submission.aws.programs import SharedPrograms
from dfmp2.submission.aws.supervisor import Supervisor, say

EVERY = 60.0  # s


def run_warm_up(batch: Batch, target: str, store: Store | None, place: Location | None, supervisor: Supervisor) -> int:
    """Compile for all sizes of a batch; the exit code of the first `dfmp2 kernels warmup` that fails, else 0.

    Parameters
    ----------
    target : chip, such as "trn1"
    place : of compiled programs in S3, None where they are on a file system

    Raises
    ------
    Interrupted : stopped
    Dfmp2Error : S3 cannot be read or written
    """
    lane = warm_up.lane(batch)
    if lane is None:
        say("nothing to compile: no item has a backend that launches compiled programs")
        return 0
    programs = SharedPrograms(store, place, cache_folder())
    say(f"files of compiled programs found: {programs.fetch()}")
    for spins in warm_up.shapes(batch):
        command = [sys.executable, "-P", "-m", "dfmp2", "kernels", "warmup", "--lane", lane, "--target", target]
        code = supervisor.run([*command, *warm_up.arguments(spins)], programs.push, EVERY)
        if code:
            return code
    return 0
