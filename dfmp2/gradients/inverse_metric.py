"""The inverse of a fitting metric V = (P|Q), and its change with the metric.

    V = L L^T            V^-1 = L^-T L^-1                        dV^-1 = -V^-1 dV V^-1
    V = U s U^T, cut:    V^+ = sum_k u_k u_k^T / s_k over s_k kept

A cut inverse changes also because kept and dropped eigenvectors u_k, u_d mix:

    dV^+ = -V^+ dV V^+ + sum_kd (u_k u_d^T + u_d u_k^T) (u_k^T dV u_d) / (s_k (s_k - s_d))

which first-order perturbation theory of the eigenvectors gives; with it the derivative is exact
while the number of dropped functions stays what it is. The factors are those that B was made with
(`dfmp2.integrals.metric`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dfmp2.host.blas import multiply_rows
from dfmp2.host.threads import each
from dfmp2.integrals.metric import SOLVE_ELEMENTS, factorise

Array = NDArray[np.float64]


class InverseMetric:
    """The inverse of a metric, or its inverse where eigenvalues are cut.

    Parameters
    ----------
    metric : (naux, naux) float64, symmetric
    threads : workers of the products

    Attributes
    ----------
    metric : (naux, naux) float64, V itself
    dropped : (naux, ndropped) float64, eigenvectors that were cut; none where V has a Cholesky
        factor
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
        """y L^-1 of each row y: from the fitted functions of B back to (P|.

        Parameters
        ----------
        rows : (n, naux or as many as are kept) float64 in C order, overwritten where there is a
            Cholesky factor

        Returns
        -------
        (n, naux)
        """
        if not self._factor.triangular:
            return np.asarray(rows @ self._factor.factor.T)
        return self._multiply(rows, transposed=True)

    def apply(self, rows: Array) -> Array:
        """V^-1 x of each row x, (n, naux) float64 in C order, overwritten where there is a Cholesky
        factor."""
        if not self._factor.triangular:
            return np.asarray(rows @ self._factor.factor) @ self._factor.factor.T
        return self._multiply(self._multiply(rows, transposed=False), transposed=True)

    def mixing(self, products: Array) -> Array:
        """What kept and dropped eigenvectors add to the factors g of dV in dE = sum_PQ g_PQ dV_PQ.

        Parameters
        ----------
        products : (naux, ndropped), sum_m c_mP (x_m u_d): all places where E has x V^+ x' with c' =
            V^+ x' in one, and the unfitted x in the other

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
