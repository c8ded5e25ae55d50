"""The fitting error of E(SCF) of a single atom, measured with its four-centre integrals.

    e_J = (J_fit - J | D) / 2      e_K = -sum_s (K_fit,s - K_s | D_s) / 2
    e_2 = sum_s,ia f_s,ia^2 / (e_a - e_i)      f_s = J_fit - J - c (K_fit,s - K_s)

D_s is the density of the SCF and c its fraction of exact exchange. E(SCF) is stationary, so that
its error is e_J + c e_K, and more by what the error f of the Fock matrices gains through the
orbitals: e_2 without the response of J and K, with it 0.4 to 1.6 times as much (H-, H, Li-, F-).
In Hartree-Fock e_J and e_K nearly cancel, and with one electron exactly: neither follows from their
sum, nor that of an ion from the one of the neutral atom.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.scf.kohn_sham import exact_exchange_of, functional_of

MOST_PRIMITIVES = 150  # Gaussian functions; four-centre integrals take a second then
LEAST_GAP = 0.01  # Eh


def one_atom_fitting_errors(mf: Any) -> Array | None:
    """e_J, e_K and e_2, (3,) Eh; None for a molecule, or if there are too many primitives.

    Parameters
    ----------
    mf : PySCF mean field with density fitting, converged
    """
    mole = mf.mol
    if np.count_nonzero(mole.atom_charges()) != 1 or mole.npgto_nr() > MOST_PRIMITIVES:
        return None
    if mole.nelectron == 1 and functional_of(mf) is None:
        return np.zeros(3)  # nothing is fitted
    from pyscf.scf import hf

    spins = np.asarray(mf.make_rdm1())
    fitted = mf.get_jk(mole, spins)
    exact = hf.get_jk(mole, spins)
    coulomb, exchange = (np.asarray(a - b) for a, b in zip(fitted, exact, strict=True))
    if spins.ndim == 2:
        spins, exchange = np.stack([spins / 2] * 2), np.stack([exchange / 2] * 2)
    else:
        coulomb = coulomb.sum(axis=0)
    of_coulomb = np.vdot(coulomb, spins.sum(axis=0)) / 2
    of_exchange = -np.vdot(exchange, spins) / 2
    fock = coulomb - exact_exchange_of(mf).short_range * exchange
    return np.array([of_coulomb, of_exchange, _relaxation(mf, fock)])


def _relaxation(mf: Any, errors: Array) -> float:
    """e_2 of errors f of the Fock matrices, (2, nao, nao) Eh; Eh."""
    coeff, energy, occupations = map(np.asarray, (mf.mo_coeff, mf.mo_energy, mf.mo_occ))
    if occupations.ndim == 1:  # RHF and ROHF
        coeff, energy = np.stack([coeff] * 2), np.stack([energy] * 2)
        occupations = np.stack([occupations > 0, occupations > 1])
    gain = 0.0
    for c, e, filled, f in zip(coeff, energy, occupations > 0, errors, strict=True):
        couplings = c[:, ~filled].T @ f @ c[:, filled]
        gaps = np.maximum(e[~filled][:, None] - e[filled], LEAST_GAP)
        gain += float((couplings**2 / gaps).sum())
    return gain
