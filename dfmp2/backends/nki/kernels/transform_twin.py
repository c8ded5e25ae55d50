"""Plain twin of K1 and K2: B_iaP = sum_mu nu A_P(mu, nu) C_occ(mu, i) C_vir(nu, a), occupied index first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def transform_twin(
    a: NDArray[Any], c_occ: NDArray[Any], c_vir: NDArray[Any], dtype: type[np.float32] | type[np.float64] = np.float32
) -> NDArray[Any]:
    """B (nocc, nvir, naux) in `dtype`.

    Parameters
    ----------
    a : (naux, nao, nao), c_occ : (nao, nocc), c_vir : (nao, nvir)
    """
    half = np.einsum("pmn,mi->ipn", a.astype(dtype), c_occ.astype(dtype), optimize=True)
    return np.asarray((half @ c_vir.astype(dtype)).transpose(0, 2, 1))
