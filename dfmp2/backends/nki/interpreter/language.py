"""The `nki.language` and `nki` that kernels see: ndarray, constants, no_reorder, dynamic loops, the jit decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

from dfmp2.backends.nki.interpreter.dtypes import DTYPES, DType
from dfmp2.backends.nki.interpreter.isa import Isa
from dfmp2.backends.nki.interpreter.loops import dynamic_range, fori_loop
from dfmp2.backends.nki.interpreter.members import OPERATORS, REGIONS, Region
from dfmp2.backends.nki.interpreter.settings import PARTITIONS, PSUM_BANK_BYTES
from dfmp2.backends.nki.interpreter.signatures import LOOP_NAMES
from dfmp2.backends.nki.interpreter.tensors import Tensor, whole
from dfmp2.backends.nki.interpreter.violations import NotInSubset, Violation

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core

RANKS = (2, 3, 4)


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
                setattr(self, name, _with_core(core, function))

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


def _with_core(core: Core, function: Callable[..., object]) -> Callable[..., object]:
    def call(*positional: object, **given: object) -> object:
        return function(core, *positional, **given)

    return call
