"""The error of an integration grid, measured on a finer one with the converged density D.

    dE_KS = E_xc[D] - E_xc[D; finer]                                                           (1)
    dV = V_xc[D; finer] - V_xc[D],      (e + C^T dV C) U = U e'                                (2)
    dE_EXX = -sum_s tr F_s (D'_s - D_s),      D'_s of the orbitals C U                         (3)

F_s is the Hartree-Fock matrix of (D + D') / 2, with which Eq. 3 is exact.

E(KS) is stationary, so that Eq. 1 is right to second order. E_EXX and the correlation energy are
not functionals of E_xc: the grid comes into them with the orbitals C and their energies e alone,
in first order. Eq. 2 is one step towards those of the finer grid, a Fock matrix rebuilt and
diagonalised; what the change of the density does to the Fock matrix is left out. How much of the
error these numbers tell is in docs/project/validation/kohn-sham.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.integrals.grid import finer_name, make_grid
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.scf.kohn_sham import exact_exchange_matrices, integrate_functional
from dfmp2.scf.reference import GridError, Reference

Array = NDArray[np.float64]


def with_grid_error(mf: Any, reference: Reference) -> Reference:
    """The Kohn-Sham reference with the measured error of its integration grid.

    Parameters
    ----------
    mf : pyscf.dft.rks.RKS or pyscf.dft.uks.UKS
        Converged mean field that the reference was recorded from.
    reference : Reference
        Its orbitals, with the name of the grid.
    """
    name = finer_name(mf.mol, str(reference.grid_name), str(reference.xc))
    with shielded():
        density = mf.make_rdm1()
        finer = make_grid(mf.mol, name)
        finer.build(with_non0tab=False)
        energy, potential = integrate_functional(mf, mf.grids, density)
        finer_energy, finer_potential = integrate_functional(mf, finer, density)
        points = int(np.count_nonzero(finer.weights))
        del finer
        differences = finer_potential - potential
        if reference.nspin == 1:
            differences = differences[None]
        coupling = np.stack(
            [c.T @ dv @ c for c, dv in zip(reference.mo_coeff, differences, strict=True)]
        )
        found = GridError(
            finer=name,
            finer_points=points,
            scf_error=energy - finer_energy,
            exx_error=0.0,
            coupling=coupling,
        )
        measured = replace(reference, grid_error=found)
        before, after = _densities(reference), _densities(on_finer_grid(measured))
        mean = (before + after) / 2
        if reference.nspin == 1:
            mean = mean[0]
        error = 0.0
        for fock, change in zip(exact_exchange_matrices(mf, mean), after - before, strict=True):
            error -= float(np.vdot(fock, change))
    return replace(reference, grid_error=replace(found, exx_error=error))


def on_finer_grid(reference: Reference) -> Reference:
    """The reference with orbitals and energies of Eq. 2.

    Parameters
    ----------
    reference : Reference
        With a measured error of its grid.

    Raises
    ------
    ValueError
        The error of its grid was not measured.
    """
    if reference.grid_error is None:
        raise ValueError("the error of the integration grid was not measured")
    coeff, energy = np.empty_like(reference.mo_coeff), np.empty_like(reference.mo_energy)
    for spin, coupling in enumerate(reference.grid_error.coupling):
        matrix = coupling + np.diag(reference.mo_energy[spin])
        energy[spin], turn = np.linalg.eigh((matrix + matrix.T) / 2)
        occupied = reference.mo_occ[spin] > 0
        # Occupied orbitals stay first, also where the order of two energies is another one now.
        share = (turn[occupied] ** 2).sum(axis=0)
        order = np.argsort(-share, kind="stable")
        count = int(occupied.sum())
        order = np.concatenate([np.sort(order[:count]), np.sort(order[count:])])
        energy[spin] = energy[spin][order]
        coeff[spin] = reference.mo_coeff[spin] @ turn[:, order]
    return replace(reference, mo_coeff=coeff, mo_energy=energy)


def _densities(reference: Reference) -> Array:
    """Density matrix of each spin, or of all electrons, (nspin, nao, nao)."""
    return np.stack(
        [(c * n) @ c.T for c, n in zip(reference.mo_coeff, reference.mo_occ, strict=True)]
    )
