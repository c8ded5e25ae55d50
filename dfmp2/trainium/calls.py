"""Which kernel calls cover a shape, and the compiled programs (NEFFs) that they need.

A program belongs to a kernel, the padded shapes of its tensors and its compile-time constants; all tensors are float32,
and nothing depends on the number of occupied orbitals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dfmp2.backends.base import Shape
from dfmp2.errors import InputError, KernelError
from dfmp2.trainium import layout
from dfmp2.trainium.interpreter.rules import Shape as Tensor
from dfmp2.trainium.layout import EDGE, Array, P

LARGEST = 100_000  # of any dimension: what goes beyond is a typing error, not a molecule
SHAPES = {  # the synthetic shapes the public trn1 figures were measured with
    "small": Shape(16, 112, 384),
    "medium": Shape(64, 448, 1536),
    "large": Shape(96, 672, 2304),
}
KERNELS = "dfmp2.trainium.kernels"
VARIANTS = ("plain", "packed")
KERNEL_FOLDER = Path(__file__).parent / "kernels"
GENERATION = {"trn1": "gen2", "trn2": "gen3"}
CHIP = {generation: chip for chip, generation in GENERATION.items()}


def parse_shape(text: str) -> Shape:
    """A shape from its name or its three numbers.

    Raises
    ------
    InputError : neither
    """
    if text in SHAPES:
        return SHAPES[text]
    parts = text.split(",")
    expected = f"{', '.join(SHAPES)} or three numbers NOCC,NVIR,NAUX such as 16,112,384"
    if len(parts) != 3 or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise InputError(f"--shape {text}: not understood: expected {expected}")
    shape = Shape(*(int(part) for part in parts))
    if min(shape) < 1 or max(shape) > LARGEST:
        raise InputError(f"--shape {text}: every number must lie between 1 and {LARGEST}: expected {expected}")
    return shape


def spin_shapes(text: str, beta: str | None) -> tuple[Shape, ...]:
    """Shapes of one spin, or of two where `beta` ("NOCC,NVIR") is given.

    Raises
    ------
    InputError : either text is not understood
    """
    alpha = parse_shape(text)
    if beta is None:
        return (alpha,)
    if beta.count(",") != 1:
        raise InputError(f"--beta {beta}: expected two numbers NOCC,NVIR such as 15,113")
    try:
        return alpha, parse_shape(f"{beta},{alpha.naux}")
    except InputError as error:
        raise InputError(f"--beta {beta}: expected two numbers from 1 to {LARGEST}, such as 15,113") from error


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel call.

    Attributes
    ----------
    source : module of the kernel; kernel : function in it
    arguments : by name; `interpreter.rules.Shape` placeholders for tensors, the rest compile-time constants
    count : how often a calculation makes it
    neff : name of the compiled program; equal names are the same program
    """

    source: str
    kernel: str
    arguments: dict[str, Any]
    count: int
    neff: str


