"""Triangular solves on SciPy's BLAS, in place and with the GIL released.

SciPy's own wrapper of `trsm` holds the GIL and copies operands that are not contiguous, so workers
would wait for each other. SciPy publishes the routine's address for compiled callers
(`scipy.linalg.cython_blas`, documented there); calling it through ctypes releases the GIL and takes a
leading dimension. Delete this when the wrapper releases the GIL.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas

Array = NDArray[np.float64]

_TEXT, _INT, _DOUBLE = ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_double)


def _address(name: str) -> int:
    capsule = cython_blas.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get_pointer(capsule, get_name(capsule)))


_trsm = ctypes.CFUNCTYPE(None, _TEXT, _TEXT, _TEXT, _TEXT, _INT, _INT, _DOUBLE, _DOUBLE, _INT, ctypes.c_void_p, _INT)(
    _address("dtrsm")
)


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
