"""The kernels in plain PyTorch, operand for operand and column for column, for XLA to trace without Trainium.

    pair_energy_block   out[p, pair] = row sums of X^2 R, Y^2 R and X R Y on the folded triangle
    pair_energy_packed  the same, with leftover rows of several pairs below each other
    pair_energy_cross   out[p, pair] = row sums of X^2 R
    half_transform      out[nu, i, P] = sum_mu A_P[mu, nu] C[mu, i]
    full_transform      out[i, P, a] = sum_nu X[nu, i, P] C[nu, a]

They stand in for the kernels where the torch-xla lane is exercised on a host: uploads, residency, synchronisation,
counting and read-back are those of the lane `nki-xla`, the arithmetic is that of XLA on the CPU. No backend of the
registry uses them, and everything the executor says of itself names it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from dfmp2.errors import UnsupportedByBackend
from dfmp2.trainium.launch.executors import Kernel, XlaExecutor
from dfmp2.trainium.layout import BANK, P, emission, upper_columns

Tensor = Any  # a torch.Tensor on any device; torch itself is handed in, so that nothing here imports it


def pair_energy_block(
    torch: Any,
    b_i: Tensor,
    b_j: Tensor,
    eu: Tensor,
    neg: Tensor,
    identity: Tensor,
    nvir: int,
    residents: int,
    run: int,
    diagonal: bool,
    transpose: bool,
) -> Tensor:
    """Partial sums (128, npair*columns) of a block of pairs of one spin space; arguments as kernels/pair_energy.py.

    `identity` and `transpose` belong to the Tensor Engine and change nothing here.
    """
    edge = b_i.shape[0] // P
    t = _products(b_i, b_j)
    order = [(i, item.j) for item in emission(edge, residents, diagonal) for i in item.rows]
    pairs = torch.stack([t[i, :, j, :] for i, j in order])
    shifts = neg.transpose(0, 1)  # (2 npair, 128)
    return _folded_sums(torch, pairs, eu, shifts[: len(order)], shifts[len(order) :], nvir, run)


def pair_energy_packed(
    torch: Any,
    b_i: Tensor,
    b_j: Tensor,
    eu: Tensor,
    neg: Tensor,
    identity: Tensor,
    nvir: int,
    residents: int,
    run: int,
    diagonal: bool,
    transpose: bool,
) -> Tensor:
    """Partial sums of a block of pairs of one spin space; arguments as kernels/pair_energy_packed.py."""
    full, height = divmod(nvir, P)
    left, group = full * P, P // height
    shared_at = upper_columns(left)
    last_at = shared_at + full * height
    t = _products(b_i, b_j)
    items = emission(b_i.shape[0] // P, residents, diagonal, group)
    npair = sum(len(item.rows) for item in items)
    shifts, pieces, q, groups = neg.transpose(0, 1), [], 0, 0  # shifts: (2 npair + ngroup, 128)
    for item in items:
        count = len(item.rows)
        pairs = torch.stack([t[i, :, item.j, :] for i in item.rows])
        single, double = shifts[q : q + count], shifts[npair + q : npair + q + count]
        q += count
        if count == 1:
            pieces.append(_folded_sums(torch, pairs, eu[:, last_at + height :], single, double, nvir, run))
            continue
        pieces.append(_folded_sums(torch, pairs[:, :left, :left], eu[:, :shared_at], single, double, left, run))
        rows = range(0, left, P)
        x = torch.cat([pairs[:, row : row + P, left:nvir] for row in rows], dim=2)
        y = torch.cat([pairs[:, left:nvir, row : row + P].transpose(1, 2) for row in rows], dim=2)
        pieces.append(_two_sums(torch, x, y, eu[None, :, shared_at:last_at] + single[:, :, None]))
        last = pairs[:, left:nvir, left:nvir]
        x, y = (matrix.reshape(1, P, height) for matrix in (last, last.transpose(1, 2)))
        pieces.append(
            _two_sums(torch, x, y, eu[None, :, last_at : last_at + height] + shifts[2 * npair + groups][None, :, None])
        )
        groups += 1
    return torch.cat(pieces, dim=1)


def pair_energy_cross(
    torch: Any, b_i: Tensor, b_j: Tensor, eu: Tensor, neg: Tensor, nvir: int, residents: int
) -> Tensor:
    """Partial sums (128, edge*edge*units) of a block of pairs of two spins; arguments as kernels/pair_energy_cross.py.

    `residents` only orders the loads and changes nothing here.
    """
    edge, tiles = b_i.shape[0] // P, b_i.shape[2] // P
    parts = -(-nvir // BANK)
    width = -(-nvir // parts)
    pairs = _products(b_i, b_j).permute(0, 2, 1, 3).reshape(edge * edge, tiles * P, -1)
    shifts = neg.transpose(0, 1)[:, :, None]
    columns = []
    for low in range(0, nvir, width):
        high = min(nvir, low + width)
        for row in range(tiles):
            x = pairs[:, row * P : (row + 1) * P, low:high]
            columns.append((x * x / (eu[None, :, row * nvir + low : row * nvir + high] + shifts)).sum(dim=2))
    return _by_partition(torch.stack(columns, dim=2))


def half_transform(torch: Any, a: Tensor, c_occ: Tensor) -> Tensor:
    """X (128 NT, nocc, 128) of 128 fitting functions; arguments as kernels/transform.py."""
    tiles, nocc = c_occ.shape[1], c_occ.shape[2]
    x = torch.einsum("npmtu,mti->nuip", a.reshape(tiles, P, P, tiles, P), c_occ)
    return x.reshape(tiles * P, nocc, P)


def full_transform(torch: Any, x: Tensor, c_vir: Tensor) -> Tensor:
    """A block of B (128 edge, NK, columns); arguments as kernels/transform.py."""
    tiles, edge = c_vir.shape[1], x.shape[1]
    b = torch.einsum("ktnep,ntc->epkc", x.reshape(-1, tiles, P, edge, P), c_vir)
    return b.reshape(edge * P, -1, c_vir.shape[2])


TWINS: dict[str, Callable[..., Tensor]] = {
    "pair_energy_block": pair_energy_block,
    "pair_energy_packed": pair_energy_packed,
    "pair_energy_cross": pair_energy_cross,
    "half_transform": half_transform,
    "full_transform": full_transform,
}


def find(kernel: str) -> Callable[..., Tensor]:
    """The twin of a kernel.

    Raises
    ------
    UnsupportedByBackend : the kernel has none that XLA can trace
    """
    if kernel not in TWINS:
        raise UnsupportedByBackend(f"kernel {kernel} has no twin for XLA: expected one of {', '.join(TWINS)}")
    return TWINS[kernel]


def _products(b_i: Tensor, b_j: Tensor) -> Tensor:
    """T (edge, 128 NT, edge, 128 NT') of all pairs of two blocks, padded columns included."""
    edge, other = b_i.shape[0] // P, b_j.shape[0] // P
    left = b_i.reshape(edge, P, -1, b_i.shape[2]).permute(0, 3, 1, 2).reshape(edge * b_i.shape[2], -1)
    right = b_j.reshape(other, P, -1, b_j.shape[2]).permute(1, 2, 0, 3).reshape(left.shape[1], -1)
    return (left @ right).reshape(edge, b_i.shape[2], other, b_j.shape[2])


def _folded_sums(torch: Any, pairs: Tensor, eu: Tensor, single: Tensor, double: Tensor, nvir: int, run: int) -> Tensor:
    """Sums (128, npair*columns) of T (npair, 128 NT, 128 NT); single, double: (npair, 128) shifts of denominators."""
    x, y = (_fold(torch, matrix, nvir) for matrix in (pairs, pairs.transpose(1, 2)))
    denominators = [eu[None, :, :nvir] + double[:, :, None], eu[None, :, nvir : x.shape[2]] + single[:, :, None]]
    r = 1.0 / torch.cat(denominators, dim=2)
    columns = []
    for low in range(0, upper_columns(nvir), BANK):
        chunk = slice(low, min(upper_columns(nvir), low + BANK))
        xs, ys, rs = x[:, :, chunk], y[:, :, chunk], r[:, :, chunk]
        columns += _row_sums(torch.cat([xs * xs * rs, ys * ys * rs], dim=2), run)
        columns += _row_sums(xs * rs * ys, run)
    return _by_partition(torch.stack(columns, dim=2))


def _two_sums(torch: Any, x: Tensor, y: Tensor, d: Tensor) -> Tensor:
    """J and K / 2 (128, 2 npair) of x and its transposed y, (npair, 128, size), over the denominators d."""
    r = 1.0 / d
    return _by_partition(torch.stack([(x * x * r + y * y * r).sum(dim=2), (x * r * y).sum(dim=2)], dim=2))


def _fold(torch: Any, t: Tensor, nvir: int) -> Tensor:
    """(pairs, 128, U): diagonal 128-blocks of t (pairs, 128 NT, 128 NT), then what lies right of each."""
    starts = range(0, nvir, P)
    blocks = [t[:, start : start + P, start : min(nvir, start + P)] for start in starts]
    blocks += [t[:, start : start + P, start + P : nvir] for start in starts if start + P < nvir]
    return torch.cat(blocks, dim=2)


def _row_sums(terms: Tensor, run: int) -> list[Tensor]:
    """(pairs, 128) sums of at most `run` neighbouring columns each."""
    return [terms[:, :, low : low + run].sum(dim=2) for low in range(0, terms.shape[2], run)]


def _by_partition(sums: Tensor) -> Tensor:
    """(pairs, 128, columns) as the kernels store them: (128, pairs*columns)."""
    return sums.permute(1, 0, 2).reshape(P, -1)


STAND_IN = "plain twins traced by XLA on the host CPU: not Trainium and not the kernels; their times mean nothing"


class XlaTwinExecutor(XlaExecutor):
    """Plain twins through torch-xla on the CPU.

    Raises
    ------
    BackendUnavailable : torch-xla has taken another device than the CPU
    """

    lane = "xla-cpu-twin"

    def __init__(self) -> None:
        super().__init__(traced_twin, platform="CPU")

    def describe(self) -> dict[str, str]:
        """What the lane says of itself, and that a stand-in ran."""
        return {**super().describe(), "stand-in": STAND_IN}


def traced_twin(source: str, kernel: str) -> Kernel:
    """The twin of a kernel as a function of device tensors.

    Raises
    ------
    UnsupportedByBackend : the kernel has none that XLA can trace
    """
    return partial(find(kernel), import_module("torch"))
