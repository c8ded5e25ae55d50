"""Probe kernel of a hardware loop whose body finds its data through a counter in SBUF (NKI 0.3.0 to 0.6.0).

    x (rounds*128, columns) -> 2 x, one block of 128 rows per round

In 0.3.0 the index of nl.dynamic_range cannot be used in an address; an int32 counter in SBUF can.
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import P
from dfmp2.trainium.kernels.tiles import sbuf

DYNAMIC_LOOPS = True
BLOCK_STEP = 128.0  # rows


@nki.jit
def doubled(x: nl.ndarray, rounds: int) -> nl.ndarray:
    """2 x, block after block."""
    columns = x.shape[1]
    out = nl.ndarray((x.shape[0], columns), dtype=nl.float32, buffer=nl.shared_hbm)
    counter = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=counter, value=0)
    for _ in nl.dynamic_range(rounds):
        tile = sbuf(columns)
        nisa.dma_copy(
            dst=tile,
            src=x.ap(
                pattern=[[columns, P], [1, columns]],
                offset=0,
                scalar_offset=counter,
                indirect_dim=0,
            ),
        )
        result = sbuf(columns)
        nisa.tensor_scalar(dst=result, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(
            dst=out.ap(
                pattern=[[columns, P], [1, columns]],
                offset=0,
                scalar_offset=counter,
                indirect_dim=0,
            ),
            src=result,
        )
        nisa.tensor_scalar(dst=counter, data=counter, op0=nl.add, operand0=BLOCK_STEP)
    return out
