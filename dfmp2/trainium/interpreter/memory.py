"""The simulated memory of one kernel run: buffers, views of them, rules for reads and writes, and the
trace: instructions in program order, and the buffers they used.

A view is a slice or an access pattern of one storage, as (offset, shape, strides) in elements:
element [p, k, ...] is at offset + p strides[0] + k strides[1] + ...; on chip, dimension 0 is the
partition, whose stride is the free size of the storage. A matmul group is the rectangle of PSUM
elements that one nc_matmul(accumulate=False) initialised; it stays open until another engine writes
into it or a later accumulate=False overlaps it.

    high water = max over instructions t of sum of bytes of all buffers with born <= t <= last use
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from dfmp2.trainium.interpreter.arithmetic import Array, DType, held_as
from dfmp2.trainium.interpreter.rules import (
    PSUM_BANK_BYTES,
    PSUM_BANKS,
    NotInSubset,
    Settings,
    Violation,
    kernel_place,
)
from dfmp2.trainium.interpreter.signatures import Engine, Region, Space

MOST_FREE_DIMENSIONS = 4
HBM_TENSOR = 2**31  # bytes


@dataclass(slots=True, eq=False)
class TileStorage:
    """The memory of one declared tensor; freed when the kernel drops its last view.

    life : its record in the trace;
    array : the elements, C order (None: counts only);
    written : a bit per element (None: all written);
    block : the no_reorder block of the last store, None outside of one (HBM only);
    groups : open matmul groups (PSUM only).
    """

    life: Allocation
    region: Region
    dtype: DType
    shape: tuple[int, ...]
    array: Array | None = None
    written: NDArray[np.bool_] | None = None
    readonly: bool = False
    block: object = None
    groups: list[Rectangle] = field(default_factory=list)

    @property
    def space(self) -> Space:
        return self.region.space

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def row(self) -> int:
        """Elements per partition on chip; of the whole tensor in HBM."""
        if self.space == "hbm":
            return self.elements
        return self.elements // self.shape[0]

    @property
    def element_bytes(self) -> int:
        """Bytes per element; PSUM elements always take 4 bytes, whatever the format (arch
        guide)."""
        return 4 if self.space == "psum" else self.dtype.itemsize


class Core:
    """State of one kernel run; `index` is the number of the current instruction, `block` its
    no_reorder block."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.trace = Trace()
        self.lives: list[Allocation] = []
        self.files: dict[str, str] = {}
        self.block: object = None

    @property
    def index(self) -> int:
        return len(self.trace.instructions)

    def refuse(self, rule: str, done: str) -> Violation:
        return Violation(rule, done, kernel_place(self.files))

    def outside(self, done: str) -> NotInSubset:
        return NotInSubset(done, kernel_place(self.files))

    def declare(
        self,
        name: str,
        region: Region,
        dtype: DType,
        shape: tuple[int, ...],
        array: Array | None = None,
        *,
        readonly: bool = False,
    ) -> TileStorage:
        """A new storage. readonly : a kernel input, fully initialised with `array` if known."""
        space = region.space
        held = held_as(dtype, self.settings.exact)
        here = kernel_place(self.files)
        life = Allocation(len(self.lives), name, space, 0, self.index, self.index, here)
        storage = TileStorage(life, region, dtype, shape, readonly=readonly)
        life.bytes = storage.row * storage.element_bytes
        if space == "hbm" and life.bytes > HBM_TENSOR:
            raise self.refuse("tensor-size", f"{name or 'a tensor'} of {life.bytes} bytes in HBM")
        if array is not None:
            storage.array = np.ascontiguousarray(array, dtype=held)
        elif self.settings.arithmetic and not readonly:
            storage.array = np.empty(shape, dtype=held)
        if not readonly:
            storage.written = np.zeros(shape, dtype=np.bool_)
        self.lives.append(life)
        return storage


def finish(core: Core) -> None:
    """Record allocations and high-water marks in the trace.

    Raises Violation (sbuf-capacity, sbuf-moved, psum-banks) with the declaration that did not fit.
    """
    trace, limit = core.trace, core.settings.sbuf_limit
    trace.allocations = ordered = sorted(core.lives, key=lambda a: (a.born, a.tensor))
    trace.sbuf_high_water = _most(ordered, "sbuf", limit, "sbuf-capacity", "bytes per partition")
    moved = [a for a in ordered if a.moved]
    trace.moved_high_water = _most(
        moved, "sbuf", core.settings.moved_limit, "sbuf-moved", "bytes per partition"
    )
    trace.psum_high_water = _most(ordered, "psum", PSUM_BANKS, "psum-banks", "banks")
    _check_addresses(ordered)
    ends = [one.address[3] for one in ordered if one.address is not None and one.space == "sbuf"]
    trace.sbuf_high_water = max([trace.sbuf_high_water, *ends])


