"""Densities of one electron, and the properties that they give.

    D = sum_s C (n + P) C^T            mu = sum_A Z_A R_A - sum_mn D_mn (m|r|n)

n is 1 for occupied orbitals of the reference; P those of the correlation energy (`dfmp2.gradients.response`): unrelaxed
between correlated orbitals of one kind alone, relaxed with the response of the orbitals. The relaxed dipole moment is
the derivative of the energy with a field. Natural occupations are the eigenvalues of S^1/2 D S^1/2. The origin is that
of the coordinates: of a charged molecule the dipole moment depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.gradients.response import Orbitals, Relaxed
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2.result import Properties

Array = NDArray[np.float64]


def properties(mole: Any, spins: Sequence[Orbitals], found: Sequence[Relaxed]) -> Properties:
    """Densities, dipole moments and natural occupations.

    Parameters
    ----------
    mole : PySCF molecule
    spins, found : orbitals and densities of one spin, which stands for two, or of both
    """
    with shielded():
        position, overlap = mole.intor("int1e_r"), mole.intor("int1e_ovlp")
    nuclei = np.einsum("a,ax->x", mole.atom_charges(), mole.atom_coords())
    scf = np.stack([o.density for o in spins])
    unrelaxed = scf + np.stack([o.in_functions(p.unrelaxed) for o, p in zip(spins, found, strict=True)])
    relaxed = scf + np.stack([o.in_functions(p.relaxed) for o, p in zip(spins, found, strict=True)])
    weight = 2.0 if len(spins) == 1 else 1.0
    basis = overlap @ spins[0].coeff

    def dipole(density: Array) -> Array:
        return np.asarray(nuclei - weight * np.einsum("xmn,smn->x", position, density, optimize=True))

    def occupations(density: Array) -> Array:
        return np.linalg.eigvalsh(weight * (basis.T @ density.sum(axis=0) @ basis))[::-1].copy()

    return Properties(
        scf_dipole=dipole(scf),
        unrelaxed_dipole=dipole(unrelaxed),
        relaxed_dipole=dipole(relaxed),
        unrelaxed_occupations=occupations(unrelaxed),
        relaxed_occupations=occupations(relaxed),
        unrelaxed_density=unrelaxed,
        relaxed_density=relaxed,
    )
