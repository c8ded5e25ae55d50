"""Kernels that others wrote, on the simulated NeuronCore: their imports, calls and idioms in terms of our instructions.

Public code is written in two dialects. In the newer one (`nki`) instructions take `dst`, by position or by name; in the
older one (`neuronxcc.nki`) they return a fresh tile, tiles are computed with like arrays, indices are arrays, and a
kernel runs once for every place of a grid. Here

    r = nisa.f(x, ...)     allocates r and issues f(dst=r, ...)   x + y, nl.add(x, y)   tensor_tensor, tensor_scalar
    x[i, j]  (arrays)      a view, where i and j are affine       nl.load, nl.store     dma_copy
    y += nc_matmul(a, b)   accumulates in y                       affine_range, ...     range

so that every rule of the interpreter holds for kernels that were not written for it, but those in `Settings.waived`.
Names that stand for nothing here may be imported and passed on; using them is refused (not-in-subset).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import operator
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, cast

import numpy as np

from dfmp2.errors import InputError
from dfmp2.trainium.interpreter import instructions
from dfmp2.trainium.interpreter.arithmetic import BINARY, DTYPES, UNARY, Array, DType, working
from dfmp2.trainium.interpreter.language import functions
from dfmp2.trainium.interpreter.memory import (
    Core,
    Storage,
    Tensor,
    continues_group,
    finish,
    note_read,
    whole,
)
from dfmp2.trainium.interpreter.rules import PARTITIONS, PSUM_BANK_BYTES, Settings, Violation
from dfmp2.trainium.interpreter.run import STRAY_ERRORS, kernel_code
from dfmp2.trainium.interpreter.signatures import (
    ENUMERATIONS,
    INSTRUCTIONS,
    NOT_TAKEN,
    REGIONS,
    Member,
    Operator,
    Region,
    defaults,
    parameters,
)
from dfmp2.trainium.interpreter.trace import Trace

RELEASE: Final = "0.6.0"  # the only one with dynamic_range and fori_loop
PACKAGES = ("nki", "neuronxcc")
OPTIONAL = (
    "torch",
    "torch_xla",
    "jax",
    "ml_dtypes",
    "neuronx_distributed",
)  # imported beside kernels, not by them
MORE_FORMATS = ("int8", "int16", "uint16", "uint32", "bool")
FORMATS = DTYPES | {
    name: DType(name, np.dtype(name).itemsize, np.dtype(name).type) for name in MORE_FORMATS
}
REDUCTIONS = {"sum": "add", "max": "maximum", "min": "minimum"}
OWN = {  # instructions that only kernels of others call
    "nc_transpose": ("dst", "data"),
    "tensor_tensor_scan": ("dst", "data0", "data1", "initial", "op0", "op1"),
}
Generation = IntEnum("Generation", {"gen2": 2, "gen3": 3, "gen4": 4})  # nisa.nc_version
Sizes = tuple[int, ...]
Box = tuple[slice, ...]


class Arithmetic:
    """Python operators on tiles, as functions of `nki.language`."""

    __slots__ = ()
    __array_ufunc__ = None  # NumPy's numbers leave it to us


for _symbol, _name in (
    ("add", "add"),
    ("sub", "subtract"),
    ("mul", "multiply"),
    ("truediv", "divide"),
):
    setattr(Arithmetic, f"__{_symbol}__", lambda a, b, name=_name: a._core.binary(name, a, b))
    setattr(Arithmetic, f"__r{_symbol}__", lambda a, b, name=_name: a._core.binary(name, b, a))
    setattr(Arithmetic, f"__i{_symbol}__", lambda a, b, name=_name: a._core.change(name, a, b))


class Tile(Arithmetic, Tensor):
    """A tensor of a kernel of others: indexed like an array, by integers, slices, `...` and index arrays."""

    __slots__ = ()
    _core: Others
    __eq__ = object.__eq__  # type: ignore[assignment]  # kernels compare arguments with None
    __ne__ = object.__ne__  # type: ignore[assignment]
    __hash__ = object.__hash__

    def view(self, shape: Sizes, strides: Sizes, offset: int) -> Tile:
        """Another view of the storage. On chip dimension 0 is the partition, and there are at least two."""
        if self.storage.space != "hbm":
            if strides[0] != self.storage.row and shape[0] != 1:
                raise self._core.refuse(
                    "partition-step", f"a view of {self.shape} whose rows are no partitions"
                )
            shape = shape + (1,) * (2 - len(shape))
            strides = (self.storage.row, *strides[1:]) + (1,) * (2 - len(strides))
        new = Tile(self._core, self.storage, shape or (1,), strides or (1,), offset)
        new.whole = new.whole and self.whole and 0 not in strides
        return new

    def part(self, box: Box | None) -> Tile:
        return self if box is None else cast(Tile, self[box])

    def __getitem__(self, key: object) -> Any:
        parts = list(key) if isinstance(key, tuple) else [key]
        if any(isinstance(part, np.ndarray) and part.ndim for part in parts):
            return Indexed(self, parts)
        at = next((k for k, part in enumerate(parts) if part is Ellipsis), len(parts))
        parts[at : at + 1] = [slice(None)] * (len(self.shape) - len(parts) + (at < len(parts)))
        if len(parts) != len(self.shape):
            raise self._core.refuse(
                "index", f"{len(parts)} indices for a tensor of shape {self.shape}"
            )
        shape, strides, offset = list[int](), list[int](), self.offset
        for k, (part, size, stride) in enumerate(zip(parts, self.shape, self.strides, strict=True)):
            if not isinstance(part, slice):
                place = self._number(_plain(part), "an index")
                place += size if place < 0 else 0
                part, kept = slice(place, place + 1), k == 0 and self.storage.space != "hbm"
            else:
                part, kept = slice(*map(_plain, (part.start, part.stop, part.step))), True
            start, stop, step = self._bounds(part, size, k)
            offset += start * stride
            if kept:
                shape.append(-(-(stop - start) // step))
                strides.append(stride * step)
        return self.view(tuple(shape), tuple(strides), offset)

    def __setitem__(self, key: object, value: object) -> None:  # type: ignore[override]
        self._core.copy(self[key], value)

    def reshape(self, *sizes: Any) -> Tile:
        """The same elements in another shape; on chip the partitions stay."""
        if isinstance(sizes[0], (tuple, list)):
            shape = tuple(sizes[0])
        else:
            shape = sizes
        if self.storage.space != "hbm" and shape[0] != self.shape[0]:
            raise self._core.refuse(
                "partition-step", f"reshape of {self.shape} to {shape}: partitions become columns"
            )
        probe = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), self.shape, self.strides)
        try:
            strides = probe.reshape(shape, copy=False).strides
        except ValueError as error:
            raise self._core.refuse(
                "access-pattern", f"reshape of {self.shape} to {shape}: {error}"
            ) from error
        return self.view(shape, strides, self.offset)

    def flat(self) -> Tile:
        """[P, elements], as the Tensor Engine takes it."""
        if len(self.shape) == 2:
            return self
        return self.reshape(self.shape[0], self.elements)

    def broadcast_to(self, shape: Sequence[int]) -> Tile:
        return self._core.spread(self, tuple(shape))

    def ap(self, pattern: object, offset: object = 0, *rest: Any, **given: Any) -> Tile:
        """The access pattern; the offset may be left out, and the number format be repeated."""
        if given.get("dtype") == self.dtype:
            del given["dtype"]
        return cast(Tile, super().ap(pattern, offset or 0, *rest, **given))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"tensor attribute {name}")


class Lazy(Arithmetic, ABC):
    """What becomes a tile when it is used."""

    _core: Others

    @abstractmethod
    def tile(self) -> Tile:
        """The tile."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tile(), name)

    def __getitem__(self, key: object) -> Any:
        return self.tile()[key]


