"""Gradients, relaxed densities and their certificate: against energies, PySCF and published numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dfmp2.gradients.gradient import mp2_gradient
from dfmp2.molecule.molecule import Molecule
from dfmp2.mp2.energy import mp2_energy
from dfmp2.options import make_options
from dfmp2.progress import Silent
from dfmp2.scf.reference import StartOrbitals

SMALL = {"basis": "6-31g", "scf_auxbasis": "def2-universal-jkfit", "auxbasis": "cc-pvdz-ri", "allow_poor_fit": True}
EXACT = {"precision": "fp64", "scf_conv_tol": 1e-14, "stability": "off", "threads": 1}
FOUR_CENTRE = {"scf": "conventional", "scf_auxbasis": None}
WATER = Molecule(("O", "H", "H"), [[0, 0, 0.22], [0, 1.43, -0.88], [0.1, -1.5, -0.8]])
FIELD = WATER.in_field([[0, 0.3, 4.2, 0.5], [1, -5, 0, -0.8]])
GHOST = Molecule(("H", "F", "H"), [[0, 0, 0.22], [0, 1.43, -0.88], [0.1, -1.5, -0.8]], ghost=(False, False, True))
CASES = {
    "rhf": (WATER, {}),
    "uhf, scaled": (WATER.with_state(1, 2), {"os_scale": 1.3, "ss_scale": 0.4}),
    "rhf, core and virtuals frozen, scaled": (
        WATER, {"frozen_core": "1", "frozen_virtual": 2, "os_scale": 1.2, "ss_scale": 0.3},
    ),
    "uhf, core and virtuals frozen": (WATER.with_state(1, 2), {"frozen_core": "1", "frozen_virtual": 2}),
    "rhf, four-centre": (WATER, FOUR_CENTRE),
    "uhf, four-centre": (WATER.with_state(1, 2), FOUR_CENTRE),
    "ghost": (GHOST, {}),
    "x2c": (WATER, {"relativity": "x2c"}),
    "charges": (FIELD, {}),
    "no beta electron": (Molecule(("H", "H"), [[0, 0, 0], [0, 0, 2.1]], charge=1, multiplicity=2), {}),
}  # fmt: skip


def total(result):
    """The energy that is differentiated."""
    scaled = result.scaled_mp2_correlation_energy
    return result.mp2_total_energy if scaled is None else result.scf_total_energy + scaled


def slope(molecule, options, direction, start, step=0.005, charges=None):
    """Five-point difference of energies along a direction of the atoms and one of the charges, Eh/bohr."""
    energies = []
    for factor in (-2, -1, 1, 2):
        moved = replace(molecule, coordinates=molecule.coordinates + factor * step * direction)
        if charges is not None:
            moved = moved.in_field(molecule.point_charges + factor * step * charges)
        energies.append(total(mp2_energy(moved, options, start=start, listener=Silent())))
    return (energies[0] - 8 * energies[1] + 8 * energies[2] - energies[3]) / (12 * step)


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_the_derivative_of_the_energy(name):
    molecule, special = CASES[name]
    options = make_options(**SMALL | EXACT | special)
    found = mp2_gradient(molecule, options, listener=Silent())
    reference = found.result.reference
    start = StartOrbitals(reference.mo_coeff, reference.mo_occ, None, "there")
    rng = np.random.default_rng(1)
    direction, charges = rng.standard_normal((molecule.natom, 3)), None
    expected = np.vdot(direction, found.gradient)
    if molecule.point_charges is not None:
        charges = np.column_stack([rng.standard_normal((2, 3)), np.zeros(2)])
        expected += np.vdot(charges[:, :3], found.point_charge_gradient)
    assert slope(molecule, options, direction, start, charges=charges) == pytest.approx(expected, abs=5e-8)
    assert found.certificate.passed, found.certificate.failures
