"""Probe kernels of the Vector and Scalar Engine: accuracy of one function, time of a chain of instructions.

    function      x (128, N), column (128, 1) -> f(x)
    reciprocals   x (128, N)                -> x after `rounds` pairs 1/(1/x), into PSUM and back to SBUF
    multiplies    x (128, N), f (128, N)    -> x f^rounds, f in SBUF or in PSUM
    copies        x (128, N)                -> x after `rounds` copies on the Scalar Engine

Every instruction of a chain needs the result of the one before it, so that none can be left out.
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import P
from dfmp2.trainium.kernels.tiles import add_column, load, psum, sbuf


@nki.jit
def function(x: nl.ndarray, column: nl.ndarray, which: int) -> nl.ndarray:
    """which : Vector Engine: 0 reciprocal, 1 sum with a column; Scalar Engine: 2 square, 3 reciprocal, 4 rsqrt."""
    columns = x.shape[1]
    out = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = sbuf(columns)
    load(tile, x)
    add = sbuf(1)
    load(add, column)
    result = sbuf(columns)
    if which == 0:
        nisa.reciprocal(dst=result, data=tile)
    if which == 1:
        add_column(result, tile, add)
    if which == 2:
        nisa.activation(dst=result, op=nl.square, data=tile)
    if which == 3:
        nisa.activation(dst=result, op=nl.reciprocal, data=tile)
    if which == 4:
        nisa.activation(dst=result, op=nl.rsqrt, data=tile)
    load(out, result)
    return out


@nki.jit
def reciprocals(x: nl.ndarray, rounds: int) -> nl.ndarray:
    """2 `rounds` reciprocals, from SBUF to PSUM and from PSUM to SBUF in turn."""
    columns = x.shape[1]
    out = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = sbuf(columns)
    load(tile, x)
    for _ in range(rounds):
        inverse = psum(columns)
        nisa.reciprocal(dst=inverse, data=tile)
        tile = sbuf(columns)
        nisa.reciprocal(dst=tile, data=inverse)
    load(out, tile)
    return out


@nki.jit
def multiplies(x: nl.ndarray, f: nl.ndarray, rounds: int, from_psum: bool) -> nl.ndarray:
    """`rounds` products of two tiles on the Vector Engine; from_psum : the second lies in PSUM."""
    columns = x.shape[1]
    out = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = sbuf(columns)
    load(tile, x)
    factor = sbuf(columns)
    load(factor, f)
    if from_psum:
        bank = psum(columns)
        nisa.activation(dst=bank, op=nl.copy, data=factor)
        factor = bank
    for _ in range(rounds):
        result = sbuf(columns)
        nisa.tensor_tensor(dst=result, data1=tile, data2=factor, op=nl.multiply)
        tile = result
    load(out, tile)
    return out


@nki.jit
def copies(x: nl.ndarray, rounds: int) -> nl.ndarray:
    """`rounds` copies on the Scalar Engine."""
    columns = x.shape[1]
    out = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = sbuf(columns)
    load(tile, x)
    for _ in range(rounds):
        result = sbuf(columns)
        nisa.activation(dst=result, op=nl.copy, data=tile)
        tile = result
    load(out, tile)
    return out
