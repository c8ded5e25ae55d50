"""Additions to the Hamiltonian of PySCF's molecule: spin-free X2C, point charges, and a uniform
field F.

    h = T + V, or with X2C the electronic block of the one-electron Dirac Hamiltonian without
    spin-orbit terms
    h_mn - sum_k q_k (m| 1/|r - R_k| |n)        E_nuc + sum_A sum_k Z_A q_k / |R_A - R_k|
    h_mn + F (m| r |n)                          E_nuc - sum_A Z_A F R_A                    dE/dF = - dipole moment

PySCF constructs X2C in the decontracted basis (Liu and Peng, J. Chem. Phys. 131, 031104 (2009)).
The potentials of charges and field are not transformed, as in PySCF. Coulomb and exchange integrals
are non-relativistic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.integrals.grid import grid_name
from dfmp2.molecule.basis import ElementBasis, to_pyscf
from dfmp2.molecule.point_charges import nuclear_energy
from dfmp2.molecule.pyscf_shield import shielded

CHARGES_PER_CALL = 4096  # so that Ctrl-C is handled between two calls
DEPENDENT = 1e-10  # eigenvalue of an overlap matrix, relative to its largest, that counts as zero


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """The surroundings of a molecule.

    Attributes
    ----------
    charges : (n, 4) array or None
        x, y, z in bohr and charge in e of point charges.
    field : (3,) array or None
        Uniform electric field, Eh/(e bohr).
    """

    charges: Array | None = None
    field: Array | None = None


VACUUM = Environment()


class OwnHamiltonian:
    """A PySCF mean field with our own one-electron matrix and nuclear energy.

    Attributes
    ----------
    one_electron : (nao, nao), or of each spin (2, nao, nao), Eh
    nuclear : Eh
    """

    _keys = frozenset({"one_electron", "nuclear"})
    one_electron: Array
    nuclear: float

    def get_hcore(self, mol: Any = None) -> Array:
        """The one-electron matrix; a copy, because PySCF's callers may change it."""
        return self.one_electron.copy()

    def energy_nuc(self) -> float:
        """Energy of the nuclei with each other and with the charges."""
        return self.nuclear


def mean_field(
    mole: Any,
    kind: str,
    relativity: str,
    charges: Array | None,
    *,
    native: bool = False,
    field: Array | None = None,
    xc: str | None = None,
    grid: str | None = None,
) -> Any:
    """A PySCF RHF, UHF or ROHF of the molecule, not yet run, with exact Coulomb and exchange
    matrices.

    Parameters
    ----------
    kind : "rhf", "uhf" or "rohf"; relativity : "none" or "x2c"
    charges : (n, 4) x, y, z in bohr and charge in e, or None
    native : leave the potential of the charges, and the Fock matrix of Kohn-Sham, to PySCF's own
        code
    field : (3,) Eh/(e bohr), or None
    xc : functional, for RKS or UKS instead of Hartree-Fock, or None
    grid : name of its integration grid (`dfmp2.integrals.grid`), None for the default
    """
    from pyscf import scf

    if xc is None:
        # scf.UHF of one electron is HF1e, whose virtual orbitals do not see that electron.
        mf = {"rhf": scf.hf.RHF, "uhf": scf.uhf.UHF, "rohf": scf.rohf.ROHF}[kind](mole)
    else:
        from dfmp2.scf import kohn_sham

        mf = kohn_sham.kohn_sham_mean_field(mole, kind, xc, grid_name(grid, xc), native=native)
    if relativity == "x2c":
        mf = mf.sfx2c1e()
    if field is not None:
        position = mole.intor("int1e_r")
        nuclear = float(mole.energy_nuc()) - float(mole.atom_charges() @ mole.atom_coords() @ field)
        mf = with_one_electron(
            mf, mf.get_hcore() + np.einsum("x,xmn->mn", field, position), nuclear
        )
    if charges is None:
        return mf
    if native:
        from pyscf import qmmm

        return qmmm.mm_charge(mf, charges[:, :3], charges[:, 3], unit="Bohr")
    return with_one_electron(
        mf, mf.get_hcore() + potential(mole, charges), _nuclear(mole, mf, charges)
    )


