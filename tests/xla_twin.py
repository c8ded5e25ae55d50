"""The plain K3 kernel in PyTorch, operand for operand and column for column, for XLA to trace without Trainium.

    pair_energy_block   out[p, pair] = row sums of X^2 R, Y^2 R and X R Y on the folded triangle

It stands in for the kernels where the torch-xla lane is exercised on a host: uploads, residency, synchronisation,
counting and read-back are those of the lane `nki-xla`, the arithmetic is that of XLA on the CPU. No backend of the
registry uses them, and everything the executor says of itself names it.
"""

from __future__ import annotations

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
    if kernel != "pair_energy_block":
        raise UnsupportedByBackend(f"kernel {kernel} has no twin for XLA: expected pair_energy_block")
    return partial(pair_energy_block, import_module("torch"))
