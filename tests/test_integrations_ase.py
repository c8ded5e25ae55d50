"""The ASE calculator: ASE's units and rules, and forces from ASE's own finite differences."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import InputError
from dfmp2.molecule import Molecule
from dfmp2.units import BOHR_PER_ANGSTROM

ase = pytest.importorskip("ase")

from ase.build import molecule as molecule_of  # noqa: E402
from ase.calculators.calculator import PropertyNotImplementedError  # noqa: E402
from ase.optimize import BFGS  # noqa: E402
from ase.units import Hartree  # noqa: E402

from dfmp2.integrations.ase import DFMP2  # noqa: E402

SETTINGS: dict[str, Any] = {"basis": "cc-pvdz", "precision": "fp64", "threads": 1, "stability": "off"}


def hydrogen(distance: float = 0.76) -> Any:
    return ase.Atoms("H2", positions=[(0, 0, 0), (0, 0, distance)])


class Counting(DFMP2):
    """Counts how often it really computes."""

    runs = 0

    def calculate(self, *arguments: Any, **keywords: Any) -> None:
        self.runs += 1
        super().calculate(*arguments, **keywords)


def test_energy_in_electronvolts() -> None:
    atoms = hydrogen()
    atoms.calc = DFMP2(**SETTINGS)
    molecule = Molecule(("H", "H"), atoms.positions * BOHR_PER_ANGSTROM)
    expected = dfmp2.run(molecule, **SETTINGS)
    assert atoms.get_potential_energy() / Hartree == pytest.approx(expected.mp2_total_energy, abs=1e-11)
    assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()
    assert 27.2113 < Hartree < 27.2114
    assert atoms.calc.result.mp2_correlation_energy == pytest.approx(expected.mp2_correlation_energy, abs=1e-11)
    atoms.calc.set(method="scs-mp2")
    assert atoms.get_potential_energy() / Hartree == pytest.approx(
        expected.scf_total_energy + expected.scs_mp2_correlation_energy, abs=1e-11
    )


def test_results_are_kept_as_ase_expects() -> None:
    atoms = hydrogen()
    atoms.calc = calculator = Counting(**SETTINGS)
    for _ in range(2):
        atoms.get_potential_energy()
    assert calculator.runs == 1
    calculator.set(basis="cc-pvdz")  # no change
    atoms.get_potential_energy()
    assert calculator.runs == 1
    atoms.positions[1, 2] = 0.75
    atoms.get_potential_energy()
    calculator.set(frozen_core=0)
    assert (calculator.results, calculator.result) == ({}, None)
    atoms.get_potential_energy()
    assert calculator.runs == 3


def test_no_forces_of_its_own() -> None:
    atoms = hydrogen()
    atoms.calc = DFMP2(**SETTINGS)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_forces()


@pytest.mark.slow
def test_optimisation_with_numerical_forces() -> None:
    """The minimum is where the energies say: the vertex of a parabola through three energies near it."""
    settings = {**SETTINGS, "basis": "sto-3g"}
    atoms = hydrogen(0.74)
    atoms.calc = calculator = Counting(**settings, displacement=0.002)
    BFGS(atoms, logfile=None).run(fmax=0.01, steps=20)
    found = atoms.get_distance(0, 1)
    energies = []
    for distance in (grid := [0.715, 0.725, 0.735]):
        single = hydrogen(distance)
        single.calc = DFMP2(**settings)
        energies.append(single.get_potential_energy())
    curve = np.polynomial.Polynomial.fit(grid, energies, 2)
    assert found == pytest.approx(curve.deriv().roots()[0], abs=5e-4)
    forces = atoms.get_forces()
    assert forces[0] == pytest.approx(-forces[1], abs=1e-5)
    assert np.abs(forces).max() < 0.01
    assert calculator.result is not None
    calculator.set(displacement=None)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_forces()


def test_charge_and_multiplicity() -> None:
    """From the parameters, else from what ASE keeps on the atoms."""
    settings = {**SETTINGS, "basis": "sto-3g"}

    def state(atoms: Any, **parameters: Any) -> tuple[int, int, str]:
        atoms.calc = DFMP2(**settings, **parameters)
        atoms.get_potential_energy()
        found = atoms.calc.result
        return found.molecule.charge, found.molecule.multiplicity, found.reference.kind

    assert state(molecule_of("OH")) == (0, 2, "uhf")  # ASE's own molecule carries its magnetic moment
    assert state(molecule_of("OH"), charge=-1, multiplicity=1) == (-1, 1, "rhf")
    water = molecule_of("H2O")
    water.set_initial_charges([0.4, 0.3, 0.3])
    water.set_initial_magnetic_moments([1.0, 0.0, 0.0])
    assert state(water) == (1, 2, "uhf")
    water.set_initial_charges([-0.4, 0.1, 0.1])
    with pytest.raises(InputError, match=r"initial charges of the atoms add up to -0.2: expected a whole number; pass"):
        state(water)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"basis": "sto-3g", "method": "mp3"}, "method 'mp3'"),
    ({"basis": "sto-3g", "xc": "PBE"}, "unknown option 'xc'"),
    ({"basis": 6}, "basis 6: expected the name"),
    ({"basis": "sto-3g", "frozen_core": [0, 1]}, "frozen_core [0, 1]: expected str or int"),
    ({"basis": "sto-3g", "charge": 0.5}, "charge 0.5: expected a whole number"),
    ({"basis": "sto-3g", "multiplicity": "2"}, "multiplicity '2': expected a whole number"),
    ({"basis": "sto-3g", "displacement": 0}, "displacement 0: expected angstrom"),
    ({"basis": "sto-3g", "ss_scale": 0.3}, "belong to method custom-scs-mp2"),
    ({"basis": "sto-3g", "reference": "rohf"}, "expected one of auto, rhf, uhf"),
    ({"basis": "sto-3g", "label": "mine"}, "unknown option 'label'"),
    ({"basis": "sto-3g", "restart": "old.traj"}, "unknown option 'restart'"),
    ({"basis": "sto-3g", "parameters": "/etc/passwd"}, "unknown option 'parameters'"),
]


@pytest.mark.parametrize(("parameters", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused_when_made(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        DFMP2(**parameters)
    assert message in str(raised.value)


def test_a_refused_change_changes_nothing() -> None:
    calculator = DFMP2(basis="sto-3g")
    before = dict(calculator.parameters)
    with pytest.raises(InputError):
        calculator.set(basis="cc-pvdz", precision="fp16")
    assert dict(calculator.parameters) == before


def test_refused_atoms() -> None:
    atoms = hydrogen()
    atoms.calc = DFMP2(**SETTINGS)
    atoms.set_cell([5, 5, 5])
    atoms.pbc = (False, False, True)
    with pytest.raises(InputError, match="periodic"):
        atoms.get_potential_energy()
    atoms = ase.Atoms("XH", positions=[(0, 0, 0), (0, 0, 1)])
    atoms.calc = DFMP2(**SETTINGS)
    with pytest.raises(InputError, match="unknown element 'X'"):
        atoms.get_potential_energy()


def test_without_ase_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ase.units", None)
    monkeypatch.delitem(sys.modules, "dfmp2.integrations.ase")
    with pytest.raises(ImportError, match=r"pip install 'dfmp2\[ase\]'"):
        import dfmp2.integrations.ase  # noqa: F401