def with_one_electron(mf: Any, one_electron: Array, nuclear: float) -> Any:
    """The mean field with the given one-electron matrix, one or (2, nao, nao) for each spin, and
    nuclear energy, Eh."""
    from pyscf import lib

    if not isinstance(mf, OwnHamiltonian):
        mf = lib.set_class(mf, (OwnHamiltonian, type(mf)))
    mf.one_electron, mf.nuclear = one_electron, nuclear
    return mf


def potential(mole: Any, charges: Array) -> Array:
    """Matrix of the potential of point charges for an electron, (nao, nao) Eh.

    Evaluated as the attraction of nuclei with fractional charges, so that memory does not grow with
    their number.
    """
    from pyscf import gto

    matrix = np.zeros((mole.nao, mole.nao))
    bare = mole._atm.copy()
    bare[:, gto.CHARGE_OF] = 0  # the centres remain, their charges are included elsewhere
    bare[:, gto.NUC_MOD_OF] = gto.NUC_POINT
    for first in range(0, len(charges), CHARGES_PER_CALL):
        some = charges[first : first + CHARGES_PER_CALL]
        place = len(mole._env) + 4 * np.arange(len(some))
        atoms = np.zeros((len(some), bare.shape[1]), dtype=bare.dtype)
        atoms[:, gto.PTR_COORD] = place
        atoms[:, gto.NUC_MOD_OF] = gto.NUC_FRAC_CHARGE
        atoms[:, gto.PTR_FRAC_CHARGE] = place + 3
        environment = np.concatenate([mole._env, some.ravel()])
        matrix += gto.moleintor.getints(
            "int1e_nuc_sph", np.vstack([bare, atoms]), mole._bas, environment, hermi=1
        )
    return matrix


def uncontracted_functions(mole: Any) -> int:
    """Number of functions of the decontracted basis that X2C uses."""
    exponents = {
        (int(shell[0]), int(shell[1]), float(exponent))
        for number, shell in enumerate(mole._bas)
        for exponent in mole.bas_exp(number)
    }
    return sum(2 * momentum + 1 for _, momentum, _ in exponents)


@lru_cache(maxsize=256)  # molecules of a batch or a scan have the same elements
def ground_state_of_nucleus(element: ElementBasis, relativity: str, *, contracted: bool) -> float:
    """Lowest energy of one electron and the bare nucleus in the s functions of a set, Eh.

    It is about -Z^2 / 2 without relativity, but in functions made for a core potential, which do not
    reach the nucleus.

    Parameters
    ----------
    relativity : "none" or "x2c"
    contracted : in the functions themselves, not in their primitives
    """
    shells = [shell for shell in to_pyscf(element) if shell[0] == 0]
    if not contracted:
        exponents = sorted({row[0] for shell in shells for row in shell[1:]})
        shells = [[0, [exponent, 1.0]] for exponent in exponents]
    with shielded():
        from pyscf import gto

        atom = gto.Mole()
        atom.verbose = 0
        atom.atom = [[element.symbol, (0.0, 0.0, 0.0)]]
        atom.basis = {element.symbol: shells}
        atom.spin = None  # any value: there is one electron
        atom.build(dump_input=False, parse_arg=False)
        if relativity == "x2c":
            from pyscf.x2c.sfx2c1e import SpinFreeX2CHelper

            one_electron = SpinFreeX2CHelper(atom).get_hcore(atom)
        else:
            one_electron = atom.intor("int1e_kin") + atom.intor("int1e_nuc")
        overlaps, vectors = np.linalg.eigh(atom.intor("int1e_ovlp"))
    kept = overlaps > DEPENDENT * overlaps[-1]
    orthogonal = vectors[:, kept] / np.sqrt(overlaps[kept])
    return float(np.linalg.eigvalsh(orthogonal.T @ one_electron @ orthogonal)[0])


def contraction_error(element: ElementBasis, relativity: str) -> float:
    """Error of `ground_state_of_nucleus` because the functions are contracted, Eh."""
    in_functions, in_primitives = (
        ground_state_of_nucleus(element, relativity, contracted=contracted)
        for contracted in (True, False)
    )
    return in_functions - in_primitives


def _nuclear(mole: Any, mf: Any, charges: Array) -> float:
    """The nuclear energy of a mean field, including the nuclei in the potential of the charges,
    Eh."""
    nuclei = mole.atom_charges() != 0
    among = nuclear_energy(
        mole.atom_coords()[nuclei], mole.atom_charges()[nuclei].astype(np.float64), charges
    )
    return float(mf.energy_nuc()) + among
