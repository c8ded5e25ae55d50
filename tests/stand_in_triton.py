"""The part of Triton used by the fused kernel, in NumPy: program instances run one after another on
tensors in host memory.

If Triton itself is installed, its own interpreter runs the kernel as well (`tests/test_torch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np


class Value(np.ndarray):
    """An array or a number of a program instance."""

    def to(self, dtype: Any) -> Value:
        """The value in another type."""
        return value(self.astype(dtype))

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Keep Triton's methods on numbers."""
        return value(array)


def value(content: Any) -> Value:
    """The same numbers with Triton's methods."""
    return np.asarray(content).view(Value)


class Pointer:
    """Positions in a tensor; those outside it cannot be read or written."""

    def __init__(self, numbers: np.ndarray, places: Any) -> None:
        self.numbers, self.places = numbers, places

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.numbers, self.places + offset)

    def inside(self, mask: Any) -> np.ndarray:
        """The positions under the mask, which must exist."""
        places = np.asarray(self.places)[np.broadcast_to(mask, np.shape(self.places))]
        if places.size and not 0 <= places.min() <= places.max() < self.numbers.size:
            raise IndexError("a place outside the tensor")
        return places


def load(pointer: Pointer, mask: Any = True, other: float = 0.0) -> Value:
    """Numbers at these positions, `other` where the mask is false."""
    found = np.full(np.shape(pointer.places), other, dtype=pointer.numbers.dtype)
    found[np.broadcast_to(mask, found.shape)] = pointer.numbers[pointer.inside(mask)]
    return value(found)


def store(pointer: Pointer, content: Any) -> None:
    """Write to these positions."""
    pointer.numbers[pointer.inside(True)] = content


def module() -> tuple[ModuleType, ModuleType]:
    """`triton` and `triton.language`."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    here: list[tuple[int, ...]] = [(), ()]  # this instance, and how many there are

    meanings: dict[str, Any] = {
        "arange": lambda first, last: value(np.arange(first, last)),
        "cdiv": lambda number, step: -(-int(number) // int(step)),
        "constexpr": object,
        "exp": np.exp,
        "float64": np.float64,
        "int64": np.int64,
        "load": load,
        "num_programs": lambda axis: here[1][axis],
        "program_id": lambda axis: value(here[0][axis]),
        "store": store,
        "sum": lambda content, axis: value(np.sum(content, axis=axis)),
        "trans": np.transpose,
        "where": lambda *parts: value(np.where(*parts)),
        "zeros": lambda shape, dtype: value(np.zeros(shape, dtype)),
    }
    vars(language).update(meanings)
    vars(triton).update(jit=lambda **_: partial(Launched, here=here), language=language)
    return triton, language


class Launched:
    """A kernel, called with a grid in brackets."""

    def __init__(self, kernel: Callable[..., None], here: list[tuple[int, ...]]) -> None:
        self._kernel, self._here = kernel, here

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, num_warps: int, **constants: Any) -> None:
            given = list(_given(arguments))
            self._here[1] = grid
            for instance in product(*map(range, grid)):
                self._here[0] = instance
                self._kernel(*given, **constants)

        return launch


def _given(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Tensors as pointers to their first number, numbers with Triton's methods."""
    for argument in arguments:
        if isinstance(argument, int):
            yield value(argument)
        else:
            yield Pointer(argument.numpy().reshape(-1), 0)
