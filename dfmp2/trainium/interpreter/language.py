"""What kernels see of `nki`: `nki.language` (ndarray, constants, no_reorder, dynamic loops), `nki.isa`, the jit mark.

The instructions are those of the signature tables, each with its release's parameters; any other name is outside the
subset. Hardware loops, dynamic_range (0.3.0 to 0.6.0) and fori_loop (0.6.0 on), are executed round by round. The index
is a register, never a Python int; what the body declares is one set of buffers for all rounds and unknown after the
loop (nki-dynamic-loops.rst).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NoReturn

from dfmp2.trainium.interpreter import instructions
from dfmp2.trainium.interpreter.arithmetic import DTYPES, DType
from dfmp2.trainium.interpreter.memory import Core, Register, Tensor, close_loop, whole
from dfmp2.trainium.interpreter.rules import PARTITIONS, PSUM_BANK_BYTES, Violation
from dfmp2.trainium.interpreter.signatures import (
    ENUMERATIONS,
    INSTRUCTIONS,
    LOOP_NAMES,
    NOT_TAKEN,
    OPERATORS,
    REGIONS,
    Member,
    Region,
    defaults,
    parameters,
)

NESTING_FAILS = ("0.3.0", "0.4.0", "0.5.0")
RANKS = (2, 3, 4)


class Names(SimpleNamespace):
    """A module as kernels see it; names that it has not are outside the subset."""

    def __init__(self, core: Core, module: str, **names: object) -> None:
        super().__init__(**names)
        self._core, self._module = core, module

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in LOOP_NAMES and self._module == "nl":
            raise self._core.refuse(
                "release-name", f"nl.{name} in release {self._core.settings.release}"
            )
        raise self._core.outside(f"{self._module}.{name}")


def package(core: Core) -> Names:
    """The package `nki`: jit, language, isa."""

    def jit(function: object = None, **options: object) -> Kernel:
        """Marks a kernel."""
        if options or not callable(function):
            raise core.refuse("jit", f"@nki.jit({', '.join(sorted(options))})")
        return Kernel(core, function)

    calls = {name: _checked(core, name) for name in INSTRUCTIONS}
    kinds = {
        kind: SimpleNamespace(**{name: Member(kind, name) for name in names})
        for kind, names in ENUMERATIONS.items()
    }
    nl = Names(core, "nl", **DTYPES, **OPERATORS, **REGIONS, **functions(core))
    return Names(core, "nki", jit=jit, language=nl, isa=Names(core, "nisa", **calls, **kinds))


class Kernel:
    """What @nki.jit leaves: only `run_kernel` may start it."""

    def __init__(self, core: Core, function: Callable[..., object]) -> None:
        self.function = function
        self._core = core

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise self._core.refuse(
            "sub-kernel", f"kernel {self.function.__name__} was called from a kernel file"
        )


def _checked(core: Core, name: str) -> Callable[..., object]:
    """The instruction as kernels call it: keywords only, checked against the release's table."""
    function = getattr(instructions, name)
    table, left_out = parameters(name, core.settings.release), defaults(name)
    legal = frozenset(table)
    required = frozenset(parameter for parameter, needed in table.items() if needed)

    def call(*positional: object, **given: object) -> object:
        if positional:
            raise core.refuse(
                "positional", f"nisa.{name} with {len(positional)} positional arguments"
            )
        if not core.running:
            raise core.refuse("purity", f"nisa.{name} outside a kernel")
        names = given.keys()
        if not required <= names <= legal:
            wrong = [f"unknown {word}" for word in sorted(names - legal)]
            wrong += [f"missing {word}" for word in sorted(required - names)]
            raise core.refuse(
                "signature", f"nisa.{name} in release {core.settings.release}: {', '.join(wrong)}"
            )
        if not NOT_TAKEN.isdisjoint(names):
            raise core.outside(f"nisa.{name} with {', '.join(sorted(NOT_TAKEN & names))}")
        for kind in ENUMERATIONS:
            value = given.get(kind)
            if value is not None and not (isinstance(value, Member) and value.kind == kind):
                raise core.refuse("enum-value", f"nisa.{name}: {kind}={value!r}")
        return function(core, SimpleNamespace(**(left_out | given)))

    return call


def tensor_shape(shape: object, refuse: Callable[[str, str], Violation]) -> tuple[int, ...]:
    """A checked shape: rank 2 to 4, positive Python ints."""
    if isinstance(shape, (tuple, list)):
        sizes = tuple(shape)
    else:
        sizes = ()
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise refuse("tensor-shape", f"shape {shape!r}")
    if len(sizes) not in RANKS:
        raise refuse("tensor-rank", f"shape {sizes}")
    return sizes


def functions(core: Core) -> dict[str, object]:
    """Functions of `nki.language` by name."""
    release = core.settings.release

    def ndarray(
        shape: object,
        dtype: object,
        buffer: object = REGIONS["sbuf"],
        name: str = "",
        address: object = None,
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
        storage = core.declare(name, buffer, dtype, sizes)
        limits = {
            "psum": ("psum-bank", PSUM_BANK_BYTES),
            "sbuf": ("sbuf-capacity", core.settings.sbuf_limit),
        }
        rule, limit = limits.get(buffer.space, ("", storage.life.bytes))
        if storage.life.bytes > limit:
            raise core.refuse(rule, f"{storage.life.bytes} bytes per partition in shape {sizes}")
        return whole(core, storage)

    @contextmanager
    def no_reorder() -> Iterator[None]:
        if core.no_reorder:
            raise core.outside("nested nl.no_reorder")
        core.no_reorder_seen += 1
        core.no_reorder = core.no_reorder_seen
        try:
            yield
        finally:
            core.no_reorder = 0

    def dynamic_range(start: object, stop: object = None, step: object = 1) -> Iterator[Register]:
        """Indices start, start + step, ... below stop; one argument is stop."""
        first, last = (0, start) if stop is None else (start, stop)
        return _rounds(core, _bound(core, first), _bound(core, last), step)

    def fori_loop(
        lower: object, upper: object, body_fun: Callable[[Register], object], step: object = 1
    ) -> None:
        """body_fun(i) for i = lower, lower + step, ... below upper."""
        for index in _rounds(core, _bound(core, lower), _bound(core, upper), step):
            body_fun(index)

    loops: dict[str, Callable[..., object]] = {
        "dynamic_range": dynamic_range,
        "fori_loop": fori_loop,
    }
    known = {name: loop for name, loop in loops.items() if release in LOOP_NAMES[name]}
    return {"ndarray": ndarray, "no_reorder": no_reorder, **known}


def _rounds(core: Core, start: int, stop: int, step: object) -> Iterator[Register]:
    if type(step) is not int or step < 1:
        raise core.refuse(
            "loop-step", f"step is {step if type(step) is int else type(step).__name__}"
        )
    if core.no_reorder:
        raise core.refuse("loop-no-reorder", "a dynamic loop inside nl.no_reorder")
    if len(core.loops) > 1 and core.settings.release in NESTING_FAILS:
        raise core.refuse(
            "loop-nested", f"a dynamic loop inside another in release {core.settings.release}"
        )
    first = core.index
    loop = core.enter_loop()
    try:
        for value in range(start, stop, step):
            loop.count = 0  # the body names the same buffers as in the first round
            yield Register(core, value, loop.key)
    finally:
        core.loops.remove(loop)
        close_loop(core, first)


def _bound(core: Core, value: object) -> int:
    if isinstance(value, Register):
        return value.read()
    if type(value) is not int:
        raise core.refuse("register", f"loop bound {value!r}: an int or a register expected"[:120])
    return value
