"""Run a kernel on the simulated NeuronCore: NumPy arrays in, NumPy arrays and a trace out.

Kernel files are found by module name, linted once, and executed in a private namespace with `nki`,
`nki.language` and `nki.isa` replaced by the interpreter's own, never through sys.modules: the real
nki may be absent, and every run gets modules bound to its own simulated core.
"""

from __future__ import annotations

import builtins
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Any, NoReturn

import numpy as np

from dfmp2.errors import InputError
from dfmp2.trainium.interpreter.arithmetic import DTYPES, Array, held_as
from dfmp2.trainium.interpreter.language import Kernel, package, tensor_shape
from dfmp2.trainium.interpreter.lint import BUILTINS, Source, read_source
from dfmp2.trainium.interpreter.memory import Core, Tensor, Trace, finish, whole
from dfmp2.trainium.interpreter.rules import Settings, Shape, Violation
from dfmp2.trainium.interpreter.signatures import REGIONS

__all__ = ["Settings", "Shape", "run_kernel"]
# Errors that kernel code may raise; from the interpreter's own code they are bugs of ours and are
# not caught.
PYTHON_ERRORS = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
STATIC = (int, float, str, type(None))


def locate(source: str, beside: Path | None) -> Path:
    """File of a kernel module, given as a path ending in .py, a name in the importing file's
    folder, or a module name."""
    if source.endswith(".py"):
        path = Path(source)
    elif beside is not None and "." not in source:
        path = beside.parent / f"{source}.py"
    else:
        top, *rest = source.split(".")
        spec = find_spec(top)
        folders = ["."]
        if spec and spec.submodule_search_locations:
            folders = list(spec.submodule_search_locations)
        path = Path(folders[0], *rest).with_suffix(".py")
    if not path.is_file():
        raise InputError(
            f"kernel source {source}: no file {path}; give a module name or a path that ends in .py"
        )
    return path


@lru_cache(maxsize=64)
def _compiled(path: str, _modified: int, _size: int) -> tuple[CodeType, Source]:
    """Linted code of a kernel file, without functions that break a rule; compiled once per version
    of the file."""
    found = read_source(Path(path).read_text(encoding="utf-8", errors="replace"), Path(path).name)
    return compile(found.tree, path, "exec", dont_inherit=True), found


class Broken:
    """Placeholder for a function that breaks a source rule; calling it raises."""

    def __init__(self, violation: Violation) -> None:
        self.violation = violation

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise self.violation


class Loader:
    """Kernel modules of one run, each executed once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._nki = package(core)
        self._modules: dict[str, ModuleType] = {}
        self._constants: dict[str, str] = {}

    def load(self, source: str, beside: Path | None = None) -> ModuleType:
        """The module, executed with the interpreter's nki."""
        path = locate(source, beside)
        key = os.path.abspath(path)
        if key in self._modules:
            return self._modules[key]
        state = path.stat()
        code, found = _compiled(key, state.st_mtime_ns, state.st_size)
        for name in found.constants:
            if self._constants.setdefault(name, path.name) != path.name:
                raise Violation(
                    "constant-name", f"{name} is bound in {self._constants[name]} too", path.name
                )
        module = ModuleType(source.rsplit(".", 1)[-1] if not source.endswith(".py") else path.stem)
        self._modules[key] = module
        self._core.files[key] = path.name
        module.__dict__["__builtins__"] = self._builtins(Path(key))
        module.__dict__.update({name: Broken(one) for name, one in found.broken.items()})
        exec(code, module.__dict__)
        return module

    def _builtins(self, path: Path) -> dict[str, Any]:
        allowed: dict[str, Any] = {name: getattr(builtins, name) for name in BUILTINS}

        def load_import(name: str, *_: Any) -> Any:
            if name == "__future__":
                return __import__("__future__")
            if name == "nki" or name.startswith("nki."):
                return self._nki
            return self.load(name, path)

        allowed["__import__"] = load_import
        return allowed


