"""activation: dst = op(data scale + bias) on the Scalar Engine (ACT); optionally reduce_res = row sums of dst."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dfmp2.backends.nki.interpreter.dtypes import Array, cast
from dfmp2.backends.nki.interpreter.engine_arithmetic import UNARY, reduce_rows, working
from dfmp2.backends.nki.interpreter.members import Member, Operator
from dfmp2.backends.nki.interpreter.memory import note_read, note_write
from dfmp2.backends.nki.interpreter.operands import (
    column,
    dynamic,
    free,
    itemsize,
    matching,
    on_chip,
    overlap,
    reads,
    same_partitions,
    strided,
)
from dfmp2.backends.nki.interpreter.tensors import Tensor
from dfmp2.backends.nki.interpreter.trace import Instruction

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core

# Valid input ranges of the tables (nki.api.shared.rst); reciprocal holds for |x|.
DOMAIN = {"reciprocal": (2.0**-42, 2.0**42), "rsqrt": (2.0**-87, 2.0**97), "sqrt": (2.0**-116, 2.0**118)}


def activation(
    core: Core,
    *,
    dst: object,
    op: object,
    data: object,
    bias: object = None,
    scale: object = 1.0,
    reduce_op: object = None,
    reduce_res: object = None,
    reduce_cmd: object = None,
    engine: object = None,
) -> None:
    """dst = op(data scale + bias); reduce_res[p, 0] = sum of row p."""
    out, source = on_chip(core, dst, "dst"), on_chip(core, data, "data")
    matching(core, out, source, "dst and data")
    if not isinstance(op, Operator) or op.name not in UNARY:
        raise core.refuse("activation-op", f"op={op!r}")
    _check_bias(core, bias, source, op.name)
    if isinstance(scale, Tensor):
        if scale.dtype.name != "float32":
            raise core.refuse("activation-scale", f"scale is {scale.dtype.name}")
        column(core, scale, source, "scale")
    elif type(scale) is not float:
        raise core.refuse("activation-scale", f"scale={scale!r}")
    if engine not in (None, Member("engine", "unknown"), Member("engine", "scalar")):
        raise core.refuse("engine", f"activation with engine={engine!r}")
    result = _check_reduction(core, out, source, reduce_op, reduce_res, reduce_cmd)
    for operand in (source, bias, scale):
        if isinstance(operand, Tensor):
            note_read(core, operand)
    values = _values(core, source, op.name, bias, scale) if core.arithmetic else None
    note_write(core, out)
    if result is not None:
        note_write(core, result)
    if values is not None:
        storage = core.settings.storage
        rows = None if result is None else reduce_rows(values, "add", 1, core.settings.row_sum)
        target, total = out.values(), None if result is None else result.values()
        if target is not None:
            target[...] = cast(values, out.dtype, storage).reshape(out.shape)
        if total is not None and rows is not None:
            total[...] = rows.reshape(total.shape)
    elif not out.dtype.floating:
        out.storage.array = None
    core.issue(
        Instruction(
            "activation",
            "scalar",
            out.elements,
            out.partitions,
            itemsize(out, source),
            reads(source, bias, scale),
            reads(out, result),
            reduces=result is not None,
            strided=strided(out, source),
            dynamic=dynamic(out, source),
            line=core.place(),
        )
    )


def _check_bias(core: Core, bias: object, data: Tensor, op: str) -> None:
    gen2 = core.settings.target == "gen2"
    if bias is None:
        return
    if isinstance(bias, Tensor):
        if bias.dtype.name == "tfloat32" or bias.elements != 1:
            raise core.refuse("activation-bias", f"bias {bias.shape} {bias.dtype.name}")
        column(core, bias, data, "bias")
    elif gen2 or type(bias) is not float:
        raise core.refuse("activation-bias", f"bias={bias!r} on {core.settings.target}")
    if gen2 and op == "reciprocal":
        raise core.refuse("activation-reciprocal", "reciprocal with a bias on gen2")


def _check_reduction(
    core: Core, out: Tensor, data: Tensor, op: object, result: object, command: object
) -> Tensor | None:
    idle = command is None or command == Member("reduce_cmd", "idle")
    if op is None and result is None and idle:
        return None
    if (
        not isinstance(op, Operator)
        or op.name != "add"
        or command != Member("reduce_cmd", "reset_reduce")
        or not isinstance(result, Tensor)
    ):
        raise core.refuse(
            "activation-reduce", f"reduce_op={op!r}, reduce_cmd={command!r}, reduce_res given: {result is not None}"
        )
    on_chip(core, result, "reduce_res")
    same_partitions(core, result, data, "reduce_res and data")
    if result.elements != 1 or result.dtype.name != "float32" or overlap(result.access, out.access):
        raise core.refuse("activation-result", f"reduce_res {result.shape} {result.dtype.name}, dst {out.shape}")
    return result


def _values(core: Core, data: Tensor, op: str, bias: object, scale: object) -> Array | None:
    raw = data.values()
    if raw is None:
        return None
    values = working(raw, core.double)
    for operand, combine in ((scale, np.multiply), (bias, np.add)):
        if isinstance(operand, Tensor):
            factor = operand.values()
            if factor is None:
                return None
            values = combine(values, free(working(factor, core.double), values.shape))
        elif isinstance(operand, float) and not (combine is np.multiply and operand == 1.0):
            values = combine(values, values.dtype.type(operand))
    if op in DOMAIN:
        low, high = DOMAIN[op]
        size = np.abs(values) if op == "reciprocal" else values
        if not ((size >= low) & (size <= high)).all():
            raise core.refuse("activation-domain", f"{op} of values from {values.min():.3g} to {values.max():.3g}")
    return UNARY[op](values)
