"""The fitting errors of one run: measured in its molecule, or estimated from those of its atoms.

    fitting of the SCF     x (sum_A |e_A| + TIMES E) + EACH n       E(SCF)
                           x (ORBITALS sum_A |e_A| + TIMES E) + EACH n         E(corr), through the orbitals
    fitting of MP2         sum_A |e_A| + TIMES E + EACH n + OPEN_SHELL m + metal

    e_A                    error for one atom, in Hartree-Fock or MP2
    E                      the run's own estimate of the error of E(SCF) between atoms
                           (`dfmp2.scf.interatomic_fitting`); without one BONDED for each real atom
                           heavier than hydrogen that is bonded to another such atom
    TIMES, EACH            BETWEEN; n: real atoms
    x                      max(COULOMB, |c_SR|), c_SR the exact exchange of the functional at short
                           range; 1 in Hartree-Fock
    m                      metals with an open d or f shell, 0 in a singlet
    metal                  only if all atoms are METALS: PAIR for each pair of electrons that their
                           alkali metals keep; and METAL for each atom of a molecule, unless all are
                           alkali metals

Fitted exchange raises E(SCF) and fitted Coulomb repulsion lowers it: with a fraction c of exact
exchange the error of E(SCF) is at most the larger of both parts. That of long-range exchange alone
is negligible (HCl in def2-SVP: Hartree-Fock +1.7e-5 Eh, PBE -4.0e-5, CAM-B3LYP with c_SR = 0.19
-2.9e-5, wB97X with 0.16 -3.1e-5). The Coulomb part does not follow from e_A and E, which are
mostly exchange: COULOMB, and EACH with a functional, were chosen to cover it in molecules
(docs/project/validation/error-budget.md).

In a single atom e_J, e_K and e_2, the errors of its Coulomb and exchange energy and what they gain
through the orbitals, are measured (`dfmp2.scf.one_atom_fitting`). Its share in E(SCF) is
|e_J + c_SR e_K| + RELAXED e_2, or RELAXED_FIRST_ORDER (|e_J| + |c_SR e_K|) instead of the last term if
the orbitals minimise another energy.

The share of the MP2 set is METHOD times larger in a method without pairs: there its errors add to
those of the SCF, which they partly cancel in MP2.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from dfmp2.molecule.elements import bonds, fills_inner_shell
from dfmp2.mp2.error_budget import BOUNDED, ESTIMATED, MEASURED, UNKNOWN, Share
from dfmp2.units import ANGSTROM_PER_BOHR, counted_text

if TYPE_CHECKING:
    from dfmp2.arrays import Array
    from dfmp2.molecule.basis import BasisSet
    from dfmp2.molecule.molecule import Molecule
    from dfmp2.mp2.result import MP2Result

# Part of the errors of the SCF's set for atoms that enters E(corr) through the orbitals
ORBITALS = 0.01
BETWEEN = {  # TIMES, dimensionless, and EACH, Eh
    "scf": (3.0, 1e-5),
    "functional": (3.0, 3e-5),  # the SCF's set in E(SCF) with a functional
    "orbitals": (1.0, 1e-5),
    "mp2": (0.7, 3e-5),
}
BONDED = 1e-4  # Eh
COULOMB = 0.5  # least part of e_A and E of Hartree-Fock that is stated with a functional
RELAXED = 2.0  # times e_2
# Of the errors of a single atom if its orbitals minimise another energy: 0.23 in Li-
RELAXED_FIRST_ORDER = 0.25
LONG_RANGE = 5e-8  # Eh, of exchange at long range alone, which is not measured: 2e-8 in In
OPEN_SHELL = 1e-4  # Eh, of the MP2 set: its error was measured on atoms with evenly filled shells
# Eh, of the MP2 set for a pair of valence electrons of these atoms: a single one has none
PAIR = {"Li": 2e-4, "Na": 5e-4, "K": 5e-4, "Rb": 5e-4, "Cs": 1.3e-3}
METALS = (*PAIR, "Be", "Mg", "Ca", "Sr", "Ba", "Al")
METAL = 4e-5  # Eh, of the MP2 set for each atom of a molecule of METALS, not all of them alkali
METHOD = {"laplace": 1.6, "rpa": 2.2}  # factor on the error of the MP2 set, methods without pairs
UNMEASURED = "the set was not measured on these atoms"


def fitting_shares(result: MP2Result) -> dict[str, tuple[Share | None, Share | None]]:
    """Shares of both fitting sets: from four-centre integrals of the molecule where they were
    computed, else from atoms."""
    certificate = result.fitting_certificate
    conventional = result.scf_fitting is None
    orbitals = None
    if conventional:
        scf = Share(0.0, BOUNDED, "the SCF has four-centre integrals")
    elif certificate is not None and certificate.scf_error is not None:
        scf = _measured(certificate.scf_error, certificate.scf_uncertainty or 0.0)
    elif result.reference.one_atom_fitting_errors is not None:
        scf = _of_one_atom(result, result.reference.one_atom_fitting_errors)
    else:
        scf = _of_atoms(result, "scf", result.scf_fitting)
    if certificate is not None and certificate.correlation_error is not None:
        pairs = counted_text(certificate.pairs, "pair")
        correlation = _measured(
            certificate.correlation_error,
            certificate.correlation_uncertainty or 0.0,
            f"{certificate.sampled_pairs} of {pairs}, ",
        )
        if not conventional:
            how = f"{correlation.how}; includes the effect of the fitted orbitals"
            correlation = replace(correlation, how=how)
    else:
        correlation = _of_atoms(result, "mp2", result.mp2_fitting)
        if not conventional:
            orbitals = _of_orbitals(result, result.scf_fitting)
    return {"scf_fitting": (scf, orbitals), "mp2_fitting": (None, correlation)}


def _measured(error: float, uncertainty: float, sample: str = "") -> Share:
    """Share of a fitting error that was measured with four-centre integrals, Eh."""
    how = f"four-centre integrals: {sample}{error:+.1e} Eh within {uncertainty:.1e} Eh"
    return Share(abs(error) + uncertainty, MEASURED, how, error=error)


def _of_one_atom(result: MP2Result, errors: Array) -> Share:
    """Share of the SCF's set in E(SCF) of a single atom, from its measured e_J, e_K and e_2, Eh."""
    xc = energy_functional(result)
    fraction, long_range = 1.0, 0.0
    if xc is not None:
        from dfmp2.scf.kohn_sham import exact_exchange

        exact = exact_exchange(xc)
        fraction = exact.short_range
        if exact.separated:
            long_range = LONG_RANGE
    coulomb, exchange, gain = errors.tolist()
    exchange *= fraction
    uncertainty = long_range + RELAXED * gain
    if xc != result.reference.xc:
        uncertainty = long_range + RELAXED_FIRST_ORDER * (abs(coulomb) + abs(exchange))
    return _measured(coulomb + exchange, uncertainty, "J and K of the atom, ")


