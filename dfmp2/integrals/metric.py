"""Density fitting of (ia|jb) in the Coulomb metric: (ia|jb) = sum_P B_iaP B_jbP.

With the metric (P|Q) = L L^T,  B_iaP = sum_Q L^-1_PQ (Q|ia). L is inverted once, because a
triangular product is faster than a solve. Everything here is float64: rounding the integrals to
float32 before the fit costs up to 3e-3 Eh. If the metric is not numerically positive definite, its
small eigenvalues are cut instead, B_iaP = sum_Q (Q|ia) U_QP s_P^-1/2, and the number of dropped
functions is stored.

Source: Vahtras, Almloef, Feyereisen, Chem. Phys. Lett. 213, 514 (1993); Feyereisen, Fitzgerald,
Komornicki, Chem. Phys. Lett. 208, 359 (1993).

Below: the inverse of a fitting metric V = (P|Q), and its change with the metric.

    V = L L^T            V^-1 = L^-T L^-1                        dV^-1 = -V^-1 dV V^-1
    V = U s U^T, cut:    V^+ = sum_k u_k u_k^T / s_k over s_k kept

A cut inverse also changes because kept and dropped eigenvectors u_k, u_d mix:

    dV^+ = -V^+ dV V^+ + sum_kd (u_k u_d^T + u_d u_k^T) (u_k^T dV u_d) / (s_k (s_k - s_d))

by first-order perturbation theory of the eigenvectors. With this term the derivative is exact as
long as the number of dropped functions does not change. The factors are those used for B.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import NumericalError, Option
from dfmp2.host.arrays_on_disk import StoredTensor
from dfmp2.host.blas import multiply_rows
from dfmp2.host.threads import each

CONDITION_LIMIT = 1e12  # of the metric; beyond this, Cholesky loses the digits that MP2 needs
EIGENVALUE_CUT = 1e-12  # relative to the largest eigenvalue
# Elements of B per triangular product: 16 MB, so that workers share even small cases
SOLVE_ELEMENTS = 1 << 21


@dataclass(frozen=True, slots=True, eq=False)
class MetricFactor:
    """A factor of the inverse metric.

    Attributes
    ----------
    factor : (naux, naux) float64, Fortran-ordered lower triangle L^-1; or (naux, nkept) U s^-1/2
    triangular : whether `factor` is L^-1
    condition : estimated condition number of the metric
    dropped : number of eigenvectors cut
    """

    factor: Array
    triangular: bool
    condition: float
    dropped: int

    @property
    def naux(self) -> int:
        """Number of fitting functions kept."""
        return int(self.factor.shape[1])

    def of_rows(self) -> Array:
        """(naux, n) matrix that turns rows of raw integrals into B by one product."""
        if self.triangular:
            return np.ascontiguousarray(np.tril(self.factor).T)
        return np.ascontiguousarray(self.factor)

    @property
    def threshold(self) -> float:
        """Relative eigenvalue cut applied, 0 for Cholesky."""
        return 0.0 if self.triangular else EIGENVALUE_CUT


def factorise(metric: Array, *, overwrite: bool = False) -> MetricFactor:
    """Inverse of the Cholesky factor of (P|Q), or a cut eigenvector factor if it is not positive
    definite.

    Parameters
    ----------
    metric : array
        (naux, naux) float64, Eh bohr^... in the normalisation of the fitting functions.
    overwrite : bool
        Whether the factor may overwrite it.

    Raises
    ------
    NumericalError
        The metric holds NaN or infinite numbers.
    """
    if not np.isfinite(metric).all():
        raise NumericalError(
            "the fitting metric (P|Q) holds NaN or infinite numbers: check ",
            Option("auxbasis"),
            " and the geometry",
        )
    from scipy.linalg import lapack  # 0.2 s, which results do without

    norm = max((float(np.abs(row).sum()) for row in metric), default=0.0)
    metric = metric if metric.flags.f_contiguous else metric.T  # symmetric
    if not overwrite or not metric.flags.f_contiguous:
        metric = metric.copy(order="F")
    diagonal = metric.diagonal().copy()
    # The factor goes to the lower triangle; the strict upper one keeps the metric until success is
    # certain.
    factor, info = lapack.dpotrf(metric, lower=True, clean=False, overwrite_a=True)
    if info == 0:
        reciprocal, _ = lapack.dpocon(factor, norm, uplo="L")
        if reciprocal * CONDITION_LIMIT >= 1.0:
            for column in range(1, len(factor)):
                factor[:column, column] = 0.0
            factor, _ = lapack.dtrtri(factor, lower=True, overwrite_c=True)
            condition = _estimate(1.0 / float(reciprocal))
            return MetricFactor(factor=factor, triangular=True, condition=condition, dropped=0)
    for column in range(len(metric)):
        metric[column + 1 :, column] = metric[column, column + 1 :]
    np.fill_diagonal(metric, diagonal)
    return _cut_factor(metric)


def _cut_factor(metric: Array) -> MetricFactor:
    """The eigenvector factor without the smallest eigenvalues; overwrites the metric."""
    from scipy.linalg import eigh

    eigenvalues, vectors = eigh(metric, overwrite_a=True)  # two matrices in memory
    dropped = int(np.searchsorted(eigenvalues, EIGENVALUE_CUT * eigenvalues[-1], side="right"))
    condition = _estimate(float(eigenvalues[-1] / np.abs(eigenvalues).min()))
    cut = vectors[:, dropped:]
    cut /= np.sqrt(eigenvalues[dropped:])
    return MetricFactor(factor=cut, triangular=False, condition=condition, dropped=dropped)


def _estimate(condition: float) -> float:
    """The condition number without the digits that depend on the matrix's place in memory."""
    return float(f"{condition:.6g}")


