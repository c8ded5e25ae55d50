"""Device number formats: how they are held in NumPy arrays, and rounding to nearest even into them.

bfloat16 and tfloat32 are held as float32 with the low 16 or 13 mantissa bits cleared; with float64 storage every float
format is held as float64 and nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class DType:
    """A number format: name, bytes per element on the device, float or integer."""

    name: str
    itemsize: int
    floating: bool

    def __repr__(self) -> str:
        return f"nl.{self.name}"


FLOAT32 = DType("float32", 4, True)
TFLOAT32 = DType("tfloat32", 4, True)
FLOAT16 = DType("float16", 2, True)
BFLOAT16 = DType("bfloat16", 2, True)
INT32 = DType("int32", 4, False)
UINT8 = DType("uint8", 1, False)
DTYPES = {dtype.name: dtype for dtype in (FLOAT32, TFLOAT32, FLOAT16, BFLOAT16, INT32, UINT8)}

_HELD: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "tfloat32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
}
_DROPPED_BITS = {"tfloat32": 13, "bfloat16": 16}


def held_as(dtype: DType, storage: str) -> np.dtype[Any]:
    """NumPy dtype that holds `dtype` under the storage model."""
    return np.dtype(np.float64) if storage == "float64" and dtype.floating else _HELD[dtype.name]


def drop_bits(values: Array, bits: int) -> Array:
    """float32 values rounded to nearest even with the lowest `bits` mantissa bits cleared; NaN and inf stay."""
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32((1 << (bits - 1)) - 1)
    rounded = (raw + half + ((raw >> np.uint32(bits)) & np.uint32(1))) & np.uint32(0xFFFFFFFF ^ ((1 << bits) - 1))
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def cast(values: Array, dtype: DType, storage: str) -> Array:
    """Engine results (float32, or float64 under float64 storage) as the format `dtype` holds them."""
    if not dtype.floating:
        info = np.iinfo(_HELD[dtype.name])
        return np.clip(np.rint(values), info.min, info.max).astype(_HELD[dtype.name])
    if storage == "float64":
        return values.astype(np.float64, copy=False)
    bits = _DROPPED_BITS.get(dtype.name)
    return drop_bits(values, bits) if bits else values.astype(_HELD[dtype.name], copy=False)