class Product(Lazy):
    """nc_matmul without dst: added to a tile by +=, else written to a fresh one."""

    def __init__(self, core: Others, operands: dict[str, Any]) -> None:
        self._core, self._operands, self._made = core, operands, cast("Tile | None", None)

    def into(self, dst: Tile, accumulate: bool) -> None:
        issue(self._core, "nc_matmul", {**self._operands, "dst": dst, "accumulate": accumulate})

    def tile(self) -> Tile:
        if self._made is None:
            sizes = self._operands["stationary"].elements, self._operands["moving"].elements
            self._made = self._core.new(sizes, "float32", "psum")
            self.into(self._made, False)
        return self._made


class Indexed(Lazy):
    """A tensor indexed by arrays: the view start + sum over dimensions of index times stride, inside a mask."""

    def __init__(self, base: Tile, parts: list[object]) -> None:
        self._core, self._base = base._core, base
        if len(parts) != len(base.shape) or any(isinstance(part, slice) for part in parts):
            raise base._core.outside("index arrays for some dimensions only")
        offsets = [
            np.asarray(part) * stride for part, stride in zip(parts, base.strides, strict=True)
        ]
        self._offsets: Array = sum(offsets, np.array(base.offset))
        self.shape, self.dtype = self._offsets.shape, base.dtype

    def tile(self) -> Tile:
        return self.part(None)

    def part(self, box: Box | None) -> Tile:
        offsets = self._offsets if box is None else self._offsets[box]
        first, sizes = int(offsets.flat[0]), offsets.shape
        steps = [
            int(offsets.take(1, k).flat[0]) - first if n > 1 else 1 for k, n in enumerate(sizes)
        ]
        if not np.array_equal(offsets - first, np.tensordot(steps, np.indices(sizes), 1)):
            raise self._core.refuse(
                "access-pattern", f"index arrays of shape {sizes} are not affine"
            )
        if offsets.min() < 0 or offsets.max() >= self._base.storage.elements:
            raise self._core.refuse(
                "index", f"elements {offsets.min()} to {offsets.max()} of {self._base.shape}"
            )
        return self._base.view(sizes, tuple(steps), first)


