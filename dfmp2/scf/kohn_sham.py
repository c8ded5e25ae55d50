"""Kohn-Sham orbitals: an exchange-correlation functional in place of Hartree-Fock exchange.

    F_s = h + J - c K_s + V_xc,s,   E = E_nuc + tr h D + tr J D / 2 - c sum_s tr K_s D_s / 2 + E_xc                  (1)
    E_EXX = E_nuc + tr h D + tr J D / 2 - sum_s tr K_s D_s / 2                                                       (2)

s: spins, D = sum_s D_s, c: exact exchange in a hybrid functional. E_EXX is the Hartree-Fock energy of the Kohn-Sham
determinant, to which the correlation energy of the random-phase approximation is added. J and K are those of the mean
field, E_xc and V_xc come from libxc on a grid of PySCF (`dfmp2.integrals.grid`). Source: Kohn and Sham, Phys. Rev. 140,
A1133 (1965).
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np

from dfmp2.errors import InputError
from dfmp2.integrals.grid import make_grid, name_of_grid
from dfmp2.messages import Option
from dfmp2.molecule.pyscf_shield import shielded

BLOCK_MEGABYTES = 64.0  # of basis functions on points of the grid at a time, whatever the budget: the bits are the same
NEAR = 4  # names suggested for one that is not known


def require_functional(xc: str) -> None:
    """Refuse a functional that is not known to libxc, or has parts that are not there.

    Raises
    ------
    InputError : it names what is near, or what the functional has
    """
    with shielded():
        from pyscf.dft import libxc

        try:
            libxc.parse_xc(xc)
            laplacian, nonlocal_part = libxc.needs_laplacian(xc), libxc.is_nlc(xc)
            separated = libxc.rsh_coeff(xc)[0]
        except (KeyError, ValueError, IndexError, AssertionError, NotImplementedError) as error:
            near = get_close_matches(xc.upper(), [*libxc.XC_ALIAS, *libxc.XC_CODES], NEAR)
            if near:
                said = f"; near it: {', '.join(dict.fromkeys(name.lower() for name in near))}"
            else:
                said = ""
            raise InputError(
                Option("xc", xc),
                (
                    f": libxc has no such functional{said}. Name one as PySCF does: pbe, tpss, pbe0,"
                    " b3lyp, or exchange and correlation with a comma between them such as b88,lyp"
                ),
            ) from error
    parts = {
        "a non-local correlation functional (VV10)": nonlocal_part,
        "exchange of a range-separated Coulomb operator": separated,
        "the Laplacian of the density": laplacian,
        "a dispersion correction": any(end in xc for end in ("-d3", "-d4", "-3c")),
    }
    found = [what for what, there in parts.items() if there]
    if found:
        raise InputError(
            Option("xc", xc),
            (
                f" has {found[0]}, which is not there: take a local functional or a global "
                "hybrid, such as pbe, tpss or pbe0"
            ),
        )


def exact_exchange(xc: str) -> float:
    """c of Eq. 1, 0 where the functional is no hybrid."""
    with shielded():
        from pyscf.dft import libxc

        return float(libxc.hybrid_coeff(xc))


class KohnSham:
    """PySCF's RKS or UKS with J and K of densities that carry their orbitals, and blocks of points of one size."""

    def get_veff(self: Any, mol: Any = None, dm: Any = None, *_last: Any, **_more: Any) -> Any:
        """J - c K + V_xc of a density, (nao, nao) or of each spin (2, nao, nao), Eh, tagged with energies."""
        from pyscf import lib

        dm = self.make_rdm1() if dm is None else dm
        if self.grids.coords is None:
            self.grids.build(with_non0tab=True)
        restricted = np.ndim(dm) == 2
        energy, potential = integrate(self, self.grids, dm)
        share = exact_exchange(self.xc)
        j, k = self.get_jk(self.mol, dm, 1, with_k=bool(share))
        if restricted:
            density, j = (dm, j)
        else:
            density, j = (dm[0] + dm[1], j[0] + j[1])
        potential = potential + j
        if share:
            k = share * (k / 2 if restricted else k)
            potential = potential - k
            energy -= np.vdot(dm, k) / 2
        return lib.tag_array(potential, ecoul=np.vdot(density, j) / 2, exc=energy)


def mean_field(mole: Any, kind: str, xc: str, grid: str, *, native: bool = False) -> Any:
    """A PySCF RKS ("rhf") or UKS ("uhf") of the molecule, not yet run.

    Parameters
    ----------
    grid : str
        Name of the integration grid.
    native : bool
        Leave the potential of the functional to PySCF's own code, without `KohnSham`.
    """
    from pyscf import dft, lib

    mf = {"rhf": dft.RKS, "uhf": dft.UKS}[kind](mole)
    mf.xc = xc
    mf.grids = make_grid(mole, grid)
    if native:
        return mf
    return lib.set_class(mf, (KohnSham, type(mf)))


def of_grid(grid: Any) -> dict[str, Any]:
    """The fields of a `Reference` that say which integration grid it has, from a grid of PySCF."""
    name = name_of_grid(grid)
    if grid.coords is None:
        grid.build(with_non0tab=True)
    if name.isdigit():
        level = int(name)
    else:
        level = None
    return {
        "grid": name,
        "grid_level": level,
        "grid_points": int(np.count_nonzero(grid.weights)),
    }


def integrate(mf: Any, grid: Any, density: Any) -> tuple[float, Any]:
    """E_xc and V_xc of a density on a grid.

    Parameters
    ----------
    mf : pyscf.dft.rks.RKS or pyscf.dft.uks.UKS
        The mean field.
    grid : pyscf.dft.gen_grid.Grids
        A grid that has been built.
    density : (nao, nao), or of each spin (2, nao, nao)
        Density matrix.

    Returns
    -------
    energy : float
        E_xc without exact exchange, Eh.
    potential : shape of the density
        Its derivative, Eh.
    """
    if np.ndim(density) == 2:
        evaluate = mf._numint.nr_rks
    else:
        evaluate = mf._numint.nr_uks
    _, energy, potential = evaluate(mf.mol, grid, mf.xc, density, max_memory=BLOCK_MEGABYTES)
    return float(energy), np.asarray(potential)


def exact_exchange_energy(mf: Any) -> float:
    """E_EXX of a converged mean field, Eq. 2, Eh."""
    with shielded():
        density = mf.make_rdm1()
        core = mf.get_hcore()
        spins = np.asarray(density).reshape(-1, *core.shape)
        energy = float(mf.energy_nuc())
        for fock, spin in zip(exact_exchange_matrices(mf, density), spins, strict=True):
            energy += float(np.vdot(core + fock, spin)) / 2
        return energy


def exact_exchange_matrices(mf: Any, density: Any) -> list[Any]:
    """Hartree-Fock matrix h + J - K of each spin, (nao, nao) Eh.

    Parameters
    ----------
    mf : pyscf.dft.rks.RKS or pyscf.dft.uks.UKS
        The mean field, whose J and K are taken.
    density : (nao, nao), or of each spin (2, nao, nao)
        Density matrix.
    """
    j, k = mf.get_jk(mf.mol, density)
    core = mf.get_hcore()
    if np.ndim(density) == 2:
        return [core + j - k / 2]
    coulomb = core + j[0] + j[1]
    return [coulomb - k[0], coulomb - k[1]]
