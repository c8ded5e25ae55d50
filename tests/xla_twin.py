"""A stand-in for the plain K3 kernel, for XLA to trace where the torch-xla lane is exercised
without Trainium.

Uploads, residency, synchronisation, counting and read-back are those of the lane `nki-xla`; the
arithmetic is not that of the kernel: each output depends on its pair and on every operand. No
backend of the registry uses it.
"""

from __future__ import annotations

from typing import Any

from dfmp2.trainium.kernels.sizes import P, sum_columns, upper_columns
from dfmp2.trainium.launch.executors import XlaExecutor


def stand_in(
    b_i: Any,
    b_j: Any,
    tables: Any,
    neg: Any,
    sizes: tuple[int, int, int, int],
    diagonal: bool,
    transpose: bool,
    placed: bool,
) -> Any:
    """(128, npair*columns) as the kernel's output, of torch tensors or NumPy arrays; arguments as
    pair_energy.py, plain."""
    nvir = sizes[0]
    columns = sum_columns(upper_columns(nvir))
    identity = tables[:, upper_columns(nvir) : upper_columns(nvir) + P]
    scale = b_i.sum() + 2 * b_j.sum() + tables.sum() / 1e3
    pairs = neg[:, : neg.shape[1] // 2]
    return (pairs[:, :, None] * scale + identity[:, None, :columns]).reshape(P, -1)


class XlaTwinExecutor(XlaExecutor):
    """The stand-in through torch-xla on the CPU.

    Raises
    ------
    BackendUnavailable : torch-xla has taken another device than the CPU
    """

    lane = "xla-cpu-twin"
    platform = "CPU"
    resolve = staticmethod(lambda source, kernel: stand_in)
