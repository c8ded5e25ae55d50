"""Element operations of Vector and Scalar Engine: float32 arithmetic, cast to the destination's format.

tensor_tensor         dst = data1 op data2                      tensor_scalar   dst = (data op0 s0) op1 s1
scalar_tensor_tensor  dst = (data op0 s) op1 tensor             reciprocal      dst = 1 / data
tensor_copy           dst = src                                 memset          dst = value
tensor_reduce         over the last free axes                   tensor_scalar_reduce  a row sum besides
activation            dst = op(data scale + bias), on the Scalar Engine; optionally the row sums of dst besides
"""

from __future__ import annotations

from math import prod

import numpy as np

from dfmp2.trainium.interpreter.arithmetic import BINARY, UNARY, Array, cast, reduce_rows, working
from dfmp2.trainium.interpreter.core import Core
from dfmp2.trainium.interpreter.instructions import (
    column,
    dynamic,
    free,
    itemsize,
    matching,
    on_chip,
    overlap,
    reads,
    same_partitions,
    scalar,
    strided,
)
from dfmp2.trainium.interpreter.signatures import BINARY as BINARY_NAMES
from dfmp2.trainium.interpreter.signatures import Member, Operator
from dfmp2.trainium.interpreter.tensors import Tensor, note_read, note_write
from dfmp2.trainium.interpreter.trace import Engine, Instruction

SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
# Operator pairs that the Scalar Engine takes in tensor_scalar (gen3 and later).
SCALAR_PAIRS = (("multiply", "add"), ("multiply", None), ("add", None))
REDUCTIONS = ("add", "maximum", "minimum")
# Valid input ranges of the tables (nki.api.shared.rst); reciprocal holds for |x|.
DOMAIN = {"reciprocal": (2.0**-42, 2.0**42), "rsqrt": (2.0**-87, 2.0**97), "sqrt": (2.0**-116, 2.0**118)}


def tensor_tensor(core: Core, *, dst: object, data1: object, data2: object, op: object, engine: object = None) -> None:
    """dst = data1 op data2."""
    out, first, second = on_chip(core, dst, "dst"), on_chip(core, data1, "data1"), on_chip(core, data2, "data2")
    matching(core, out, first, "dst and data1")
    matching(core, out, second, "dst and data2")
    if not (first.dtype.floating and second.dtype.floating and out.dtype.floating):
        raise core.outside("tensor_tensor on integer tiles")
    _not_both_psum(core, first, second, "data1 and data2")
    name = binary(core, op, "op")
    where = placed(core, engine, ("vector", "gpsimd"), (out, first, second))
    a, b = _inputs(core, first, second)
    finish(core, out, None if a is None or b is None else BINARY[name](a, b.reshape(a.shape)))
    emit(core, "tensor_tensor", where, out, (first, second), operands=2)


def tensor_scalar(
    core: Core,
    *,
    dst: object,
    data: object,
    op0: object,
    operand0: object,
    reverse0: object = False,
    op1: object = None,
    operand1: object = None,
    reverse1: object = False,
    engine: object = None,
) -> None:
    """dst = (data op0 operand0) op1 operand1."""
    out, source = on_chip(core, dst, "dst"), on_chip(core, data, "data")
    matching(core, out, source, "dst and data")
    steps = [(binary(core, op0, "op0"), scalar(core, operand0, source, "operand0"), bool(reverse0))]
    if (op1 is None) != (operand1 is None):
        raise core.refuse("scalar-operand", f"op1={op1!r} with operand1={operand1!r}")
    if op1 is not None:
        steps.append((binary(core, op1, "op1"), scalar(core, operand1, source, "operand1"), bool(reverse1)))
    where = placed(core, engine, ("vector", "scalar"), (out, source))
    pair = (steps[0][0], steps[1][0] if len(steps) > 1 else None)
    if where == "scalar" and (core.settings.target == "gen2" or pair not in SCALAR_PAIRS):
        raise core.refuse("engine", f"tensor_scalar {pair} on the Scalar Engine of {core.settings.target}")
    (values,) = _inputs(core, source)
    for name, operand, reverse in steps:
        values = with_scalar(core, values, name, operand, reverse)
    finish(core, out, values)
    emit(core, "tensor_scalar", where, out, (source, *(operand for _, operand, _ in steps)))


def scalar_tensor_tensor(
    core: Core,
    *,
    dst: object,
    data: object,
    op0: object,
    operand0: object,
    op1: object,
    operand1: object,
    reverse0: object = False,
    reverse1: object = False,
) -> None:
    """dst = (data op0 operand0) op1 operand1, operand1 a tile."""
    out, source, other = on_chip(core, dst, "dst"), on_chip(core, data, "data"), on_chip(core, operand1, "operand1")
    matching(core, out, source, "dst and data")
    matching(core, out, other, "dst and operand1")
    _not_both_psum(core, source, other, "data and operand1")
    first, second = binary(core, op0, "op0"), binary(core, op1, "op1")
    factor = scalar(core, operand0, source, "operand0")
    a, b = _inputs(core, source, other)
    a = with_scalar(core, a, first, factor, bool(reverse0))
    values = None
    if a is not None and b is not None:
        b = b.reshape(a.shape)
        values = BINARY[second](b, a) if reverse1 else BINARY[second](a, b)
    finish(core, out, values)
    emit(core, "scalar_tensor_tensor", "vector", out, (source, factor, other), operands=2)


