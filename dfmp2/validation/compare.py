"""Recompute a stored result from scratch: with the SCF and method of another program, or without
density fitting.

PySCF has modules for RHF- and UHF-based MP2, whose opposite-spin energy also serves for the Laplace
transform. Everything else (kappa-MP2, dRPA, ROHF) is summed explicitly over PySCF's integrals
(`dfmp2.validation.formulas`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dfmp2.errors import ComparisonFailed, ConvergenceError, InputError, Option, ResourceError
from dfmp2.host import resources, threads
from dfmp2.molecule.mole import build_auxiliary, build_mole, fitting_data
from dfmp2.molecule.pyscf_shield import pyscf_version, shielded
from dfmp2.mp2 import check
from dfmp2.mp2.result import MP2Result, NativeEnergies
from dfmp2.options.methods import MP2
from dfmp2.planning.sizes import FLOAT64
from dfmp2.progress import Listener
from dfmp2.scf import hamiltonian, hartree_fock
from dfmp2.scf.hamiltonian import Environment
from dfmp2.scf.integrals import ScfIntegrals
from dfmp2.scf.reference import Reference, common_orbitals
from dfmp2.scf.solvent import in_solvent
from dfmp2.units import format_bytes
from dfmp2.validation import formulas
from dfmp2.validation.psi4 import run_psi4

TOLERANCE = 1e-6  # Eh; converged SCFs and MP2 implementations agree much better
# Eh per atom; sound sets show up to 7e-4 in a component (docs/explanation/checks.md)
FITTING_TOLERANCE = 1e-3
LOADED = 10 * 10**6  # bytes of PySCF's MP2 modules and work space, not counted otherwise
# Eh and cycles of the other SCF, regardless of the settings of the run: at 1e-10 Eh E(corr) is
# still off by up to 4e-7 Eh (NO), by the same amount as that of the run
CONVERGED, LEAST_CYCLES = (1e-12, 100)
LOOSER = 1e-10  # Eh, where that is out of reach: a continuum's spheres break the symmetry of BrO
COMMON = 0.5  # smallest cosine between the occupied spaces that counts as the same SCF solution


@dataclass(frozen=True, slots=True)
class Compared:
    """An energy of a result and that of another program, Eh."""

    name: str
    stored: float
    theirs: float

    @property
    def difference(self) -> float:
        """Ours - theirs, Eh."""
        return self.stored - self.theirs


@dataclass(frozen=True, slots=True)
class Comparison:
    """The energies of a result and those of another program.

    Attributes
    ----------
    program : str
        The program that computed the others.
    energies : tuple of Compared
        E(SCF) first and the correlation energy of the method last.
    allowed : float
        Largest difference accepted, Eh.
    """

    program: str
    energies: tuple[Compared, ...]
    allowed: float

    def named(self, name: str) -> Compared:
        """The energy with this name, as used in JSON.

        Raises
        ------
        KeyError : it was not compared
        """
        return {energy.name: energy for energy in self.energies}[name]

    @property
    def scf_difference(self) -> float:
        """E(SCF), ours - theirs, Eh."""
        return self.energies[0].difference

    @property
    def correlation_difference(self) -> float:
        """E(corr), ours - theirs, Eh."""
        return self.energies[-1].difference

    @property
    def largest_difference(self) -> float:
        """Largest absolute difference, Eh; NaN if any is NaN."""
        return float(np.max(np.abs([energy.difference for energy in self.energies])))

    @property
    def passed(self) -> bool:
        """Whether all energies agree within the allowed difference."""
        return self.largest_difference <= self.allowed


def recompute(
    result: MP2Result,
    tolerance: float,
    count: int,
    listener: Listener,
    *,
    program: str = "pyscf",
    timeout: float | None = None,
) -> Comparison:
    """Compare a stored result with values of another program.

    Parameters
    ----------
    result : has the geometry, the bases as numbers and the options to be repeated
    tolerance : largest difference accepted, Eh; the stated error of a quadrature is added
    count : threads
    program : "pyscf" or "psi4"
    timeout : time limit for Psi4, s, None for no limit

    Raises
    ------
    InputError : Psi4 does not have the method
    ConvergenceError : PySCF's SCF does not converge now
    BackendError : Psi4 is missing or failed
    ResourceError : the method does not fit into memory
    """
    allowed = tolerance
    if result.quadrature is not None:
        allowed += result.quadrature.error
    if program == "psi4":
        method = result.options.correlation
        if result.options.solvent is not None:
            raise InputError(
                Option("with", "psi4"),
                " has no solvent as PySCF's: leave it out to compare with PySCF",
            )
        if method.regularised or method.kind in ("rpa", "none"):
            raise InputError(
                Option("with", "psi4"),
                f" computes MP2, with which {result.method} cannot be compared: leave it out to "
                "compare with PySCF",
            )
        listener.stage(f"{result.reference.name.upper()} and DF-MP2 with Psi4")
        return _of_mp2(result, run_psi4(result, count, timeout=timeout), allowed)
    result.require_kept("a comparison")
    mole = build_mole(result.molecule, result.orbital_basis, resources.usable_memory())
    with threads.limited(count):
        jk = None
        if result.scf_fitting is not None:
            jk = build_auxiliary(mole, result.molecule, result.scf_fitting)
        mf, reference = _same_solution(mole, result, jk, listener, count)
        return _with_pyscf(result, mole, mf, reference, allowed, listener, exact=False)


def recompute_exact(
    result: MP2Result, tolerance: float, count: int, listener: Listener
) -> Comparison:
    """Compare a stored result with the same method without density fitting, which gives the fitting
    errors of this molecule.

    This uses a conventional SCF from the stored orbitals, and four-centre integrals, in PySCF, with
    everything in memory.

    Parameters
    ----------
    tolerance : largest difference accepted, Eh per atom (not counting ghosts)
    count : threads

    Raises
    ------
    ResourceError : the four-centre integrals do not fit into memory
    ConvergenceError : the conventional SCF does not converge
    ComparisonFailed : it converges to another SCF solution
    """
    budget = resources.usable_memory()
    result.require_kept("a comparison")
    _require_memory(result, budget)
    # Planned above; PySCF's own estimates of what fits differ.
    mole = build_mole(result.molecule, result.orbital_basis, 2 * budget)
    stored = result.reference
    with threads.limited(count):
        listener.stage(
            f"conventional {stored.title} with PySCF, {result.sizes.nao} functions, from the "
            "stored orbitals"
        )
        mf, reference = _scf(mole, result, None, listener, count, stored=True)
        with shielded():
            common = common_orbitals(stored, reference, mf.get_ovlp())
        if common < COMMON:
            raise ComparisonFailed(
                (
                    "the conventional SCF leaves the stored orbitals for another solution, "
                    f"{_lower(stored.scf_total_energy - reference.scf_total_energy)} (smallest "
                    f"cosine between the occupied spaces {common:.2f}), so the difference would be "
                    "no fitting error: look at the stability of the stored one ("
                ),
                Option("stability", "full"),
                ")",
            )
        atoms = max(1, result.molecule.ghost.count(False))
        allowed = tolerance * atoms
        return _with_pyscf(result, mole, mf, reference, allowed, listener, exact=True)


def _is_written_out(result: MP2Result) -> bool:
    """Whether PySCF has no module for the energy, so that `formulas` computes it."""
    method = result.options.correlation
    return method.regularised or method.kind == "rpa" or result.reference.kind == "rohf"


def _with_pyscf(
    result: MP2Result,
    mole: Any,
    mf: Any,
    reference: Reference,
    allowed: float,
    listener: Listener,
    *,
    exact: bool,
) -> Comparison:
    """The energies of a result and those with PySCF's orbitals.

    Parameters
    ----------
    mole : PySCF Mole
    mf : PySCF mean field
        Converged.
    reference : Reference
        The record of `mf`.
    exact : bool
        Whether to take four-centre integrals instead of the MP2 fitting set.
    """
    method = result.options.correlation
    if method.kind == "none":
        energy = Compared("scf_total_energy", result.scf_total_energy, reference.scf_total_energy)
        return Comparison(f"PySCF {pyscf_version()}", (energy,), allowed)
    listener.stage(f"{'four-centre ' if exact else ''}{method.title} with PySCF")
    frozen = result.sizes.frozen_core, result.sizes.frozen_virtual
    if not _is_written_out(result):
        if exact:
            theirs = check.exact_energies(mf, reference, *frozen)
        else:
            fitting = fitting_data(result.molecule, result.mp2_fitting)
            theirs = check.native_energies(mole, reference, fitting, *frozen)
        return _of_mp2(result, theirs, allowed, reference.functional_energy)
    spins = formulas.correlated_orbitals(mf, result.reference.kind, *frozen)
    if exact:
        rows = formulas.four_center_integrals(mf, spins)
    else:
        _require_written_out(result, plasmons=method.kind == "rpa")
        fitting = fitting_data(result.molecule, result.mp2_fitting)
        rows = formulas.fitted_rows(mole, fitting, spins)
    return _written_out(result, mole, mf, reference, allowed, spins, rows)


def _written_out(
    result: MP2Result,
    mole: Any,
    mf: Any,
    reference: Reference,
    allowed: float,
    spins: list[formulas.ReferenceOrbitals],
    rows: formulas.Rows,
) -> Comparison:
    """The energies of a result and explicit sums over PySCF's integrals.

    Parameters
    ----------
    mole, mf, reference
        As in `_with_pyscf`.
    spins : list of ReferenceOrbitals
        Correlated orbitals of each spin.
    rows : callable
        Function that returns their integrals.
    """
    method = result.options.correlation
    program = f"PySCF {pyscf_version()}, sums written out"
    energies = [
        Compared("scf_total_energy", result.scf_total_energy, reference.scf_total_energy),
    ]
    if result.reference.xc is not None:
        theirs = _exact_exchange(mole, mf, result)
        energies.append(Compared("hf_total_energy", result.hf_total_energy, theirs))
    if method.kind == "rpa":
        energy = formulas.plasmon_energy(spins, rows)
        energies.append(Compared("rpa_correlation_energy", result.correlation_energy, energy))
        return Comparison(program, tuple(energies), allowed)
    singles = 0.0
    if result.reference.kind == "rohf":
        singles = formulas.singles_energy(spins)
    same, opposite = formulas.spin_components(spins, rows, result.options.regulariser)
    native = NativeEnergies(
        program=program,
        scf_total_energy=reference.scf_total_energy,
        same_spin=same,
        opposite_spin=opposite,
        singles=singles,
    )
    return _of_mp2(result, native, allowed)


def _of_mp2(
    result: MP2Result, theirs: NativeEnergies, allowed: float, functional: float | None = None
) -> Comparison:
    """The components of a result, from plain or regularised MP2, and those of another program.

    Parameters
    ----------
    functional : float or None
        Energy, from the other program, of a functional other than that of the orbitals, Eh.
    """
    method = result.options.correlation
    same, opposite = result.components
    prefix = "mp2_" if not method.regularised else ""
    rows = [Compared("scf_total_energy", result.scf_total_energy, theirs.scf_total_energy)]
    if functional is not None and result.functional_energy is not None:
        rows.append(Compared("functional_energy", result.functional_energy, functional))
    if method.kind == "pairs":
        rows.append(Compared(f"{prefix}same_spin_correlation_energy", same, theirs.same_spin))
    rows.append(
        Compared(f"{prefix}opposite_spin_correlation_energy", opposite, theirs.opposite_spin)
    )
    singles = result.mp2_singles_energy
    if result.reference.kind == "rohf":
        if method.plain:
            doubles = theirs.same_spin + theirs.opposite_spin
            rows.append(Compared("mp2_doubles_energy", same + opposite, doubles))
        rows.append(Compared("mp2_singles_energy", singles, theirs.singles))
    if method.plain:
        rows.append(
            Compared(
                "mp2_correlation_energy",
                same + opposite + singles,
                theirs.same_spin + theirs.opposite_spin + theirs.singles,
            )
        )
    if method.name != MP2.name:
        scaled = method.apply(theirs.opposite_spin, theirs.same_spin) + theirs.singles
        rows.append(Compared("correlation_energy", result.correlation_energy, scaled))
    return Comparison(theirs.program, tuple(rows), allowed)


def _exact_exchange(mole: Any, mf: Any, result: MP2Result) -> float:
    """Hartree-Fock energy of a Kohn-Sham determinant by PySCF's Hartree-Fock, Eh."""
    with shielded():
        hartree_fock_energy = hamiltonian.mean_field(
            mole,
            result.reference.kind,
            result.options.relativity,
            result.molecule.point_charges,
            native=True,
        )
        if result.scf_fitting is not None:
            hartree_fock_energy = hartree_fock_energy.density_fit(
                auxbasis=fitting_data(result.molecule, result.scf_fitting)
            )
        hartree_fock_energy = in_solvent(hartree_fock_energy, result.options, native=True)
        hartree_fock_energy.verbose = 0
        return float(hartree_fock_energy.energy_tot(mf.make_rdm1()))