class Blocks:
    """A tensor of the older dialect whose partition dimension is not the first: a tile for every place before it."""

    def __init__(self, shape: Sizes, lead: int, make: Callable[[], Tile]) -> None:
        self.shape, self._lead = shape, lead
        self.tiles = {place: make() for place in itertools.product(*map(range, shape[:lead]))}

    def _find(self, key: object) -> tuple[Tile, object]:
        parts = key if isinstance(key, tuple) else (key,)
        return self.tiles[tuple(map(_plain, parts[: self._lead]))], parts[self._lead :] or Ellipsis

    def __getitem__(self, key: object) -> Any:
        tile, rest = self._find(key)
        return tile[rest]

    def __setitem__(self, key: object, value: object) -> None:
        tile, rest = self._find(key)
        tile[rest] = value


class PartitionSize(int):
    """nl.par_dim(n): the size of the partition dimension."""


@dataclass(frozen=True, slots=True)
class Function(Operator):
    """A name of `nki.language` that is an operator, op=nl.add, and a function, nl.add(x, y)."""

    call: Callable[..., Any]

    def __call__(self, *positional: Any, **given: Any) -> Any:
        return self.call(*positional, **given)


class Unknown:
    """A name that stands for nothing here."""

    def __init__(self, core: Others, name: str) -> None:
        self._core, self.name = core, name

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(self._core, f"{self.name}.{name}")

    def __call__(self, *positional: Any, **_: Any) -> Any:
        if self._core.running:
            raise self._core.outside(self.name)
        return positional[0] if positional and callable(positional[0]) else self  # a decorator


