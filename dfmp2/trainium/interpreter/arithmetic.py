"""Number formats and arithmetic of the engines on NumPy arrays.

bfloat16 and tfloat32 are held as float32 with the low 16 or 13 mantissa bits cleared; a product is
one float32 dot per instruction. In exact runs every float format is held as float64 and nothing is
rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
}
UNARY: dict[str, Callable[[Array], Array]] = {
    "copy": lambda x: x,
    "square": np.square,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "reciprocal": np.reciprocal,
}
SUBSET = (*BINARY, *UNARY)  # operators that kernels may use


@dataclass(frozen=True, slots=True)
class DType:
    """A number format: name, bytes per element on the device, NumPy type that holds it, dropped
    mantissa bits."""

    name: str
    itemsize: int
    held: type[Any]
    dropped: int = 0

    @property
    def floating(self) -> bool:
        return issubclass(self.held, np.floating)

    def __repr__(self) -> str:
        return f"nl.{self.name}"


FORMATS = (
    DType("float32", 4, np.float32),
    DType("tfloat32", 4, np.float32, 13),
    DType("float16", 2, np.float16),
    DType("bfloat16", 2, np.float32, 16),
    DType("int32", 4, np.int32),
    DType("uint8", 1, np.uint8),
)
DTYPES = {dtype.name: dtype for dtype in FORMATS}


def held_as(dtype: DType, exact: bool) -> np.dtype[Any]:
    """NumPy dtype that holds `dtype`."""
    return np.dtype(np.float64 if exact and dtype.floating else dtype.held)


def drop_bits(values: Array, bits: int) -> Array:
    """float32 values rounded to nearest even with the lowest `bits` mantissa bits cleared; NaN and
    inf stay."""
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32((1 << (bits - 1)) - 1)
    rounded = (raw + half + ((raw >> np.uint32(bits)) & np.uint32(1))) & np.uint32(
        0xFFFFFFFF ^ ((1 << bits) - 1)
    )
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def cast(values: Array, dtype: DType, exact: bool) -> Array:
    """Engine results (float32, or float64 in exact runs) as the format `dtype` holds them."""
    if not dtype.floating:
        info = np.iinfo(dtype.held)
        return np.clip(np.rint(values), info.min, info.max).astype(dtype.held)
    if exact:
        return values.astype(np.float64, copy=False)
    if dtype.dropped:
        return drop_bits(values, dtype.dropped)
    return values.astype(dtype.held, copy=False)


def working(values: Array, exact: bool) -> Array:
    """Operand values in the engine's arithmetic (float32; float64 in exact runs)."""
    return values.astype(np.float64 if exact else np.float32, copy=False)


def reduce_rows(values: Array, op: str, keep: int) -> Array:
    """Working values with all but the first `keep` dimensions reduced, in order."""
    rows = values.reshape((*values.shape[:keep], -1))
    if op == "add" and rows.dtype == np.float32:
        return np.cumsum(rows, axis=-1, dtype=np.float32)[..., -1]
    reduced: Array = BINARY[op].reduce(rows, axis=-1)  # type: ignore[attr-defined]
    return reduced
