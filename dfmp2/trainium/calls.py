"""The kernel calls that cover a shape, and the compiled programs (NEFFs) that they need.

A program is determined by a kernel, the padded shapes of its tensors and its compile-time
constants; all tensors are float32, and nothing depends on the number of occupied orbitals.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.backends.base import Shape
from dfmp2.errors import InputError, KernelError, Option
from dfmp2.trainium import layout
from dfmp2.trainium.interpreter.rules import GENERATION
from dfmp2.trainium.interpreter.rules import Shape as Tensor
from dfmp2.trainium.kernels.sizes import (
    BANK,
    DEPTH,
    PART,
    SOLVED,
    P,
    equal_parts,
    upper_columns,
)

LARGEST = 100_000  # of any dimension; anything larger is a typing error
NUMBER = re.compile("[0-9]{1,9}")  # Unicode has other digits
SHAPES = {  # synthetic shapes used for the public trn1 figures
    "small": Shape(16, 112, 384),
    "medium": Shape(64, 448, 1536),
    "large": Shape(96, 672, 2304),
}
KERNELS = "dfmp2.trainium.kernels"
# Whether runs use the variant in which all tiles have addresses; for compilers that cannot place
# the tiles of the others.
PLACED = False
# products per program; no reports on compiling larger ones are known (trnblas: 88,000 statements in
# 27 s)
MOST = 80_000
KERNEL_FOLDER = Path(__file__).parent / "kernels"


def parse_shape(text: str) -> Shape:
    """A shape from its name or its three numbers.

    Raises
    ------
    InputError : the text is neither
    """
    if text in SHAPES:
        return SHAPES[text]
    parts = text.replace("/", ",").split(",")
    expected = f"{', '.join(SHAPES)} or three numbers NOCC/NVIR/NAUX such as 16/112/384"
    if len(parts) != 3 or not all(NUMBER.fullmatch(part.strip()) for part in parts):
        raise InputError(Option("shape", text[:40]), f": not understood: expected {expected}")
    shape = Shape(*(int(part) for part in parts))
    if min(shape) < 1 or max(shape) > LARGEST:
        raise InputError(
            Option("shape", text),
            f": every number must lie between 1 and {LARGEST}: expected {expected}",
        )
    return shape


def spin_shapes(text: str, beta: str | None) -> tuple[Shape, ...]:
    """Shapes of one spin, or of two if `beta` ("NOCC/NVIR") is given.

    Raises
    ------
    InputError : one of the texts cannot be parsed
    """
    alpha = parse_shape(text)
    if beta is None:
        return (alpha,)
    if len(beta.replace("/", ",").split(",")) != 2:
        raise InputError(Option("beta", beta), ": expected two numbers NOCC/NVIR such as 15/113")
    try:
        return alpha, parse_shape(f"{beta},{alpha.naux}")
    except InputError as error:
        raise InputError(
            Option("beta", beta), f": expected two numbers from 1 to {LARGEST}, such as 15/113"
        ) from error


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel call.

    Attributes
    ----------
    source : module of the kernel; kernel : its function
    arguments : by name; `interpreter.rules.Shape` placeholders for tensors, the rest compile-time
        constants
    count : number of such calls in a calculation
    """

    source: str
    kernel: str
    arguments: dict[str, Any]
    count: int

    @property
    def program(self) -> Program:
        """The program compiled for it."""
        return program_of(self.source, self.kernel, self.arguments)


