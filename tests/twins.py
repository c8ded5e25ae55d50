"""Plain twins of the kernels: the same results from whole matrices, in the working precision or in
float64.

pair_energy   T_ab = sum_P B_iaP B_jbP     R = 1 / (e_a + e_b - e_i - e_j)     J = sum T^2 R     K = sum T T^t R
transform     B_iaP = sum_mu nu A_P(mu, nu) C_occ(mu, i) C_vir(nu, a), occupied index first (K12)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def pair_energy_twin(
    b_i: Array,
    b_j: Array,
    eps_i: Array,
    eps_j: Array,
    eps_a: Array,
    eps_b: Array,
    dtype: type[Any] = np.float32,
) -> tuple[Array, Array | None]:
    """J and K of all pairs (i, j).

    Parameters
    ----------
    b_i : (ni, na, naux), b_j : (nj, nb, naux), Eh^1/2
    eps_i, eps_j, eps_a, eps_b : (ni,), (nj,), (na,), (nb,), Eh
    dtype : of products, denominators and row sums, one element after the other; the rows are added
        in float64

    Returns
    -------
    J (ni, nj) float64, Eh; K the same, or None where na and nb differ
    """
    direct = np.empty((len(eps_i), len(eps_j)))
    exchange = np.empty_like(direct) if len(eps_a) == len(eps_b) else None
    sums: NDArray[Any] = (eps_a[:, None] + eps_b[None, :]).astype(dtype)
    for i, left in enumerate(b_i.astype(dtype)):
        for j, right in enumerate(b_j.astype(dtype)):
            t = left @ right.T
            w = t * (dtype(1) / (sums - dtype(eps_i[i] + eps_j[j])))
            direct[i, j] = _total(t * w)
            if exchange is not None:
                exchange[i, j] = _total(t.T * w)
    return direct, exchange


def _total(terms: NDArray[Any]) -> float:
    return float(np.add.accumulate(terms, axis=1)[:, -1].sum(dtype=np.float64))


def transform_twin(
    a: NDArray[Any],
    c_occ: NDArray[Any],
    c_vir: NDArray[Any],
    dtype: type[np.float32] | type[np.float64] = np.float32,
) -> NDArray[Any]:
    """B (nocc, nvir, naux) in `dtype`.

    Parameters
    ----------
    a : (naux, nao, nao), c_occ : (nao, nocc), c_vir : (nao, nvir)
    """
    half = np.einsum("pmn,mi->ipn", a.astype(dtype), c_occ.astype(dtype), optimize=True)
    return np.asarray((half @ c_vir.astype(dtype)).transpose(0, 2, 1))
