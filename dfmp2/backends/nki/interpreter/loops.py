"""Hardware loops: dynamic_range (0.3.0 to 0.6.0) and fori_loop (0.6.0 on), executed round by round.

The index is a register, never a Python int; what the body declares is one set of buffers for all rounds and unknown
after the loop (nki-dynamic-loops.rst).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dfmp2.backends.nki.interpreter.high_water import close_loop
from dfmp2.backends.nki.interpreter.registers import Register

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core

NESTING_FAILS = ("0.3.0", "0.4.0", "0.5.0")


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
