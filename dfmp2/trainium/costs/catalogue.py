"""The kernels by name, the price of a shape, and the compiled programs (NEFFs) a molecule needs.

    makespan = sum over calls of count * in-order makespan        floor = multiplications / (128 * 128) * passes / clock

The floor of the pair energies counts pairs i <= j (all pairs between two spins) at full use of the array. A program
belongs to padded sizes, so one list serves every molecule of the same bucket, whatever its number of occupied orbitals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from dfmp2.backends.base import Shape
from dfmp2.errors import InputError, KernelError
from dfmp2.messages import Option
from dfmp2.trainium import calls, layout
from dfmp2.trainium.calls import Call
from dfmp2.trainium.costs.chips import FLOAT32_PASSES, Assumptions, Chip
from dfmp2.trainium.costs.schedule import Account, schedule_call
from dfmp2.trainium.interpreter.rules import Shape as Tensor
from dfmp2.trainium.kernels.sizes import P, upper_columns

FLOAT32 = 4
ARRAY = 128 * 128
# Parts of the Tensor Engine's float32 peak that others reach on trn1: AWS's tuned products (documentation 2.26, matrix
# multiplication tutorial), and the float32 kernels of aws-samples/sample-spectral-dns-on-aws-neuron (docs/results.md).
USUAL, SLOWEST = 0.85, 0.40


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel.

    Attributes
    ----------
    name, short : what `--kernel` takes
    about : one line
    calls : shape, target, variant -> calls that cover the shape
    multiplications : shape -> float32 multiplications that cannot be avoided, of the floor
    operands : shape -> bytes uploaded once, None for the inputs of every call
    sizes : what the three numbers of a shape are
    """

    name: str
    short: str
    about: str
    calls: Callable[[Shape, str, str], tuple[Call, ...]]
    multiplications: Callable[[Shape], int]
    operands: Callable[[Shape], int] | None = None
    sizes: tuple[str, str, str] = ("nocc", "nvir", "naux")

    def variants(self, shape: Shape, target: str = "gen2") -> tuple[str, ...]:
        """Forms of the kernel at a shape."""
        if self.short == "K3":
            return calls.variants(shape.nvir, shape.naux, target)
        return ("plain",)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A compiled program that a molecule needs: its name, the kernel, what for, and how often it is called."""

    neff: str
    kernel: str
    purpose: str
    calls: int


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of call of a shape and its account."""

    call: Call
    account: Account


@dataclass(frozen=True, slots=True)
class Price:
    """What all calls that cover a shape cost on one core; times in ns, sums over calls.

    Attributes
    ----------
    variant : which form of the kernel
    parts : the kinds of calls
    floor : ns of the Tensor Engine at full use
    """

    variant: str
    parts: tuple[Part, ...]
    floor: float

    def total(self, of: Callable[[Account], float]) -> float:
        """Something of an account, summed over all calls."""
        return sum(part.call.count * of(part.account) for part in self.parts)

    @property
    def calls(self) -> int:
        """Number of kernel calls."""
        return sum(part.call.count for part in self.parts)

    @property
    def neffs(self) -> int:
        """Number of compiled programs."""
        return len({part.call.neff for part in self.parts})

    @property
    def makespan(self) -> float:
        """In-order schedule, host dispatch not included."""
        return self.total(lambda account: account.makespan)

    def at(self, utilisation: float) -> float:
        """The makespan where the Tensor Engine is busy for that part of it, but no less than the schedule's."""
        return max(self.makespan, self.busy("tensor") / utilisation)

    def queued(self, submit: float) -> float:
        """What submitting calls takes longer than they last, where none is waited for; `submit` : ns of each."""
        return self.total(lambda account: max(0.0, submit - account.makespan))

    @property
    def bound(self) -> float:
        """The busiest engine or port of each call."""
        return self.total(lambda account: account.bound)

    def busy(self, engine: str, *, overhead: bool = True) -> float:
        """Busy time of an engine, with or without the per-instruction overheads."""
        return self.total(
            lambda account: (account.busy if overhead else account.documented)[engine]
        )

    @property
    def utilisation(self) -> float:
        """Tensor Engine busy time over the makespan."""
        if self.makespan:
            return self.busy("tensor") / self.makespan
        return 0.0

    @property
    def hbm_bytes(self) -> int:
        """HBM traffic, both ways."""
        return int(self.total(lambda account: account.bytes_read + account.bytes_written))

    @property
    def sbuf(self) -> int:
        """SBUF bytes per partition alive at once, of the largest call."""
        return max((part.account.sbuf for part in self.parts), default=0)

    @property
    def moved(self) -> int:
        """The same of tensors that transfers write."""
        return max((part.account.moved for part in self.parts), default=0)

    @property
    def psum(self) -> int:
        """PSUM banks alive at once, of the largest call."""
        return max((part.account.psum for part in self.parts), default=0)

    @property
    def rings(self) -> int:
        """Device bytes of the static descriptor rings of all compiled programs."""
        return sum({part.call.neff: part.account.ring_bytes for part in self.parts}.values())


