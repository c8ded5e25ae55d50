"""Products of triangular and symmetric matrices by SciPy's BLAS, in place and with the GIL
released.

SciPy's own wrapper of `trmm` holds the GIL and copies non-contiguous operands, so workers would
wait for each other. SciPy publishes the addresses of the routines for compiled callers
(`scipy.linalg.cython_blas` and `cython_lapack`, documented there); calling them through ctypes
releases the GIL and allows a leading dimension. Remove this when the wrappers release the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array

_TEXT = ctypes.c_char_p
_INT = ctypes.POINTER(ctypes.c_int)
_DOUBLE = ctypes.POINTER(ctypes.c_double)
_POINTER = ctypes.c_void_p
# alpha, both factors, beta and the result, each array with its leading dimension
_SCALED_PRODUCT = (_POINTER, *[_POINTER, _INT] * 2, _POINTER, _POINTER, _INT)
ARGUMENTS: dict[str, tuple[Any, ...]] = {  # by routine, as SciPy declares them
    "dtrmm": (*[_TEXT] * 4, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _POINTER, _INT),
    "dtpttr": (_TEXT, _INT, _POINTER, _POINTER, _INT, _INT),  # a packed triangle
    "dsymm": (_TEXT, _TEXT, _INT, _INT, *_SCALED_PRODUCT),
    "dsyrk": (_TEXT, _TEXT, _INT, _INT, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT),
    "dgemm": (_TEXT, _TEXT, _INT, _INT, _INT, *_SCALED_PRODUCT),
    "dgemv": (_TEXT, _INT, _INT, *_SCALED_PRODUCT),
}


@cache
def _routine(name: str) -> Callable[..., None]:
    """A routine of BLAS or LAPACK at the address that SciPy publishes."""
    from scipy.linalg import cython_blas, cython_lapack  # 0.2 s, which results do without

    library: Any = cython_blas
    if name == "dtpttr":
        library = cython_lapack
    capsule = library.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = int(get_pointer(capsule, get_name(capsule)))
    return ctypes.CFUNCTYPE(None, *ARGUMENTS[name])(address)


def multiply_rows(lower: Array, rows: Array, *, transposed: bool = False) -> None:
    """Replace every row x of `rows` with T x, or with T^T x.

    Parameters
    ----------
    lower : (n, n) float64, lower triangular T, Fortran order
    rows : (count, n) float64, C order; overwritten
    """
    count, n = rows.shape
    # In Fortran order rows is (n, count): T X, or T^T X.
    _multiply(b"L", b"T" if transposed else b"N", n, count, lower, rows, n)


def multiply_columns(lower: Array, block: Array, start: int, stop: int) -> None:
    """Replace every column x of `block[:, start:stop]` with T x.

    Parameters
    ----------
    lower : (n, n) float64, lower triangular T, Fortran order
    block : (n, count) float64, C order; its columns start:stop are overwritten
    """
    n, count = block.shape
    # In Fortran order block is (count, n), with the columns as a range of its rows: X T^T.
    _multiply(b"R", b"T", stop - start, n, lower, block[:, start:stop], count)


def add_square(rows: Array, matrix: Array, start: int, stop: int) -> None:
    """Add rows^T rows to `matrix[start:stop, start:]`, except below its diagonal.

    Parameters
    ----------
    rows : (count, n) float64, C order
    matrix : (n, n) float64, C order
    """
    count, n = rows.shape
    for array, shape in ((rows, (count, n)), (matrix, (n, n))):
        _require(array, np.dtype(np.float64), shape)
    if not count or not start < stop <= n:
        return
    one = np.ones(1)
    leading = _int(n)
    m, k = (_int(stop - start), _int(count))
    first, rest = (rows.ctypes.data + 8 * column for column in (start, stop))
    corner, beside = (matrix.ctypes.data + 8 * (start * n + column) for column in (start, stop))
    # In Fortran order rows is (n, count), and the part above the diagonal is below it.
    _routine("dsyrk")(
        b"L", b"N", m, k, one.ctypes.data, first, leading, one.ctypes.data, corner, leading
    )
    if stop < n:
        ends = (_int(n - stop), m, k)
        _routine("dgemm")(
            b"N",
            b"T",
            *ends,
            one.ctypes.data,
            rest,
            leading,
            first,
            leading,
            one.ctypes.data,
            beside,
            leading,
        )


def add_projection(rows: Array, vector: Array, sums: Array) -> None:
    """Add rows^T (rows vector) to `sums`; NumPy would first store the product, as long as a row,
    and read it back.

    Parameters
    ----------
    rows : (count, n) float64, C order; few enough to stay in cache
    vector, sums : (n,) float64
    """
    count, n = rows.shape
    for array, shape in ((rows, (count, n)), (vector, (n,)), (sums, (n,))):
        _require(array, np.dtype(np.float64), shape)
    if not rows.size:
        return
    along = np.empty(count)
    unit = _int(1)
    ends = (_int(n), _int(count))
    one = np.ones(1)
    zero = np.zeros(1)
    first = rows.ctypes.data
    leading = _int(n)
    # In Fortran order rows is (n, count).
    products = (one.ctypes.data, first, leading)
    _routine("dgemv")(
        b"T", *ends, *products, vector.ctypes.data, unit, zero.ctypes.data, along.ctypes.data, unit
    )
    _routine("dgemv")(
        b"N", *ends, *products, along.ctypes.data, unit, one.ctypes.data, sums.ctypes.data, unit
    )


class SymmetricProducts:
    """Products of packed symmetric matrices with rows of vectors, in reused work space.

    Between matrices there are only these calls, because workers execute Python code one at a time.

    Parameters
    ----------
    sets : vectors, (count, n) float64 in C order
    """

    def __init__(self, sets: list[Array]) -> None:
        self._sets, self._n = sets, sets[0].shape[1]
        for vectors in sets:
            _require(vectors, np.dtype(np.float64), (len(vectors), self._n))
        self._square = np.zeros((self._n, self._n))
        self._one, self._zero = np.ones(1), np.zeros(1)

    def __call__(self, packed: Array, out: list[Array]) -> None:
        """out[s][k] = sets[s] A_k.

        Parameters
        ----------
        packed : lower triangles of A_k, (k, n (n + 1) / 2) float64 in C order, rows one after
            another
        out : (k, count, n) for each set, in C order
        """
        size = self._n * (self._n + 1) // 2
        if (
            packed.dtype != np.float64
            or not packed.flags.c_contiguous
            or packed.shape[1:] != (size,)
        ):
            raise ValueError(
                f"expected C-ordered float64 triangles of {size}, got {packed.dtype} {packed.shape}"
            )
        for vectors, target in zip(self._sets, out, strict=True):
            _require(target, np.dtype(np.float64), (len(packed), *vectors.shape))
        n = _int(self._n)
        info = ctypes.byref(ctypes.c_int())
        square = self._square.ctypes.data
        one, zero = self._one.ctypes.data, self._zero.ctypes.data
        places = [
            (_int(len(vectors)), vectors.ctypes.data, target.ctypes.data, vectors.nbytes)
            for vectors, target in zip(self._sets, out, strict=True)
            if vectors.size
        ]
        first, stride = packed.ctypes.data, packed.strides[0]
        for k in range(len(packed)):
            # Rows of a lower triangle are, in Fortran order, columns of an upper one.
            _routine("dtpttr")(b"U", n, first + k * stride, square, n, info)
            for count, source, result, step in places:
                _routine("dsymm")(
                    b"L", b"U", n, count, one, square, n, source, n, zero, result + k * step, n
                )


def _require(array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or not array.flags.c_contiguous or array.shape != shape:
        raise ValueError(f"expected C-ordered {dtype} {shape}, got {array.dtype} {array.shape}")


def _multiply(
    side: bytes, trans: bytes, m: int, n: int, lower: Array, block: Array, leading: int
) -> None:
    for array in (lower, block):
        if array.dtype != np.float64:
            raise TypeError(f"expected float64, got {array.dtype}")
    if not lower.flags.f_contiguous or (block.size and block.strides[1] != 8):
        raise ValueError("expected a Fortran-ordered triangle and a C-ordered block")
    if not block.size:
        return
    order = lower.shape[0]
    _routine("dtrmm")(
        side,
        b"L",
        trans,
        b"N",
        _int(m),
        _int(n),
        ctypes.byref(ctypes.c_double(1.0)),
        lower.ctypes.data_as(_DOUBLE),
        _int(order),
        block.ctypes.data,
        _int(leading),
    )


def _int(value: int) -> ctypes._CArgObject:
    return ctypes.byref(ctypes.c_int(value))
