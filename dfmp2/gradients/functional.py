"""The exchange-correlation functional in a gradient: the derivative of its quadrature.

    E = sum_g w_g f(r_g),        Phi = sum_g w_g sum_k v_k p_k,  v_k = df/dr_k                  (1)

r holds the variables of the functional at a point (density, its gradient and tau) for each spin, or
for all electrons if both spins are equal; p holds those of P, the relaxed density of the
correlation energy. E belongs to the functional of the energy, v in Phi to that of the SCF, so Phi
is the part of sum P F that belongs to V_xc. With the kernel f_kl = d2f/dr_k dr_l of the SCF and
u_k = v_k of the energy + sum_l f_kl p_l,

    E^x + Phi^x = sum_g w_g^x (f + sum_k v_k p_k) + sum_g w_g sum_k [u_k r_k^x + v_k p_k^x]      (2)

where functions and points move with their atoms, as in energies of displaced molecules. A weight is
the weight in its atom's own quadrature times P_B / sum_A P_A with the cell functions

    P_A = prod_C s(nu_AC),  nu = mu + a (1 - mu^2),  mu_AC = (r_A - r_C) / R_AC                   (3)

Sources: Johnson, Gill, Pople, J. Chem. Phys. 98, 5612 (1993); Becke, J. Chem. Phys. 88, 2547
(1988); for the response terms of a double hybrid Neese, Schwabe, Grimme, J. Chem. Phys. 126, 124115
(2007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.gradients.derivatives import by_atom
from dfmp2.host.threads import each
from dfmp2.integrals.grid import make_grid
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.planning.gradient import XC_GRADIENT_BYTES, XC_GRADIENT_VALUES
from dfmp2.scf.exchange_correlation import GRADIENT, ExchangeCorrelation, add_weighted
from dfmp2.scf.functional_kernel import KINDS, FunctionalKernel, coarse_grid
from dfmp2.scf.kohn_sham import (
    ExactExchange,
    exact_exchange,
    functional_variables,
    libxc_code,
)
from dfmp2.scf.reference import Reference

# Numbers per point while derivatives of weights are computed: for two atoms, for one
CELL_PAIRS, CELL_ATOMS = 2, 16
NOTHING = 1e-300  # added to denominators that may vanish
SECOND = np.array([[4, 5, 6], [5, 7, 8], [6, 8, 9]])  # where PySCF puts d2/dxdy of a function


@dataclass(frozen=True, slots=True, eq=False)
class Functionals:
    """The functionals of a Kohn-Sham reference.

    Attributes
    ----------
    scf, energy : functionals of the SCF and of the energy, in libxc's terms
    scf_exact, energy_exact : their exact exchange
    grid : pyscf.dft.gen_grid.Grids, built
    """

    scf: str
    energy: str
    scf_exact: ExactExchange
    energy_exact: ExactExchange
    grid: Any

    @property
    def stationary(self) -> bool:
        """Whether the orbitals make the energy stationary."""
        return self.scf == self.energy

    def kernels(
        self, mole: Any, occupied: list[Array], threads: int, room: int
    ) -> tuple[FunctionalKernel, FunctionalKernel]:
        """The kernel of the SCF's functional, and a quick one: on a coarser grid in float32.

        Parameters
        ----------
        occupied : list of (nao, nocc)
            Occupied orbitals of each spin.
        room : int
            Bytes for values of the quick kernel.
        """
        kernel = FunctionalKernel(mole, self.scf, self.grid, occupied, threads)
        coarse = coarse_grid(mole, self.grid)
        if coarse is self.grid:
            return kernel, kernel
        quick = FunctionalKernel(mole, self.scf, coarse, occupied, threads, single=True, room=room)
        return kernel, quick

    def potential(self, mole: Any, xc: str, occupied: Sequence[Array], threads: int) -> list[Array]:
        """V_xc of one of the functionals for each spin, (nao, nao) Eh.

        Parameters
        ----------
        mole : pyscf.gto.Mole
            The molecule.
        xc : str
            The functional, in libxc's terms.
        occupied : sequence of (nao, nocc)
            Occupied orbitals of each spin; a single entry stands for both.
        threads : int
            Number of workers.
        """
        density: Any = np.stack([c @ c.T for c in occupied])
        if len(occupied) == 1:
            density = 2 * density[0]
        with shielded():
            from pyscf.dft import numint

            on_grid = ExchangeCorrelation(mole, self.grid, threads)
            _, potential = on_grid.energy_and_potential(numint.NumInt(), libxc_code(xc), density)
        return list(np.reshape(potential, (len(occupied), *potential.shape[-2:])))


def gradient_functionals(mole: Any, reference: Reference) -> Functionals | None:
    """The functionals of a reference, None for Hartree-Fock."""
    if reference.xc is None:
        return None
    energy = reference.energy_xc or reference.xc
    with shielded():
        grid = make_grid(mole, str(reference.grid_name))
        grid.build(with_non0tab=True)
    return Functionals(
        scf=reference.xc,
        energy=energy,
        scf_exact=exact_exchange(reference.xc),
        energy_exact=exact_exchange(energy),
        grid=grid,
    )


def functional_gradient(
    mole: Any,
    grid: Any,
    functionals: tuple[str, str],
    densities: Sequence[Array],
    changes: Sequence[Array],
    threads: int,
) -> tuple[Array, Array]:
    """E^x + Phi^x of Eq. 2, (natom, 3) Eh/bohr, and the torque on the spheres of the grid, (3,) Eh.

    The energy does not depend on the orientation of molecule and spheres together, so this torque
    and that of the forces on the atoms add up to zero.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    grid : pyscf.dft.gen_grid.Grids
        A built grid with PySCF's own cells.
    functionals : (str, str)
        Functional of the energy and that of the SCF, in libxc's terms.
    densities, changes : sequence of (nao, nao)
        D and P of each spin, symmetric; a single entry stands for both.
    threads : int
        Number of workers.
    """
    with shielded():
        quadrature = _quadrature(mole, grid, functionals, densities, changes)
        step = max(1, XC_GRADIENT_BYTES // (8 * XC_GRADIENT_VALUES * max(1, mole.nao)))
        blocks = [slice(first, first + step) for first in range(0, len(grid.weights), step)]
        parts = each(len(blocks), lambda k: _of_points(quadrature, blocks[k]), threads)
        energy = np.concatenate([part[2] for part in parts])
        gradient, torque = _weight_gradient(mole, grid, energy, threads)
    for on_atoms, turning, _ in parts:
        gradient += on_atoms
        torque += turning
    return gradient, torque


@dataclass(frozen=True, slots=True, eq=False)
class _Quadrature:
    """Data shared by the blocks of points.

    Attributes
    ----------
    codes : functionals of the energy and of the SCF, as PySCF spells them
    counts : number of variables of each of them
    densities, changes : D and P for each set of variables, (nao, nao)
    """

    mole: Any
    grid: Any
    numint: Any
    codes: tuple[str, str]
    counts: tuple[int, int]
    densities: list[Array]
    changes: list[Array]

    @property
    def variables(self) -> int:
        """Number of variables per spin at a point."""
        return max(1, *self.counts)


def _quadrature(
    mole: Any,
    grid: Any,
    functionals: tuple[str, str],
    densities: Sequence[Array],
    changes: Sequence[Array],
) -> _Quadrature:
    """The quadrature, with densities of all electrons if both spins are equal."""
    from pyscf.dft import numint

    integrator = numint.NumInt()
    weight = 2.0 if len(densities) == 1 else 1.0
    codes = (libxc_code(functionals[0]), libxc_code(functionals[1]))
    return _Quadrature(
        mole=mole,
        grid=grid,
        numint=integrator,
        codes=codes,
        counts=(functional_variables(functionals[0]), functional_variables(functionals[1])),
        densities=[weight * density for density in densities],
        changes=[weight * change for change in changes],
    )


def _of_points(quadrature: _Quadrature, points: slice) -> tuple[Array, Array, Array]:
    """Contributions of a block of points to the gradient, (natom, 3) Eh/bohr, and to the torque,
    and f + v p at the points, Eh."""
    from pyscf import lib
    from pyscf.dft import gen_grid

    mole, grid, count = quadrature.mole, quadrature.grid, quadrature.variables
    weights, parents = grid.weights[points], grid.atm_idx[points]
    order = 1 if count == 1 else 2
    with lib.with_omp_threads(1):
        mask = gen_grid.make_mask(mole, grid.coords[points])
        values = quadrature.numint.eval_ao(mole, grid.coords[points], deriv=order, non0tab=mask)
    present = np.repeat(mask.any(axis=0), np.diff(mole.ao_loc_nr()))
    values = values.transpose(0, 2, 1)[:, present]  # PySCF's memory order
    inside = np.ix_(present, present)
    spins = len(quadrature.densities)
    matrices = [one[inside] for one in (*quadrature.densities, *quadrature.changes)]
    used = 4 if count == 5 else 1
    halves = [matrix @ values[:used] for matrix in matrices]
    variables = np.stack([_variables(values, half, count) for half in halves])
    with lib.with_omp_threads(1):
        energy, slopes, potential = _of_functionals(
            quadrature, variables[:spins], variables[spins:]
        )
    moved = _moved(values, matrices, halves, np.concatenate([slopes, potential]) * weights)
    on_functions = np.zeros((3, mole.nao))
    on_functions[:, present] = moved.sum(axis=2)
    on_points = moved.sum(axis=1)
    real = parents >= 0  # PySCF adds points without weight and atom
    on_atoms, torque = _of_moving_points(
        mole.atom_coords(), grid.coords[points][real], parents[real], on_points[:, real].T
    )
    return on_atoms - by_atom(mole, on_functions), torque, energy


def _variables(values: Array, half: Array, count: int) -> Array:
    """Density, its gradient and tau at points, the first `count` of these variables, (count, n).

    Parameters
    ----------
    values : array
        Functions and their derivatives, (4 or 10, nao, n).
    half : array
        A density matrix times the functions, and times their derivatives if tau is requested.
    """
    found = np.empty((count, values.shape[2]))
    found[0] = np.einsum("mg,mg->g", values[0], half[0])
    for axis in range(1, min(count, 4)):
        found[axis] = 2 * np.einsum("mg,mg->g", values[axis], half[0])
    if count == 5:
        found[4] = np.einsum("xmg,xmg->g", values[1:4], half[1:4]) / 2
    return found


def _of_functionals(
    quadrature: _Quadrature, density: Array, change: Array
) -> tuple[Array, Array, Array]:
    """f + v p of Eq. 2 at points, (n,), u, (spins, variables, n), and v, likewise.

    Parameters
    ----------
    density, change : array
        r and p, (spins, variables, n).
    """
    energy = np.zeros(density.shape[2])
    slopes = np.zeros_like(density)
    potential = np.zeros_like(density)
    if quadrature.counts[0]:
        values, first, _ = _evaluated(quadrature, 0, density, order=1)
        energy += values * density[:, 0].sum(axis=0)
        slopes[:, : quadrature.counts[0]] += first
    count = quadrature.counts[1]
    if count and np.any(change):
        _, first, second = _evaluated(quadrature, 1, density, order=2)
        energy += np.einsum("skg,skg->g", first, change[:, :count])
        slopes[:, :count] += np.einsum("sktlg,tlg->skg", second, change[:, :count])
        potential[:, :count] += first
    return energy, slopes, potential


def _evaluated(
    quadrature: _Quadrature, which: int, density: Array, *, order: int
) -> tuple[Array, Array, Any]:
    """Energy per electron (n,), v (spins, variables, n) and f of a functional at points; f is None
    for order 1."""
    count, spins = quadrature.counts[which], len(density)
    given: Any = density[:, :count]
    if count == 1:
        given = given[:, 0]
    if spins == 1:
        given = given[0]
    energy, first, second = quadrature.numint.eval_xc_eff(
        quadrature.codes[which],
        given,
        deriv=order,
        xctype=KINDS[count],
        spin=spins - 1,
    )[:3]
    points = density.shape[2]
    first = np.reshape(first, (spins, count, points))
    if order == 2:
        second = np.reshape(second, (spins, count, spins, count, points))
    return energy, first, second


def _moved(
    values: Array, matrices: Sequence[Array], halves: Sequence[Array], factors: Array
) -> Array:
    """Derivative of variables times factors when functions move with the electron position, (3,
    nao, n), summed over density matrices.

    Parameters
    ----------
    values : array
        Functions and their derivatives, (4 or 10, nao, n).
    matrices : sequence of (nao, nao)
        The density matrices.
    halves : sequence of (1 or 4, nao, n)
        For each matrix, as in `_variables`.
    factors : (matrices, variables, n)
        Factors of the variables of each matrix.
    """
    variables = factors.shape[1]
    inner = np.zeros(values[0].shape)
    outer: list[Array] = []
    if variables > 1:
        outer = [np.zeros_like(inner) for _ in range(3)]
    weighted = np.empty_like(inner)
    for matrix, half, factor in zip(matrices, halves, factors, strict=True):
        add_weighted(values, factor[: GRADIENT.stop], weighted)
        for axis, part in enumerate(outer):
            part += factor[axis + 1] * half[0]
            if variables == 5:
                part += factor[4] / 2 * half[axis + 1]
        inner += matrix @ weighted
    moved = np.empty((3, *inner.shape))
    for axis in range(3):
        np.multiply(values[axis + 1], inner, out=moved[axis])
        for other, part in enumerate(outer):
            moved[axis] += values[SECOND[axis, other]] * part
    moved *= 2
    return moved


def _weight_gradient(mole: Any, grid: Any, energy: Array, threads: int) -> tuple[Array, Array]:
    """sum_g w_g^x e_g, (natom, 3) Eh/bohr, from Eq. 3, and its torque on the spheres, (3,) Eh.

    Parameters
    ----------
    energy : array
        e at each point, (n,).
    """
    natm = mole.natm
    gradient, torque = np.zeros((natm, 3)), np.zeros(3)
    if natm == 1:
        return gradient, torque
    adjust = grid.radii_adjust(mole, grid.atomic_radii)
    shift = np.array([[adjust(a, c, 0.0) for c in range(natm)] for a in range(natm)])
    points = np.flatnonzero(grid.atm_idx >= 0)
    step = max(1, XC_GRADIENT_BYTES // (8 * natm * (CELL_PAIRS * natm + CELL_ATOMS)))
    blocks = [points[first : first + step] for first in range(0, len(points), step)]

    def of_block(number: int) -> tuple[Array, Array]:
        block = blocks[number]
        cells = _Cells(mole.atom_coords(), shift, grid.coords[block])
        return _of_weights(
            cells, grid.atm_idx[block], energy[block] * grid.quadrature_weights[block]
        )

    for on_atoms, turning in each(len(blocks), of_block, threads):
        gradient += on_atoms
        torque += turning
    return gradient, torque


class _Cells:
    """P_A of Eq. 3 at some points.

    Parameters
    ----------
    places : positions of the atoms, (natom, 3) bohr
    shift : a of Eq. 3, (natom, natom)
    coords : the points, (n, 3) bohr

    Attributes
    ----------
    directions, distances : from each atom to each point, (natom, n, 3) and (natom, n) bohr
    values : P_A times a power of two that all atoms share, (natom, n)
    """

    def __init__(self, places: Array, shift: Array, coords: Array) -> None:
        self.places, self.coords = places, coords
        self._apart = np.linalg.norm(places[:, None] - places, axis=2)
        self.directions = coords - places[:, None]
        self.distances = np.sqrt((self.directions**2).sum(axis=2))
        self.directions /= self.distances[:, :, None] + NOTHING
        self.values = np.ones(self.distances.shape)
        # each atom with all later ones: twice s of both cells, as nu is antisymmetric; ds/dmu
        self._factors: list[tuple[Array, Array]] = []
        self._slopes: list[Array] = []
        for atom in range(len(places) - 1):
            later = slice(atom + 1, None)
            mu = self._mu(atom)
            a = shift[atom, later, None]
            smooth, slope = _smoothed(mu + a * (1 - mu**2))
            self._slopes.append(slope * (1 - 2 * a * mu))
            factor = 1 - smooth
            later_factor = 1 + smooth
            self._factors.append((factor, later_factor))
            self.values[atom] *= factor.prod(axis=0)
            self.values[later] *= later_factor

    def _mu(self, atom: int) -> Array:
        """mu of Eq. 3 of an atom with all later ones, (later, n)."""
        later = slice(atom + 1, None)
        difference = self.distances[atom] - self.distances[later]
        return np.asarray(difference / self._apart[atom, later, None])

    def derivative(self, by_cell: Array) -> tuple[Array, Array]:
        """Derivatives of an energy with respect to the distances of points from atoms, (natom, n),
        and, at fixed such distances, to the positions of the atoms, (natom, 3).

        Parameters
        ----------
        by_cell : dE/dP_A P_A, (natom, n)
        """
        by_distance = np.zeros_like(self.distances)
        gradient = np.zeros_like(self.places)
        for atom, (factor, later_factor) in enumerate(self._factors):
            later = slice(atom + 1, None)
            apart = self._apart[atom, later]
            by_mu = by_cell[later] / (later_factor + NOTHING) - by_cell[atom] / (factor + NOTHING)
            by_mu *= self._slopes[atom] / apart[:, None]
            by_distance[atom] += by_mu.sum(axis=0)
            by_distance[later] -= by_mu
            stretched = np.einsum("cg,cg->c", by_mu, self._mu(atom)) / apart
            stretching = stretched[:, None] * (self.places[atom] - self.places[later])
            gradient[atom] -= stretching.sum(axis=0)
            gradient[later] += stretching
        return by_distance, gradient


def _of_weights(cells: _Cells, parents: Any, energy: Array) -> tuple[Array, Array]:
    """Contributions of some points to the derivative of the weights, (natom, 3) Eh/bohr, and to the
    torque.

    Parameters
    ----------
    parents : the atom that each point belongs to
    energy : e times the weight in its atom's own quadrature, (n,)
    """
    numbers = np.arange(len(energy))
    total = cells.values.sum(axis=0)
    own = cells.values[parents, numbers]
    # Derivative of sum_g e_g P_B / sum_A P_A with respect to each P_A, times that P_A.
    by_cell = -energy * own / total**2 * cells.values
    by_cell[parents, numbers] += energy * own / total
    by_distance, gradient = cells.derivative(by_cell)
    forces = by_distance[:, :, None] * cells.directions
    gradient -= forces.sum(axis=1)
    on_atoms, torque = _of_moving_points(cells.places, cells.coords, parents, forces.sum(axis=0))
    return gradient + on_atoms, torque


def _of_moving_points(
    places: Array, coords: Array, parents: Any, forces: Array
) -> tuple[Array, Array]:
    """Derivatives with respect to the positions of points, (n, 3), summed for the atom that each
    point moves with (natom, 3), and their torque about these atoms, (3,)."""
    gradient = np.empty_like(places)
    for axis in range(3):
        gradient[:, axis] = np.bincount(parents, weights=forces[:, axis], minlength=len(places))
    return gradient, np.cross(coords - places[parents], forces).sum(axis=0)


def _smoothed(nu: Array) -> tuple[Array, Array]:
    """Becke's polynomial, applied three times, and its derivative."""
    slope = np.ones_like(nu)
    for _ in range(3):
        slope *= 1.5 * (1 - nu**2)
        nu = (3 - nu**2) * nu / 2
    return nu, slope
