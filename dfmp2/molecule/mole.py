"""Build PySCF molecules from explicit values only: no user string reaches a PySCF parser.

Atoms are passed as (symbol, position in bohr), basis functions and potentials as numbers, keyed by
the symbol of the atom; ghosts are `GHOST-X` and never carry an effective core potential.

And back to numbers: the atomic orbitals in the order of the rows of `mo_coeff`,

    chi_lm(r) = S_lm(r) sum_k c_k N_l(a_k) exp(-a_k r^2)      S_lm: real solid harmonic, |r^l Y_lm| normalised

PySCF sorts the shells of an atom when a molecule is built, so the order is taken from the built
molecule and not from the basis. Within a shell, p functions are ordered x, y, z, all others from m
= -l to +l.

Below: densities of a molecule's atoms, from which an SCF starts.

They consist of atomic natural orbitals with the occupations of spherical ground-state atoms, as in
PySCF's default guess, from PySCF's own data file. PySCF itself would first look for a file called
`ano` in the working directory. Core shells inside an effective core potential are left out;
elements without ANO data get PySCF's atomic-SCF guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.errors import InputError, NumericalError
from dfmp2.molecule.basis import BasisSet, to_pyscf, to_pyscf_ecp
from dfmp2.molecule.basis_library import load_pyscf_element
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import import_pyscf, shielded
from dfmp2.units import told_apart

MEGABYTE = 10**6


def build_mole(molecule: Molecule, basis: BasisSet, memory: int) -> Any:
    """PySCF Mole of a molecule in an orbital basis (spherical functions, no symmetry).

    Parameters
    ----------
    memory : bytes that PySCF may use
    """
    import_pyscf()
    with shielded():
        from pyscf import gto

        mole = gto.Mole()
        mole.verbose = 0
        mole.unit = "Bohr"
        mole.cart = False
        mole.symmetry = False
        mole.max_memory = memory / MEGABYTE
        mole.atom = [
            [_pyscf_symbol(key, ghost), tuple(float(x) for x in position)]
            for key, ghost, position in zip(
                basis.keys(molecule), molecule.ghost, molecule.coordinates, strict=True
            )
        ]
        mole.basis = fitting_data(molecule, basis)
        mole.ecp = {
            key: to_pyscf_ecp(basis.elements[key])
            for key in dict.fromkeys(basis.real_keys(molecule))
            if basis.elements[key].ecp is not None
        }
        mole.charge = molecule.charge
        mole.spin = molecule.multiplicity - 1
        mole.build(dump_input=False, parse_arg=False)
        return mole


def build_auxiliary(mole: Any, molecule: Molecule, basis: BasisSet) -> Any:
    """PySCF Mole with a fitting set on the same centres; without functions if the set is empty."""
    if not basis.elements:
        without = mole.copy()
        without._bas = without._bas[:0]
        return without
    with shielded():
        from pyscf import df

        return df.addons.make_auxmol(mole, fitting_data(molecule, basis))


def dump_mole(mole: Any) -> str:
    """PySCF's own JSON form of a molecule, which makes a result file a PySCF checkpoint too."""
    with shielded():
        return str(mole.dumps())


def _pyscf_symbol(key: str, ghost: bool) -> str:
    return f"GHOST-{key}" if ghost else key


def fitting_data(molecule: Molecule, basis: BasisSet) -> dict[str, Any]:
    """Functions of each kind of atom, in the form of PySCF's `Mole.basis` and
    `density_fit(auxbasis=...)`."""
    labels = set(zip(basis.keys(molecule), molecule.ghost, strict=True))
    return {
        _pyscf_symbol(key, ghost): to_pyscf(basis.elements[key]) for key, ghost in sorted(labels)
    }


SMALL = 10**9  # bytes that PySCF may use: nothing here needs more
MOST_DEVIATION = 1e-6  # of C^T S C from the unit matrix; converged orbitals deviate by 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Shell:
    """One segmented shell of 2 l + 1 normalised spherical functions.

    Attributes
    ----------
    atom : index of its centre, from 0
    momentum : angular momentum l
    exponents : (nprim,) bohr^-2
    coefficients : (nprim,) contraction coefficients of normalised primitives; the contracted
        function is normalised
    norms : (nprim,) radial norms N_l(a_k), int_0^inf (N r^l exp(-a r^2))^2 r^2 dr = 1
    """

    atom: int
    momentum: int
    exponents: NDArray[np.float64]
    coefficients: NDArray[np.float64]
    norms: NDArray[np.float64]


def rebuilt_mole(molecule: Molecule, basis: BasisSet, mo_coeff: NDArray[np.float64]) -> Any:
    """PySCF Mole for stored orbitals; parameters and errors as in `ao_shells`."""
    mole = build_mole(molecule, basis, SMALL)
    with shielded():
        _require_orthonormal(np.array(mole.intor("int1e_ovlp")), mo_coeff)
    return mole