def one_atom_error(result: MP2Result) -> float | None:
    """The measured fitting error of E(SCF) of a single atom or ion, Eh; None for a molecule, if it
    was not measured, and for a conventional SCF."""
    errors = result.reference.one_atom_fitting_errors
    if errors is None or result.scf_fitting is None:
        return None
    return _of_one_atom(result, errors).error


def free_atom_error(result: MP2Result) -> float:
    """The part of the measured fitting error of E(SCF) of an atom or ion that does not cancel in a
    difference from a molecule, Eh; 0 for a molecule.

    That of hydrogen is the error of valence electrons alone. Other atoms keep the error of their
    core; what is above the estimate for the atom, as in Li-, is that of diffuse electrons.
    """
    error = one_atom_error(result)
    if error is None:
        return 0.0
    if result.molecule.real_symbols == ("H",):
        return error
    estimate = _of_atoms(result, "scf", result.scf_fitting).value or 0.0
    return math.copysign(max(abs(error) - estimate, 0.0), error)


def _of_atoms(result: MP2Result, role: str, basis: BasisSet | None) -> Share:
    """Share of a set in the energy that it is used for."""
    atoms = _atoms(result.molecule, basis)
    if atoms is None:
        return Share(None, UNKNOWN, UNMEASURED)
    if role == "scf":
        xc = energy_functional(result)
        if xc is not None:
            role = "functional"
        exchange, functional = _exchange(xc)
        between, how = _between(result, role, exchange)
        how = f"{functional}{exchange * atoms:.1e} Eh of the atoms one by one, and {how}"
        return Share(exchange * atoms + between, ESTIMATED, how)
    between, how = _between(result, role)
    how = f"{atoms:.1e} Eh of the atoms one by one, and {how}"
    metals = open_shell_metals(result.molecule)
    if metals and result.molecule.multiplicity > 1:
        between += OPEN_SHELL * metals
        how = f"{how}, and {OPEN_SHELL:g} Eh for each open shell of a metal"
    metal = metal_error(result.molecule)
    if metal:
        between += metal
        how = f"{how}, and {metal:.1e} Eh for valence electrons of metal atoms alone"
    factor = method_factor(result)
    if factor != 1.0:
        how = f"{factor:g} times what it is in MP2: {how}"
    return Share(factor * (atoms + between), ESTIMATED, how)


