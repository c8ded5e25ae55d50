"""Plain twins of products.py: the same operands, whole matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

Matrix = NDArray[Any]


def gemm_twin(a: Matrix, b: Matrix) -> Matrix:
    """C = A^t B, in the precision of the operands."""
    return np.asarray(a.T @ b)


def gemm_batch_twin(a: Matrix, b: Matrix, batches: int) -> Matrix:
    """C_g = A_g^t B_g, batches below each other."""
    left, right = (m.reshape(batches, -1, m.shape[1]) for m in (a, b))
    return np.asarray((left.transpose(0, 2, 1) @ right).reshape(-1, b.shape[1]))


def syrk_twin(a: Matrix) -> Matrix:
    """C = A^t A."""
    return np.asarray(a.T @ a)


def trsm_twin(lower: Matrix, b: Matrix) -> Matrix:
    """X of L X = B."""
    return np.asarray(solve_triangular(lower, b, lower=True))
