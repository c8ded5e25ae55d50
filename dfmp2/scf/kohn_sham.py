"""Kohn-Sham orbitals: an exchange-correlation functional in place of Hartree-Fock exchange.

    F_s = h + J - c K_s + V_xc,s,   E = E_nuc + tr h D + tr J D / 2 - c sum_s tr K_s D_s / 2 + E_xc                  (1)
    E_EXX = E_nuc + tr h D + tr J D / 2 - sum_s tr K_s D_s / 2                                                       (2)

s: spins, D = sum_s D_s, c: exact exchange in a hybrid functional. E_EXX is the Hartree-Fock energy of the Kohn-Sham
determinant, to which the correlation energy of the random-phase approximation is added. J and K are those of the mean
field, E_xc and V_xc come from libxc on PySCF's grid of level GRID_LEVEL. Source: Kohn and Sham, Phys. Rev. 140, A1133
(1965).
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np

from dfmp2.errors import InputError
from dfmp2.messages import Option
from dfmp2.molecule.pyscf_shield import shielded

GRID_LEVEL = (
    3  # of PySCF: at most 2e-8 Eh an atom off in E_EXX + E(RPA) (docs/validation/kohn-sham.md)
)
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
        if restricted:
            integrate = self._numint.nr_rks
        else:
            integrate = self._numint.nr_uks
        _, energy, potential = integrate(
            self.mol, self.grids, self.xc, dm, max_memory=BLOCK_MEGABYTES
        )
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


def mean_field(mole: Any, kind: str, xc: str) -> Any:
    """A PySCF RKS ("rhf") or UKS ("uhf") of the molecule, not yet run."""
    from pyscf import dft, lib

    mf = {"rhf": dft.RKS, "uhf": dft.UKS}[kind](mole)
    mf.xc, mf.grids.level = xc, GRID_LEVEL
    return lib.set_class(mf, (KohnSham, type(mf)))


def exact_exchange_energy(mf: Any) -> float:
    """E_EXX of a converged mean field, Eq. 2, Eh."""
    with shielded():
        density = mf.make_rdm1()
        j, k = mf.get_jk(mf.mol, density)
        if density.ndim == 2:
            total, exchange = density, np.vdot(density, k) / 2
        else:
            total, exchange, j = density[0] + density[1], np.vdot(density, k), j[0] + j[1]
        return float(
            mf.energy_nuc() + np.vdot(mf.get_hcore(), total) + (np.vdot(j, total) - exchange) / 2
        )
