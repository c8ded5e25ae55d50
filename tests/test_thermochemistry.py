"""Thermochemistry of stored Hessians, and ranked conformers: numbers against formulas and
GoodVibes, and refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf.data.elements import CONFIGURATION, ELEMENTS

import dfmp2
from dfmp2.errors import InputError
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.output.study import Study
from dfmp2.studies import frequencies, reaction_path
from dfmp2.studies.degeneracy import may_be_degenerate
from dfmp2.studies.ideal_gas import (
    GasConditions,
    LowModes,
    thermochemistry,
)
from dfmp2.studies.vibrations import masses, symmetry_number
from tests.conftest import Runner, succeed
from tests.recorded import recorded_error
from tests.springs import on_springs

GAS = 8.31446261815324  # J/(mol K)
SMALL = {"threads": 1, "listener": dfmp2.Listener()}


def frequencies_on_springs(path: Path, places: list[list[float]], **asked: Any) -> Path:
    """The file with the frequencies of a water molecule that is named like it."""
    molecule = Molecule(("O", "H", "H"), places, name=path.stem)
    with pytest.MonkeyPatch.context() as patch:
        on_springs(patch, molecule)
        dfmp2.frequencies(molecule, "sto-3g", allow_gradient=True, output=path, **asked, **SMALL)
    return path


@pytest.fixture(scope="module")
def water_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frequencies of water on springs, near its minimum."""
    places = [[0, 0, 0.2401], [0, 1.4356, -0.9605], [0, -1.4356, -0.9605]]
    return frequencies_on_springs(tmp_path_factory.mktemp("thermo") / "water.h5", places)


@pytest.fixture(scope="module")
def water(water_file: Path) -> Study:
    return dfmp2.read_study(water_file)


@pytest.mark.parametrize(("given", "used"), [(1e-9, 1e-11), (1e-11, 1e-11), (1e-12, 1e-12)])
def test_frequencies_need_a_converged_scf_and_keep_a_tighter_one(
    given: float, used: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequencies, "carry_out", lambda task, **_: task)
    monkeypatch.setattr(reaction_path, "carry_out", lambda task, **_: task)
    molecule = Molecule.from_string("O 0 0 0; H 0.1 0.2 0.95; H 0.9 -0.1 -0.2", charge=0)
    options = Options("sto-3g", scf_conv_tol=given)
    for study in (frequencies.harmonic_frequencies, reaction_path.reaction_path):
        task: Any = study(molecule, options)
        assert [task.options.scf_conv_tol, task.steps[0].options.scf_conv_tol] == [used, used]
        assert task.free == ("precision", "tolerance")  # of pair energies; amplitudes are float64
        assert task.chained is (study is reaction_path.reaction_path)


