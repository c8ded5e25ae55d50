"""Operands of instructions: rules for tiles, columns and scalars, operators, and the engine."""

from __future__ import annotations

from collections.abc import Callable

from dfmp2.trainium.interpreter.arithmetic import BINARY, SUBSET, Array
from dfmp2.trainium.interpreter.memory import MOST_FREE_DIMENSIONS, Core, Tensor, describe
from dfmp2.trainium.interpreter.signatures import Engine, Member, Operator

MOST_SIZE = 65_535
MOST_STRIDE = 32_767
REDUCTIONS = ("add", "maximum", "minimum")


def on_chip(core: Core, value: object, role: str) -> Tensor:
    """`value` as an engine operand: a view in SBUF or PSUM that obeys partition and access-pattern
    rules."""
    tensor = require_tensor(core, value, role)
    if tensor.storage.space == "hbm":
        raise core.refuse(
            "operand-space", f"{role} is {describe(tensor)}; engines reach SBUF and PSUM only"
        )
    start, count = tensor.start, tensor.partitions
    step = 32
    if count > 64:
        step = 128
    elif count > 32:
        step = 64
    if start % step:
        raise core.refuse(
            "partition-start", f"{role} starts at partition {start} with {count} partitions"
        )
    sizes, strides = tensor.shape[1:], tensor.strides[1:]
    if len(sizes) > MOST_FREE_DIMENSIONS or max(sizes) > MOST_SIZE or max(strides) > MOST_STRIDE:
        raise core.refuse("access-pattern", f"{role}: free sizes {sizes}, strides {strides}")
    return tensor


def require_tensor(core: Core, value: object, role: str) -> Tensor:
    """`value` as an operand in any memory."""
    if not isinstance(value, Tensor):
        raise core.refuse("operand-type", f"{role} is {type(value).__name__}, not a tensor")
    return value


def tiles(core: Core, **given: object) -> list[Tensor]:
    """On-chip operands, all with as many partitions and elements per partition as the first."""
    (role, first), *others = [(role, on_chip(core, value, role)) for role, value in given.items()]
    for name, other in others:
        require_same_partitions(core, first, other, f"{role} and {name}")
        if first.elements != other.elements:
            counts = f"{first.elements} and {other.elements} elements per partition"
            raise core.refuse("element-count", f"{role} and {name} have {counts}")
    return [first, *(other for _, other in others)]


def require_same_partitions(core: Core, first: Tensor, second: Tensor, names: str) -> None:
    """Raise if two operands, named by `names`, lie on different numbers of partitions."""
    if first.partitions != second.partitions:
        raise core.refuse(
            "partition-match", f"{names} on {first.partitions} and {second.partitions} partitions"
        )


def column(core: Core, value: Tensor, data: Tensor, role: str) -> Tensor:
    """A [P, 1] operand that matches `data`."""
    on_chip(core, value, role)
    require_same_partitions(core, value, data, f"{role} and data")
    if value.elements != 1:
        raise core.refuse("scalar-operand", f"{role} has {value.elements} elements per partition")
    return value


def scalar(
    core: Core, value: object, data: Tensor, role: str, rule: str = "scalar-operand"
) -> float | Tensor:
    """A scalar operand: a Python float or a [P, 1] float32 slice."""
    if isinstance(value, Tensor):
        if value.dtype.name != "float32":
            raise core.refuse(rule, f"{role} is {value.dtype.name}")
        return column(core, value, data, role)
    if type(value) is not float:
        raise core.refuse(rule, f"{role}={value!r} ({type(value).__name__})")
    return value


def require_not_both_psum(core: Core, first: Tensor, second: Tensor, names: str) -> None:
    """Raise if two operands that are read together are both in PSUM."""
    if first.storage.space == second.storage.space == "psum":
        raise core.refuse("both-psum", f"{names} both in PSUM")


def binary(core: Core, op: object, role: str) -> str:
    """Name of a two-operand arithmetic operator."""
    powers = role in ("op0", "op1")  # of tensor_scalar; the power of two tiles runs on GpSimd
    if not isinstance(op, Operator) or op.name not in BINARY or (op.name == "power" and not powers):
        raise core.outside(
            f"{role}={op!r}; use one of {', '.join(name for name in SUBSET if name in BINARY)}"
        )
    return op.name


def applied(name: str, reverse: object) -> Callable[[Array, Array], Array]:
    """The operator, with its operands exchanged if `reverse`."""
    function = BINARY[name]
    if reverse:
        return lambda first, second: function(second, first)
    return function


def reduction_operator(core: Core, op: object) -> str:
    """Name of an operator that reduces rows."""
    name = binary(core, op, "reduction op")
    if name not in REDUCTIONS:
        raise core.outside(f"reduction with nl.{name}; use one of {', '.join(REDUCTIONS)}")
    return name


def placed(
    core: Core, engine: object, allowed: tuple[Engine, ...], operands: tuple[Tensor, ...]
) -> Engine:
    """The engine an instruction runs on; the first allowed one if the kernel does not choose."""
    if engine is None or engine == Member("engine", "unknown"):
        return allowed[0]
    for name in allowed:
        if engine == Member("engine", name):
            if name == "gpsimd" and any(operand.storage.space == "psum" for operand in operands):
                raise core.refuse(
                    "gpsimd-psum", "an operand in PSUM with engine=nisa.engine.gpsimd"
                )
            return name
    raise core.refuse("engine", f"engine={engine!r}; one of {', '.join(allowed)}")
