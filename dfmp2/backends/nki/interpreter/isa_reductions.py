"""Row reductions of the Vector Engine: tensor_reduce over the last free axes, tensor_scalar_reduce over all of them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from dfmp2.backends.nki.interpreter.engine_arithmetic import reduce_rows, working
from dfmp2.backends.nki.interpreter.isa_vector_engine import binary, emit, finish, with_scalar
from dfmp2.backends.nki.interpreter.members import Member
from dfmp2.backends.nki.interpreter.memory import note_read
from dfmp2.backends.nki.interpreter.operands import column, matching, on_chip, overlap, same_partitions, scalar
from dfmp2.backends.nki.interpreter.tensors import Tensor

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core

REDUCTIONS = ("add", "maximum", "minimum")


def tensor_reduce(core: Core, *, dst: object, op: object, data: object, axis: object, negate: object = False) -> None:
    """dst = op over the last free axes of data (times -1 with negate)."""
    out, source = on_chip(core, dst, "dst"), on_chip(core, data, "data")
    same_partitions(core, out, source, "dst and data")
    name = _reduction(core, op)
    axes = axis if isinstance(axis, tuple) else (axis,)
    rank = len(source.shape)
    if not axes or any(type(a) is not int for a in axes) or axes != tuple(range(rank - len(axes), rank)) or 0 in axes:
        raise core.refuse("reduce-axis", f"axis={axis!r} for a tile of rank {rank}")
    keep = rank - len(axes)
    if out.elements != prod(source.shape[1:keep]):
        raise core.refuse("element-count", f"dst {out.shape} for axes {axes} of {source.shape}")
    note_read(core, source)
    values = source.values()
    reduced = None
    if values is not None:
        reduced = reduce_rows(working(values, core.double), name, keep, core.settings.row_sum)
        reduced = -reduced if negate else reduced
    finish(core, out, reduced)
    emit(core, "tensor_reduce", "vector", out, (source,), elements=source.elements)


def tensor_scalar_reduce(
    core: Core,
    *,
    dst: object,
    data: object,
    op0: object,
    operand0: object,
    reduce_op: object,
    reduce_res: object = None,
    reverse0: object = False,
    reduce_cmd: object = None,
) -> None:
    """dst = data op0 operand0; reduce_res = reduce_op over each row of dst."""
    out, source = on_chip(core, dst, "dst"), on_chip(core, data, "data")
    matching(core, out, source, "dst and data")
    name, reduction = binary(core, op0, "op0"), _reduction(core, reduce_op)
    factor = scalar(core, operand0, source, "operand0")
    if reduce_cmd is not None and reduce_cmd != Member("reduce_cmd", "reset_reduce"):
        raise core.outside(f"tensor_scalar_reduce with reduce_cmd={reduce_cmd!r}")
    if not isinstance(reduce_res, Tensor):
        raise core.outside("tensor_scalar_reduce without reduce_res")
    result = column(core, reduce_res, source, "reduce_res")
    if overlap(result.access, out.access):
        raise core.refuse("activation-result", "reduce_res overlaps dst")
    note_read(core, source)
    raw = source.values()
    values = with_scalar(core, None if raw is None else working(raw, core.double), name, factor, bool(reverse0))
    rows = None if values is None else reduce_rows(values, reduction, 1, core.settings.row_sum)
    finish(core, out, values)
    finish(core, result, rows)
    emit(core, "tensor_scalar_reduce", "vector", out, (source, factor), result=result)


def _reduction(core: Core, op: object) -> str:
    name = binary(core, op, "reduction op")
    if name not in REDUCTIONS:
        raise core.outside(f"reduction with nl.{name}; use one of {', '.join(REDUCTIONS)}")
    return name
