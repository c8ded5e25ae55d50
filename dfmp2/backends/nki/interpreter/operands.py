"""Rules that hold for the operands of every compute engine: spaces, partitions, access pattern, element counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfmp2.backends.nki.interpreter.dtypes import Array
from dfmp2.backends.nki.interpreter.memory import describe
from dfmp2.backends.nki.interpreter.tensors import MOST_FREE_DIMENSIONS, Tensor
from dfmp2.backends.nki.interpreter.trace import Access

if TYPE_CHECKING:
    from dfmp2.backends.nki.interpreter.core import Core

MOST_SIZE = 65_535
MOST_STRIDE = 32_767
WARN_FREE_DIMENSIONS = 3


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
