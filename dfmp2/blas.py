"""Triangular solves and symmetric products on SciPy's BLAS, in place and with the GIL released.

SciPy's own wrapper of `trsm` holds the GIL and copies operands that are not contiguous, so workers
would wait for each other. SciPy publishes the addresses of the routines for compiled callers
(`scipy.linalg.cython_blas` and `cython_lapack`, documented there); calling them through ctypes releases
the GIL and takes a leading dimension. Delete this when the wrappers release the GIL.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas, cython_lapack

Array = NDArray[np.float64]

_TEXT, _INT, _DOUBLE = ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_double)


def _address(library: Any, name: str) -> int:
    capsule = library.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get_pointer(capsule, get_name(capsule)))


_trsm = ctypes.CFUNCTYPE(None, _TEXT, _TEXT, _TEXT, _TEXT, _INT, _INT, _DOUBLE, _DOUBLE, _INT, ctypes.c_void_p, _INT)(
    _address(cython_blas, "dtrsm")
)
_FLOAT, _POINTER = ctypes.POINTER(ctypes.c_float), ctypes.c_void_p
_spread = ctypes.CFUNCTYPE(None, _TEXT, _INT, _POINTER, _POINTER, _INT, _INT)(_address(cython_lapack, "stpttr"))
_symm = ctypes.CFUNCTYPE(
    None, *(_TEXT, _TEXT, _INT, _INT), *(_FLOAT, _POINTER, _INT), *(_POINTER, _INT), *(_FLOAT, _POINTER, _INT)
)(_address(cython_blas, "ssymm"))


def solve_rows(factor: Array, rows: Array) -> None:
    """Replace every row x of `rows` with L^-1 x.

    Parameters
    ----------
    factor : (n, n) float64, lower triangular L, Fortran order
    rows : (count, n) float64, C order; overwritten
    """
    count, n = rows.shape
    # In Fortran's eyes rows is (n, count): L X = B.
    _solve(b"L", b"N", n, count, factor, rows, n)


def solve_columns(factor: Array, block: Array, start: int, stop: int) -> None:
    """Replace every column x of `block[:, start:stop]` with L^-1 x.

    Parameters
    ----------
    factor : (n, n) float64, lower triangular L, Fortran order
    block : (n, count) float64, C order; its columns start:stop are overwritten
    """
    n, count = block.shape
    # In Fortran's eyes block is (count, n), with the columns as a range of its rows: X L^T = B.
    _solve(b"R", b"T", stop - start, n, factor, block[:, start:stop], count)


class SymmetricProduct:
    """Products of packed symmetric matrices with rows of vectors, in float32, in reused work space.

    Parameters
    ----------
    n : order of the matrices
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._packed = np.empty(n * (n + 1) // 2, dtype=np.float32)
        self._square = np.zeros((n, n), dtype=np.float32)
        self._info = ctypes.c_int()

    def load(self, packed: Array) -> None:
        """Round a packed lower triangle, (n (n + 1) / 2,) float64, rows one after another, and spread it."""
        self._packed[:] = packed
        # Rows of a lower triangle are, in Fortran's eyes, columns of an upper one.
        _spread(
            b"U",
            _int(self._n),
            self._packed.ctypes.data,
            self._square.ctypes.data,
            _int(self._n),
            ctypes.byref(self._info),
        )

    def times(self, rows: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """out = rows A, both (count, n) float32 in C order, with the matrix A loaded last."""
        for array in (rows, out):
            if array.dtype != np.float32 or not array.flags.c_contiguous or array.shape != (len(rows), self._n):
                raise ValueError(f"expected C-ordered float32 rows of {self._n}, got {array.dtype} {array.shape}")
        if not rows.size:
            return
        n, count, one, zero = _int(self._n), _int(len(rows)), ctypes.c_float(1.0), ctypes.c_float(0.0)
        _symm(
            *(b"L", b"U", n, count, ctypes.byref(one)),
            *(self._square.ctypes.data, n, rows.ctypes.data, n),
            *(ctypes.byref(zero), out.ctypes.data, n),
        )


def _solve(side: bytes, trans: bytes, m: int, n: int, factor: Array, block: Array, leading: int) -> None:
    for array in (factor, block):
        if array.dtype != np.float64:
            raise TypeError(f"expected float64, got {array.dtype}")
    if not factor.flags.f_contiguous or (block.size and block.strides[1] != 8):
        raise ValueError("expected a Fortran-ordered factor and a C-ordered block")
    if not block.size:
        return
    order = factor.shape[0]
    _trsm(
        *(side, b"L", trans, b"N"),
        *(_int(m), _int(n)),
        ctypes.byref(ctypes.c_double(1.0)),
        factor.ctypes.data_as(_DOUBLE),
        _int(order),
        block.ctypes.data,
        _int(leading),
    )


def _int(value: int) -> ctypes._CArgObject:
    return ctypes.byref(ctypes.c_int(value))
