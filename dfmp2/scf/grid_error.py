"""The error of an integration grid, measured on a finer one with the converged density D.

    dE_KS = E_xc[D] - E_xc[D; finer]                                                           (1)
    dV = V_xc[D; finer] - V_xc[D],      (e + C^T dV C) U = U e'                                (2)
    dE_EXX = -sum_s tr F_s (D'_s - D_s),      D'_s of the orbitals C U                         (3)

F_s is the Hartree-Fock matrix of (D + D') / 2, with which Eq. 3 is exact.

The spheres of the finer grid are larger near the nuclei too, where PySCF's are the same at every
level: the error of open-shell atoms, which depends on their orientation, is that of these spheres.

E(KS) is stationary, so Eq. 1 is correct to second order. E_EXX and the correlation energy are not
functionals of E_xc: the grid affects them only through the orbitals C and their energies e, to
first order. Eq. 2 is one step towards the orbitals of the finer grid: the Fock matrix is rebuilt
and diagonalised, without the effect of the density change on it. It needs V_xc on the finer grid,
and is used only for the random-phase approximation; other methods use only Eq. 1, with the density
of the last Fock matrix. For how much of the error these numbers capture, see
docs/project/validation/kohn-sham.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from dfmp2.arrays import Array
from dfmp2.integrals.grid import build_unsorted, finer_name, make_finer_grid
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.scf.kohn_sham import exact_exchange_matrices, integrate_functional, of_mean_field
from dfmp2.scf.reference import GridError, Reference

SAME_DENSITY = 1e-4  # in each element: below this, E_xc on both grids changes alike


def with_grid_error(mf: Any, reference: Reference, *, of_orbitals: bool) -> Reference:
    """The Kohn-Sham reference with the measured error of its integration grid.

    Parameters
    ----------
    mf : pyscf.dft.rks.RKS or pyscf.dft.uks.UKS
        Converged mean field that the reference was recorded from.
    reference : Reference
        Its orbitals, with the name of the grid.
    of_orbitals : bool
        Whether to evaluate Eqs. 2 and 3 too, which need V_xc on the finer grid.
    """
    name = finer_name(mf.mol, str(reference.grid_name), str(reference.xc))
    with shielded():
        finer = make_finer_grid(mf.mol, name)
        build_unsorted(finer)
        measured = GridError(
            finer=name,
            finer_points=int(np.count_nonzero(finer.weights)),
            scf_error=0.0,
            exx_error=None,
            coupling=None,
        )
        if of_orbitals:
            return _with_orbital_error(mf, replace(reference, grid_error=measured), finer)
        density, energy = _latest(mf)
        error = energy - of_mean_field(mf, finer).energy(mf._numint, mf.xc, density)
    return replace(reference, grid_error=replace(measured, scf_error=error))


def _with_orbital_error(mf: Any, reference: Reference, finer: Any) -> Reference:
    """The reference with the error of its grid in E(SCF), and by Eqs. 2 and 3 through its
    orbitals; `finer` is the finer grid."""
    density = mf.make_rdm1()
    energy, potential = integrate_functional(mf, mf.grids, density)
    finer_energy, finer_potential = integrate_functional(mf, finer, density)
    differences = np.reshape(finer_potential - potential, (reference.nspin, *potential.shape[-2:]))
    measured = replace(
        cast(GridError, reference.grid_error),
        scf_error=energy - finer_energy,
        coupling=np.stack(
            [c.T @ dv @ c for c, dv in zip(reference.mo_coeff, differences, strict=True)]
        ),
    )
    moved = on_finer_grid(replace(reference, grid_error=measured))
    before, after = _densities(reference), _densities(moved)
    mean = (before + after) / 2
    if reference.nspin == 1:
        mean = mean[0]
    error = 0.0
    for fock, change in zip(exact_exchange_matrices(mf, mean), after - before, strict=True):
        error -= float(np.vdot(fock, change))
    return replace(reference, grid_error=replace(measured, exx_error=error))


def _latest(mf: Any) -> tuple[Any, float]:
    """The last density used on the final grid and its E_xc, Eh; recomputed if it differs from that
    of the orbitals, as after the second-order solver."""
    density = mf.make_rdm1()
    latest: tuple[Any, float] | None = vars(mf).get("latest")
    if latest is not None and np.abs(latest[0] - density).max() < SAME_DENSITY:
        return latest
    return density, of_mean_field(mf, mf.grids).energy(mf._numint, mf.xc, density)


def on_finer_grid(reference: Reference) -> Reference:
    """The reference with the orbitals and energies of Eq. 2.

    Parameters
    ----------
    reference : Reference
        With the measured error of its grid in the orbitals.

    Raises
    ------
    ValueError
        The error of its grid was not measured for the orbitals.
    """
    if reference.grid_error is None or reference.grid_error.coupling is None:
        raise ValueError("V_xc was not made on a finer integration grid")
    coeff = np.empty_like(reference.mo_coeff)
    energy = np.empty_like(reference.mo_energy)
    for spin, coupling in enumerate(reference.grid_error.coupling):
        matrix = coupling + np.diag(reference.mo_energy[spin])
        energy[spin], turn = np.linalg.eigh((matrix + matrix.T) / 2)
        occupied = reference.mo_occ[spin] > 0
        # Occupied orbitals stay first, even if two energies have changed their order.
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
