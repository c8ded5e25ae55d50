"""Adopt a mean field that the user converged with PySCF: check it, and convert it to our values.

What is stored must be what was computed. Known additions that cannot be recorded are rejected by
name. Anything else is verified: energy and Fock matrix are rebuilt from the recorded molecule,
basis sets and orbitals, with one Coulomb and exchange build, and must equal those of the mean
field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dfmp2.arrays import Array
from dfmp2.double_hybrids import DoubleHybrid, look_up
from dfmp2.errors import ConvergenceError, InputError, Option
from dfmp2.molecule.basis import BasisSet, ElementBasis
from dfmp2.molecule.foreign import from_pyscf
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.options.methods import CUSTOM_DOUBLE_HYBRID, METHODS, canonical_method
from dfmp2.scf import hamiltonian
from dfmp2.scf.grid_error import with_grid_error
from dfmp2.scf.hartree_fock import record
from dfmp2.scf.interatomic_fitting import between_atoms
from dfmp2.scf.jk import column_squares
from dfmp2.scf.kohn_sham import definition_of, require_functional, same_functional
from dfmp2.scf.one_atom_fitting import one_atom_fitting_errors
from dfmp2.scf.reference import GIVEN, Reference

# Attributes of PySCF's decorated mean fields with effects that no result or `compare` can record.
ADDITIONS = {
    "with_solvent": "an implicit solvent",
    "sigma": "smeared occupations",
    "nlc": "a non-local correlation functional",
    "disp": "a dispersion correction",
    "only_dfj": "fitted Coulomb beside four-centre exchange",
}
SAME_ENERGY = 1e-6  # Eh, for a mean field converged to 1e-7 or better
SAME_MATRIX = 1e-7  # Eh
CANONICAL = 1e-4  # Eh; PySCF's default leaves orbital gradients of 3e-5
TAKEN = (
    "plain RHF, UHF, RKS and UKS, sf-X2C-1e (mf.sfx2c1e()) and point charges "
    "(qmmm.mm_charge) are supported"
)


@dataclass(frozen=True, slots=True, eq=False)
class Adopted:
    """A mean field, converted to our values.

    Attributes
    ----------
    orbital, jk : orbital basis, and SCF fitting set (None if conventional)
    relativity : "none" or "x2c"
    """

    molecule: Molecule
    orbital: BasisSet
    jk: BasisSet | None
    relativity: str
    reference: Reference


def double_hybrid_of(method: str, mf: Any) -> DoubleHybrid | None:
    """The requested double hybrid, None for another method.

    Raises
    ------
    InputError : the method is unknown, or the orbitals of the mean field belong to another
        functional
    """
    hybrid = look_up(canonical_method(method))
    if method in METHODS or hybrid is None:
        return None
    xc = vars(mf).get("xc")
    functional = "Hartree-Fock" if xc is None else definition_of(str(xc))
    if xc is None or not same_functional(functional, hybrid.scf):
        raise InputError(
            Option("method", method),
            f" takes orbitals of {hybrid.scf}, and the mean field has those of {functional}: run "
            "dft.RKS or dft.UKS with that functional, or use ",
            Option("method", CUSTOM_DOUBLE_HYBRID),
        )
    return hybrid


def adopt(mf: Any, energy_xc: str | None = None) -> Adopted:
    """The values of a mean field; `require_repeatable` verifies them.

    Parameters
    ----------
    energy_xc : functional for the energy of a double hybrid, if not that of the orbitals

    Raises
    ------
    InputError : not a plain molecular RHF, UHF, RKS or UKS with spherical functions and integer
        occupations
    ConvergenceError : not converged
    """
    with shielded():
        from pyscf import df, gto, scf

        kind = _kind(mf, scf)
        mole = mf.mol
        if not isinstance(mole, gto.Mole) or hasattr(mole, "lattice_vectors"):
            raise InputError(
                "the mean field is not one of a molecule: periodic systems are not supported"
            )
        if mole.cart:
            raise InputError(
                "the mean field uses Cartesian functions: build the molecule with cart=False"
            )
        fitting = getattr(mf, "with_df", None)
        _require_plain(mf, gto)
        if fitting and not isinstance(fitting, df.DF):
            raise _beyond("with_df", f"integrals of another kind, {type(fitting).__name__}")
        if not mf.converged:
            raise ConvergenceError(
                "the mean field is not converged: run it to convergence first (conv_tol=1e-10)"
            )
        for name in ("mo_coeff", "mo_energy", "mo_occ"):
            if getattr(mf, name) is None:
                raise InputError(f"the mean field has no {name}: run it again, as in mf.kernel()")
        _require_whole_occupations(mf, kind)
        molecule = from_pyscf(mole, "python: PySCF mean field").in_field(_point_charges(mf))
        orbital = _basis("orbital", mole, mole.basis, mole._ecp)
        jk = None
        if fitting:
            if fitting.auxmol is None:
                fitting.build()
            jk = _basis("jk", fitting.auxmol, fitting.auxbasis, {})
        reference = record(
            mf,
            kind,
            jk is not None,
            list(GIVEN),
            cycles=int(getattr(mf, "cycles", 0) or 0),
            start="python",
            energy_xc=energy_xc,
        )
        relativity = "x2c" if getattr(mf, "with_x2c", None) else "none"
        return Adopted(molecule, orbital, jk, relativity, reference)


def require_repeatable(mf: Any, found: Adopted, mole: Any, auxmole: Any) -> Reference:
    """Rebuild energy and Fock matrix from what is recorded, and raise if the mean field has others.

    Parameters
    ----------
    found : values returned by `adopt`
    mole, auxmole : PySCF molecules of the recorded orbital and SCF fitting functions; auxmole is
        None for a conventional SCF

    Returns
    -------
    its reference, completed by what the mean field does not contain: the fitting error between
    atoms or of a single one, and as history the only known iteration, with its energy, 0 and the
    norm of the orbital gradient, Eh

    Raises
    ------
    InputError : the mean field has another Hamiltonian, or its orbitals are not canonical; names
        what differs
    """
    with shielded():
        reference = found.reference
        plain = hamiltonian.mean_field(
            mole,
            reference.kind,
            found.relativity,
            found.molecule.point_charges,
            xc=reference.xc,
            grid=reference.grid_name,
        )
        if auxmole is not None:
            plain = plain.density_fit(auxbasis=auxmole.basis)
        plain.mo_coeff, plain.mo_occ = np.asarray(mf.mo_coeff), np.asarray(mf.mo_occ)
        plain.mo_energy = np.asarray(mf.mo_energy)
        density = plain.make_rdm1()
        fock = _require_same_energy(mf, plain, reference, density)
        _require_canonical(mf, reference, fock)
        gradient = np.linalg.norm(plain.get_grad(plain.mo_coeff, plain.mo_occ, fock))
        between = of_atom = None
        if auxmole is not None:
            squares = sum(column_squares(block) for block in plain.with_df.loop())
            between = between_atoms(mole, density, np.asarray(squares))
            of_atom = one_atom_fitting_errors(plain)
        if reference.xc is not None:
            reference = with_grid_error(plain, reference, of_orbitals=True)
    history = np.array([[float(mf.e_tot), 0.0, float(gradient)]])
    return replace(
        reference,
        history=history,
        interatomic_fitting_error=between,
        one_atom_fitting_errors=of_atom,
    )


def _require_same_energy(mf: Any, plain: Any, reference: Reference, density: Any) -> Array:
    """The Fock matrix of a density for the recorded Hamiltonian, whose mean field is `plain`.

    Raises
    ------
    InputError : the orbitals are not orthonormal, or their energy is not that of the mean field
    """
    overlap, core = plain.get_ovlp(), plain.get_hcore()
    potential = plain.get_veff(plain.mol, density)
    gap = float(mf.e_tot) - float(plain.energy_tot(density, core, potential))
    coefficients = np.reshape(mf.mo_coeff, reference.mo_coeff.shape)
    unit = max(float(np.abs(c.T @ overlap @ c - np.eye(c.shape[1])).max()) for c in coefficients)
    if not (unit < SAME_ENERGY and abs(gap) <= max(SAME_ENERGY, 10 * mf.conv_tol)):
        also = "" if reference.xc is None else ", functional and grid"
        raise InputError(
            f"E(SCF) of the mean field is {gap:+.3e} Eh off that of its molecule, basis sets "
            f"and orbitals{also}: {_differences(mf, plain, core, overlap)}. It cannot be recorded "
            f"and repeated: {TAKEN}"
        )
    return np.asarray(core + potential)


def _require_canonical(mf: Any, reference: Reference, fock: Array) -> None:
    """Raise unless the orbitals diagonalise the Fock matrix, with their energies.

    Raises
    ------
    InputError
    """
    nspin, nao, nmo = reference.mo_coeff.shape
    shift = mixed = 0.0
    for c, energy, f in zip(  # in the order of the mean field
        np.reshape(mf.mo_coeff, (nspin, nao, nmo)),
        np.reshape(mf.mo_energy, (nspin, nmo)),
        np.reshape(fock, (nspin, nao, nao)),
        strict=True,
    ):
        in_orbitals = c.T @ f @ c
        diagonal = in_orbitals.diagonal()
        shift = max(shift, float(np.abs(diagonal - energy).max()))
        mixed = max(mixed, float(np.abs(in_orbitals - np.diag(diagonal)).max()))
    if max(shift, mixed) > max(CANONICAL, 3 * (mf.conv_tol_grad or math.sqrt(mf.conv_tol))):
        raise InputError(
            f"the orbitals of the mean field are not canonical: mo_energy is up to {shift:.1e} "
            f"Eh off the Fock matrix, whose elements between orbitals reach {mixed:.1e} Eh "
            "(level_shift, localised or rotated orbitals?): run it again without these, or set "
            "mf.mo_energy, mf.mo_coeff = mf.canonicalize(mf.mo_coeff, mf.mo_occ)"
        )


def _kind(mf: Any, scf: Any) -> str:
    """ "rhf" or "uhf" by class; anything else is rejected by name."""
    if not isinstance(mf, scf.rohf.ROHF):
        if isinstance(mf, scf.uhf.UHF):
            return "uhf"
        if isinstance(mf, scf.hf.RHF):
            return "rhf"
    name = type(mf).__name__
    if type(mf).__module__.startswith("gpu4pyscf."):
        raise InputError(
            f"the mean field is a {name} of GPU4PySCF: pass mf.to_cpu(), a mean field of PySCF"
        )
    raise InputError(f"the mean field is a {name}: expected a PySCF RHF, UHF, RKS or UKS")


def _beyond(name: str, what: str) -> InputError:
    return InputError(
        f"the mean field has {name} ({what}), which cannot be recorded and repeated: {TAKEN}"
    )


def _require_plain(mf: Any, gto: Any) -> None:
    """Raise for known additions to the mean field or its molecule."""
    mole, xc = mf.mol, vars(mf).get("xc")
    if xc is not None:
        require_functional(definition_of(str(xc)))
    for name, what in ADDITIONS.items():
        if getattr(mf, name, None):
            raise _beyond(name, what)
    helper = getattr(mf, "with_x2c", None)
    if helper:
        settings = {"approx": "1e", "xuncontract": True, "basis": None}
        for name, value in settings.items():
            given = getattr(helper, name, value)
            if (given.lower() if isinstance(given, str) else given) != value:
                raise _beyond(f"with_x2c.{name} = {given!r}", f"expected {value!r}")
        if type(helper).__name__ != "SpinFreeX2CHelper":
            raise _beyond("with_x2c", f"{type(helper).__name__}, not spin-free one-electron X2C")
    charges = getattr(mf, "mm_mol", None)
    if charges is not None and (charges.charge_model != "point" or not charges.natm):
        raise _beyond("mm_mol", "charges with radii, or none")
    if (mole._atm[:, gto.NUC_MOD_OF] == gto.NUC_GAUSS).any():
        raise _beyond("mol.nucmod", "nuclei of finite size")
    if mole._env[gto.PTR_RANGE_OMEGA]:
        raise _beyond(
            f"mol.omega = {mole._env[gto.PTR_RANGE_OMEGA]:g}", "a range-separated Coulomb operator"
        )
    if getattr(mole, "_pseudo", None):
        raise _beyond("mol.pseudo", "pseudopotentials that are not effective core potentials")
    if np.iscomplexobj(mf.mo_coeff):
        raise _beyond("mo_coeff", "complex orbitals")


def _require_whole_occupations(mf: Any, kind: str) -> None:
    """Raise for fractional occupations, for single ones of a closed shell, and for electron numbers
    that differ from those of the molecule."""
    occupations = np.asarray(mf.mo_occ)
    whole = 2 if kind == "rhf" else 1
    others = occupations[~np.isin(occupations, (0, whole))]
    if others.size:
        worst = float(others[np.abs(others - np.round(others)).argmax()])
        raise _beyond("mo_occ", f"occupations such as {worst:.4f} instead of 0 and {whole}")
    electrons = tuple(int(n) for n in np.atleast_2d(occupations).sum(axis=1))
    expected = tuple(int(n) for n in mf.mol.nelec)
    if kind == "rhf":
        expected = (sum(expected),)
    if electrons != expected:
        raise _beyond(
            "mo_occ", f"{electrons} electrons, where charge and spin of mf.mol say {expected}"
        )


def _point_charges(mf: Any) -> Any:
    """Point charges of `qmmm.mm_charge`, (n, 4) bohr and e, or None."""
    charges = getattr(mf, "mm_mol", None)
    if charges is None:
        return None
    return np.column_stack([charges.atom_coords(unit="Bohr"), charges.atom_charges()])


def _differences(mf: Any, plain: Any, core: Any, overlap: Any) -> str:
    """Pieces of a mean field that differ from the recorded one, by the names of PySCF's methods."""
    own = {
        name
        for name, value in vars(mf).items()
        if callable(value) and callable(getattr(type(mf), name, None))
    }
    pieces = {
        "get_ovlp": float(np.abs(mf.get_ovlp() - overlap).max()),
        "get_hcore": float(np.abs(mf.get_hcore() - core).max()),
        "energy_nuc": abs(float(mf.energy_nuc()) - float(plain.energy_nuc())),
    }
    found = [
        f"{name} differs by up to {gap:.1e} Eh" for name, gap in pieces.items() if gap > SAME_MATRIX
    ]
    if not found:
        found = [
            "its Coulomb and exchange matrices differ (get_veff, get_jk, _eri or with_df), or "
            "energy_tot adds to it"
        ]
    if own:
        found.append(f"replaced on the object: {', '.join(sorted(own))}")
    return "; ".join(found)


