"""The error of the integration grid in the correlation energy: E_c again, on orbitals of a finer
grid.

    dE_c = E_c[C, e] - E_c[C U, e']                                                            (1)

C U and e' are one step towards the orbitals of the finer grid (`dfmp2.scf.grid_error`). B is made
anew, and the frequencies are those of E_c, so that the error of their sum cancels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from dfmp2.host.scratch import Space
from dfmp2.mp2 import rpa
from dfmp2.mp2.calculation import NOTHING, Calculation, FittedIntegrals
from dfmp2.mp2.result import GridCertificate, Quadrature
from dfmp2.scf.grid_error import on_finer_grid
from dfmp2.scf.reference import Reference

MakeB = Callable[[Calculation, Reference], FittedIntegrals]


def grid_certificate(
    calculation: Calculation, reference: Reference, quadrature: Quadrature, make_b: MakeB
) -> GridCertificate:
    """The error of E_c, Eq. 1.

    Parameters
    ----------
    calculation : Calculation
        The calculation, without its own B.
    reference : Reference
        With the measured error of its grid.
    quadrature : Quadrature
        E_c on it.
    make_b : callable
        Makes B of a reference (`dfmp2.mp2.energy`).
    """
    begun = time.perf_counter()
    calculation.listener.stage("error of the integration grid in E(corr)")
    moved = on_finer_grid(reference)
    memory = calculation.plan.memory
    if memory.mp2_fits_in_core:
        scratch = 0
    else:
        scratch = memory.mp2_disk
    with Space(calculation.setup.scratch, scratch) as space:
        again = replace(calculation, space=space, checkpoint=NOTHING)
        fitted = make_b(again, moved)
        with calculation.clock("pair_energies"):
            energy = rpa.at_points(
                fitted.b,
                again.spaces(moved),
                quadrature,
                held=memory.tensor_bytes,
                workers=calculation.setup.active,
                listener=calculation.listener,
            )
    return GridCertificate(quadrature.energy - energy, time.perf_counter() - begun)
