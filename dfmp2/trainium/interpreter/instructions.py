"""The instructions of the subset: their arithmetic, rules, and records in the trace.

dma_copy              dst = src, in HBM and SBUF
nc_matmul             dst (+)= stationary^T moving, on the Tensor Engine, with the rules of PSUM groups
nc_transpose          dst = data^T, through PSUM or, up to 32 x 32, on the Vector Engine
tensor_tensor         dst = data1 op data2                      tensor_scalar   dst = (data op0 s0) op1 s1
scalar_tensor_tensor  dst = (data op0 s) op1 tensor             reciprocal      dst = 1 / data
tensor_copy           dst = src                                 memset          dst = value
tensor_reduce         over the last free axes                   tensor_scalar_reduce  a row sum besides
activation            dst = op(data scale + bias), on the Scalar Engine; optionally the row sums of dst besides

Element instructions work in float32 and cast to the destination's format. In counts-only runs
values are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from types import SimpleNamespace

import numpy as np

from dfmp2.trainium.interpreter.arithmetic import (
    BINARY,
    UNARY,
    Array,
    cast,
    reduce_rows,
    working,
)
from dfmp2.trainium.interpreter.memory import (
    Core,
    Instruction,
    Tensor,
    continues_group,
    describe,
    note_read,
    note_write,
    open_group,
    overlap,
    require_group,
)
from dfmp2.trainium.interpreter.operands import (
    applied,
    binary,
    column,
    on_chip,
    placed,
    reduction_operator,
    require_not_both_psum,
    require_same_partitions,
    require_tensor,
    scalar,
    tiles,
)
from dfmp2.trainium.interpreter.rules import PSUM_BANK_BYTES
from dfmp2.trainium.interpreter.signatures import Engine, Member, Operator

# Bytes between partitions, and of a transfer, from which dma-stride applies
SLOW_ROW, SLOW_TRANSFER = (8192, 2**18)
HARDWARE = Member("dge_mode", "hwdge")
MOST_STATIONARY = 128
MOST_MOVING = 512
VECTOR_BLOCK = 32  # rows and columns that the Vector Engine transposes
WIDE = ("float32", "tfloat32")
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
# Operator pairs that the Scalar Engine accepts in tensor_scalar (gen3 and later).
SCALAR_PAIRS = (("multiply", "add"), ("multiply", None), ("add", None))
# Valid input ranges of the tables (nki.api.shared.rst); for reciprocal, of |x|.
DOMAIN = {
    "reciprocal": (2.0**-42, 2.0**42),
    "rsqrt": (2.0**-87, 2.0**97),
    "sqrt": (2.0**-116, 2.0**118),
}
# the arguments of an instruction by name, with defaults filled in
Given = SimpleNamespace
RESET = Member("reduce_cmd", "reset_reduce")


def compute(
    core: Core,
    name: str,
    engine: Engine,
    out: Tensor,
    inputs: tuple[float | Tensor, ...],
    function: Callable[..., Array],
    *,
    result: Tensor | None = None,
    reduction: str = "add",
) -> None:
    """An element instruction: out = function(inputs), and result = its rows reduced.

    inputs : the first sets the shape, floats and [P, 1] tensors are broadcast
    """
    _apart(core, out, inputs)
    values = _values(core, inputs)
    done = None
    if values is not None:
        done = function(*values)
    rows = None  # computed before writing out, which may overlap an input
    if result is not None and done is not None:
        rows = reduce_rows(done, reduction, 1)
    store(core, out, done)
    written = [out]
    if result is not None:
        store(core, result, rows)
        written.append(result)
    issue(core, name, engine, written, inputs)


def _apart(core: Core, out: Tensor, inputs: tuple[float | Tensor, ...]) -> None:
    """Raise if the destination overlaps a source, unless both are the same elements in the same
    order."""
    for operand in inputs:
        if not isinstance(operand, Tensor) or not _overlap(out, operand):
            continue
        same = (out.offset, out.shape, out.strides) == (
            operand.offset,
            operand.shape,
            operand.strides,
        )
        if not same and np.intersect1d(out.places(), operand.places()).size:
            raise core.refuse(
                "overlap",
                f"dst {out.shape} and a source {operand.shape} share a part of {describe(out)}",
            )


def _values(core: Core, inputs: tuple[float | Tensor, ...]) -> list[float | Array] | None:
    """Read the inputs as working values that broadcast along the first; None if one is unknown."""
    tensors = [operand for operand in inputs if isinstance(operand, Tensor)]
    for tensor in tensors:
        note_read(core, tensor)
    shape = tensors[0].shape
    found: list[float | Array] = []
    for operand in inputs:
        if not isinstance(operand, Tensor):
            found.append(operand)
            continue
        values = operand.values()
        if values is None:
            return None
        own = shape
        if operand.elements == 1:
            own = (shape[0],) + (1,) * (len(shape) - 1)
        found.append(working(values, core.settings.exact).reshape(own))
    return found


def store(core: Core, out: Tensor, values: Array | None) -> None:
    """Write values to the destination, in its format."""
    note_write(core, out)
    target = out.values()
    if target is None or values is None:
        out.storage.array = None
    else:
        target[...] = cast(values, out.dtype, core.settings.exact).reshape(out.shape)


def _copy(core: Core, out: Tensor, source: Tensor) -> None:
    """Copy elements, converting if the formats differ."""
    _apart(core, out, (source,))
    note_read(core, source)
    store(core, out, source.values())


def issue(
    core: Core,
    name: str,
    engine: Engine,
    written: Sequence[Tensor],
    inputs: Sequence[float | Tensor],
    *,
    one_zero: bool = False,
    moved: int = 0,
) -> None:
    """Add an instruction to the trace; `written` : its destination first, `moved` : bytes."""
    instruction = Instruction(
        name=name,
        engine=engine,
        elements=written[0].elements,
        reads=tuple(one.storage.space for one in inputs if isinstance(one, Tensor)),
        writes=tuple(tensor.storage.space for tensor in written),
        one_zero=one_zero,
        bytes=moved,
    )
    core.trace.instructions.append(instruction)


def tensor_tensor(core: Core, given: Given) -> None:
    """dst = data1 op data2."""
    out, first, second = tiles(core, dst=given.dst, data1=given.data1, data2=given.data2)
    if not (first.dtype.floating and second.dtype.floating and out.dtype.floating):
        raise core.outside("tensor_tensor on integer tiles")
    require_not_both_psum(core, first, second, "data1 and data2")
    function = BINARY[binary(core, given.op, "op")]
    where = placed(core, given.engine, ("vector", "gpsimd"), (out, first, second))
    compute(core, "tensor_tensor", where, out, (first, second), function)


def tensor_scalar(core: Core, given: Given) -> None:
    """dst = (data op0 operand0) op1 operand1."""
    out, source = tiles(core, dst=given.dst, data=given.data)
    names = [binary(core, given.op0, "op0")]
    operands = [scalar(core, given.operand0, source, "operand0")]
    if (given.op1 is None) != (given.operand1 is None):
        raise core.refuse("scalar-operand", f"op1={given.op1!r} with operand1={given.operand1!r}")
    if given.op1 is not None:
        names.append(binary(core, given.op1, "op1"))
        operands.append(scalar(core, given.operand1, source, "operand1"))
    where = placed(core, given.engine, ("vector", "scalar"), (out, source))
    pair = (names[0], names[1] if given.op1 is not None else None)
    if where == "scalar" and (core.settings.target == "gen2" or pair not in SCALAR_PAIRS):
        raise core.refuse(
            "engine", f"tensor_scalar {pair} on the Scalar Engine of {core.settings.target}"
        )

    reversals = (given.reverse0, given.reverse1)

    def chained(values: Array, *others: Array) -> Array:
        for name, other, reverse in zip(names, others, reversals, strict=False):
            if name == "power" and (values < SMALLEST_NORMAL).any():
                raise core.refuse("power-domain", "power of a number that is not positive")
            values = applied(name, reverse)(values, other)
        return values

    compute(core, "tensor_scalar", where, out, (source, *operands), chained)


def scalar_tensor_tensor(core: Core, given: Given) -> None:
    """dst = (data op0 operand0) op1 operand1, operand1 a tile."""
    out, source, other = tiles(core, dst=given.dst, data=given.data, operand1=given.operand1)
    require_not_both_psum(core, source, other, "data and operand1")
    first = applied(binary(core, given.op0, "op0"), given.reverse0)
    second = applied(binary(core, given.op1, "op1"), given.reverse1)
    factor = scalar(core, given.operand0, source, "operand0")

    def function(a: Array, s: Array, b: Array) -> Array:
        return second(first(a, s), b)

    compute(core, "scalar_tensor_tensor", "vector", out, (source, factor, other), function)


def reciprocal(core: Core, given: Given) -> None:
    """dst = 1 / data."""
    out, source = tiles(core, dst=given.dst, data=given.data)

    def function(values: Array) -> Array:
        if (np.abs(values) < SMALLEST_NORMAL).any():
            raise core.refuse("reciprocal-domain", "reciprocal of zero or of a denormal number")
        return UNARY["reciprocal"](values)

    compute(core, "reciprocal", "vector", out, (source,), function)


def tensor_copy(core: Core, given: Given) -> None:
    """dst = src."""
    out, source = tiles(core, dst=given.dst, src=given.src)
    where = placed(core, given.engine, ("vector", "scalar", "gpsimd"), (out, source))
    if where == "scalar" and core.settings.target == "gen2":
        raise core.refuse(
            "engine", "tensor_copy on the Scalar Engine of gen2; use activation(op=nl.copy)"
        )
    _copy(core, out, source)
    issue(core, "tensor_copy", where, [out], [source])


def memset(core: Core, given: Given) -> None:
    """dst = value."""
    out = on_chip(core, given.dst, "dst")
    if type(given.value) is not (float if out.dtype.floating else int):
        raise core.refuse("value-type", f"value={given.value!r} for {out.dtype.name}")
    where = placed(core, given.engine, ("vector", "gpsimd"), (out,))
    store(core, out, np.full(out.shape, given.value))
    issue(core, "memset", where, [out], [])


def tensor_reduce(core: Core, given: Given) -> None:
    """dst = op over the last free axes of data (times -1 with negate)."""
    out = on_chip(core, given.dst, "dst")
    source = on_chip(core, given.data, "data")
    require_same_partitions(core, out, source, "dst and data")
    name = reduction_operator(core, given.op)
    axes = given.axis
    if not isinstance(axes, tuple):
        axes = (axes,)
    rank = len(source.shape)
    if (
        not axes
        or any(type(a) is not int for a in axes)
        or axes != tuple(range(rank - len(axes), rank))
        or 0 in axes
    ):
        raise core.refuse("reduce-axis", f"axis={given.axis!r} for a tile of rank {rank}")
    keep = rank - len(axes)
    if out.elements != prod(source.shape[1:keep]):
        raise core.refuse("element-count", f"dst {out.shape} for axes {axes} of {source.shape}")

    def function(values: Array) -> Array:
        reduced = reduce_rows(values, name, keep)
        return -reduced if given.negate else reduced

    compute(core, "tensor_reduce", "vector", out, (source,), function)


def tensor_scalar_reduce(core: Core, given: Given) -> None:
    """dst = data op0 operand0; reduce_res = reduce_op over each row of dst."""
    out, source = tiles(core, dst=given.dst, data=given.data)
    name = binary(core, given.op0, "op0")
    reduction = reduction_operator(core, given.reduce_op)
    factor = scalar(core, given.operand0, source, "operand0")
    if given.reduce_cmd not in (None, RESET):
        raise core.outside(f"tensor_scalar_reduce with reduce_cmd={given.reduce_cmd!r}")
    if not isinstance(given.reduce_res, Tensor):
        raise core.outside("tensor_scalar_reduce without reduce_res")
    result = column(core, given.reduce_res, source, "reduce_res")
    if _overlap(result, out):
        raise core.refuse("activation-result", "reduce_res overlaps dst")

    compute(
        core,
        "tensor_scalar_reduce",
        "vector",
        out,
        (source, factor),
        applied(name, given.reverse0),
        result=result,
        reduction=reduction,
    )


def _overlap(first: Tensor, second: Tensor) -> bool:
    return first.storage is second.storage and overlap(first.rectangle, second.rectangle)


def activation(core: Core, given: Given) -> None:
    """dst = op(data scale + bias); reduce_res[p, 0] = sum of row p."""
    out, source = tiles(core, dst=given.dst, data=given.data)
    if not isinstance(given.op, Operator) or given.op.name not in UNARY:
        raise core.refuse("activation-op", f"op={given.op!r}")
    name = given.op.name
    steps: list[Callable[..., Array]] = []
    operands: list[float | Tensor] = []
    factor = scalar(core, given.scale, source, "scale", "activation-scale")
    if isinstance(factor, Tensor) or factor != 1.0:
        steps.append(np.multiply)
        operands.append(factor)
    if given.bias is not None:
        steps.append(np.add)
        operands.append(_bias(core, given.bias, source, name))
    result = _row_sum(core, out, source, given.reduce_op, given.reduce_res, given.reduce_cmd)

    def function(values: Array, *others: Array) -> Array:
        for step, other in zip(steps, others, strict=True):
            values = step(values, other)
        if name in DOMAIN:
            low, high = DOMAIN[name]
            size = np.abs(values) if name == "reciprocal" else values
            if not ((size >= low) & (size <= high)).all():
                raise core.refuse(
                    "activation-domain",
                    f"{name} of values from {values.min():.3g} to {values.max():.3g}",
                )
        return UNARY[name](values)

    compute(core, "activation", "scalar", out, (source, *operands), function, result=result)


def _bias(core: Core, bias: object, data: Tensor, op: str) -> float | Tensor:
    gen2 = core.settings.target == "gen2"
    if isinstance(bias, Tensor):
        if bias.dtype.name == "tfloat32" or bias.elements != 1:
            raise core.refuse("activation-bias", f"bias {bias.shape} {bias.dtype.name}")
        column(core, bias, data, "bias")
    elif gen2 or type(bias) is not float:
        raise core.refuse("activation-bias", f"bias={bias!r} on {core.settings.target}")
    if gen2 and op == "reciprocal":
        raise core.refuse("activation-reciprocal", "reciprocal with a bias on gen2")
    if gen2 and op == "copy":
        raise core.refuse("activation-copy-bias", "copy with a bias on gen2")
    return bias


def _row_sum(
    core: Core, out: Tensor, data: Tensor, op: object, result: object, command: object
) -> Tensor | None:
    """The destination of the row sums; all three arguments must be given, or none."""
    if op is None and result is None and command in (None, Member("reduce_cmd", "idle")):
        return None
    adds = isinstance(op, Operator) and op.name == "add"
    if not adds or command != RESET or not isinstance(result, Tensor):
        given = f"reduce_op={op!r}, reduce_cmd={command!r}, reduce_res given: {result is not None}"
        raise core.refuse("activation-reduce", given)
    on_chip(core, result, "reduce_res")
    require_same_partitions(core, result, data, "reduce_res and data")
    if result.elements != 1 or result.dtype.name != "float32" or _overlap(result, out):
        raise core.refuse(
            "activation-result", f"reduce_res {result.shape} {result.dtype.name}, dst {out.shape}"
        )
    return result


def dma_copy(core: Core, given: Given) -> None:
    """dst = src, element by element, converted through float32 if the formats differ."""
    out = require_tensor(core, given.dst, "dst")
    source = require_tensor(core, given.src, "src")
    for side, role in ((out, "dst"), (source, "src")):
        if side.storage.space == "psum":
            raise core.refuse("dma-psum", f"{role} is {describe(side)}")
    if out.shape != source.shape:
        raise core.refuse("dma-shape", f"src {source.shape}, dst {out.shape}")
    if given.priority is not None:
        raise core.refuse("dma-priority", f"priority={given.priority!r} on {core.settings.target}")
    if given.dge_mode == HARDWARE:
        if core.settings.target == "gen2":
            raise core.refuse("dma-hwdge", "dge_mode=nisa.dge_mode.hwdge on gen2")
        if out.dtype != source.dtype:
            raise core.refuse(
                "dma-cast", f"{source.dtype.name} -> {out.dtype.name} with hardware DGE"
            )
    elif given.engine not in (None, Member("engine", "unknown")):
        raise core.refuse("engine", f"dma_copy with engine={given.engine!r} without hardware DGE")
    _copy(core, out, source)
    out.storage.life.moved = True
    far = out  # the side in HBM
    if out.storage.space == "sbuf":
        far = source
    total = prod(out.shape)
    row = far.strides[0] * far.dtype.itemsize
    in_part = far.strides[0] != prod(far.shape[1:])
    gen2 = core.settings.measured and core.settings.target == "gen2"
    slow = in_part and row >= SLOW_ROW and row & (row - 1) == 0 and 4 * total >= SLOW_TRANSFER
    if gen2 and slow:
        raise core.refuse("dma-stride", f"partitions lie {row} bytes apart in {describe(far)}")
    widest = max(out.dtype.itemsize, source.dtype.itemsize)
    issue(core, "dma_copy", "dma", [out], [source], moved=total * widest)


def nc_matmul(core: Core, given: Given) -> None:
    """dst (+)= stationary^T moving: (K, M), (K, N) -> (M, N)."""
    out = on_chip(core, given.dst, "dst")
    left = on_chip(core, given.stationary, "stationary")
    right = on_chip(core, given.moving, "moving")
    _check_geometry(core, out, left, right)
    accumulate = given.accumulate
    if accumulate is None:
        accumulate = continues_group(core, out)
    if type(accumulate) is not bool:
        raise core.refuse("matmul-accumulate", f"accumulate={accumulate!r}")
    _check_dtypes(core, out, left, right, given.is_transpose is True)
    note_read(core, left)
    note_read(core, right)
    if given.is_transpose:
        _check_transpose(core, right, accumulate)
    flagged = [(given.is_moving_onezero, right), (given.is_stationary_onezero, left)]
    if any(flag and not _holds_one_zero(operand) for flag, operand in flagged):
        raise core.refuse("matmul-onezero", "a flagged operand holds other values than 0 and 1")
    if accumulate:
        require_group(core, out)
    else:
        note_write(core, out, matmul=True)
        open_group(out)
    _multiply(core, out, left, right, accumulate)
    issue(
        core, "nc_matmul", "tensor", [out], [left, right], one_zero=any(flag for flag, _ in flagged)
    )


def nc_transpose(core: Core, given: Given) -> None:
    """dst = data^T."""
    out = on_chip(core, given.dst, "dst")
    source = on_chip(core, given.data, "data")
    if len(source.shape) != 2 or out.shape != source.shape[::-1]:
        raise core.refuse("matmul-dst", f"dst {out.shape} for data {source.shape}")
    if out.dtype != source.dtype:
        raise core.refuse("matmul-transpose", f"dst {out.dtype.name}, data {source.dtype.name}")
    allowed: tuple[Engine, ...] = ("tensor", "vector")
    if out.storage.space == "sbuf":
        allowed = ("vector", "tensor")
    where = placed(core, given.engine, allowed, (out, source))
    spaces = source.storage.space, out.storage.space
    if where == "tensor" and spaces != ("sbuf", "psum"):
        raise core.refuse("matmul-space", f"data, dst in {', '.join(spaces)}")
    most = {"tensor": MOST_STATIONARY, "vector": VECTOR_BLOCK}[where]
    if max(source.shape) > most:
        raise core.refuse("matmul-size", f"data {source.shape} on the {where} engine")
    note_read(core, source)
    values = source.values()
    if values is not None:
        values = values.T
    store(core, out, values)
    issue(core, "nc_transpose", where, [out], [source])


def _check_geometry(core: Core, out: Tensor, left: Tensor, right: Tensor) -> None:
    spaces = tuple(operand.storage.space for operand in (left, right, out))
    if spaces != ("sbuf", "sbuf", "psum"):
        raise core.refuse("matmul-space", f"stationary, moving, dst in {', '.join(spaces)}")
    if len(left.shape) != 2 or len(right.shape) != 2 or len(out.shape) != 2:
        raise core.refuse("matmul-rank", f"shapes {left.shape}, {right.shape} -> {out.shape}")
    if left.partitions != right.partitions:
        raise core.refuse("matmul-contraction", f"stationary {left.shape}, moving {right.shape}")
    if left.start != right.start:
        raise core.refuse(
            "matmul-start", f"stationary at partition {left.start}, moving at {right.start}"
        )
    if left.elements > MOST_STATIONARY or right.elements > MOST_MOVING:
        raise core.refuse("matmul-size", f"stationary {left.shape}, moving {right.shape}")
    expected = (left.shape[1], right.shape[1])
    first, end = out.rectangle[2:]
    if first // PSUM_BANK_BYTES != (end - 1) // PSUM_BANK_BYTES:
        raise core.refuse("psum-bank", f"dst {out.shape} lies in several banks")
    if out.shape != expected or out.start != 0:
        raise core.refuse(
            "matmul-dst", f"dst {out.shape} at partition {out.start}; expected {expected} at 0"
        )


def _check_dtypes(core: Core, out: Tensor, left: Tensor, right: Tensor, transpose: bool) -> None:
    names = left.dtype.name, right.dtype.name
    if (
        not left.dtype.floating
        or not right.dtype.floating
        or ((names[0] in WIDE) != (names[1] in WIDE))
    ):
        raise core.refuse("matmul-dtype", f"stationary {names[0]}, moving {names[1]}")
    if transpose and core.settings.target != "gen2":
        if out.dtype != left.dtype:
            raise core.refuse("matmul-transpose", f"dst {out.dtype.name}, data {left.dtype.name}")
    elif out.dtype.name != "float32":
        raise core.refuse("matmul-dtype", f"dst {out.dtype.name}")
    elif transpose and left.dtype.name != "float32":
        raise core.refuse("matmul-transpose", f"dst float32, data {left.dtype.name}")


def _check_transpose(core: Core, right: Tensor, accumulate: bool) -> None:
    values = right.values()
    identity = values is None or np.array_equal(values, np.eye(len(values)))
    if accumulate or right.shape[0] != right.shape[1] or not identity:
        raise core.refuse("matmul-transpose", f"moving {right.shape}, accumulate={accumulate}")


def _holds_one_zero(tensor: Tensor) -> bool:
    """Whether all elements are 0 or 1 (True when only counting)."""
    values = tensor.values()
    return values is None or bool(((values == 0) | (values == 1)).all())


def _multiply(core: Core, out: Tensor, left: Tensor, right: Tensor, accumulate: bool) -> None:
    a, b, c = left.values(), right.values(), out.values()
    if a is None or b is None or c is None:
        return
    product = working(a, core.settings.exact).T @ working(b, core.settings.exact)
    if accumulate:
        c += product
    else:
        c[...] = product
