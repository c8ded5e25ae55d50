"""Energy and potential of an exchange-correlation functional, from occupied orbitals at the points
of a grid:

    rho_s = sum_i n_i psi_is^2      tau_s = sum_i n_i |grad psi_is|^2 / 2                       (1)
    E = sum_g w_g rho(r_g) e(r_g)                                                               (2)
    V_mn = sum_g w_g [v_rho chi_m chi_n + u . grad(chi_m chi_n) + v_tau grad chi_m . grad chi_n / 2]
                                                                                                (3)

with v_rho = df/drho, u = df/d(grad rho) and v_tau = df/dtau of f = rho e, made by libxc. The points
come in blocks (`dfmp2.integrals.grid`) that workers share out among themselves: each takes
every n-th block, so that sums are in the same order from run to run. While an SCF is far from its
end it has a coarser grid and float32 (`single`); PySCF's own way to Eqs. 1 to 3 is `nr_rks` and
`nr_uks`. Source: Pople, Gill, Johnson, Chem. Phys. Lett. 199, 557 (1992).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.integrals.grid import BasisOnGrid, PointBlock, build_unsorted, coarse_name, make_grid

Array = NDArray[np.float64]

# Adds what a block, with the potential at its points, is to a worker's potential.
AddPotential = Callable[[int, PointBlock, Array], None]

CACHED_FUNCTIONS = 16  # of a block, whose values are in the cache together
RHO, GRADIENT, TAU = 0, slice(1, 4), 4  # rows of a density and of its potential at points


class ExchangeCorrelation:
    """E_xc and V_xc of densities of one molecule on one grid.

    Parameters
    ----------
    mole : pyscf.gto.Mole
        The molecule.
    grid : pyscf.dft.gen_grid.Grids
        The grid of the result; it is built when it is needed.
    threads : int
        Workers.
    room : int
        Bytes that may be taken for values of basis functions.

    Attributes
    ----------
    single : bool
        Whether a coarser grid and float32 are used; the caller switches it off before the end.
    corrected : bool
        Whether the coarser grid goes on being used after that, with a correction
        (`dfmp2.scf.kohn_sham.KohnSham`).
    """

    def __init__(self, mole: Any, grid: Any, threads: int = 1, room: int = 0) -> None:
        self.mole = mole
        self.grid = grid
        self.threads = threads
        self.room = room
        self.single = False
        self.corrected = False
        self._coarse: BasisOnGrid | None = None
        self._fine: BasisOnGrid | None = None

    def energy_and_potential(self, numint: Any, xc: str, density: Any) -> tuple[float, Array]:
        """E_xc without exact exchange, Eh, and V_xc in the shape of the density, Eh.

        Parameters
        ----------
        numint : pyscf.dft.numint.NumInt
            What evaluates the functional.
        xc : str
            The functional, as PySCF calls it.
        density : (nao, nao), or of each spin (2, nao, nao)
            Density matrix; orbitals that it is tagged with are used.
        """
        kind = numint._xc_type(xc)
        if kind == "HF":
            return 0.0, np.zeros(np.shape(density))
        spins = 2
        if np.ndim(density) == 2:
            spins = 1
        shape = (spins, self.mole.nao, self.mole.nao)
        potentials = [np.zeros(shape) for _ in range(self.threads)]

        def add_potential(worker: int, block: PointBlock, weighted: Array) -> None:
            place = np.ix_(block.functions, block.functions)
            for potential, at_points in zip(potentials[worker], weighted, strict=True):
                potential[place] += half_potential(block, at_points)

        energy = self._integrate(numint, xc, density, add_potential)
        half = np.add.reduce(potentials)
        potential = half + half.transpose(0, 2, 1)
        return energy, potential.reshape(np.shape(density))

    def energy(self, numint: Any, xc: str, density: Any) -> float:
        """E_xc without exact exchange, Eh, of what `energy_and_potential` takes, at half its cost."""
        if numint._xc_type(xc) == "HF":
            return 0.0
        return self._integrate(numint, xc, density, None)

    def _integrate(
        self, numint: Any, xc: str, density: Any, add_potential: AddPotential | None
    ) -> float:
        """E_xc, Eh, while the potential at the points of each block is handed on with their
        weights."""
        kind = numint._xc_type(xc)
        basis = self._basis(derivatives=kind != "LDA")
        orbitals = signed_orbitals_of(density)
        restricted = np.ndim(density) == 2

        def add_blocks(worker: int, numbers: range) -> float:
            energy = 0.0
            for number in numbers:
                block = basis.block(number)
                rho = density_at_points(block, orbitals, kind)
                arguments = rho
                if restricted:
                    arguments = rho[0]
                if kind == "LDA":
                    arguments = arguments[..., RHO, :]
                exc, vxc = numint.eval_xc_eff(
                    xc,
                    arguments,
                    deriv=int(add_potential is not None),
                    xctype=kind,
                    spin=int(not restricted),
                )[:2]
                energy += float(np.dot(rho[:, RHO].sum(axis=0) * block.weights, exc))
                if add_potential is not None:
                    weighted = np.reshape(vxc, (len(orbitals), -1, len(exc))) * block.weights
                    add_potential(worker, block, weighted)
            return energy

        return sum(basis.share_out(add_blocks, self.threads))

    def discard(self) -> None:
        """Free the values of basis functions, and keep none from here on."""
        self.room = 0
        self._coarse = None
        self._fine = None

    @property
    def has_coarse_values(self) -> bool:
        """Whether the coarser grid was used and not left."""
        return self._coarse is not None

    def on_coarse_grid(self, numint: Any, xc: str, density: Any) -> tuple[float, Array]:
        """What `energy_and_potential` makes on the coarser grid in float32, whatever `single`
        says."""
        single = self.single
        self.single = True
        try:
            return self.energy_and_potential(numint, xc, density)
        finally:
            self.single = single

    def leave_coarse_grid(self) -> None:
        """Free the values of basis functions on the coarser grid."""
        self._coarse = None

    def _basis(self, *, derivatives: bool) -> BasisOnGrid:
        """The basis functions on the grid that is used now."""
        if self.single:
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
                room -= self._coarse.kept_bytes
            self._fine = BasisOnGrid(self.mole, self.grid, derivatives=derivatives, room=room)
        return self._fine


def signed_orbitals_of(density: Any) -> list[tuple[Array, Array]]:
    """Orbitals (nao, n) and occupations (n,) of each spin, or of all electrons, of a density.

    Occupations are negative where the density, of no orbitals, has negative eigenvalues.
    """
    from dfmp2.scf.jk import signed_orbitals  # which loads PySCF

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


def density_at_points(
    block: PointBlock, orbitals: Sequence[tuple[Array, Array]], kind: str
) -> Array:
    """rho, its gradient and tau of each spin at the points of a block, as far as there are
    derivatives.

    Parameters
    ----------
    block : PointBlock
        Points and basis functions.
    orbitals : sequence of ((nao, n), (n,))
        Orbitals and occupations of each spin.
    kind : str
        "LDA", "GGA" or "MGGA".

    Returns
    -------
    (spins, 1, 4 or 5, points) float64
        In e/bohr^3 and powers of 1/bohr of that.
    """
    precision = block.values.dtype
    count = {"LDA": 1}.get(kind, len(block.values))
    rows = {"LDA": 1, "GGA": 4, "MGGA": 5}[kind]
    # Of all spins at once: the values are read from memory once.
    coefficients = np.hstack([coefficient[block.functions] for coefficient, _ in orbitals])
    psi_of_all = np.matmul(coefficients.T.astype(precision), block.values[:count])
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


def half_potential(block: PointBlock, potential: Array) -> Array:
    """H of a block with V_mn of Eq. 3 = H_mn + H_nm, (n, n) Eh.

    Parameters
    ----------
    block : PointBlock
        Points and basis functions.
    potential : (1, 4 or 5, points)
        Derivatives by the rows of `density_at_points`, times the weights.
    """
    values = block.values
    factors = potential[: GRADIENT.stop].astype(values.dtype)
    factors[RHO] /= 2
    half = np.asarray(values[0] @ _weighted_sum(values, factors).T, dtype=np.float64)
    if len(potential) > TAU:
        factors = potential[TAU].astype(values.dtype) / 4
        for derivative in values[1:]:
            half += derivative @ (derivative * factors).T
    return half


def _weighted_sum(values: NDArray[Any], factors: NDArray[Any]) -> Any:
    """sum_k f_kg chi_kmg, (n, points), of values (k or more, n, points) and factors (k, points);
    a few functions at a time, which stay in the processor's cache."""
    total = np.empty_like(values[0])
    for first in range(0, len(total), CACHED_FUNCTIONS):
        part = slice(first, first + CACHED_FUNCTIONS)
        np.multiply(values[0, part], factors[0], out=total[part])
        for derivative, factor in zip(values[1:], factors[1:], strict=False):
            total[part] += derivative[part] * factor
    return total
