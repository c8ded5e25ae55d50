"""Start densities of the SCF.

atoms : the densities of the atoms (`dfmp2.molecule.mole`)
mix : HOMO and LUMO of the Fock matrix of the atoms, mixed by 45 degrees in alpha and by -45 degrees
    in beta
core : the orbitals of the core Hamiltonian
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.molecule.mole import start_density
from dfmp2.scf.rotations import orbital_spins, rotated, with_orbitals

ORIGINS = {
    "atoms": "atomic densities",
    "mix": "atomic densities, HOMO and LUMO mixed",
    "core": "core Hamiltonian",
}
RANDOM_OCCUPIED, RANDOM_VIRTUAL = 10, 10  # frontier orbitals that a random start mixes, per spin
RANDOM_ANGLE = 1.0  # rad, typical angle by which each of them is rotated


def guess_density(guess: str, mf: Any, kind: str) -> Any:
    """Start density for `--guess`, for PySCF's RHF or UHF object `mf`."""
    if guess == "core":
        core = mf.get_hcore()
        if kind == "uhf":
            core = np.stack([core, core])
        return _diagonalised(mf, core).make_rdm1()
    density = start_density(mf.mol, kind)
    if guess == "atoms":
        return density

    of_atoms = _diagonalised(mf, mf.get_fock(dm=density))
    turned = []
    for spin, sign in zip(orbital_spins(of_atoms), (1.0, -1.0), strict=True):
        x = np.zeros_like(spin.differences)
        x[:1, -1:] = sign  # lowest virtual and highest occupied orbital
        turned.append(rotated(spin, x, math.pi / 4))
    return mf.make_rdm1(*with_orbitals(of_atoms, turned))


def random_density(mf: Any, density: Any, number: int) -> Any:
    """A different start density for each number: orbitals of the Fock matrix of `density`, rotated
    at random."""

    found = _diagonalised(mf, mf.get_fock(dm=density))
    rng = np.random.default_rng(number)
    turned = []
    for spin in orbital_spins(found):
        x = np.zeros_like(spin.differences)
        window = x[:RANDOM_VIRTUAL, -RANDOM_OCCUPIED:]
        window += (
            rng.standard_normal(window.shape) * RANDOM_ANGLE / math.sqrt(max(1, window.shape[0]))
        )
        turned.append(rotated(spin, x, 1.0))
    return mf.make_rdm1(*with_orbitals(found, turned))


def _diagonalised(mf: Any, fock: NDArray[np.float64]) -> Any:
    """A copy of `mf` with the orbitals of a Fock matrix."""
    found = mf.copy()
    found.mo_energy, found.mo_coeff = found.eig(fock, found.get_ovlp())
    found.mo_occ = found.get_occ(found.mo_energy, found.mo_coeff)
    return found