class Others(Core):
    """State of a run. grid, program : places, and the one at work; shared : tensors that all places write."""

    def __init__(self, settings: Settings, root: Path) -> None:
        super().__init__(settings)
        self.files = Below(root)
        self.grid: Sizes = ()
        self.program: Sizes = ()
        self.shared: list[Tile] = []
        self.declared = 0

    def new(self, shape: Sequence[int], dtype: object, buffer: object = "sbuf") -> Tile:
        """Fresh memory; for a tensor that the grid shares, the same at every place of it."""
        region = buffer
        if isinstance(buffer, str):
            region = REGIONS.get(buffer)
        if not isinstance(region, Region):
            raise self.refuse("buffer-object", f"buffer={buffer!r}")
        if region.name == "shared_hbm" and self.declared < len(self.shared):
            self.declared += 1
            return self.shared[self.declared - 1]
        sizes = tuple(map(int, shape)) + ((1,) * (2 - len(shape)) if region.space != "hbm" else ())
        if region.space != "hbm" and sizes[0] > PARTITIONS:
            raise self.refuse("partition-count", f"{sizes[0]} partitions in shape {sizes}")
        tile = self.tensor(self.declare("", region, self.format(dtype), sizes))
        if region.space == "psum" and tile.storage.life.bytes > PSUM_BANK_BYTES:
            raise self.refuse(
                "psum-bank", f"{tile.storage.life.bytes} bytes per partition in shape {sizes}"
            )
        if region.name == "shared_hbm":
            self.shared.append(tile)
            self.declared += 1
        return tile

    def tensor(self, storage: Storage) -> Tile:
        return Tile(self, storage, storage.shape, whole(self, storage).strides, 0)

    def argument(self, name: str, value: object) -> object:
        """An argument of a kernel: arrays become tensors in HBM."""
        if not isinstance(value, np.ndarray):
            return value
        dtype = self.format(
            {"float64": "float32", "int64": "int32"}.get(value.dtype.name, value.dtype)
        )
        array = np.array(value, dtype.held)  # kernels may write their arguments
        return self.tensor(
            self.declare(name, REGIONS["shared_hbm"], dtype, array.shape, array, readonly=True)
        )

    def format(self, dtype: Any) -> DType:
        """The number format that a kernel names by an nl object, a NumPy type or a string."""
        if isinstance(dtype, DType):
            return dtype
        try:
            return FORMATS[dtype if isinstance(dtype, str) else np.dtype(dtype).name]
        except (KeyError, TypeError, ValueError) as error:
            raise self.refuse("tensor-dtype", f"dtype={getattr(dtype, 'name', dtype)}") from error

    def box(self, mask: object, shape: Sizes) -> Box | None:
        """The part of an operand where its mask holds."""
        if mask is None:
            return None
        held = np.broadcast_to(np.asarray(mask), shape)
        places = np.nonzero(held)
        if held.any():
            box = tuple(slice(int(p.min()), int(p.max()) + 1) for p in places)
        else:
            box = ()
        if not box or not held[box].all():
            raise self.outside("a mask that leaves nothing, or no box")
        return box

    def tile(self, value: object) -> Any:
        """A tile from what stands for one, anything else as it is."""
        return value.tile() if isinstance(value, Lazy) else value

    def copy(self, target: Any, value: Any) -> None:
        """target[...] = value."""
        out, value = self.tile(target), self.tile(value)
        if not isinstance(value, Tensor):
            return issue(self, "memset", {"dst": out, "value": value})
        if value.storage is out.storage and (value.offset, value.strides) == (
            out.offset,
            out.strides,
        ):
            return None  # what an augmented assignment leaves
        if prod(value.shape) != prod(out.shape):
            value = self.spread(value, out.shape)
        moves = "hbm" in (value.storage.space, out.storage.space)
        return issue(self, "dma_copy" if moves else "tensor_copy", {"dst": out, "src": value})

    def change(self, name: str, target: Any, value: Any) -> Any:
        """target op= value; products accumulate in PSUM, where the first may overwrite zeros."""
        out = self.tile(target)
        if isinstance(value, Product) and out.storage.space == "psum" and name == "add":
            going_on, held = continues_group(self, out), out.values()
            if not going_on and held is not None and held.any():
                raise self.refuse("matmul-group", "a product is added to other numbers in PSUM")
            value.into(out, going_on)
        else:
            self.binary(name, out, value, out=out)
        return target

    def spread(self, tile: Any, shape: Sizes) -> Tile:
        """A view that repeats elements; a row is copied to all partitions."""
        tile = self.tile(tile)
        missing = len(shape) - len(tile.shape)
        if tile.storage.space != "hbm" and tile.shape[0] == 1 < shape[0]:
            wide = self.new((shape[0], *tile.shape[1:]), tile.dtype)
            note_read(self, tile)
            instructions.store(
                self, wide, np.broadcast_to(working(tile.values(), self.double), wide.shape)
            )
            instructions.issue(self, "partition_broadcast", "gpsimd", wide, (tile,))
            tile = wide
        sizes = tile.shape[:1] + (1,) * missing + tile.shape[1:]
        strides = tile.strides[:1] + (0,) * missing + tile.strides[1:]
        if missing < 0 or any(n not in (1, m) for n, m in zip(sizes, shape, strict=False)):
            raise self.refuse("element-count", f"{tile.shape} as {shape}")
        steps = tuple(
            0 if n < m else step for n, m, step in zip(sizes, shape, strides, strict=True)
        )
        return cast(Tile, tile.view(shape, steps, tile.offset))

    def binary(
        self,
        name: str,
        x: Any,
        y: Any,
        *,
        dtype: object = None,
        mask: object = None,
        out: Any = None,
    ) -> Any:
        """x op y of tiles and numbers, with NumPy's broadcasting."""
        x, y = self.tile(x), self.tile(y)
        tensors = [value for value in (x, y) if isinstance(value, Tensor)]
        if not tensors:
            return float(BINARY[name](np.float64(x), np.float64(y)))  # type: ignore[arg-type]
        if out is None:
            rank = max(len(one.shape) for one in tensors)
            shapes = [
                one.shape[:1] + (1,) * (rank - len(one.shape)) + one.shape[1:] for one in tensors
            ]
            widest = max(
                (one.dtype for one in tensors), key=lambda one: (one.floating, one.itemsize)
            )
            out = self.new([max(sizes) for sizes in zip(*shapes, strict=True)], dtype or widest)
        box = self.box(mask, out.shape)
        turned = not isinstance(x, Tensor) or (
            x.elements == 1 and isinstance(y, Tensor) and y.elements > 1
        )
        x, y = (y, x) if turned else (x, y)
        x = self.spread(x, out.shape).part(box)
        if isinstance(y, Tensor) and y.elements > 1:
            y = self.spread(y, out.shape).part(box)
            if x.storage.space == y.storage.space == "psum":
                y = self.copied(y)
            else:
                y = y
            first, second = (y, x) if turned else (x, y)
            issue(
                self,
                "tensor_tensor",
                {"dst": out.part(box), "data1": first, "data2": second, "op": name},
            )
            return out
        if isinstance(y, Tensor):
            y = self.spread(y.flat(), (out.shape[0], 1)).part(box and (box[0], slice(None)))
            if y.dtype.name == "float32":
                y = y
            else:
                y = self.copied(y, "float32")
        given = {"dst": out.part(box), "data": x, "op0": name, "operand0": y, "reverse0": turned}
        issue(self, "tensor_scalar", given)
        return out

    def copied(self, x: Any, dtype: object = None, mask: object = None) -> Tile:
        """A fresh tile in SBUF with the elements of x."""
        x = self.tile(x)
        return cast(Tile, call(self, "tensor_copy", x, dtype=dtype or x.dtype, mask=mask))

    def unary(self, name: str, x: Any, **given: Any) -> Tile:
        """f(x), on the Scalar Engine but for reciprocals."""
        if name == "reciprocal":
            return cast(Tile, call(self, "reciprocal", x, **given))
        return cast(Tile, call(self, "activation", name, x, **given))

    def reduced(
        self, name: str, x: Any, axis: object, *, keepdims: bool = False, **given: Any
    ) -> Tile:
        """The sum, largest or smallest over free axes."""
        x = self.tile(x)
        axes = _axes(axis, x)
        box = self.box(given.pop("mask", None), x.shape)
        out = _reduced(self, x, axes, keepdims, given.get("dtype"))
        sides = enumerate(box or ())
        target = out.part(
            box
            and tuple(
                slice(0, 1) if k in axes else s for k, s in sides if keepdims or k not in axes
            )
        )
        issue(self, "tensor_reduce", {"dst": target, "data": x.part(box), "op": name, "axis": axes})
        return out

    def load(self, src: Any, *, mask: object = None, dtype: object = None) -> Tile:
        out, box = self.new(src.shape, dtype or src.dtype), self.box(mask, src.shape)
        issue(self, "dma_copy", {"dst": out.part(box), "src": src.part(box)})
        return out

    def store(self, dst: Any, value: Any, *, mask: object = None) -> None:
        value = self.tile(value)
        value = (
            self.copied(value) if value.storage.space == "psum" else value
        )  # which transfers do not reach
        box = self.box(mask, dst.shape)
        issue(self, "dma_copy", {"dst": dst.part(box), "src": value.part(box)})

    def load_transposed(self, src: Any) -> Tile:
        src = self.tile(src)
        return self.load(src.view(src.shape[::-1], src.strides[::-1], src.offset))

    def transposed(self, x: Any) -> Tile:
        return self.copied(call(self, "nc_transpose", x))

    def matmul(self, x: Any, y: Any, transpose_x: bool = False) -> Any:
        return call(
            self, "nc_matmul", self.tile(x) if transpose_x else self.transposed(x), self.tile(y)
        )

    def ndarray(self, shape: Any, dtype: object, buffer: object = None, **_: object) -> Any:
        """Fresh memory, in SBUF where nothing else is said; a tile for every place of dimensions before par_dim."""
        sizes = tuple(shape)
        lead = next((k for k, size in enumerate(sizes) if isinstance(size, PartitionSize)), 0)
        make = partial(self.new, sizes[lead:], dtype, "sbuf" if buffer is None else buffer)
        return Blocks(sizes, lead, make) if lead else make()

    def zeros(self, shape: Any, dtype: object, buffer: object = None, **_: object) -> Any:
        made = self.ndarray(shape, dtype, buffer)
        for tile in made.tiles.values() if isinstance(made, Blocks) else (made,):
            issue(self, "memset", {"dst": tile, "value": 0})
        return made

    def identity(self, size: int, dtype: object = "float32") -> Tile:
        out = self.new((size, size), dtype)
        instructions.store(self, out, np.eye(size, dtype=np.float32))
        instructions.issue(self, "identity", "gpsimd", out, ())
        return out


