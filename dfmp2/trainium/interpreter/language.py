"""The `nki` package as kernels see it: `nki.language` (ndarray, constants, no_reorder), `nki.isa`,
and jit.

The instructions are those of the signature table; any other name is outside the subset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import NoReturn

from dfmp2.trainium.interpreter import instructions
from dfmp2.trainium.interpreter.arithmetic import DTYPES, DType
from dfmp2.trainium.interpreter.memory import (
    Core,
    Rectangle,
    Tensor,
    TileStorage,
    positive_sizes,
    whole,
)
from dfmp2.trainium.interpreter.rules import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS, Violation
from dfmp2.trainium.interpreter.signatures import (
    ENUMERATIONS,
    INSTRUCTIONS,
    NOT_TAKEN,
    OPERATORS,
    REGIONS,
    Member,
    Region,
    defaults,
    parameters,
)

RANKS = (2, 3, 4)


class Names(SimpleNamespace):
    """A module as kernels see it; missing names are outside the subset."""

    def __init__(self, core: Core, module: str, **names: object) -> None:
        super().__init__(**names)
        self._core, self._module = core, module

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._core.outside(f"{self._module}.{name}")


def package(core: Core) -> Names:
    """The package `nki`: jit, language, isa."""

    calls = {name: _checked(core, name) for name in INSTRUCTIONS}
    kinds = {
        kind: SimpleNamespace(**{name: Member(kind, name) for name in names})
        for kind, names in ENUMERATIONS.items()
    }
    nl = Names(core, "nl", **DTYPES, **OPERATORS, **REGIONS, **functions(core))
    return Names(
        core,
        "nki",
        jit=partial(Kernel, core),
        language=nl,
        isa=Names(core, "nisa", **calls, **kinds),
    )


class Kernel:
    """The result of @nki.jit, which only `run_kernel` may start."""

    def __init__(self, core: Core, function: Callable[..., object]) -> None:
        self.function = function
        self._core = core

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise self._core.refuse(
            "sub-kernel", f"kernel {self.function.__name__} was called from a kernel file"
        )


def _checked(core: Core, name: str) -> Callable[..., object]:
    """The instruction as called by kernels: keywords only, checked against the table."""
    function = getattr(instructions, name)
    table, left_out = parameters(name), defaults(name)
    legal = frozenset(table)
    required = frozenset(parameter for parameter, needed in table.items() if needed)

    def call(*positional: object, **given: object) -> object:
        if positional:
            raise core.refuse(
                "positional", f"nisa.{name} with {len(positional)} positional arguments"
            )
        names = given.keys()
        if not required <= names <= legal:
            wrong = [f"unknown {word}" for word in sorted(names - legal)]
            wrong += [f"missing {word}" for word in sorted(required - names)]
            raise core.refuse("signature", f"nisa.{name}: {', '.join(wrong)}")
        refused = [word for word in sorted(NOT_TAKEN & names) if given[word] != left_out.get(word)]
        if refused:
            raise core.outside(f"nisa.{name} with {', '.join(refused)}")
        for kind in ENUMERATIONS:
            value = given.get(kind)
            if value is not None and not (isinstance(value, Member) and value.kind == kind):
                raise core.refuse("enum-value", f"nisa.{name}: {kind}={value!r}")
        return function(core, SimpleNamespace(**(left_out | given)))

    return call


def tensor_shape(shape: object, refuse: Callable[[str, str], Violation]) -> tuple[int, ...]:
    """A checked shape: rank 2 to 4, positive Python ints."""
    sizes = positive_sizes(shape, refuse)
    if len(sizes) not in RANKS:
        raise refuse("tensor-rank", f"shape {sizes}")
    return sizes


def functions(core: Core) -> dict[str, object]:
    """Functions of `nki.language` by name."""

    def ndarray(
        shape: object,
        dtype: object,
        buffer: object = REGIONS["sbuf"],
        name: str = "",
        address: object = None,
    ) -> Tensor:
        """A new, uninitialised tensor."""
        sizes = tensor_shape(shape, core.refuse)
        if not isinstance(dtype, DType):
            raise core.refuse("tensor-dtype", f"dtype={dtype!r}")
        if not isinstance(buffer, Region):
            raise core.refuse("buffer-object", f"buffer={buffer!r}")
        if buffer.space != "hbm" and sizes[0] > PARTITIONS:
            raise core.refuse("partition-count", f"{sizes[0]} partitions in shape {sizes}")
        storage = core.declare(name, buffer, dtype, sizes)
        limits = {
            "psum": ("psum-banks", PSUM_BANKS * PSUM_BANK_BYTES),
            "sbuf": ("sbuf-capacity", core.settings.sbuf_limit),
        }
        rule, limit = limits.get(buffer.space, ("", storage.life.bytes))
        if address is not None and buffer.space != "hbm":
            storage.life.address = _placed(core, address, storage, limit)
        if storage.life.bytes > limit:
            raise core.refuse(rule, f"{storage.life.bytes} bytes per partition in shape {sizes}")
        return whole(core, storage)

    @contextmanager
    def no_reorder() -> Iterator[None]:
        """A block whose transfers keep program order."""
        core.block = object()
        yield
        core.block = None

    return {"ndarray": ndarray, "no_reorder": no_reorder}


def _placed(core: Core, address: object, storage: TileStorage, limit: int) -> Rectangle:
    """The position of a tensor with address=(partition, byte)."""
    if not isinstance(address, tuple) or [type(part) for part in address] != [int, int]:
        raise core.refuse("address", f"address={address!r}: (partition, byte) expected")
    partitions, size = storage.shape[0], storage.life.bytes
    first, start = address
    if not (0 <= first <= PARTITIONS - partitions and 0 <= start <= limit - size):
        raise core.refuse("address", f"address={address} of {partitions} partitions, {size} bytes")
    if start % storage.element_bytes:
        raise core.refuse(
            "address", f"address={address} of elements of {storage.element_bytes} bytes"
        )
    return first, first + partitions, start, start + size
