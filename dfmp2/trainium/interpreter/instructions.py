"""Operands of every engine, and the instructions that move data and multiply matrices: registers, DMA, Tensor Engine.

dma_copy    element moves between HBM and SBUF; a descriptor per contiguous run of the side with the shorter runs
nc_matmul   dst (+)= stationary^T moving, with the rules of its page and of PSUM groups
"""

from __future__ import annotations

from math import prod

import numpy as np

from dfmp2.trainium.interpreter.arithmetic import Array, cast, contract, working
from dfmp2.trainium.interpreter.core import Core
from dfmp2.trainium.interpreter.signatures import Member
from dfmp2.trainium.interpreter.tensors import (
    MOST_FREE_DIMENSIONS,
    Register,
    Tensor,
    describe,
    note_accumulate,
    note_read,
    note_write,
    open_group,
    require_group,
)
from dfmp2.trainium.interpreter.trace import Access, Instruction

MOST_SIZE = 65_535
MOST_STRIDE = 32_767
WARN_FREE_DIMENSIONS = 3
HARDWARE = Member("dge_mode", "hwdge")
MOST_STATIONARY = 128
MOST_MOVING = 512
WIDE = ("float32", "tfloat32")


def on_chip(core: Core, value: object, role: str) -> Tensor:
    """`value` as an engine operand: a view in SBUF or PSUM that obeys partition and access-pattern rules."""
    if not isinstance(value, Tensor):
        raise core.refuse("operand-type", f"{role} is {type(value).__name__}, not a tensor")
    if value.checked:
        return value
    if value.storage.space == "hbm":
        raise core.refuse("operand-space", f"{role} is {describe(value)}; engines reach SBUF and PSUM only")
    start, count = value.start, value.partitions
    step = 128 if count > 64 else 64 if count > 32 else 32
    if start % step:
        raise core.refuse("partition-start", f"{role} starts at partition {start} with {count} partitions")
    free = len(value.shape) - 1
    if free > MOST_FREE_DIMENSIONS or max(value.shape[1:]) > MOST_SIZE or max(value.strides[1:]) > MOST_STRIDE:
        raise core.refuse("access-pattern", f"{role}: free sizes {value.shape[1:]}, strides {value.strides[1:]}")
    if free > WARN_FREE_DIMENSIONS:
        core.trace.warnings.append(f"{core.place()}: {role} has {free} free dimensions; most instructions take 3")
    value.checked = True
    return value


def same_partitions(core: Core, first: Tensor, second: Tensor, names: str) -> None:
    """Equal partition counts of two operands."""
    if first.partitions != second.partitions:
        raise core.refuse("partition-match", f"{names} on {first.partitions} and {second.partitions} partitions")


def matching(core: Core, first: Tensor, second: Tensor, names: str) -> None:
    """Equal partition counts and equal elements per partition."""
    same_partitions(core, first, second, names)
    if first.elements != second.elements:
        raise core.refuse(
            "element-count", f"{names} have {first.elements} and {second.elements} elements per partition"
        )


def column(core: Core, value: Tensor, data: Tensor, role: str) -> Tensor:
    """A [P, 1] operand beside `data`."""
    on_chip(core, value, role)
    same_partitions(core, value, data, f"{role} and data")
    if value.elements != 1:
        raise core.refuse("scalar-operand", f"{role} has {value.elements} elements per partition")
    return value


def scalar(core: Core, value: object, data: Tensor, role: str) -> float | Tensor:
    """A scalar operand: a Python float or a [P, 1] float32 slice."""
    if isinstance(value, Tensor):
        if value.dtype.name != "float32":
            raise core.refuse("scalar-operand", f"{role} is {value.dtype.name}")
        return column(core, value, data, role)
    if type(value) is not float:
        raise core.refuse("scalar-operand", f"{role}={value!r} ({type(value).__name__})")
    return value


def overlap(first: Access, second: Access) -> bool:
    """Whether two accesses share elements (by their bounding boxes)."""
    return (
        first.tensor == second.tensor
        and first.partition_start < second.partition_stop
        and second.partition_start < first.partition_stop
        and first.byte_start < second.byte_stop
        and second.byte_start < first.byte_stop
    )


def reads(*operands: object) -> tuple[Access, ...]:
    """Accesses of the tensors among `operands`, dynamic offsets included."""
    found: tuple[Access, ...] = ()
    for operand in operands:
        if isinstance(operand, Tensor):
            found += (operand.access, *operand.also_reads) if operand.also_reads else (operand.access,)
    return found


def itemsize(*operands: object) -> int:
    """Bytes of the widest element among the tensors."""
    return max(operand.dtype.itemsize for operand in operands if isinstance(operand, Tensor))


