"""The simulated NeuronCore of one kernel run: settings, buffers declared so far, the trace, and what is alive at once.

    high water = max over instructions t of sum of bytes of all buffers with born <= t <= last use

Buffers of a dynamic loop's body are alive for the whole loop and counted once, whatever the number of rounds
(nki-dynamic-loops.rst). Every PSUM tensor takes a bank of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.trainium.interpreter.arithmetic import Array, DType, held_as
from dfmp2.trainium.interpreter.rules import NotInSubset, Violation, kernel_place
from dfmp2.trainium.interpreter.settings import PSUM_BANKS, Settings
from dfmp2.trainium.interpreter.trace import Allocation, Instruction, Space, Trace


@dataclass(slots=True, eq=False)
class Life:
    """When a tensor is alive and what it weighs: all that the trace needs after its memory is gone.

    loop : the dynamic loop in whose body it was declared (0: none); line : where it was declared.
    """

    serial: int
    name: str
    space: Space
    bytes: int
    line: str
    born: int
    last_use: int
    loop: int


@dataclass(slots=True, eq=False)
class Storage:
    """The memory of one declared tensor; freed when the kernel drops its last view.

    array : the elements, C order (None: counts only); written : a bit per element (None: all written);
    writer : number of the write that made each element, 0 for none or a fill (with fuzz only); used : which of these
    writes were read, at least in part; lost : where a write was overwritten before anything of the tensor was read;
    version : number of writes; fresh : elements written since the last look at all bits; was_read : by anybody;
    ordered_in : the no_reorder block of the last store (HBM only); groups : open matmul groups (PSUM only).
    """

    life: Life
    space: Space
    region: str
    dtype: DType
    shape: tuple[int, ...]
    array: Array | None = None
    written: NDArray[np.bool_] | None = None
    writer: NDArray[np.int32] | None = None
    used: NDArray[np.bool_] | None = None
    readonly: bool = False
    version: int = 0
    fresh: int = 0
    was_read: bool = False
    lost: str = ""
    ordered_in: int = 0
    groups: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def row(self) -> int:
        """Elements per partition on chip; of the whole tensor in HBM."""
        return self.elements if self.space == "hbm" else self.elements // self.shape[0]

    @property
    def element_bytes(self) -> int:
        """Bytes of an element; PSUM elements are 4 bytes wide whatever the format (arch guide)."""
        return 4 if self.space == "psum" else self.dtype.itemsize


class Core:
    """State of one kernel run; `index` is the number of the instruction being issued."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.trace = Trace(target=settings.target)
        self.lives: list[Life] = []
        self.files: dict[str, str] = {}
        self.loops: list[int] = []
        self.loop_numbers: dict[tuple[int, int], int] = {}
        self.no_reorder = 0
        self.no_reorder_seen = 0
        self.running = False
        self.arithmetic = settings.arithmetic
        self.strict = settings.strict
        self.fuzz = settings.fuzz is not None
        self.double = settings.storage == "float64"
        self.generator = np.random.default_rng(settings.fuzz)
        self.serials = 0
        self.reused: dict[int, list[int]] = {}
        self.position: dict[int, int] = {}
        self.inner_loops: dict[int, int] = {}

    @property
    def index(self) -> int:
        return len(self.trace.instructions)

    def place(self) -> str:
        return kernel_place(self.files)

    def full_place(self) -> str:
        return kernel_place(self.files, callers=True)

    def refuse(self, rule: str, done: str) -> Violation:
        return Violation(rule, done, self.full_place())

    def outside(self, done: str) -> NotInSubset:
        return NotInSubset(done, self.full_place())

    def issue(self, instruction: Instruction) -> None:
        self.trace.instructions.append(instruction)

    def declare(
        self, name: str, region: str, space: Space, dtype: DType, shape: tuple[int, ...], array: Array | None = None
    ) -> Storage:
        """New memory; `array` is given for kernel inputs, which are read only and written throughout."""
        given = array is not None
        held = held_as(dtype, self.settings.storage)
        loop = self.loops[-1] if self.loops else 0
        life = Life(self._serial(), name, space, 0, self.full_place(), self.index, self.index, loop)
        storage = Storage(life, space, region, dtype, shape)
        life.bytes = storage.row * storage.element_bytes
        if array is not None:
            storage.array = np.ascontiguousarray(array, dtype=held)
        elif self.arithmetic or (dtype.name == "int32" and space == "sbuf"):
            storage.array = self._garbage(shape, held)
        if not given:
            storage.written = np.zeros(shape, dtype=np.bool_)
        if self.fuzz:
            storage.writer = np.zeros(shape, dtype=np.int32)
            storage.used = np.ones(64, dtype=np.bool_)
        self.lives.append(life)
        return storage

    def enter_loop(self) -> int:
        """Opens a dynamic loop; a loop inside a loop keeps its number in later rounds of the outer one."""
        outer = self.loops[-1] if self.loops else 0
        order = self.inner_loops.get(outer, 0)
        self.inner_loops[outer] = order + 1
        loop = self.loop_numbers.setdefault((outer, order), len(self.loop_numbers) + 1)
        self.loops.append(loop)
        return loop

    def next_round(self, loop: int) -> None:
        """The body of a dynamic loop begins again: its declarations name the same buffers as in the first round."""
        self.position[loop] = 0
        self.inner_loops[loop] = 0

    def _serial(self) -> int:
        """A new number; in later rounds of a dynamic loop, the number the same declaration got in the first."""
        if self.loops:
            loop = self.loops[-1]
            known, at = self.reused.setdefault(loop, []), self.position.get(loop, 0)
            self.position[loop] = at + 1
            if at < len(known):
                return known[at]
            known.append(self.serials)
        self.serials += 1
        return self.serials - 1

    def _garbage(self, shape: tuple[int, ...], held: np.dtype[Any]) -> Array:
        """Uninitialised memory: random with fuzz, else NaN and 4; under strict reads of it are refused, so anything."""
        if self.fuzz:
            if held.kind == "f":
                return (self.generator.standard_normal(shape, dtype=np.float32) * np.float32(1e3)).astype(held)
            return self.generator.integers(0, 100, shape).astype(held)
        if self.strict:
            return np.empty(shape, dtype=held)
        return np.full(shape, np.nan if held.kind == "f" else 4, dtype=held)


