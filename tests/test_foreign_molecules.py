"""Molecules of other programs: every field that is accepted, and every one that is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from pyscf import gto

from dfmp2.errors import InputError
from dfmp2.molecule.elements import isotope_masses
from dfmp2.molecule.foreign import from_ase, from_pyscf, from_qcschema, to_ase
from dfmp2.molecule.molecule import Molecule
from tests.awkward import MOLECULES
from tests.recorded import recorded_error

ANGSTROM = 1 / 0.529177210903  # bohr

# --- ASE ------------------------------------------------------------------------------------------


def atoms_of(**more: Any) -> Atoms:
    return Atoms("OH", positions=[[0.1, 0.2, 0.3], [0.4, -0.5, 1.0]], **more)


def test_atoms_of_ase_with_charges_and_moments() -> None:
    made = from_ase(atoms_of(charges=[0.5, -1.5], magmoms=[-2.5, 0.5]))
    assert (made.symbols, made.charge, made.multiplicity) == (("O", "H"), -1, 3)
    np.testing.assert_allclose(
        made.coordinates, np.array([[0.1, 0.2, 0.3], [0.4, -0.5, 1.0]]) * ANGSTROM, rtol=1e-9
    )
    assert (made.name, made.source, made.ghost) == ("HO", "ASE", (False, False))
    asked = from_ase(atoms_of(charges=[1.0, 0.0], magmoms=[1.0, 0.0]), charge=2, multiplicity=4)
    assert (asked.charge, asked.multiplicity) == (2, 4)
    plain = from_ase(atoms_of())
    assert (plain.charge, plain.multiplicity) == (0, 1)
    # The components of moments that are not collinear cancel, and the length of their sum is 5.
    assert from_ase(atoms_of(magmoms=[[3.0, -3.0, 1.0], [0.0, -1.0, -1.0]])).multiplicity == 6
    with recorded_error(InputError):
        from_ase(atoms_of(pbc=[False, True, False], cell=[5, 5, 5]))
    for info in ({"charge": -1}, {"total_charge": 1}, {"multiplicity": 3}, {"charge": "x"}):
        with recorded_error(InputError):
            from_ase(atoms_of(info=info))
        assert from_ase(atoms_of(info=info), charge=-1, multiplicity=1).charge == -1
    assert from_ase(atoms_of(charges=[-1, 0], info={"charge": -1, "spin": "up"})).charge == -1
    for field in ("charges", "magmoms"):
        from_ase(atoms_of(**{field: [1.0 + 0.9e-6, 0.0]}))
        for wrong in (1.0 + 1.1e-6, 0.5, np.nan, np.inf):
            with recorded_error(InputError):
                from_ase(atoms_of(**{field: [wrong, 0.0]}))


def test_molecules_go_to_ase_and_back() -> None:
    molecule = MOLECULES["fluoroformyl cation radical"]
    made = to_ase(molecule)
    assert made.get_initial_charges().tolist() == [1.0, 0.0, 0.0, 0.0]
    assert made.get_initial_magnetic_moments().tolist() == [1.0, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(
        made.get_positions() * ANGSTROM, molecule.coordinates, rtol=1e-9, atol=1e-12
    )
    back = from_ase(made)
    assert (back.symbols, back.charge, back.multiplicity) == (molecule.symbols, 1, 2)
    for name in ("nitroxyl with a ghost", "hypochlorous acid in a field"):
        with recorded_error(InputError):
            to_ase(MOLECULES[name])


# --- PySCF ----------------------------------------------------------------------------------------


def test_a_mole_of_pyscf_with_ghosts() -> None:
    mole = gto.M(
        atom="O 0 0 0.1; X-H 0 0.7 -0.4; GHOST-F 1 1 1; H1 0 -0.7 -0.4",
        basis="sto-3g",
        charge=1,
        spin=2,
        verbose=0,
    )
    made = from_pyscf(mole)
    assert (made.labels, made.charge, made.multiplicity) == (("O", "@H", "@F", "H"), 1, 3)
    np.testing.assert_array_equal(made.coordinates, mole.atom_coords())
    assert (made.name, made.source) == ("molecule", "python: PySCF Mole")
    assert from_pyscf(mole, "elsewhere").source == "elsewhere"
    finite = gto.M(atom="He 0 0 0", basis="sto-3g", nucmod="G", verbose=0)
    counted = gto.M(atom="I 0 0 0; H 0 0 1.6", basis="def2-svp", ecp={"I": "def2-svp"}, verbose=0)
    assert from_pyscf(counted).charge == 0
    counted.nelectron -= 2  # by which PySCF makes a cation whose charge is 0
    for wrong in (gto.Mole(), SimpleNamespace(), "H 0 0 0", finite, counted):
        with recorded_error(InputError):
            from_pyscf(wrong)


# --- QCSchema -------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "schema_name": "qcschema_molecule",
    "schema_version": 2,
    "symbols": ["O", "H", "He"],
    "geometry": [0.0, 0.1, 0.2, 1.0, 1.1, 1.2, 5.0, 5.1, 5.2],
    "real": [True, True, False],
    "atomic_numbers": [8, 1, 2],
    "molecular_charge": -1.0,
    "molecular_multiplicity": 3,
    "name": "mi\tne",
    "comment": "nothing of it counts",
}


def test_a_molecule_of_qcschema() -> None:
    made = from_qcschema(GIVEN)
    assert (made.labels, made.charge, made.multiplicity, made.name, made.source) == (
        ("O", "H", "@He"),
        -1,
        3,
        "mi\\tne",
        "QCSchema",
    )
    assert made.coordinates.tolist() == [[0.0, 0.1, 0.2], [1.0, 1.1, 1.2], [5.0, 5.1, 5.2]]
    rows = {**GIVEN, "geometry": made.coordinates.tolist()}
    assert from_qcschema(rows) == made
    for dump in ("model_dump_json", "json"):
        assert from_qcschema(SimpleNamespace(**{dump: lambda: json.dumps(GIVEN)})) == made
    least = {"symbols": ["H"], "geometry": [0, 0, 0], "molecular_multiplicity": 2.0}
    found = from_qcschema(least)
    assert (found.labels, found.charge, found.multiplicity) == (("H",), 0, 2)
    assert found.name == "molecule"
    with recorded_error(InputError):
        from_qcschema([1])
    for schema in (("qcschema_molecule", 3), ("qc_schema_molecule", 2)):
        from_qcschema({**GIVEN, "schema_name": schema[0], "schema_version": schema[1]})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fragment_charges": [1, -2]}, (-1, 1)),
        ({"fragment_charges": [1.0, 0.0], "molecular_charge": 1}, (1, 1)),
        ({"fragment_multiplicities": [2, 1], "molecular_charge": -1}, (-1, 2)),
        ({"fragment_multiplicities": [1, 3], "fragment_charges": [0, 2]}, (2, 3)),
        ({"fragment_multiplicities": [2, 2], "molecular_multiplicity": 3}, (0, 3)),
        # The second fragment consists of ghosts only: it has neither charge nor spin.
        ({"real": [True, False], "fragment_charges": [1, -2]}, (1, 1)),
        ({"real": [True, False], "fragment_multiplicities": [1, 2]}, (0, 1)),
        ({"molecular_charge": 3.0}, (3, 1)),
        ({"molecular_charge": None, "fragments": None, "real": None}, (0, 1)),
    ],
)
def test_charge_and_spin_of_fragments(changes: dict[str, Any], expected: tuple[int, int]) -> None:
    given = {
        "symbols": ["He", "Ne"],
        "geometry": [0, 0, 0, 0, 0, 4],
        "fragments": [[0], [1]],
        **changes,
    }
    made = from_qcschema(given)
    assert (made.charge, made.multiplicity) == expected


# --- isotopes -------------------------------------------------------------------------------------

WATER = Molecule.from_string("3\n\nO 0 0 0\nH 0 0.8 0.5\nH 0 -0.8 0.5\n")


@pytest.mark.parametrize(
    ("isotopes", "masses"),
    [
        ((), (15.9949146, 1.007825, 1.007825)),
        (("H=2H",), (15.9949146, 2.0141017781, 2.0141017781)),
        (("h = D", "3=1H"), (15.9949146, 2.0141017781, 1.0078250322)),
        (("2=T", "1=18O"), (17.9991596129, 3.0160492779, 1.007825)),
        (("2=2.5", "2=0.51"), (15.9949146, 0.51, 1.007825)),
        (("1=399.9",), (399.9, 1.007825, 1.007825)),
    ],
)
def test_masses_of_isotopes(isotopes: tuple[str, ...], masses: tuple[float, ...]) -> None:
    """Masses are those of the Atomic Mass Evaluation, or as given; the last entry for an atom
    counts."""
    found, notes = isotope_masses(WATER, isotopes)
    np.testing.assert_allclose(found, masses, rtol=1e-7)
    changed = sum(a != b for a, b in zip(found, isotope_masses(WATER, ())[0], strict=True))
    assert len(notes) >= changed and notes == sorted(notes)
    if isotopes == ("2=T", "1=18O"):
        assert notes[0].startswith("atom 1 O is 18O: 17.99915") and "atom 2 H is T" in notes[1]
