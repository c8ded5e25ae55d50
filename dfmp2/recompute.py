"""Recompute a stored result with PySCF alone: SCF from scratch, then PySCF's own DF-MP2."""

from __future__ import annotations

from dfmp2 import resources, threads
from dfmp2.check import compare
from dfmp2.progress import Listener
from dfmp2.record import Check
from dfmp2.reference import mean_field, native
from dfmp2.reference.mole import build_auxiliary, build_mole, fitting_data
from dfmp2.result import MP2Result


def recompute(result: MP2Result, tolerance: float, count: int, listener: Listener) -> Check:
    """Differences between a stored result and PySCF's values, Eh.

    Parameters
    ----------
    result : with the geometry, the bases as numbers and the options that the reference repeats
    tolerance : largest difference that passes, Eh
    count : threads

    Raises
    ------
    ConvergenceError : PySCF's SCF does not converge now
    """
    budget = resources.resident_memory() + int(0.9 * resources.available_memory())
    mole = build_mole(result.molecule, result.orbital_basis, budget)
    kind = result.reference.kind
    with threads.limited(count):
        listener.stage(f"{kind.upper()} with PySCF")
        jk = None if result.scf_fitting is None else build_auxiliary(mole, result.molecule, result.scf_fitting)
        _, reference = mean_field.run_scf(
            *(mole, kind, result.options, jk, None, listener), threads=count, in_core=False
        )
        listener.stage("DF-MP2 with PySCF")
        data = fitting_data(result.molecule, result.mp2_fitting)
        theirs = native.native_energies(mole, reference, data, result.sizes.frozen_core, result.sizes.frozen_virtual)
    return compare(result.reference, result.pairs, theirs, tolerance)
