"""Executes kernel files with `nki`, `nki.language` and `nki.isa` replaced by the interpreter's own.

Files are found by module name, linted once, and run in a private namespace, never through sys.modules: the real nki
may be absent, and every run gets modules bound to its own simulated core.
"""

from __future__ import annotations

import builtins
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from dfmp2.backends.nki.interpreter.language import Nki
from dfmp2.backends.nki.interpreter.lint import BUILTINS, lint
from dfmp2.backends.nki.interpreter.violations import Violation
from dfmp2.errors import InputError

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core


def locate(source: str, beside: Path | None = None) -> Path:
    """File of a kernel module: a path that ends in .py, a name in the importing file's folder, or a module name."""
    if source.endswith(".py"):
        path = Path(source)
    elif beside is not None and "." not in source:
        path = beside.parent / f"{source}.py"
    else:
        top, *rest = source.split(".")
        spec = find_spec(top)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        path = Path(folders[0] if folders else ".", *rest).with_suffix(".py")
    if not path.is_file():
        raise InputError(f"kernel source {source}: no file {path}; give a module name or a path that ends in .py")
    return path


@lru_cache(maxsize=64)
def _compiled(path: str, _modified: int, _size: int) -> CodeType:
    """Linted code of a kernel file; compiled once per version of the file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Violation("syntax", f"not UTF-8: {error.reason} at byte {error.start}", Path(path).name) from error
    lint(text, Path(path).name)
    return compile(text, path, "exec", dont_inherit=True)


class Loader:
    """Kernel modules of one run, each executed once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._nki = Nki(core)
        self._modules: dict[str, ModuleType] = {}

    def load(self, source: str, beside: Path | None = None) -> ModuleType:
        """The module executed with the interpreter's nki."""
        path = locate(source, beside)
        key = os.path.abspath(path)
        if key in self._modules:
            return self._modules[key]
        state = path.stat()
        code = _compiled(key, state.st_mtime_ns, state.st_size)
        module = ModuleType(source.rsplit(".", 1)[-1] if not source.endswith(".py") else path.stem)
        self._modules[key] = module
        self._core.files[key] = path.name
        module.__dict__["__file__"] = key
        module.__dict__["__builtins__"] = self._builtins(Path(key))
        exec(code, module.__dict__)
        return module

    def _builtins(self, path: Path) -> dict[str, Any]:
        allowed: dict[str, Any] = {name: getattr(builtins, name) for name in BUILTINS}
        allowed["AssertionError"] = AssertionError
        allowed["__build_class__"] = builtins.__build_class__

        def load_import(
            name: str, _: Any = None, __: Any = None, names: tuple[str, ...] | None = (), ___: int = 0
        ) -> Any:
            if name == "__future__":
                return __import__("__future__")
            if name == "nki" or name.startswith("nki."):
                return getattr(self._nki, name.rpartition(".")[2]) if names and name != "nki" else self._nki
            return self.load(name, path)

        allowed["__import__"] = load_import
        return allowed
