"""Modules that others import for features a run never uses: loaded when something in them is asked
for.

PySCF's DIIS imports `scipy.optimize` for two variants we do not call; that import takes a fifth of
the time of a whole run on water. Its SCF package imports the classes for point groups, which we
never use. SciPy's array-API layer asks NumPy for every name it has, which loads `numpy.f2py`,
`numpy.testing` and others. Only processes of our own, the command line and workers, defer anything.
Delete a name when its importer asks for it where it is used.
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
# By tools that walk through all modules; no use of this one
ASKED_OF_ALL = {"__file__", "__wrapped__"}
_presentations: list[Callable[[], ModuleType]] = []  # one, once it is registered


class _Deferred(ModuleType):
    """Becomes the module when one of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in ASKED_OF_ALL:
            raise AttributeError(f"module {self.__name__!r} is not loaded yet and has no {name!r}")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        # Which also takes this one's place in its parent
        real = importlib.import_module(self.__name__)
        self.__dict__.update(real.__dict__)
        return getattr(real, name)


def defer(name: str) -> None:
    """Let `import name` succeed at once and load the module at its first use; no effect if it is
    loaded.

    A parent package that makes its submodules on request, as NumPy does, must be loaded already.
    """
    if name in sys.modules:
        return
    module = sys.modules[name] = _Deferred(name)
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


def register_presentation(load: Callable[[], ModuleType]) -> None:
    """Register how the module of `presentation` is loaded; its room calls this."""
    _presentations[:] = [load]


def presentation() -> ModuleType:
    """The functions that show what the rooms below `output` have made, as text, dictionaries and
    tables: the module `dfmp2.output.presentation`, loaded now.

    Raises
    ------
    RuntimeError : no module of `dfmp2.output` was imported before
    """
    if not _presentations:
        raise RuntimeError("results are shown by dfmp2.output: import dfmp2.output first")
    return _presentations[0]()


def defer_unused() -> None:
    """Defer what a run on the host never uses; before PySCF is loaded."""
    for name in UNUSED:
        defer(name)


def defer_numpy_extras() -> None:
    """Load NumPy without what SciPy makes it load; after the thread variables are set."""
    importlib.import_module("numpy")
    for name in NUMPY_EXTRAS:
        defer(f"numpy.{name}")
