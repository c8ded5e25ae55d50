"""What the documentation says of chips and instructions, as literal tables: clocks, memories, ports, DMA, cycles.

    Tensor Engine   passes * max(min(64, N_stationary), N_moving)     passes: 4 for float32, 1 for 16-bit types
    others          factor * N + read-out + overhead                  N: elements per partition
    time            cycles / clock
    transfers       bytes / (q * rate * b / (b + 512))                b: bytes per contiguous run, q of the 16 queues

Figures are those of one physical NeuronCore. Sources: the Trainium/Inferentia2 and Trainium2 architecture guides of the
AWS Neuron documentation, its DMA bandwidth guide and its DMA engine pages; the factors are the formulas of the
instruction pages at documentation release 2.26 (the last that gives them). What is assumed rather than documented is a
field of `Assumptions`, so that it can be varied and is never hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dfmp2.errors import InputError, KernelError
from dfmp2.messages import Option
from dfmp2.trainium.interpreter.rules import Settings, Target
from dfmp2.trainium.interpreter.trace import Instruction
from dfmp2.trainium.layout import STRIDE

DMA_QUEUES = 16
PARTITIONS_PER_QUEUE = 8
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
    "tensor_tensor_scan": 2,
    "nc_transpose": 1,  # Vector Engine, 32 x 32 blocks
}
RECIPROCAL = {"vector": 8, "gpsimd": 8, "scalar": 1}


@dataclass(frozen=True, slots=True)
class Chip:
    """One NeuronCore of a chip.

    Attributes
    ----------
    name : "trn1" or "trn2"; target : the generation kernels are written for
    tensor, vector, scalar, gpsimd : engine clocks, GHz
    dma : bytes per ns of one DMA engine (queue)
    hbm : bytes of device memory per core; cores : physical cores of a chip
    shared_ports : Vector and Scalar Engine share one PSUM port, Vector Engine and GpSimd one SBUF port
    bank_conflicts : two instructions on the same PSUM bank take turns
    fast_transpose : transpose mode halves the four passes of a float32 matrix product
    dynamic_descriptor : ns to make the descriptors of a transfer whose address is known at run time only
    software_descriptors : GpSimd makes them
    """

    name: str
    target: Target
    tensor: float
    vector: float
    scalar: float
    gpsimd: float
    dma: float
    hbm: int
    cores: int
    shared_ports: bool
    bank_conflicts: bool
    fast_transpose: bool
    dynamic_descriptor: float
    software_descriptors: bool

    @property
    def sbuf(self) -> int:
        """Usable bytes per partition."""
        return Settings(target=self.target).sbuf_limit

    def clock(self, engine: str) -> float:
        """Clock of a compute engine, GHz."""
        return float(getattr(self, engine))


# Guides: trainium_inferentia2_arch.rst and trainium2_arch.rst (engine specifications, text): clocks, SBUF, ports,
# banks, transposes and the 600 ns of hardware DGE; DMA bandwidth guide for the rates. At four passes these clocks are
# 22.9 and 19.7 float32 TFLOPS a core; the guides say 23 and 20. Cores and memory: trainium2.rst and
# logical-neuroncore-config.rst; two cores share a 24 GiB bank on trn2, each has half of it here.
CHIPS = {
    "trn1": Chip(
        name="trn1",
        target="gen2",
        tensor=2.8,
        vector=1.12,
        scalar=1.4,
        gpsimd=1.4,
        dma=17.0,
        hbm=16 * 1024**3,  # 32 GiB for two cores
        cores=2,
        shared_ports=True,
        bank_conflicts=False,
        fast_transpose=False,
        dynamic_descriptor=1000.0,  # undocumented; a placeholder until it is measured
        software_descriptors=True,
    ),
    "trn2": Chip(
        name="trn2",
        target="gen3",
        tensor=2.4,
        vector=0.96,
        scalar=1.2,
        gpsimd=1.2,
        dma=23.0,
        hbm=12 * 1024**3,  # 96 GiB for eight cores
        cores=8,
        shared_ports=False,
        bank_conflicts=True,
        fast_transpose=True,
        dynamic_descriptor=600.0,
        software_descriptors=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the documentation leaves open.

    Attributes
    ----------
    vector_overhead, scalar_overhead, gpsimd_overhead : cycles added to every instruction of that engine. About
        100 are documented for short or dependent Vector Engine instructions and 60 for an access; 100 and 64
        reproduce a published kernel of 403,039 instructions (203 ms against 206 measured). GpSimd as the Vector Engine.
    read_out : cycles to read an accumulated row sum (documented for the Scalar Engine)
    one_zero_hint : credit 2x for matrix products flagged as multiplying zeros and ones. The documentation says that
        the flag "could lead to" it, so the default is no credit.
    cross_engine_wait : cycles of the waiting engine between the end of an instruction elsewhere and its own start
    dma_start : ns between the release of a transfer and its first byte (DMA bandwidth guide)
    dma_half : contiguous bytes at which a queue reaches half of its rate; reproduces 135 to 142 GB/s for 512 B rows
    moved_line : bytes per partition; where tensors that transfers write take more on trn1, streamed tiles lose their
        slots and every transfer takes `moved_factor` as long (measured elsewhere: 2,823 us at 88 KiB, 11,201 at 96)
    stride_factor : how much longer a transfer of parts of rows takes on trn1 where the rows lie a power of two apart,
        from 8 KiB on (measured elsewhere, large strides; 2 KiB did no harm to a published kernel of that stride)
    dma_factor : how much longer every transfer takes: what if the rates are not reached
    """

    vector_overhead: int = 100
    scalar_overhead: int = 64
    gpsimd_overhead: int = 100
    read_out: int = 64
    one_zero_hint: bool = False
    cross_engine_wait: int = 64
    dma_start: float = 1300.0
    dma_half: int = 512
    moved_line: int = 96 * 1024
    moved_factor: float = 4.0
    stride_factor: float = 2.0
    dma_factor: float = 1.0

    def overhead(self, engine: str) -> int:
        """Cycles added to every instruction of an engine."""
        if engine == "tensor":
            return 0
        return int(getattr(self, f"{engine}_overhead"))


