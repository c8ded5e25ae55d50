"""Compile what a batch will launch on Trainium, in a job of its own before its array: else every task does the same."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dfmp2.backends.registry import accelerator
from dfmp2.errors import Interrupted
from dfmp2.execution.arrays import look_ahead
from dfmp2.execution.manifest import Batch
from dfmp2.execution.state import read_inputs
from dfmp2.planning.plan import trainium_shapes

if TYPE_CHECKING:
    from dfmp2.execution.batch import Copies

COMPILED = ("nki", "nki-xla")  # backends that launch compiled programs


def compiled_backend(batch: Batch) -> str | None:
    """The backend whose programs the batch launches, None where nothing is compiled."""
    names = {item.options.backend for item in batch.items}
    return next((name for name in COMPILED if name in names), None)


def compile_programs(batch: Batch, copies: Copies | None, stop_asked: Callable[[], int]) -> int:
    """Compile for every size of molecule in the batch, unless it is in the cache.

    Parameters
    ----------
    copies : of compiled programs, None where they are on a file system that the tasks see

    Returns
    -------
    The exit code of the first `dfmp2 kernels warmup` that fails, else 0

    Raises
    ------
    Interrupted : stopped; what was compiled is kept
    """
    lane = str(compiled_backend(batch))
    for arguments in _shapes(batch):
        command = [sys.executable, "-P", "-m", "dfmp2", "kernels", "warmup", "--lane", lane, *arguments]
        # A session of its own: a signal reaches it once, from here.
        with subprocess.Popen(command, start_new_session=True) as child:
            while child.poll() is None and not stop_asked():
                time.sleep(0.2)
            child.terminate()
        if copies is not None:
            copies.save(now=True)
        if stop_asked():
            raise Interrupted("stopped while kernels were compiled: the same command goes on")
        if child.returncode:
            return child.returncode
    return 0


def _shapes(batch: Batch) -> list[tuple[str, ...]]:
    """Options of `dfmp2 kernels warmup`, for each bucket of sizes (virtuals to 32, fitting functions to 256).

    Molecules that cannot be read are left out; the batch itself says why.
    """
    buckets: dict[tuple[tuple[int, int], ...], tuple[str, ...]] = {}
    for item, load in zip(batch.items, look_ahead(batch, read_inputs(batch)), strict=True):
        spins = () if load is None or item.options.backend not in COMPILED else trainium_shapes(load)
        if spins:
            beta = ("--beta", f"{spins[1].nocc},{spins[1].nvir}") if len(spins) > 1 else ()
            shape = ("--shape", f"{spins[0].nocc},{spins[0].nvir},{spins[0].naux}")
            buckets.setdefault(accelerator().bucket(spins), (*shape, *beta))
    return [buckets[key] for key in sorted(buckets)]
