"""Reaction paths, and reuse of Hessians."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import dfmp2
from dfmp2.errors import InputError, NumericalError
from dfmp2.molecule.files import read_frames
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.structure import fragment_formulas, rotation_onto
from dfmp2.molecule.xyz import parse_xyz
from dfmp2.options import Options
from dfmp2.output.study import read_study
from dfmp2.progress import Silent
from dfmp2.studies import frequencies, reaction_path
from dfmp2.studies.frequencies import StoredHessian, hessian_of
from dfmp2.studies.geometric_search import GeomeTRIC, Search
from dfmp2.studies.optimize import optimize_geometry
from dfmp2.studies.reaction_path import arc_length
from dfmp2.studies.task import Step, Unfinished
from dfmp2.units import ANGSTROM_PER_BOHR, KJ_PER_MOL_PER_HARTREE
from tests.conftest import Runner, succeed
from tests.recorded import recorded_error, recorded_failure
from tests.springs import ON_SPRINGS, on_springs, pyramid, pyramids, second_derivatives, springs

WATER = "3\n\nO 0 0 0\nH 0 0.757 0.587\nH 0.1 -0.757 0.587\n"
NEAR_TOP = "3\n\nC 0 0 0\nN 1.21 0 0\nH 0.35 1.17 0\n"
OPTIONS = ("--basis", "sto-3g", "--threads", "1", "--stability", "off")


def molecule(text: str, **state: Any) -> Molecule:
    return parse_xyz(text, file="x.xyz", **state).molecule


# --- Hessians that are stored ---------------------------------------------------------------------


def stored_hessian(molecule: Molecule, hessian: Any, level: str) -> StoredHessian:
    """A Hessian as from a file x.h5; nothing else of its result is used."""
    result: Any = SimpleNamespace(molecule=molecule, level=level)
    return StoredHessian("x.h5", result, hessian)


def test_a_hessian_turns_with_the_molecule() -> None:
    water = molecule(WATER)
    stored = stored_hessian(water, second_derivatives(water.coordinates), "MP2/x")
    turn = Rotation.from_euler("xyz", [0.3, -1.1, 2.0]).as_matrix()
    moved = replace(water, coordinates=water.coordinates @ turn.T + [1.0, -2.0, 0.5])
    expected = second_derivatives(moved.coordinates)
    assert np.abs(expected - stored.hessian).max() > 0.1
    assert stored.turned_to(moved) == pytest.approx(expected, abs=1e-5)
    assert stored.distance(moved) == pytest.approx(0.0, abs=1e-12)
    wider = molecule(WATER.replace("-0.757", "-0.957"))
    turned = replace(wider, coordinates=wider.coordinates @ turn.T + [1.0, -2.0, 0.5])
    # the ends have come apart by 0.2 angstrom, of which the best rotation leaves more than a third
    assert 0.07 < stored.distance(turned) * ANGSTROM_PER_BOHR < 0.2
    search = replace(stored, at_start=True)
    with recorded_error(InputError):
        search.turned_to(turned, 0.01)


def test_the_hessian_of_another_molecule_is_refused() -> None:
    water = molecule(WATER)
    stored = stored_hessian(water, np.eye(9), "MP2/x")
    others = (
        molecule(WATER.replace("O ", "S ")),
        molecule("3\n\nH 0 0.757 0.587\nO 0 0 0\nH 0.1 -0.757 0.587\n"),
        replace(water, charge=1, multiplicity=2),
        replace(water, multiplicity=3),
        molecule(WATER.replace("-0.757", "-1.957")),
    )
    for other in others:
        with recorded_error(InputError):
            stored.turned_to(other)


def test_a_search_that_displaced_every_atom_holds_the_hessian_of_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frequencies, "hessian", lambda *_: np.eye(9))
    start: Any = SimpleNamespace(molecule=molecule(WATER))
    names = [
        f"{sign}-{atom:03d}-{axis}"
        for sign in ("plus", "minus")
        for atom in (1, 2, 3)
        for axis in "xyz"
    ]
    study: Any = SimpleNamespace(
        kind="optimization",
        settings={"path": ["step-000", "step-001"]},
        arrays={},
        results={**dict.fromkeys(["step-000", *names], start), "step-001": None},
        complete=False,
    )
    found = hessian_of(study, "x.h5")
    assert found.at_start and found.result is start and np.array_equal(found.hessian, np.eye(9))
    for name in ("minus-002-z", "minus-001-z"):
        del study.results[name]
        with pytest.raises(InputError):
            hessian_of(study, "x.h5")


def test_an_optimisation_starts_from_a_hessian() -> None:
    """One spring between two hydrogen atoms, stored in another direction than used; the bond length
    is that of a parabola through energies around it."""
    given = {"basis": "sto-3g", "threads": 1, "stability": "off"}
    h2 = molecule("2\n\nH 0 0 0\nH 0 0 0.74\n")
    along_x = molecule("2\n\nH 0 0 0\nH 0.74 0 0\n")
    second = np.zeros((6, 6))
    second[np.ix_([0, 3], [0, 3])] = 0.6 * np.array([[1, -1], [-1, 1]])
    stored = stored_hessian(along_x, second, "a spring")
    study = optimize_geometry(h2, Options(**given), start_hessian=stored)
    length = float(np.linalg.norm(np.diff(study.last.coordinates, axis=0))) * ANGSTROM_PER_BOHR
    scan = dfmp2.scan(h2, coordinate=("bond", "1,2", "0.66:0.80:8"), **given)
    assert length == pytest.approx(scan.values["minimum_quartic"].value, abs=1e-3)
    assert "start Hessian: x.h5, a spring" in study.notes
    again = optimize_geometry(study.last, Options(**given), start_hessian=stored)
    assert list(again.runs) == ["step-000"]  # its curvature is known


# --- paths ----------------------------------------------------------------------------------------


def test_the_length_of_a_path() -> None:
    """Two hydrogen atoms of mass m that separate by 2 d: s = sqrt(2 m) d; rotation adds nothing."""
    first = molecule("2\n\nH 0 0 0\nH 0 0 0.74\n")
    d, mass = 0.05, 1.00782503223
    apart = np.array([[0, 0, -d], [0, 0, d]])
    turn = Rotation.from_euler("xyz", [0.4, 0.2, -0.7]).as_matrix()
    second = replace(first, coordinates=(first.coordinates + apart) @ turn.T + 3.0)
    assert arc_length(first, second) == pytest.approx(math.sqrt(2 * mass) * d, rel=1e-6)
    other = (18.99840316273, mass)  # u; only the distance changes, by 2 d
    first = replace(first, symbols=("F", "H"))
    second = replace(second, symbols=("F", "H"))
    reduced = math.prod(other) / sum(other)
    assert arc_length(first, second) == pytest.approx(math.sqrt(reduced) * 2 * d, rel=1e-6)
    # The steps are weighted with masses of isotopes too; the mean of chlorine's is 35.45.
    acid = molecule("3\n\nCl 0 0 0\nO 0 0 1.7\nH 0.9 0.2 2.0\n")
    weights = GeomeTRIC(acid, Search(), "", downhill="forward")._optimizer.IC.mass
    assert weights == pytest.approx(np.repeat([34.96885268, 15.99491462, mass], 3), rel=1e-7)


@pytest.mark.parametrize("mirrored", [False, True])
def test_superposed_geometries_are_the_nearest_by_weight(mirrored: bool) -> None:
    """SciPy's rotation, also onto a mirror image, where a reflection would be nearer."""
    rng = np.random.default_rng(4)
    places = rng.standard_normal((5, 3))
    turned = places @ Rotation.from_rotvec([0.4, -1.1, 0.7]).as_matrix().T
    target = turned + 0.2 * rng.standard_normal((5, 3))
    if mirrored:
        target[:, 0] *= -1
    for weights in (np.ones(5), np.array([15.995, 1.008, 12.0, 1.008, 34.969])):
        expected = Rotation.align_vectors(target, places, weights)[0].as_matrix()
        np.testing.assert_allclose(rotation_onto(places, target, weights), expected, atol=1e-10)