def find_chip(name: str) -> Chip:
    """The chip of that name.

    Raises
    ------
    InputError : there is none
    """
    if name not in CHIPS:
        raise InputError(
            Option("target", name), f": unknown chip: expected one of {', '.join(CHIPS)}"
        )
    return CHIPS[name]


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
    if instruction.name == "nc_matmul":
        return Charge(_matmul(instruction, chip, given), 0, 0)
    elements = _factor(instruction) * instruction.elements
    if instruction.strided:
        elements *= 2
    if instruction.dynamic:
        elements = max(elements, DYNAMIC_FLOOR)
    return Charge(
        elements, given.read_out if instruction.reduces else 0, given.overhead(instruction.engine)
    )


def transfer_time(instruction: Instruction, chip: Chip, given: Assumptions) -> float:
    """Nanoseconds the queues of a transfer are busy."""
    run, row = max(1, instruction.run_bytes), instruction.row_bytes
    slow = (
        chip.target == "gen2" and row >= STRIDE and row & (row - 1) == 0
    )  # see the rule dma-stride
    rate = queues(instruction) * chip.dma * run / (run + given.dma_half)
    return given.dma_factor * (given.stride_factor if slow else 1.0) * instruction.bytes / rate


def queues(instruction: Instruction) -> int:
    """Number of DMA queues a transfer is spread over."""
    rows = max(
        (
            access.partition_stop - access.partition_start
            for access in instruction.reads + instruction.writes
        ),
        default=instruction.partitions,
    )
    return max(1, min(DMA_QUEUES, -(-rows // PARTITIONS_PER_QUEUE)))


def _matmul(instruction: Instruction, chip: Chip, given: Assumptions) -> int:
    cycles = max(min(FLOOR, instruction.stationary), instruction.elements)
    if instruction.itemsize < 4:
        return cycles
    halved = (instruction.transpose and chip.fast_transpose) or (
        instruction.one_zero and given.one_zero_hint
    )
    return cycles * FLOAT32_PASSES // (2 if halved else 1)


def _factor(instruction: Instruction) -> int:
    if instruction.name == "tensor_tensor":
        spaces = {access.space for access in instruction.reads[:2]}
        if spaces == {"sbuf", "psum"} or instruction.itemsize < 4:
            return 1
        return 2
    if instruction.name == "reciprocal":
        return RECIPROCAL[instruction.engine]
    if instruction.name not in FACTORS:
        raise KernelError(
            f"{instruction.line}: no documented cost for nisa.{instruction.name}: expected nc_matmul, dma_copy, "
            f"tensor_tensor, reciprocal or one of {', '.join(FACTORS)}"
        )
    return FACTORS[instruction.name]
