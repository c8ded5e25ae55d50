"""Lazy loading of modules that libraries import for features a run never uses.

PySCF's DIIS imports `scipy.optimize` for two variants we do not call; that import takes a fifth of
the time of a whole run on water. Its SCF package imports the point-group classes, which we never
use. SciPy's array-API layer requests every name in NumPy, which loads `numpy.f2py`, `numpy.testing`
and others. Only our own processes, the command line and workers, defer anything. Remove a name once
its importer imports it lazily.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

UNUSED = (
    "scipy.optimize",
    "pyscf.symm",
    "pyscf.scf.hf_symm",
    "pyscf.scf.uhf_symm",
    "pyscf.scf.ghf_symm",
)
NUMPY_EXTRAS = ("f2py", "testing", "polynomial", "char", "rec")
# Requested by tools that walk through all modules; not a real use
ASKED_OF_ALL = {"__file__", "__wrapped__"}
_presentations: list[Callable[[], ModuleType]] = []  # at most one, after registration


class _Deferred(ModuleType):
    """A placeholder that becomes the module when one of its names is accessed."""

    def __getattr__(self, name: str) -> Any:
        if name in ASKED_OF_ALL:
            raise AttributeError(f"module {self.__name__!r} is not loaded yet and has no {name!r}")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        # This also replaces the placeholder in its parent
        real = importlib.import_module(self.__name__)
        self.__dict__.update(real.__dict__)
        return getattr(real, name)


def defer(name: str) -> None:
    """Let `import name` succeed at once and load the module on first use; no effect if already
    loaded.

    A parent package that creates its submodules on request, such as NumPy, must already be loaded.
    """
    if name in sys.modules:
        return
    module = sys.modules[name] = _Deferred(name)
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


def register_presentation(load: Callable[[], ModuleType]) -> None:
    """Register the loader of the module returned by `presentation`; called by its own package."""
    _presentations[:] = [load]


def presentation() -> ModuleType:
    """The module `dfmp2.output.presentation`, loaded on demand, whose functions present objects of
    lower layers as text, dictionaries and tables.

    Raises
    ------
    RuntimeError : no module of `dfmp2.output` was imported before
    """
    if not _presentations:
        raise RuntimeError("results are shown by dfmp2.output: import dfmp2.output first")
    return _presentations[0]()


def defer_unused() -> None:
    """Defer modules that a run on the host never uses; call before PySCF is loaded."""
    for name in UNUSED:
        defer(name)


def defer_numpy_extras() -> None:
    """Load NumPy without the modules that SciPy makes it load; call after the thread variables are
    set."""
    importlib.import_module("numpy")
    for name in NUMPY_EXTRAS:
        defer(f"numpy.{name}")
