"""The type of the package's arrays, and equality of values that hold some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def same_content(first: Any, second: Any) -> bool:
    """Whether two values of the same type are equal to the last bit."""
    if first is second:
        return True
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        arrays = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
        return arrays and bool(np.array_equal(first, second, equal_nan=first.dtype.kind == "f"))
    if isinstance(first, float) and isinstance(second, float):
        return first == second or (first != first and second != second)
    if type(first) is not type(second):
        return False
    if is_dataclass(first):
        names = [field.name for field in fields(first)]
        return all(same_content(getattr(first, name), getattr(second, name)) for name in names)
    if isinstance(first, Mapping):
        same_keys = first.keys() == second.keys()
        return same_keys and all(same_content(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        same_length = len(first) == len(second)
        return same_length and all(map(same_content, first, second))
    return bool(first == second)