class FakeDescent:
    """geomeTRIC on a path of five geometries, the third of which it refuses. The last one is in a
    valley, or a minimum."""

    at_minimum = False

    def __init__(self, top: Molecule, search: Any, start: str, *, downhill: str) -> None:
        self.count, self.top, self.side = 0, top, downhill

    def judge(self, run: Any, hessian: Any) -> Any:
        last = 0.41 if self.at_minimum else 0.39  # of 4, the largest that is not refused
        return SimpleNamespace(
            said=f"judged {self.count}", max_gradient=(0, 4, 9, 3, last, last)[self.count]
        )

    def next_geometry(self) -> Any:
        self.count += 1
        if self.side == "forward" and self.count == 4:
            return None
        return self.top.coordinates + 0.1 * self.count

    @property
    def refused(self) -> bool:
        return self.count == 2

    @property
    def arrived(self) -> bool:
        return self.at_minimum and self.count == 4


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


def test_the_descent_takes_the_steps_that_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On either side, until the minimum is found or there are no more steps. A minimum found with
    the last step needs no further one."""
    top = molecule("2\n\nH 0 0 0\nH 0 0 0.74\n")
    step = Step(name=reaction_path.TOP, who="", molecule=top, options=Options("sto-3g"))
    heard: list[str] = []
    descent = reaction_path._Descent.__new__(reaction_path._Descent)
    descent._top, descent._search, descent._hessian = step, Search(max_steps=4), None
    descent._listener = SimpleNamespace(note=heard.append)
    descent.sides, descent.courses, descent.minima = {"backward": [], "forward": []}, {}, {}
    monkeypatch.setattr(reaction_path, "GeomeTRIC", FakeDescent)

    def course(first: Step, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(then=lambda _: iter(()), path=[first.name, "minimum"])

    monkeypatch.setattr(reaction_path, "Course", course)
    results = {reaction_path.TOP: SimpleNamespace(molecule=top)}

    def go(side: str) -> list[Step]:
        taken = []
        for (one,) in descent._down(side, results):
            results[one.name] = SimpleNamespace(molecule=one.molecule)
            taken.append(one)
        return taken

    taken = go("backward")
    assert [one.name for one in taken] == [f"backward-{number:03d}" for number in (1, 2, 3, 4)]
    assert [one.start for one in taken] == [reaction_path.TOP, "", "", ""]
    for number, one in enumerate(taken, start=1):
        np.testing.assert_allclose(one.molecule.coordinates, top.coordinates + 0.1 * number)
    whole = ["backward-001", "backward-003", "backward-004", "minimum"]
    assert descent._geometries("backward") == whole
    assert descent.minima == {"backward": "minimum"}
    monkeypatch.setattr(FakeDescent, "at_minimum", True)
    descent.sides["backward"] = []
    assert [one.name for one in go("backward")] == [one.name for one in taken]
    with recorded_error(Unfinished):
        go("forward")
    assert descent.sides["forward"] == ["forward-001", "forward-003"]
    assert sum(line.startswith(f"{reaction_path.TOP}: ") for line in heard) == 1


def test_a_path_on_springs_joins_both_minima(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a pyramid turned inside out, by formulas: energies, barriers, and the side on which the
    hydrogen atoms are. With the Hessian of a search it makes none."""
    tilts, energies = pyramids()
    top = Molecule(("N", "H", "H", "H"), pyramid(tilts[1]))

    def path(start: Molecule, **how: Any) -> Any:
        return reaction_path.reaction_path(start, ON_SPRINGS, **how)

    every = on_springs(monkeypatch, top)
    study = path(top)
    assert study.complete and len(every) == len(study.runs)
    units = {"": 1.0, "_kj_per_mol": 2625.4996394799, "_kcal_per_mol": 627.5094740631}
    # Forwards the largest component of the mode, that of hydrogen along the axis, decreases.
    lower, saddle, higher = energies
    for name, expected in (
        ("barrier_forward", saddle - higher),
        ("barrier_backward", saddle - lower),
        ("reaction_energy", lower - higher),
    ):
        for unit, factor in units.items():
            value = study.values[f"{name}{unit}"].value / factor
            assert value == pytest.approx(expected, abs=2e-7)
    found = [
        study.values[f"{name}_energy"].value
        for name in ("forward_minimum", "transition_state", "backward_minimum")
    ]
    assert found == pytest.approx(energies, abs=2e-7)
    names, table = study.settings["path"], study.table
    assert (study.settings["backward_run"], study.settings["forward_run"]) == (names[0], names[-1])
    assert study.settings["max_steps"] == Search().max_steps
    assert list(table["run"].values) == names
    place = names.index(reaction_path.TOP)
    runs = list(study.path.values())
    lengths = [arc_length(one.molecule, next_one.molecule) for one, next_one in pairwise(runs)]
    assert table["s"].values[place] == 0.0 and min(lengths) > 0
    assert np.diff(table["s"].values) == pytest.approx(lengths)
    above = [(run.total_energy - found[0]) * units["_kj_per_mol"] for run in runs]
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
    assert (np.diff(table["total_energy"].values[: place + 1]) > 0).all()
    assert (np.diff(table["total_energy"].values[place:]) < 0).all()
    for name, energy in zip(names, table["total_energy"].values, strict=True):
        assert energy == pytest.approx(springs(study.runs[name].molecule.coordinates), abs=1e-9)
    assert sum("1 imaginary mode of 6" in note for note in study.notes) == 1
    assert any("mirror images" in note for note in study.notes)

    stored = hessian_of(study, "path.h5")
    assert stored.molecule == top
    steps = [name for name in study.runs if "curvature" not in name]
    most = max(sum(name.startswith(side) for name in steps) for side in reaction_path.SIDES)
    with recorded_error(Unfinished):
        path(top, search=Search(max_steps=most - 1), start_hessian=stored)
    tight = Search(convergence="gau_verytight", max_steps=9)
    with recorded_error(Unfinished) as refused:  # within the optimisation of a minimum
        path(top, search=tight, start_hessian=stored)
    stopped = refused.value.study
    assert list(stopped.path)[-1] == list(stopped.runs)[-1] == "forward-minimum-step-001"

    search = Search(transition_state=True, verify=True)
    found = optimize_geometry(top, ON_SPRINGS, search, listener=Silent())
    on_springs(monkeypatch, found.last)
    reused = path(found.last, start_hessian=hessian_of(found, "ts.h5"))
    assert not any(name.startswith(("plus-", "minus-")) for name in reused.runs)
    assert reused.settings["start_hessian"] == "ts.h5"

    minimum = Molecule(("N", "H", "H", "H"), pyramid(tilts[0]))
    on_springs(monkeypatch, minimum)
    with recorded_error(NumericalError) as refused:
        path(minimum)
    assert not refused.value.goes_on
    assert "Hessian: ts.h5, DF-MP2/sto-3g" in reused.notes
    ends = [reused.values[f"{side}_minimum_energy"].value for side in ("forward", "backward")]
    assert ends == pytest.approx([lower, higher], abs=1e-6)


