"""Tensor views: a slice or an access pattern of one storage, as (offset, shape, strides) in elements.

Element [p, k, ...] of a view lies at offset + p strides[0] + k strides[1] + ...; on chip dimension 0 is the partition,
whose stride is the free size of the storage.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from dfmp2.backends.nki.interpreter.dtypes import Array, DType
from dfmp2.backends.nki.interpreter.members import REGIONS, Region
from dfmp2.backends.nki.interpreter.trace import Access

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core, Storage

LARGE_STRIDE_BYTES = 16
MOST_FREE_DIMENSIONS = 4


class Tensor:
    """A view of a storage; kernels see `shape`, `dtype`, `buffer`, slicing and `ap`, instructions the rest.

    start, partitions : on-chip partitions (0, 1 in HBM); elements : per partition (all in HBM);
    access : what a trace records; strided : innermost stride of 16 bytes or more; dynamic : offset known at run time
    only, then `also_reads` holds the access of the offset; checked : the engine rules hold (filled on first use).
    """

    __slots__ = (
        "_array",
        "_bits",
        "_children",
        "_core",
        "access",
        "also_reads",
        "checked",
        "dynamic",
        "elements",
        "offset",
        "one_zero",
        "partitions",
        "shape",
        "start",
        "storage",
        "strided",
        "strides",
        "whole",
    )

    def __init__(
        self, core: Core, storage: Storage, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
    ) -> None:
        self._core = core
        self.storage = storage
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self._array: Array | None = None
        self._bits: Array | None = None
        self._children: dict[tuple[object, ...], Tensor] = {}
        self.also_reads: tuple[Access, ...] = ()
        self.dynamic = False
        self.checked = False
        self.one_zero = (-1, False)
        count = prod(shape)
        self.whole = count == storage.elements
        item = storage.element_bytes
        if storage.space == "hbm":
            self.start, self.partitions, free, inner = 0, 1, offset, 0
        else:
            self.start, free, inner = offset // storage.row, offset % storage.row, 1
            self.partitions = shape[0]
        self.elements = count // self.partitions
        reach = sum((n - 1) * step for n, step in zip(shape[inner:], strides[inner:], strict=True)) + 1
        self.access = Access(
            storage.life.serial,
            storage.space,
            self.start,
            self.start + self.partitions,
            free * item,
            (free + reach) * item,
        )
        long = [step for n, step in zip(shape[inner:], strides[inner:], strict=True) if n > 1]
        self.strided = storage.space != "hbm" and bool(long) and long[-1] * item >= LARGE_STRIDE_BYTES

    @property
    def dtype(self) -> DType:
        return self.storage.dtype

    @property
    def buffer(self) -> Region:
        return REGIONS[self.storage.region]

    @property
    def free_shape(self) -> tuple[int, ...]:
        return self.shape if self.storage.space == "hbm" else self.shape[1:]

    def of(self, base: Array) -> Array:
        """This view of an array that has the storage's shape in C order."""
        item = base.itemsize
        steps = tuple(step * item for step in self.strides)
        return cast(
            Array, np.ndarray(self.shape, base.dtype, buffer=cast(Any, base), offset=self.offset * item, strides=steps)
        )

    def values(self) -> Array | None:
        """The elements (a view, shared memory), or None when only counting."""
        base = self.storage.array
        if base is None:
            return None
        if self._array is None:
            self._array = self.of(base)
        return self._array

    def bits(self, written: Array) -> Array:
        """The written bits of the elements (a view)."""
        if self._bits is None:
            self._bits = self.of(written)
        return self._bits

    def run(self) -> int:
        """Elements of the longest contiguous run that starts each row (innermost dimensions without gaps)."""
        length = 1
        for n, step in zip(reversed(self.free_shape), reversed(self.strides), strict=False):
            if n > 1 and step != length:
                break
            length *= n
        return length

    def __getitem__(self, key: object) -> Tensor:
        parts = key if isinstance(key, tuple) else (key,)
        name = tuple((p.start, p.stop, p.step) if isinstance(p, slice) else p for p in parts)
        try:
            known = self._children.get(name)
        except TypeError:
            known = None
        if known is None or any(type(p) is bool for p in parts):
            known = self._children[name] = self._sliced(parts)
        return known

    def _sliced(self, parts: tuple[object, ...]) -> Tensor:
        core, rank = self._core, len(self.shape)
        if len(parts) != rank:
            raise core.refuse("index", f"{len(parts)} indices for a tensor of rank {rank} {self.shape}")
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for dimension, (part, size, stride) in enumerate(zip(parts, self.shape, self.strides, strict=True)):
            if isinstance(part, slice):
                start, stop, step = self._bounds(part, size, dimension)
                count = -(-(stop - start) // step)
                shape.append(count)
                strides.append(stride * step)
                offset += start * stride
            else:
                position = self._number(part, "an index")
                if rank < 3 or not 0 < dimension < rank - 1:
                    raise core.refuse("integer-index", f"index {position} in dimension {dimension} of {self.shape}")
                if not 0 <= position < size:
                    raise core.refuse("index", f"index {position} in dimension {dimension} of {self.shape}")
                offset += position * stride
        view = Tensor(core, self.storage, tuple(shape), tuple(strides), offset)
        view.dynamic, view.also_reads = self.dynamic, self.also_reads
        view.whole = view.whole and self.whole
        return view

    def _bounds(self, part: slice, size: int, dimension: int) -> tuple[int, int, int]:
        start = 0 if part.start is None else self._number(part.start, "a slice start")
        stop = size if part.stop is None else self._number(part.stop, "a slice stop")
        step = 1 if part.step is None else self._number(part.step, "a slice step")
        if not 0 <= start < stop <= size or step < 1:
            raise self._core.refuse("index", f"{start}:{stop}:{step} in dimension {dimension} of {self.shape}")
        if step != 1 and dimension == 0 and self.storage.space != "hbm":
            raise self._core.refuse("partition-step", f"{start}:{stop}:{step} in the partition dimension")
        return start, stop, step

    def _number(self, value: object, what: str) -> int:
        if type(value) is not int:
            rule = "loop-index" if hasattr(value, "register_value") else "index"
            raise self._core.refuse(rule, f"{what} is {type(value).__name__}, not a Python int")
        return value

    def ap(
        self,
        pattern: object,
        offset: object = None,
        scalar_offset: object = None,
        vector_offset: object = None,
        indirect_dim: int = 0,
        dtype: object = None,
    ) -> Tensor:
        """Raw access pattern of the whole tensor (nki-aps.rst): see `access_patterns.view`."""
        from dfmp2.backends.nki.interpreter.access_patterns import view

        if vector_offset is not None or dtype is not None:
            raise self._core.outside("ap() with vector_offset or dtype")
        return view(self._core, self, pattern, offset, scalar_offset, indirect_dim)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") or name in Tensor.__slots__:
            raise AttributeError(name)
        raise self._core.outside(f"tensor attribute {name}")

    def _no_arithmetic(self, *_: object) -> NoReturn:
        raise self._core.refuse("tensor-arithmetic", "a Python operator or assignment on a tensor")

    def _no_condition(self, *_: object) -> NoReturn:
        raise self._core.refuse("tensor-conditional", "a tensor in a Python condition or comparison")

    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = __mul__ = __rmul__ = __imul__ = _no_arithmetic
    __truediv__ = __rtruediv__ = __itruediv__ = __matmul__ = __imatmul__ = __neg__ = __setitem__ = _no_arithmetic
    __iter__ = __len__ = __float__ = __int__ = __index__ = _no_arithmetic
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _no_condition
    __hash__ = object.__hash__


def whole(core: Core, storage: Storage) -> Tensor:
    """The view of a whole storage."""
    strides = [1]
    for size in reversed(storage.shape[1:]):
        strides.append(strides[-1] * size)
    return Tensor(core, storage, storage.shape, tuple(reversed(strides)), 0)
