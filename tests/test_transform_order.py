"""Why fitted integrals are transformed and never raw ones: benzene with diffuse functions, both orders in float32.

ours     metric in float64 on (mu nu|Q), rounded to float32, transformed in float32
theirs   (mu nu|Q) rounded to float32, transformed in float32, metric afterwards
"""

from __future__ import annotations

import numpy as np
import pytest
from pyscf import gto, scf
from scipy.linalg import solve_triangular

from dfmp2.backends.cpu import CpuBackend
from dfmp2.backends.nki.kernels.transform_twin import transform_twin
from dfmp2.fitting import factorise
from dfmp2.mp2.pairs import pair_energies
from dfmp2.orbitals import active_space
from dfmp2.progress import Stopwatch
from dfmp2.reference import integrals
from dfmp2.reference.untransformed import fitted_integrals
from dfmp2.untransformed import unpacked
from tests.test_nki_backend import GEOMETRIES


@pytest.mark.slow
def test_the_metric_after_a_float32_transform_is_wrong_and_before_it_is_right():
    atoms = "\n".join(GEOMETRIES["benzene"].splitlines()[2:])
    mole = gto.M(atom=atoms, basis="aug-cc-pvdz", verbose=0)
    auxmole = gto.M(atom=atoms, basis="aug-cc-pvdz-ri", verbose=0)
    mf = scf.RHF(mole).density_fit(auxbasis="aug-cc-pvdz-jkfit").run(conv_tol=1e-9)
    space = active_space(mf.mo_coeff, mf.mo_energy, mf.mo_occ, 0, 0)
    metric = integrals.coulomb_metric(auxmole)
    factor = factorise(metric)
    assert factor.triangular and factor.condition > 1e7
    backend = CpuBackend(2)

    def energy(b):
        pairs = pair_energies([backend.put(b.astype(np.float64), space.eps_occ, space.eps_vir, "fp64")], backend)
        return pairs.same_spin_energy + pairs.opposite_spin_energy

    raw = np.concatenate([block.copy() for _, _, block in integrals.packed_blocks(mole, auxmole)])
    fitted = fitted_integrals(mole, auxmole, factor, 2, Stopwatch(), 64 * 10**6)
    c = space.c_occ, space.c_vir
    exact = energy(transform_twin(unpacked(fitted, mole.nao), *c, np.float64))
    ours = energy(transform_twin(unpacked(fitted, mole.nao), *c))
    raw_b = transform_twin(unpacked(raw, mole.nao), *c)
    lower = np.tril(factor.factor)
    errors = {}
    for dtype in (np.float32, np.float64):
        rows = raw_b.reshape(-1, raw_b.shape[2]).astype(dtype).T
        b = solve_triangular(lower.astype(dtype), rows, lower=True).T.reshape(raw_b.shape)
        errors[dtype.__name__] = energy(b) - exact
    # E(corr) = -0.82817 Eh; metric first: 8e-8 Eh off; metric last: -2.26e-3 Eh, in either precision.
    assert abs(ours - exact) < 1e-7
    assert all(1e-4 < abs(error) < 1e-2 for error in errors.values())
