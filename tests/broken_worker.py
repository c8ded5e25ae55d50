"""A worker process with planted faults, triggered by certain molecule names."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from dfmp2.errors import ResourceError
from dfmp2.execution import pool

early: list[str] = []  # modules loaded before the worker was set up


def begin_light(*given: Any) -> None:
    """The initializer of a worker, which records the modules loaded before."""
    early.extend(
        name for name in ("numpy", "pyscf", "torch", "tests.conftest") if name in sys.modules
    )
    pool.begin(*given)


def begin(*given: Any) -> None:
    """As `begin_light`; it then also replaces the calculation and the writing of its result."""
    begin_light(*given)
    from dfmp2.mp2 import energy
    from dfmp2.output import hdf5

    compute, write = energy.mp2_energy, hdf5.write

    def run(molecule: Any, *given: Any, **more: Any) -> Any:
        if molecule.name == "fault":
            raise ValueError("planted")
        result = compute(molecule, *given, **more)
        return (
            replace(result, check=replace(result.check, allowed=-1.0))
            if molecule.name == "differs"
            else result
        )

    def broken_write(result: Any, target: Any, *, packed: bool) -> None:
        if result.molecule.name == "full":
            raise ResourceError("planted: the disk refuses the file")
        if result.molecule.name == "signalled":
            os.kill(os.getpid(), signal.SIGTERM)
        write(result, target, packed=packed)
        if result.molecule.name == "signalled":
            os.kill(os.getpid(), signal.SIGTERM)

    energy.mp2_energy, hdf5.write = run, broken_write


def end_at_once(*_: Any) -> None:
    """An initializer that ends the worker before it is set up."""
    os._exit(3)


def load_nothing() -> None:
    """Replaces loading the libraries of a calculation."""


def wait(share: Any) -> None:
    """Wait for a long time."""
    time.sleep(600)


def surroundings(share: Any) -> dict[str, Any]:
    """The properties of its process that a task sees."""
    import numpy

    return {
        "pid": os.getpid(),
        "early": early,
        "main": threading.current_thread() is threading.main_thread(),
        "threads": os.environ["OMP_NUM_THREADS"],
        "device": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "numpy": hasattr(numpy, "ndarray"),
    }