class Below(dict[str, str]):
    """Files below a folder: path -> what follows the folder, for messages."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = str(root) + os.sep

    def get(self, path: str, default: Any = None) -> Any:
        if path.startswith(self._root):
            return path.removeprefix(self._root)
        return default


def _plain(value: Any) -> Any:
    """NumPy's integers as Python's."""
    if isinstance(value, (np.integer, np.ndarray, PartitionSize)):
        return int(value)
    return value


def _axes(axis: object, data: Tile) -> Sizes:
    return tuple(
        sorted(
            int(a) % len(data.shape) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))
        )
    )


def _reduced(core: Others, data: Tile, axes: Sizes, keepdims: bool, dtype: object) -> Tile:
    """Fresh memory for `data` reduced over `axes`."""
    if 0 in axes:
        raise core.refuse("reduce-axis", f"axis={axes} for a tile of shape {data.shape}")
    shape = [1 if k in axes else n for k, n in enumerate(data.shape) if keepdims or k not in axes]
    return core.new(shape or (1, 1), dtype or data.dtype)


def issue(core: Others, name: str, given: dict[str, Any]) -> None:
    """One instruction under our rules; numbers, operators and shapes are put as it wants them."""
    box = core.box(given.pop("mask", None), given["dst"].shape)
    for key, value in given.items():
        if isinstance(value, Tensor) and box and value.shape == given["dst"].shape and key != "dst":
            given[key] = cast(Tile, value).part(box)
        elif key in ("op", "op0", "op1", "reduce_op") and value is not None:
            given[key] = _operator(value)
        elif key in ("operand0", "operand1", "scale", "bias", "initial") and isinstance(
            value, (int, np.number)
        ):
            given[key] = float(value)
    given["dst"] = given["dst"].part(box)
    if name == "memset":
        given["value"] = (float if given["dst"].dtype.floating else int)(given["value"])
    elif name == "nc_matmul":
        given |= {key: given[key].flat() for key in ("dst", "stationary", "moving")}
    elif name == "tensor_reduce":
        data, axes = given["data"], _axes(given["axis"], given["data"])
        order = [k for k in range(len(data.shape)) if k not in axes] + list(
            axes
        )  # the reduced axes last
        shape, strides = ([one[k] for k in order] for one in (data.shape, data.strides))
        given["data"] = data.view(tuple(shape), tuple(strides), data.offset)
        given["axis"] = tuple(range(len(order) - len(axes), len(order)))
    if name in OWN:
        function = globals()[name]
    else:
        function = getattr(instructions, name)
    function(core, SimpleNamespace(**((defaults(name) if name in INSTRUCTIONS else {}) | given)))


def _operator(value: object) -> object:
    """The operator that a kernel names by an nl object, by a NumPy function, or we by a string."""
    if isinstance(value, str):
        name = value
    else:
        name = getattr(value, "name", getattr(value, "__name__", ""))
    name = REDUCTIONS.get(name, name)
    if name in BINARY or name in UNARY:
        return Operator(name)
    return value


def call(core: Others, name: str, *positional: Any, **given: Any) -> Any:
    """An instruction as kernels call it: with dst, by position or by name, or without, which returns the result."""
    if not core.running:
        raise core.refuse("purity", f"nisa.{name} outside a kernel")
    if name in INSTRUCTIONS:
        table = parameters(name, RELEASE)
    else:
        table = dict.fromkeys(OWN[name], True)
    names, required = list(table), {word for word, needed in table.items() if needed}
    dtype, mask = given.pop("dtype", None), given.pop("mask", None)
    bound = dict(zip(names, positional, strict=False)) | given
    fresh = "dst" in table and not required <= bound.keys()
    if fresh:
        bound = dict(zip(names[1:], positional, strict=False)) | given
    wrong = [f"unknown {word}" for word in sorted(bound.keys() - table.keys() - {"name", "engine"})]
    wrong += [
        f"missing {word}"
        for word in sorted(required - bound.keys() - ({"dst"} if fresh else set()))
    ]
    if wrong:
        raise core.refuse("signature", f"nisa.{name}: {', '.join(wrong)}")
    if any(bound.get(word) for word in NOT_TAKEN - {"keepdims"}):
        raise core.outside(f"nisa.{name} with {', '.join(sorted(NOT_TAKEN & bound.keys()))}")
    bound = {key: core.tile(value) for key, value in bound.items()}
    if name.startswith("register"):
        return getattr(instructions, name)(core, SimpleNamespace(**(defaults(name) | bound)))
    if fresh and name == "nc_matmul":
        return Product(core, bound)
    if fresh:
        data = next((bound[key] for key in ("data", "data0", "data1", "src") if key in bound), None)
        if not isinstance(data, Tile):
            raise core.refuse("signature", f"nisa.{name} without dst")
        if name == "nc_transpose":
            bound["dst"] = core.new((data.elements, data.partitions), dtype or data.dtype, "psum")
        else:
            if name == "tensor_reduce":
                axes = _axes(bound["axis"], data)
            else:
                axes = ()
            bound["dst"] = _reduced(core, data, axes, bound.get("keepdims", False), dtype)
    out = bound["dst"]
    issue(core, name, {**bound, "mask": mask})
    return out if fresh else None


def nc_transpose(core: Others, given: SimpleNamespace) -> None:
    """dst = data^T, by the Tensor Engine into PSUM or by the Vector Engine."""
    out, source = (
        instructions.on_chip(core, given.dst, "dst"),
        instructions.on_chip(core, given.data, "data"),
    )
    if (out.partitions, out.elements) != (source.elements, source.partitions):
        raise core.refuse("matmul-dst", f"nc_transpose of {source.shape} into {out.shape}")
    note_read(core, source)
    values = cast(Array, source.values()).reshape(source.partitions, -1)
    instructions.store(core, out, working(values.T, core.double))
    engine: Any = "tensor" if out.storage.space == "psum" else "vector"
    instructions.issue(
        core, "nc_transpose", engine, out, (source,), stationary=source.elements, transpose=True
    )


def tensor_tensor_scan(core: Others, given: SimpleNamespace) -> None:
    """dst[:, k] = (data0[:, k] op0 dst[:, k-1]) op1 data1[:, k], and initial instead of dst[:, -1]."""
    out, first, second = instructions.tiles(
        core, dst=given.dst, data0=given.data0, data1=given.data1
    )
    start = instructions.scalar(core, given.initial, first, "initial")
    names = instructions.binary(core, given.op0, "op0"), instructions.binary(core, given.op1, "op1")

    def scanned(a: Array, b: Array, last: Array) -> Array:
        made, shape, last = list[Array](), a.shape, np.broadcast_to(last.ravel(), len(a))
        for left, right in zip(a.reshape(len(a), -1).T, b.reshape(len(a), -1).T, strict=True):
            last = BINARY[names[1]](BINARY[names[0]](left, last), right)
            made.append(last)
        return np.stack(made, 1).reshape(shape)

    instructions.compute(
        core, "tensor_tensor_scan", "vector", out, (first, second, start), scanned, operands=2
    )


class Kernel:
    """A decorated kernel: called from outside it runs at all places of its grid, from a kernel it is a function."""

    def __init__(self, core: Others, function: Callable[..., Any], grid: Sizes = ()) -> None:
        self._core, self._function, self._grid = core, function, grid

    def __getitem__(self, grid: Any) -> Kernel:
        return Kernel(
            self._core, self._function, tuple(grid) if isinstance(grid, tuple) else (grid,)
        )

    def __call__(self, *positional: Any, **given: Any) -> Any:
        core = self._core
        if core.running:
            return self._function(*positional, **given)
        arguments = [
            core.argument(f"argument {k + 1}", value) for k, value in enumerate(positional)
        ]
        named = {name: core.argument(name, value) for name, value in given.items()}
        core.running, core.grid, core.shared = True, self._grid, []
        for core.program in itertools.product(*map(range, self._grid)):
            core.declared = 0
            returned = self._function(*arguments, **named)
        core.running = False
        return _arrays(core, returned)


def _arrays(core: Others, value: object) -> Any:
    """What a kernel returned, as NumPy arrays."""
    if isinstance(value, (tuple, list)):
        return tuple(_arrays(core, one) for one in value)
    if not isinstance(value, Tile) or value.storage.space != "hbm":
        raise core.refuse("output-space", f"the kernel returns {type(value).__name__}")
    if value.storage.written is not None and not value.bits(value.storage.written).all():
        raise Violation(
            "output-unwritten",
            f"elements of output {value.shape} never written",
            value.storage.life.line,
        )
    return np.array(value.values())


class Stand(ModuleType):
    """A module of `nki` as kernels see it, or of a package that is not installed."""

    def __init__(self, core: Others, name: str, names: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(names, _core=core, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        known = full.removeprefix("neuronxcc.") in ("nki", "nki.language", "nki.isa")
        if known:
            return importlib.import_module(full)
        return Unknown(self._core, full)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of nki and neuronxcc, and of optional packages that are not installed."""

    def __init__(self, core: Others) -> None:
        self._core, self._names = core, package(core)
        self._tops = {
            *PACKAGES,
            *(name for name in OPTIONAL if importlib.util.find_spec(name) is None),
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        ours = name.partition(".")[0] in self._tops
        if ours:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return Stand(
            self._core, spec.name, self._names.get(spec.name.removeprefix("neuronxcc."), {})
        )

    def exec_module(self, module: ModuleType) -> None:
        pass


def package(core: Others) -> dict[str, dict[str, Any]]:
    """Names of `nki`, `nki.language` and `nki.isa`."""

    def jit(function: Any = None, **_: object) -> Any:
        return Kernel(core, function) if callable(function) else jit

    language: dict[str, Any] = {**functions(core), **FORMATS, **REGIONS}
    language |= {name: Function(name, partial(core.binary, name)) for name in BINARY}
    language |= {name: Function(name, partial(core.unary, name)) for name in UNARY}
    language |= {name: Function(op, partial(core.reduced, op)) for name, op in REDUCTIONS.items()}
    language |= dict.fromkeys(("affine_range", "sequential_range", "static_range"), range)
    language |= {
        "copy": Function("copy", core.copied),
        "ndarray": core.ndarray,
        "zeros": core.zeros,
        "load": core.load,
        "store": core.store,
        "load_transpose2d": core.load_transposed,
        "transpose": core.transposed,
        "matmul": core.matmul,
        "broadcast_to": lambda x, shape: core.spread(x, tuple(shape)),
        "shared_identity_matrix": core.identity,
        "arange": np.arange,
        "mgrid": np.mgrid,
        "ds": lambda start, size: slice(start, start + size),
        "par_dim": PartitionSize,
        "nc": int,
        "spmd_dim": operator.mul,
        "program_id": lambda axis=0: core.program[axis] if core.program else 0,
        "num_programs": lambda axes=0: core.grid[axes] if core.grid else 1,
        "program_ndim": lambda: len(core.grid),
        "NKIObject": type("NKIObject", (), {}),
        "tile_size": SimpleNamespace(
            pmax=PARTITIONS,
            psum_fmax=PSUM_BANK_BYTES // 4,
            gemm_stationary_fmax=instructions.MOST_STATIONARY,
            gemm_moving_fmax=instructions.MOST_MOVING,
            total_available_sbuf_size=core.settings.sbuf_limit,
        ),
    }
    isa: dict[str, Any] = {name: partial(call, core, name) for name in (*INSTRUCTIONS, *OWN)}
    for kind, members in ENUMERATIONS.items():
        isa[kind] = SimpleNamespace(**{name: Member(kind, name) for name in members})
    isa |= {f"{name}_engine": Member("engine", name) for name in ENUMERATIONS["engine"]}
    isa |= {"nc_version": Generation, "get_nc_version": lambda: Generation[core.settings.target]}
    return {"nki": {"jit": jit}, "nki.language": language, "nki.isa": isa}


@contextmanager
def imports(core: Others, root: Path, file: Path) -> Iterator[str]:
    """Imports as a file of a checkout expects them; yields its module name, and leaves nothing behind.

    Packages that the file lies in are not initialised: that would import what else they hold.
    """
    modules, path, environment, quiet = (
        dict(sys.modules),
        sys.path[:],
        dict(os.environ),
        sys.dont_write_bytecode,
    )
    folder, names = file.parent, [file.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    finder = Finder(core)
    for name in [name for name in modules if name.partition(".")[0] in (*PACKAGES, names[0])]:
        del sys.modules[name]
    try:
        sys.meta_path.insert(0, finder)
        sys.path[:0] = [str(folder), str(root)]
        sys.dont_write_bytecode = True
        for depth in range(1, len(names)):
            parent = sys.modules[".".join(names[:depth])] = ModuleType(".".join(names[:depth]))
            parent.__path__ = [str(folder.joinpath(*names[:depth]))]
        yield ".".join(names)
    finally:
        sys.meta_path.remove(finder)
        sys.path[:], sys.dont_write_bytecode = path, quiet
        os.environ.clear()
        os.environ.update(environment)
        for name in (
            sys.modules.keys() - modules.keys()
        ):  # what is installed stays: some modules load once only
            facts = vars(sys.modules[name])
            places = [facts.get("__file__") or "", *facts.get("__path__", ())]
            if type(sys.modules[name]) is Stand or any(
                str(p).startswith(str(folder) + os.sep) for p in places
            ):
                del sys.modules[name]
        sys.modules.update(modules)


def run_foreign(
    root: Path, file: str, kernel: str, arguments: dict[str, object], settings: Settings
) -> tuple[tuple[Array, ...], Trace]:
    """Executes a kernel of a checkout, or a function that calls kernels; returns outputs and trace.

    Parameters
    ----------
    root : the checkout; file : of the kernel, a path in it; kernel : name in that file
    arguments : by name; NumPy arrays are HBM inputs (float64 becomes float32), the rest compile-time constants
    settings : rules and arithmetic; `waived` may be broken

    Raises
    ------
    Violation : a rule is broken, or something is used that the interpreter does not know
    InputError : no such function
    """
    root = root.resolve()
    core = Others(settings, root)
    with (
        imports(core, root, root / file) as name,
        redirect_stdout(sys.stderr),
        kernel_code(core, STRAY_ERRORS),
    ):
        function = getattr(importlib.import_module(name), kernel, None)
        if not callable(function):
            raise InputError(f"no function {kernel}", file=str(root / file))
        returned = function(**arguments)
    finish(core)
    return returned if isinstance(returned, tuple) else (returned,), core.trace
