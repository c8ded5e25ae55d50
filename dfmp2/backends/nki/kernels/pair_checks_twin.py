"""Plain twin of mp2_energy: e_ij = sum_ab T_ab (2 T_ab - T_ba) / (e_a + e_b - e_i - e_j)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def mp2_energy_twin(
    t: NDArray[Any], eu: NDArray[Any], sums: NDArray[Any], dtype: type[Any] = np.float32
) -> NDArray[np.float64]:
    """e (ic, nocc), rows summed in `dtype` and then in float64.

    Parameters
    ----------
    t : (ic, nocc, nvir, nvir); eu : (nvir, nvir) e_a + e_b; sums : (ic, nocc) e_i + e_j
    """
    x: NDArray[Any] = t.astype(dtype)
    w: NDArray[Any] = x / (eu.astype(dtype) - sums.astype(dtype)[:, :, None, None])
    rows = (w * (2 * x - x.transpose(0, 1, 3, 2))).sum(axis=3, dtype=dtype)
    return np.asarray(rows.sum(axis=2, dtype=np.float64))
