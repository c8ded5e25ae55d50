"""What kernels see of `nki`: `nki.language` (ndarray, constants, no_reorder, dynamic loops), `nki.isa`, the jit mark.

The instructions are those of the signature tables, each with its release's parameters; any other name is outside the
subset. Hardware loops, dynamic_range (0.3.0 to 0.6.0) and fori_loop (0.6.0 on), are executed round by round. The index
is a register, never a Python int; what the body declares is one set of buffers for all rounds and unknown after the
loop (nki-dynamic-loops.rst).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

from dfmp2.trainium.interpreter.arithmetic import DTYPES, DType
from dfmp2.trainium.interpreter.core import Core, close_loop
from dfmp2.trainium.interpreter.elementwise import (
    activation,
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_reduce,
    tensor_scalar,
    tensor_scalar_reduce,
    tensor_tensor,
)
from dfmp2.trainium.interpreter.instructions import dma_copy, nc_matmul, register_alloc, register_load, register_move
from dfmp2.trainium.interpreter.rules import NotInSubset, Violation
from dfmp2.trainium.interpreter.settings import PARTITIONS, PSUM_BANK_BYTES
from dfmp2.trainium.interpreter.signatures import (
    ENUMERATIONS,
    LOOP_NAMES,
    OPERATORS,
    REGIONS,
    Member,
    Region,
    parameters,
)
from dfmp2.trainium.interpreter.tensors import Register, Tensor, whole

INSTRUCTIONS: dict[str, Callable[..., object]] = {
    "nc_matmul": nc_matmul,
    "activation": activation,
    "tensor_tensor": tensor_tensor,
    "tensor_scalar": tensor_scalar,
    "scalar_tensor_tensor": scalar_tensor_tensor,
    "reciprocal": reciprocal,
    "tensor_copy": tensor_copy,
    "memset": memset,
    "tensor_reduce": tensor_reduce,
    "tensor_scalar_reduce": tensor_scalar_reduce,
    "dma_copy": dma_copy,
    "register_alloc": register_alloc,
    "register_load": register_load,
    "register_move": register_move,
}
ENUMERATED = ("engine", "dge_mode", "reduce_cmd", "oob_mode")
# Documented parameters that our kernels may not use.
NOT_TAKEN = frozenset(("tile_position", "tile_size", "perf_mode", "reduce_init", "reduce_res_negate", "keepdims"))
NESTING_FAILS = ("0.3.0", "0.4.0", "0.5.0")
RANKS = (2, 3, 4)


class Isa(SimpleNamespace):
    """Instructions and enumerations by name; any other name is outside the subset."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core
        for name, function in INSTRUCTIONS.items():
            setattr(self, name, _checked(core, name, function))
        for kind, names in ENUMERATIONS.items():
            setattr(self, kind, SimpleNamespace(**{name: Member(kind, name) for name in names}))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._core.outside(f"nisa.{name}")


def _checked(core: Core, name: str, function: Callable[..., object]) -> Callable[..., object]:
    """The instruction as kernels call it: keywords only, checked against the release's table."""
    table = parameters(name, core.settings.release)
    legal = frozenset(table)
    required = frozenset(parameter for parameter, needed in table.items() if needed)

    def call(*positional: object, **given: Any) -> object:
        if positional:
            raise core.refuse("positional", f"nisa.{name} with {len(positional)} positional arguments")
        if not core.running:
            raise core.refuse("purity", f"nisa.{name} outside a kernel")
        names = given.keys()
        if not names <= legal or not required <= names:
            raise core.refuse("signature", _difference(core, name, names - legal, required - names))
        given.pop("name", None)
        if not NOT_TAKEN.isdisjoint(names):
            raise core.outside(f"nisa.{name} with {', '.join(sorted(NOT_TAKEN & names))}")
        for kind in ENUMERATED:
            value = given.get(kind)
            if value is not None and not (isinstance(value, Member) and value.kind == kind):
                raise core.refuse("enum-value", f"nisa.{name}: {kind}={value!r}")
        return function(core, **given)

    return call


def _difference(core: Core, name: str, unknown: Any, missing: Any) -> str:
    parts = [f"unknown {', '.join(sorted(unknown))}"] if unknown else []
    parts += [f"missing {', '.join(sorted(missing))}"] if missing else []
    return f"nisa.{name} in release {core.settings.release}: {'; '.join(parts)}"


def dynamic_range(core: Core, start: object, stop: object = None, step: object = 1) -> Iterator[Register]:
    """Indices start, start + step, ... below stop; one argument is stop."""
    first, last = (0, start) if stop is None else (start, stop)
    return _rounds(core, _bound(core, first), _bound(core, last), _step(core, step))