def _same_solution(
    mole: Any, result: MP2Result, jk: Any, listener: Listener, count: int
) -> tuple[Any, Reference]:
    """PySCF's SCF from atomic densities or, if that does not find the stored solution, from the
    stored orbitals."""
    kind = result.reference.title
    listener.stage(f"{kind} with PySCF")
    fresh = None
    try:
        fresh = _scf(mole, result, jk, listener, count, stored=False)
        above = result.scf_total_energy - fresh[1].scf_total_energy
        if abs(above) <= TOLERANCE:
            return fresh
        outcome = f"ends in another solution, {_lower(above)}"
        resources.return_memory()
    except ConvergenceError:
        outcome = "does not converge"
    listener.stage(f"{kind} with PySCF from the stored orbitals")
    again = _scf(mole, result, jk, listener, count, stored=True)
    above = result.scf_total_energy - again[1].scf_total_energy
    if fresh is not None and abs(above) > TOLERANCE:
        return fresh  # neither has the stored energy
    listener.warning(
        f"from atomic densities PySCF's SCF {outcome}: the comparison is with the solution that "
        "the stored orbitals lead to"
    )
    return again


def _scf(
    mole: Any, result: MP2Result, jk: Any, listener: Listener, count: int, *, stored: bool
) -> tuple[Any, Reference]:
    """PySCF's SCF of a result, from atomic densities or from the stored orbitals.

    It is converged further than the run, whose path it would otherwise repeat.
    """
    found, options = result.reference, result.options
    options = replace(
        options,
        scf_conv_tol=min(options.scf_conv_tol, CONVERGED),
        scf_max_cycles=max(options.scf_max_cycles, LEAST_CYCLES),
        grid=found.grid_name,
    )
    start = None
    if stored:
        start = found.as_start("the stored orbitals")
    integrals = ScfIntegrals(jk, "pyscf", threads=count)
    environment = Environment(charges=result.molecule.point_charges)
    try:
        return hartree_fock.run_scf(
            mole, found.kind, options, integrals, start, listener, environment
        )
    except ConvergenceError:
        listener.warning(
            f"PySCF's SCF does not converge to {CONVERGED:g} Eh: the comparison is with one "
            f"converged to {LOOSER:g} Eh, whose E(corr) is less certain"
        )
    options = replace(options, scf_conv_tol=LOOSER)
    return hartree_fock.run_scf(mole, found.kind, options, integrals, start, listener, environment)


