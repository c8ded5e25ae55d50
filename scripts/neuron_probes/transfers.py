"""Probe kernel of the DMA engines: `repeats` loads of one tile each, in runs of a chosen length.

source (blocks*128, NK, C); of every row the first `width` of C columns are loaded, so that a run has 4 width
bytes, or 4 NK C where width = C.  Returns (128, 1): the sum of the last elements that the loads
brought to each partition.
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import P
from dfmp2.trainium.kernels.tiles import load, row_sum, sbuf, sbuf3


@nki.jit
def loads(source: nl.ndarray, width: int, repeats: int, mode_number: int) -> nl.ndarray:
    """mode_number : how descriptors are made: 0 static, 1 as the compiler likes, 2 by the hardware (trn2)."""
    blocks = source.shape[0] // P
    slices = source.shape[1]
    out = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    seen = sbuf(repeats)
    mode = nisa.dge_mode.none
    if mode_number == 1:
        mode = nisa.dge_mode.unknown
    if mode_number == 2:
        mode = nisa.dge_mode.hwdge
    for turn in range(repeats):
        block = turn % blocks
        tile = sbuf3(slices, width)
        nisa.dma_copy(
            dst=tile, src=source[block * P : (block + 1) * P, 0:slices, 0:width], dge_mode=mode
        )
        nisa.activation(
            dst=seen[:, turn : turn + 1], op=nl.copy, data=tile[:, slices - 1, width - 1 : width]
        )  # no load can be left out
    total = sbuf(1)
    row_sum(total, sbuf(repeats), seen)
    load(out, total)
    return out
