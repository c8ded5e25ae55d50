"""How the exchange matrix K of an SCF iteration is computed: its precision, and which part of it.

Energy and orbital gradient need K only between occupied and all orbitals, which costs 4 P n nocc^2
operations instead of the P n^2 nocc of the symmetric product:

    sum_m C_mi K_mn = sum_Pj X_Pj,i X_Pj,n        X_Pj,i = sum_m X_Pj,m C_mi

Between virtual orbitals, where K only decides how fast the SCF converges, the previous K is kept.
Source: Manzer, Horn, Mardirossian and Head-Gordon, J. Chem. Phys. 143, 024113 (2015).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeProducts:
    """How K is computed.

    Attributes
    ----------
    wanted : bool
        If false, K is 0.
    single : bool
        From float32 products, each block of them accumulated in float64.
    rows : bool
        Only the occupied rows, C^T K.
    exact : (naux,) bool or None
        Fitting functions whose products stay in float64.
    norms : (naux,) float64 or None
        Receives the sum of X^2 for each fitting function; only if all products have one precision.
    """

    wanted: bool = True
    single: bool = False
    rows: bool = False
    exact: NDArray[np.bool_] | None = None
    norms: Array | None = None

    def of_share(self, start: int, stop: int) -> ExchangeProducts:
        """The same for a range of the fitting functions."""
        exact = self.exact
        if exact is not None:
            exact = exact[start:stop]
        norms = self.norms
        if norms is not None:
            norms = norms[start:stop]
        return replace(self, exact=exact, norms=norms)


def with_rows(previous: Array, rows: Array, occupied: Array, overlap: Array) -> Array:
    """K with the given occupied rows, and between virtual orbitals the previous K.

    Parameters
    ----------
    previous : (nao, nao) float64, Eh
    rows : (n, nao) float64
        C^T K.
    occupied : (nao, n) float64
        C, orbitals scaled by the square root of their occupation.
    overlap : (nao, nao) float64
        Makes virtual orbitals orthogonal to occupied ones.
    """
    change = rows - occupied.T @ previous
    covariant = overlap @ occupied
    dual = np.linalg.solve(occupied.T @ covariant, covariant.T)  # dual C = 1
    half = dual.T @ (change - 0.5 * (change @ occupied) @ dual)
    return np.asarray(previous + (half + half.T))


def largest(values: Array, share: float) -> NDArray[np.bool_]:
    """Mask of the largest of some values, (n,), given their share of the number of values."""
    found = np.zeros(len(values), dtype=bool)
    found[np.argsort(-values, kind="stable")[: round(share * len(values))]] = True
    return found
