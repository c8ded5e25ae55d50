"""Relaxed scans and maps, against geometries and energies found in other ways."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import ConvergenceError
from dfmp2.molecule.elements import internal_coordinate
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.output.study import read_study
from dfmp2.studies import optimize
from dfmp2.studies.coordinate import make_coordinate
from dfmp2.studies.relaxed import Relaxation, bring
from dfmp2.units import BOHR_PER_ANGSTROM
from tests.conftest import Runner, work_here
from tests.recorded import recorded_failure
from tests.springs import BOND, on_springs, run_of, springs

CYCLOPROPANE = """9

C 0 0.8716 0
C -0.7548 -0.4358 0
C 0.7548 -0.4358 0
H 0 1.4563 0.9122
H 0 1.4563 -0.9122
H -1.2612 -0.7281 0.9122
H -1.2612 -0.7281 -0.9122
H 1.2612 -0.7281 0.9122
H 1.2612 -0.7281 -0.9122
"""
OPTIONS = ("--basis", "sto-3g", "--threads", "1", "--stability", "off")


def value(place: Molecule, *atoms: int) -> float:
    """A bond, angle or dihedral of atoms from 1, angstrom or degrees."""
    found = internal_coordinate(place.coordinates[[atom - 1 for atom in atoms]])
    if len(atoms) == 2:
        return found / BOHR_PER_ANGSTROM
    return math.degrees(found)


# --- relaxed points -------------------------------------------------------------------------------


WATER = "3\n\nO 0 0 0\nH 0 0.757 0.677\nH 0 -0.757 0.677\n"
RIGHT_ANGLE = "3\n\nO 0 0 0\nH 1 0 0\nH 0 1 0\n"


@pytest.fixture
def no_steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace optimisations by runs on springs at the start geometries, which are collected as
    `starts`; the first is 1e-3 Eh too high. `fails` is asked about the first bond, in angstrom, and
    how often it has been started from."""
    made = SimpleNamespace(starts=[], fails=lambda bond, times: False)

    def run(place: Molecule, options: Options, _search: Any, **_: Any) -> Any:
        made.starts.append(place)
        bonds = [round(value(start, 1, 2), 6) for start in made.starts]
        if made.fails(bonds[-1], bonds.count(bonds[-1])):
            raise ConvergenceError("planted")
        raised = 1e-3 if len(bonds) == 1 else 0.0
        result = run_of(place, options, lambda places: springs(places) + raised)
        return SimpleNamespace(path={"step-000": result})

    monkeypatch.setattr(optimize, "optimize_geometry", run)
    return made


def test_points_that_fail_and_passes_that_disagree(
    call: Runner, no_steps: Any, folder: Path
) -> None:
    """The middle point fails in both passes, and the point after it starts from the given geometry.
    The first run is 1e-3 Eh too high, so the other pass counts there. The last point fails in one
    pass: that is in a note, and counts nowhere else."""
    no_steps.fails = lambda bond, times: bond == 1.0 or (bond, times) == (1.1, 2)
    (folder / "w.xyz").write_text(WATER)
    scan = ("scan", "w.xyz", "--bond", "1,2", "0.9:1.1:3", "--relaxed", *OPTIONS)
    recorded_failure(call(*scan), 9)
    found = read_study("w.scan.h5")
    assert found.table["exit_code"].values == (0.0, 4.0, 0.0)
    assert list(found.runs) == ["forward-001", "backward-003", "backward-001"]
    forward, backward, lower = (
        found.table[f"{name}_energy"].values for name in ("forward", "backward", "mp2_total")
    )
    assert forward[0] - backward[0] == pytest.approx(1e-3, abs=1e-8)
    np.testing.assert_array_equal(lower, backward)
    assert np.isnan([forward[1], backward[1], forward[2]]).all()
    (disagree,) = (note for note in found.notes if "disagree" in note)
    assert disagree == (
        "bond 1 2 = 0.9 angstrom: the passes disagree by 2.63 kJ/mol; the backward one is lower "
        "and kept"
    )
    assert any("1.1 angstrom, forward: failed with code 4" in note for note in found.notes)
    assert call(*scan, "--resume").code == 9 and len(no_steps.starts) == 9  # the failed ones alone


def test_a_point_that_cannot_be_made_fails_alone(call: Runner, folder: Path, no_steps: Any) -> None:
    """Atoms 0.02 angstrom apart; the points after it start from the given geometry."""
    (folder / "w.xyz").write_text(WATER)
    scan = ("scan", "w.xyz", "--bond", "1,2", "0.02:1.02:3", "--relaxed", *OPTIONS)
    recorded_failure(call(*scan), 9)
    found = read_study("w.scan.h5")
    assert found.complete and found.table["exit_code"].values == (3.0, 0.0, 0.0)
    starts = [value(place, 1, 2) for place in no_steps.starts]
    assert starts == pytest.approx([1.02, 0.52, 0.52, 1.02])
    assert sum("failed with code 3" in note for note in found.notes) == 2  # in both passes


