"""Before NumPy, PySCF and PyTorch are loaded by a command that computes."""

from __future__ import annotations

from dfmp2.deferred import defer_numpy_extras
from dfmp2.threads import set_environment


def prepare_libraries(threads: int) -> None:
    """Set the threads of every library before its pool is started, and leave out what a run never uses."""
    set_environment(threads)
    defer_numpy_extras()
