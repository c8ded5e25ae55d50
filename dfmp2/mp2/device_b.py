"""B made on a device: integrals over basis functions, fitted in float64 on the host, are what it is
given.

    A_P(mu nu) = sum_Q L^-1_PQ (Q|mu nu)

What else needs B in float64 (the stability of the frontier orbitals) has it made of the same A on
the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfmp2.backends.untransformed import DeviceTensor, UntransformedTensor
from dfmp2.integrals.metric import MetricFactor
from dfmp2.integrals.spaces import ActiveSpace
from dfmp2.molecule.pyscf_shield import shielded

Array = NDArray[np.float64]


def fitted_ao_integrals(a: Array, factor: MetricFactor, threads: int) -> Array:
    """A_P(mu nu), mu >= nu: (naux or fewer after an eigenvalue cut, nao (nao + 1) / 2) float64,
    Eh^1/2.

    Parameters
    ----------
    a : (Q|mu nu), overwritten
    """
    with shielded():
        from dfmp2.scf.jk import fit_columns
    return fit_columns(a, factor, [a.shape[1]], threads)


def on_device(
    a: Array, spaces: list[ActiveSpace], frontier: list[ActiveSpace], backend: Any
) -> list[Any]:
    """B of each spin on the device, then arrays of the frontier ranges.

    Parameters
    ----------
    a : of `fitted_integrals`
    backend : with limits.transforms
    """
    sources = [UntransformedTensor(a, s.c_occ, s.c_vir) for s in spaces]
    operands = backend.put_untransformed(sources, [(s.eps_occ, s.eps_vir) for s in spaces])
    ranges = [UntransformedTensor(a, s.c_occ, s.c_vir).rows(range(s.nocc)) for s in frontier]
    return [*(DeviceTensor(*made) for made in zip(operands, sources, strict=True)), *ranges]
