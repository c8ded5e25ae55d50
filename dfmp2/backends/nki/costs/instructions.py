"""Cycles and nanoseconds of one instruction.

    Tensor Engine   passes * max(min(64, N_stationary), N_moving)     passes: 4 for float32, 1 for 16-bit types
    others          factor * N + read-out + overhead                  N: elements per partition

The factors are the formulas of the instruction pages at documentation release 2.26 (the last that gives
them). A transfer of b-byte runs over q of the 16 queues takes bytes / (q * rate * b / (b + 512)).
"""

from __future__ import annotations

from typing import NamedTuple

from dfmp2.backends.nki.costs.chips import DMA_QUEUES, PARTITIONS_PER_QUEUE, Assumptions, Chip
from dfmp2.backends.nki.interpreter.trace import Instruction
from dfmp2.errors import KernelError

FLOOR = 64  # least element cycles of an instruction, where the overhead is not counted
DYNAMIC_FLOOR = 600  # least element cycles with an operand address known at run time only
FLOAT32_PASSES = 4

# Element cycles per element and partition. Two-operand instructions and reciprocals have their own rules below.
FACTORS = {
    "activation": 1,
    "tensor_scalar": 1,
    "tensor_copy": 1,
    "memset": 1,
    "tensor_scalar_reduce": 1,
    "scalar_tensor_tensor": 2,
    "tensor_reduce": 1,
    "nc_transpose": 1,  # Vector Engine, 32 x 32 blocks
}
FREE = ("register_alloc", "register_load", "register_move")  # done by the instruction sequencer
RECIPROCAL = {"vector": 8, "gpsimd": 8, "scalar": 1}


class Charge(NamedTuple):
    """What an instruction costs: element cycles, read-out cycles, overhead cycles (all zero for transfers)."""

    elements: int
    read_out: int
    overhead: int

    @property
    def cycles(self) -> int:
        """All cycles, overhead included."""
        return self.elements + self.read_out + self.overhead

    @property
    def documented(self) -> int:
        """Cycles without the overhead, with the documented floor in its place."""
        return (max(FLOOR, self.elements) if self.overhead else self.elements) + self.read_out


def charge(instruction: Instruction, chip: Chip, given: Assumptions) -> Charge:
    """Cycles of a compute instruction on its engine.

    Raises
    ------
    KernelError : the documentation gives no cost for it
    """
    name = instruction.name
    if name in FREE:
        return Charge(0, 0, 0)
    if name == "nc_matmul":
        return Charge(_matmul(instruction, chip, given), 0, 0)
    elements = _factor(instruction) * _elements(instruction)
    if instruction.strided:
        elements *= 2
    if instruction.dynamic:
        elements = max(elements, DYNAMIC_FLOOR)
    return Charge(elements, given.read_out if instruction.reduces else 0, given.overhead(instruction.engine))


def transfer_time(instruction: Instruction, chip: Chip, given: Assumptions) -> float:
    """Nanoseconds the queues of a transfer are busy."""
    run = max(1, instruction.run_bytes)
    rate = queues(instruction) * chip.dma * run / (run + given.dma_half)
    return instruction.bytes / rate


def queues(instruction: Instruction) -> int:
    """Number of DMA queues a transfer is spread over."""
    rows = max(
        (access.partition_stop - access.partition_start for access in instruction.reads + instruction.writes),
        default=instruction.partitions,
    )
    return max(1, min(DMA_QUEUES, -(-rows // PARTITIONS_PER_QUEUE)))


def _matmul(instruction: Instruction, chip: Chip, given: Assumptions) -> int:
    cycles = max(min(FLOOR, instruction.stationary), instruction.elements)
    if instruction.itemsize < 4:
        return cycles
    halved = (instruction.transpose and chip.fast_transpose) or (instruction.one_zero and given.one_zero_hint)
    return cycles * FLOAT32_PASSES // (2 if halved else 1)


def _factor(instruction: Instruction) -> int:
    if instruction.name == "tensor_tensor":
        spaces = {access.space for access in instruction.reads[:2]}
        return 1 if spaces == {"sbuf", "psum"} or instruction.itemsize < 4 else 2
    if instruction.name == "reciprocal":
        return RECIPROCAL[instruction.engine]
    if instruction.name not in FACTORS:
        raise KernelError(
            f"{instruction.line}: no documented cost for nisa.{instruction.name}: expected nc_matmul, dma_copy, "
            f"tensor_tensor, reciprocal or one of {', '.join(FACTORS)}"
        )
    return FACTORS[instruction.name]


def _elements(instruction: Instruction) -> int:
    """Elements per partition that stream through the engine: of the source where a row is reduced."""
    if instruction.name == "tensor_reduce" and instruction.reads:
        source = instruction.reads[0]
        count = (source.byte_stop - source.byte_start) // max(1, instruction.itemsize)
        return max(instruction.elements, count)
    return instruction.elements
