"""Number formats and arithmetic of the engines on NumPy arrays.

bfloat16 and tfloat32 are held as float32 with the low 16 or 13 mantissa bits cleared; with float64
storage every float format is held as float64 and nothing is rounded. Matrix products follow one of
two models (`pe_model`): fp32, one float32 dot per instruction; exact, float64 dot, rounded once,
added in float32.
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
# Those that kernels may name.
SUBSET = (
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "power",
    "copy",
    "square",
    "exp",
    "sqrt",
    "rsqrt",
    "reciprocal",
)


@dataclass(frozen=True, slots=True)
class DType:
    """A number format: name, bytes per element on the device, the NumPy type that holds it,
    mantissa bits dropped."""

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


def held_as(dtype: DType, storage: str) -> np.dtype[Any]:
    """NumPy dtype that holds `dtype` under the storage model."""
    return np.dtype(np.float64 if storage == "float64" and dtype.floating else dtype.held)


def drop_bits(values: Array, bits: int) -> Array:
    """float32 values rounded to nearest even with the lowest `bits` mantissa bits cleared; NaN and
    inf stay."""
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32((1 << (bits - 1)) - 1)
    rounded = (raw + half + ((raw >> np.uint32(bits)) & np.uint32(1))) & np.uint32(
        0xFFFFFFFF ^ ((1 << bits) - 1)
    )
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def cast(values: Array, dtype: DType, storage: str) -> Array:
    """Engine results (float32, or float64 under float64 storage) as the format `dtype` holds
    them."""
    if not dtype.floating:
        info = np.iinfo(dtype.held)
        return np.clip(np.rint(values), info.min, info.max).astype(dtype.held)
    if storage == "float64":
        return values.astype(np.float64, copy=False)
    if dtype.dropped:
        return drop_bits(values, dtype.dropped)
    return values.astype(dtype.held, copy=False)


def working(values: Array, double: bool) -> Array:
    """Operand values in the engine's arithmetic (float32; float64 under float64 storage)."""
    return values.astype(np.float64 if double else np.float32, copy=False)


def reduce_rows(values: Array, op: str, keep: int, row_sum: str) -> Array:
    """Reduces all but the first `keep` dimensions of working values, in order; add follows the
    row-sum model."""
    rows = values.reshape((*values.shape[:keep], -1))
    if op != "add":
        reduced: Array = BINARY[op].reduce(rows, axis=-1)  # type: ignore[attr-defined]
        return reduced
    if row_sum == "float64" or rows.dtype == np.float64:
        total: Array = rows.sum(axis=-1, dtype=np.float64)
        return total.astype(values.dtype)
    last: Array = np.cumsum(rows, axis=-1, dtype=np.float32)[..., -1]
    return last


def contract(stationary: Array, moving: Array, model: str) -> Array:
    """stationary^T moving of one instruction: (K, M), (K, N) -> (M, N), in float32 (float64 if the
    operands are)."""
    if stationary.dtype == np.float64 or moving.dtype == np.float64:
        kind: type[np.floating[Any]] = np.float64
        result = kind
    elif model == "exact":
        kind, result = np.float64, np.float32
    else:
        kind = result = np.float32
    product: Array = stationary.T.astype(kind, copy=False) @ moving.astype(kind, copy=False)
    return product.astype(result, copy=False)
