"""Device registers and loop indices: values that exist at run time only, so Python may not calculate with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core


class Register:
    """A virtual register; `register_value` is None before the first load, `loop` the loop it counts (0: none)."""

    def __init__(self, core: Core, value: int | None, loop: int = 0) -> None:
        self._core = core
        self.register_value = value
        self.loop = loop

    def read(self) -> int:
        """The value, at run time."""
        if self.loop and self.loop not in self._core.loops:
            raise self._core.refuse("loop-scope", "a loop index was used after its loop")
        if self.register_value is None:
            raise self._core.refuse("register", "a register without a value was read")
        return self.register_value

    def as_offset(self) -> int:
        """The value, used as scalar_offset."""
        if self.loop and self._core.settings.release == "0.3.0":
            raise self._core.refuse("loop-offset", "a dynamic_range index as scalar_offset in release 0.3.0")
        return self.read()

    def _refuse(self, *_: object) -> NoReturn:
        raise self._core.refuse("loop-index", "Python arithmetic, comparison or conversion of a register")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = __neg__ = _refuse
    __truediv__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __abs__ = __pow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __bool__ = __int__ = __index__ = __float__ = _refuse
    __hash__ = object.__hash__
