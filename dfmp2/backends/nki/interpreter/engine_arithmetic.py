"""Arithmetic of the engines on NumPy arrays: float32 element operations, row sums, matrix products under four models.

pe_model fp32: one float32 dot per instruction; exact: float64 dot, rounded once, added in float32; bf16prod: products
of 16-bit operands rounded to bfloat16, then summed in float32; split4: float32 operands as hi + lo with 12 bits each,
four float32 dots (hi hi + hi lo + lo hi + lo lo).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dfmp2.backends.nki.interpreter.dtypes import Array, drop_bits

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
UNARY: dict[str, Callable[[Array], Array]] = {
    "copy": lambda x: x,
    "square": np.square,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "reciprocal": np.reciprocal,
}
SPLIT_BITS = 12


def working(values: Array, double: bool) -> Array:
    """Operand values in the engine's arithmetic (float32; float64 under float64 storage)."""
    return values.astype(np.float64 if double else np.float32, copy=False)


def reduce_rows(values: Array, op: str, keep: int, row_sum: str) -> Array:
    """Reduces all but the first `keep` dimensions of working values, in order; add follows the row-sum model."""
    rows = values.reshape((*values.shape[:keep], -1))
    if op != "add":
        reduced: Array = BINARY[op].reduce(rows, axis=-1)  # type: ignore[attr-defined]
        return reduced
    if row_sum == "float64" or rows.dtype == np.float64:
        total: Array = rows.sum(axis=-1, dtype=np.float64)
        return total.astype(values.dtype)
    last: Array = np.cumsum(rows, axis=-1, dtype=np.float32)[..., -1]
    return last


def contract(stationary: Array, moving: Array, model: str, narrow: bool) -> Array:
    """stationary^T moving of one instruction: (K, M), (K, N) -> (M, N), in float32 (float64 if the operands are).

    narrow : both operands are 16-bit formats.
    """
    if stationary.dtype == np.float64 or moving.dtype == np.float64:
        doubled: Array = stationary.T.astype(np.float64) @ moving.astype(np.float64)
        return doubled
    if model == "exact":
        exact: Array = (stationary.T.astype(np.float64) @ moving.astype(np.float64)).astype(np.float32)
        return exact
    left, right = stationary.astype(np.float32, copy=False), moving.astype(np.float32, copy=False)
    if model == "bf16prod" and narrow:
        total = np.zeros((left.shape[1], right.shape[1]), dtype=np.float32)
        for row, other in zip(left, right, strict=True):
            total += drop_bits(np.multiply.outer(row, other), 16)
        return total
    if model == "split4" and not narrow:
        high, other_high = drop_bits(left, SPLIT_BITS), drop_bits(right, SPLIT_BITS)
        low, other_low = left - high, right - other_high
        split: Array = high.T @ other_high + high.T @ other_low
        split += low.T @ other_high
        split += low.T @ other_low
        return split
    product: Array = left.T @ right
    return product
