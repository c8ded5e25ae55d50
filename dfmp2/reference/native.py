"""PySCF's own DF-MP2 on given orbitals, component by component: the yardstick of `--check` and `compare`.

`pyscf.mp.dfmp2_native` is a separate implementation (integrals, fit and energy); the unscaled
components come from its spin-component factors, without repeating the integrals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dfmp2.errors import NumericalError
from dfmp2.record import NativeEnergies, Reference
from dfmp2.reference.shield import shielded


def native_energies(
    mole: Any, reference: Reference, fitting: dict[str, Any], frozen_core: int, frozen_virtual: int
) -> NativeEnergies:
    """Evaluate PySCF's DF-MP2 on the orbitals of `reference`.

    Parameters
    ----------
    fitting : MP2 fitting set as data
    frozen_core, frozen_virtual : lowest occupied and highest virtual orbitals left out per spin

    Raises
    ------
    NumericalError : PySCF refuses the fitting metric (it has no eigenvalue cut)
    """
    with shielded():
        import pyscf
        from pyscf import scf
        from pyscf.mp import dfmp2_native, dfump2_native

        restricted = reference.kind == "rhf"
        mf = scf.RHF(mole) if restricted else scf.UHF(mole)
        kept = reference.mo_energy.shape[1] - frozen_virtual
        parts = (reference.mo_coeff[:, :, :kept], reference.mo_energy[:, :kept], reference.mo_occ[:, :kept])
        mf.mo_coeff, mf.mo_energy, mf.mo_occ = (part[0] for part in parts) if restricted else parts
        mf.e_tot = reference.scf_total_energy
        program = f"PySCF {pyscf.__version__} {'dfmp2_native' if restricted else 'dfump2_native'}"
        solver = (dfmp2_native.DFRMP2 if restricted else dfump2_native.DFUMP2)(mf, frozen=frozen_core, auxbasis=fitting)
        solver.verbose = 0
        energies = []
        with solver:
            for solver.ps, solver.pt in ((0.0, 1.0), (1.0, 0.0)):
                try:
                    energies.append(float(solver.kernel()))
                except np.linalg.LinAlgError as error:
                    raise NumericalError(
                        f"{program} cannot factorise the fitting metric ({error}), so there is nothing to compare "
                        "with: choose another --auxbasis"
                    ) from error
        return NativeEnergies(program, reference.scf_total_energy, energies[0], energies[1])
