"""Reads and writes of tensor elements: written bits, lost writes, HBM order, loop scope, matmul groups in PSUM.

A matmul group is the rectangle of PSUM elements that one nc_matmul(accumulate=False) initialised; it stays open until
another engine writes into it or a later accumulate=False overlaps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dfmp2.backends.nki.interpreter.tensors import Tensor

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core, Storage


def describe(tensor: Tensor) -> str:
    """Name and shape of a view for messages."""
    storage = tensor.storage
    life = storage.life
    return f"{life.name or 'tensor'} {tensor.shape} of {life.space} (declared at {life.line or 'the call'})"


def note_read(core: Core, tensor: Tensor) -> None:
    """An instruction reads the elements of `tensor`."""
    storage = tensor.storage
    _touch(core, storage, tensor)
    if storage.written is not None and core.strict and not tensor.bits(storage.written).all():
        raise core.refuse("uninitialised-read", f"read of {describe(tensor)}: some elements were never written")
    if storage.space == "hbm" and not storage.readonly and not _ordered(core, storage):
        raise core.refuse("hbm-order", f"load from {describe(tensor)}, which this kernel stores")
    if storage.writer is not None and storage.used is not None:
        storage.used[tensor.of(storage.writer)] = True
        storage.was_read = True
        if storage.lost:
            raise core.refuse("lost-write", f"{describe(tensor)}: something unread was overwritten at {storage.lost}")


def note_write(core: Core, tensor: Tensor, *, matmul: bool = False, fill: bool = False) -> None:
    """An instruction writes the elements of `tensor`. fill : a constant, which may be overwritten unread."""
    storage = tensor.storage
    _touch(core, storage, tensor)
    if storage.readonly:
        raise core.refuse("input-written", f"write into the kernel input {storage.life.name}")
    if storage.writer is not None:
        _note_lost(core, storage, tensor, fill)
    if storage.space == "hbm":
        _note_store(core, storage, tensor)
    elif storage.groups and not matmul:
        storage.groups = [group for group in storage.groups if not _overlap(group, _rectangle(tensor))]
    storage.version += 1
    written = storage.written
    if written is None:
        return
    if tensor.whole:
        storage.written = None
        return
    tensor.bits(written)[...] = True
    storage.fresh += tensor.partitions * tensor.elements
    if storage.fresh >= storage.elements:
        storage.fresh = 0
        if written.all():
            storage.written = None


def note_accumulate(core: Core, tensor: Tensor) -> None:
    """nc_matmul adds to elements that it does not overwrite."""
    _touch(core, tensor.storage, tensor)
    tensor.storage.version += 1


def open_group(core: Core, tensor: Tensor) -> None:
    """nc_matmul(accumulate=False): the rectangle starts a group, groups it overlaps are closed."""
    rectangle = _rectangle(tensor)
    storage = tensor.storage
    storage.groups = [group for group in storage.groups if not _overlap(group, rectangle)]
    storage.groups.append(rectangle)


def require_group(core: Core, tensor: Tensor) -> None:
    """nc_matmul(accumulate=True): the rectangle must lie inside one open group."""
    p0, p1, f0, f1 = _rectangle(tensor)
    written = tensor.storage.written
    if written is not None and not tensor.bits(written).all():
        raise core.refuse("matmul-group", f"accumulate=True on {describe(tensor)}: some elements were never written")
    for a0, a1, b0, b1 in tensor.storage.groups:
        if a0 <= p0 and p1 <= a1 and b0 <= f0 and f1 <= b1:
            return
    raise core.refuse("matmul-group", f"accumulate=True on {describe(tensor)}: no open matmul group covers it")


def _touch(core: Core, storage: Storage, tensor: Tensor) -> None:
    life = storage.life
    if life.loop and life.loop not in core.loops:
        raise core.refuse("loop-scope", f"{describe(tensor)} was declared inside a loop that has ended")
    life.last_use = core.index


def _note_lost(core: Core, storage: Storage, tensor: Tensor, fill: bool) -> None:
    """Refuses to overwrite the result of an instruction of which no element was ever read.

    A tensor that is never read at all (the unwanted main output of a row sum) may be overwritten: the first loss is
    remembered and refused only when the tensor is read later.
    """
    if storage.writer is None or storage.used is None:
        return
    writers = tensor.of(storage.writer)
    if not storage.lost and not storage.used[writers].all():
        storage.lost = core.place()
        if storage.was_read:
            raise core.refuse("lost-write", f"{describe(tensor)}: overwritten before it was read")
    number = storage.version + 1
    if number >= len(storage.used):
        storage.used = np.concatenate([storage.used, np.ones(len(storage.used), dtype=np.bool_)])
    storage.used[number] = fill
    writers[...] = number


def _note_store(core: Core, storage: Storage, tensor: Tensor) -> None:
    written = storage.written
    again = written is None or bool(tensor.bits(written).any())
    if again and not _ordered(core, storage):
        raise core.refuse("hbm-order", f"second store to {describe(tensor)}")
    storage.ordered_in = core.no_reorder


def _ordered(core: Core, storage: Storage) -> bool:
    return core.no_reorder != 0 and storage.ordered_in == core.no_reorder


def _rectangle(tensor: Tensor) -> tuple[int, int, int, int]:
    access = tensor.access
    return access.partition_start, access.partition_stop, access.byte_start, access.byte_stop


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