_ACCOUNTS: dict[tuple[object, ...], Account] = {}


def price(
    variant: str, made: Iterable[Call], multiplications: int, chip: Chip, given: Assumptions
) -> Price:
    """Price a list of calls that together make `multiplications` float32 multiplications.

    Raises
    ------
    KernelError : a kernel breaks a rule of the chip, for instance the capacity of SBUF
    """
    parts = []
    for call in made:
        key = (call.source, call.neff, chip.name, given)
        if key not in _ACCOUNTS:
            _ACCOUNTS[key] = schedule_call(call, chip, given)[1]
        parts.append(Part(call, _ACCOUNTS[key]))
    return Price(variant, tuple(parts), multiplications / ARRAY * FLOAT32_PASSES / chip.tensor)


def b_bytes(shape: Shape) -> int:
    """Bytes of B in the kernels' layout, padding included."""
    occupied = -(-shape.nocc // layout.EDGE) * layout.EDGE
    columns = layout.tile_columns(layout.padded_nvir(shape.nvir))
    return (
        occupied
        * P
        * layout.stored_slices(columns, layout.padded_naux(shape.naux))
        * columns
        * FLOAT32
    )


def _pairs(shape: Shape) -> int:
    return shape.pairs * shape.nvir**2 * shape.naux


MATRICES = ("M", "N", "K")  # A (K, M), B (K, N)
KERNELS = (
    Row(
        "pair_energy",
        "K3",
        "direct and exchange terms of all pairs i <= j of one spin space",
        lambda shape, target, variant: calls.pair_energy_calls(*shape, target, variant),
        _pairs,
        b_bytes,
    ),
    Row(
        "pair_energy_cross",
        "K3x",
        "direct terms of all pairs of two spin spaces (two equal ones for --shape)",
        lambda shape, target, _: calls.cross_calls(
            (shape.nocc,) * 2, (shape.nvir,) * 2, shape.naux, target
        ),
        lambda shape: shape.nocc**2 * shape.nvir**2 * shape.naux,
        lambda shape: 2 * b_bytes(shape),
    ),
    Row(
        "transform",
        "K12",
        "AO to MO transformation of fitted integrals in one program (ao_to_mo), in pieces where there are many",
        lambda shape, *_: calls.transform_calls(shape.nao, *shape),
        lambda shape: shape.naux * shape.nocc * shape.nao * (shape.nao + shape.nvir),
        lambda shape: calls.transform_traffic(calls.transform_calls(shape.nao, *shape)),
    ),
    Row(
        "gemm",
        "",
        "one matrix product; --shape M,N,K",
        lambda shape, *_: (calls.product_call(1, shape.naux, shape.nocc, shape.nvir),),
        prod,
        sizes=MATRICES,
    ),
    Row(
        "gemm_batch",
        "",
        "sixteen matrix products in one call; --shape M,N,K",
        lambda shape, *_: (calls.product_call(16, shape.naux, shape.nocc, shape.nvir),),
        lambda shape: 16 * prod(shape),
        sizes=MATRICES,
    ),
    Row(
        "syrk",
        "",
        "A^t A, one triangle computed; --shape 1,N,K",
        lambda shape, *_: (calls.syrk_call(shape.naux, shape.nvir),),
        lambda shape: shape.naux * shape.nvir * (shape.nvir + 1) // 2,
        sizes=MATRICES,
    ),
    Row(
        "trsm",
        "",
        "triangular solve of order K for N columns; --shape 1,N,K",
        lambda shape, *_: (calls.trsm_call(shape.naux, shape.nvir),),
        lambda shape: shape.naux * (shape.naux + 1) // 2 * shape.nvir,
        sizes=MATRICES,
    ),
    Row(
        "mp2_energy",
        "",
        "elementwise energy terms of a given T, all pairs",
        lambda shape, *_: (calls.energy_call(shape.nocc, shape.nvir),),
        lambda shape: 0,
    ),
    Row(
        "pair_fused",
        "",
        "contraction and energy terms of one pair per call",
        lambda shape, *_: (calls.fused_call(*shape),),
        _pairs,
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
    raise InputError(Option("kernel", name), f": unknown kernel: expected one of {known}")


def best(
    row: Row, shape: Shape, chip: Chip, given: Assumptions, variant: str | None = None
) -> tuple[Price, tuple[str, ...]]:
    """The variant with the shortest makespan that fits the chip, and why others do not.

    Raises
    ------
    InputError : the wanted variant does not exist for this shape
    KernelError : no variant fits
    """
    offered = row.variants(shape, chip.target)
    if variant is not None and variant not in offered:
        raise InputError(
            Option("variant", variant), f": {row.name} offers {', '.join(offered)} at this shape"
        )
    _refuse_hopeless(row, shape, chip)
    prices, refused = [], []
    for name in offered if variant is None else (variant,):
        try:
            prices.append(
                price(
                    name,
                    row.calls(shape, chip.target, name),
                    row.multiplications(shape),
                    chip,
                    given,
                )
            )
        except KernelError as error:
            refused.append(f"variant {name} does not fit: {error}")
    if not prices:
        raise KernelError(
            f"{row.name} at {','.join(map(str, shape))} does not fit a {chip.name} core: {refused[0]}"
        )
    return min(prices, key=lambda found: found.makespan), tuple(refused)


def _refuse_hopeless(row: Row, shape: Shape, chip: Chip) -> None:
    """What can never fit is refused before its hundreds of thousands of instructions are counted."""
    nvir = layout.padded_nvir(shape.nvir)
    tile = layout.padded_naux(shape.naux) // P * layout.tile_columns(nvir)
    least = FLOAT32 * (tile + (3 * upper_columns(nvir) if row.name == "pair_energy" else 0))
    if row.name.startswith("pair_") and least > chip.sbuf:
        raise KernelError(
            f"{row.name} needs {least} bytes per SBUF partition and more for {shape.nvir} virtual orbitals and "
            f"{shape.naux} fitting functions: a {chip.name} core has {chip.sbuf}"
        )


def host_bytes(row: Row, shape: Shape, found: Price) -> tuple[int, int, int]:
    """Bytes over the host link: operands uploaded once, inputs of all calls each counted anew, results."""
    tensors = [
        (p.call.count, v.shape)
        for p in found.parts
        for v in p.call.arguments.values()
        if isinstance(v, Tensor)
    ]
    each = sum(count * prod(shape) * FLOAT32 for count, shape in tensors)
    once = each if row.operands is None else row.operands(shape)
    return once, each, int(found.total(lambda account: account.bytes_written))


def programs(
    spins: tuple[Shape, ...], chip: Chip, nao: int | None = None
) -> tuple[Requirement, ...]:
    """Compiled programs for one (restricted) or two spins, those of the device transformation included.

    Parameters
    ----------
    nao : basis functions, None for as many as there are orbitals
    """
    wanted: list[tuple[str, str, Call]] = []
    names = ("alpha", "beta") if len(spins) == 2 else ("all",)
    for label, shape in zip(names, spins, strict=True):
        found, _ = best(find("pair_energy"), shape, chip, Assumptions())
        wanted += [
            (f"pair_energy ({found.variant})", f"{label} pairs", part.call) for part in found.parts
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
        if purpose == known.purpose:
            both = known.purpose
        else:
            both = f"{known.purpose}, {purpose}"
        merged[call.neff] = Requirement(call.neff, kernel, both, known.calls + call.count)
    return tuple(merged.values())


def cross(spins: Sequence[Shape], chip: Chip) -> tuple[Call, ...]:
    """Calls for the pairs of two spins."""
    alpha, beta = spins
    return calls.cross_calls(
        (alpha.nocc, beta.nocc), (alpha.nvir, beta.nvir), alpha.naux, chip.target
    )