def close_loop(core: Core, first: int) -> None:
    """The dynamic loop that began at instruction `first` has ended: everything it used lived throughout."""
    last = max(core.index - 1, first)
    for life in core.lives:
        if life.loop and life.born >= first:
            life.born, life.last_use = first, last
        elif first <= life.last_use <= last:
            life.last_use = last


def finish(core: Core) -> None:
    """Writes allocations and high-water marks into the trace.

    Raises Violation (sbuf-capacity, psum-banks) with the declaration that did not fit.
    """
    allocations: dict[int, Allocation] = {}
    for s in core.lives:
        known = allocations.get(s.serial)
        if known is not None:
            s.born, s.last_use = min(s.born, known.born), max(s.last_use, known.last_use)
        allocations[s.serial] = Allocation(s.serial, s.name, s.space, s.bytes, s.born, s.last_use, s.line)
    ordered = sorted(allocations.values(), key=lambda a: (a.born, a.tensor))
    core.trace.allocations = ordered
    limit = core.settings.sbuf_limit
    trace = core.trace
    trace.sbuf_high_water, trace.sbuf_peak_line = _most(ordered, "sbuf", limit, "sbuf-capacity", "bytes per partition")
    trace.psum_high_water, trace.psum_peak_line = _most(ordered, "psum", PSUM_BANKS, "psum-banks", "banks")


def _most(allocations: list[Allocation], space: Space, limit: int, rule: str, unit: str) -> tuple[int, str]:
    """Peak of the live ranges in one space and the declaration that reached it; PSUM tensors weigh one bank each."""
    line = ""
    ends: list[tuple[int, int]] = []
    alive = peak = 0
    for allocation in (a for a in allocations if a.space == space):
        weight = 1 if space == "psum" else allocation.bytes
        done = [end for end in ends if end[0] < allocation.born]
        if done:
            alive -= sum(size for _, size in done)
            ends = [end for end in ends if end[0] >= allocation.born]
        ends.append((allocation.last_use, weight))
        alive += weight
        if alive > peak:
            peak, line = alive, allocation.line
        if alive > limit:
            raise Violation(rule, f"{alive} {unit} alive here, limit {limit}", allocation.line)
    return peak, line