@pytest.fixture(scope="module")
def bent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another geometry of it, without symmetry, under other conditions."""
    places = [[0, 0, 0.2], [0.1, 1.5, -0.95], [0, -1.4, -1.0]]
    asked = {"temperature": 350.0, "pressure": 2e5, "symmetry_number": 3}
    return frequencies_on_springs(tmp_path_factory.mktemp("thermo") / "bent.h5", places, **asked)


@pytest.mark.parametrize(
    ("state", "pascal"),
    [(None, 101325.0), ("1atm", 101325.0), ("1bar", 1e5), ("1M", 1000 * GAS * 400.0)],
)
def test_the_pressure_of_a_standard_state(state: str | None, pascal: float) -> None:
    conditions = GasConditions(temperatures=(400.0,), standard_state=state)
    assert conditions.pressure == pytest.approx(pascal, rel=1e-12)


def test_a_symmetry_number_that_was_given_stays_with_its_file(
    call: Runner, water_file: Path, bent_file: Path
) -> None:
    """It is counted where isotopes make atoms unlike. G rises by R T ln 2 from number 1 to 2."""
    succeed(call("thermo", str(water_file), "--symmetry-number", "1", "--output", "one.h5"))
    three = dfmp2.read_study(bent_file)
    for isotopes, number in ((["H=2H"], 3), (["O=18O"], 3), (["1=16O"], 3), (["2=2H"], 1)):
        study = dfmp2.thermo(three, isotopes=isotopes)
        assert study.settings["symmetry_number"] == number
    assert dfmp2.thermo(three, symmetry_number=2).settings["symmetry_number"] == 2
    rises = GAS * 298.15 * np.log(2) / 1000  # kJ/mol
    first, second = dfmp2.rank(["one.h5", water_file], by="gibbs").conformers
    assert (first.name, second.name) == ("one", "water")
    assert second.relative_kj_per_mol == pytest.approx(rises, abs=1e-9)
    reactions = [dfmp2.reaction(str(file), str(bent_file)) for file in ("one.h5", water_file)]
    given, counted = (study.values["reaction_gibbs_energy"].value for study in reactions)
    assert (given - counted) * 2625.4996394799 == pytest.approx(rises, abs=1e-9)


# GoodVibes 4.4.0 by its functions of one quantity each: scaled by 0.977 at 350 K, entropies in
# J/(mol K), energies in J/mol. Its constants are those of CODATA 2010, 1e-6 from those of 2018.
GOODVIBES = json.loads((Path(__file__).parent / "data" / "goodvibes.json").read_text())


@pytest.mark.parametrize("case", GOODVIBES, ids=lambda case: case["name"])
def test_as_in_goodvibes(case: dict) -> None:
    """Non-linear, linear, an atom, open shells, and low modes."""
    molecule = Molecule(
        tuple(case["symbols"]),
        np.array(case["bohr"]),
        charge=case["charge"],
        multiplicity=case["multiplicity"],
    )
    found = thermochemistry(
        molecule,
        case["energy"],
        np.array(case["wavenumbers"]) * case["scale"],
        case["kelvin"],
        case["pascal"],
        case["symmetry"],
        treated=LowModes(case["treatment"], case["cutoff"]),
        weights=np.array(case["masses"]),
    )
    for name in ("translation", "rotation", "vibration", "electrons"):
        assert found[f"entropy_{name}"].value == pytest.approx(
            case[f"entropy_{name}"], rel=3e-6, abs=2e-4
        )
    for name in ("zero_point_energy", "enthalpy", "gibbs_energy"):
        assert found[name].value == pytest.approx(case[name], abs=1e-6)


@pytest.mark.parametrize(
    ("text", "charge", "multiplicity", "degenerate"),
    [
        ("O 0 0 0", 0, 3, True),
        ("O 0 0 0", 1, 4, False),
        ("O 0 0 0", 0, 1, True),
        ("Zn 0 0 0", 0, 1, False),
        ("Cu 0 0 0", 1, 1, False),
        ("H 0 0 0", 0, 2, False),
        ("Cl 0 0 0", 0, 2, True),
        ("V 0 0 0", 0, 4, True),
        ("Cr 0 0 0", 0, 7, False),
        ("Mn 0 0 0", 1, 7, False),
        ("Fe 0 0 0", 1, 6, True),
        ("Ca 0 0 0", 1, 2, False),
        ("Sc 0 0 0", 2, 2, True),
        ("O 0 0 0; H 0 0 0.97", 0, 2, True),
        ("O 0 0 0; H 0 0 0.97", -1, 1, False),
        ("N 0 0 0; H 0 0.8 0.6; H 0 -0.8 0.6", 0, 2, False),
    ],
)
def test_states_that_may_be_degenerate(
    text: str, charge: int, multiplicity: int, *, degenerate: bool
) -> None:
    """S is the term of H, O+, Cr, Mn+, Ca+, Zn and Cu+; that of O, Cl and V is P or F, of singlet
    oxygen, Fe+ and Sc2+ D (NIST Atomic Spectra Database); OH is a Pi radical."""
    molecule = Molecule.from_string(text, charge=charge, multiplicity=multiplicity)
    assert may_be_degenerate(molecule) == degenerate


def test_atoms_are_in_s_states_if_every_open_shell_is_half_full() -> None:
    """The ground states of all elements up to radon, by Hund's rules from PySCF's configurations."""
    for number in range(1, 87):
        spherical, unpaired = True, 0
        for angular, electrons in enumerate(CONFIGURATION[number]):
            orbitals = 2 * angular + 1
            open_shell = electrons % (2 * orbitals)
            unpaired += min(open_shell, 2 * orbitals - open_shell)
            spherical &= open_shell in (0, orbitals)
        atom = Molecule((ELEMENTS[number],), [[0, 0, 0]], multiplicity=unpaired + 1)
        assert may_be_degenerate(atom) != spherical, atom
        if spherical and unpaired > 1:  # of the same electrons, a lower spin is in no S state
            assert may_be_degenerate(replace(atom, multiplicity=unpaired - 1)), atom


@pytest.mark.parametrize(
    ("heavy", "number"),
    [((), 12), ((0,), 2), ((0, 1), 2), ((0, 2), 2), ((0, 3), 4), ((0, 2, 4), 6), (range(6), 12)],
)
def test_carbon_13_in_benzene_counts_where_the_centre_of_mass_stays(
    heavy: Sequence[int], number: int
) -> None:
    angles = np.arange(6) * np.pi / 3
    ring = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    benzene = Molecule(("C",) * 6 + ("H",) * 6, np.concatenate([2.64 * ring, 4.69 * ring]))
    weights = masses(benzene)
    weights[list(heavy)] = 13.0034
    assert symmetry_number(benzene, weights) == number


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": -5.0},
        {"temperature": math.nan},
        {"pressure": 0},
        {"cutoff": 50.0},
        {"quasi_harmonic": "best"},
        {"quasi_harmonic": "grimme", "cutoff": 0.0},
        {"scale": 0.2},
        {"scale": "best"},
        {"symmetry_number": 0},
        {"symmetry_number": 1.5},
    ],
)
def test_what_thermo_refuses(water: Study, options: dict) -> None:
    with recorded_error(InputError):
        dfmp2.thermo(water, **options)
