"""PySCF's own MP2, component by component: with fitted integrals on the same orbitals, and with
four-centre integrals.

`pyscf.mp.dfmp2_native` is an independent implementation (integrals, fit and energy); the unscaled
components are obtained from its spin-component factors without repeating the integrals.

With four-centre integrals on a conventional SCF (`compare --exact`):

    E_OS = sum (ia|jb)^2 / D      E_SS = sum (ia|jb) [(ia|jb) - (ib|ja)] / D

No fitting set, no fit and none of our transformations are involved. Everything is held in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dfmp2.errors import NumericalError, Option
from dfmp2.host.resources import resident_memory
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.mp2.pairs import PairEnergies
from dfmp2.mp2.result import Certificate, Check, NativeEnergies
from dfmp2.planning.memory import CHECK_MODULES, SCF_MATRICES
from dfmp2.planning.sizes import FLOAT64, Sizes
from dfmp2.scf.reference import Reference


def native_energies(
    mole: Any,
    reference: Reference,
    fitting: dict[str, Any],
    frozen_core: int,
    frozen_virtual: int,
    held: int | None = None,
) -> NativeEnergies:
    """Evaluate PySCF's DF-MP2 on the orbitals of `reference`.

    Parameters
    ----------
    fitting : MP2 fitting set as plain data
    frozen_core, frozen_virtual : lowest occupied and highest virtual orbitals left out per spin
    held : bytes of B that may be in memory, None for all that the molecule may use

    Raises
    ------
    NumericalError : PySCF rejects the fitting metric (it does not drop small eigenvalues)
    """
    with shielded():
        import pyscf
        from pyscf import scf
        from pyscf.mp import dfmp2_native, dfump2_native

        kept = reference.mo_energy.shape[1] - frozen_virtual
        coeff = reference.mo_coeff[:, :, :kept]
        energy = reference.mo_energy[:, :kept]
        occ = reference.mo_occ[:, :kept]
        if reference.kind == "rhf":
            mf = scf.RHF(mole)
            mf.mo_coeff, mf.mo_energy, mf.mo_occ = coeff[0], energy[0], occ[0]
            name, solver_class = "dfmp2_native", dfmp2_native.DFRMP2
        else:
            mf = scf.UHF(mole)
            mf.mo_coeff, mf.mo_energy, mf.mo_occ = coeff, energy, occ
            name, solver_class = "dfump2_native", dfump2_native.DFUMP2
        mf.e_tot = reference.scf_total_energy
        program = f"PySCF {pyscf.__version__} {name}"
        solver = solver_class(mf, frozen=frozen_core, auxbasis=fitting)
        solver.verbose = 0
        # PySCF compares it with the memory in use besides the metric and its factor
        if held is not None:
            resident = resident_memory() + 2 * int(solver.auxmol.nao) ** 2 * FLOAT64
            solver.max_memory = (resident + held + CHECK_MODULES) / 1e6
        energies = []
        try:
            with solver:
                for solver.ps, solver.pt in ((0.0, 1.0), (1.0, 0.0)):
                    energies.append(float(solver.kernel()))
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                (
                    f"{program} cannot factorise the fitting metric ({error}), so there is nothing "
                    "to compare with: choose another "
                ),
                Option("auxbasis"),
            ) from error
    return NativeEnergies(
        program=program,
        scf_total_energy=reference.scf_total_energy,
        same_spin=energies[0],
        opposite_spin=energies[1],
    )


def exact_energies(
    mf: Any, reference: Reference, frozen_core: int, frozen_virtual: int
) -> NativeEnergies:
    """Four-centre MP2 of a converged conventional mean field.

    Parameters
    ----------
    mf : PySCF's mean field, with its Hamiltonian; reference : its record
    frozen_core, frozen_virtual : lowest occupied and highest virtual orbitals left out per spin
    """
    with shielded():
        import pyscf
        from pyscf.mp import mp2, ump2

        restricted = reference.kind == "rhf"
        # Occupied orbitals first, as the counts assume
        parts = (reference.mo_coeff, reference.mo_energy, reference.mo_occ)
        if restricted:
            mf.mo_coeff, mf.mo_energy, mf.mo_occ = (part[0] for part in parts)
        else:
            mf.mo_coeff, mf.mo_energy, mf.mo_occ = parts
        mf.mol.incore_anyway = True  # planned with `required_bytes`
        frozen = [
            [*range(frozen_core), *range(len(occ) - frozen_virtual, len(occ))]
            for occ in reference.mo_occ
        ]
        if restricted:
            solver = mp2.RMP2(mf, frozen=frozen[0])
        else:
            solver = ump2.UMP2(mf, frozen=frozen)
        solver.verbose = 0
        solver.kernel(with_t2=False)
        return NativeEnergies(
            program=f"PySCF {pyscf.__version__} {'RMP2' if restricted else 'UMP2'}",
            scf_total_energy=reference.scf_total_energy,
            same_spin=float(solver.e_corr_ss),
            opposite_spin=float(solver.e_corr_os),
        )


def required_bytes(sizes: Sizes, nspin: int, nao: int) -> int:
    """Bytes for the conventional SCF and four-centre MP2 of a molecule in a basis of `nao`
    functions.

    (mu nu|la si), with eightfold symmetry, is in memory throughout, together with the matrices of
    the SCF, then (ia|la si) of one spin and (ia|jb) of all. `sizes` gives the occupied orbitals.
    """
    pairs = nao * (nao + 1) // 2
    spins = [n * max(0, v + nao - sizes.nao) for n, v in zip(sizes.nocc, sizes.nvir, strict=True)][
        :nspin
    ]
    products = sum(first * second for k, first in enumerate(spins) for second in spins[k:])
    scf = SCF_MATRICES * nao * nao * nspin
    return FLOAT64 * (pairs * (pairs + 1) // 2 + max(scf, max(spins) * pairs + products))


# Eh, on the same orbitals and fitting set; the bound of a mixed-precision certificate is added
SAME_ORBITALS = 1e-8


def allowed_difference(certificate: Certificate | None, precision: str) -> float:
    """Largest difference allowed between two programs on the same orbitals, Eh."""
    if certificate is None or precision == "fp64":
        return SAME_ORBITALS
    bounds = (
        certificate.correlation_error,
        certificate.same_spin_error,
        certificate.opposite_spin_error,
    )
    return SAME_ORBITALS + max(bounds)


def native_check(
    reference: Reference, pairs: PairEnergies, theirs: NativeEnergies, allowed: float
) -> Check:
    """Differences of every component, ours - theirs, Eh, with the largest one allowed."""
    return Check(
        program=theirs.program,
        scf_total_energy=theirs.scf_total_energy,
        same_spin=theirs.same_spin,
        opposite_spin=theirs.opposite_spin,
        scf_difference=reference.scf_total_energy - theirs.scf_total_energy,
        same_spin_difference=pairs.same_spin_energy - theirs.same_spin,
        opposite_spin_difference=pairs.opposite_spin_energy - theirs.opposite_spin,
        allowed=allowed,
    )
