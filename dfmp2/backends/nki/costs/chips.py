"""What the documentation says about the two chips, as literal tables: clocks, memories, ports, DMA.

    time = cycles / clock        bytes per ns = DMA engines * rate * b / (b + 512),  b = bytes per contiguous run

Figures are those of one physical NeuronCore. Sources: the Trainium/Inferentia2 and Trainium2 architecture
guides of the AWS Neuron documentation, its DMA bandwidth guide and its DMA engine pages. What is assumed
rather than documented is a field of `Assumptions`, so that it can be varied and is never hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.errors import InputError

PSUM_BANKS = 8
DMA_QUEUES = 16
PARTITIONS_PER_QUEUE = 8
COMPILER_SPACE = 16 * 1024  # bytes per partition of SBUF the compiler keeps (documented at release 2.26)


@dataclass(frozen=True, slots=True)
class Chip:
    """One NeuronCore of a chip.

    Attributes
    ----------
    name : "trn1" or "trn2"; target : the generation kernels are written for
    tensor, vector, scalar, gpsimd : engine clocks, GHz
    dma : bytes per ns of one DMA engine (queue)
    sbuf : usable bytes per partition
    hbm : bytes of device memory per core
    shared_ports : Vector and Scalar Engine share one PSUM port, Vector Engine and GpSimd one SBUF port
    bank_conflicts : two instructions on the same PSUM bank take turns
    fast_transpose : transpose mode halves the four passes of a float32 matrix product
    dynamic_descriptor : ns to make the descriptors of a transfer whose address is known at run time only
    software_descriptors : GpSimd makes them
    """

    name: str
    target: str
    tensor: float
    vector: float
    scalar: float
    gpsimd: float
    dma: float
    sbuf: int
    hbm: int
    shared_ports: bool
    bank_conflicts: bool
    fast_transpose: bool
    dynamic_descriptor: float
    software_descriptors: bool

    def clock(self, engine: str) -> float:
        """Clock of a compute engine, GHz."""
        return {"tensor": self.tensor, "vector": self.vector, "scalar": self.scalar, "gpsimd": self.gpsimd}[engine]


CHIPS = {
    "trn1": Chip(
        name="trn1",
        target="gen2",
        tensor=2.8,
        vector=1.12,
        scalar=1.4,
        gpsimd=1.4,
        dma=17.0,
        sbuf=192 * 1024 - COMPILER_SPACE,
        hbm=16 * 1024**3,  # 32 GiB for two cores
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
        sbuf=224 * 1024 - COMPILER_SPACE,
        hbm=12 * 1024**3,  # 96 GiB for eight cores
        shared_ports=False,
        bank_conflicts=True,
        fast_transpose=True,
        dynamic_descriptor=600.0,
        software_descriptors=False,
    ),
}
BY_TARGET = {chip.target: chip for chip in CHIPS.values()}


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
    """

    vector_overhead: int = 100
    scalar_overhead: int = 64
    gpsimd_overhead: int = 100
    read_out: int = 64
    one_zero_hint: bool = False
    cross_engine_wait: int = 64
    dma_start: float = 1300.0
    dma_half: int = 512

    def overhead(self, engine: str) -> int:
        """Cycles added to every instruction of an engine."""
        return {
            "tensor": 0,
            "vector": self.vector_overhead,
            "scalar": self.scalar_overhead,
            "gpsimd": self.gpsimd_overhead,
        }[engine]


def find_chip(name: str) -> Chip:
    """The chip of that name.

    Raises
    ------
    InputError : there is none
    """
    if name not in CHIPS:
        raise InputError(f"--target {name}: unknown chip: expected one of {', '.join(CHIPS)}")
    return CHIPS[name]
