"""The kernel of an exchange-correlation functional: the change of V_xc, to first order, caused by a
change P of the density of converged Kohn-Sham orbitals.

    p_k(r) = variables of P at a point: sum_mn P_mn chi_m chi_n, its gradient and tau            (1)
    v_k(r) = sum_l f_kl(r) p_l(r)        f_kl = d2f / dr_k dr_l                                  (2)

with f and the variables r of each spin as in `dfmp2.scf.exchange_correlation`, whose Eq. 3 turns v
into a matrix. If alpha and beta have the same orbitals, two kinds of change matter: the same in
both spins, and opposite in beta and alpha, which breaks the spin symmetry:

    v_k = sum_l [f_kl(alpha, alpha) + f_kl(alpha, beta)] p_l        alike
    v_k = sum_l [f_kl(alpha, alpha) - f_kl(alpha, beta)] p_l        opposite                     (3)

PySCF's own implementation of Eqs. 1 and 2 is `nr_rks_fxc` and `nr_uks_fxc`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.integrals.basis_on_grid import BasisOnGrid, PointBlock
from dfmp2.integrals.grid import COARSE_LEVEL, build_unsorted, count_points, make_grid
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.scf.exchange_correlation import (
    GRADIENT,
    RHO,
    TAU,
    Memory,
    density_at_points,
    half_potential,
)
from dfmp2.scf.kohn_sham import functional_variables, libxc_code

KINDS = {1: "LDA", 4: "GGA", 5: "MGGA"}  # of functionals, by their number of variables per spin
# Factor by which a coarser grid for the kernel must at least reduce the number of points
COARSER = 2


class FunctionalKernel:
    """First-order change of V_xc with the density, for a converged Kohn-Sham reference.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    xc : str
        Functional of the SCF, in libxc's terms.
    grid : pyscf.dft.gen_grid.Grids
        Its grid, built.
    occupied : sequence of (nao, nocc)
        Occupied orbitals of each spin; a single entry stands for both.
    threads : int
        Number of workers.
    opposite : bool
        If one spin stands for both, whether changes of beta are opposite to those of alpha.
    single : bool
        Whether densities and matrices are float32, whose error of 1e-6 is far below that of a
        coarse grid.
    room : int
        Bytes available for values of basis functions; if 0, they are evaluated for each change.
    """

    def __init__(
        self,
        mole: Any,
        xc: str,
        grid: Any,
        occupied: Sequence[Array],
        threads: int = 1,
        *,
        opposite: bool = False,
        single: bool = False,
        room: int = 0,
    ) -> None:
        self._nao = int(mole.nao)
        self._threads = threads
        self._variables = functional_variables(xc)
        if not self._variables:
            return
        with shielded():
            self._basis = BasisOnGrid(
                mole, grid, derivatives=self._variables > 1, single=single, room=room
            )
            self._second = self._second_derivatives(libxc_code(xc), occupied, opposite=opposite)

    def __call__(self, changes: Sequence[Array]) -> list[Array]:
        """V_xc of each spin, (nao, nao) Eh, for symmetric changes of its density, (nao, nao)."""
        if not self._variables:
            return [np.zeros_like(change) for change in changes]
        shape = (len(changes), self._nao, self._nao)
        halves = [np.zeros(shape) for _ in range(self._threads)]

        def add_blocks(worker: int, blocks: Iterator[tuple[int, PointBlock]]) -> None:
            memory = Memory()
            for number, block in blocks:
                place = np.ix_(block.functions, block.functions)
                variables = np.stack(
                    [change_at_points(block, change[place], self._variables) for change in changes]
                )
                potential = np.einsum("sktlg,tlg->skg", self._second[number], variables)
                potential *= block.weights
                for half, at_points in zip(halves[worker], potential, strict=True):
                    half[place] += half_potential(block, at_points, memory)

        with shielded():
            self._basis.share_out(add_blocks, self._threads)
        total = np.add.reduce(halves)
        return list(total + total.transpose(0, 2, 1))

    def _second_derivatives(
        self, code: str, occupied: Sequence[Array], *, opposite: bool
    ) -> list[Array]:
        """f of each block of points, (spins, variables, spins, variables, points), combined as in
        Eq. 3 if one spin stands for both."""
        from pyscf.dft import numint

        integrator, spins = numint.NumInt(), len(occupied)
        kind, count = KINDS[self._variables], self._variables
        orbitals = [(c, np.full(c.shape[1], 1.0)) for c in occupied]
        found: list[Any] = [None] * self._basis.count

        def evaluate_blocks(_worker: int, blocks: Iterator[tuple[int, PointBlock]]) -> None:
            memory = Memory()
            for number, block in blocks:
                both = density_at_points(block, orbitals, kind, memory)[[0, -1]]
                if kind == "LDA":
                    both = both[:, RHO]
                second = integrator.eval_xc_eff(code, both, deriv=2, xctype=kind, spin=1)[2]
                second = np.reshape(second, (2, count, 2, count, -1))
                if spins == 1 and opposite:
                    second = (second[0, :, 0] - second[0, :, 1])[None, :, None]
                elif spins == 1:
                    second = (second[0, :, 0] + second[0, :, 1])[None, :, None]
                found[number] = second

        with shielded():
            self._basis.share_out(evaluate_blocks, self._threads)
        return found


def change_at_points(block: PointBlock, change: Array, variables: int) -> Array:
    """p of Eq. 1 at the points of a block, (variables, points).

    Parameters
    ----------
    block : PointBlock
        Points and basis functions.
    change : (n, n)
        Symmetric change in the functions of the block.
    variables : int
        1 for the density alone, 4 with its gradient, 5 with tau.
    """
    values = block.values
    found = np.empty((variables, len(block.weights)))
    change = change.astype(values.dtype, copy=False)
    half = change @ values[0]
    found[RHO] = np.einsum("mg,mg->g", values[0], half)
    for row in range(1, min(variables, GRADIENT.stop)):
        found[row] = 2 * np.einsum("mg,mg->g", values[row], half)
    if variables > TAU:
        found[TAU] = 0.0
        for derivative in values[1:]:
            found[TAU] += np.einsum("mg,mg->g", derivative, change @ derivative) / 2
    return found


def coarse_grid(mole: Any, grid: Any) -> Any:
    """A grid with at most 1/COARSER of another grid's points, or that grid if there is none.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    grid : pyscf.dft.gen_grid.Grids
        The grid of the SCF, built.
    """
    if COARSER * count_points(make_grid(mole, str(COARSE_LEVEL))) > len(grid.weights):
        return grid
    with shielded():
        coarse = make_grid(mole, str(COARSE_LEVEL))
        build_unsorted(coarse)
    return coarse
