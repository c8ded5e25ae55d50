"""Virtual-occupied blocks of J and K of rotated orbitals, with integrals of the occupied orbitals
computed once:

    G_ai = w J_ai - K_ai           of D = A C^T + C A^T,  A_mj = sum_b C_mb x_bj

    J_ai = sum_P B_P,ia r_P        r_P = 2 sum_bj B_P,jb x_bj                                      sum over spins
    K_ai = sum_m C_ma [sum_Pj (m A_j|P) B_P,ji] + sum_Pj B_P,ja sum_b x_bj B_P,ib                 in each spin

B_P,ia and B_P,ij are the same for every x; only (m A_j|P) needs the integrals over basis functions
again. This takes half the work of the two densities with orbitals in `dfmp2.scf.rotations`, where
the same matrices are computed from any integrals. With Kohn-Sham orbitals K is the exact exchange
of the functional, whose long-range part has its own integrals, and the kernel of the functional is
added (`dfmp2.scf.functional_kernel`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.host.threads import each_share
from dfmp2.integrals.three_center import HalfTransform, half_transform
from dfmp2.scf.kohn_sham import ExactExchange
from dfmp2.scf.rotations import Product, RotatedSpin, fitting_object, hessian_product

Kernel = Callable[[Sequence[Array]], list[Array]]  # changes of D per spin -> V_xc per spin

HALF_BYTES = 4 * 10**6  # of half-transformed integrals per worker at a time


def orbital_hessian(
    mf: Any,
    spins: Sequence[RotatedSpin],
    exact: ExactExchange,
    kernel: Kernel | None = None,
    *,
    single: bool,
    held: bool,
) -> Product:
    """A function of x and weight that equals `dfmp2.scf.rotations.hessian_product` for these `mf`
    and `spins`.

    Parameters
    ----------
    exact : ExactExchange
        Exact exchange used in place of K.
    kernel : Kernel, optional
        V_xc of changes of the density, None for Hartree-Fock.
    single : bool
        Whether fitted exchange matrices are float32.
    held : bool
        Whether there is memory for integrals of the occupied orbitals.
    """
    product = _exchange_hessian(mf, spins, exact, single=single, held=held)
    if kernel is None:
        return product
    return with_kernel(product, spins, kernel)


def with_kernel(product: Product, spins: Sequence[RotatedSpin], kernel: Kernel) -> Product:
    """A product with the orbital Hessian to which the kernel's V_xc is added.

    Parameters
    ----------
    product : Product
        Product with the Hessian of J and exact exchange.
    spins : sequence of RotatedSpin
        Orbitals of one spin or both.
    kernel : Kernel
        V_xc for changes of the density of each spin.
    """

    def of_both(x: Sequence[Array], weight: float) -> list[Array]:
        changes = []
        for spin, part in zip(spins, x, strict=True):
            change = spin.virtual @ part @ spin.occupied.T
            changes.append(change + change.T)
        return [
            image + spin.virtual.T @ potential @ spin.occupied
            for spin, image, potential in zip(
                spins, product(x, weight), kernel(changes), strict=True
            )
        ]

    return of_both


def _exchange_hessian(
    mf: Any, spins: Sequence[RotatedSpin], exact: ExactExchange, *, single: bool, held: bool
) -> Product:
    """The function of x and weight as in `orbital_hessian`, without a kernel."""
    fitted = fitting_object(mf)
    if fitted is not None and held:
        return _hessian_in_memory(fitted, spins, exact, single=single)
    if not (single and hasattr(fitted, "single")):  # PySCF's own object has no such switch
        return lambda x, weight: hessian_product(mf, spins, x, weight, exact)

    def in_single(x: Sequence[Array], weight: float) -> list[Array]:
        fitted.single = True
        try:
            return hessian_product(mf, spins, x, weight, exact)
        finally:
            fitted.single = False

    return in_single


def _hessian_in_memory(
    fitted: Any, spins: Sequence[RotatedSpin], exact: ExactExchange, *, single: bool
) -> Product:
    """The same with integrals of the occupied orbitals in memory."""
    matrices = ResponseMatrices(fitted, spins, exact.short_range, single=single)
    long_range = None
    if exact.separated:
        factor = exact.long_range - exact.short_range
        at_long_range = fitted.at_long_range(exact.omega)
        long_range = ResponseMatrices(at_long_range, spins, factor, single=single)

    def product(x: Sequence[Array], weight: float) -> list[Array]:
        images = [
            spin.differences * part + g
            for spin, part, g in zip(spins, x, matrices(x, weight), strict=True)
        ]
        if long_range is not None:
            for image, exchange in zip(images, long_range(x, 0.0), strict=True):
                image += exchange
        return images

    return product


class ResponseMatrices:
    """G_ai for rotations of converged orbitals; every sum over more than HALF_BYTES of fitting
    functions is float64.

    Parameters
    ----------
    fitted : `dfmp2.scf.jk.JKFitting` with its integrals in memory
    spins : orbitals of one spin or both
    exchange : factor of K
    single : products in float32
    """

    def __init__(
        self,
        fitted: Any,
        spins: Sequence[RotatedSpin],
        exchange: float = 1.0,
        *,
        single: bool,
    ) -> None:
        self._exchange = exchange
        self._b, self._pairs, self._threads = fitted.build()._cderi, fitted.pairs, fitted.threads
        self._spins, self._single, self._operations = spins, single, fitted.operations
        self._dtype: type[np.floating[Any]] = np.float64
        if single:
            self._dtype = np.float32
        self._rectangles = fitted.rectangles() if single else None
        # Rows of X are ordered by cluster.
        self._order = np.concatenate([cluster.functions for cluster in self._pairs.clusters])
        naux = len(self._b)
        width = sum(spin.occupied.shape[1] for spin in spins)
        self._step = max(
            1, HALF_BYTES // (np.dtype(self._dtype).itemsize * max(1, self._pairs.nao * width))
        )
        shapes = self._shapes = [(spin.occupied.shape[1], spin.virtual.shape[1]) for spin in spins]
        self._ia = [np.empty((naux, nocc, nvir), self._dtype) for nocc, nvir in shapes]
        self._ij = [np.empty((naux, nocc, nocc), self._dtype) for nocc, _ in shapes]
        each_share(naux, self._hold, self._threads)
        self._count([2 * self._pairs.nao * (nocc + nvir) for nocc, nvir in shapes])

    def __call__(self, x: Sequence[Array], weight: float) -> list[Array]:
        """G of each spin, (nvir, nocc) float64 Eh, for x (nvir, nocc) per spin, with weight w of J
        summed over spins."""
        parts = each_share(len(self._b), partial(self._share, x), self._threads)
        self._count(
            [2 * self._pairs.nao * nocc + 4 * nvir * (1 + nocc) for nocc, nvir in self._shapes]
        )
        result = []
        for s, spin in enumerate(self._spins):
            coulomb, half, other = (np.add.reduce([part[k][s] for part in parts]) for k in range(3))
            exchange = spin.virtual[self._order].T @ half + other
            result.append(weight * coulomb.reshape(other.shape[::-1]).T - self._exchange * exchange)
        return result

    def _count(self, rest: list[int]) -> None:
        """Count operations of the half transformation over the kept pairs and of `rest`, per
        occupied orbital of each spin."""
        half = 4 * self._pairs.nao * len(self._pairs.columns) // (self._pairs.nao + 1)
        counted = sum(
            nocc * (half + more) for (nocc, _), more in zip(self._shapes, rest, strict=True)
        )
        self._operations[self._single] += len(self._b) * counted

    def _hold(self, first: int, last: int) -> None:
        """Compute B_P,ia and B_P,ij for a range of the fitting functions."""
        orbitals = [np.ascontiguousarray(spin.occupied) for spin in self._spins]
        transform = self._half_transform(orbitals, first, last)
        others = [
            [c[self._order].astype(self._dtype) for c in (spin.occupied, spin.virtual)]
            for spin in self._spins
        ]
        for p0 in range(first, last, self._step):
            p1 = min(p0 + self._step, last)
            transform.put(0, self._b[p0:p1], p0 - first)
            for s, half in enumerate(transform.halves(p1 - p0)):
                flat = half.reshape(-1, half.shape[2])
                for target, other in zip((self._ij[s], self._ia[s]), others[s], strict=True):
                    np.matmul(flat, other, out=target[p0:p1].reshape(len(flat), other.shape[1]))

    def _share(
        self, x: Sequence[Array], first: int, last: int
    ) -> tuple[list[Array], list[Array], list[Array]]:
        """J_ia (nocc nvir,), sum_Pj (m A_j|P) B_P,ji (nao, nocc) and the rest of K_ai, from a range
        of the fitting functions."""
        turned = [
            np.ascontiguousarray(spin.virtual @ part)
            for spin, part in zip(self._spins, x, strict=True)
        ]
        transform = self._half_transform(turned, first, last)
        rows = [np.ascontiguousarray(part.T, dtype=self._dtype) for part in x]  # (nocc, nvir)
        coulomb = [np.zeros(part.size) for part in x]
        half = [np.zeros(a.shape) for a in turned]
        other = [np.zeros(part.shape) for part in x]
        for p0 in range(first, last, self._step):
            p1 = min(p0 + self._step, last)
            transform.put(0, self._b[p0:p1], p0 - first)
            flat = [ia[p0:p1].reshape(p1 - p0, -1) for ia in self._ia]
            r = 2 * sum(part @ row.ravel() for part, row in zip(flat, rows, strict=True))
            for s, halves in enumerate(transform.halves(p1 - p0)):
                nocc, nvir = rows[s].shape
                ia = self._ia[s][p0:p1]
                ij = self._ij[s][p0:p1].reshape((p1 - p0) * nocc, nocc)
                coulomb[s] += r @ flat[s]
                half[s] += halves.reshape(-1, halves.shape[2]).T @ ij
                both = np.matmul(rows[s], ia.transpose(0, 2, 1))  # (P, j, i)
                other[s] += ia.reshape(-1, nvir).T @ both.reshape((p1 - p0) * nocc, nocc)
        return coulomb, half, other

    def _half_transform(self, orbitals: list[Array], first: int, last: int) -> HalfTransform:
        """The half transformation of a range of the fitting functions to orbitals (nao, n) of each
        spin."""
        rectangles = None
        if self._rectangles is not None:
            rectangles = self._rectangles.share(first, last)
        return half_transform(
            orbitals, self._step, self._pairs, single=self._single, rectangles=rectangles
        )
