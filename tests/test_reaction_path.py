"""Reaction paths, and reuse of Hessians."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dfmp2.errors import InputError, NumericalError
from dfmp2.molecule.files import read_frames
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import fragment_formulas, rotation_onto
from dfmp2.output.study import read_study
from dfmp2.studies import reaction_path
from dfmp2.studies.frequencies import StoredHessian, hessian_of
from dfmp2.studies.geometric_search import GeomeTRIC, Search
from dfmp2.studies.reaction_path import arc_length
from dfmp2.studies.task import Unfinished
from dfmp2.units import ANGSTROM_PER_BOHR
from tests.conftest import run_here, succeed
from tests.recorded import recorded_error, recorded_failure
from tests.springs import (
    ON_SPRINGS,
    on_springs,
    pyramid,
    pyramids,
    second_derivatives,
    springs,
)

WATER = "3\n\nO 0 0 0\nH 0 0.757 0.587\nH 0.1 -0.757 0.587\n"
OPTIONS = ("--basis", "sto-3g", "--threads", "1", "--stability", "off")
UNITS = {"": 1.0, "_kj_per_mol": 2625.4996394799, "_kcal_per_mol": 627.5094740631}
TILTS, ENERGIES = pyramids()
TOP = Molecule(("N", "H", "H", "H"), pyramid(TILTS[1]))


# --- Hessians that are stored ---------------------------------------------------------------------


def stored_hessian(molecule: Molecule, hessian: Any, level: str) -> StoredHessian:
    """A Hessian as from a file x.h5; nothing else of its result is used."""
    result: Any = SimpleNamespace(molecule=molecule, level=level)
    return StoredHessian("x.h5", result, hessian)


def test_a_hessian_turns_with_the_molecule() -> None:
    water = Molecule.from_string(WATER)
    stored = stored_hessian(water, second_derivatives(water.coordinates), "MP2/x")
    turn = Rotation.from_euler("xyz", [0.3, -1.1, 2.0]).as_matrix()
    moved = replace(water, coordinates=water.coordinates @ turn.T + [1.0, -2.0, 0.5])
    expected = second_derivatives(moved.coordinates)
    assert np.abs(expected - stored.hessian).max() > 0.1
    assert stored.turned_to(moved) == pytest.approx(expected, abs=1e-5)
    assert stored.distance(moved) == pytest.approx(0.0, abs=1e-12)
    wider = Molecule.from_string(WATER.replace("-0.757", "-0.957"))
    turned = replace(wider, coordinates=wider.coordinates @ turn.T + [1.0, -2.0, 0.5])
    # the ends have come apart by 0.2 angstrom, of which the best rotation leaves more than a third
    assert 0.07 < stored.distance(turned) * ANGSTROM_PER_BOHR < 0.2
    with recorded_error(InputError):
        replace(stored, at_start=True).turned_to(turned, 0.01)


@pytest.mark.parametrize(
    "other",
    [
        Molecule.from_string(WATER.replace("O ", "S ")),
        Molecule.from_string("3\n\nH 0 0.757 0.587\nO 0 0 0\nH 0.1 -0.757 0.587\n"),
        replace(Molecule.from_string(WATER), charge=1, multiplicity=2),
        replace(Molecule.from_string(WATER), multiplicity=3),
        Molecule.from_string(WATER.replace("-0.757", "-1.957")),
    ],
    ids=["element", "order", "charge", "multiplicity", "geometry"],
)
def test_the_hessian_of_another_molecule_is_refused(other: Molecule) -> None:
    with recorded_error(InputError):
        stored_hessian(Molecule.from_string(WATER), np.eye(9), "MP2/x").turned_to(other)


# --- paths ----------------------------------------------------------------------------------------


def test_the_length_of_a_path() -> None:
    """Two atoms that separate by 2 d: s = 2 d sqrt(m m' / (m + m')); rotation adds nothing."""
    first = Molecule.from_string("2\n\nF 0 0 0\nH 0 0 0.74\n")
    d, mass = 0.05, 1.00782503223
    apart = np.array([[0, 0, -d], [0, 0, d]])
    turn = Rotation.from_euler("xyz", [0.4, 0.2, -0.7]).as_matrix()
    second = replace(first, coordinates=(first.coordinates + apart) @ turn.T + 3.0)
    both = (18.99840316273, mass)  # u
    reduced = math.prod(both) / sum(both)
    assert arc_length(first, second) == pytest.approx(math.sqrt(reduced) * 2 * d, rel=1e-6)
    # The steps are weighted with masses of isotopes too; the mean of chlorine's is 35.45.
    acid = Molecule.from_string("3\n\nCl 0 0 0\nO 0 0 1.7\nH 0.9 0.2 2.0\n")
    weights = GeomeTRIC(acid, Search(), "", downhill="forward")._optimizer.IC.mass
    assert weights == pytest.approx(np.repeat([34.96885268, 15.99491462, mass], 3), rel=1e-7)


def test_superposed_geometries_are_the_nearest_by_weight() -> None:
    """SciPy's rotation onto a mirror image, where a reflection would be nearer."""
    rng = np.random.default_rng(4)
    places = rng.standard_normal((5, 3))
    target = places * [-1, 1, 1] + 0.2 * rng.standard_normal((5, 3))
    for weights in (np.ones(5), np.array([15.995, 1.008, 12.0, 1.008, 34.969])):
        expected = Rotation.align_vectors(target, places, weights)[0].as_matrix()
        np.testing.assert_allclose(rotation_onto(places, target, weights), expected, atol=1e-10)