def orbital_groups(nocc: int, nvir: int, naux: int) -> list[tuple[int, int]]:
    """Ranges of occupied orbitals that are fitted together; they depend only on sizes, not on where
    B is stored."""
    step = max(1, SOLVE_ELEMENTS // max(1, nvir * naux))
    return [(i0, min(i0 + step, nocc)) for i0 in range(0, nocc, step)]


def fit(
    blocks: Iterable[tuple[int, int, list[Array]]],
    factor: MetricFactor,
    shapes: list[tuple[int, int]],
    naux: int,
    workers: int,
    stored: Sequence[StoredTensor] = (),
) -> list[Any]:
    """Fitted integrals B of every spin from a stream of transformed integral blocks.

    Parameters
    ----------
    blocks : iterable
        (p0, p1, [(p1-p0, nocc, nvir) float64 per spin]), covering 0..naux once.
    factor : MetricFactor
        Factor of the inverse metric.
    shapes : list of tuple[int, int]
        (nocc, nvir) per spin.
    workers : int
        Threads for the triangular products.
    stored : sequence of StoredTensor
        Tensors on disk for B of the first spins; the others are built in memory.

    Returns
    -------
    list of B : (nocc, nvir, naux or fewer after an eigenvalue cut) float64, Eh^1/2, per spin;
        arrays, or the tensors in `stored`
    """
    targets: list[Array | StoredTensor] = [
        *stored,
        *(np.empty((*shape, naux)) for shape in shapes[len(stored) :]),
    ]
    for p0, p1, block in blocks:
        for target, part in zip(targets, block, strict=True):
            if isinstance(target, StoredTensor):
                target.add(p0, p1, part)
            else:
                target[:, :, p0:p1] = part.transpose(1, 2, 0)
        del block, part  # free them before the fit
    return [_fitted(factor, target, workers) for target in targets]


def _fitted(factor: MetricFactor, raw: Array | StoredTensor, workers: int) -> Array | StoredTensor:
    """Turn raw (Q|ia), shape (nocc, nvir, naux), into B, one group of orbitals after another, in
    place."""
    if isinstance(raw, StoredTensor):
        return raw.fit(lambda rows: _solve(factor, rows), workers, shrinks=not factor.triangular)
    groups = orbital_groups(*raw.shape)
    if not factor.triangular:
        return _shrunk(factor, raw, groups)

    def solve(number: int) -> None:
        i0, i1 = groups[number]
        _solve(factor, raw[i0:i1].reshape(-1, raw.shape[2]))

    each(len(groups), solve, workers)
    return raw


def _shrunk(factor: MetricFactor, raw: Array, groups: list[tuple[int, int]]) -> Array:
    """B with fewer fitting functions than the raw integrals, at the beginning of their memory."""
    nocc, nvir, naux = raw.shape
    kept = nvir * factor.naux  # elements of B per occupied orbital
    flat = raw.reshape(-1)
    for i0, i1 in groups:  # in order: a shorter group ends before the next one begins
        solved = _solve(factor, raw[i0:i1].reshape(-1, naux))
        flat[i0 * kept : i1 * kept] = solved.reshape(-1)
    return flat[: nocc * kept].reshape(nocc, nvir, factor.naux)


def _solve(factor: MetricFactor, rows: Array) -> Array:
    """B of some rows (count, naux) of raw integrals; in place for a triangular factor."""
    if not factor.triangular:
        return np.asarray(rows @ factor.factor)
    step = max(1, SOLVE_ELEMENTS // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        multiply_rows(factor.factor, rows[start : start + step])
    return rows


# --- the inverse of a metric ----------------------------------------------------------------------


class InverseMetric:
    """The inverse of a metric, or its pseudo-inverse if eigenvalues are cut.

    Parameters
    ----------
    metric : (naux, naux) float64, symmetric
    threads : number of workers for the products

    Attributes
    ----------
    metric : (naux, naux) float64, V itself
    dropped : (naux, ndropped) float64, eigenvectors that were cut; none if V has a Cholesky factor
    """

    def __init__(self, metric: Array, threads: int) -> None:
        self.metric = metric
        self._threads = threads
        self._factor = factorise(metric)
        self.dropped = np.zeros((len(metric), 0))
        if not self._factor.triangular:
            values, vectors = np.linalg.eigh(metric)
            count = self._factor.dropped
            self.dropped, self._kept = vectors[:, :count], vectors[:, count:]
            self._gaps = values[count:, None] - values[:count]

    def unfit(self, rows: Array) -> Array:
        """y L^-1 for each row y: from the fitted functions of B back to (P|.

        Parameters
        ----------
        rows : (n, naux or the number kept) float64 in C order, overwritten if there is a Cholesky
            factor

        Returns
        -------
        (n, naux)
        """
        if not self._factor.triangular:
            return np.asarray(rows @ self._factor.factor.T)
        return self._multiply(rows, transposed=True)

    def apply(self, rows: Array) -> Array:
        """V^-1 x for each row x, (n, naux) float64 in C order, overwritten if there is a Cholesky
        factor."""
        if not self._factor.triangular:
            return np.asarray(rows @ self._factor.factor) @ self._factor.factor.T
        return self._multiply(self._multiply(rows, transposed=False), transposed=True)

    def mixing(self, products: Array) -> Array:
        """Contribution to the factors g in dE = sum_PQ g_PQ dV_PQ from the mixing of kept and
        dropped eigenvectors.

        Parameters
        ----------
        products : (naux, ndropped), sum_m c_mP (x_m u_d) over all terms x V^+ x' of E, with c' =
            V^+ x' from one side and the unfitted x from the other

        Returns
        -------
        (naux, naux), not symmetric
        """
        if not self.dropped.size:
            return np.zeros((len(self.dropped),) * 2)
        return np.asarray(self._kept @ ((self._kept.T @ products) / self._gaps) @ self.dropped.T)

    def _multiply(self, rows: Array, *, transposed: bool) -> Array:
        step = max(1, SOLVE_ELEMENTS // max(1, rows.shape[1]))
        starts = range(0, len(rows), step)

        def multiply(number: int) -> None:
            start = starts[number]
            multiply_rows(self._factor.factor, rows[start : start + step], transposed=transposed)

        each(len(starts), multiply, self._threads)
        return rows
