"""The fitting error of E(SCF) between atoms, estimated without four-centre integrals.

The fitted exchange energy is too small by 1/2 sum_ij (d_ij|d_ij) of each spin, with d_ij the
fitting residual of a product of occupied orbitals. Of the terms (d_mn|d_ls), only those with m and
l on one atom and n and s on another are kept, with (d_mn|d_ls) = q_mn q_ls S_ml S_ns: the residuals
of two pairs are assumed to be as similar as their functions.

    E = 1/2 sum_mnls G_ml q_mn G_ns q_ls      G_ml = D_ml S_ml on one atom      q_mn^2 = (mn|mn) - sum_P B_P,mn^2

D is the density matrix of a spin; q_mn^2 is averaged over the directions of both functions, so that
E is independent of the orientation of the molecule. G is positive semidefinite, as D and S are
(Schur), so E is never negative. The error of the Coulomb energy is smaller and of opposite sign,
and is neglected. Nothing here is fitted to data: docs/project/validation/fitting-certificates.md
has 120 errors of molecules.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.integrals.four_center import pair_diagonals
from dfmp2.integrals.screening import schwarz_bounds

SMALLEST = 1e-7  # Eh, largest (mn|mn) up to which a pair of shells is neglected


def between_atoms(mole: Any, density: Array, squares: Array) -> float:
    """Estimate of the error of E(SCF) from fitting between atoms, Eh; 0 or more.

    Parameters
    ----------
    mole : PySCF molecule
    density : (nao, nao) of both spins together, or (2, nao, nao) of each
    squares : (npair,) sum_P B_P,mn^2 of the packed pairs m >= n, Eh
    """
    atoms = mole._bas[:, 0]
    wanted = (atoms[:, None] > atoms) & (schwarz_bounds(mole) ** 2 > SMALLEST)
    exact = pair_diagonals(mole, wanted)
    fitted = np.zeros((mole.nao, mole.nao))
    fitted[np.tril_indices(mole.nao)] = squares
    left = np.where(exact > 0.0, np.maximum(exact - fitted, 0.0), 0.0)
    # Functions that differ only in direction: a shell has one such set for each contraction.
    widths = [
        2 * mole.bas_angular(n) + 1 for n in range(mole.nbas) for _ in range(mole.bas_nctr(n))
    ]
    owners = np.array([mole.bas_atom(n) for n in range(mole.nbas) for _ in range(mole.bas_nctr(n))])
    starts = np.cumsum([0, *widths[:-1]])

    def summed(values: Array) -> Array:
        return np.asarray(np.add.reduceat(np.add.reduceat(values, starts, axis=0), starts, axis=1))

    missed = np.sqrt(summed(left + left.T) / np.outer(widths, widths))
    same = owners[:, None] == owners
    overlap = mole.intor_symmetric("int1e_ovlp")
    spins = density if density.ndim == 3 else np.stack([density / 2] * 2)
    total = 0.0
    for spin in spins:
        populations = np.where(same, summed(spin * overlap), 0.0)
        total += float(np.vdot(populations @ missed @ populations, missed)) / 2
    return total
