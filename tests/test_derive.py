"""Derived results against full runs on the same orbitals, and every refusal with its reason."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from pyscf import gto, scf

import dfmp2
from dfmp2.mp2.derive import derive
from dfmp2.mp2.result import Certificate, MP2Result
from tests.conftest import Heard

EXACT = 1e-12  # Eh, asked of fp64
COMPONENTS = (
    "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_energy",
    "mp2_correlation_energy",
)


MOLECULES: dict[str, dict[str, Any]] = {
    "water": {"atom": "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692", "basis": "6-31g"},
    "nh2": {"atom": "N 0 0 0; H 0 0.8036 0.6347; H 0 -0.8036 0.6347", "basis": "6-31g", "spin": 1},
    # the programs' cores differ
    "nah": {"atom": "Na 0 0 0; H 0 0 1.8874", "basis": "def2-svp"},
    "hi": {"atom": "I 0 0 0; H 0 0 1.609", "basis": "def2-svp", "ecp": {"I": "def2-svp"}},
}


@cache
def mean_field(name: str) -> Any:
    """A converged RHF or UHF."""
    mole = gto.M(**MOLECULES[name], verbose=0)
    return scf.HF(mole).density_fit(auxbasis="def2-universal-jkfit").run(conv_tol=1e-10)


@cache
def compute(name: str, core: Any, precision: str = "fp64") -> MP2Result:
    """The result on these orbitals; not to be changed."""
    how = {"precision": precision, "listener": Heard(), "threads": 1}
    return dfmp2.from_mean_field(mean_field(name), "def2-svp-ri", frozen_core=core, **how)


@pytest.mark.parametrize(
    ("name", "stored", "core", "orbitals"),
    [
        ("water", "none", "auto", 1),
        ("water", "none", 4, 4),
        ("nh2", "none", "auto", 1),
        ("nh2", "none", 3, 3),  # one beta electron is left
        ("nh2", "auto", 4, 4),  # and none
        ("nah", "pyscf", "psi4", 5),
        ("hi", "none", "orca", 4),
    ],
)
def test_a_larger_core_is_the_full_run(name, stored, core, orbitals):
    full = compute(name, core)
    derived = derive(compute(name, stored), frozen_core=core, listener=Heard())
    assert (derived.sizes, derived.options) == (full.sizes, full.options)
    assert derived.sizes.frozen_core == orbitals
    for channel, matrix in full.pairs.channels().items():
        assert np.abs(derived.pairs.channels()[channel] - matrix).max(initial=0.0) < EXACT
    for component in (*COMPONENTS, "mp2_total_energy"):
        assert getattr(derived, component) == pytest.approx(
            getattr(full, component), abs=EXACT, rel=0
        )
    assert derived.diagnostics.smallest_denominator == full.diagnostics.smallest_denominator
    assert derived.certificate is None


def test_certificate_is_widened_by_the_pairs_left_out():
    """By hand: float32 has 2^-24, and each omitted direct term counts eight of these; E_SS has
    direct and exchange terms."""
    found = Certificate(15, 15, 5e-9, 3e-9, 2e-9, 1e-12, 1e-7, False)
    parent = replace(compute("water", 0, "mixed"), certificate=found)
    direct = parent.pairs.opposite_spin
    bounds = {"opposite_spin": (2e-9, 8), "same_spin": (3e-9, 16), "correlation": (5e-9, 24)}
    # Water's 1s with itself and with the other four
    left_out = abs(direct[0, 0] + 2 * direct[0, 1:].sum())
    widened = derive(parent, frozen_core=1).certificate
    assert [getattr(widened, f"{name}_error") for name in bounds] == pytest.approx(
        [bound + terms / 2**24 * left_out for bound, terms in bounds.values()], rel=1e-9
    )
    # A device with coarser arithmetic: 1e-6 relative to the largest pair.
    coarse = replace(found, largest_pair_error=1e-6 * float(abs(direct).max()))
    wider = derive(replace(parent, certificate=coarse), frozen_core=1).certificate
    assert wider.opposite_spin_error == pytest.approx(2e-9 + 1e-6 * left_out, rel=1e-9)
    assert derive(parent, frozen_core=0, os_scale=1.1).certificate == found
