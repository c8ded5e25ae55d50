"""The kernels by name, the price of a shape, and the compiled programs (NEFFs) that a molecule
needs.

    time = sum over calls of count * `model.engines`        floor = multiplications / (128 * 128) * passes / clock

The floor of the pair energies counts pairs i <= j (all pairs between two spins) at full use of the
array. A program belongs to padded virtual orbitals and fitting functions and to the occupied
orbitals of whole and of last blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from dfmp2.backends.base import Shape
from dfmp2.errors import InputError, KernelError
from dfmp2.errors.messages import Option
from dfmp2.trainium import calls, layout
from dfmp2.trainium.calls import KernelCall
from dfmp2.trainium.costs import model
from dfmp2.trainium.costs.model import FLOAT32, Chip, Engines
from dfmp2.trainium.interpreter.rules import Shape as Tensor
from dfmp2.trainium.kernels.sizes import P


class Row(NamedTuple):
    """A kernel.

    Attributes
    ----------
    name, short : what `--kernel` takes
    about : one line
    calls : shape, target, variant -> calls that cover the shape
    multiplications : shape -> float32 multiplications that cannot be avoided, of the floor
    sizes : what the three numbers of a shape are
    """

    name: str
    short: str
    about: str
    calls: Callable[[Shape, str, str], tuple[KernelCall, ...]]
    multiplications: Callable[[Shape], int]
    sizes: tuple[str, str, str] = ("nocc", "nvir", "naux")

    def variants(self, shape: Shape, target: str = "gen2") -> tuple[str, ...]:
        """Forms of the kernel at a shape."""
        if self.short == "K3":
            return calls.variants(shape.nvir, shape.naux, target)
        return ("plain",)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A compiled program that a molecule needs: its name, the kernel, what for, and how often it is
    called."""

    neff: str
    kernel: str
    purpose: str
    calls: int


@dataclass(frozen=True, slots=True)
class Price:
    """What all calls that cover a shape cost on one core; times in ns, sums over calls.

    Attributes
    ----------
    variant : which form of the kernel
    parts : the kinds of calls, and what one of each keeps busy
    floor : ns of the Tensor Engine at full use
    """

    variant: str
    parts: tuple[tuple[KernelCall, Engines], ...]
    floor: float

    def total(self, of: Callable[[Engines], float]) -> float:
        """Something of a call, summed over all of them."""
        return sum(call.count * of(engines) for call, engines in self.parts)

    def at(self, use: float = 1.0) -> float:
        """Time without launches where the engine that binds is busy for this part of it."""
        return self.total(lambda engines: engines.at(use))

    def queued(self, submit: float) -> float:
        """What submitting calls takes longer than they last, where none is waited for; `submit` :
        ns of each."""
        return self.total(lambda engines: max(0.0, submit - engines.at(1.0)))

    @property
    def calls(self) -> int:
        """Number of kernel calls."""
        return sum(call.count for call, _ in self.parts)

    @property
    def neffs(self) -> int:
        """Number of compiled programs."""
        return len({call.neff for call, _ in self.parts})


def price(variant: str, made: Iterable[KernelCall], multiplications: int, chip: Chip) -> Price:
    """The price of calls that together make `multiplications` float32 multiplications."""
    parts = tuple((call, model.engines(call, chip)) for call in made)
    return Price(variant, parts, multiplications / P**2 * model.PASSES / chip.tensor)


def b_bytes(shape: Shape) -> int:
    """Bytes of B in the kernels' layout, padding included."""
    columns = layout.tile_columns(layout.padded_nvir(shape.nvir))
    slices = layout.stored_slices(columns, layout.padded_naux(shape.naux))
    return FLOAT32 * shape.nocc * P * slices * columns


def _pairs(shape: Shape) -> int:
    return shape.pairs * shape.nvir**2 * shape.naux


