"""Recompute a stored result from scratch with another program's SCF and DF-MP2: PySCF or Psi4."""

from __future__ import annotations

from dfmp2 import resources, threads
from dfmp2.check import compare
from dfmp2.errors import InputError
from dfmp2.external.psi4 import run_psi4
from dfmp2.progress import Listener
from dfmp2.record import Check, NativeEnergies
from dfmp2.reference import mean_field, native
from dfmp2.reference.mole import build_auxiliary, build_mole, fitting_data
from dfmp2.result import MP2Result

PROGRAMS = ("pyscf", "psi4")


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
    if program not in PROGRAMS:
        raise InputError(f"--with {program!r}: expected one of {', '.join(PROGRAMS)}")
    if program == "psi4":
        listener.stage(f"{result.reference.kind.upper()} and DF-MP2 with Psi4")
        return compare(result.reference, result.pairs, run_psi4(result, count, timeout=timeout), tolerance)
    return compare(result.reference, result.pairs, _with_pyscf(result, count, listener), tolerance)


def _with_pyscf(result: MP2Result, count: int, listener: Listener) -> NativeEnergies:
    budget = resources.resident_memory() + int(0.9 * resources.available_memory())
    mole = build_mole(result.molecule, result.orbital_basis, budget)
    kind = result.reference.kind
    with threads.limited(count):
        listener.stage(f"{kind.upper()} with PySCF")
        jk = None if result.scf_fitting is None else build_auxiliary(mole, result.molecule, result.scf_fitting)
        _, reference = mean_field.run_scf(
            *(mole, kind, result.options, jk, None, listener), threads=count, integrals="pyscf"
        )
        listener.stage("DF-MP2 with PySCF")
        data = fitting_data(result.molecule, result.mp2_fitting)
        return native.native_energies(mole, reference, data, result.sizes.frozen_core, result.sizes.frozen_virtual)
