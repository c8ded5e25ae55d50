"""Recompute a stored result from scratch: with another program's SCF and DF-MP2, or without any fitting set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dfmp2.errors import ComparisonFailed, ConvergenceError, InputError, ResourceError
from dfmp2.host import resources, threads
from dfmp2.messages import Option
from dfmp2.molecule.mole import build_auxiliary, build_mole, fitting_data
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2 import check
from dfmp2.mp2.check import compare
from dfmp2.mp2.result import Check, MP2Result, NativeEnergies
from dfmp2.progress import Listener
from dfmp2.scf import hartree_fock
from dfmp2.scf.reference import Reference, StartOrbitals, common_orbitals
from dfmp2.units import format_bytes
from dfmp2.validation.psi4 import run_psi4

TOLERANCE = 1e-6  # Eh; two converged SCFs and two MP2 implementations agree to much less
FITTING_TOLERANCE = (
    1e-3  # Eh per atom; sound sets show up to 5.5e-4 in a component (docs/explanation/checks.md)
)
LOADED = 10 * 10**6  # bytes of PySCF's MP2 modules and of work space, beside what is counted
CONVERGED, LEAST_CYCLES = (
    1e-10,
    100,
)  # Eh and cycles of the other SCF, whatever the run was content with
COMMON = 0.5  # smallest cosine between the occupied spaces of what still counts as one SCF solution


def recompute(
    result: MP2Result,
    tolerance: float,
    count: int,
    listener: Listener,
    *,
    program: str = "pyscf",
    timeout: float | None = None,
) -> Check:
    """Differences between a stored result and another program's values, Eh.

    Parameters
    ----------
    result : with the geometry, the bases as numbers and the options that the reference repeats
    tolerance : largest difference that passes, Eh
    count : threads
    program : "pyscf" or "psi4"
    timeout : seconds Psi4 may take, None for no limit

    Raises
    ------
    ConvergenceError : PySCF's SCF does not converge now
    BackendError : there is no Psi4, or it failed
    """
    if not result.options.correlation.plain:
        raise InputError(
            Option("with", program),
            f" computes plain MP2, with which {result.method} cannot be compared",
        )
    if program == "psi4":
        listener.stage(f"{result.reference.kind.upper()} and DF-MP2 with Psi4")
        theirs = run_psi4(result, count, timeout=timeout)
    else:
        theirs = _with_pyscf(result, count, listener)
    return compare(result.reference, result.pairs, theirs, tolerance)


def recompute_exact(result: MP2Result, tolerance: float, count: int, listener: Listener) -> Check:
    """Differences between a stored result and MP2 without fitting sets: the fitting errors of this molecule, Eh.

    A conventional SCF from the stored orbitals and a four-centre MP2 in PySCF, with everything in memory.

    Parameters
    ----------
    tolerance : largest difference that passes, Eh per atom (ghosts are none)
    count : threads

    Raises
    ------
    ResourceError : the four-centre integrals do not fit into memory
    ConvergenceError : the conventional SCF does not converge
    ComparisonFailed : it ends in another SCF solution
    """
    if not result.options.correlation.plain or result.reference.kind == "rohf":
        raise InputError(
            Option("exact", True),
            f" has plain MP2 of RHF and UHF only, not {result.method} of {result.reference.kind}",
        )
    budget = resources.usable_memory()
    _require_memory(result, budget)
    # Planned above; PySCF's own estimates of what fits are other ones.
    mole = build_mole(result.molecule, result.orbital_basis, 2 * budget)
    kind, stored = result.reference.kind, result.reference
    with threads.limited(count):
        listener.stage(
            f"conventional {kind.upper()} with PySCF, {result.sizes.nao} functions, from the stored orbitals"
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
        listener.stage("four-centre MP2 with PySCF")
        energies = check.exact_energies(
            mf, reference, result.sizes.frozen_core, result.sizes.frozen_virtual
        )
    atoms = max(1, result.molecule.ghost.count(False))
    return compare(stored, result.pairs, energies, tolerance * atoms)


def _with_pyscf(result: MP2Result, count: int, listener: Listener) -> NativeEnergies:
    mole = build_mole(result.molecule, result.orbital_basis, resources.usable_memory())
    with threads.limited(count):
        if result.scf_fitting is None:
            jk = None
        else:
            jk = build_auxiliary(mole, result.molecule, result.scf_fitting)
        reference = _same_solution(mole, result, jk, listener, count)
        listener.stage("DF-MP2 with PySCF")
        data = fitting_data(result.molecule, result.mp2_fitting)
        return check.native_energies(
            mole, reference, data, result.sizes.frozen_core, result.sizes.frozen_virtual
        )


def _same_solution(
    mole: Any, result: MP2Result, jk: Any, listener: Listener, count: int
) -> Reference:
    """PySCF's SCF from atomic densities; where that does not find the stored solution, from the stored orbitals."""
    kind = result.reference.kind.upper()
    listener.stage(f"{kind} with PySCF")
    fresh = None
    try:
        _, fresh = _scf(mole, result, jk, listener, count, stored=False)
        above = result.scf_total_energy - fresh.scf_total_energy
        if abs(above) <= TOLERANCE:
            return fresh
        outcome = f"ends in another solution, {_lower(above)}"
        resources.return_memory()
    except ConvergenceError:
        outcome = "does not converge"
    listener.stage(f"{kind} with PySCF from the stored orbitals")
    _, again = _scf(mole, result, jk, listener, count, stored=True)
    if fresh is not None and abs(result.scf_total_energy - again.scf_total_energy) > TOLERANCE:
        return fresh  # the stored energy is that of neither
    listener.warning(
        f"from atomic densities PySCF's SCF {outcome}: the comparison is with the solution that the stored orbitals "
        "lead to"
    )
    return again


def _scf(
    mole: Any, result: MP2Result, jk: Any, listener: Listener, count: int, *, stored: bool
) -> tuple[Any, Reference]:
    """PySCF's SCF of a result, from atomic densities or from the stored orbitals.

    It converges further than a run with a loose --scf-conv-tol, whose path it would otherwise repeat to the same end.
    """
    found, options = result.reference, result.options
    tight = replace(
        options,
        scf_conv_tol=min(options.scf_conv_tol, CONVERGED),
        scf_max_cycles=max(options.scf_max_cycles, LEAST_CYCLES),
    )
    if stored:
        start = StartOrbitals(found.mo_coeff, found.mo_occ, None, "the stored orbitals")
    else:
        start = None
    return hartree_fock.run_scf(
        *(mole, found.kind, tight, jk, start, listener),
        threads=count,
        integrals="pyscf",
        charges=result.molecule.point_charges,
    )


def _require_memory(result: MP2Result, budget: int) -> None:
    program = resources.resident_memory() + LOADED
    nao, nspin = result.sizes.nao, result.reference.nspin

    def needed(functions: int) -> int:
        return program + check.required_bytes(result.sizes, nspin, functions)

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


def _lower(above: float) -> str:
    return f"{abs(above):.1e} Eh {'lower' if above > 0 else 'higher'}"
