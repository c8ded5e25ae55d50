"""Coulomb and exchange matrices J and K from fitted integrals kept in memory: the builder behind PySCF's DF-SCF:

    B_P,mn = sum_Q L^-1_PQ (Q|mn)      m >= n, no negligible pairs, made once, in place
    J_mn = sum_P B_P,mn sum_ls B_P,ls D_ls
    K_mn = sum_Pi X_Pi,m X_Pi,n        X_Pi,m = sum_n B_P,mn C_ni

J is float64 always. K may be made from float32 products while the SCF is far from its end (`single`).
Every step streams over blocks of fitting functions that stay in cache, shared out over our own
single-threaded workers; a fixed share for each worker keeps the sums in the same order from run to
run. Densities without orbitals (the second-order solver, stability) go to PySCF's own builder, which
reads the same B. Source: Weigend, Phys. Chem. Chem. Phys. 4, 4285 (2002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.host.blas import solve_columns
from dfmp2.integrals.metric import factorise
from dfmp2.integrals.screening import PairList, pair_list
from dfmp2.integrals.three_center import coulomb_metric, packed_blocks
from dfmp2.integrals.transform import half_transform
from dfmp2.molecule.pyscf_shield import import_pyscf

import_pyscf()

from pyscf import df, lib  # noqa: E402 - through the shield

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

COLUMN_BYTES = 16 * 10**6  # of B per triangular solve
BLOCK_BYTES = 12 * 10**6  # of half-transformed integrals per exchange product; stays in the shared cache
CACHE_BYTES = 4 * 10**6  # of B at a time; stays in cache from Coulomb to exchange


class FittedIntegrals(df.DF):  # type: ignore[misc]
    """PySCF's density-fitting object with our own integrals and matrices.

    Parameters
    ----------
    mole, auxmole : PySCF molecules carrying the orbital and the fitting functions
    threads : workers
    progress : called with (integrals done, all of them), counted in fitting functions or pairs, when B is made

    Attributes
    ----------
    single : half-transform and exchange products in float32; the caller switches it off before the end
    """

    def __init__(self, mole: Any, auxmole: Any, threads: int, progress: Progress = lambda done, total: None) -> None:
        super().__init__(mole, auxbasis=auxmole.basis)
        self.auxmol = auxmole
        self._cderi: Any = None
        self.threads = threads
        self.single = False
        self._progress = progress
        self.pairs = pair_list(mole)

    def build(self) -> FittedIntegrals:
        """Make B, shape (naux, ncolumn) float64, unless it is there."""
        if self._cderi is None:
            self._cderi = fitted_integrals(self.mol, self.auxmol, self.pairs, self.threads, self._progress)
        return self

    def loop(self, blksize: int | None = None) -> Iterator[Array]:
        """Blocks of packed triangles, for PySCF's own builder."""
        for block in super().loop(blksize):
            yield self.pairs.expand(block)

    def get_jk(
        self,
        dm: Any,
        hermi: int = 1,
        with_j: bool = True,
        with_k: bool = True,
        direct_scf_tol: float = 1e-13,
        omega: float | None = None,
    ) -> tuple[Any, Any]:
        """J and K of densities that carry their orbitals; any other density goes to PySCF."""
        orbitals = getattr(dm, "mo_coeff", None)
        if orbitals is None or omega or not (with_j and with_k) or hermi != 1:
            self.build()
            return super().get_jk(dm, hermi, with_j, with_k, direct_scf_tol, omega)  # type: ignore[no-any-return]
        occupations = np.asarray(dm.mo_occ)
        spins = [(orbitals, occupations)] if occupations.ndim == 1 else list(zip(orbitals, occupations, strict=True))
        occupied = [np.asarray(c)[:, n > 0] * np.sqrt(n[n > 0]) for c, n in spins]
        j, k = self.matrices(occupied)
        return j.reshape(np.shape(dm)), k.reshape(np.shape(dm))

    def matrices(self, occupied: list[Array]) -> tuple[Array, Array]:
        """J and K of each spin, from orbitals (nao, n) scaled with the root of their occupation."""
        return coulomb_exchange(self.build()._cderi, self.pairs, occupied, self.threads, single=self.single)

    def discard(self) -> None:
        """Free B."""
        self._cderi = None


def fitted_integrals(
    mole: Any, auxmole: Any, pairs: PairList, threads: int, progress: Progress = lambda done, total: None
) -> Array:
    """B for the kept pairs of basis functions mu >= nu, shape (naux, ncolumn) float64, Eh^1/2."""
    b = np.empty((auxmole.nao, len(pairs.columns)))
    for p0, p1, block in packed_blocks(mole, auxmole, out=b if pairs.complete else None):
        if not pairs.complete:
            pairs.compress(block, b[p0:p1])
        progress(p1, len(b))
    factor = factorise(coulomb_metric(auxmole), overwrite=True)
    if not factor.triangular:
        return np.asarray(factor.factor.T @ b)
    fit_in_place(b, factor.factor, threads)
    return b


def fit_in_place(b: Array, factor: Array, threads: int) -> None:
    """Replace (Q|mn), shape (naux, ncolumn), with L^-1 (Q|mn), in ranges of columns shared out over workers."""
    step = max(1, COLUMN_BYTES // (8 * len(b)))
    with ThreadPoolExecutor(threads) as pool:
        starts = range(0, b.shape[1], step)
        list(pool.map(lambda start: solve_columns(factor, b, start, min(start + step, b.shape[1])), starts))


def coulomb_exchange(
    b: Array, pairs: PairList, occupied: list[Array], threads: int, *, single: bool = False
) -> tuple[Array, Array]:
    """J and K of each spin.

    Parameters
    ----------
    b : (naux, ncolumn) float64; pairs : what its columns are
    occupied : per spin (nao, n) float64, orbitals scaled with the root of their occupation
    single : K from float32 products, each block of them added up in float64

    Returns
    -------
    J, K : (nspin, nao, nao) float64, Eh
    """
    naux, nao = len(b), len(occupied[0])
    density = [c @ c.T for c in occupied]
    folded = np.stack([lib.pack_tril(d + d.T - np.diag(d.diagonal()))[pairs.columns] for d in density])
    step = max(1, BLOCK_BYTES // (8 * nao * max(1, sum(c.shape[1] for c in occupied))))
    few = max(1, CACHE_BYTES // (8 * max(1, b.shape[1])))
    bounds = np.linspace(0, naux, threads + 1).round().astype(int)

    def share(worker: int) -> tuple[Array, Array]:
        j, k = np.zeros_like(folded), np.zeros((len(occupied), nao, nao))
        transform = half_transform(occupied, step, pairs, single=single)
        for start in range(bounds[worker], bounds[worker + 1], step):
            stop = min(start + step, bounds[worker + 1])
            for first in range(start, stop, few):  # read from memory once, for J and K
                rows = b[first : min(first + few, stop)]
                for s, row in enumerate(folded):
                    j[s] += (rows @ row) @ rows
                transform.put(first - start, rows)
            for s, half in enumerate(transform.halves(stop - start)):
                x = half.reshape(-1, nao)
                k[s] += x.T @ x  # NumPy sees one operand twice and calls syrk
        return j, k

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(share, range(threads)))
    j, k = (np.add.reduce([part[n] for part in parts]) for n in (0, 1))
    if not pairs.complete:  # K has its rows and columns in the order of the clusters
        back = np.argsort(np.concatenate([cluster.functions for cluster in pairs.clusters]))
        k = k[:, back[:, None], back]
    return np.stack([lib.unpack_tril(row) for row in pairs.expand(j)]), k
