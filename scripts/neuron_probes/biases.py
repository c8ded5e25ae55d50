"""Probe kernel of the bias of an activation, which trn1 has left out of a copy (aws-neuron-sdk issue 1296).

    biased    x (128, N), column (128, 1) -> relu(x + column) or x + column

Our interpreter refuses both forms, so nothing predicts what a chip answers, and no kernel of dfmp2 depends on it.
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import P
from dfmp2.trainium.kernels.tiles import load, sbuf


@nki.jit
def biased(x: nl.ndarray, column: nl.ndarray, which: int) -> nl.ndarray:
    """which : 0 relu, 1 copy."""
    columns = x.shape[1]
    out = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = sbuf(columns)
    load(tile, x)
    bias = sbuf(1)
    load(bias, column)
    result = sbuf(columns)
    if which == 0:
        nisa.activation(dst=result, op=nl.relu, data=tile, bias=bias)
    if which == 1:
        nisa.activation(dst=result, op=nl.copy, data=tile, bias=bias)
    load(out, result)
    return out
