"""Probe kernel of tiles that transfers write and that stay, while other tiles stream past them.

    streamed    resident (128, tiles*2048), source (blocks*128, 512)
                -> (128, 512), the sum over turns of resident[turn mod tiles, first 128 columns]^t
                   source[turn mod blocks], and once more over all resident tiles

Every resident tile is used at the end. On trn1 streaming has been seen to become four times slower where the
resident tiles take 96 KiB of a partition (aws-samples/sample-spectral-dns-on-aws-neuron, docs/neuron-rules.md, rule 3).
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dfmp2.trainium.kernels.sizes import BANK, P
from dfmp2.trainium.kernels.tiles import load, multiply, psum, sbuf

COLUMNS = 2048  # float32 numbers of a resident tile: 8 KiB of a partition


@nki.jit
def streamed(resident: nl.ndarray, source: nl.ndarray, repeats: int) -> nl.ndarray:
    """`repeats` products of streamed tiles with resident ones."""
    count = resident.shape[1] // COLUMNS
    blocks = source.shape[0] // P
    out = nl.ndarray((P, BANK), dtype=nl.float32, buffer=nl.shared_hbm)
    held = []
    for tile in range(count):
        held.append(sbuf(COLUMNS))
        load(held[tile], resident[0:P, tile * COLUMNS : (tile + 1) * COLUMNS])
    x = psum(BANK)
    last = sbuf(BANK)
    load(last, source[0:P, 0:BANK])
    for turn in range(repeats):
        block = turn % blocks
        moving = sbuf(BANK)
        load(moving, source[block * P : (block + 1) * P, 0:BANK])
        multiply(x, held[turn % count][:, 0:P], moving, turn > 0)
    for tile in range(count):
        multiply(x, held[tile][:, 0:P], last, True)
    result = sbuf(BANK)
    nisa.activation(dst=result, op=nl.copy, data=x)
    load(out, result)
    return out