def strided(*operands: object) -> bool:
    """Whether a tensor among the operands has a large innermost stride."""
    return any(operand.strided for operand in operands if isinstance(operand, Tensor))


def dynamic(*operands: object) -> bool:
    """Whether a tensor among the operands has an address known at run time only."""
    return any(operand.dynamic for operand in operands if isinstance(operand, Tensor))


def free(values: Array, shape: tuple[int, ...]) -> Array:
    """[P, 1]-like values shaped to broadcast along all free dimensions of `shape`."""
    return values.reshape((shape[0],) + (1,) * (len(shape) - 1))


def register_alloc(core: Core, *, x: object = None) -> Register:
    """A new register, empty or with an immediate value."""
    if x is not None and type(x) is not int:
        raise core.refuse("register", f"register_alloc(x={x!r})"[:100])
    return Register(core, x)


def register_move(core: Core, *, dst: object, src: object) -> None:
    """dst = src, an immediate or another register."""
    if not isinstance(dst, Register) or dst.loop or not (type(src) is int or isinstance(src, Register)):
        raise core.refuse("register", f"register_move to {type(dst).__name__} from {type(src).__name__}")
    dst.register_value = src.read() if isinstance(src, Register) else src


def register_load(core: Core, *, dst: object, src: object) -> None:
    """dst = the only element of an int32 tensor."""
    if not isinstance(dst, Register) or dst.loop or not isinstance(src, Tensor):
        raise core.refuse("register", f"register_load to {type(dst).__name__} from {type(src).__name__}")
    if prod(src.shape) != 1 or src.dtype.name != "int32" or src.storage.space == "psum":
        raise core.refuse("register", f"register_load from {src.shape} {src.dtype.name} in {src.storage.space}")
    note_read(core, src)
    life = src.storage.life
    life.last_use = max(core.index - 1, life.born)  # no instruction of the trace reads it
    values = src.values()
    if values is None:
        raise core.refuse("register", "counts-only mode does not know the value that this register loads")
    dst.register_value = int(values.reshape(-1)[0])


def dma_copy(
    core: Core,
    *,
    dst: object,
    src: object,
    dge_mode: object = None,
    engine: object = None,
    oob_mode: object = None,
    priority: object = None,
) -> None:
    """dst = src, element by element, converted through float32 where the formats differ."""
    out, source = _side(core, dst, "dst"), _side(core, src, "src")
    if {out.storage.space, source.storage.space} != {"hbm", "sbuf"}:
        raise core.refuse("dma-spaces", f"{source.storage.space} -> {out.storage.space}")
    if out.shape != source.shape:
        raise core.refuse("dma-shape", f"src {source.shape}, dst {out.shape}")
    if priority is not None:
        raise core.refuse("dma-priority", f"priority={priority!r} on {core.settings.target}")
    if oob_mode is not None and oob_mode != Member("oob_mode", "error"):
        raise core.outside(f"dma_copy with oob_mode={oob_mode!r}")
    if dge_mode == HARDWARE:
        if core.settings.target == "gen2":
            raise core.refuse("dma-hwdge", "dge_mode=nisa.dge_mode.hwdge on gen2")
        if out.dtype != source.dtype:
            raise core.refuse("dma-cast", f"{source.dtype.name} -> {out.dtype.name} with hardware DGE")
    elif engine is not None and engine != Member("engine", "unknown"):
        raise core.refuse("engine", f"dma_copy with engine={engine!r} without hardware DGE")
    note_read(core, source)
    note_write(core, out)
    a, b = source.values(), out.values()
    if b is not None:
        if a is None:
            out.storage.array = None
        elif out.dtype == source.dtype:
            b[...] = a
        else:
            b[...] = cast(working(a, core.double), out.dtype, core.settings.storage)
    chip = out if out.storage.space == "sbuf" else source
    total = prod(out.shape)
    narrow = min(out.dtype.itemsize, source.dtype.itemsize)
    run = min(out.run(), source.run())
    core.issue(
        Instruction(
            "dma_copy",
            "dma",
            chip.elements,
            chip.partitions,
            itemsize(out, source),
            reads(source) + out.also_reads,
            (out.access,),
            dynamic=dynamic(out, source),
            bytes=total * itemsize(out, source),
            descriptors=total // run,
            run_bytes=run * narrow,
            line=core.place(),
        )
    )


def _side(core: Core, value: object, role: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise core.refuse("operand-type", f"{role} is {type(value).__name__}, not a tensor")
    if value.storage.space == "psum":
        raise core.refuse("dma-psum", f"{role} is {describe(value)}")
    return value


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
