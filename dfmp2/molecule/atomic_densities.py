"""The densities of a molecule's atoms, from which an SCF starts.

Atomic natural orbitals with the occupations of the spherical ground state atoms: the recipe of
PySCF's default guess, on data taken from PySCF's own file. PySCF itself looks for a file called
`ano` in the working directory first. Core shells inside an effective core potential are left out;
elements without ANO data get PySCF's atomic-SCF guess.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.molecule.basis_library import load_pyscf_element
from dfmp2.molecule.pyscf_shield import shielded

LAST_ANO_ELEMENT = 96  # Cm: the ANO-RCC data of PySCF end here


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
