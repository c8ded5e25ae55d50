"""The `nki.isa` that kernels see: the instructions of the signature tables, each with its release's parameters."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from dfmp2.backends.nki.interpreter.isa_dma import dma_copy
from dfmp2.backends.nki.interpreter.isa_reductions import tensor_reduce, tensor_scalar_reduce
from dfmp2.backends.nki.interpreter.isa_registers import register_alloc, register_load, register_move
from dfmp2.backends.nki.interpreter.isa_scalar_engine import activation
from dfmp2.backends.nki.interpreter.isa_tensor_engine import nc_matmul
from dfmp2.backends.nki.interpreter.isa_vector_engine import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_scalar,
    tensor_tensor,
)
from dfmp2.backends.nki.interpreter.members import ENUMERATIONS, Member
from dfmp2.backends.nki.interpreter.signatures import parameters

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core

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


class Isa(SimpleNamespace):
    """Instructions and enumerations by name; any other name is outside the subset."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core
        for name, function in INSTRUCTIONS.items():
            setattr(self, name, _bound(core, name, function))
        for kind, names in ENUMERATIONS.items():
            setattr(self, kind, SimpleNamespace(**{name: Member(kind, name) for name in names}))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._core.outside(f"nisa.{name}")


def _bound(core: Core, name: str, function: Callable[..., object]) -> Callable[..., object]:
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