@dataclass(frozen=True, slots=True)
class PairForm:
    """K3 at padded sizes: constants, tables, and order of pairs.

    Attributes
    ----------
    nvir, naux : padded
    variant : "plain", "packed" (pairs share a row tile for their last rows), or "placed" (plain,
        with addresses for all tiles)
    target : "gen2" (trn1) or "gen3" (trn2)
    rows, columns : numbers of occupied orbitals i and j of the block
    """

    nvir: int
    naux: int
    variant: str
    target: str = "gen2"
    rows: int = 1
    columns: int = 1

    @property
    def group(self) -> int:
        """Number of pairs that share a row tile."""
        if self.variant == "packed":
            return P // (self.nvir % P)
        return 1

    @property
    def residents(self) -> int:
        """Number of blocks of B_i held at a time."""
        most = {
            "plain": layout.residents,
            "packed": layout.packed_residents,
            "placed": layout.placed_residents,
        }
        return most[self.variant](self.nvir, self.naux, self.target)

    def constants(self, diagonal: bool) -> dict[str, Any]:
        """Compile-time arguments; `diagonal` : whether both blocks are the same."""
        return {
            "sizes": (self.nvir, self.naux // P, self.residents, self.group),
            "diagonal": diagonal,
            "transpose": self.target == "gen3",
            "placed": self.variant == "placed",
        }

    def items(self, diagonal: bool) -> tuple[layout.Item, ...]:
        """Pairs in order of emission."""
        return layout.emission(self.rows, self.columns, self.residents, diagonal, self.group)

    def singles(self, diagonal: bool) -> bool:
        """Whether there are pairs that share no row tile and so need another table of e_a + e_b."""
        return any(len(item.rows) == 1 for item in self.items(diagonal))

    def tables(self, eps_vir: Array, diagonal: bool) -> Array:
        """Tables of e_a + e_b, and identities for transposes."""
        return layout.pair_tables(eps_vir, self.singles(diagonal), self.group)

    def tensors(self, diagonal: bool) -> dict[str, Tensor]:
        """Shapes of the other arguments."""
        across = layout.tile_columns(self.nvir)
        neg = layout.neg_table(np.zeros(self.rows), np.zeros(self.columns), self.items(diagonal))
        width = P
        if self.singles(diagonal):
            width += upper_columns(self.nvir)
        if self.group > 1:
            full, height = divmod(self.nvir, P)
            width += upper_columns(full * P) + (full + 2) * height
        return {
            "b_i": _block(self.rows, self.naux, across),
            "b_j": _block(self.columns, self.naux, across),
            "tables": Tensor((P, layout.stored_columns(width))),
            "neg": Tensor(neg.shape),
        }


def occupied_blocks(nocc: int, nvir: int, naux: int) -> list[tuple[int, int]]:
    """(occupied orbitals per block, number of such blocks): for full blocks, and for a shorter last
    one."""
    edge = layout.block_edge(layout.padded_nvir(nvir), layout.padded_naux(naux))
    whole, rest = divmod(nocc, edge)
    return [(size, count) for size, count in ((edge, whole), (rest, 1)) if size and count]


def pair_energy_calls(
    nocc: int, nvir: int, naux: int, target: str = "gen2", variant: str = "plain"
) -> tuple[KernelCall, ...]:
    """Calls of K3 for all pairs i <= j of one spin space: off-diagonal and diagonal blocks, full
    and last ones.

    Parameters
    ----------
    nocc, nvir, naux : sizes of the molecule, unpadded
    target : "gen2" (trn1) or "gen3" (trn2)
    variant : one of `variants` for these sizes
    """
    edge = layout.block_edge(layout.padded_nvir(nvir), layout.padded_naux(naux))
    whole, rest = divmod(nocc, edge)
    kinds = [(edge, edge, False, whole * (whole - 1) // 2), (edge, edge, True, whole)]
    if rest:
        kinds += [(edge, rest, False, whole), (rest, rest, True, 1)]
    made = []
    for rows, columns, diagonal, count in kinds:
        if count:
            form = PairForm(
                nvir=layout.padded_nvir(nvir),
                naux=layout.padded_naux(naux),
                variant=variant,
                target=target,
                rows=rows,
                columns=columns,
            )
            arguments = form.tensors(diagonal) | form.constants(diagonal)
            made.append(_call("pair_energy", "pair_energy_block", arguments, count))
    return tuple(made)


def variants(nvir: int, naux: int, target: str = "gen2") -> tuple[str, ...]:
    """Variants of K3 for a shape, ending with the one that runs use; `target` : "gen2" or
    "gen3"."""
    padded = layout.padded_nvir(nvir), layout.padded_naux(naux)
    found = ["plain"]
    if layout.packing(*padded, target):
        found.append("packed")
    if layout.placed_residents(*padded, target):
        found.insert(len(found) if PLACED else 0, "placed")
    return tuple(found)


def cross_calls(
    nocc: tuple[int, int], nvir: tuple[int, int], naux: int, target: str
) -> tuple[KernelCall, ...]:
    """Calls of K3's cross mode for all pairs of an alpha and a beta occupied orbital."""
    padded = layout.padded_naux(naux)
    left, right = (layout.tile_columns(layout.padded_nvir(n)) for n in nvir)
    n = layout.padded_nvir(nvir[1])
    made = []
    for rows, above in occupied_blocks(nocc[0], nvir[0], naux):
        for columns, beside in occupied_blocks(nocc[1], nvir[1], naux):
            arguments = {
                "b_i": _block(rows, padded, left),
                "b_j": _block(columns, padded, right),
                "eu": Tensor((P, layout.stored_columns(left // P * n))),
                "neg": Tensor((P, rows * columns)),
                "nvir": n,
                "slices": padded // P,
                "residents": layout.residents(max(map(layout.padded_nvir, nvir)), padded, target),
            }
            made.append(_call("pair_energy_cross", "pair_energy_cross", arguments, above * beside))
    return tuple(made)


def transform_calls(nao: int, nocc: int, nvir: int, naux: int) -> tuple[KernelCall, ...]:
    """Calls that make the blocks of B of one spin: the first call of each block, then those for its
    other pieces.

    Raises
    ------
    KernelError : more basis functions than a call can take
    """
    tiles, slices = -(-nao // P), layout.padded_naux(naux) // P
    once = layout.slices_at_once(tiles, slices)
    columns = layout.tile_columns(layout.padded_nvir(nvir))
    made = []
    for size, blocks in occupied_blocks(nocc, nvir, naux):
        block = _block(size, slices * P, columns)
        given = {
            "a": Tensor(layout.fitted_shape(tiles, once)),
            "c_occ": Tensor((P, tiles, size)),
            "c_vir": Tensor((P, tiles, columns)),
        }
        made.append(_call("transform", "ao_to_mo", given | {"stored": block.shape[1]}, blocks))
        if once < slices:
            more = blocks * (-(-slices // once) - 1)
            made.append(_call("transform", "ao_to_mo_next", given | {"before": block}, more))
    return tuple(made)


def transform_traffic(spins: Sequence[Shape], nao: int) -> int:
    """Bytes uploaded: fitted integrals once for all spins, in whole pieces, and the orbitals of
    each spin."""
    tiles = -(-nao // P)
    slices = layout.padded_naux(spins[0].naux) // P
    once = layout.slices_at_once(tiles, slices)
    fitted = -(-slices // once) * prod(layout.fitted_shape(tiles, once))
    most = max(shape.nvir for shape in spins)
    virtual = len(spins) * layout.tile_columns(layout.padded_nvir(most))
    occupied = sum(shape.nocc for shape in spins)
    return 4 * (fitted + tiles * P * (occupied + virtual))


def product_call(batches: int, contracted: int, rows: int, columns: int) -> KernelCall:
    """The call that multiplies (batches, contracted, rows) and (batches, contracted, columns).

    Raises
    ------
    KernelError : more contracted rows than a call can take, or more products than a program can
        have
    """
    if contracted > DEPTH:
        raise KernelError(
            f"gemm: {contracted} contracted rows: a call takes {DEPTH}: add up products of parts "
            "of them"
        )
    slices = max(1, -(-contracted // P))
    parts = -(-columns // min(BANK, PART // slices))
    _require_program("gemm", batches * -(-rows // P) * slices * parts)
    a, b = (Tensor((batches * contracted, layout.stored_columns(size))) for size in (rows, columns))
    return _call("products", "gemm", {"a": a, "b": b, "batches": batches, "columns": rows}, 1)


def _require_program(kernel: str, products: int) -> None:
    if products > MOST:
        raise KernelError(
            f"{kernel}: {products} products of tiles: a program has at most {MOST}: take fewer "
            "columns"
        )


def syrk_call(contracted: int, columns: int) -> KernelCall:
    """The call that makes A^t A of A (contracted, columns)."""
    given = product_call(1, contracted, columns, columns).arguments
    return _call(
        "products", "syrk", {"a": given["a"], "identity": Tensor((P, P)), "columns": columns}, 1
    )


def trsm_call(size: int, columns: int) -> KernelCall:
    """The call that solves L (size, size) X = B (size, columns).

    Raises
    ------
    KernelError : a larger L than a call can take, or more products than a program can have
    """
    if size > DEPTH:
        raise KernelError(
            f"trsm: {size} rows: a call takes {DEPTH}: solve for blocks of them, one after the "
            "other"
        )
    tiles = -(-size // P)
    _require_program("trsm", tiles * (tiles + 1) // 2 * -(-columns // min(BANK, SOLVED // tiles)))
    factor = Tensor((tiles * P, layout.stored_slices(P, tiles * P), P))
    return _call(
        "products",
        "trsm",
        {"factor": factor, "b": Tensor((size, layout.stored_columns(columns)))},
        1,
    )


def energy_call(nocc: int, nvir: int) -> KernelCall:
    """The calls of `mp2_energy`, one for each occupied orbital.

    Raises
    ------
    KernelError : T of a single pair is too large
    """
    rows = equal_parts(nvir, P)
    if -(-nvir // P) * nvir > PART:
        raise KernelError(
            f"mp2_energy: {nvir} virtual orbitals: T of a pair takes 24 kB of a partition, at most "
            "877"
        )
    given = {
        "t": Tensor((nvir, layout.stored_columns(nocc * nvir))),
        "eu": Tensor((nvir, nvir)),
        "neg": Tensor((rows, nocc)),
        "identity": Tensor((rows, rows)),
        "ic": 1,
        "nocc": nocc,
    }
    return _call("products", "mp2_energy", given, nocc)


def _block(edge: int, naux: int, columns: int) -> Tensor:
    """B of `edge` orbitals; `naux` is padded."""
    return Tensor((edge * P, layout.stored_slices(columns, naux), columns))


def _call(module: str, kernel: str, arguments: dict[str, Any], count: int) -> KernelCall:
    """A call, checked for the size of its tensors.

    Raises
    ------
    KernelError : a tensor is too large for the chips
    """
    for name, value in arguments.items():
        if isinstance(value, Tensor) and 4 * prod(value.shape) > layout.TENSOR:
            raise KernelError(
                (
                    f"{kernel}: {name} {'x'.join(map(str, value.shape))} has "
                    f"{4 * prod(value.shape)} bytes: a tensor may have {layout.TENSOR}, because "
                    "DMA offsets have 32 bits: use "
                ),
                Option("backend", "cpu"),
            )
    return KernelCall(f"{KERNELS}.{module}", kernel, arguments, count)


@dataclass(frozen=True, slots=True)
class Program:
    """One kernel at given shapes and constants.

    Attributes
    ----------
    source, kernel : module and function
    tensors : (name, shape) of each tensor; statics : (name, value) of each constant
    """

    source: str
    kernel: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    statics: tuple[tuple[str, Any], ...]

    @property
    def label(self) -> str:
        """A label for messages."""
        shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in self.tensors)
        return f"{self.kernel} ({shapes})"

    def fingerprint(self, target: str) -> str:
        """Identifies the program on a chip for these kernel sources, independent of the
        compiler."""
        what = [
            self.source,
            self.kernel,
            self.tensors,
            self.statics,
            target,
            1,  # physical cores of a logical one
            source_hash(),
        ]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def program_of(source: str, kernel: str, arguments: Mapping[str, Any]) -> Program:
    """The program needed by a call with these arguments; any argument with a shape is a tensor."""
    tensors = {
        name: tuple(map(int, value.shape))
        for name, value in arguments.items()
        if hasattr(value, "shape")
    }
    statics = {name: value for name, value in arguments.items() if name not in tensors}
    return Program(source, kernel, tuple(sorted(tensors.items())), tuple(sorted(statics.items())))


def one_bucket(spins: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The shapes seen by the kernels if the device transforms: all spins get the largest number of
    virtual orbitals."""
    most = max((shape.nvir for shape in spins), default=0)
    return tuple(shape._replace(nvir=most) for shape in spins)


def programs(spins: tuple[Shape, ...], target: str, nao: int = 0) -> tuple[Program, ...]:
    """All programs that the backend launches for the pair energies of one or two spins, and for the
    transformation.

    Parameters
    ----------
    target : "trn1" or "trn2"
    nao : number of basis functions if the device transforms, otherwise 0
    """
    made: list[KernelCall] = []
    if nao:
        spins = one_bucket(spins)
        for shape in spins:
            made += transform_calls(nao, *shape)
    made += pair_calls(spins, GENERATION[target])
    return tuple(dict.fromkeys(call.program for call in made))


def pair_calls(spins: Sequence[Shape], target: str) -> list[KernelCall]:
    """Calls that a run makes for the pair energies of one or two spins; `target` : "gen2" or
    "gen3"."""
    found: list[KernelCall] = []
    for shape in spins:
        found += pair_energy_calls(*shape, target, variants(shape.nvir, shape.naux, target)[-1])
    if len(spins) == 2:
        found += mixed_calls(spins, target)
    return found


def mixed_calls(spins: Sequence[Shape], target: str) -> tuple[KernelCall, ...]:
    """Calls for the pairs of two spins."""
    alpha, beta = spins
    return cross_calls((alpha.nocc, beta.nocc), (alpha.nvir, beta.nvir), alpha.naux, target)


def source_hash() -> str:
    """SHA-256 of all kernel files, hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(KERNEL_FOLDER.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
