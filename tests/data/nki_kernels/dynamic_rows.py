"""out[j] = scale[j] * rows[j] for the first `count` row blocks, in a hardware loop: three ways to address block j."""

import nki
import nki.isa as nisa
import nki.language as nl

DYNAMIC_LOOPS = True
ROWS = 32


def scaled(rows, out, scale_sb, offset, width):
    """One block: load, scale by the column, store; offset counts rows of the whole tensors."""
    tile = nl.ndarray((ROWS, width), dtype=nl.float32, buffer=nl.sbuf)
    result = nl.ndarray((ROWS, width), dtype=nl.float32, buffer=nl.sbuf)
    pattern = [[width, ROWS], [1, width]]
    nisa.dma_copy(
        dst=tile, src=rows.ap(pattern=pattern, offset=0, scalar_offset=offset, indirect_dim=0)
    )
    nisa.tensor_scalar(dst=result, data=tile, op0=nl.multiply, operand0=scale_sb)
    nisa.dma_copy(
        dst=out.ap(pattern=pattern, offset=0, scalar_offset=offset, indirect_dim=0), src=result
    )


@nki.jit
def counter_in_sbuf(rows, scale, count):
    """The idiom that release 0.3.0 takes: an int32 counter in SBUF, bumped in the body."""
    out = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    scale_sb = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scale_sb, src=scale)
    counter = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=counter, value=0)
    bound = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=bound, src=count)
    stop = nisa.register_alloc()
    nisa.register_load(dst=stop, src=bound)
    for _ in nl.dynamic_range(stop):
        scaled(rows, out, scale_sb, counter, rows.shape[1])
        nisa.tensor_scalar(dst=counter, data=counter, op0=nl.add, operand0=32.0)
    return out


@nki.jit
def index_as_offset(rows, scale, count):
    """From 0.4.0 on the loop index is a register that can be an offset."""
    out = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    scale_sb = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scale_sb, src=scale)
    first = nisa.register_alloc(x=0)
    last = nisa.register_alloc()
    nisa.register_move(dst=last, src=rows.shape[0])
    for row in nl.dynamic_range(first, last, ROWS):
        scaled(rows, out, scale_sb, row, rows.shape[1])
    return out


@nki.jit
def body_function(rows, scale, count):
    """From 0.6.0 on: fori_loop with a body function."""
    out = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    scale_sb = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scale_sb, src=scale)

    def body(row):
        scaled(rows, out, scale_sb, row, rows.shape[1])

    nl.fori_loop(0, rows.shape[0], body, step=ROWS)
    return out