def reciprocal(core: Core, *, dst: object, data: object) -> None:
    """dst = 1 / data."""
    out, source = on_chip(core, dst, "dst"), on_chip(core, data, "data")
    matching(core, out, source, "dst and data")
    (values,) = _inputs(core, source)
    if values is not None:
        if (np.abs(values) < SMALLEST_NORMAL).any():
            raise core.refuse("reciprocal-domain", "reciprocal of zero or of a denormal number")
        values = np.reciprocal(values)
    finish(core, out, values)
    emit(core, "reciprocal", "vector", out, (source,))


def tensor_copy(core: Core, *, dst: object, src: object, engine: object = None) -> None:
    """dst = src."""
    out, source = on_chip(core, dst, "dst"), on_chip(core, src, "src")
    matching(core, out, source, "dst and src")
    where = placed(core, engine, ("vector", "scalar", "gpsimd"), (out, source))
    if where == "scalar" and core.settings.target == "gen2":
        raise core.refuse("engine", "tensor_copy on the Scalar Engine of gen2; use activation(op=nl.copy)")
    note_read(core, source)
    note_write(core, out)
    a, b = source.values(), out.values()
    if a is not None and b is not None:
        b[...] = (a if out.dtype == source.dtype else _cast(core, working(a, core.double), out)).reshape(out.shape)
    elif a is None and not out.dtype.floating:
        out.storage.array = None
    emit(core, "tensor_copy", where, out, (source,))


def memset(core: Core, *, dst: object, value: object, engine: object = None) -> None:
    """dst = value."""
    out = on_chip(core, dst, "dst")
    if type(value) is not (float if out.dtype.floating else int):
        raise core.refuse("value-type", f"value={value!r} for {out.dtype.name}")
    where = placed(core, engine, ("vector", "gpsimd"), (out,))
    note_write(core, out, fill=True)
    values = out.values()
    if values is not None:
        values[...] = _cast(core, working(np.full(1, value), core.double), out)[0] if out.dtype.floating else value
    emit(core, "memset", where, out, (), operands=0)


def binary(core: Core, op: object, role: str) -> str:
    """Name of a two-operand arithmetic operator."""
    if not isinstance(op, Operator) or op.name not in BINARY_NAMES:
        raise core.outside(f"{role}={op!r}; use one of {', '.join(BINARY_NAMES)}")
    return op.name


def placed(core: Core, engine: object, allowed: tuple[Engine, ...], operands: tuple[Tensor, ...]) -> Engine:
    """The engine an instruction runs on; the Vector Engine where the kernel leaves it open."""
    if engine is None or engine == Member("engine", "unknown"):
        return "vector"
    for name in allowed:
        if engine == Member("engine", name):
            if name == "gpsimd" and any(operand.storage.space == "psum" for operand in operands):
                raise core.refuse("gpsimd-psum", "an operand in PSUM with engine=nisa.engine.gpsimd")
            return name
    raise core.refuse("engine", f"engine={engine!r}; one of {', '.join(allowed)}")


def with_scalar(core: Core, values: Array | None, name: str, operand: float | Tensor, reverse: bool) -> Array | None:
    """values op operand (or operand op values), the operand broadcast along the free dimensions."""
    if isinstance(operand, Tensor):
        note_read(core, operand)
        column = operand.values()
        if values is None or column is None:
            return None
        factor = free(working(column, core.double), values.shape)
    elif values is None:
        return None
    else:
        factor = np.full(1, operand, dtype=values.dtype)
    return BINARY[name](factor, values) if reverse else BINARY[name](values, factor)


def finish(core: Core, out: Tensor, values: Array | None) -> None:
    """Writes working values into the destination."""
    note_write(core, out)
    target = out.values()
    if target is None:
        return
    if values is None:
        out.storage.array = None
    else:
        target[...] = _cast(core, values, out).reshape(out.shape)


def emit(
    core: Core,
    name: str,
    engine: Engine,
    out: Tensor,
    inputs: tuple[object, ...],
    operands: int = 1,
    result: Tensor | None = None,
    elements: int = 0,
) -> None:
    """Adds an element instruction to the trace; `elements` where the input, not dst, sets the length."""
    core.issue(
        Instruction(
            name,
            engine,
            elements or out.elements,
            out.partitions,
            itemsize(out, *inputs),
            reads(*inputs),
            reads(out, result),
            reduces=result is not None,
            operands=operands,
            strided=strided(out, *inputs),
            dynamic=dynamic(out, *inputs),
            line=core.place(),
        )
    )


def _inputs(core: Core, *operands: Tensor) -> tuple[Array | None, ...]:
    """Reads the operands as working values."""
    found: list[Array | None] = []
    for operand in operands:
        note_read(core, operand)
        values = operand.values()
        found.append(None if values is None else working(values, core.double))
    return tuple(found)


def _cast(core: Core, values: Array, out: Tensor) -> Array:
    return cast(values, out.dtype, core.settings.storage)


def _not_both_psum(core: Core, first: Tensor, second: Tensor, names: str) -> None:
    if first.storage.space == "psum" and second.storage.space == "psum":
        raise core.refuse("both-psum", f"{names} both in PSUM")


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
