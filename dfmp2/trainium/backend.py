"""Pair terms by the Trainium kernels, on any executor.

B is padded, packed and uploaded once, in blocks of occupied orbitals; every block of pairs is one
kernel call whose float32 partial sums are added in float64 on the host, in a fixed order. The
kernels return J and K for D = e_a + e_b - e_i - e_j > 0, so direct = -J and exchange = -K. There is
no float64 on the device.

B may also be computed on the device (K12), from fitted integrals that are rounded to float32 here:

    B_iaP = sum_mu nu A_P(mu, nu) C_occ(mu, i) C_vir(nu, a)        A_P fitted in float64

The slices of 128 A_P are uploaded piece by piece, once for all spins, last piece first; a call
takes a piece and a block of occupied orbitals, and puts its slices of B in front of those returned
by the previous call, which never leave the device. All spins have as many columns as the one with
most virtual orbitals, so that they share all programs, including those of the pair energies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.backends.base import Backend, Limits, Operand, PairTerms, Shape, Tile
from dfmp2.backends.untransformed import UntransformedTensor, unpacked
from dfmp2.trainium import layout
from dfmp2.trainium.calls import KERNELS, PairForm, programs, variants
from dfmp2.trainium.interpreter.rules import CHIP
from dfmp2.trainium.kernels.sizes import BANK, P
from dfmp2.trainium.launch.executors import Executor
from dfmp2.trainium.layout import EDGE
from dfmp2.trainium.tensors import NkiTensors

# Of one core
LIMITS = Limits(("mixed",), EDGE, P * BANK, workers=1, least_edge=EDGE, transforms=True)


def transform(tensors: Sequence[UntransformedTensor], executor: Executor) -> list[tuple[Any, ...]]:
    """Resident blocks of B for each spin, as made by `layout.pack_b`, one per block of occupied
    orbitals.

    Parameters
    ----------
    tensors : one per spin, with the same fitted integrals
    """
    a, nao = tensors[0].a, len(tensors[0].c_occ)
    tiles = -(-nao // P)
    slices = layout.padded_naux(len(a)) // P
    most = max(t.shape[1] for t in tensors)
    columns = layout.tile_columns(layout.padded_nvir(most))
    if not columns:
        return [()] * len(tensors)
    once = layout.slices_at_once(tiles, slices)
    stored = layout.stored_slices(columns, slices * P)
    edge = layout.block_edge(layout.padded_nvir(most), slices * P)
    orbitals: list[tuple[int, Any, Any]] = []  # spin, C of an occupied block, C of the virtuals
    for spin, tensor in enumerate(tensors):
        c_vir = executor.upload(pack_orbitals(tensor.c_vir, columns))
        for i in range(0, tensor.shape[0], edge):
            c_occ = tensor.c_occ[:, i : i + edge]
            orbitals.append((spin, executor.upload(pack_orbitals(c_occ, c_occ.shape[1])), c_vir))
    made: list[Any] = [None] * len(orbitals)
    for first in reversed(range(0, slices, once)):
        piece = executor.upload(pack_fitted(a, nao, first, once, executor.dtype))
        for number, (_, c_occ, c_vir) in enumerate(orbitals):
            kernel = "ao_to_mo_next"
            given = {"a": piece, "c_occ": c_occ, "c_vir": c_vir, "before": made[number]}
            if made[number] is None:
                kernel = "ao_to_mo"
                given = {"a": piece, "c_occ": c_occ, "c_vir": c_vir, "stored": stored}
            made[number] = executor.keep(f"{KERNELS}.transform", kernel, given)
    return [
        tuple(block for (own, *_), block in zip(orbitals, made, strict=True) if own == spin)
        for spin in range(len(tensors))
    ]


def pack_orbitals(c: Array, columns: int) -> Array:
    """C (nao, n) as (128, NT, columns): row mu of a tile, slice mu_tile; zero in the padding."""
    tiles = -(-c.shape[0] // P)
    padded = np.zeros((tiles * P, columns))
    padded[: c.shape[0], : c.shape[1]] = c
    return np.ascontiguousarray(padded.reshape(tiles, P, columns).transpose(1, 0, 2))


def pack_fitted(
    a: Array, nao: int, first: int, slices: int, dtype: type[np.floating[Any]]
) -> Array:
    """Slices of 128 A_P in the form K12 reads, of shape `layout.fitted_shape`, zero in the padding.

    a : (naux, nao (nao + 1) / 2), packed triangles; first : slice
    """
    tiles = -(-nao // P)
    shape = layout.fitted_shape(tiles, slices)
    # Slice, nu_tile, mu, P and mu_tile, nu
    packed = np.zeros((slices, tiles, P, *shape[1:]), dtype)
    for k in range(slices):
        fitted = unpacked(a[(first + k) * P : (first + k + 1) * P], nao)
        for nu, mu in np.ndindex(tiles, tiles):
            part = fitted[:, mu * P : (mu + 1) * P, nu * P : (nu + 1) * P]
            places = slice(mu, len(part) * tiles, tiles)
            packed[k, nu, : part.shape[1], places, : part.shape[2]] = part.transpose(1, 0, 2)
    return packed.reshape(shape)


@dataclass(frozen=True, slots=True)
class Resident:
    """One spin space on the device.

    Attributes
    ----------
    blocks : the available blocks of B by number, of `edge` occupied orbitals each, as made by
        `layout.pack_b`
    shape : (nocc, nvir, naux), unpadded; nvir, naux : padded
    eps_vir : (nvir or fewer,) Eh, energies of the columns of the blocks
    kept : tables on the device shared by blocks, by name
    """

    blocks: dict[int, Any]
    shape: tuple[int, int, int]
    nvir: int
    naux: int
    eps_vir: Array
    kept: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def edge(self) -> int:
        """Number of occupied orbitals in a block."""
        return layout.block_edge(self.nvir, self.naux)


class NkiBackend(Backend):
    """Backend that runs the Trainium kernels on an executor.

    Parameters
    ----------
    name : name in the registry
    executor : launches the kernels
    variant : as in `PairForm`, or None for the best one for each shape
    """

    def __init__(self, name: str, executor: Executor, variant: str | None = None) -> None:
        self.name = name
        self.limits = replace(LIMITS, compiles=executor.compiles)
        self._executor = executor
        self._variant = variant

    def put(self, b: Array, eps_occ: Array, eps_vir: Array, precision: str) -> Operand:
        """Pad, pack and upload B; `precision` must be "mixed", the only one available."""
        operand = self.declare(b.shape, eps_occ, eps_vir)
        edge = operand.b.edge
        for number in range(-(-len(b) // edge)):
            self.add(operand, number, b[number * edge : (number + 1) * edge])
        return operand

    def declare(self, shape: tuple[int, ...], eps_occ: Array, eps_vir: Array) -> Operand:
        """An operand whose blocks are added later, one by one, as needed."""
        nocc, nvir, naux = shape
        padded = layout.padded_nvir(nvir), layout.padded_naux(naux)
        return Operand(
            Resident({}, (nocc, nvir, naux), *padded, eps_vir), eps_occ, eps_vir, "mixed"
        )

    def add(self, operand: Operand, number: int, rows: Array) -> None:
        """Pad, pack and upload a block: rows (n, nvir, naux) of B for at most `edge` orbitals."""
        (block,) = layout.pack_b(rows, edge=len(rows), dtype=np.float64)
        operand.b.blocks[number] = self._executor.upload(block)

    def put_untransformed(
        self, tensors: Sequence[UntransformedTensor], energies: Sequence[tuple[Array, Array]]
    ) -> list[Operand]:
        """Compute B of all spins on the device, where it stays, in float32.

        Parameters
        ----------
        energies : (eps_occ, eps_vir) of each spin, Eh
        """
        most = layout.padded_nvir(max(tensor.shape[1] for tensor in tensors))
        operands = []
        made = transform(tensors, self._executor)
        for tensor, blocks, (eps_occ, eps_vir) in zip(tensors, made, energies, strict=True):
            # Virtuals that only another spin has
            far = np.full(most - eps_vir.size if eps_vir.size else 0, layout.FAR)
            padded = most, layout.padded_naux(tensor.shape[2])
            resident = Resident(
                dict(enumerate(blocks)), tensor.shape, *padded, np.concatenate([eps_vir, far])
            )
            operands.append(Operand(resident, eps_occ, eps_vir, "mixed"))
        return operands

    def prepare(self, spins: Sequence[Shape], nao: int = 0) -> None:
        """Compile and load the programs that these shapes need."""
        if self.limits.compiles:
            for program in programs(tuple(spins), CHIP[self._executor.target], nao):
                self._executor.prepare(program)

    def transform_seconds(self, spins: Sequence[Shape], nao: int) -> float:
        """Predicted time of the transformation (K12), with dispatch and transfers, s.

        Raises
        ------
        KernelError : the kernels cannot run at these sizes
        """
        from dfmp2.trainium.costs import catalogue

        found = catalogue.predict_transform(spins, nao, CHIP[self._executor.target])
        return found.usual + found.dispatch + found.link

    def tensors(self) -> NkiTensors:
        """Tensor products by the kernels."""
        return NkiTensors(self, self._executor)

    def pair_terms(self, left: Operand, right: Operand, tile: Tile) -> PairTerms:
        """Direct and exchange terms of a tile of occupied pairs, float64, Eh; computed in whole
        blocks."""
        i0, i1, j0, j1, diagonal = tile
        same = left is right
        direct = np.zeros((i1 - i0, j1 - j0))
        exchange = np.zeros_like(direct) if same else None
        if not left.eps_vir.size or not right.eps_vir.size:
            return PairTerms(direct, exchange)
        above, beside = left.b.edge, right.b.edge
        rows = range(i0 // above, -(-i1 // above))
        columns = range(j0 // beside, -(-j1 // beside))
        for row, column in product(rows, columns):
            if diagonal and column < row:
                continue
            block: tuple[Any, ...]
            if same:
                block = self._same(left, row, column)
            else:
                block = self._cross(left, right, row, column)
            for matrix, values in zip((direct, exchange), block, strict=False):
                if matrix is not None:
                    _cut(matrix, -values, tile, row * above, column * beside)
        if diagonal:
            direct = np.triu(direct)
            if exchange is not None:
                exchange = np.triu(exchange)
        return PairTerms(direct, exchange)

    def describe(self) -> dict[str, str]:
        """The executor's description of its lane, and the kernels launched."""
        return self._executor.describe()

    def _same(self, operand: Operand, row: int, column: int) -> tuple[Array, Array]:
        """J and K of two blocks of one spin space; both triangles for a diagonal block."""
        resident, diagonal = operand.b, row == column
        nvir, naux = resident.nvir, resident.naux
        target = self._executor.target
        variant = self._variant or variants(nvir, naux, target)[-1]
        eps_i, eps_j = (_block(operand, k) for k in (row, column))
        form = PairForm(
            nvir=nvir,
            naux=naux,
            variant=variant,
            target=target,
            rows=eps_i.size,
            columns=eps_j.size,
        )
        items = form.items(diagonal)
        arguments = {
            "b_i": resident.blocks[row],
            "b_j": resident.blocks[column],
            "tables": self._kept(
                resident,
                (form.group, form.singles(diagonal)),
                lambda: form.tables(resident.eps_vir, diagonal),
            ),
            "neg": self._executor.upload(layout.neg_table(eps_i, eps_j, items)),
            **form.constants(diagonal),
        }
        out = self._executor.launch(f"{KERNELS}.pair_energy", "pair_energy_block", arguments)
        direct, exchange = layout.read_pairs(out, items, (eps_i.size, eps_j.size), nvir)
        if diagonal:
            direct, exchange = (m + np.triu(m, 1).T for m in (direct, exchange))
        return direct, exchange

    def _cross(self, left: Operand, right: Operand, row: int, column: int) -> tuple[Array]:
        """J of a block of the left and a block of the right spin space."""
        nvir, naux = right.b.nvir, right.b.naux
        eps_i, eps_j = _block(left, row), _block(right, column)
        virtual = left.b.eps_vir, right.b.eps_vir
        arguments = {
            "b_i": left.b.blocks[row],
            "b_j": right.b.blocks[column],
            "eu": self._kept(
                left.b, ("cross", virtual[1].tobytes()), lambda: layout.cross_table(*virtual)
            ),
            "neg": self._executor.upload(layout.cross_neg(eps_i, eps_j)),
            "nvir": nvir,
            "slices": naux // P,
            "residents": layout.residents(max(nvir, left.b.nvir), naux, self._executor.target),
        }
        out = self._executor.launch(f"{KERNELS}.pair_energy_cross", "pair_energy_cross", arguments)
        return (layout.read_cross(out, (eps_i.size, eps_j.size)),)

    def _kept(self, resident: Resident, name: object, make: Callable[[], Array]) -> Any:
        """A table on the device, computed and uploaded once per operand."""
        if name not in resident.kept:
            resident.kept[name] = self._executor.upload(make())
        return resident.kept[name]


def _block(operand: Operand, number: int) -> Array:
    """Orbital energies of a block of occupied orbitals."""
    edge = operand.b.edge
    return operand.eps_occ[number * edge : (number + 1) * edge]


def _cut(matrix: Array, values: NDArray[np.float64], tile: Tile, i: int, j: int) -> None:
    """Copy the part of the block at (i, j) that overlaps the tile into the matrix."""
    rows = range(max(i, tile.i0), min(i + values.shape[0], tile.i1))
    columns = range(max(j, tile.j0), min(j + values.shape[1], tile.j1))
    part = values[rows.start - i : rows.stop - i, columns.start - j : columns.stop - j]
    matrix[
        rows.start - tile.i0 : rows.stop - tile.i0, columns.start - tile.j0 : columns.stop - tile.j0
    ] = part