def ao_shells(
    molecule: Molecule, basis: BasisSet, mo_coeff: NDArray[np.float64]
) -> tuple[Shell, ...]:
    """Shells of an orbital basis in the order of the rows of `mo_coeff`; general contractions are
    segmented.

    Parameters
    ----------
    mo_coeff : (nspin, nao, nmo) orbitals, which must be orthonormal in this basis

    Raises
    ------
    NumericalError : they are not, so their rows have another order or normalisation than assumed
    """
    mole = rebuilt_mole(molecule, basis, mo_coeff)
    with shielded():
        from pyscf import gto

        shells = []
        for number in range(mole.nbas):
            momentum = int(mole.bas_angular(number))
            exponents = np.array(mole.bas_exp(number))
            norms = np.array(gto.gto_norm(momentum, exponents))
            for coefficients in np.array(mole.bas_ctr_coeff(number)).T:
                shells.append(
                    Shell(
                        atom=int(mole.bas_atom(number)),
                        momentum=momentum,
                        exponents=exponents,
                        coefficients=coefficients.copy(),
                        norms=norms,
                    )
                )
    return tuple(shells)


def _require_orthonormal(overlap: NDArray[np.float64], mo_coeff: NDArray[np.float64]) -> None:
    for coeff in mo_coeff:
        fits = coeff.shape[0] == overlap.shape[0]
        if fits:
            deviation = float(np.abs(coeff.T @ overlap @ coeff - np.eye(coeff.shape[1])).max())
        else:
            deviation = np.inf
        if not deviation <= MOST_DEVIATION:
            found, most = told_apart(".1e", deviation, MOST_DEVIATION)
            raise NumericalError(
                f"the stored orbitals deviate by {found} from orthonormality in the stored "
                f"basis, more than {most}: their order or normalisation is not that "
                "of the basis; compute the result again"
            )


def primitive_functions(mole: Any) -> int:
    """Number of primitive functions in all shells; contractions of a shell share them."""
    return sum(
        int(mole.bas_nprim(shell)) * (2 * int(mole.bas_angular(shell)) + 1)
        for shell in range(mole.nbas)
    )


# --- densities of single atoms --------------------------------------------------------------------

LAST_ANO_ELEMENT = 96  # Cm: the ANO-RCC data of PySCF end here


def start_density(mole: Any, kind: str) -> NDArray[np.float64]:
    """Start density, total (nao, nao) for "rhf" or divided among the spins (2, nao, nao) for
    "uhf".

    It carries its orbitals and occupations as PySCF's tags, so that a fitted exchange can use them.

    Raises
    ------
    InputError : a core potential, from a file, replaces an unusual number of electrons
    """
    with shielded():
        from pyscf import gto, lib
        from pyscf.scf import addons
        from pyscf.scf.hf import init_guess_by_atom

        real = [atom for atom in range(mole.natm) if gto.charge(mole.atom_pure_symbol(atom))]
        if any(gto.charge(mole.atom_pure_symbol(atom)) > LAST_ANO_ELEMENT for atom in real):
            return _tagged(init_guess_by_atom(mole), mole, kind)
        basis = {}
        occupations = []
        for atom in real:
            core = mole.atom_nelec_core(atom)
            shells, occupation = _valence(mole.atom_pure_symbol(atom), core)
            basis[mole.atom_symbol(atom)] = shells
            occupations.append(occupation)
        ano = gto.Mole()
        ano._atm, ano._bas, ano._env = ano.make_env([mole._atom[atom] for atom in real], basis, [])
        ano._built = True
        coeff = addons.project_mo_nr2nr(ano, np.eye(ano.nao), mole)
        occupied = np.hstack(occupations)
        density = lib.tag_array((coeff * occupied) @ coeff.T, mo_coeff=coeff, mo_occ=occupied)
        return _tagged(density, mole, kind)


def _tagged(density: Any, mole: Any, kind: str) -> NDArray[np.float64]:
    """A total density in the form that the SCF class expects."""
    from pyscf import lib

    total: NDArray[np.float64] = density
    if kind == "rhf":
        return total
    alpha, beta = (n / max(sum(mole.nelec), 1) for n in mole.nelec)
    spins: NDArray[np.float64] = np.stack([np.asarray(density) * alpha, np.asarray(density) * beta])
    if not hasattr(density, "mo_coeff"):
        return spins
    orbitals, occupied = density.mo_coeff, density.mo_occ
    tagged: NDArray[np.float64] = lib.tag_array(
        spins,
        mo_coeff=np.stack([orbitals, orbitals]),
        mo_occ=np.stack([occupied * alpha, occupied * beta]),
    )
    return tagged


def _valence(symbol: str, core_electrons: int) -> tuple[list[Any], NDArray[np.float64]]:
    """ANO shells outside the core potential and the occupation of each of their functions."""
    from pyscf import gto
    from pyscf.scf import atom_hf

    data = load_pyscf_element("ano", symbol)
    try:
        core = gto.ecp.core_configuration(core_electrons, atom_symbol=symbol)
    except RuntimeError as error:
        raise InputError(
            f"the core potential of {symbol} replaces {core_electrons} electrons, and PySCF knows no "
            "core of so many: use another set"
        ) from error
    shells, occupations = [], []
    for l in range(4):  # noqa: E741 - l is the usual symbol of an angular momentum
        doubly, fraction = atom_hf.frac_occ(symbol, l)
        if doubly < core[l]:
            continue
        shells.append([l, *([row[0], *row[1 + core[l] : doubly + 2]] for row in data[l][1:])])
        occupations.append(np.repeat([2.0] * (doubly - core[l]) + [fraction], 2 * l + 1))
    return shells, np.hstack(occupations)
