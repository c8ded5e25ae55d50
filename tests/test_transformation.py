"""The AO to MO transformation of packed integrals, for several pairs of orbital ranges at once."""

from __future__ import annotations

import numpy as np
import pytest

from dfmp2.orbitals import ActiveSpace
from dfmp2.reference import transformation
from dfmp2.reference.transformation import Transformation

NAO = 11
RNG = np.random.default_rng(8)
COEFFICIENTS = RNG.standard_normal((NAO, NAO))


def space(occupied, virtual):
    c_occ, c_vir = COEFFICIENTS[:, occupied].copy(), COEFFICIENTS[:, virtual].copy()
    return ActiveSpace(c_occ, c_vir, np.zeros(c_occ.shape[1]), np.zeros(c_vir.shape[1]))


SPACES = {
    "a spin": [space(slice(1, 5), slice(5, 11))],
    "parts of it": [space(slice(1, 5), slice(5, 11)), space(slice(2, 4), slice(5, 8)), space(slice(5, 8), slice(5, 8))],
    "frozen core": [space(slice(2, 5), slice(5, 11)), space(slice(0, 5), slice(5, 11))],
    "a spin without electrons": [space(slice(0, 2), slice(2, 11)), space(slice(0, 0), slice(0, 11))],
}


@pytest.mark.parametrize("spaces", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_block_is_transformed(spaces, threads, monkeypatch):
    monkeypatch.setattr(transformation, "HALF_BYTES", 8 * NAO * 7 * 2)  # two or so fitting functions at a time
    transform = Transformation(spaces, threads)
    for count in (3, 8, 5):  # larger and smaller than the block before
        full = RNG.standard_normal((count, NAO, NAO))
        full += full.transpose(0, 2, 1)
        packed = np.ascontiguousarray(full[:, *np.tril_indices(NAO)])
        for part, s in zip(transform(packed), spaces, strict=True):
            np.testing.assert_allclose(part, s.c_occ.T @ full @ s.c_vir, atol=1e-12)