def _basis(role: str, mole: Any, name: Any, ecp: dict[str, Any]) -> BasisSet:
    """The explicit numbers of a basis in a PySCF molecule, per element."""
    elements: dict[str, ElementBasis] = {}
    label = name if isinstance(name, str) else "custom"
    for atom in range(mole.natm):
        key = mole.atom_symbol(atom)
        symbol = mole.atom_pure_symbol(atom).removeprefix("GHOST-").removeprefix("X-")
        data = mole._basis.get(key, mole._basis.get(mole.atom_pure_symbol(atom)))
        core = ecp.get(key, ecp.get(symbol))
        found = ElementBasis(
            symbol=symbol,
            name=label,
            source="PySCF mean field",
            shells=_tuples(data),
            ecp=None if core is None else _tuples(core),
            ecp_source=None if core is None else "PySCF mean field",
        )
        first = elements.setdefault(symbol, found)
        if first.ecp_electrons != found.ecp_electrons:
            raise InputError(
                f"atoms of {symbol} have core potentials for different numbers of electrons in the "
                "mean field, which is not supported"
            )
        if (first.shells, first.ecp) != (found.shells, found.ecp):
            elements[f"{symbol}{atom + 1}"] = found
    return BasisSet(role, label, elements)


def _tuples(value: Any) -> Any:
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    return value
