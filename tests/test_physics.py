"""What any correct MP2 program must obey, whatever its numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dfmp2
from dfmp2.molecule import Molecule
from dfmp2.mp2 import scaling

WATER = Molecule(("O", "H", "H"), np.array([[0.0, 0.0, 0.2217], [0.0, 1.4309, -0.8867], [0.0, -1.4309, -0.8867]]))
EXACT = {"basis": "cc-pvdz", "precision": "fp64", "stability": "off", "scf_conv_tol": 1e-12}


@pytest.fixture(scope="module")
def water():
    return dfmp2.run(WATER, **EXACT)


def moved(coordinates, order=slice(None)):
    return replace(WATER, symbols=tuple(np.array(WATER.symbols)[order]), coordinates=coordinates[order])


def rotation(seed=5):
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))
    return q * np.sign(np.diag(r)) * np.sign(np.linalg.det(q))


@pytest.mark.parametrize(
    "molecule",
    [
        pytest.param(moved(WATER.coordinates @ rotation().T), id="rotated"),
        pytest.param(moved(WATER.coordinates + np.array([3.0, -7.0, 11.0])), id="translated"),
        pytest.param(moved(WATER.coordinates, [2, 0, 1]), id="atoms reordered"),
    ],
)
def test_energy_does_not_depend_on_the_frame(water, molecule):
    other = dfmp2.run(molecule, **EXACT)
    assert other.scf_total_energy == pytest.approx(water.scf_total_energy, abs=1e-9)
    assert other.mp2_correlation_energy == pytest.approx(water.mp2_correlation_energy, abs=1e-9)


def test_closed_shell_uhf_is_rhf(water):
    uhf = dfmp2.run(WATER, reference="uhf", **EXACT)
    assert uhf.reference.kind == "uhf"
    assert uhf.reference.spin_square == 0.0 and not np.signbit(uhf.reference.spin_square)
    for name in ("scf_total_energy", "mp2_same_spin_correlation_energy", "mp2_opposite_spin_correlation_energy"):
        assert getattr(uhf, name) == pytest.approx(getattr(water, name), abs=1e-9)


def test_distant_dimer_is_twice_the_monomer():
    """Conventional SCF: fitted densities do not carry exactly two electrons, which leaves a 1/R tail."""
    helium = Molecule(("He",), np.zeros((1, 3)))
    dimer = Molecule(("He", "He"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1000.0]]))
    one, two = (dfmp2.run(m, scf="conventional", **EXACT) for m in (helium, dimer))
    assert two.mp2_correlation_energy == pytest.approx(2 * one.mp2_correlation_energy, abs=1e-10)


def test_two_electrons_have_no_same_spin_correlation():
    helium = dfmp2.run(Molecule(("He",), np.zeros((1, 3))), **EXACT)
    assert str(helium.mp2_same_spin_correlation_energy) == "0.0"
    # He/cc-pVDZ, conventional MP2: two basis functions of s symmetry and one p shell; literature -0.0258.
    assert helium.mp2_correlation_energy == pytest.approx(-0.02583, abs=5e-5)


def test_one_electron_has_no_correlation():
    hydrogen = dfmp2.run(Molecule(("H",), np.zeros((1, 3)), multiplicity=2), **EXACT)
    assert hydrogen.mp2_correlation_energy == 0.0
    assert hydrogen.scf_total_energy == pytest.approx(-0.4992784, abs=1e-6)  # H/cc-pVDZ


def test_two_electrons_of_different_spin_and_an_ion_of_one_keep_zeros_without_sign():
    """In mixed precision too, where direct and exchange terms differ by their rounding."""
    hydrogen = Molecule(("H", "H"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.4]]))
    pair = dfmp2.run(hydrogen, "cc-pvdz", reference="uhf").to_dict()
    assert (str(pair["mp2_same_spin_correlation_energy"]), str(pair["spin_square"])) == ("0.0", "0.0")
    ion = dfmp2.run(hydrogen.with_state(1, 2), "cc-pvdz").to_dict()
    zeros = {name: str(value) for name, value in ion.items() if name.endswith("correlation_energy") and value == 0}
    assert len(zeros) == 5 and set(zeros.values()) == {"0.0"} and ion["spin_square"] == 0.75


def test_scalings_are_arithmetic_on_the_stored_components(water):
    os_energy, ss_energy = water.mp2_opposite_spin_correlation_energy, water.mp2_same_spin_correlation_energy
    assert scaling.MP2.apply(os_energy, ss_energy) == water.mp2_correlation_energy
    assert water.scs_mp2_correlation_energy == pytest.approx(1.2 * os_energy + ss_energy / 3, abs=1e-14)
    assert water.sos_mp2_correlation_energy == pytest.approx(1.3 * os_energy, abs=1e-14)
    one = dfmp2.run(WATER, os_scale=1.0, ss_scale=1.0, **EXACT)
    assert one.scaled_mp2_correlation_energy == one.mp2_correlation_energy


def test_frozen_core_is_a_slice_of_the_pair_energies(water):
    frozen = dfmp2.run(WATER, frozen_core="1", **EXACT)
    assert frozen.mp2_opposite_spin_correlation_energy == pytest.approx(
        water.pairs.opposite_spin[1:, 1:].sum(), abs=1e-9
    )
    assert frozen.mp2_same_spin_correlation_energy == pytest.approx(water.pairs.same_spin[0][1:, 1:].sum(), abs=1e-9)
    assert frozen.scf_total_energy == pytest.approx(water.scf_total_energy, abs=1e-10)


def test_ghost_functions_lower_the_energy_and_carry_no_electrons():
    ghosts = Molecule(("He", "He"), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3.0]]), ghost=(False, True))
    alone, counterpoise = (dfmp2.run(m, **EXACT) for m in (Molecule(("He",), np.zeros((1, 3))), ghosts))
    assert counterpoise.sizes.nelectron == 2
    assert counterpoise.sizes.nao == 2 * alone.sizes.nao
    assert counterpoise.mp2_total_energy < alone.mp2_total_energy - 1e-5


def test_linear_dependence_leaves_fewer_orbitals_than_functions():
    """Diffuse ghosts 0.21 angstrom apart: nmo < nao, and nvir follows nmo."""
    z = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.4], [0.0, 0.4, 0.0], [0.4, 0.0, 0.0], [0.4, 0.4, 0.0]]
    crowded = Molecule(("He", "O", "O", "O", "O"), np.array(z), ghost=(False, True, True, True, True))
    result = dfmp2.run(crowded, **{**EXACT, "basis": "aug-cc-pvdz"})
    assert result.sizes.nmo < result.sizes.nao
    assert result.sizes.nvir[0] == result.sizes.nmo - 1


def test_threads_and_memory_do_not_change_the_pair_energies():
    """Same orbitals (one SCF), then 1 or 2 threads and two budgets: the same bits."""
    import pyscf
    import pyscf.scf

    mole = pyscf.gto.M(atom="O 0 0 0; H 0 0.7 0.6; H 0 -0.7 0.6", basis="cc-pvdz", verbose=0)
    mf = pyscf.scf.RHF(mole).run()
    runs = [
        dfmp2.from_mean_field(mf, precision=precision, threads=threads, memory=memory)
        for precision in ("fp64", "mixed")
        for threads, memory in ((1, 10**9), (2, 10**9), (2, 4 * 10**9))
    ]
    for first, second in ((0, 1), (0, 2), (3, 4), (3, 5)):
        np.testing.assert_array_equal(runs[first].pairs.opposite_spin, runs[second].pairs.opposite_spin)
        np.testing.assert_array_equal(runs[first].pairs.same_spin[0], runs[second].pairs.same_spin[0])