@dataclass(frozen=True, slots=True)
class PairForm:
    """K3 at padded sizes, plain or packed: its kernel, constants and tables, and the order of its pairs.

    Attributes
    ----------
    nvir, naux : padded; target : "gen2" (trn1) or "gen3" (trn2); edge : occupied orbitals of a block
    """

    nvir: int
    naux: int
    packed: bool
    target: str = "gen2"
    edge: int = EDGE

    @property
    def module(self) -> str:
        """File of the kernel."""
        return "pair_energy_packed" if self.packed else "pair_energy"

    @property
    def kernel(self) -> str:
        """Function in it."""
        return "pair_energy_packed" if self.packed else "pair_energy_block"

    @property
    def residents(self) -> int:
        """Blocks of B_i held at a time."""
        most = layout.packed_residents if self.packed else layout.residents
        return most(self.nvir, self.naux, self.target, self.edge)

    def constants(self, diagonal: bool) -> dict[str, Any]:
        """Compile-time arguments; `diagonal` : both blocks are the same one."""
        found = {"nvir": self.nvir, "slices": self.naux // P, "residents": self.residents, "run": layout.RUN}
        return {**found, "diagonal": diagonal, "transpose": self.target == "gen3"}

    def items(self, diagonal: bool) -> tuple[layout.Item, ...]:
        """Pairs in the order in which they are emitted."""
        group = P // (self.nvir % P) if self.packed else 1
        return layout.emission(self.edge, self.residents, diagonal, group)

    def eu(self, eps_vir: Array, diagonal: bool) -> Array:
        """Table of e_a + e_b."""
        return layout.packed_tables(eps_vir, diagonal) if self.packed else layout.eu_table(eps_vir)

    def identity(self) -> Array:
        """For transposes."""
        return layout.packed_identity(self.nvir) if self.packed else np.eye(P)

    def tensors(self, diagonal: bool) -> dict[str, Tensor]:
        """Shapes of the other arguments."""
        block = _block(self.edge, self.naux, layout.tile_columns(self.nvir))
        items, columns = self.items(diagonal), layout.upper_columns(self.nvir)
        groups = sum(len(item.rows) > 1 for item in items)
        if self.packed:
            full, height = divmod(self.nvir, P)
            columns = layout.upper_columns(full * P) + (full + 1) * height + (columns if diagonal else 0)
        neg = 2 * sum(len(item.rows) for item in items) + groups
        widths = {"eu": layout.stored_columns(columns), "neg": neg, "identity": self.identity().shape[1]}
        return {"b_i": block, "b_j": block, **{name: Tensor((P, width)) for name, width in widths.items()}}


def pair_energy_calls(
    nocc: int, nvir: int, naux: int, target: str = "gen2", variant: str = "plain", edge: int = EDGE
) -> tuple[Call, ...]:
    """Calls of K3 for all pairs i <= j of one spin space: off-diagonal and diagonal blocks.

    Parameters
    ----------
    nocc, nvir, naux : sizes of the molecule, not padded
    target : "gen2" (trn1) or "gen3" (trn2)
    variant : "plain", or "packed" where leftover rows can be packed (see `variants`)

    Raises
    ------
    InputError : the variant does not exist for these sizes
    """
    offered = variants(nvir, naux, target, edge)
    if variant not in offered:
        raise InputError(f"variant {variant!r}: {nvir} virtual orbitals offer {', '.join(offered)}")
    form = PairForm(layout.padded_nvir(nvir), layout.padded_naux(naux), variant == "packed", target, edge)
    blocks = -(-nocc // edge)
    return tuple(
        _call(form.module, form.kernel, form.tensors(diagonal) | form.constants(diagonal), count)
        for diagonal, count in ((False, blocks * (blocks - 1) // 2), (True, blocks))
        if count
    )


def variants(nvir: int, naux: int, target: str = "gen2", edge: int = EDGE) -> tuple[str, ...]:
    """Variants of K3 for a shape, the best last; `target` : "gen2" or "gen3"."""
    packed = layout.packing(layout.padded_nvir(nvir), layout.padded_naux(naux), target, edge)
    return VARIANTS if packed else VARIANTS[:1]


def cross_calls(
    nocc: tuple[int, int], nvir: tuple[int, int], naux: int, target: str = "gen2", edge: int = EDGE
) -> tuple[Call, ...]:
    """Calls of K3's cross mode for all pairs of an alpha and a beta occupied orbital."""
    count = -(-nocc[0] // edge) * -(-nocc[1] // edge)
    if not count:
        return ()
    padded = layout.padded_naux(naux)
    left, right = (layout.tile_columns(layout.padded_nvir(n)) for n in nvir)
    n = layout.padded_nvir(nvir[1])
    arguments = {
        "b_i": _block(edge, padded, left),
        "b_j": _block(edge, padded, right),
        "eu": Tensor((P, layout.stored_columns(left // P * n))),
        "neg": Tensor((P, edge * edge)),
        "nvir": n,
        "slices": padded // P,
        "residents": layout.residents(max(map(layout.padded_nvir, nvir)), padded, target, edge),
    }
    return (_call("pair_energy_cross", "pair_energy_cross", arguments, count),)


def transform_calls(
    nao: int, nocc: int, nvir: int, naux: int, target: str = "gen2", edge: int = EDGE
) -> tuple[Call, ...]:
    """Calls of K1 (128 fitting functions, 64 occupied orbitals each) and K2 (a block of them each) for one spin."""
    tiles, slices, blocks = -(-nao // P), layout.padded_naux(naux) // P, -(-nocc // edge)
    rows = layout.tiles_at_once(tiles)
    half = {"a": Tensor((rows * P * P, tiles, P)), "c_occ": Tensor((P, tiles, layout.GROUP))}
    columns = layout.tile_columns(layout.padded_nvir(nvir))
    stored = layout.stored_slices(columns, slices * P)
    tensors = {"x": Tensor((slices * edge * tiles * P, P)), "c_vir": Tensor((P, tiles, columns))}
    full = {**tensors, "edge": edge, "stored": stored}
    return (
        _call("transform", "half_transform", half, slices * -(-tiles // rows) * -(-nocc // layout.GROUP)),
        _call("transform", "full_transform", full, blocks),
    )


def product_call(batches: int, contracted: int, rows: int, columns: int) -> Call:
    """The call that multiplies (batches, contracted, rows) and (batches, contracted, columns), as it pads them."""
    k, m, n = map(layout.tile_columns, (contracted, rows, columns))
    tensors = {"a": Tensor((batches * k, m)), "b": Tensor((batches * k, n))}
    given = {**tensors, "batches": batches} if batches > 1 else tensors
    return _call("products", "gemm_batch" if batches > 1 else "gemm", given, 1)


def predecessor_calls(nocc: int, nvir: int, naux: int) -> tuple[Call, ...]:
    """One call of each predecessor at the padded sizes of a shape, where it fits one call (nvir at most 512)."""
    n, slices = layout.padded_nvir(nvir), layout.padded_naux(naux) // P
    columns = layout.tile_columns(n)
    product = {"a": Tensor((P, columns)), "b": Tensor((P, n))}
    batch = {"a": Tensor((4 * P, columns)), "b": Tensor((4 * P, n)), "batches": 4}
    solve = {"l_t": Tensor((4 * P, 4 * P)), "inverse_t": Tensor((4 * P, P)), "b": Tensor((4 * P, P))}
    calls = [
        _call("products", "gemm", product, 1),
        _call("products", "gemm_batch", batch, 1),
        _call("products", "syrk", {"a": Tensor((P, columns)), "identity": Tensor((P, P))}, 1),
        _call("products", "trsm", solve, 1),
    ]
    if n <= layout.BANK:
        rows = max(size for size in range(1, min(nvir, P) + 1) if nvir % size == 0)
        given = {"t": Tensor((nocc * nvir, nvir)), "eu": Tensor((nvir, nvir)), "neg": Tensor((rows, nocc))}
        energy = {**given, "identity": Tensor((rows, rows)), "ic": 1, "nocc": nocc}
        operand = Tensor((P, slices, columns))
        fused = {"b_i": operand, "b_j": operand, "eu": Tensor((P, columns // P * n)), "neg": Tensor((P, 1)), "nvir": n}
        calls.append(_call("pair_checks", "mp2_energy", energy, nocc))
        calls.append(_call("pair_checks", "pair_fused", fused, nocc * (nocc + 1) // 2))
    return tuple(calls)


def _block(edge: int, naux: int, columns: int) -> Tensor:
    """B of `edge` orbitals; `naux` is padded."""
    return Tensor((edge * P, layout.stored_slices(columns, naux), columns))


def _call(module: str, kernel: str, arguments: dict[str, Any], count: int) -> Call:
    """The program's name is made of everything that it was compiled for.

    Raises
    ------
    KernelError : a tensor is larger than the chips take
    """
    for name, value in arguments.items():
        if isinstance(value, Tensor) and 4 * prod(value.shape) > layout.TENSOR:
            raise KernelError(
                f"{kernel}: {name} {'x'.join(map(str, value.shape))} has {4 * prod(value.shape)} bytes: a tensor may "
                f"have {layout.TENSOR}, because DMA offsets have 32 bits: use --backend cpu"
            )
    words = ["x".join(map(str, v.shape)) if isinstance(v, Tensor) else str(v) for v in arguments.values()]
    return Call(f"{KERNELS}.{module}", kernel, arguments, count, "-".join([kernel, *words]))


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
        """For messages."""
        shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in self.tensors)
        return f"{self.kernel} ({shapes})"

    def fingerprint(self, target: str, logical_core: int = 1) -> str:
        """Names the program on a chip for these kernel sources, whatever compiles it."""
        what = [self.source, self.kernel, self.tensors, self.statics, target, logical_core, source_hash()]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def program_of(source: str, kernel: str, arguments: Mapping[str, Any]) -> Program:
    """The program that a call with these arguments needs; whatever has a shape is a tensor."""
    tensors = {name: tuple(map(int, value.shape)) for name, value in arguments.items() if hasattr(value, "shape")}
    statics = {name: value for name, value in arguments.items() if name not in tensors}
    return Program(source, kernel, tuple(sorted(tensors.items())), tuple(sorted(statics.items())))


def one_bucket(spins: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The shapes as the kernels see them where the device transforms: all spins with most virtual orbitals of any."""
    most = max((shape.nvir for shape in spins), default=0)
    return tuple(shape._replace(nvir=most) for shape in spins)


def programs(spins: tuple[Shape, ...], target: str, nao: int = 0) -> tuple[Program, ...]:
    """All programs of the pair energies of one or two spins, as the backend launches them, and of the transformation.

    Parameters
    ----------
    target : "trn1" or "trn2"
    nao : basis functions where the device transforms, else 0
    """
    generation = GENERATION[target]
    wanted: list[Call] = []
    if nao:
        spins = one_bucket(spins)
        wanted += [call for shape in spins for call in transform_calls(nao, *shape, generation)]
    for shape in spins:
        wanted += pair_energy_calls(*shape, generation, variants(shape.nvir, shape.naux, generation)[-1])
    if len(spins) == 2:
        alpha, beta = spins
        wanted += cross_calls((alpha.nocc, beta.nocc), (alpha.nvir, beta.nvir), alpha.naux, generation)
    return tuple(dict.fromkeys(program_of(call.source, call.kernel, call.arguments) for call in wanted))


def source_hash() -> str:
    """SHA-256 of all kernel files, hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(KERNEL_FOLDER.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
