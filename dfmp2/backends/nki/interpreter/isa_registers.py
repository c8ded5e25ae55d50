"""Register instructions: values that exist on the device only (loop bounds, dynamic offsets)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from dfmp2.backends.nki.interpreter.memory import note_read
from dfmp2.backends.nki.interpreter.registers import Register
from dfmp2.backends.nki.interpreter.tensors import Tensor

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core


def register_alloc(core: Core, *, x: object = None) -> Register:
    """A new register, empty or with an immediate value."""
    if x is not None and type(x) is not int:
        raise core.refuse("register", f"register_alloc(x={x!r})"[:100])
    return Register(core, x)


def register_move(core: Core, *, dst: object, src: object) -> None:
    """dst = src, an immediate or another register."""
    if not isinstance(dst, Register) or dst.loop or not (type(src) is int or isinstance(src, Register)):
        raise core.refuse("register", f"register_move to {type(dst).__name__} from {type(src).__name__}")
    dst.register_value = src.read() if isinstance(src, Register) else src


def register_load(core: Core, *, dst: object, src: object) -> None:
    """dst = the only element of an int32 tensor."""
    if not isinstance(dst, Register) or dst.loop or not isinstance(src, Tensor):
        raise core.refuse("register", f"register_load to {type(dst).__name__} from {type(src).__name__}")
    if prod(src.shape) != 1 or src.dtype.name != "int32" or src.storage.space == "psum":
        raise core.refuse("register", f"register_load from {src.shape} {src.dtype.name} in {src.storage.space}")
    note_read(core, src)
    life = src.storage.life
    life.last_use = max(core.index - 1, life.born)  # no instruction of the trace reads it
    values = src.values()
    if values is None:
        raise core.refuse("register", "counts-only mode does not know the value that this register loads")
    dst.register_value = int(values.reshape(-1)[0])
