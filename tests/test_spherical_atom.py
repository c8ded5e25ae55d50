"""Spherical atoms from radial functions against PySCF's four-centre integrals: open p and d shells,
averaged over their orbitals."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from pyscf import df, gto
from pyscf.scf.atom_hf import AtomSphAverageRHF

from dfmp2.fitting import spherical_atom
from dfmp2.fitting.spherical_atom import Shells

LEAST = 0.4


@pytest.mark.slow  # SymPy takes three seconds; energies of atoms need the symbols too
def test_symbols_of_angular_momenta_are_those_of_sympy() -> None:
    """All 3j symbols that couple functions up to f; every fifth 6j symbol up to d."""
    from sympy.physics.wigner import wigner_3j, wigner_6j

    checked = 0
    for a, b, c in itertools.product(range(4), range(7), range(4)):
        if (a + b + c) % 2 == 0 and abs(a - c) <= b <= a + c:
            expected = float(wigner_3j(a, b, c, 0, 0, 0))
            assert spherical_atom.three_j(a, b, c) == pytest.approx(expected, rel=1e-13)
            assert b in spherical_atom._powers(a, c)
            checked += 1
        else:
            assert b not in spherical_atom._powers(a, c)
    for six in itertools.islice(itertools.product(range(3), repeat=6), 0, None, 5):
        expected = float(wigner_6j(*six))
        assert spherical_atom.six_j(*six) == pytest.approx(expected, rel=1e-13, abs=1e-15)
    assert spherical_atom.six_j(3, 2, 4, 3, 3, 2) == pytest.approx(
        float(wigner_6j(3, 2, 4, 3, 3, 2)), rel=1e-13
    )
    assert checked > 20


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


@pytest.fixture(
    scope="module",
    params=[("Si", "6-31g*", "def2-svp-jkfit"), ("V", "3-21g", "def2-svp-jkfit")],
    ids=["silicon", "vanadium"],
)
def atom(request: pytest.FixtureRequest) -> Atom:
    return Atom(*request.param)


@pytest.fixture(scope="module")
def shells(atom: Atom) -> list[Shells]:
    return spherical_atom.atomic_hartree_fock(atom.mole)


def test_shells_are_those_of_the_averaged_atom(atom: Atom, shells: list[Shells]) -> None:
    """Energies 2l + 1 times each, occupations, and radial parts of norm 1 that are orthogonal."""
    energies, occupations = [], []
    width = spherical_atom.LENGTH / spherical_atom.POINTS
    for momentum, shell in enumerate(shells):
        energies += list(np.repeat(shell.energies, 2 * momentum + 1))
        occupations += list(np.repeat(shell.occupations, 2 * momentum + 1))
        overlap = (shell.values * spherical_atom.R**3 * width) @ shell.values.T
        np.testing.assert_allclose(overlap, np.eye(len(shell.values)), atol=1e-8)
        filled, empty = shell.part(occupied=True), shell.part(occupied=False)
        assert len(filled.values) + len(empty.values) == len(shell.values)
        assert (filled.occupations > 0).all() and (empty.occupations == 0).all()
        np.testing.assert_array_equal(filled.energies, shell.energies[shell.occupations > 0])
    order = np.argsort(energies, kind="stable")
    expected = np.argsort(atom.mf.mo_energy, kind="stable")
    np.testing.assert_allclose(
        np.array(energies)[order], atom.mf.mo_energy[expected], rtol=1e-7, atol=1e-7
    )
    assert sum(occupations) == pytest.approx(atom.mole.nelectron, rel=1e-12)


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
