"""The conventional SCF solution closest to a density-fitted one, from two or three builds of the
exact Fock matrix.

The fitted SCF is solved again, with the error of its two-electron part at the last density D0
corrected,

    F(D) = h + G_fit[D] + V_xc[D] + (G[D0] - G_fit[D0])
    G[D] = J - X/2 (RHF), J - X of each spin (UHF)

until the exact Fock matrix of its solution no longer couples occupied and virtual orbitals. In
Hartree-Fock X is K and there is no V_xc; with a functional X is its exact exchange, and V_xc is
evaluated on its grid. Each iteration reduces the coupling by the relative fitting error of a change
of G, to a thousandth with a sound set; a conventional SCF would need ten builds. With the orbitals
i, a of the last iteration and the elements of the exact Fock matrix,

    E(SCF) = E[D] - w sum_ia F_ia^2 / (F_aa - F_ii)     w = 2 (RHF), 1 for each spin (UHF)

PySCF computes J and K integral by integral, neglecting those that change them by less than
1e-13 Eh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.errors import ConvergenceError
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.options import Options
from dfmp2.progress import Listener, Silent
from dfmp2.scf import hamiltonian
from dfmp2.scf.integrals import ScfIntegrals
from dfmp2.scf.kohn_sham import exact_exchange_of, functional_of, integrate_functional
from dfmp2.scf.ladder import Ladder
from dfmp2.scf.reference import Reference, common_orbitals
from dfmp2.scf.rotations import coulomb_exchange, stacked_orbitals
from dfmp2.units import told_apart

COUPLED = 1e-6  # Eh, norm of F_ia below which the orbitals count as those of the conventional SCF
MOST_BUILDS = 8  # of the exact Fock matrix
CHANGE, GRADIENT = 1e-10, 1e-7  # Eh, convergence of the fitted SCF in between
SAME_OCCUPIED = 0.5  # smallest cosine between the occupied spaces of one and the same solution


@dataclass(frozen=True, slots=True, eq=False)
class Conventional:
    """The conventional SCF.

    Attributes
    ----------
    reference : its energy and orbitals
    below : Eh, second-order energy lowering relative to the last density
    coupling : Eh, norm of F_ia at the last density
    """

    reference: Reference
    below: float
    coupling: float


def conventional_scf(
    mole: Any,
    reference: Reference,
    options: Options,
    integrals: ScfIntegrals,
    listener: Listener,
    charges: Array | None,
) -> Conventional:
    """The conventional SCF solution closest to a fitted one.

    Parameters
    ----------
    mole : pyscf.gto.Mole
    reference : Reference
        Converged with density fitting.
    options : Options
    integrals : ScfIntegrals
        Integrals of the fitted SCF.
    listener : Listener
    charges : (n, 4) array, optional
        x, y, z in bohr and charge in e of point charges.

    Raises
    ------
    ConvergenceError
        The builds do not approach a conventional solution, or approach a different one.
    """
    with shielded():
        exact = _ExactFock(mole, reference, options, integrals, charges)
        fitted = integrals.builder(mole)
        fields = exact.mf.copy().density_fit(with_df=fitted)
        coeff, occupations = reference.mo_coeff, reference.mo_occ
        for build in range(1, MOST_BUILDS + 1):
            listener.stage(f"exact Fock matrix {build}: four-centre integrals")
            occupied = [
                c[:, n > 0] * np.sqrt(n[n > 0]) for c, n in zip(coeff, occupations, strict=True)
            ]
            density = np.stack([c @ c.T for c in occupied])
            energy, potential, fock = exact(density)
            coupling, below = _coupling(fock, coeff, occupations)
            if coupling <= COUPLED or build == MOST_BUILDS:
                break
            of_fit = _two_electron(*coulomb_exchange(fields, occupied, exact.share))
            core = exact.core + (potential - of_fit)
            coeff, occupations = exact.fitted_orbitals(fitted, core, density, options)
        fitted.discard()
    if coupling > COUPLED:
        found, needed = told_apart(".1e", coupling, COUPLED)
        raise ConvergenceError(
            f"after {MOST_BUILDS} exact Fock matrices occupied and virtual orbitals still couple "
            f"by {found} Eh (needed {needed})"
        )
    mo_coeff, mo_energy, mo_occ = _canonical(fock, exact.overlap, coeff, occupations)
    conventional = replace(
        reference,
        scf_type="conventional",
        scf_total_energy=energy - below,
        mo_coeff=mo_coeff,
        mo_energy=mo_energy,
        mo_occ=mo_occ,
        stability=None,
        solutions=None,
        history=None,
    )
    common = common_orbitals(reference, conventional, exact.overlap)
    if common < SAME_OCCUPIED:
        raise ConvergenceError(
            "the conventional SCF leaves the fitted solution for another one (smallest cosine "
            f"between the occupied spaces {common:.2f})"
        )
    return Conventional(conventional, below, coupling)


class _ExactFock:
    """The energy and the Fock matrices of a density, from four-centre integrals.

    Parameters
    ----------
    mole, reference, options, integrals, charges : as in `conventional_scf`

    Attributes
    ----------
    mf : PySCF mean field without fitting
    share : its exact exchange
    core, overlap : (nao, nao), Eh and none
    """

    def __init__(
        self,
        mole: Any,
        reference: Reference,
        options: Options,
        integrals: ScfIntegrals,
        charges: Array | None,
    ) -> None:
        self.mf = hamiltonian.mean_field(
            mole,
            reference.kind,
            options.relativity,
            charges,
            xc=reference.xc,
            grid=reference.grid_name,
        )
        if functional_of(self.mf) is not None:
            self.mf.on_grid.threads = integrals.threads
            self.mf.on_grid.room = integrals.grid_room
        self.share = exact_exchange_of(self.mf)
        self.core = self.mf.get_hcore()
        self.overlap = self.mf.get_ovlp()
        self._screen = self.mf.init_direct_scf(mole)
        self._nuclear = float(self.mf.energy_nuc())
        self._restricted = reference.kind == "rhf"

    def __call__(self, density: Array) -> tuple[float, Array, Array]:
        """E(SCF), Eh, the two-electron potential and the Fock matrix of each spin, (nspin, nao,
        nao) Eh, of densities in that shape."""
        from pyscf.scf import hf

        coulomb, exchange = hf.get_jk(self.mf.mol, density, 1, self._screen)
        exchange = self.share.short_range * exchange
        if self.share.separated:
            factor = self.share.long_range - self.share.short_range
            exchange += factor * hf.get_jk(self.mf.mol, density, 1, omega=self.share.omega)[1]
        potential = _two_electron(coulomb, exchange)
        of_functional, in_fock = _of_functional(self.mf, density, restricted=self._restricted)
        energy = self._nuclear + float(np.vdot(density, self.core + potential / 2)) + of_functional
        return energy, potential, self.core + potential + in_fock

    def fitted_orbitals(
        self, fitted: Any, core: Array, density: Array, options: Options
    ) -> tuple[Array, Array]:
        """Orbitals and occupations of the fitted SCF with another one-electron part, (nspin, nao,
        nao) Eh, from a density."""
        if self._restricted:
            core, density = core[0], density[0]
        mf = hamiltonian.with_one_electron(self.mf.copy(), core, self._nuclear)
        mf = mf.density_fit(with_df=fitted)
        mf.verbose = 0
        mf.chkfile = None
        mf.conv_check = False
        mf.conv_tol = CHANGE
        mf.conv_tol_grad = GRADIENT
        cycles = max(100, options.scf_max_cycles)
        tight = replace(options, precision="fp64", scf_max_cycles=cycles)
        coeff, _, occupations = stacked_orbitals(Ladder(mf, tight, Silent()).climb(density))
        return coeff, occupations


def _of_functional(mf: Any, density: Array, *, restricted: bool) -> tuple[float, Any]:
    """E_xc, Eh, and V_xc of each spin, (nspin, nao, nao) Eh, of densities in that shape; zero for
    Hartree-Fock."""
    if functional_of(mf) is None:
        return 0.0, 0.0
    if restricted:
        energy, potential = integrate_functional(mf, mf.grids, density[0])
        return energy, potential[None]
    return integrate_functional(mf, mf.grids, density)


def _two_electron(coulomb: Array, exchange: Array) -> Array:
    """G of each spin, Eh: J - K/2 of the total density, or J of both spins minus K of each."""
    if len(coulomb) == 1:
        return coulomb - exchange / 2
    total: Array = coulomb.sum(axis=0)
    return total - exchange


def _coupling(fock: Array, coeff: Array, occupations: Array) -> tuple[float, float]:
    """Norm of F_ia, and the second-order energy lowering it implies, Eh."""
    squares = below = 0.0
    for f, c, n in zip(fock, coeff, occupations, strict=True):
        in_orbitals = c.T @ f @ c
        f_ia = in_orbitals[np.ix_(n > 0, n == 0)]
        diagonal = in_orbitals.diagonal()
        squares += float(np.vdot(f_ia, f_ia))
        if f_ia.size:
            below += float(n.max()) * float(
                (f_ia**2 / (diagonal[n == 0] - diagonal[n > 0][:, None])).sum()
            )
    return math.sqrt(squares), below


def _canonical(
    fock: Array, overlap: Array, coeff: Array, occupations: Array
) -> tuple[Array, Array, Array]:
    """Orbitals, energies and occupations of the Fock matrices, occupied orbitals first."""
    found = []
    for f, c, n in zip(fock, coeff, occupations, strict=True):
        energy, turned = np.linalg.eigh(c.T @ f @ c)
        held = (turned[n > 0] ** 2).sum(axis=0)  # part of each eigenvector in the occupied space
        count = int(np.count_nonzero(n))
        full = np.sort(np.argsort(-held, kind="stable")[:count])
        order = np.concatenate([full, np.setdiff1d(np.arange(len(n)), full)])
        filled = np.zeros(len(n))
        filled[:count] = n.max(initial=0.0)
        found.append((c @ turned[:, order], energy[order], filled))
    coeff, energy, filled = (np.stack(part) for part in zip(*found, strict=True))
    return coeff, energy, filled
