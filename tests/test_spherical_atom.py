"""Spherical atoms from radial functions against PySCF's four-centre integrals: open p and d shells,
averaged over their orbitals, and empty d and f shells."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from pyscf import df, gto
from pyscf.scf.atom_hf import AtomSphAverageRHF

from dfmp2.fitting import spherical_atom
from dfmp2.fitting.spherical_atom import Shells

LEAST = 0.4


class Atom:
    """An atom, its orbitals by PySCF, and (mn|ls) exact or fitted."""

    def __init__(self, symbol: str, basis: Any, fitting: str) -> None:
        self.mole = gto.M(atom=f"{symbol} 0 0 0", basis=basis, spin=None, verbose=0)
        self.auxmole = df.addons.make_auxmol(self.mole, fitting)
        with warnings.catch_warnings(action="ignore"):
            self.mf = AtomSphAverageRHF(self.mole)
            self.mf.run(conv_tol=1e-13)
        self.exact = self.mole.intor("int2e")
        raw = df.incore.aux_e2(self.mole, self.auxmole)
        nao, naux = self.mole.nao, self.auxmole.nao
        solved = np.linalg.solve(self.auxmole.intor("int2c2e"), raw.reshape(-1, naux).T)
        self.fitted = (raw.reshape(-1, naux) @ solved).reshape(nao, nao, nao, nao)

    def mean_field(self, integrals: Any) -> float:
        """1/2 (J | D) - 1/4 (K | D)."""
        d = self.mf.make_rdm1()
        j = np.einsum("mnls,ls->mn", integrals, d)
        k = np.einsum("mlns,ls->mn", integrals, d)
        return float(np.vdot(j, d) / 2 - np.vdot(k, d) / 4)

    def second_order(self, integrals: Any) -> float:
        """-sum w_i w_j (ia|jb) [2 (ia|jb) - (ib|ja)] / (g_ia + g_jb)."""
        occ, energy, c = self.mf.mo_occ, self.mf.mo_energy, self.mf.mo_coeff
        i, a = np.flatnonzero(occ > 0), np.flatnonzero(occ == 0)
        g = np.einsum(
            "mnls,mi,na,lj,sb->iajb", integrals, c[:, i], c[:, a], c[:, i], c[:, a], optimize=True
        )
        gap = np.maximum(energy[a] - energy[i][:, None], LEAST)
        terms = g * (2 * g - g.transpose(0, 3, 2, 1)) / (gap[:, :, None, None] + gap)
        w = occ[i] / 2
        return -float(np.einsum("i,j,iajb->", w, w, terms))


WITH_F = [*gto.basis.load("3-21g", "V"), [3, [0.8, 1.0]]]


@pytest.fixture(
    scope="module",
    params=[("Si", "6-31g*", "def2-svp-jkfit"), ("V", WITH_F, "def2-svp-jkfit")],
    ids=["silicon", "vanadium"],
)
def atom(request: pytest.FixtureRequest) -> Atom:
    return Atom(*request.param)


@pytest.fixture(scope="module")
def shells(atom: Atom) -> list[Shells]:
    return spherical_atom.atomic_hartree_fock(atom.mole)


def test_energies_of_atoms_are_those_of_their_integrals(atom: Atom, shells: list[Shells]) -> None:
    """Exact within the convergence of both SCFs, 6e-7 Eh; fitting errors, in which that cancels, to
    ten digits."""
    exact = spherical_atom.exact_potential
    fitted = spherical_atom.fitted_potential(atom.auxmole)
    found = {
        "mean field": [
            spherical_atom.coulomb_exchange_energy(shells, factor) for factor in (exact, fitted)
        ],
        "second order": [
            spherical_atom.second_order_energy(shells, factor, LEAST) for factor in (exact, fitted)
        ],
    }
    for name, of in (("mean field", atom.mean_field), ("second order", atom.second_order)):
        expected = [of(integrals) for integrals in (atom.exact, atom.fitted)]
        assert found[name][0] == pytest.approx(expected[0], abs=2e-6)
        error = found[name][1] - found[name][0]
        assert error == pytest.approx(expected[1] - expected[0], abs=2e-10)
    highest = max(atom.auxmole.bas_angular(n) for n in range(atom.auxmole.nbas))
    assert fitted(highest + 1, np.ones((2, 3, len(spherical_atom.R)))).shape == (2, 3, 0)
