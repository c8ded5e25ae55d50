"""Energy and potential of an exchange-correlation functional, from occupied orbitals at the points
of a grid:

    rho_s = sum_i n_i psi_is^2      tau_s = sum_i n_i |grad psi_is|^2 / 2                       (1)
    E = sum_g w_g rho(r_g) e(r_g)                                                               (2)
    V_mn = sum_g w_g [v_rho chi_m chi_n + u . grad(chi_m chi_n) + v_tau grad chi_m . grad chi_n / 2]
                                                                                                (3)

with v_rho = df/drho, u = df/d(grad rho) and v_tau = df/dtau of f = rho e, made by libxc. The points
come in blocks (`dfmp2.integrals.basis_on_grid`) that workers share out among themselves: each takes
every n-th block, so that sums are in the same order from run to run. While an SCF is far from its
end it has a coarser grid and float32 (`single`); PySCF's own way to Eqs. 1 to 3 is `nr_rks` and
`nr_uks`. Source: Pople, Gill, Johnson, Chem. Phys. Lett. 199, 557 (1992).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.host.threads import Workers
from dfmp2.integrals.basis_on_grid import BasisOnGrid, PointBlock
from dfmp2.integrals.grid import coarse_name, make_grid

Array = NDArray[np.float64]

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
    """

    def __init__(self, mole: Any, grid: Any, threads: int = 1, room: int = 0) -> None:
        self.mole = mole
        self.grid = grid
        self.threads = threads
        self.room = room
        self.single = False
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
        basis = self._basis(derivatives=kind != "LDA")
        orbitals = signed_orbitals_of(density)
        restricted = np.ndim(density) == 2

        def add_blocks(worker: int) -> tuple[float, Array]:
            from pyscf import lib

            energy = 0.0
            potential = np.zeros((len(orbitals), self.mole.nao, self.mole.nao))
            with lib.with_omp_threads(1):
                for number in range(worker, basis.count, self.threads):
                    block = basis.block(number)
                    rho = np.stack([density_at_points(block, *spin, kind) for spin in orbitals])
                    if restricted:
                        arguments = rho[0]
                        spins = 0
                    else:
                        arguments = rho
                        spins = 1
                    if kind == "LDA":
                        arguments = arguments[..., RHO, :]
                    exc, vxc = numint.eval_xc_eff(xc, arguments, deriv=1, xctype=kind, spin=spins)[
                        :2
                    ]
                    energy += float(np.dot(rho[:, RHO].sum(axis=0) * block.weights, exc))
                    weighted = np.reshape(vxc, (len(orbitals), -1, len(exc))) * block.weights
                    place = np.ix_(block.functions, block.functions)
                    for spin, at_points in enumerate(weighted):
                        potential[spin][place] += half_potential(block, at_points)
            return energy, potential

        with Workers(self.threads) as pool:
            parts = list(pool.map(add_blocks, range(self.threads)))
        energy = sum(part[0] for part in parts)
        half = np.add.reduce([part[1] for part in parts])
        potential = half + half.transpose(0, 2, 1)
        return energy, potential.reshape(np.shape(density))

    def discard(self) -> None:
        """Free the values of basis functions, and keep none from here on."""
        self.room = 0
        self._coarse = None
        self._fine = None

    def _basis(self, *, derivatives: bool) -> BasisOnGrid:
        """The basis functions on the grid that is used now."""
        if self.single:
            if self._coarse is None or self._coarse.derivatives < derivatives:
                grid = make_grid(self.mole, coarse_name(self.grid))
                grid.build(with_non0tab=False)
                room = self.room
                if self._fine is not None:
                    room -= self._fine.kept_bytes
                self._coarse = BasisOnGrid(
                    self.mole, grid, derivatives=derivatives, single=True, room=room
                )
            return self._coarse
        self._coarse = None
        if self._fine is None or self._fine.derivatives < derivatives:
            if self.grid.coords is None:
                self.grid.build(with_non0tab=True)
            self._fine = BasisOnGrid(self.mole, self.grid, derivatives=derivatives, room=self.room)
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


def density_at_points(block: PointBlock, orbitals: Array, occupations: Array, kind: str) -> Array:
    """rho, its gradient and tau of a spin at the points of a block, as far as there are derivatives.

    Parameters
    ----------
    block : PointBlock
        Points and basis functions.
    orbitals : (nao, n)
        Orbitals.
    occupations : (n,)
        Their occupations.
    kind : str
        "LDA", "GGA" or "MGGA".

    Returns
    -------
    (1, 4 or 5, points) float64
        In e/bohr^3 and powers of 1/bohr of that.
    """
    kind_of_number = block.values.dtype
    coefficients = orbitals[block.functions].T.astype(kind_of_number)
    count = {"LDA": 1}.get(kind, len(block.values))
    psi = np.matmul(coefficients, block.values[:count])
    weighted = psi[0] * occupations.astype(kind_of_number)[:, None]
    rho = np.empty(({"LDA": 1, "GGA": 4, "MGGA": 5}[kind], len(block.weights)))
    for row in range(count):
        rho[row] = np.einsum("ig,ig->g", weighted, psi[row])
    rho[1:count] *= 2
    if kind == "MGGA":
        rho[TAU] = 0.0
        for derivative in psi[1:]:
            weighted = derivative * occupations.astype(kind_of_number)[:, None]
            rho[TAU] += np.einsum("ig,ig->g", weighted, derivative) / 2
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
    potential = potential.astype(block.values.dtype)
    values = block.values
    scaled = values[0] * (potential[RHO] / 2)
    for derivative, at_points in zip(values[1:], potential[GRADIENT], strict=False):
        scaled += derivative * at_points
    half = np.asarray(values[0] @ scaled.T, dtype=np.float64)
    if len(potential) > TAU:
        for derivative in values[1:]:
            half += derivative @ (derivative * (potential[TAU] / 4)).T
    return half