def _require_memory(result: MP2Result, budget: int) -> None:
    program = resources.resident_memory() + LOADED
    nao, nspin = result.sizes.nao, result.reference.nspin

    def needed(functions: int) -> int:
        size = program + check.required_bytes(result.sizes, nspin, functions)
        if _is_written_out(result):  # (ia|jb) of all spins twice, and the plasmon matrix
            sizes = zip(result.sizes.nocc, result.sizes.nvir, strict=True)
            excitations = [n * max(0, v + functions - nao) for n, v in list(sizes)[:nspin]]
            size += 2 * FLOAT64 * sum(excitations) ** 2
        return size

    if needed(nao) > budget:
        fitting = next((n for n in range(nao, 0, -1) if needed(n) <= budget), 0)
        raise ResourceError(
            Option("exact", True),
            (
                f" holds the four-centre integrals of {nao} basis functions in memory: "
                f"{format_bytes(needed(nao))} are required and {format_bytes(budget)} may be "
                f"used. {fitting} functions would fit: run a smaller "
            ),
            Option("basis"),
            " or a part of the molecule, or use a larger machine",
        )


def _require_written_out(result: MP2Result, *, plasmons: bool) -> None:
    """Raise if the integrals or the plasmon matrix of a method do not fit into memory.

    Raises
    ------
    ResourceError : names the required and available sizes
    """
    spins = list(zip(result.sizes.nocc, result.sizes.nvir, strict=True))[: result.reference.nspin]
    needed = resources.resident_memory() + LOADED
    needed += formulas.fitted_bytes(spins, result.sizes.nao, result.sizes.naux, plasmons=plasmons)
    budget = resources.usable_memory()
    if needed > budget:
        size = sum(nocc * nvir for nocc, nvir in spins)
        if plasmons:
            what = f"the plasmon formula diagonalises a matrix of {size} excitations in memory"
        else:
            what = f"the sums over {size} excitations hold their integrals in memory"
        raise ResourceError(
            f"{what}: {format_bytes(needed)} are required and {format_bytes(budget)} may be used. "
            "Compare a result of a smaller basis or of a part of the molecule, or use a larger "
            "machine"
        )


def _lower(above: float) -> str:
    return f"{abs(above):.1e} Eh {'lower' if above > 0 else 'higher'}"
