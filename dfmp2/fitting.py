"""Density fitting of (ia|jb) in the Coulomb metric: (ia|jb) = sum_P B_iaP B_jbP.

With the metric (P|Q) = L L^T,  B_iaP = sum_Q L^-1_PQ (Q|ia). Everything here is float64: fitting
integrals that were rounded to float32 first costs up to 3e-3 Eh. When the metric is not numerically
positive definite its small eigenvalues are cut instead, B_iaP = sum_Q (Q|ia) U_QP s_P^-1/2, and the
number of dropped functions is stored.

Source: Vahtras, Almloef, Feyereisen, Chem. Phys. Lett. 213, 514 (1993); Feyereisen, Fitzgerald,
Komornicki, Chem. Phys. Lett. 208, 359 (1993).
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dfmp2.blas import solve_rows
from dfmp2.errors import NumericalError
from dfmp2.progress import Stopwatch

Array = NDArray[np.float64]

CONDITION_LIMIT = 1e12  # of the metric; beyond it Cholesky loses the digits MP2 needs
EIGENVALUE_CUT = 1e-12  # relative to the largest eigenvalue
SOLVE_ELEMENTS = 1 << 21  # of B per triangular solve: 16 MB, so that workers share even small cases


@dataclass(frozen=True, slots=True, eq=False)
class MetricFactor:
    """A factor of the inverse metric.

    Attributes
    ----------
    factor : (naux, naux) float64, Fortran-ordered lower Cholesky factor L; or (naux, nkept) U s^-1/2
    triangular : whether `factor` is L
    condition : estimated condition number of the metric
    dropped : number of eigenvectors cut
    """

    factor: Array
    triangular: bool
    condition: float
    dropped: int

    @property
    def naux(self) -> int:
        """Fitting functions left."""
        return int(self.factor.shape[1])

    @property
    def threshold(self) -> float:
        """Relative eigenvalue cut in force, 0 for Cholesky."""
        return 0.0 if self.triangular else EIGENVALUE_CUT


def factorise(metric: Array) -> MetricFactor:
    """Cholesky factor of (P|Q), or its cut eigenvector factor when it is not positive definite.

    Parameters
    ----------
    metric : (naux, naux) float64, Eh bohr^... in the normalisation of the fitting functions

    Raises
    ------
    NumericalError : the metric holds NaN or infinite numbers
    """
    if not np.isfinite(metric).all():
        raise NumericalError(
            "the fitting metric (P|Q) holds NaN or infinite numbers: check --auxbasis and the geometry"
        )
    norm = float(np.abs(metric).sum(axis=0).max())
    factor, info = scipy.linalg.lapack.dpotrf(metric, lower=1, clean=1)
    if info == 0:
        reciprocal, _ = scipy.linalg.lapack.dpocon(factor, norm, uplo="L")
        if reciprocal * CONDITION_LIMIT >= 1.0:
            return MetricFactor(factor, True, 1.0 / float(reciprocal), 0)
    eigenvalues, vectors = np.linalg.eigh(metric)
    kept = eigenvalues > EIGENVALUE_CUT * eigenvalues[-1]
    condition = float(eigenvalues[-1] / np.abs(eigenvalues).min())
    cut = vectors[:, kept] / np.sqrt(eigenvalues[kept])
    return MetricFactor(cut, False, condition, int((~kept).sum()))


def fit(
    blocks: Iterable[tuple[int, int, list[Array]]],
    factor: MetricFactor,
    shapes: list[tuple[int, int]],
    naux: int,
    workers: int,
    clock: Stopwatch,
) -> list[Array]:
    """Fitted integrals B of every spin from a stream of transformed integral blocks.

    Parameters
    ----------
    blocks : (p0, p1, [(p1-p0, nocc, nvir) float64 per spin]), covering 0..naux once
    factor : of the inverse metric
    shapes : (nocc, nvir) per spin
    workers : threads for the triangular solves
    clock : charged with "fit"

    Returns
    -------
    list of B : (nocc, nvir, naux or fewer after an eigenvalue cut) float64, Eh^1/2, per spin
    """
    tensors = [np.empty((nocc, nvir, naux)) for nocc, nvir in shapes]
    for p0, p1, block in blocks:
        with clock("fit"):
            for tensor, part in zip(tensors, block, strict=True):
                tensor[:, :, p0:p1] = part.transpose(1, 2, 0)
    with clock("fit"):
        return [_apply(factor, tensor, workers) for tensor in tensors]


def _apply(factor: MetricFactor, raw: Array, workers: int) -> Array:
    """Turn raw (Q|ia), shape (nocc, nvir, naux), into B; in place for a triangular factor."""
    rows = raw.reshape(-1, raw.shape[2])
    if not factor.triangular:
        return np.asarray((rows @ factor.factor).reshape(*raw.shape[:2], factor.naux))
    step = max(1, SOLVE_ELEMENTS // max(1, rows.shape[1]))

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda start: solve_rows(factor.factor, rows[start : start + step]), range(0, len(rows), step)))
    return raw
