"""The order in which float32 adds up fitting functions: those that matter least first.

    (ia|jb) = sum_P B_iaP B_jbP

A sum that is large already loses the small contributions that follow, one by one, below its last digit, and the
integrals come out too small on average. Added in the order of growing sum_ia B_iaP^2, the small ones meet before the
large ones come. Float64 needs no order. Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002),
section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.checkpoint.encoding import Section
from dfmp2.counting import each
from dfmp2.ranks.team import ALONE, Team
from dfmp2.scratch.tensor import StoredTensor

Array = NDArray[np.float64]
Index = NDArray[np.intp]

SAMPLED = 16  # occupied orbitals per spin that the weights are taken from


def summation_order(b: Sequence[Array | StoredTensor], team: Team = ALONE) -> Index:
    """Fitting functions by growing weight, the same for all spins; wherever B lies, the same numbers.

    Parameters
    ----------
    b : (nocc, nvir, naux) float64 per spin
    team : ranks that use the order that rank 0 has found
    """

    def find() -> Section:
        weights = np.zeros(b[0].shape[2])
        for tensor in b:
            nocc = tensor.shape[0]
            for i in np.unique(np.linspace(0, nocc - 1, min(nocc, SAMPLED)).round().astype(int)):
                rows = tensor.orbital(i) if isinstance(tensor, StoredTensor) else tensor[i]
                weights += np.einsum("ap,ap->p", rows, rows)
        return Section({}, {"order": np.argsort(weights, kind="stable")})

    return np.asarray(team.told(find).arrays["order"], dtype=np.intp)


def rounded(b: Array, order: Index, threads: int, team: Team) -> Any:
    """B, (nocc, nvir, naux), in float32 with its fitting functions in this order; once for all ranks of the host."""
    single = team.array(b.shape, np.float32)

    each(team.queue(len(b)).take, lambda i: put_ordered(b[i], order, single[i]), threads)
    team.meet()
    return single


def put_ordered(rows: Array, order: Index, out: NDArray[np.float32]) -> None:
    """B of one occupied orbital, (nvir, naux), rounded and in this order, into `out`."""
    np.take(rows.astype(np.float32), order, axis=1, out=out, mode="clip")
