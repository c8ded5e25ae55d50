"""`tensor.ap(pattern=, offset=, scalar_offset=, indirect_dim=)`: element [w, z, ...] of the view is element
offset + scalar_offset prod(shape[indirect_dim+1:]) + w step_0 + z step_1 + ... of the whole tensor (nki-aps.rst).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from dfmp2.backends.nki.interpreter.memory import note_read
from dfmp2.backends.nki.interpreter.registers import Register
from dfmp2.backends.nki.interpreter.tensors import Tensor
from dfmp2.backends.nki.interpreter.trace import Access

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core


def view(
    core: Core, base: Tensor, pattern: object, offset: object, scalar_offset: object, indirect_dim: object
) -> Tensor:
    """The access pattern as a view; all rules of the page checked."""
    storage = base.storage
    if base.shape != storage.shape or base.offset != 0 or base.dynamic or not _contiguous(base):
        raise core.refuse("ap-base", f"ap() on a view of shape {base.shape} of a tensor of shape {storage.shape}")
    if type(offset) is not int or offset < 0:
        raise core.refuse("ap-offset", f"offset={offset!r}")
    pairs = _pairs(core, pattern)
    shape, strides = tuple(n for _, n in pairs), tuple(step for step, _ in pairs)
    if storage.space != "hbm" and strides[0] != storage.row:
        raise core.refuse(
            "ap-pattern", f"first stride {strides[0]} on a tensor with {storage.row} elements per partition"
        )
    shift = 0
    reads: tuple[Access, ...] = ()
    if scalar_offset is not None:
        if type(indirect_dim) is not int or not 0 <= indirect_dim < len(storage.shape):
            raise core.refuse("ap-dynamic", f"indirect_dim={indirect_dim!r} for rank {len(storage.shape)}")
        value, reads = _dynamic(core, scalar_offset)
        shift = value * prod(storage.shape[indirect_dim + 1 :])
    start = offset + shift
    last = start + sum((n - 1) * step for step, n in pairs)
    free = sum((n - 1) * step for step, n in pairs[1:])
    inside = start >= 0 and last < storage.elements
    if storage.space != "hbm" and (not inside or start % storage.row + free >= storage.row):
        inside = False
    if not inside:
        raise core.refuse("ap-pattern", f"elements {start} to {last} of a tensor of shape {storage.shape}")
    result = Tensor(core, storage, shape, strides, start)
    result.dynamic, result.also_reads = scalar_offset is not None, reads
    result.whole = result.whole and _contiguous(result)
    return result


def _contiguous(tensor: Tensor) -> bool:
    return tensor.strides == tuple(prod(tensor.shape[k + 1 :]) for k in range(len(tensor.shape)))


def _pairs(core: Core, pattern: object) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    if not isinstance(pattern, (list, tuple)) or not 2 <= len(pattern) <= 5:
        raise core.refuse("ap-pattern", f"pattern {pattern!r}: 2 to 5 [stride, count] pairs expected")
    for pair in pattern:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or any(type(x) is not int for x in pair):
            raise core.refuse("ap-pattern", f"pair {pair!r}: two ints expected")
        step, count = pair
        if step < 0 or count < 1:
            raise core.refuse("ap-pattern", f"pair {pair!r}: stride >= 0 and count >= 1 expected")
        pairs.append((step, count))
    return pairs


def _dynamic(core: Core, source: object) -> tuple[int, tuple[Access, ...]]:
    """Run-time value of scalar_offset, and what was read to know it."""
    if isinstance(source, Register):
        return source.as_offset(), ()
    if not isinstance(source, Tensor) or source.shape != (1, 1) or source.dtype.name != "int32":
        raise core.refuse("ap-dynamic", f"scalar_offset {source!r}"[:80])
    if source.storage.space != "sbuf":
        raise core.refuse("ap-dynamic", f"scalar_offset in {source.storage.space}")
    note_read(core, source)
    values = source.values()
    if values is None:
        raise core.refuse("ap-dynamic", "counts-only mode does not know the value of this scalar_offset")
    return int(values[0, 0]), (source.access,)
