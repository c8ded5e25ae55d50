"""The public trn1 kernels of the trnblas project as traces, and what was measured with them: checks of the cost model.

    trnsci/trnblas: trnblas/nki/dispatch.py (loops, loads and engine operations per iteration),
    docs/benchmarks.md and CHANGELOG.md (times on trn1.2xlarge, neuronxcc 2.24, NKI 0.3.0, float32).

Only the operation counts of its kernels are restated here, in this module's own terms: one iteration as a
list of instructions, and how many iterations there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.trainium.costs.chips import Assumptions, Chip, charge, transfer_time
from dfmp2.trainium.interpreter.trace import Access, Instruction

ROW = 512  # bytes of one row of a 128 x 128 float32 tile


@dataclass(frozen=True, slots=True)
class Published:
    """A figure published for trn1 and where it stands."""

    what: str
    value: float
    unit: str
    source: str


ELEMENTWISE_VECTOR = Published("elementwise kernel, Vector Engine busy", 206.0, "ms", "profile of the medium shape")
ELEMENTWISE_STATEMENTS = Published("elementwise kernel, Vector Engine instructions", 403_039, "", "the same profile")
ELEMENTWISE_READS = Published("elementwise kernel, HBM reads", 6_578_757_632, "bytes", "the same profile")
BATCHED_MEDIUM = Published("batched pairs, medium, energy step, warm", 1536.0, "ms", "docs/benchmarks.md, v0.5.4")
BATCHED_CHUNKED = Published("batched pairs, 16/384/512, warm", 38.7, "ms", "CHANGELOG.md, v0.5.4")
BATCHED_FROM_DISK = Published("batched pairs, medium, 64 NEFFs loaded from disk", 98.7e3, "ms", "CHANGELOG.md, v0.5.5")
BATCHED_COLD = Published("batched pairs, medium, compiled anew", 2041.3e3, "ms", "CHANGELOG.md, v0.5.5")
BATCHED_SMALL = Published("batched pairs, small, warm", 5.0, "ms", "docs/benchmarks.md, v0.5.2")
ROUND_TRIP = 1.3  # ms of one dispatch, from its calls of 16 to 2048^3 matrix products


def elementwise_strip(nvir: int = 448, rows: int = 112) -> list[Instruction]:
    """One strip of the elementwise kernel on a given T: two loads, ten operations, 32 x 32 transposes of one load."""
    vector = [("tensor_copy", 1)] * 3 + [("tensor_tensor", 2)] * 4 + [("reciprocal", 1), ("tensor_tensor", 2)]
    loads = [_load(rows, 4 * nvir, 4 * nvir), _load(nvir, 4 * rows, 4 * rows)]
    body = [_vector(name, nvir, operands) for name, operands in vector]
    turn = [_vector("nc_transpose", rows, 1) for _ in range(nvir // 32)]
    return [*loads, *turn, *body, _vector("tensor_reduce", nvir, 1)]


def elementwise_strips(nocc: int = 64, nvir: int = 448, rows: int = 112) -> int:
    """Number of strips of all ordered pairs."""
    return nocc * nocc * (nvir // rows)


def batched_block(naux: int) -> list[Instruction]:
    """One 128 x 128 block of one pair of the batched kernel: two products with their loads, then the energy terms."""
    steps = 2 * -(-naux // 128)
    loads = [_load(128, ROW, ROW) for _ in range(2 * steps)]
    products = [Instruction("nc_matmul", "tensor", 128, 128, 4, (), (), stationary=128) for _ in range(steps)]
    vector = [("tensor_copy", 1)] * 5 + [("tensor_tensor", 2)] * 2 + [("tensor_scalar", 1)] + [("tensor_tensor", 2)] * 2
    body = [_vector(name, 128, operands) for name, operands in [*vector, ("reciprocal", 1), ("tensor_tensor", 2)]]
    return [*loads, *products, *body, _vector("tensor_reduce", 128, 1), _vector("tensor_copy", 1, 1)]


def batched_blocks(nocc: int, nvir: int) -> int:
    """Number of blocks of all ordered pairs."""
    return nocc * nocc * (-(-nvir // 128)) ** 2


def engine_time(iteration: list[Instruction], count: int, engine: str, chip: Chip, given: Assumptions) -> float:
    """Busy time of an engine, or of all DMA queues together, ms."""
    if engine == "dma":
        return count * sum(transfer_time(one, chip, given) for one in iteration if one.engine == "dma") / 1e6
    cycles = sum(charge(one, chip, given).cycles for one in iteration if one.engine == engine)
    return count * cycles / chip.clock(engine) / 1e6


def traffic(iteration: list[Instruction], count: int) -> int:
    """HBM bytes read."""
    return count * sum(one.bytes for one in iteration)


def _vector(name: str, elements: int, operands: int) -> Instruction:
    inside = tuple(Access(k, "sbuf", 0, 128, 0, 4 * elements) for k in range(operands))
    return Instruction(name, "vector", elements, 128, 4, inside, (), operands=operands)


def _load(rows: int, row_bytes: int, run: int) -> Instruction:
    return Instruction(
        "dma_copy", "dma", row_bytes // 4, min(rows, 128), 4, (), (), bytes=rows * row_bytes, descriptors=rows,
        run_bytes=run,
    )  # fmt: skip
