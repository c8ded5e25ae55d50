"""The trace of a kernel run: instructions in program order, and the buffers they used.

The interpreter writes it; tests of the cost model count instructions in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Space = Literal["hbm", "sbuf", "psum"]
Engine = Literal["tensor", "vector", "scalar", "gpsimd", "dma"]


class Instruction(NamedTuple):
    """One issued instruction.

    name : nisa name, e.g. "nc_matmul"; engine : where it runs;
    elements : elements per partition of the destination;
    reads, writes : memory spaces of its inputs and outputs;
    one_zero : flag of nc_matmul: an operand holds only zeros and ones;
    bytes : moved by dma_copy.
    """

    name: str
    engine: Engine
    elements: int
    reads: tuple[Space, ...]
    writes: tuple[Space, ...]
    one_zero: bool = False
    bytes: int = 0


# The part of a tensor that a view covers: partition start and stop (0, 1 in HBM), start and stop of
# the bounding range of bytes in a partition (in the whole tensor in HBM).
Rectangle = tuple[int, int, int, int]


def overlap(a: Rectangle, b: Rectangle) -> bool:
    """Whether two views of one tensor share bytes."""
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def covers(a: Rectangle, b: Rectangle) -> bool:
    """Whether the second view of a tensor lies inside the first."""
    return a[0] <= b[0] and b[1] <= a[1] and a[2] <= b[2] and b[3] <= a[3]


@dataclass(slots=True, eq=False)
class Allocation:
    """One tensor: bytes per partition on chip (total size in HBM), and the instructions between
    which it is alive."""

    tensor: int
    name: str
    space: Space
    bytes: int
    born: int
    last_use: int
    line: str
    moved: bool = False
    address: Rectangle | None = None


@dataclass(slots=True)
class Trace:
    """All instructions and allocations of one kernel call, and the resulting high-water marks.

    sbuf_high_water : most bytes per partition alive at once; moved_high_water : the same for
        tensors written by transfers;
    psum_high_water : most PSUM banks alive at once.
    """

    instructions: list[Instruction] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    sbuf_high_water: int = 0
    moved_high_water: int = 0
    psum_high_water: int = 0
