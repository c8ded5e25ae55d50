"""Coulomb and exchange matrices J and K from fitted integrals in memory: the builder behind PySCF's
DF-SCF:

    B_P,mn = sum_Q L^-1_PQ (Q|mn)      m >= n, no negligible pairs, computed once, in place
    K_mn = sum_Pi X_Pi,m X_Pi,n        X_Pi,m = sum_n B_P,mn C_ni
    J_mn = sum_P B_P,mn v_P            v_P = sum_im X_Pi,m C_mi

X may be computed from float32 products while the SCF is far from convergence (`single`). Their
error comes from accumulation, mostly in a few fitting functions: with the products of a fifth of
them in float64 (`corrected`) it is 5 to 20 times smaller. J, from float64 integrals, inherits a
tenth of the error of K. If memory allows, the integrals of the float32 products are rounded and
gathered once (`gathers`), which changes no bit. Every step streams over blocks of fitting functions
that stay in cache, divided among our own single-threaded workers; a fixed share for each worker
keeps the sums in the same order from run to run. Far from the end only the occupied rows of K are
computed (`dfmp2.scf.exchange_products`). A density without orbitals (from the second-order
solver) is the difference of two with orbitals, its eigenvectors of positive and negative
eigenvalues; these are few if it is a combination of few orbitals.
Source: Weigend, Phys. Chem. Chem. Phys. 4, 4285 (2002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.host.blas import add_projection, multiply_columns
from dfmp2.host.threads import each, shares, worker_pool
from dfmp2.integrals.metric import MetricFactor, factorise
from dfmp2.integrals.screening import PairList, ends_of, pair_groups, pair_list
from dfmp2.integrals.three_center import (
    ClusterRectangles,
    HalfTransform,
    Single,
    coulomb_metric,
    half_transform,
    packed_blocks,
)
from dfmp2.molecule.pyscf_shield import import_pyscf
from dfmp2.scf.exchange_products import ExchangeProducts, largest, with_rows

import_pyscf()

from pyscf import df, lib  # noqa: E402 - through the shield

Progress = Callable[[int, int], None]

COLUMNS = 1024  # of B per triangular product
# Bytes of half-transformed integrals per exchange product; they stay in the shared cache
BLOCK_BYTES = 12 * 10**6
IMPORTANT = 0.2  # of the fitting functions, with about 80 % of the norm of X
# Of the basis functions: if more orbitals are occupied, all of K takes no longer than these rows
ROWS_SHARE = 0.2
NOTHING = 1e-14  # eigenvalues of a density that are this small, relative to the largest, are noise
CACHE_BYTES = 4 * 10**6  # of B at a time, which stay in cache from Coulomb to exchange


class JKFitting(df.DF):  # type: ignore[misc]
    """PySCF's density-fitting object with our own integrals and matrices.

    Parameters
    ----------
    mole, auxmole : PySCF molecules with the orbital and the fitting functions
    threads : number of workers
    progress : called with (integrals done, all of them), counted in fitting functions or pairs,
        while B is computed
    pairs : columns of B, None for all that are not negligible

    Attributes
    ----------
    single : half-transform and exchange products in float32
    corrected : the same, except for the important fitting functions; the caller switches both off
        before the end
    occupied_rows : compute only the occupied rows of K from orbitals and keep the rest of the
        previous K; switched off before the end, too
    gathers : whether there is memory to keep the operands of the float32 products; set by the
        caller
    squares : (ncolumn,) sum_P B_P,mn^2, the fitted (mn|mn), Eh; available with B
    operations : floating-point operations of all fits, J and K so far, in float64 and in float32
    name : of the file that holds B, if it is on disk
    """

    name = "scf"

    def __init__(
        self,
        mole: Any,
        auxmole: Any,
        threads: int,
        progress: Progress = lambda done, total: None,
        pairs: PairList | None = None,
    ) -> None:
        super().__init__(mole, auxbasis=auxmole.basis)
        self.auxmol = auxmole
        self._cderi: Any = None
        self.threads = threads
        self.single = False
        self.corrected = False
        self.occupied_rows = False
        self.gathers = False
        self._norms: Array | None = None  # norm of X per fitting function, from the first K
        self._rectangles: ClusterRectangles | None = None
        self._exchange: Any = None  # the last K from orbitals, until the final ones
        self.squares: Any = None
        self.operations = [0, 0]
        self._progress = progress
        self.pairs = pair_list(mole) if pairs is None else pairs
        self._long_range: dict[float, JKFitting] = {}

    def at_long_range(self, omega: float) -> JKFitting:
        """The same builder for the operator erf(omega r) / r, with its own integrals and metric;
        omega in 1/bohr."""
        if omega not in self._long_range:
            mole, auxmole = self.mol.copy(), self.auxmol.copy()
            mole.set_range_coulomb(omega)
            auxmole.set_range_coulomb(omega)
            builder = self._like(mole, auxmole)
            builder.operations = self.operations
            builder.name = f"{self.name}-long-range"
            self._long_range[omega] = builder
        self._long_range[omega].single = self.single
        self._long_range[omega].corrected = self.corrected
        self._long_range[omega].occupied_rows = self.occupied_rows
        self._long_range[omega].gathers = self.gathers
        return self._long_range[omega]

    def _like(self, mole: Any, auxmole: Any) -> JKFitting:
        """A builder of the same kind for other integrals."""
        return JKFitting(mole, auxmole, self.threads, self._progress, self.pairs)

    def build(self) -> JKFitting:
        """Compute B, shape (naux, ncolumn) float64, unless it exists."""
        if self._cderi is None:
            self._cderi = fit_scf_integrals(
                self.mol, self.auxmol, self.pairs, self.threads, self._progress
            )
            self.squares = column_squares(self._cderi)
            self.operations[0] += len(self._cderi) ** 2 * len(self.pairs.columns)
        return self

    def get_jk(
        self,
        dm: Any,
        hermi: int = 1,
        with_j: bool = True,
        with_k: bool = True,
        direct_scf_tol: float = 1e-13,
        omega: float | None = None,
    ) -> tuple[Any, Any]:
        """J and K of symmetric densities, or J alone, with PySCF's arguments; omega 0 or None for
        1/r."""
        if hermi != 1 or (omega or 0.0) < 0.0:
            raise NotImplementedError(f"fitted J and K of hermi={hermi}, omega={omega}")
        if omega:
            return self.at_long_range(omega).get_jk(dm, hermi, with_j, with_k, direct_scf_tol)
        orbitals = getattr(dm, "mo_coeff", None)
        if orbitals is None:
            densities = np.reshape(dm, (-1, self.pairs.nao, self.pairs.nao))
            parts = [
                self.matrices(signed_orbitals(density), exchange=with_k) for density in densities
            ]
            j, k = (
                np.stack([plus - minus for plus, minus in kind])
                for kind in zip(*parts, strict=True)
            )
        else:
            occupations = np.asarray(dm.mo_occ)
            if occupations.ndim == 1:
                spins = [(orbitals, occupations)]
            else:
                spins = list(zip(orbitals, occupations, strict=True))
            occupied = [np.asarray(c)[:, n > 0] * np.sqrt(n[n > 0]) for c, n in spins]
            few = max(c.shape[1] for c in occupied) <= ROWS_SHARE * self.pairs.nao
            rows = self.occupied_rows and few and self._exchange is not None
            j, k = self.matrices(occupied, exchange=with_k, rows=rows)
            if with_k:
                more = self.single or self.corrected
                self._exchange = k.copy() if more else None
        return j.reshape(np.shape(dm)), k.reshape(np.shape(dm)) if with_k else None

    def matrices(
        self, occupied: list[Array], *, exchange: bool = True, rows: bool = False
    ) -> tuple[Array, Array]:
        """J and K of each spin, from orbitals (nao, n) scaled by the square root of their
        occupation; K is 0 if not requested, and with `rows` the previous K between virtual
        orbitals."""
        b = self.build()._cderi
        how = self._products(exchange, rows)
        self._count(occupied, how)
        rectangles = self.rectangles() if how.single else None
        j, k = coulomb_exchange_of_b(
            b, self.pairs, occupied, self.threads, how, rectangles=rectangles
        )
        return j, self._whole(k, occupied, how)

    def _whole(self, k: Array, occupied: list[Array], how: ExchangeProducts) -> Array:
        """K of each spin, from `k` of `accumulated`."""
        if not how.rows:
            return k
        overlap = self.mol.intor("int1e_ovlp", hermi=1)
        matrices = []
        for previous, rows, c in zip(self._exchange, k, occupied, strict=True):
            matrices.append(with_rows(previous, rows[: c.shape[1]], c, overlap))
        return np.stack(matrices)

    def rectangles(self) -> ClusterRectangles | None:
        """B in float32 for each cluster of functions, computed once; None if it is not kept."""
        if not self.gathers:
            return None
        if self._rectangles is None:
            b = self.build()._cderi
            self._rectangles = ClusterRectangles(b, self.pairs, self.threads)
        return self._rectangles

    def stop_gathering(self) -> None:
        """Free the operands of the float32 products, long-range ones too, and keep none from now
        on."""
        self.gathers = False
        self._rectangles = None
        self._exchange = None
        for builder in self._long_range.values():
            builder.stop_gathering()

    def _products(self, exchange: bool, rows: bool) -> ExchangeProducts:
        """How K is computed."""
        if not exchange:
            return ExchangeProducts(wanted=False)
        if self._norms is None:
            self._norms = np.zeros(self.get_naoaux())
            return ExchangeProducts(single=self.single, norms=self._norms)
        if self.corrected:
            exact = largest(self._norms, IMPORTANT)
            return ExchangeProducts(single=True, rows=rows, exact=exact)
        return ExchangeProducts(single=self.single, rows=rows)

    def _count(self, occupied: list[Array], how: ExchangeProducts) -> None:
        """Count operations: 2 P npair for each J, 4 without K; for each K 2 P n^2 nocc, over the
        kept pairs, for the half transformation, and P n^2 nocc for the symmetric product or
        4 P n nocc^2 for the occupied rows."""
        naux = self.get_naoaux()
        n = self.pairs.nao
        columns = len(self.pairs.columns)
        if not how.wanted:
            self.operations[0] += len(occupied) * 4 * naux * columns
            return
        self.operations[0] += len(occupied) * 2 * naux * columns
        half = 4 * n * columns // (n + 1)
        per_function = 0
        for nocc in (c.shape[1] for c in occupied):
            product = 4 * n * nocc if how.rows else n * n
            per_function += (half + product) * nocc
        exact = naux
        if how.exact is not None:
            exact = int(how.exact.sum())
        elif how.single:
            exact = 0
        self.operations[0] += exact * per_function
        self.operations[1] += (naux - exact) * per_function

    def discard(self) -> None:
        """Free B, the long-range one too."""
        self.stop_gathering()
        self._cderi = None
        for builder in self._long_range.values():
            builder.discard()


def signed_orbitals(density: Array) -> list[Array]:
    """P and N, (nao, n) each, with P P^T - N N^T equal to a symmetric density (nao, nao)."""
    values, vectors = np.linalg.eigh(density)
    least = NOTHING * np.abs(values).max(initial=0.0)
    return [
        vectors[:, part] * np.sqrt(np.abs(values[part]))
        for part in (values > least, values < -least)
    ]


def fit_scf_integrals(
    mole: Any,
    auxmole: Any,
    pairs: PairList,
    threads: int,
    progress: Progress = lambda done, total: None,
) -> Array:
    """B for the kept pairs of basis functions mu >= nu, shape (naux, ncolumn) float64, Eh^1/2."""
    b = np.empty((auxmole.nao, len(pairs.columns)))
    with worker_pool(threads) as pool:
        for p0, p1, block in packed_blocks(mole, auxmole, out=b if pairs.complete else None):
            if not pairs.complete:
                list(
                    pool.map(
                        pairs.compress, *(np.array_split(x, threads) for x in (block, b[p0:p1]))
                    )
                )
            progress(p1, len(b))
    factor = factorise(coulomb_metric(auxmole), overwrite=True)
    return fit_columns(b, factor, ends_of(pair_groups(mole, pairs)), threads)


def column_squares(b: Array) -> Array:
    """sum_P B_P,mn^2 of some columns of B, (naux, n) -> (n,), Eh."""
    return np.asarray(np.einsum("pc,pc->c", b, b))


def fit_columns(b: Array, factor: MetricFactor, ends: list[int], threads: int) -> Array:
    """B from (Q|mn), shape (naux, ncolumn), in groups of columns with these ends; in place for a
    triangular factor.

    The columns of a group are solved COLUMNS at a time, wherever they are stored: the last bits are
    the same in memory and on the way to disk.
    """
    ranges = [
        (start, min(start + COLUMNS, end))
        for begin, end in pairwise([0, *ends])
        for start in range(begin, end, COLUMNS)
    ]
    fitted = b if factor.triangular else np.empty((factor.naux, b.shape[1]))

    def solve(number: int) -> None:
        start, stop = ranges[number]
        if factor.triangular:
            multiply_columns(factor.factor, b, start, stop)
        else:
            fitted[:, start:stop] = factor.factor.T @ b[:, start:stop]

    each(len(ranges), solve, threads)
    return fitted


def coulomb_exchange_of_b(
    b: Array,
    pairs: PairList,
    occupied: list[Array],
    threads: int,
    how: ExchangeProducts | None = None,
    *,
    rectangles: ClusterRectangles | None = None,
) -> tuple[Array, Array]:
    """J and K of each spin, from B in memory, (naux, ncolumn) float64; other parameters as in
    `accumulated`.

    Parameters
    ----------
    how : ExchangeProducts, optional
        None for float64.
    rectangles : ClusterRectangles or None
        All of B for the float32 products, None to gather it block by block.
    """
    ranges = shares(len(b), threads)
    parts = [b[start:stop] for start, stop in ranges]
    gathered = None
    if rectangles is not None:
        gathered = [rectangles.share(start, stop) for start, stop in ranges]
    if how is None:
        how = ExchangeProducts()
    return accumulated([parts], len(b), pairs, occupied, threads, how, gathered=gathered)


def rows_at_a_time(pairs: PairList, occupied: list[Array]) -> tuple[int, int]:
    """Number of fitting functions that stay in cache from Coulomb to exchange, and the multiple of
    it per exchange product."""
    most = max(1, BLOCK_BYTES // (8 * len(occupied[0]) * max(1, sum(c.shape[1] for c in occupied))))
    few = min(most, max(1, CACHE_BYTES // (8 * max(1, len(pairs.columns)))))
    return few, most - most % few


def accumulated(
    chunks: Iterable[list[Array]],
    naux: int,
    pairs: PairList,
    occupied: list[Array],
    threads: int,
    how: ExchangeProducts,
    *,
    gathered: list[list[Single]] | None = None,
) -> tuple[Array, Array]:
    """J and K of each spin; their last bits depend only on sizes and threads, not on how B arrives.

    Parameters
    ----------
    chunks : for each worker the next rows of its share of B, (n, ncolumn) float64; except for the
        last, n is a multiple of the first of `rows_at_a_time`
    naux : rows of B
    pairs : meaning of the columns of B
    occupied : per spin (nao, n) float64, orbitals scaled by the square root of their occupation
    how : products of K
    gathered : for each worker, the part of `ClusterRectangles.share` for its rows

    Returns
    -------
    J, K : (nspin, nao, nao) float64, Eh; with `how.rows` the first rows of K are C^T K and the others
        are 0
    """
    folded = None
    if not how.wanted:
        density = [c @ c.T for c in occupied]
        folded = np.stack(
            [lib.pack_tril(d + d.T - np.diag(d.diagonal()))[pairs.columns] for d in density]
        )
    workers = []
    for worker, (start, stop) in enumerate(shares(naux, threads)):
        rectangles = gathered[worker] if gathered is not None else None
        workers.append(
            WorkerMatrices(folded, pairs, occupied, how.of_share(start, stop), rectangles)
        )
    with worker_pool(threads) as pool:
        for chunk in chunks:
            list(pool.map(WorkerMatrices.add, workers, chunk))
        list(pool.map(WorkerMatrices.finish, workers))
    j, k = (np.add.reduce(parts) for parts in ([w.j for w in workers], [w.k for w in workers]))
    if not pairs.complete:  # K has its rows and columns in cluster order
        back = np.argsort(np.concatenate([cluster.functions for cluster in pairs.clusters]))
        k = k[:, :, back] if how.rows else k[:, back[:, None], back]
    return np.stack([lib.unpack_tril(row) for row in pairs.expand(j)]), k


class WorkerMatrices:
    """Contributions of one worker to J and K.

    Parameters
    ----------
    folded : (nspin, ncolumn) density of the kept pairs, both triangles; None with K, because J then
        uses the same products

    Attributes
    ----------
    j, k : (nspin, ncolumn) and (nspin, nao, nao), Eh
    """

    def __init__(
        self,
        folded: Array | None,
        pairs: PairList,
        occupied: list[Array],
        how: ExchangeProducts,
        rectangles: list[Single] | None = None,
    ) -> None:
        nao = len(occupied[0])
        self.j = np.zeros((len(occupied), len(pairs.columns)))
        self.k = np.zeros((len(occupied), nao, nao))
        self._folded = folded
        self._few, most = rows_at_a_time(pairs, occupied)
        self._how = how
        self._next = 0  # the next fitting function
        self._blocks = []  # of half-transformed integrals, float64 first
        if not how.wanted:
            return
        order = np.concatenate([cluster.functions for cluster in pairs.clusters])
        rows = [c[order].T for c in occupied]
        kinds = [how.single]
        if how.exact is not None:
            kinds = [False, True]
            most = max(1, most // 2)  # both share the memory for one
        for single in kinds:
            transform = half_transform(
                occupied,
                most,
                pairs,
                single=single,
                rectangles=rectangles if single else None,
                whole=how.exact is None,
            )
            self._blocks.append(ExchangeBlock(transform, most, rows, self.k, how))

    def add(self, rows: Array) -> None:
        """Add the next fitting functions, (n, ncolumn)."""
        for first in range(0, len(rows), self._few):  # read from memory once, for J and K
            few = rows[first : first + self._few]
            if self._folded is not None:
                for s, row in enumerate(self._folded):
                    add_projection(few, row, self.j[s])
                continue
            along = np.empty((len(self.j), len(few)))
            if self._how.exact is None:
                self._blocks[0].add(few, self._next, along)
            else:
                double, single = self._blocks
                exact = self._how.exact[self._next : self._next + len(few)]
                for start, stop in pairwise([0, *(np.flatnonzero(np.diff(exact)) + 1), len(few)]):
                    block = double if exact[start] else single
                    block.add(few[start:stop], self._next + start, along[:, start:stop])
            for s, vector in enumerate(along):
                self.j[s] += vector @ few
            self._next += len(few)

    def finish(self) -> None:
        """Add the exchange of the remaining fitting functions."""
        for block in self._blocks:
            block.finish()


class ExchangeBlock:
    """Half-transformed fitting functions that wait for the product that adds them to K.

    Parameters
    ----------
    transform : HalfTransform
    most : number of fitting functions in a product
    orbitals : of each spin (n, nao), in the order of the columns of X
    k : (nspin, nao, nao), Eh, to which products are added
    how : of the worker's fitting functions
    """

    def __init__(
        self,
        transform: HalfTransform,
        most: int,
        orbitals: list[Array],
        k: Array,
        how: ExchangeProducts,
    ) -> None:
        self._transform = transform
        self._most = most
        self._orbitals = [
            np.ascontiguousarray(rows, dtype=half.dtype).ravel()
            for rows, half in zip(orbitals, transform.halves(0), strict=True)
        ]
        self._k = k
        self._norms = how.norms
        self._rows = how.rows
        self._waiting = 0
        self._added = 0

    def add(self, rows: Array, number: int, along: Array) -> None:
        """Add fitting functions, (n, ncolumn), the first with index `number` in the worker's share.
        v of each spin is written to `along`, (nspin, n)."""
        start = 0
        while start < len(rows):
            stop = min(len(rows), start + self._most - self._waiting)
            self._transform.put(self._waiting, rows[start:stop], number + start)
            halves = self._transform.halves(self._waiting + stop - start)
            for s, (half, orbitals) in enumerate(zip(halves, self._orbitals, strict=True)):
                x = half[self._waiting :].reshape(stop - start, len(orbitals))
                along[s, start:stop] = x @ orbitals
            self._waiting += stop - start
            start = stop
            if self._waiting == self._most:
                self.finish()

    def finish(self) -> None:
        """Add the waiting functions to K."""
        for s, half in enumerate(self._transform.halves(self._waiting)):
            x = half.reshape(-1, half.shape[2])
            if self._rows:
                orbitals = self._orbitals[s].reshape(half.shape[1:])
                self._k[s, : len(orbitals)] += (x @ orbitals.T).T @ x
            else:
                self._k[s] += x.T @ x  # NumPy recognises the same operand and calls syrk
            if self._norms is not None:
                self._norms[self._added : self._added + self._waiting] += np.einsum(
                    "pim,pim->p", half, half
                )
        self._added += self._waiting
        self._waiting = 0