@pytest.mark.parametrize(("angstrom", "said"), [(0.9e-4, False), (1.1e-4, True)])
def test_a_hessian_of_another_geometry_is_said(angstrom: float, said: bool) -> None:
    stored = SimpleNamespace(
        path="ts.h5",
        result=SimpleNamespace(level="MP2/sto-3g"),
        distance=lambda molecule: angstrom / ANGSTROM_PER_BOHR,
    )
    course = SimpleNamespace(_search=Search(), _stored=stored, _top=SimpleNamespace(molecule=None))
    course._point = SimpleNamespace(lines=["the last"])
    notes = reaction_path._Descent._notes(course)
    assert notes[-1] == "the last"
    assert (f"{angstrom:.4f} angstrom away" in notes[-2]) is said


@pytest.fixture(scope="module")
def descended(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A path on springs from a pyramid turned inside out, in two goes: what they printed, and how
    many runs had been made after each."""
    folder = tmp_path_factory.mktemp("path")
    places = zip(TOP.symbols, TOP.coordinates * ANGSTROM_PER_BOHR, strict=True)
    rows = [f"{symbol} {x} {y} {z}" for symbol, (x, y, z) in places]
    (folder / "t.xyz").write_text("\n".join(["4", "", *rows, ""]))
    command = ("irc", "t.xyz", *OPTIONS)
    more = ("--max-steps", "12", "--resume", "--tolerance", "1e-6")
    with pytest.MonkeyPatch.context() as patch:
        asked = on_springs(patch, TOP)
        patch.setattr("dfmp2.studies.keeper.REST", 1e9)  # the file is written at the end alone
        short = run_here(*command, "--max-steps", "11", cwd=folder)
        made = [len(asked)]
        done = run_here(*command, *more, cwd=folder)
        made.append(len(asked))
    study = read_study(folder / "t.irc.h5")
    return SimpleNamespace(folder=folder, short=short, done=done, made=made, study=study)


def test_a_path_on_springs_joins_both_minima(descended: Any) -> None:
    """Energies and barriers by formulas, and the side on which the hydrogen atoms are: forwards the
    largest component of the mode, that of hydrogen along the axis, decreases."""
    study = descended.study
    lower, saddle, higher = ENERGIES
    for name, expected in (
        ("barrier_forward", saddle - higher),
        ("barrier_backward", saddle - lower),
        ("reaction_energy", lower - higher),
    ):
        for unit, factor in UNITS.items():
            value = study.values[f"{name}{unit}"].value / factor
            assert value == pytest.approx(expected, abs=2e-7)
    for name, expected in (
        ("forward_minimum", lower),
        ("transition_state", saddle),
        ("backward_minimum", higher),
    ):
        assert study.values[f"{name}_energy"].value == pytest.approx(expected, abs=2e-7)
    assert sum("1 imaginary mode of 6" in note for note in study.notes) == 1
    assert any("mirror images" in note for note in study.notes)


def test_a_path_is_finished_in_two_goes(descended: Any) -> None:
    """What their last lines say, and the files."""
    files = "t.irc.csv, t.irc.svg, t.irc.trajectory.xyz -> t.irc.h5"
    recorded_failure(descended.short, 4)  # it takes one more
    assert descended.short.out.splitlines()[-1].startswith("dfmp2 NOT FINISHED: ")
    assert descended.short.out.endswith(f" points; {files}\n")
    done, study = succeed(descended.done), descended.study
    assert [done.kept_runs, len(study.runs)] == descended.made
    lower, saddle, higher = ENERGIES
    ahead, back = ((saddle - energy) * UNITS["_kj_per_mol"] for energy in (higher, lower))
    assert done.out.splitlines()[-1] == (
        f"dfmp2 finished: H3N, two conformers, {len(study.path)} points, barrier {ahead:.2f} "
        f"kJ/mol, back {back:.2f}; {files}"
    )
    written = list(csv.DictReader((descended.folder / "t.irc.csv").read_text().splitlines()))
    assert [row["run"] for row in written] == list(study.path)
    frames = read_frames(descended.folder / "t.irc.trajectory.xyz")
    for frame, run in zip(frames, study.path.values(), strict=True):
        assert frame.coordinates == pytest.approx(run.molecule.coordinates, abs=1e-9)


def test_the_table_of_a_path(descended: Any) -> None:
    """From the backward minimum to the forward one. A step that geomeTRIC undoes is none of it; in
    the valley an optimisation begins."""
    study = descended.study
    names, table = study.settings["path"], study.table
    assert (study.settings["backward_run"], study.settings["forward_run"]) == (names[0], names[-1])
    assert list(table["run"].values) == names == list(study.path)
    place = names.index(reaction_path.TOP)
    runs = list(study.path.values())
    lengths = [arc_length(one.molecule, next_one.molecule) for one, next_one in pairwise(runs)]
    assert table["s"].values[place] == 0.0 and min(lengths) > 0
    assert np.diff(table["s"].values) == pytest.approx(lengths)
    energies = np.array([springs(run.molecule.coordinates) for run in runs])
    assert table["total_energy"].values == pytest.approx(energies, abs=1e-9)
    assert (np.diff(energies[: place + 1]) > 0).all() and (np.diff(energies[place:]) < 0).all()
    above = (energies - min(energies)) * UNITS["_kj_per_mol"]
    assert table["relative_energy"].values == pytest.approx(above, abs=1e-6)
    largest = [np.linalg.norm(run.gradient.total_gradient, axis=1).max() for run in runs]
    assert table["max_gradient"].values == pytest.approx(largest)
    assert {name: column.units for name, column in table.items()} == {
        "run": "",
        "s": "sqrt(u) bohr",
        "relative_energy": "kJ/mol",
        "total_energy": "hartree",
        "max_gradient": "hartree/bohr",
    }
    assert set(study.runs) - set(names) > {"backward-006", "plus-001-x"}
    for side in reaction_path.SIDES:
        along = [name for name in sorted(names) if re.fullmatch(rf"{side}-\d+", name)]
        steepness = [largest[names.index(name)] for name in along]
        ends = [here < 0.1 * max(steepness[: k + 1]) for k, here in enumerate(steepness)]
        assert ends == [False] * (len(along) - 1) + [True]


def test_a_path_reuses_the_hessian_of_another(
    descended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes none, and ends here within the optimisation of a minimum."""
    on_springs(monkeypatch, TOP)
    stored = hessian_of(descended.study, "path.h5")
    assert stored.distance(TOP) < 1e-7
    with recorded_error(Unfinished) as caught:
        reaction_path.reaction_path(
            TOP, ON_SPRINGS, Search(convergence="gau_verytight", max_steps=9), stored
        )
    stopped = caught.value.study
    assert list(stopped.path)[-1] == list(stopped.runs)[-1] == "forward-minimum-step-001"
    assert list(stopped.runs)[:2] == [reaction_path.TOP, "forward-001"]
    assert stopped.settings["start_hessian"] == "path.h5"
    assert "Hessian: path.h5, DF-MP2/sto-3g" in stopped.notes


def test_a_path_does_not_begin_at_a_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    minimum = replace(TOP, coordinates=pyramid(TILTS[0]))
    on_springs(monkeypatch, minimum)
    with recorded_error(NumericalError) as refused:
        reaction_path.reaction_path(minimum, ON_SPRINGS)
    assert not refused.value.goes_on


def test_fragments_are_named_by_their_bonds() -> None:
    far = "5\n\nO 0 0 0\nH 0 0.757 0.587\nH 0 -0.757 0.587\nC 0 0 9\nN 0 0 10.17\n"
    assert fragment_formulas(Molecule.from_string(far, charge=-1)) == "H2O + CN"


def test_the_bonds_of_one_minimum_alone_are_named_by_their_atoms() -> None:
    """One of two hydrogens has gone from carbon to nitrogen, and a bond has been made there."""
    start = "4\n\nC 0 0 0\nN 1.27 0 0\nH -0.55 0.95 0\nH -0.55 -0.95 0\n"
    ends = {"backward": start, "forward": start.replace("-0.55 -0.95", "1.7 -0.93")}
    minima: Any = {
        side: SimpleNamespace(molecule=Molecule.from_string(text)) for side, text in ends.items()
    }
    assert reaction_path._ends(minima, reaction_path._own_bonds(minima)) == [
        "minimum backwards: CH2N, with the bond C1-H4",
        "minimum forwards: CH2N, with the bond N2-H4",
    ]
