"""The kernels by name, the calls that cover a shape, and the compiled programs (NEFFs) a molecule needs.

A program belongs to padded sizes, so one list serves every molecule of the same bucket, whatever its number of
occupied orbitals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from dfmp2.backends.base import Shape
from dfmp2.errors import InputError, KernelError, UnsupportedByBackend
from dfmp2.trainium import calls, layout
from dfmp2.trainium.calls import Call
from dfmp2.trainium.costs.chips import Assumptions, Chip
from dfmp2.trainium.costs.pricing import Price, price
from dfmp2.trainium.interpreter.settings import Shape as Tensor

FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel.

    Attributes
    ----------
    name, short : what `--kernel` takes
    about : one line
    variants : shape -> forms of the kernel
    calls : shape, target, variant -> calls that cover the shape
    multiplications : shape -> float32 multiplications that cannot be avoided, of the floor
    operands : shape -> bytes uploaded once, None for the inputs of every call
    """

    name: str
    short: str
    about: str
    variants: Callable[[Shape], tuple[str, ...]]
    calls: Callable[[Shape, str, str], tuple[Call, ...]]
    multiplications: Callable[[Shape], int]
    operands: Callable[[Shape], int] | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program a molecule needs: its name, the kernel, what for, and how often it is called."""

    neff: str
    kernel: str
    purpose: str
    calls: int


def b_bytes(shape: Shape) -> int:
    """Bytes of B in the kernels' layout, padding included."""
    occupied = -(-shape.nocc // layout.EDGE) * layout.EDGE
    return occupied * layout.padded_naux(shape.naux) * layout.tile_columns(layout.padded_nvir(shape.nvir)) * FLOAT32


def _plain(shape: Shape) -> tuple[str, ...]:
    return ("plain",)


def _same(shape: Shape, target: str, variant: str) -> tuple[Call, ...]:
    return calls.pair_energy_calls(*shape, target, variant)


def _cross(shape: Shape, target: str, variant: str) -> tuple[Call, ...]:
    return calls.cross_calls((shape.nocc, shape.nocc), (shape.nvir, shape.nvir), shape.naux, target)


def _transform(shape: Shape, target: str, variant: str) -> tuple[Call, ...]:
    return calls.transform_calls(shape.nao, *shape, target)


def _predecessor(kernel: str) -> Callable[[Shape, str, str], tuple[Call, ...]]:
    def listed(shape: Shape, target: str, variant: str) -> tuple[Call, ...]:
        found = tuple(call for call in calls.predecessor_calls(*shape) if call.kernel == kernel)
        if not found:
            raise UnsupportedByBackend(f"{kernel} has no call for {shape.nvir} virtual orbitals: at most 512")
        return found

    return listed


def _elements(shape: Shape) -> int:
    """Elements of a product of padded virtual columns."""
    nvir = layout.padded_nvir(shape.nvir)
    return layout.tile_columns(nvir) * nvir


KERNELS = (
    Row(
        "pair_energy",
        "K3",
        "direct and exchange terms of all pairs i <= j of one spin space",
        lambda shape: calls.variants(shape.nvir, shape.naux),
        _same,
        lambda shape: shape.pairs * shape.nvir**2 * shape.naux,
        b_bytes,
    ),
    Row(
        "pair_energy_cross",
        "K3x",
        "direct terms of all pairs of two spin spaces (two equal ones for --shape)",
        _plain,
        _cross,
        lambda shape: shape.nocc**2 * shape.nvir**2 * shape.naux,
        lambda shape: 2 * b_bytes(shape),
    ),
    Row(
        "transform",
        "K12",
        "AO to MO transformation of fitted integrals: half_transform (K1), full_transform (K2)",
        _plain,
        _transform,
        lambda shape: shape.naux * shape.nocc * shape.nao * (shape.nao + shape.nvir),
    ),
    Row("gemm", "", "one matrix product", _plain, _predecessor("gemm"), lambda s: layout.P * _elements(s)),
    Row(
        "gemm_batch",
        "",
        "four matrix products in one call",
        _plain,
        _predecessor("gemm_batch"),
        lambda s: 4 * layout.P * _elements(s),
    ),
    Row(
        "syrk", "", "A^t A, one triangle computed", _plain, _predecessor("syrk"), lambda s: layout.P * _elements(s) // 2
    ),
    Row("trsm", "", "triangular solve in blocks of 128", _plain, _predecessor("trsm"), lambda s: 512 * 512 * 64),
    Row("mp2_energy", "", "elementwise energy terms of a given T", _plain, _predecessor("mp2_energy"), lambda s: 0),
    Row(
        "pair_fused",
        "",
        "contraction and energy terms of one pair per call",
        _plain,
        _predecessor("pair_fused"),
        lambda shape: shape.pairs * shape.nvir**2 * shape.naux,
        b_bytes,
    ),
)


def find(name: str) -> Row:
    """The kernel of that name.

    Raises
    ------
    InputError : there is none
    """
    for row in KERNELS:
        if name and name in (row.name, row.short):
            return row
    known = ", ".join(f"{row.name} ({row.short})" if row.short else row.name for row in KERNELS)
    raise InputError(f"--kernel {name}: unknown kernel: expected one of {known}")


def best(
    row: Row, shape: Shape, chip: Chip, given: Assumptions, variant: str | None = None
) -> tuple[Price, tuple[str, ...]]:
    """The variant with the shortest makespan that fits the chip, and why others do not.

    Raises
    ------
    InputError : the wanted variant does not exist for this shape
    KernelError : no variant fits
    """
    offered = row.variants(shape)
    if variant is not None and variant not in offered:
        raise InputError(f"--variant {variant}: {row.name} offers {', '.join(offered)} at this shape")
    _refuse_hopeless(row, shape, chip)
    prices, refused = [], []
    for name in offered if variant is None else (variant,):
        try:
            prices.append(price(name, row.calls(shape, chip.target, name), row.multiplications(shape), chip, given))
        except KernelError as error:
            refused.append(f"variant {name} does not fit: {error}")
    if not prices:
        raise KernelError(f"{row.name} at {','.join(map(str, shape))} does not fit a {chip.name} core: {refused[0]}")
    return min(prices, key=lambda found: found.makespan), tuple(refused)


def _refuse_hopeless(row: Row, shape: Shape, chip: Chip) -> None:
    """What can never fit is refused before its hundreds of thousands of instructions are counted."""
    nvir = layout.padded_nvir(shape.nvir)
    tile = layout.padded_naux(shape.naux) // layout.P * layout.tile_columns(nvir)
    if not row.name.startswith("pair_"):
        return
    least = FLOAT32 * (tile + (3 * layout.upper_columns(nvir) if row.name == "pair_energy" else 0))
    if least > chip.sbuf:
        raise KernelError(
            f"{row.name} needs {least} bytes per SBUF partition and more for {shape.nvir} virtual orbitals and "
            f"{shape.naux} fitting functions: a {chip.name} core has {chip.sbuf}"
        )


def host_bytes(row: Row, shape: Shape, found: Price) -> tuple[int, int, int]:
    """Bytes over the host link: operands uploaded once, inputs of all calls each counted anew, results."""
    each = sum(part.call.count * _input_bytes(part.call.arguments) for part in found.parts)
    once = each if row.operands is None else row.operands(shape)
    return once, each, sum(part.call.count * part.account.bytes_written for part in found.parts)


def programs(spins: tuple[Shape, ...], chip: Chip, given: Assumptions, nao: int | None = None) -> tuple[Program, ...]:
    """Compiled programs for one (restricted) or two spins, those of the device transformation included.

    Parameters
    ----------
    nao : basis functions, None for as many as there are orbitals
    """
    wanted: list[tuple[str, str, tuple[Call, ...]]] = []
    names = ("alpha", "beta") if len(spins) == 2 else ("all",)
    for label, shape in zip(names, spins, strict=True):
        found, _ = best(find("pair_energy"), shape, chip, given)
        wanted.append((f"pair_energy ({found.variant})", f"{label} pairs", tuple(p.call for p in found.parts)))
    if len(spins) == 2:
        wanted.append(("pair_energy_cross", "alpha-beta pairs", cross(spins, chip)))
    most = max(shape.nvir for shape in spins)  # one program serves both spins: columns of the larger of the two
    for shape in spins:
        for call in calls.transform_calls(nao or max(s.nao for s in spins), shape.nocc, most, shape.naux, chip.target):
            wanted.append((call.kernel, "transformation, where it is done on the device", (call,)))
    merged: dict[str, Program] = {}
    for kernel, purpose, needed in wanted:
        for call in needed:
            known = merged.get(call.neff)
            if known is None:
                merged[call.neff] = Program(call.neff, kernel, purpose, call.count)
            else:
                both = known.purpose if purpose == known.purpose else f"{known.purpose}, {purpose}"
                merged[call.neff] = Program(call.neff, kernel, both, known.calls + call.count)
    return tuple(merged.values())


def cross(spins: Sequence[Shape], chip: Chip) -> tuple[Call, ...]:
    """Calls for the pairs of two spins."""
    alpha, beta = spins
    return calls.cross_calls((alpha.nocc, beta.nocc), (alpha.nvir, beta.nvir), alpha.naux, chip.target)


def _input_bytes(arguments: dict[str, Any]) -> int:
    return sum(prod(value.shape) * FLOAT32 for value in arguments.values() if isinstance(value, Tensor))