def _check_addresses(allocations: list[Allocation]) -> None:
    """Raise if tensors alive at the same time overlap, or a kernel places only some of its tensors;
    in order of declaration."""
    on_chip = [one for one in allocations if one.space != "hbm"]
    placed = [(one, one.address) for one in on_chip if one.address is not None]
    if placed and len(placed) < len(on_chip):
        lost = next(one for one in on_chip if one.address is None)
        done = f"an address here, and none of {lost.name or 'a tensor'} of {lost.line}"
        raise Violation("address", done, placed[0][0].line)
    living: list[tuple[Allocation, Rectangle]] = []
    for one, address in placed:
        living = [other for other in living if other[0].last_use >= one.born]
        for other, place in living:
            if other.space == one.space and overlap(address, place):
                done = f"it lies where {other.name or 'a tensor'} of {other.line} is still alive"
                raise Violation("address", done, one.line)
        living.append((one, address))


def _most(allocations: list[Allocation], space: Space, limit: int, rule: str, unit: str) -> int:
    """Peak memory use in one space; PSUM tensors count as one bank each."""
    living: list[tuple[int, int]] = []  # last use, weight
    peak = 0
    for allocation in (a for a in allocations if a.space == space):
        living = [one for one in living if one[0] >= allocation.born]
        weight = allocation.bytes
        if space == "psum":
            weight = -(-allocation.bytes // PSUM_BANK_BYTES)
        living.append((allocation.last_use, weight))
        alive = sum(weight for _, weight in living)
        if alive > limit:
            raise Violation(rule, f"{alive} {unit} alive here, limit {limit}", allocation.line)
        peak = max(peak, alive)
    return peak


class Tensor:
    """A view of a storage; kernels see `shape`, `dtype`, `buffer`, slicing and `ap`, instructions
    the rest.

    start, partitions : on-chip partitions (0, 1 in HBM); elements : per partition (all in HBM);
    rectangle : the part of the storage that it covers.
    """

    __slots__ = (
        "_core",
        "elements",
        "offset",
        "partitions",
        "rectangle",
        "shape",
        "start",
        "storage",
        "strides",
        "whole",
    )

    def __init__(
        self,
        core: Core,
        storage: TileStorage,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
    ) -> None:
        self._core = core
        self.storage = storage
        self.shape = shape
        self.strides = strides
        self.offset = offset
        count = prod(shape)
        self.whole = count == storage.elements
        item = storage.element_bytes
        if storage.space == "hbm":
            self.start, self.partitions, free, inner = 0, 1, offset, 0
        else:
            self.start, free, inner = offset // storage.row, offset % storage.row, 1
            self.partitions = shape[0]
        self.elements = count // self.partitions
        reach = (
            sum((n - 1) * step for n, step in zip(shape[inner:], strides[inner:], strict=True)) + 1
        )
        bytes_ = free * item, (free + reach) * item
        self.rectangle: Rectangle = (self.start, self.start + self.partitions, *bytes_)

    @property
    def dtype(self) -> DType:
        return self.storage.dtype

    @property
    def buffer(self) -> Region:
        return self.storage.region

    def of(self, base: Array) -> Array:
        """This view applied to an array with the storage's shape in C order."""
        item = base.itemsize
        return cast(
            Array,
            np.ndarray(
                self.shape,
                base.dtype,
                buffer=cast(Any, base),
                offset=self.offset * item,
                strides=tuple(step * item for step in self.strides),
            ),
        )

    def values(self) -> Array | None:
        """The elements (a view, shared memory), or None when only counting."""
        if self.storage.array is None:
            return None
        return self.of(self.storage.array)

    def places(self) -> NDArray[np.int64]:
        """Indices of the elements in the storage."""
        found = np.array([self.offset])
        for size, step in zip(self.shape, self.strides, strict=True):
            found = (found[:, None] + step * np.arange(size)).ravel()
        return found

    def reshape(self, shape: object) -> Tensor:
        """The same elements in another shape; on chip, partitions are unchanged."""
        core = self._core
        sizes = positive_sizes(shape, core.refuse)
        on_chip = self.storage.space != "hbm"
        if prod(sizes) != prod(self.shape) or (on_chip and sizes[0] != self.shape[0]):
            raise core.refuse("reshape", f"{self.shape} to {sizes}")
        free = self.shape
        if on_chip:
            free = self.shape[1:]
        if self.strides[-len(free) :] != contiguous(free):
            raise core.refuse("reshape", f"{self.shape}, whose rows are not contiguous")
        strides = contiguous(sizes)
        if on_chip:
            strides = (self.storage.row, *strides[1:])
        view = Tensor(core, self.storage, sizes, strides, self.offset)
        view.whole = self.whole
        return view

    def __getitem__(self, key: object) -> Tensor:
        parts = key if isinstance(key, tuple) else (key,)
        core, rank = self._core, len(self.shape)
        if len(parts) != rank:
            raise core.refuse(
                "index", f"{len(parts)} indices for a tensor of rank {rank} {self.shape}"
            )
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for dimension, (part, size, stride) in enumerate(
            zip(parts, self.shape, self.strides, strict=True)
        ):
            if isinstance(part, slice):
                start, stop, step = self._bounds(part, size, dimension)
                shape.append(-(-(stop - start) // step))
                strides.append(stride * step)
                offset += start * stride
            else:
                position = self._number(part, "an index")
                if rank < 3 or not 0 < dimension < rank - 1:
                    raise core.refuse(
                        "integer-index",
                        f"index {position} in dimension {dimension} of {self.shape}",
                    )
                if not 0 <= position < size:
                    raise core.refuse(
                        "index", f"index {position} in dimension {dimension} of {self.shape}"
                    )
                offset += position * stride
        view = Tensor(core, self.storage, tuple(shape), tuple(strides), offset)
        view.whole = view.whole and self.whole
        return view

    def _bounds(self, part: slice, size: int, dimension: int) -> tuple[int, int, int]:
        start = self._number(part.start, "a slice start", 0)
        stop = self._number(part.stop, "a slice stop", size)
        step = self._number(part.step, "a slice step", 1)
        if not 0 <= start < stop <= size or step < 1:
            raise self._core.refuse(
                "index", f"{start}:{stop}:{step} in dimension {dimension} of {self.shape}"
            )
        if step != 1 and dimension == 0 and self.storage.space != "hbm":
            raise self._core.refuse(
                "partition-step", f"{start}:{stop}:{step} in the partition dimension"
            )
        return start, stop, step

    def _number(self, value: object, what: str, left_out: int | None = None) -> int:
        if value is None and left_out is not None:
            return left_out
        if type(value) is not int:
            raise self._core.refuse("index", f"{what} is {type(value).__name__}, not a Python int")
        return value

    def ap(
        self,
        pattern: object,
        offset: object = 0,
        scalar_offset: object = None,
        vector_offset: object = None,
        dtype: object = None,
    ) -> Tensor:
        """Raw access pattern of the whole tensor (nki-aps.rst)."""
        core, storage = self._core, self.storage
        if scalar_offset is not None or vector_offset is not None or dtype is not None:
            raise core.outside("ap() with scalar_offset, vector_offset or dtype")
        if self.shape != storage.shape or self.strides != contiguous(self.shape):
            raise core.refuse(
                "ap-base",
                f"ap() on a view of shape {self.shape} of a tensor of shape {storage.shape}",
            )
        if type(offset) is not int or offset < 0:
            raise core.refuse("ap-pattern", f"offset={offset!r}: an int from 0 on expected")
        pairs = _pairs(core, pattern)
        shape = tuple(n for _, n in pairs)
        strides = tuple(step for step, _ in pairs)
        if storage.space != "hbm" and strides[0] != storage.row:
            raise core.refuse(
                "ap-pattern",
                f"first stride {strides[0]} on a tensor with {storage.row} elements per partition",
            )
        start = offset
        last = start + sum((n - 1) * step for step, n in pairs)
        free = sum((n - 1) * step for step, n in pairs[1:])
        fits = storage.space == "hbm" or start % storage.row + free < storage.row
        if start < 0 or last >= storage.elements or not fits:
            raise core.refuse(
                "ap-pattern", f"elements {start} to {last} of a tensor of shape {storage.shape}"
            )
        view = type(self)(core, storage, shape, strides, start)
        view.whole = view.whole and strides == contiguous(shape)
        return view

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") or name in Tensor.__slots__:
            raise AttributeError(name)
        raise self._core.outside(f"tensor attribute {name}")

    def _no_arithmetic(self, *_: object) -> NoReturn:
        raise self._core.refuse("tensor-arithmetic", "a Python operator or assignment on a tensor")

    def _no_condition(self, *_: object) -> NoReturn:
        raise self._core.refuse(
            "tensor-conditional", "a tensor in a Python condition or comparison"
        )

    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = __mul__ = __rmul__ = (
        __imul__
    ) = _no_arithmetic
    __truediv__ = __rtruediv__ = __itruediv__ = __matmul__ = __imatmul__ = __neg__ = __setitem__ = (
        _no_arithmetic
    )
    __iter__ = __len__ = __float__ = __int__ = __index__ = _no_arithmetic
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _no_condition
    __hash__ = object.__hash__


def positive_sizes(shape: object, refuse: Callable[[str, str], Violation]) -> tuple[int, ...]:
    """The sizes of a shape: positive Python ints."""
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise refuse("tensor-shape", f"shape {shape!r}")
    return sizes


def whole(core: Core, storage: TileStorage) -> Tensor:
    """The view of a whole storage."""
    return Tensor(core, storage, storage.shape, contiguous(storage.shape), 0)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of contiguous elements in C order."""
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


def _pairs(core: Core, pattern: object) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    if not isinstance(pattern, (list, tuple)) or not 2 <= len(pattern) <= 5:
        raise core.refuse(
            "ap-pattern", f"pattern {pattern!r}: 2 to 5 [stride, count] pairs expected"
        )
    for pair in pattern:
        ints = isinstance(pair, (list, tuple)) and [type(part) for part in pair] == [int, int]
        if not ints or pair[0] < 0 or pair[1] < 1:
            raise core.refuse("ap-pattern", f"pair {pair!r}: stride >= 0 and count >= 1 expected")
        pairs.append((pair[0], pair[1]))
    return pairs


def describe(tensor: Tensor) -> str:
    """Name and shape of a view for messages."""
    life = tensor.storage.life
    return (
        f"{life.name or 'tensor'} {tensor.shape} of {life.space} (declared at "
        f"{life.line or 'the call'})"
    )


def note_read(core: Core, tensor: Tensor) -> None:
    """Record that an instruction reads the elements of `tensor`."""
    storage = tensor.storage
    storage.life.last_use = core.index
    if storage.written is not None and not tensor.of(storage.written).all():
        raise core.refuse(
            "uninitialised-read", f"read of {describe(tensor)}: some elements were never written"
        )
    if storage.space == "hbm" and not storage.readonly and not _in_order(core, storage):
        raise core.refuse("hbm-order", f"load from {describe(tensor)}, which this kernel stores")


def note_write(core: Core, tensor: Tensor, *, matmul: bool = False) -> None:
    """Record that an instruction writes the elements of `tensor`."""
    storage = tensor.storage
    storage.life.last_use = core.index
    if storage.readonly:
        raise core.refuse("input-written", f"write into the kernel input {storage.life.name}")
    if storage.space == "hbm":
        again = storage.written is None or tensor.of(storage.written).any()
        if again and not _in_order(core, storage):
            raise core.refuse("hbm-order", f"second store to {describe(tensor)}")
        storage.block = core.block
    elif storage.groups and not matmul:
        storage.groups = [group for group in storage.groups if not overlap(group, tensor.rectangle)]
    if tensor.whole:
        storage.written = None
    elif storage.written is not None:
        tensor.of(storage.written)[...] = True


def _in_order(core: Core, storage: TileStorage) -> bool:
    """Whether the last store is in the same no_reorder block as the current instruction."""
    return core.block is not None and core.block is storage.block


def open_group(tensor: Tensor) -> None:
    """For nc_matmul(accumulate=False): start a group with this rectangle and close groups that it
    overlaps."""
    storage = tensor.storage
    storage.groups = [group for group in storage.groups if not overlap(group, tensor.rectangle)]
    storage.groups.append(tensor.rectangle)


def continues_group(core: Core, tensor: Tensor) -> bool:
    """For nc_matmul without accumulate: whether it adds to an open group; raises if it overlaps one
    only partly."""
    own = tensor.rectangle
    met = [group for group in tensor.storage.groups if overlap(group, own)]
    if len(met) > 1 or not all(covers(group, own) for group in met):
        raise core.refuse(
            "matmul-accumulate", f"accumulate left out on {describe(tensor)}, written in part"
        )
    return bool(met)


def require_group(core: Core, tensor: Tensor) -> None:
    """For nc_matmul(accumulate=True): raise unless its rectangle lies inside one open group."""
    tensor.storage.life.last_use = core.index
    written = tensor.storage.written
    if written is not None and not tensor.of(written).all():
        raise core.refuse(
            "matmul-group",
            f"accumulate=True on {describe(tensor)}: some elements were never written",
        )
    if not any(covers(group, tensor.rectangle) for group in tensor.storage.groups):
        raise core.refuse(
            "matmul-group", f"accumulate=True on {describe(tensor)}: no open matmul group covers it"
        )


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