def test_the_command_goes_down_both_sides(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two goes; what its last lines say, and its files."""
    tilts, (lower, saddle, higher) = pyramids()
    top = Molecule(("N", "H", "H", "H"), pyramid(tilts[1]))
    on_springs(monkeypatch, top)
    places = zip(top.symbols, top.coordinates * ANGSTROM_PER_BOHR, strict=True)
    rows = [f"{symbol} {x} {y} {z}" for symbol, (x, y, z) in places]
    (folder / "t.xyz").write_text("\n".join(["4", "", *rows, ""]))
    short = call("irc", "t.xyz", *OPTIONS, "--max-steps", "3")
    recorded_failure(short, 4)
    files = "t.irc.csv, t.irc.svg, t.irc.trajectory.xyz -> t.irc.h5"
    assert short.out.splitlines()[-1] == f"dfmp2 NOT FINISHED: 4 points; {files}"
    done = succeed(call("irc", "t.xyz", *OPTIONS, "--resume", "--tolerance", "1e-6"))
    assert done.kept_runs == 28
    path = read_study("t.irc.h5").path
    ahead, back = ((saddle - energy) * KJ_PER_MOL_PER_HARTREE for energy in (higher, lower))
    assert done.out.splitlines()[-1] == (
        f"dfmp2 finished: H3N, two conformers, {len(path)} points, barrier {ahead:.2f} kJ/mol, "
        f"back {back:.2f}; {files}"
    )
    table = list(csv.DictReader((folder / "t.irc.csv").read_text().splitlines()))
    assert [row["run"] for row in table] == list(path)
    for frame, run in zip(read_frames("t.irc.trajectory.xyz"), path.values(), strict=True):
        assert frame.coordinates == pytest.approx(run.molecule.coordinates, abs=1e-9)


def test_fragments_are_named_by_their_bonds() -> None:
    far = "5\n\nO 0 0 0\nH 0 0.757 0.587\nH 0 -0.757 0.587\nC 0 0 9\nN 0 0 10.17\n"
    assert fragment_formulas(molecule(far, charge=-1)) == "H2O + CN"


def test_the_bonds_of_one_minimum_alone_are_named_by_their_atoms() -> None:
    """One of two hydrogens has gone from carbon to nitrogen, and a bond has been made there."""
    start = "4\n\nC 0 0 0\nN 1.27 0 0\nH -0.55 0.95 0\nH -0.55 -0.95 0\n"
    ends = {"backward": start, "forward": start.replace("-0.55 -0.95", "1.7 -0.93")}
    minima: Any = {side: SimpleNamespace(molecule=molecule(text)) for side, text in ends.items()}
    own = reaction_path._own_bonds(minima)
    assert own == {"backward": ["C1-H4"], "forward": ["N2-H4"]}
    lines = reaction_path._ends(minima, own)
    assert lines == [
        "minimum backwards: CH2N, with the bond C1-H4",
        "minimum forwards: CH2N, with the bond N2-H4",
    ]


@pytest.mark.slow
def test_hydrogen_moves_from_carbon_to_nitrogen(call: Runner, folder: Path) -> None:
    """From the transition state between HCN and HNC, with the Hessian of its search, down to both;
    their energies are those of separate optimisations."""
    (folder / "top.xyz").write_text(NEAR_TOP)
    search = ("optimize", "top.xyz", "--transition-state", *OPTIONS)
    succeed(call(*search, "--verify", "--output", "ts.h5"))
    again = succeed(call(*search, "--start-hessian", "ts.h5", "--output", "again.h5", "--json"))
    assert not [name for name in again.json["runs"] if name.startswith(("plus", "minus"))]
    saddle = read_study("ts.h5").values["optimized_total_energy"].value
    assert again.json["optimized_total_energy"] == pytest.approx(saddle, abs=1e-6)

    found = read_study("ts.h5").arrays["final_geometry"].value * ANGSTROM_PER_BOHR
    found[2, 0] += 0.001
    rows = [f"{symbol} {x} {y} {z}" for symbol, (x, y, z) in zip("CNH", found, strict=True)]
    (folder / "near.xyz").write_text("\n".join(["3", "", *rows, ""]))
    near = ("irc", "near.xyz", *OPTIONS, "--start-hessian", "ts.h5", "--output", "near.h5")
    assert call(*near, "--max-steps", "1").code == 4
    told = [note for note in read_study("near.h5").notes if "angstrom away" in note]
    assert len(told) == 1 and "are of a geometry 0.000" in told[0]

    path = ("irc", "ts.xyz", *OPTIONS, "--start-hessian", "ts.h5", "--output", "p.h5")
    values = succeed(call(*path, "--json")).json
    assert not any("angstrom away" in note for note in values["notes"])
    assert not [name for name in values["runs"] if name.startswith(("plus", "minus"))]

    ends = {}
    for name, place in (("hcn", -1.08), ("hnc", 2.18)):
        text = f"3\n\nC 0 0 0\nN 1.18 0 0\nH {place} 0.05 0\n"
        study = dfmp2.optimize(molecule(text), "sto-3g", threads=1, stability="off")
        ends[name] = study.values["optimized_total_energy"].value
    sides = {values[f"{side}_minimum_energy"] for side in ("backward", "forward")}
    assert sorted(sides) == pytest.approx(sorted(ends.values()), abs=1e-6)
    assert values["transition_state_energy"] == pytest.approx(saddle, abs=1e-6)
    bonds = [note for note in values["notes"] if note.startswith("minimum ")]
    assert sorted(note.partition(";")[0].split(", ")[1] for note in bonds) == [
        "with the bond C1-H3",
        "with the bond N2-H3",
    ]
