"""Coulomb and exchange matrices from fitted integrals kept in memory: the builder behind PySCF's DF-SCF.

    B_P,mn = sum_Q L^-1_PQ (Q|mn)      m >= n, made once, in place
    J_mn = sum_P B_P,mn sum_ls B_P,ls D_ls
    K_mn = sum_Pi X_Pi,m X_Pi,n        X_Pi,m = sum_n B_P,mn C_ni

Every step streams over blocks of fitting functions that stay in cache, shared out over our own
single-threaded workers; a fixed share for each worker keeps the sums in the same order from run to
run. Densities without orbitals (the second-order solver, stability) go to PySCF's own builder, which
reads the same B. Source: Weigend, Phys. Chem. Chem. Phys. 4, 4285 (2002).
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyscf import df, lib
from pyscf.ao2mo import _ao2mo

from dfmp2.blas import solve_columns
from dfmp2.fitting import factorise
from dfmp2.reference.integrals import coulomb_metric, packed_blocks

Array = NDArray[np.float64]

COLUMN_BYTES = 16 * 10**6  # of B per triangular solve
BLOCK_BYTES = 12 * 10**6  # of half-transformed integrals per exchange product; stays in the shared cache


class FittedIntegrals(df.DF):  # type: ignore[misc]
    """PySCF's density-fitting object with our own integrals and matrices.

    Parameters
    ----------
    mole, auxmole : PySCF molecules carrying the orbital and the fitting functions
    threads : workers
    """

    def __init__(self, mole: Any, auxmole: Any, threads: int) -> None:
        super().__init__(mole, auxbasis=auxmole.basis)
        self.auxmol = auxmole
        self._cderi: Any = None
        self.threads = threads

    def build(self) -> FittedIntegrals:
        """Make B, shape (naux, nao (nao + 1) / 2) float64, unless it is there."""
        if self._cderi is None:
            self._cderi = fitted_integrals(self.mol, self.auxmol, self.threads)
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
        """J and K of densities that carry their orbitals; any other density goes to PySCF."""
        orbitals = getattr(dm, "mo_coeff", None)
        if orbitals is None or omega or not (with_j and with_k) or hermi != 1:
            self.build()
            return super().get_jk(dm, hermi, with_j, with_k, direct_scf_tol, omega)  # type: ignore[no-any-return]
        occupations = np.asarray(dm.mo_occ)
        spins = [(orbitals, occupations)] if occupations.ndim == 1 else list(zip(orbitals, occupations, strict=True))
        occupied = [np.asarray(c)[:, n > 0] * np.sqrt(n[n > 0]) for c, n in spins]
        j, k = coulomb_exchange(self.build()._cderi, occupied, self.threads)
        return j.reshape(np.shape(dm)), k.reshape(np.shape(dm))


def fitted_integrals(mole: Any, auxmole: Any, threads: int) -> Array:
    """B for all pairs of basis functions mu >= nu, shape (naux, npair) float64, Eh^1/2."""
    nao = mole.nao
    b = np.empty((auxmole.nao, nao * (nao + 1) // 2))
    for _ in packed_blocks(mole, auxmole, out=b):
        pass  # each block is written into b
    factor = factorise(coulomb_metric(auxmole))
    if not factor.triangular:
        return np.asarray(factor.factor.T @ b)
    fit_in_place(b, factor.factor, threads)
    return b


def fit_in_place(b: Array, factor: Array, threads: int) -> None:
    """Replace packed (Q|mn), shape (naux, npair), with L^-1 (Q|mn), in ranges of columns shared out over workers."""
    step = max(1, COLUMN_BYTES // (8 * len(b)))
    with ThreadPoolExecutor(threads) as pool:
        starts = range(0, b.shape[1], step)
        list(pool.map(lambda start: solve_columns(factor, b, start, min(start + step, b.shape[1])), starts))


def coulomb_exchange(b: Array, occupied: list[Array], threads: int) -> tuple[Array, Array]:
    """J and K of each spin.

    Parameters
    ----------
    b : (naux, npair) float64, packed lower triangles
    occupied : per spin (nao, n) float64, orbitals scaled with the root of their occupation

    Returns
    -------
    J, K : (nspin, nao, nao) float64, Eh
    """
    naux, nao = len(b), len(occupied[0])
    density = [c @ c.T for c in occupied]
    folded = np.stack([lib.pack_tril(d + d.T - np.diag(d.diagonal())) for d in density])
    most = max(1, max(c.shape[1] for c in occupied))
    step = max(1, BLOCK_BYTES // (8 * nao * most))
    bounds = np.linspace(0, naux, threads + 1).round().astype(int)

    def share(worker: int) -> tuple[Array, Array]:
        lib.num_threads(1)  # of this thread alone: PySCF's loops inside a worker stay in it
        j, k = np.zeros_like(folded), np.zeros((len(occupied), nao, nao))
        buffer = np.empty(step * most * nao)  # one per worker: fresh memory for every block costs much
        for start in range(bounds[worker], bounds[worker + 1], step):
            block = b[start : min(start + step, bounds[worker + 1])]
            for s, c in enumerate(occupied):
                j[s] += (block @ folded[s]) @ block
                if c.shape[1]:
                    x = half_transform(block, c, buffer)
                    k[s] += x.T @ x  # NumPy sees one operand twice and calls syrk
        return j, k

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(share, range(threads)))
    j, k = (np.add.reduce([part[n] for part in parts]) for n in (0, 1))
    return np.stack([lib.unpack_tril(row) for row in j]), k


def half_transform(block: Array, orbitals: Array, buffer: Array) -> Array:
    """X_Pi,m = sum_n B_P,mn C_ni from packed B: (n fitting functions * n orbitals, nao) float64, in `buffer`."""
    nao, count = orbitals.shape
    out = buffer[: len(block) * count * nao].reshape(len(block) * count, nao)
    coefficients = np.asfortranarray(orbitals)
    _ao2mo.libao2mo.AO2MOnr_e2_drv(
        _ao2mo.libao2mo.AO2MOtranse2_nr_s2,
        _ao2mo.libao2mo.AO2MOmmm_bra_nr_s2,
        out.ctypes.data_as(ctypes.c_void_p),
        block.ctypes.data_as(ctypes.c_void_p),
        coefficients.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int(len(block)),
        ctypes.c_int(nao),
        (ctypes.c_int * 4)(0, count, 0, nao),
        lib.c_null_ptr(),
        ctypes.c_int(0),
    )
    return out