def open_shell_metals(molecule: Molecule) -> int:
    """Number of real atoms whose d or f shell is being filled."""
    return sum(map(fills_inner_shell, molecule.real_symbols))


def metal_error(molecule: Molecule) -> float:
    """Error of the MP2 set for valence electrons of metal atoms alone, which are more diffuse than
    in the atoms it was made for, Eh; 0 with other atoms."""
    symbols = molecule.real_symbols
    if not set(symbols) <= set(METALS):
        return 0.0
    error = 0.0
    alkali = [PAIR[symbol] for symbol in symbols if symbol in PAIR]
    if alkali:
        unpaired = molecule.multiplicity - 1
        pairs = max(0, len(alkali) - molecule.charge - unpaired) // 2
        error = pairs * math.fsum(alkali) / len(alkali)
    only_alkali = len(alkali) == len(symbols)
    if len(symbols) > 1 and not only_alkali:
        error += METAL * len(symbols)
    return error


def method_factor(result: MP2Result) -> float:
    """Error of the MP2 set in the correlation energy of a method, divided by its error in MP2."""
    return METHOD.get(result.options.correlation.kind, 1.0)


def _of_orbitals(result: MP2Result, basis: BasisSet | None) -> Share:
    """Share of the SCF's set in E(corr), through the orbitals."""
    atoms = _atoms(result.molecule, basis)
    if atoms is None:
        return Share(None, UNKNOWN, UNMEASURED)
    exchange, functional = _exchange(result.reference.xc)
    between, how = _between(result, "orbitals", exchange)
    how = f"{functional}through the orbitals: {100 * ORBITALS:g} % of the atoms, and {how}"
    return Share(exchange * ORBITALS * atoms + between, ESTIMATED, how)


def energy_functional(result: MP2Result) -> str | None:
    """The functional of the energy that E(corr) is added to, None for Hartree-Fock and for the
    exact exchange of Kohn-Sham orbitals."""
    if not result.options.correlation.double_hybrid:
        return None
    if result.functional_energy is not None:
        return result.reference.energy_xc
    return result.reference.xc


def _exchange(xc: str | None) -> tuple[float, str]:
    """x of the equations for a functional, None for Hartree-Fock, and how it is known."""
    if xc is None:
        return 1.0, ""
    from dfmp2.scf.kohn_sham import exact_exchange

    factor = max(COULOMB, abs(exact_exchange(xc).short_range))
    return factor, f"{factor:.2g} times that of Hartree-Fock for {xc}: "


def _atoms(molecule: Molecule, basis: BasisSet | None) -> float | None:
    """Sum of the magnitudes of a set's errors for the single atoms, Eh; None if one was not
    measured."""
    if basis is None:
        return None
    keys = basis.real_keys(molecule)
    if basis.error_of(keys) is None:
        return None
    return math.fsum(abs(basis.errors[key]) for key in keys)


def _between(result: MP2Result, role: str, exchange: float = 1.0) -> tuple[float, str]:
    """Possible fitting error between atoms, Eh, and how it is known; with x of `_exchange`."""
    times, each = BETWEEN[role]
    times *= exchange
    estimate = result.reference.interatomic_fitting_error
    count = len(result.molecule.real_symbols)
    if estimate is None:
        bonded = bonded_atoms(result.molecule)
        value = times * BONDED * bonded + each * count
        return (
            value,
            f"{value:.1e} Eh allowed for what lies between them, {bonded} of {count} bonded",
        )
    value = times * estimate + each * count
    return (
        value,
        f"{value:.1e} Eh between them: {times:g} times what the SCF estimates, and {each:g} Eh "
        "each",
    )


def bonded_atoms(molecule: Molecule) -> int:
    """Number of real atoms heavier than hydrogen that are bonded to another such atom."""
    pairs = bonds(molecule.symbols, molecule.coordinates * ANGSTROM_PER_BOHR, molecule.ghost)
    heavy = [
        pair for pair in pairs if "H" not in (molecule.symbols[pair[0]], molecule.symbols[pair[1]])
    ]
    return len({atom for pair in heavy for atom in pair})