def fori_loop(
    core: Core, lower: object, upper: object, body_fun: Callable[[Register], object], step: object = 1
) -> None:
    """body_fun(i) for i = lower, lower + step, ... below upper."""
    for index in _rounds(core, _bound(core, lower), _bound(core, upper), _step(core, step)):
        body_fun(index)


def _rounds(core: Core, start: int, stop: int, step: int) -> Iterator[Register]:
    if core.no_reorder:
        raise core.refuse("loop-no-reorder", "a dynamic loop inside nl.no_reorder")
    if core.loops and core.settings.release in NESTING_FAILS:
        raise core.refuse("loop-nested", f"a dynamic loop inside another in release {core.settings.release}")
    first = core.index
    loop = core.enter_loop()
    try:
        for value in range(start, stop, step):
            core.next_round(loop)
            yield Register(core, value, loop)
    finally:
        core.loops.remove(loop)
        close_loop(core, first)


def _bound(core: Core, value: object) -> int:
    if isinstance(value, Register):
        return value.read()
    if type(value) is not int:
        raise core.refuse("register", f"loop bound {value!r}: an int or a register expected"[:120])
    return value


def _step(core: Core, step: object) -> int:
    if type(step) is not int or step < 1:
        raise core.refuse("loop-step", f"step is {step if type(step) is int else type(step).__name__}")
    return step


class Kernel:
    """What @nki.jit leaves: only `run_kernel` may start it."""

    def __init__(self, core: Core, function: Callable[..., object]) -> None:
        self.function = function
        self._core = core

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise self._core.refuse("sub-kernel", f"kernel {self.function.__name__} was called from a kernel file")


class Language(SimpleNamespace):
    """Names of `nki.language` in our subset."""

    def __init__(self, core: Core) -> None:
        super().__init__(**DTYPES, **OPERATORS, **REGIONS)
        self._core = core
        self.ndarray = _ndarray(core)
        self.no_reorder = _no_reorder(core)
        loops: dict[str, Callable[..., object]] = {"dynamic_range": dynamic_range, "fori_loop": fori_loop}
        for name, function in loops.items():
            if core.settings.release in LOOP_NAMES[name]:
                setattr(self, name, partial(function, core))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in LOOP_NAMES:
            raise self._core.refuse("release-name", f"nl.{name} in release {self._core.settings.release}")
        raise self._core.outside(f"nl.{name}")


class Nki(SimpleNamespace):
    """The package `nki`: jit, language, isa."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core
        self.language = Language(core)
        self.isa = Isa(core)

    def jit(self, function: object = None, **options: object) -> Kernel:
        """Marks a kernel."""
        if options or not callable(function):
            raise self._core.refuse("jit", f"@nki.jit({', '.join(sorted(options))})")
        return Kernel(self._core, function)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._core.outside(f"nki.{name}")


def tensor_shape(shape: object, refuse: Callable[[str, str], Violation]) -> tuple[int, ...]:
    """A checked shape: rank 2 to 4, positive Python ints."""
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise refuse("tensor-shape", f"shape {shape!r}")
    if len(sizes) not in RANKS:
        raise refuse("tensor-rank", f"shape {sizes}")
    return sizes


def _ndarray(core: Core) -> Callable[..., Tensor]:
    def ndarray(
        shape: object, dtype: object, buffer: object = REGIONS["sbuf"], name: str = "", address: object = None
    ) -> Tensor:
        """A new, uninitialised tensor."""
        if not core.running:
            raise core.refuse("purity", "nl.ndarray outside a kernel")
        sizes = tensor_shape(shape, core.refuse)
        if not isinstance(dtype, DType):
            raise core.refuse("tensor-dtype", f"dtype={dtype!r}")
        if not isinstance(buffer, Region):
            raise core.refuse("buffer-object", f"buffer={buffer!r}")
        if address is not None:
            raise core.refuse("address", f"address={address!r}")
        if buffer.space != "hbm" and sizes[0] > PARTITIONS:
            raise core.refuse("partition-count", f"{sizes[0]} partitions in shape {sizes}")
        storage = core.declare(name, buffer.name, buffer.space, dtype, sizes)
        if buffer.space == "psum" and storage.life.bytes > PSUM_BANK_BYTES:
            raise core.refuse("psum-bank", f"{storage.life.bytes} bytes per partition in shape {sizes}")
        if buffer.space == "sbuf" and storage.life.bytes > core.settings.sbuf_limit:
            raise core.refuse("sbuf-capacity", f"{storage.life.bytes} bytes per partition in shape {sizes}")
        return whole(core, storage)

    return ndarray


def _no_reorder(core: Core) -> Callable[[], object]:
    @contextmanager
    def no_reorder() -> Iterator[None]:
        if core.no_reorder:
            raise NotInSubset("nested nl.no_reorder", core.place())
        core.no_reorder_seen += 1
        core.no_reorder = core.no_reorder_seen
        try:
            yield
        finally:
            core.no_reorder = 0

    return no_reorder
