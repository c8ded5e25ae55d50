"""Modules that others import for features a run never uses: loaded when something in them is asked for.

PySCF's DIIS imports `scipy.optimize` for two variants we do not call; that import takes a fifth of the
time of a whole run on water. Only the command line, whose process is its own, defers anything. Delete
this when PySCF imports it where it is used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

ASKED_OF_ALL = {"__file__", "__wrapped__"}  # by tools that walk through all modules; no use of this one


class _Deferred(ModuleType):
    """Becomes the module when one of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in ASKED_OF_ALL:
            raise AttributeError(f"module {self.__name__!r} is not loaded yet and has no {name!r}")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        real = importlib.import_module(self.__name__)
        self.__dict__.update(real.__dict__)
        return getattr(real, name)


def defer(name: str) -> None:
    """Let `import name` succeed at once and load the module at its first use; no effect if it is loaded."""
    if name not in sys.modules:
        sys.modules[name] = _Deferred(name)