def test_what_is_not_scanned_is_relaxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On springs, a bond that is held costs its own energy, and a map that of both; the rest finds
    its minimum in both passes, also in two workers."""
    water = Molecule.from_string(WATER)
    on_springs(monkeypatch, water)
    given: dict[str, Any] = {"basis": "sto-3g", "threads": 1, "relaxed": True}
    lengths = np.array([0.9, 1.0, 1.1])
    strain = 0.25 * (lengths * BOHR_PER_ANGSTROM - BOND) ** 2
    line = dfmp2.scan(water, coordinate=("bond", "1,3", lengths), **given)
    for name in ("mp2_total", "forward", "backward"):
        assert line.table[f"{name}_energy"].values == pytest.approx(strain, abs=1e-6)
    for length, run in zip(lengths, line.path.values(), strict=True):
        assert value(run.molecule, 1, 3) == pytest.approx(length, abs=1e-6)
        assert value(run.molecule, 1, 2) == pytest.approx(BOND / BOHR_PER_ANGSTROM, abs=1e-3)
    grid = [("bond", "1,2", lengths[:2]), ("bond", "1,3", lengths)]
    work_here(monkeypatch)
    study = dfmp2.scan(water, coordinate=grid, workers=2, **given)
    expected = strain[:2, None] + strain
    assert study.arrays["map_energy"].value == pytest.approx(expected, abs=1e-6)
    order = list(study.runs)
    assert {*order[:2]} == {"forward-001", "backward-006"}
    assert {*order[2:6]} == {"forward-002", "forward-004", "backward-003", "backward-005"}


# --- how the points follow from each other --------------------------------------------------------


def test_a_point_of_a_map_starts_from_the_lower_neighbour() -> None:
    water = Molecule.from_string(WATER)
    coordinates = (
        make_coordinate("bond", "1,2", "0.9:1.1:2", water, rigid=False),
        make_coordinate("angle", "2,1,3", "90:120:3", water, rigid=False),
    )
    asked = Relaxation(water, coordinates, Options("sto-3g"), True, "GAU")
    near = SimpleNamespace(total_energy=-2.0, molecule=asked.molecule)
    lower = SimpleNamespace(total_energy=-3.0, molecule=asked.molecule)
    results: Any = {"forward-002": near, "forward-004": lower, "backward-006": lower}
    step = asked.step("forward", 4, results, "x")
    assert step.start == "forward-004" and step.name == "forward-005" and step.optimised
    results["forward-002"] = SimpleNamespace(total_energy=-4.0, molecule=asked.molecule)
    places = (("forward", 4), ("backward", 4), ("backward", 1))
    starts = [asked.step(*place, results, "x").start for place in places]
    assert starts == ["forward-002", "backward-006", ""]
    assert replace(asked, chained=False).step("forward", 4, results, "x").start == ""


def test_rings_are_brought_to_a_value() -> None:
    """No side of cyclopropane can move alone; a relaxed scan deforms the ring."""
    ring = Molecule.from_string(CYCLOPROPANE)
    bent = make_coordinate("angle", "1,2,3", "60:80:3", ring, rigid=False)
    assert bent.moving == ()
    moved = bring(ring, [bent], [70.0])
    assert value(moved, 1, 2, 3) == pytest.approx(70.0, abs=1e-5)
    still = [3, 4, 5, 6, 7, 8]
    assert np.array_equal(moved.coordinates[still], ring.coordinates[still])
    bonds = [
        make_coordinate("bond", atoms, "1.4:1.6:3", ring, rigid=False) for atoms in ("1,2", "2,3")
    ]
    both = bring(ring, bonds, [1.6, 1.4])
    assert [value(both, 1, 2), value(both, 2, 3)] == pytest.approx([1.6, 1.4], abs=1e-7)


# --- maps -----------------------------------------------------------------------------------------


def test_a_rigid_map_of_water(call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other cell is the energy of a geometry written out here; rows and columns are not
    swapped."""

    def energy(places: Any) -> float:
        place = Molecule(("O", "H", "H"), places)
        if abs(value(place, 1, 2) - 1.1) + abs(value(place, 2, 1, 3) - 105) < 1e-6:
            raise ConvergenceError("planted")
        return springs(places)

    on_springs(monkeypatch, Molecule.from_string(WATER), energy)
    (folder / "w.xyz").write_text(RIGHT_ANGLE)
    grid = ("--bond", "1,2", "0.9:1.1:2", "--angle", "2,1,3", "95:115:3")
    done = call("scan", "w.xyz", *grid, *OPTIONS, "--json")
    recorded_failure(done, 9)
    found = done.json
    expected = np.full((2, 3), math.nan)
    for i, j in np.ndindex(2, 3):
        length, turned = found["map_first"][i], math.radians(found["map_second"][j])
        place = [[0, 0, 0], [length, 0, 0], [math.cos(turned), math.sin(turned), 0]]
        if (i, j) != (1, 1):
            expected[i, j] = springs(np.array(place) * BOHR_PER_ANGSTROM)
    energies = np.array(found["map_energy"], dtype=float)
    np.testing.assert_allclose(energies, expected, rtol=0, atol=1e-9)
    i, j = np.unravel_index(np.nanargmin(energies), energies.shape)
    lowest = [found[f"lowest_{name}"] for name in ("first", "second", "energy")]
    assert lowest == [found["map_first"][i], found["map_second"][j], energies[i, j]]
    assert found["table"]["exit_code"] == [0, 0, 0, 0, 4, 0]
    assert call("show", "w.scan.h5", "--json").json["map_energy"] == found["map_energy"]
    stored = dfmp2.read_study("w.scan.h5")
    order = [f"point-00{number}" for number in (1, 2, 3, 6, 4)]  # each beside the one before
    assert list(stored.runs) == order
    starts = [run.reference.start for run in stored.runs.values()]
    assert starts[1:] == [f"orbitals of {name}" for name in order[:-1]]
    drawn = (folder / "w.scan.svg").read_text()
    height = (energies[1, 0] - energies[i, j]) * 2625.4996394799
    assert f"bond 1 2 = 1.1, angle 2 1 3 = 95: {height:.2f} kJ/mol" in drawn
    assert drawn.count("kJ/mol</title>") == 5
