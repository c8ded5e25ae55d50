"""B made on a device: integrals over basis functions, fitted in float64 on the host, are what it is given.

    A_P(mu nu) = sum_Q L^-1_PQ (Q|mu nu)

What else needs B in float64 (the stability of the frontier orbitals) has it made of the same A on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.untransformed import DeviceTensor, UntransformedTensor
from dfmp2.integrals import three_center
from dfmp2.integrals.metric import MetricFactor
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.molecule.pyscf_shield import shielded
from dfmp2.progress import Stopwatch

Array = NDArray[np.float64]


def fitted_integrals(
    mole: Any, auxmole: Any, factor: MetricFactor, threads: int, clock: Stopwatch, block_bytes: int
) -> Array:
    """A_P(mu nu), mu >= nu: (naux or fewer after an eigenvalue cut, nao (nao + 1) / 2) float64, Eh^1/2.

    Parameters
    ----------
    mole, auxmole : PySCF molecules carrying the orbital and the fitting functions
    clock : charged with "integrals" and "fit"
    block_bytes : of integrals made at a time
    """
    with shielded():
        from dfmp2.scf.jk import fit_in_place
    a = np.empty((auxmole.nao, mole.nao * (mole.nao + 1) // 2))
    with clock("integrals"):
        for _ in three_center.packed_blocks(mole, auxmole, a, block_bytes):
            pass
    with clock("fit"):
        if not factor.triangular:
            return np.asarray(factor.factor.T @ a)
        fit_in_place(a, factor.factor, threads)
    return a


def on_device(
    a: Array, spaces: list[ActiveSpace], frontier: list[ActiveSpace], backend: Any, clock: Stopwatch
) -> list[Any]:
    """B of each spin on the device, then arrays of the frontier ranges.

    Parameters
    ----------
    a : as `fitted_integrals` makes it
    backend : with limits.transforms
    clock : charged with "transform"
    """
    with clock("transform"):
        sources = [UntransformedTensor(a, s.c_occ, s.c_vir) for s in spaces]
        operands = backend.put_untransformed(sources, [(s.eps_occ, s.eps_vir) for s in spaces])
        ranges = [UntransformedTensor(a, s.c_occ, s.c_vir).rows(range(s.nocc)) for s in frontier]
    return [*(DeviceTensor(*made) for made in zip(operands, sources, strict=True)), *ranges]