MATRICES = ("M", "N", "K")  # A (K, M), B (K, N)
KERNELS = (
    Row(
        name="pair_energy",
        short="K3",
        about="direct and exchange terms of all pairs i <= j of one spin space",
        calls=lambda shape, target, variant: calls.pair_energy_calls(*shape, target, variant),
        multiplications=_pairs,
    ),
    Row(
        name="pair_energy_cross",
        short="K3x",
        about="direct terms of all pairs of two spin spaces (two equal ones for --shape)",
        calls=lambda shape, target, _: calls.cross_calls(
            (shape.nocc,) * 2, (shape.nvir,) * 2, shape.naux, target
        ),
        multiplications=lambda shape: shape.nocc**2 * shape.nvir**2 * shape.naux,
    ),
    Row(
        name="transform",
        short="K12",
        about="AO to MO transformation of fitted integrals in one program (ao_to_mo), in pieces "
        "where there are many",
        calls=lambda shape, *_: calls.transform_calls(shape.nao, *shape),
        multiplications=lambda shape: (
            shape.naux * shape.nocc * shape.nao * (shape.nao + shape.nvir)
        ),
    ),
    Row(
        name="gemm",
        short="",
        about="one matrix product; --shape M,N,K",
        calls=lambda shape, *_: (calls.product_call(1, shape.naux, shape.nocc, shape.nvir),),
        multiplications=prod,
        sizes=MATRICES,
    ),
    Row(
        name="gemm_batch",
        short="",
        about="sixteen matrix products in one call; --shape M,N,K",
        calls=lambda shape, *_: (calls.product_call(16, shape.naux, shape.nocc, shape.nvir),),
        multiplications=lambda shape: 16 * prod(shape),
        sizes=MATRICES,
    ),
    Row(
        name="syrk",
        short="",
        about="A^t A, one triangle computed; --shape 1,N,K",
        calls=lambda shape, *_: (calls.syrk_call(shape.naux, shape.nvir),),
        multiplications=lambda shape: shape.naux * shape.nvir * (shape.nvir + 1) // 2,
        sizes=MATRICES,
    ),
    Row(
        name="trsm",
        short="",
        about="triangular solve of order K for N columns; --shape 1,N,K",
        calls=lambda shape, *_: (calls.trsm_call(shape.naux, shape.nvir),),
        multiplications=lambda shape: shape.naux * (shape.naux + 1) // 2 * shape.nvir,
        sizes=MATRICES,
    ),
    Row(
        name="mp2_energy",
        short="",
        about="elementwise energy terms of a given T, all pairs",
        calls=lambda shape, *_: (calls.energy_call(shape.nocc, shape.nvir),),
        multiplications=lambda shape: 0,
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
    raise InputError(Option("kernel", name), f": unknown kernel: expected one of {known}")


def best(row: Row, shape: Shape, chip: Chip, variant: str | None = None) -> Price:
    """The price of the variant that runs take, or of the one that is named.

    Raises
    ------
    InputError : there is no such variant
    KernelError : the kernel does not fit the memory of a core
    """
    offered = row.variants(shape, chip.target)
    if variant is not None and variant not in offered:
        raise InputError(
            Option("variant", variant), f": {row.name} offers {', '.join(offered)} at this shape"
        )
    if row.name.startswith("pair_energy"):
        require_partition(row.name, shape, chip)
    name = variant or offered[-1]
    made = row.calls(shape, chip.target, name)
    return price(name, made, row.multiplications(shape), chip)


def require_partition(kernel: str, shape: Shape, chip: Chip) -> None:
    """Refuse pair energies that need more of a partition than there is.

    Raises
    ------
    KernelError : by name, with the bytes
    """
    nvir, naux = layout.padded_nvir(shape.nvir), layout.padded_naux(shape.naux)
    least = layout.sbuf_bytes(nvir, naux)
    if least > chip.sbuf:
        raise KernelError(
            f"{kernel} needs {least} bytes per SBUF partition for {shape.nvir} virtual orbitals "
            f"and {shape.naux} fitting functions: a {chip.name} core has {chip.sbuf}: use ",
            Option("backend", "cpu"),
        )


def listed_programs(
    spins: tuple[Shape, ...], chip: Chip, nao: int | None = None
) -> tuple[Requirement, ...]:
    """Compiled programs for one (restricted) or two spins, those of the device transformation
    included.

    Parameters
    ----------
    nao : basis functions, None for as many as there are orbitals
    """
    wanted: list[tuple[str, str, KernelCall]] = []
    names = ["all"]
    if len(spins) == 2:
        names = ["alpha", "beta"]
    for label, shape in zip(names, spins, strict=True):
        found = best(find("pair_energy"), shape, chip)
        wanted += [
            (f"pair_energy ({found.variant})", f"{label} pairs", call) for call, _ in found.parts
        ]
    if len(spins) == 2:
        wanted += [("pair_energy_cross", "alpha-beta pairs", call) for call in cross(spins, chip)]
    functions = nao or max(shape.nao for shape in spins)
    for shape in calls.one_bucket(spins):
        made = calls.transform_calls(functions, *shape)
        wanted += [
            (call.kernel, "transformation, where it is done on the device", call) for call in made
        ]
    merged: dict[str, Requirement] = {}
    for kernel, purpose, call in wanted:
        known = merged.get(call.neff, Requirement(call.neff, kernel, purpose, 0))
        both = known.purpose
        if purpose != known.purpose:
            both = f"{known.purpose}, {purpose}"
        merged[call.neff] = Requirement(call.neff, kernel, both, known.calls + call.count)
    return tuple(merged.values())


def cross(spins: Sequence[Shape], chip: Chip) -> tuple[KernelCall, ...]:
    """Calls for the pairs of two spins."""
    alpha, beta = spins
    return calls.cross_calls(
        (alpha.nocc, beta.nocc), (alpha.nvir, beta.nvir), alpha.naux, chip.target
    )


def uploaded(made: Iterable[KernelCall]) -> int:
    """Bytes of the tensors of one call of each kind."""
    tensors = [v for call in made for v in call.arguments.values() if isinstance(v, Tensor)]
    return FLOAT32 * sum(prod(tensor.shape) for tensor in tensors)


def as_dict(
    spins: Sequence[Shape], needed: Sequence[Requirement], sent: Sequence[int]
) -> dict[str, Any]:
    """The object `dfmp2 kernels list --json` prints; `sent` : bytes of B that each core is sent."""
    return {
        "kernels": {row.name: {"short": row.short, "about": row.about} for row in KERNELS},
        "shapes": [list(shape) for shape in spins],
        "buckets": [
            [layout.padded_nvir(shape.nvir), layout.padded_naux(shape.naux)] for shape in spins
        ],
        "neffs": len(needed) if spins else None,
        "programs": [
            {
                "neff": one.neff,
                "kernel": one.kernel,
                "purpose": one.purpose,
                "calls": one.calls,
            }
            for one in needed
        ],
        "b_bytes_by_core": list(sent),
    }
