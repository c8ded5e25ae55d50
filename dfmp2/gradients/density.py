"""Densities of one electron, and the properties that they give.

    D = sum_s C (n + P) C^T            mu = sum_A Z_A R_A - sum_mn D_mn (m|r|n)
    Q_xy = sum_A Z_A X_A Y_A - sum_mn D_mn (m|xy|n)
    q_A = Z_A - sum_{m on A} (D S)_mm                    Mulliken
    q_A = Z_A - sum_{m on A} (S^1/2 D S^1/2)_mm          Loewdin; spin populations with the alpha less the beta density

n is 1 for occupied orbitals of the reference; P those of the correlation energy
(`dfmp2.gradients.response`): unrelaxed between correlated orbitals of one kind alone, relaxed with
the response of the orbitals. The relaxed moments are derivatives of the energy, of dipole moments
with a field. Natural occupations are the eigenvalues of S^1/2 D S^1/2. Moments are about the origin
of the coordinates: of a charged molecule the dipole moment depends on it, and the quadrupole
moment, which keeps its trace, does where there is a dipole moment. Z is the charge of the nucleus
less the electrons that a core potential replaces. Sources: Mulliken, J. Chem. Phys. 23, 1833
(1955); Loewdin, J. Chem. Phys. 18, 365 (1950).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.gradients.response import Orbitals, Relaxed
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2.properties import Properties

Array = NDArray[np.float64]


def properties(mole: Any, spins: Sequence[Orbitals], found: Sequence[Relaxed]) -> Properties:
    """Densities, moments, charges and natural occupations.

    Parameters
    ----------
    mole : PySCF molecule
    spins, found : orbitals and densities of one spin, which stands for two, or of both
    """
    with shielded():
        position, overlap, moments = (mole.intor(f"int1e_{name}") for name in ("r", "ovlp", "rr"))
    charges, places = mole.atom_charges().astype(np.float64), mole.atom_coords()
    scf = np.stack([o.density for o in spins])
    unrelaxed = scf + np.stack(
        [o.in_functions(p.unrelaxed) for o, p in zip(spins, found, strict=True)]
    )
    relaxed = scf + np.stack([o.in_functions(p.relaxed) for o, p in zip(spins, found, strict=True)])
    weight = 2.0 if len(spins) == 1 else 1.0
    of_spins = np.stack([scf, unrelaxed, relaxed])  # (3, nspin, nao, nao)
    total = weight * of_spins.sum(axis=1)
    dipole = charges @ places - np.einsum("xmn,dmn->dx", position, total, optimize=True)
    quadrupole = np.einsum("a,ax,ay->xy", charges, places, places) - np.einsum(
        "xymn,dmn->dxy", moments.reshape(3, 3, *overlap.shape), total, optimize=True
    )
    values, vectors = np.linalg.eigh(overlap)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    basis = overlap @ spins[0].coeff
    slices = mole.aoslice_by_atom()[:, 2:]

    def on_atoms(populations: Array) -> Array:
        return np.stack([populations[:, p0:p1].sum(axis=1) for p0, p1 in slices], axis=1)

    def mulliken(density: Array) -> Array:
        return on_atoms(np.einsum("dmn,mn->dm", density, overlap))

    def lowdin(density: Array) -> Array:
        return on_atoms(np.einsum("ma,dab,bm->dm", root, density, root, optimize=True))

    def occupations(density: Array) -> Array:
        return np.linalg.eigvalsh(basis.T @ density @ basis)[::-1].copy()

    if len(spins) == 2:
        spin = of_spins[:, 0] - of_spins[:, 1]
    else:
        spin = None
    return Properties(
        scf_dipole=dipole[0],
        unrelaxed_dipole=dipole[1],
        relaxed_dipole=dipole[2],
        unrelaxed_occupations=occupations(total[1]),
        relaxed_occupations=occupations(total[2]),
        unrelaxed_density=unrelaxed,
        relaxed_density=relaxed,
        quadrupole=quadrupole,
        mulliken_charges=charges - mulliken(total),
        lowdin_charges=charges - lowdin(total),
        mulliken_spin_populations=None if spin is None else mulliken(spin),
        lowdin_spin_populations=None if spin is None else lowdin(spin),
    )
