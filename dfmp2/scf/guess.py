"""Start densities of the SCF.

atoms : atomic natural orbitals with the occupations of the spherical ground state atoms, the recipe
    of PySCF's default guess on data taken from PySCF's own file: PySCF itself looks for a file
    called `ano` in the working directory first. Core shells inside an effective core potential are
    left out; elements without ANO data get PySCF's atomic-SCF guess.
mix : HOMO and LUMO of the Fock matrix of the atoms, mixed by 45 degrees in alpha and by -45 degrees
    in beta
core : the orbitals of the core Hamiltonian
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.molecule.basis_library import load_pyscf_element
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.scf.rotations import orbital_spins, rotated, with_orbitals

LAST_ANO_ELEMENT = 96  # Cm: the ANO-RCC data of PySCF end here
ORIGINS = {
    "atoms": "atomic densities",
    "mix": "atomic densities, HOMO and LUMO mixed",
    "core": "core Hamiltonian",
}
RANDOM_OCCUPIED, RANDOM_VIRTUAL = 10, 10  # frontier orbitals that a random start mixes, per spin
RANDOM_ANGLE = 1.0  # rad, about the angle by which each of them is turned


def guess_density(guess: str, mf: Any, kind: str) -> Any:
    """Start density of `--guess`, for PySCF's RHF or UHF object `mf`."""
    if guess == "core":
        core = mf.get_hcore()
        return _diagonalised(mf, core if kind == "rhf" else np.stack([core, core])).make_rdm1()
    density = start_density(mf.mol, kind)
    if guess == "atoms":
        return density

    of_atoms = _diagonalised(mf, mf.get_fock(dm=density))
    turned = []
    for spin, sign in zip(orbital_spins(of_atoms), (1.0, -1.0), strict=True):
        x = np.zeros_like(spin.differences)
        x[:1, -1:] = sign  # the lowest virtual and the highest occupied orbital
        turned.append(rotated(spin, x, math.pi / 4))
    return mf.make_rdm1(*with_orbitals(of_atoms, turned))


def random_density(mf: Any, density: Any, number: int) -> Any:
    """A start density of its own for each number: the orbitals of another density's Fock matrix,
    turned at random."""

    found, rng, turned = (
        _diagonalised(mf, mf.get_fock(dm=density)),
        np.random.default_rng(number),
        [],
    )
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


def start_density(mole: Any, kind: str) -> NDArray[np.float64]:
    """Start density, total (nao, nao) for "rhf" or shared out over the spins (2, nao, nao) for
    "uhf".

    It carries its orbitals and occupations as PySCF's tags, so that a fitted exchange can use them.
    """
    with shielded():
        from pyscf import gto, lib
        from pyscf.scf import addons
        from pyscf.scf.hf import init_guess_by_atom

        numbers = [gto.charge(mole.atom_pure_symbol(atom)) for atom in range(mole.natm)]
        if max(numbers) > LAST_ANO_ELEMENT:
            return _tagged(init_guess_by_atom(mole), mole, kind)
        atoms, basis, occupations = [], {}, []
        for atom, number in enumerate(numbers):
            if number == 0:  # ghost
                continue
            symbol, core = mole.atom_symbol(atom), mole.atom_nelec_core(atom)
            shells, occupation = _valence(mole.atom_pure_symbol(atom), core)
            basis[symbol] = shells
            occupations.append(occupation)
            atoms.append(mole._atom[atom])
        ano = gto.Mole()
        ano._atm, ano._bas, ano._env = ano.make_env(atoms, basis, [])
        ano._built = True
        orbitals = addons.project_mo_nr2nr(ano, np.eye(ano.nao), mole)
        occupied = np.hstack(occupations)
        return _tagged(
            lib.tag_array((orbitals * occupied) @ orbitals.T, mo_coeff=orbitals, mo_occ=occupied),
            mole,
            kind,
        )


def _tagged(density: Any, mole: Any, kind: str) -> NDArray[np.float64]:
    """A total density as the SCF class wants it."""
    from pyscf import lib

    total: NDArray[np.float64] = density
    if kind == "rhf":
        return total
    alpha, beta = (n / max(sum(mole.nelec), 1) for n in mole.nelec)
    spins: NDArray[np.float64] = np.stack([np.asarray(density) * alpha, np.asarray(density) * beta])
    if not hasattr(density, "mo_coeff"):
        return spins
    orbitals, occupied = density.mo_coeff, density.mo_occ
    tagged: NDArray[np.float64] = lib.tag_array(
        spins,
        mo_coeff=np.stack([orbitals, orbitals]),
        mo_occ=np.stack([occupied * alpha, occupied * beta]),
    )
    return tagged


def _valence(symbol: str, core_electrons: int) -> tuple[list[Any], NDArray[np.float64]]:
    """ANO shells outside the core potential and the occupation of each of their functions."""
    from pyscf import gto
    from pyscf.scf import atom_hf

    data = load_pyscf_element("ano", symbol)
    core = gto.ecp.core_configuration(core_electrons, atom_symbol=symbol)
    shells, occupations = [], []
    for l in range(4):  # noqa: E741 - the angular momentum is called l
        doubly, fraction = atom_hf.frac_occ(symbol, l)
        if doubly < core[l]:
            continue
        shells.append([l, *([row[0], *row[1 + core[l] : doubly + 2]] for row in data[l][1:])])
        occupations.append(np.repeat([2.0] * (doubly - core[l]) + [fraction], 2 * l + 1))
    return shells, np.hstack(occupations)
