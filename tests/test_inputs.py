"""Every shipped input gives its expected energy (PySCF and, where it was run, Psi4; inputs/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dfmp2

INPUTS = Path(__file__).parent.parent / "inputs"
CASES = json.loads((INPUTS / "expected.json").read_text())["cases"]
SLOW = {"c20h42", "water-8"}  # a minute each
COMPONENTS = (
    "scf_total_energy",
    "mp2_same_spin_correlation_energy",
    "mp2_opposite_spin_correlation_energy",
    "mp2_correlation_energy",
    "mp2_total_energy",
)


def cases():
    return [pytest.param(name, id=name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES]


@pytest.mark.parametrize("name", cases())
def test_input_gives_its_expected_energy(name):
    case = CASES[name]
    result = dfmp2.run(INPUTS / case["file"], case["basis"], precision="auto" if name in SLOW else "fp64")
    assert result.molecule.charge == case["charge"]
    assert result.molecule.multiplicity == case["multiplicity"]
    for component in COMPONENTS:
        # E(corr) is of first order in the orbitals: 1e-10 Eh in the SCF leaves about 1e-8 here.
        assert getattr(result, component) == pytest.approx(case["values"][component], abs=1e-7), component
    assert result.sizes.nao == case["sizes"]["nao"]
    assert result.sizes.naux == case["sizes"]["naux_ri"]
    assert result.sizes.naux_scf == case["sizes"]["naux_jk"]
    psi4 = case.get("psi4") or {}
    assert name == "c20h42" or set(COMPONENTS) <= set(psi4)
    for component, value in psi4.items():
        if component in COMPONENTS:
            assert getattr(result, component) == pytest.approx(value, abs=1e-7), f"Psi4 {component}"


def test_every_geometry_file_has_an_expected_energy():
    assert {path.name for path in INPUTS.glob("*.xyz")} == {case["file"] for case in CASES.values()}
