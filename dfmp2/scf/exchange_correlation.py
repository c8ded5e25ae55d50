"""Energy and potential of an exchange-correlation functional, from occupied orbitals on a grid:

    rho_s = sum_i n_i psi_is^2      tau_s = sum_i n_i |grad psi_is|^2 / 2                       (1)
    E = sum_g w_g rho(r_g) e(r_g)                                                               (2)
    V_mn = sum_g w_g [v_rho chi_m chi_n + u . grad(chi_m chi_n) + v_tau grad chi_m . grad chi_n / 2]
                                                                                                (3)

with v_rho = df/drho, u = df/d(grad rho) and v_tau = df/dtau of f = rho e, from libxc. The points
come in blocks (`dfmp2.integrals.basis_on_grid`) that are divided among workers: each takes every
n-th block, so that sums have the same order in every run. PySCF's own implementation of Eqs. 1 to 3
is `nr_rks` and `nr_uks`. Source: Pople, Gill, Johnson, Chem. Phys. Lett. 199, 557 (1992).

While an SCF is far from convergence it uses a coarser grid and float32 (`single`). Then E and V are
computed on the final grid in float64 for a density D0, the anchor, and the coarser grid is used
only for what follows from changes of D0,

    V[D] = V[D0] + H(v[D] - v[D0]),     E[D] = E[D0] + tr (V[D] + V[D0]) (D - D0) / 2           (4)

with H of Eq. 3 and the potentials v at the points of the coarser grid. Rounding and the grid error
of about 1 % then affect only the change, and E is correct to third order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.arrays import Array
from dfmp2.integrals.basis_on_grid import BasisOnGrid, PointBlock
from dfmp2.integrals.grid import build_unsorted, coarse_name, make_grid

# Takes a worker's number, a block's number, the block, and the potential at its points.
TakePotential = Callable[[int, int, PointBlock, Array], None]

CACHED_FUNCTIONS = 16  # of a block, whose values fit into the cache together
RHO, GRADIENT, TAU = 0, slice(1, 4), 4  # rows of a density and of its potential at points


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """E_xc and V_xc of a density on the final grid, and its potential on the coarser one for Eq. 4.

    Attributes
    ----------
    density : (nao, nao), or of each spin (2, nao, nao)
        D0.
    energy : float
        E[D0], Eh.
    potential : shape of the density
        V[D0], Eh.
    at_points : list of (spins, variables, points)
        v[D0] of each block of the coarser grid, times the weights.
    """

    density: Any
    energy: float
    potential: Array
    at_points: list[Any]


class ExchangeCorrelation:
    """E_xc and V_xc of densities of one molecule on one grid.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    grid : pyscf.dft.gen_grid.Grids
        The grid of the result; built when needed.
    threads : int
        Number of workers.
    room : int
        Bytes available for values of basis functions.

    Attributes
    ----------
    single : bool
        Whether a coarser grid and float32 are used; the caller switches it off before the end.
    anchored : bool
        Whether the coarser grid is still used after that, by Eq. 4.
    renew : bool
        Whether the next density becomes an anchor even if there is one.
    anchor : Anchor or None
        The last anchor.
    at_anchor : bool
        Whether the last density was an anchor.
    """

    def __init__(self, mole: Any, grid: Any, threads: int = 1, room: int = 0) -> None:
        self.mole = mole
        self.grid = grid
        self.threads = threads
        self.room = room
        self.single = False
        self.anchored = False
        self.renew = False
        self.anchor: Anchor | None = None
        self.at_anchor = False
        self._coarse: BasisOnGrid | None = None
        self._fine: BasisOnGrid | None = None

    def energy_and_potential(self, numint: Any, xc: str, density: Any) -> tuple[float, Array]:
        """E_xc without exact exchange, Eh, and V_xc in the shape of the density, Eh.

        Parameters
        ----------
        numint : pyscf.dft.numint.NumInt
            Evaluates the functional.
        xc : str
            The functional, as PySCF spells it.
        density : (nao, nao), or of each spin (2, nao, nao)
            Density matrix; if it is tagged with orbitals, they are used.
        """
        kind = numint._xc_type(xc)
        if kind == "HF":
            return 0.0, np.zeros(np.shape(density))
        return self._matrices(
            self._basis(kind, single=self.single), numint, xc, density, None, None
        )

    def from_anchor(self, numint: Any, xc: str, density: Any) -> tuple[float, Array]:
        """E_xc and V_xc by Eq. 4; arguments as in `energy_and_potential`."""
        if self.anchor is None:
            raise ValueError("no density was an anchor yet")
        self.at_anchor = False
        change, _ = self._on_coarse_grid(numint, xc, density, self.anchor.at_points)
        potential = self.anchor.potential + change
        step = np.asarray(density) - self.anchor.density
        energy = self.anchor.energy + np.vdot(potential + self.anchor.potential, step) / 2
        return float(energy), potential

    def set_anchor(self, numint: Any, xc: str, density: Any) -> tuple[Anchor, Array]:
        """Make a density the anchor. Returns the anchor, and its V_xc minus that of the coarser
        grid, or minus that of Eq. 4 if there was an anchor, Eh. Arguments as in
        `energy_and_potential`."""
        reference = self.anchor.at_points if self.anchor is not None else None
        before, at_points = self._on_coarse_grid(numint, xc, density, reference)
        if self.anchor is not None:
            before = before + self.anchor.potential
        energy, potential = self.energy_and_potential(numint, xc, density)
        self.anchor = Anchor(np.array(density), energy, potential, at_points)
        self.at_anchor = True
        self.renew = False
        return self.anchor, potential - before

    def _on_coarse_grid(
        self, numint: Any, xc: str, density: Any, reference: list[Any] | None
    ) -> tuple[Array, list[Any]]:
        """H(v - reference) in the shape of the density, Eh, and v of each block."""
        kind = numint._xc_type(xc)
        if kind == "HF":
            return np.zeros(np.shape(density)), []
        basis = self._basis(kind, single=True)
        at_points: list[Any] = [None] * basis.count
        _, matrix = self._matrices(basis, numint, xc, density, reference, at_points)
        return matrix, at_points

    def _matrices(
        self,
        basis: BasisOnGrid,
        numint: Any,
        xc: str,
        density: Any,
        reference: list[Any] | None,
        at_points: list[Any] | None,
    ) -> tuple[float, Array]:
        """E_xc, and V_xc or the matrix of the potential minus a reference at the points; the
        potential at the points is stored in `at_points`."""
        spins = 1 if np.ndim(density) == 2 else 2
        shape = (spins, self.mole.nao, self.mole.nao)
        potentials = [np.zeros(shape) for _ in range(self.threads)]
        memories = [Memory() for _ in range(self.threads)]

        def add_potential(worker: int, number: int, block: PointBlock, weighted: Array) -> None:
            if at_points is not None:
                at_points[number] = weighted
            if reference is not None:
                weighted = weighted - reference[number]
            place = np.ix_(block.functions, block.functions)
            for potential, of_spin in zip(potentials[worker], weighted, strict=True):
                potential[place] += half_potential(block, of_spin, memories[worker])

        energy = self._integrate(basis, numint, xc, density, add_potential)
        half = np.add.reduce(potentials)
        potential = half + half.transpose(0, 2, 1)
        return energy, potential.reshape(np.shape(density))

    def energy(self, numint: Any, xc: str, density: Any) -> float:
        """E_xc without exact exchange, Eh, at half the cost of `energy_and_potential`."""
        kind = numint._xc_type(xc)
        if kind == "HF":
            return 0.0
        return self._integrate(self._basis(kind, single=self.single), numint, xc, density, None)

    def _integrate(
        self,
        basis: BasisOnGrid,
        numint: Any,
        xc: str,
        density: Any,
        take_potential: TakePotential | None,
    ) -> float:
        """E_xc, Eh; the potential at the points of each block, times their weights, is passed
        on."""
        kind = numint._xc_type(xc)
        orbitals = signed_orbitals_of(density)
        restricted = np.ndim(density) == 2

        def add_blocks(worker: int, blocks: Iterator[tuple[int, PointBlock]]) -> float:
            energy = 0.0
            memory = Memory()
            for number, block in blocks:
                rho = density_at_points(block, orbitals, kind, memory)
                arguments = rho
                if restricted:
                    arguments = rho[0]
                if kind == "LDA":
                    arguments = arguments[..., RHO, :]
                exc, vxc = numint.eval_xc_eff(
                    xc,
                    arguments,
                    deriv=int(take_potential is not None),
                    xctype=kind,
                    spin=int(not restricted),
                )[:2]
                energy += float(np.dot(rho[:, RHO].sum(axis=0) * block.weights, exc))
                if take_potential is not None:
                    weighted = np.reshape(vxc, (len(orbitals), -1, len(exc))) * block.weights
                    take_potential(worker, number, block, weighted)
            return energy

        return sum(basis.share_out(add_blocks, self.threads))

    def discard(self) -> None:
        """Free the values of basis functions, and keep none from now on."""
        self.room = 0
        self.leave_coarse_grid()
        self._fine = None

    def leave_coarse_grid(self) -> None:
        """Use the final grid from now on, and free the values of basis functions on the coarser
        one."""
        self.single = False
        self.anchored = False
        self.anchor = None
        self._coarse = None

    def _basis(self, kind: str, *, single: bool) -> BasisOnGrid:
        """The basis functions on the final grid, or in float32 on the coarser one, with the
        derivatives that functionals of a kind need."""
        derivatives = kind != "LDA"
        if single:
            if self._coarse is None or self._coarse.derivatives < derivatives:
                grid = make_grid(self.mole, coarse_name(self.grid))
                build_unsorted(grid)
                room = self.room
                if self._fine is not None:
                    room -= self._fine.kept_bytes
                self._coarse = BasisOnGrid(
                    self.mole, grid, derivatives=derivatives, single=True, room=room
                )
            return self._coarse
        if self._fine is None or self._fine.derivatives < derivatives:
            if self.grid.coords is None:
                build_unsorted(self.grid)
            room = self.room
            if self._coarse is not None:
                room = 0  # too few densities use the final grid to justify keeping its values
            self._fine = BasisOnGrid(self.mole, self.grid, derivatives=derivatives, room=room)
        return self._fine


def signed_orbitals_of(density: Any) -> list[tuple[Array, Array]]:
    """Orbitals (nao, n) and occupations (n,) of each spin, or of all electrons, of a density.

    Occupations are negative where a density without orbitals has negative eigenvalues.
    """
    from dfmp2.scf.jk import signed_orbitals  # loads PySCF

    orbitals = getattr(density, "mo_coeff", None)
    nao = np.shape(density)[-1]
    found = []
    if orbitals is None:
        for one in np.reshape(density, (-1, nao, nao)):
            positive, negative = signed_orbitals(one)
            signs = np.repeat([1.0, -1.0], [positive.shape[1], negative.shape[1]])
            found.append((np.hstack([positive, negative]), signs))
        return found
    coefficients = np.reshape(orbitals, (-1, nao, np.shape(orbitals)[-1]))
    occupations = np.reshape(density.mo_occ, (len(coefficients), -1))
    for coefficient, occupation in zip(coefficients, occupations, strict=True):
        occupied = occupation != 0
        found.append((coefficient[:, occupied], occupation[occupied]))
    return found


class Memory:
    """Arrays that a worker reuses for each block: touching new memory for the first time costs more
    than the computation on it."""

    def __init__(self) -> None:
        self._flat: dict[str, NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
        """The array of that name, with arbitrary content; earlier arrays of that name with other
        shapes become invalid.

        Parameters
        ----------
        name : str
            Its purpose.
        shape : tuple of int
            Its shape.
        kind : dtype
            Type of its numbers.
        """
        size = prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.size < size or flat.dtype != kind:
            flat = np.empty(size, dtype=kind)
            self._flat[name] = flat
        return flat[:size].reshape(shape)


def density_at_points(
    block: PointBlock, orbitals: Sequence[tuple[Array, Array]], kind: str, memory: Memory
) -> Array:
    """rho and, as far as derivatives are available, its gradient and tau of each spin at the points
    of a block.

    Parameters
    ----------
    block : PointBlock
        Points and basis functions.
    orbitals : sequence of ((nao, n), (n,))
        Orbitals and occupations of each spin.
    kind : str
        "LDA", "GGA" or "MGGA".
    memory : Memory
        Arrays of the worker.

    Returns
    -------
    (spins, 1, 4 or 5, points) float64
        In e/bohr^3, derivatives with further powers of 1/bohr.
    """
    precision = block.values.dtype
    count = {"LDA": 1}.get(kind, len(block.values))
    rows = {"LDA": 1, "GGA": 4, "MGGA": 5}[kind]
    # All spins at once, so that the values are read from memory only once.
    coefficients = np.hstack([coefficient[block.functions] for coefficient, _ in orbitals])
    shape = (count, coefficients.shape[1], len(block.weights))
    psi_of_all = memory.array("orbitals", shape, precision)
    np.matmul(coefficients.T.astype(precision), block.values[:count], out=psi_of_all)
    rho = np.empty((len(orbitals), rows, len(block.weights)))
    first = 0
    for of_spin, (_, occupation) in zip(rho, orbitals, strict=True):
        psi = psi_of_all[:, first : first + len(occupation)]
        first += len(occupation)
        occupations = occupation.astype(precision)[:, None]
        weighted = psi[0] * occupations
        for row in range(count):
            of_spin[row] = np.einsum("ig,ig->g", weighted, psi[row])
        of_spin[1:count] *= 2
        if kind == "MGGA":
            of_spin[TAU] = 0.0
            for derivative in psi[1:]:
                of_spin[TAU] += np.einsum("ig,ig->g", derivative * occupations, derivative) / 2
    return rho


def half_potential(block: PointBlock, potential: Array, memory: Memory) -> Array:
    """H of a block, with V_mn of Eq. 3 = H_mn + H_nm, (n, n) Eh.

    Parameters
    ----------
    block : PointBlock
        Points and basis functions.
    potential : (1, 4 or 5, points)
        Derivatives with respect to the rows of `density_at_points`, times the weights.
    memory : Memory
        Arrays of the worker.
    """
    values = block.values
    factors = potential[: GRADIENT.stop].astype(values.dtype)
    factors[RHO] /= 2
    total = memory.array("weighted", values[0].shape, values.dtype)
    add_weighted(values, factors, total)
    half = np.asarray(values[0] @ total.T, dtype=np.float64)
    if len(potential) > TAU:
        factors = potential[TAU].astype(values.dtype) / 4
        for derivative in values[1:]:
            np.multiply(derivative, factors, out=total)
            half += derivative @ total.T
    return half


def add_weighted(values: NDArray[Any], factors: NDArray[Any], total: NDArray[Any]) -> None:
    """Write sum_k f_kg chi_kmg, (n, points), from values (k or more, n, points) and factors (k,
    points), to `total`; a few functions at a time, which stay in the processor's cache."""
    for first in range(0, len(total), CACHED_FUNCTIONS):
        part = slice(first, first + CACHED_FUNCTIONS)
        np.multiply(values[0, part], factors[0], out=total[part])
        for derivative, factor in zip(values[1:], factors[1:], strict=False):
            total[part] += derivative[part] * factor