def run_kernel(
    source: str, kernel: str, arguments: dict[str, object], settings: Settings | None = None
) -> tuple[tuple[Array, ...], Trace]:
    """Execute a kernel and return its outputs and trace.

    Parameters
    ----------
    source : module name of the kernel file (or a path that ends in .py)
    kernel : name of a function in it decorated with @nki.jit
    arguments : by name; NumPy arrays (or `Shape` in counts-only runs) are HBM inputs, the rest
        compile-time constants
    settings : interpreter settings; default `Settings()`

    Returns
    -------
    outputs : the returned tensors in order, uninitialised in counts-only runs
    trace : instructions, allocations and high-water marks

    Raises
    ------
    Violation : the kernel breaks a documented rule; InputError : no such kernel, or arguments that
        do not fit it
    """
    settings = settings or Settings()
    core = Core(settings)
    with kernel_code(core):
        module = Loader(core).load(source)
    entry = module.__dict__.get(kernel)
    if isinstance(entry, Broken):
        raise entry.violation
    if not isinstance(entry, Kernel):
        found = ", ".join(
            name for name, value in module.__dict__.items() if isinstance(value, Kernel)
        )
        raise InputError(f"{source} has no kernel {kernel}; its kernels: {found or 'none'}")
    signature = inspect.signature(entry.function)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        raise InputError(f"{kernel} takes {takes}; given: {', '.join(arguments)}") from error
    bound = {name: _argument(core, name, value) for name, value in arguments.items()}
    with kernel_code(core):
        returned = entry.function(**bound)
    outputs = tuple(
        _output(core, value) for value in (returned if isinstance(returned, tuple) else (returned,))
    )
    finish(core)
    return outputs, core.trace


@contextmanager
def kernel_code(core: Core) -> Iterator[None]:
    """Context for running kernel code: its own Python errors become violations, ours pass
    through."""
    try:
        # As on the engines, overflow gives inf and invalid operations give NaN
        with np.errstate(all="ignore"):
            yield
    except AssertionError as error:
        raise Violation(
            "kernel-assert", f"assertion failed: {error}", _raised_at(core, error)[0]
        ) from error
    except PYTHON_ERRORS as error:
        place, innermost = _raised_at(core, error)
        if not innermost:
            raise
        rule = "import" if isinstance(error, ImportError) else "kernel-error"
        raise Violation(rule, f"{type(error).__name__}: {error}", place) from error


def _argument(core: Core, name: str, value: object) -> object:
    """A kernel argument: an HBM input, or an unchanged constant."""
    dtype = "float32"
    array: Array | None = None
    if isinstance(value, Shape):
        if core.settings.arithmetic:
            raise InputError(
                f"argument {name}: a Shape carries no data; give an array or set arithmetic=False"
            )
    elif isinstance(value, np.ndarray):
        if not (core.settings.exact and value.dtype == np.float64):
            dtype = value.dtype.name
        if dtype not in DTYPES:
            raise Violation("tensor-dtype", f"argument {name} is {value.dtype}")
        if core.settings.arithmetic:
            array = value
    elif _static(value):
        return value
    else:
        raise Violation("kernel-arguments", f"argument {name} is {type(value).__name__}")
    shape = tensor_shape(value.shape, Violation)
    return whole(
        core, core.declare(name, REGIONS["shared_hbm"], DTYPES[dtype], shape, array, readonly=True)
    )


def _static(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_static(part) for part in value)
    return isinstance(value, STATIC)


def _output(core: Core, value: object) -> Array:
    """A returned tensor as a NumPy array; all of it must have been written."""
    if not isinstance(value, Tensor):
        raise Violation("output-space", f"the kernel returns {type(value).__name__}")
    storage = value.storage
    if storage.region != REGIONS["shared_hbm"] or not value.whole or storage.readonly:
        raise Violation(
            "output-space",
            f"the kernel returns an input, or a part or all of a tensor in {storage.region}",
        )
    if storage.written is not None and not storage.written.all():
        missing = int(storage.written.size - storage.written.sum())
        raise Violation(
            "output-unwritten",
            f"{missing} elements of output {storage.shape} never written",
            storage.life.line,
        )
    if storage.array is not None:
        return storage.array
    return np.empty(storage.shape, held_as(storage.dtype, False))


def _raised_at(core: Core, error: BaseException) -> tuple[str, bool]:
    """ "file:line" of the innermost kernel statement in a traceback, and whether the error was
    raised there."""
    frames = extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in core.files]
    if not own:
        return "", False
    return f"{core.files[own[-1].filename]}:{own[-1].lineno}", own[-1] is frames[-1]
