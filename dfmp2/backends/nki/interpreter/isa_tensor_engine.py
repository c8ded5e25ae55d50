"""nc_matmul: dst (+)= stationary^T moving on the Tensor Engine, with the rules of its page and of PSUM groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dfmp2.backends.nki.interpreter.engine_arithmetic import contract
from dfmp2.backends.nki.interpreter.memory import note_accumulate, note_read, note_write, open_group, require_group
from dfmp2.backends.nki.interpreter.operands import dynamic, itemsize, on_chip, reads, strided
from dfmp2.backends.nki.interpreter.tensors import Tensor
from dfmp2.backends.nki.interpreter.trace import Instruction

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core

MOST_STATIONARY = 128
MOST_MOVING = 512
WIDE = ("float32", "tfloat32")


def nc_matmul(
    core: Core,
    *,
    dst: object,
    stationary: object,
    moving: object,
    accumulate: object = None,
    is_stationary_onezero: object = False,
    is_moving_onezero: object = False,
    is_transpose: object = False,
) -> None:
    """dst (+)= stationary^T moving: (K, M), (K, N) -> (M, N)."""
    out, left, right = (
        on_chip(core, dst, "dst"),
        on_chip(core, stationary, "stationary"),
        on_chip(core, moving, "moving"),
    )
    if type(accumulate) is not bool:
        raise core.refuse("matmul-accumulate", f"accumulate={accumulate!r}")
    _check_geometry(core, out, left, right)
    _check_dtypes(core, out, left, right, is_transpose is True)
    note_read(core, left)
    note_read(core, right)
    if is_transpose:
        _check_transpose(core, right, accumulate)
    if (is_moving_onezero and not _holds_one_zero(right)) or (is_stationary_onezero and not _holds_one_zero(left)):
        raise core.refuse("matmul-onezero", "a flagged operand holds other values than 0 and 1")
    if accumulate:
        require_group(core, out)
        note_accumulate(core, out)
    else:
        note_write(core, out, matmul=True)
        open_group(core, out)
    if core.arithmetic:
        _compute(core, out, left, right, accumulate)
    core.issue(
        Instruction(
            "nc_matmul",
            "tensor",
            right.elements,
            out.partitions,
            itemsize(left, right),
            reads(left, right),
            (out.access,),
            stationary=left.elements,
            one_zero=bool(is_moving_onezero) or bool(is_stationary_onezero),
            transpose=bool(is_transpose),
            operands=2,
            strided=strided(left, right, out),
            dynamic=dynamic(left, right, out),
            line=core.place(),
        )
    )


def _check_geometry(core: Core, out: Tensor, left: Tensor, right: Tensor) -> None:
    if left.storage.space != "sbuf" or right.storage.space != "sbuf" or out.storage.space != "psum":
        spaces = f"{left.storage.space}, {right.storage.space} -> {out.storage.space}"
        raise core.refuse("matmul-space", f"stationary, moving -> dst in {spaces}")
    if len(left.shape) != 2 or len(right.shape) != 2 or len(out.shape) != 2:
        raise core.refuse("matmul-rank", f"shapes {left.shape}, {right.shape} -> {out.shape}")
    if left.partitions != right.partitions:
        raise core.refuse("matmul-contraction", f"stationary {left.shape}, moving {right.shape}")
    if left.start != right.start:
        raise core.refuse("matmul-start", f"stationary at partition {left.start}, moving at {right.start}")
    if left.elements > MOST_STATIONARY or right.elements > MOST_MOVING:
        raise core.refuse("matmul-size", f"stationary {left.shape}, moving {right.shape}")
    if out.shape != (left.shape[1], right.shape[1]) or out.start != 0:
        expected = (left.shape[1], right.shape[1])
        raise core.refuse("matmul-dst", f"dst {out.shape} at partition {out.start}; expected {expected} at 0")


def _check_dtypes(core: Core, out: Tensor, left: Tensor, right: Tensor, transpose: bool) -> None:
    names = left.dtype.name, right.dtype.name
    if not left.dtype.floating or not right.dtype.floating or ((names[0] in WIDE) != (names[1] in WIDE)):
        raise core.refuse("matmul-dtype", f"stationary {names[0]}, moving {names[1]}")
    if transpose and core.settings.target != "gen2":
        if out.dtype != left.dtype:
            raise core.refuse("matmul-transpose", f"dst {out.dtype.name}, data {left.dtype.name}")
    elif out.dtype.name != "float32":
        raise core.refuse("matmul-dtype", f"dst {out.dtype.name}")
    elif transpose and left.dtype.name != "float32":
        raise core.refuse("matmul-transpose", f"dst float32, data {left.dtype.name}")


def _check_transpose(core: Core, right: Tensor, accumulate: bool) -> None:
    values = right.values() if core.arithmetic else None
    square = right.shape[0] == right.shape[1]
    if accumulate or not square or (values is not None and not np.array_equal(values, np.eye(len(values)))):
        raise core.refuse("matmul-transpose", f"moving {right.shape}, accumulate={accumulate}")


def _holds_one_zero(tensor: Tensor) -> bool:
    """Whether all elements are 0 or 1 (True when only counting); remembered until the storage is written again."""
    version, known = tensor.one_zero
    if version != tensor.storage.version:
        values = tensor.values()
        known = values is None or bool(((values == 0) | (values == 1)).all())
        tensor.one_zero = (tensor.storage.version, known)
    return known


def _compute(core: Core, out: Tensor, left: Tensor, right: Tensor, accumulate: bool) -> None:
    a, b, c = left.values(), right.values(), out.values()
    if a is None or b is None or c is None:
        return
    if core.fuzz:
        order = core.generator.permutation(len(a))
        a, b = a[order], b[order]
    product = contract(a, b, core.settings.pe_model, left.dtype.itemsize == 2 and right.dtype.itemsize == 2)
    if accumulate:
        c += product
    else:
        c[...] = product
