"""Measurements, texts and drawings of molecules and studies in Python, against formulas and ASE."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

from dfmp2 import Molecule
from dfmp2.errors import InputError
from dfmp2.options import Options
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from dfmp2.studies.coordinate import make_coordinate
from dfmp2.studies.scan import along, scan_energies
from tests.recorded import recorded_error

PEROXIDE = "O 0 0 0; O 0.2 0.1 1.45; H 0.9 -0.2 -0.3; H -0.3 0.85 1.75"


def test_measures_of_a_molecule():
    molecule = Molecule.from_string(PEROXIDE)
    assert (molecule.text, molecule.name, molecule.source) == (PEROXIDE, "molecule", "python")
    places = np.array([[0, 0, 0], [0.2, 0.1, 1.45], [0.9, -0.2, -0.3], [-0.3, 0.85, 1.75]])
    length = np.sqrt(0.2**2 + 0.1**2 + 1.45**2)
    assert molecule.distance(1, 2) == pytest.approx(length)
    a, b = places[2] - places[0], places[1] - places[0]
    angle = np.degrees(np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
    assert molecule.angle(3, 1, 2) == pytest.approx(angle)
    assert molecule.bonds()[1, 2] == pytest.approx(length)
    assert set(molecule.bonds()) == {(1, 2), (1, 3), (2, 4)}
    assert molecule.angles()[2, 1, 3] == pytest.approx(angle)
    axis = b / np.linalg.norm(b)
    first = a - (a @ axis) * axis
    d = places[3] - places[1]
    last = d - (d @ axis) * axis
    turn = np.degrees(np.arctan2(np.cross(first, last) @ axis, first @ last))
    assert molecule.dihedral(3, 1, 2, 4) == pytest.approx(turn)


@pytest.fixture(scope="module")
def helium_scan():
    molecule = Molecule.from_string("He 0 0 0; He 0 0.1 3")
    coordinate = make_coordinate("bond", "1,2", "2.6:3.4:3", molecule, units="angstrom")
    return scan_energies(along(molecule, [coordinate], Options("6-31g", threads=1)))


def test_a_scan_is_drawn(helium_scan):
    pytest.importorskip("matplotlib").use("Agg")
    axes = helium_scan.plot()
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [2.6, 3.0, 3.4]
    assert list(line.get_ydata()) == list(helium_scan.table["relative_energy"].values)
    assert (axes.get_title(), axes.get_xlabel()) == (helium_scan.title, "bond 1 2 / angstrom")
    assert axes.get_ylabel() == "E - lowest / kJ/mol"
    assert helium_scan.plot(axes) is axes


def made(kind, **table):
    columns = {name: Column(values, units, "") for name, (values, units) in table.items()}
    energy = {"energy": Dataset(-1.5, "hartree", "<of it>")}
    return Study(kind, "made <here>", {}, (), energy, columns, {}, True)


def test_spectrum_and_course_are_drawn():
    pytest.importorskip("matplotlib").use("Agg")
    spectrum = made(
        "frequencies",
        wavenumber=([-50.0, 1600.0, 3700.0], "cm^-1"),
        ir_intensity=([1.0, 70.0, 5.0], "km/mol"),
    ).plot()
    (sticks,) = spectrum.collections
    assert [tuple(end) for _, end in sticks.get_segments()] == [(1600.0, 70.0), (3700.0, 5.0)]
    assert [tuple(end) for end, _ in sticks.get_segments()] == [(1600.0, 0.0), (3700.0, 0.0)]
    assert spectrum.get_ylim()[0] == 0 and spectrum.xaxis_inverted()
    labels = ("made <here>", "wavenumber / cm^-1", "IR intensity / km/mol")
    assert (spectrum.get_title(), spectrum.get_xlabel(), spectrum.get_ylabel()) == labels
    course = made(
        "optimization",
        step=([0.0, 1.0], ""),
        max_gradient=([1e-2, 1e-4], "hartree/bohr"),
        rms_gradient=([5e-3, 5e-5], "hartree/bohr"),
    ).plot()
    assert course.get_yscale() == "log"
    assert [list(line.get_ydata()) for line in course.get_lines()] == [[1e-2, 1e-4], [5e-3, 5e-5]]
    assert [list(line.get_xdata()) for line in course.get_lines()] == [[0.0, 1.0]] * 2
    names = [text.get_text() for text in course.get_legend().get_texts()]
    assert names == ["largest of an atom", "root mean square"]
    assert (course.get_xlabel(), course.get_ylabel()) == ("step", "gradient / Eh/bohr")


def made_map(*energies):
    study = made(
        "scan",
        bond_1_2=([1.0, 1.0, 1.2, 1.0], "angstrom"),
        angle_2_1_3=([90.0, 100.0, 90.0, 110.0], "degree"),
        relative_energy=(energies, "kJ/mol"),
    )
    study.settings["coordinates"] = ["bond_1_2", "angle_2_1_3"]
    study.settings["coordinate"] = "bond_1_2, angle_2_1_3"
    return study


def test_finished_points_of_a_map_on_one_line_are_drawn_as_points():
    pytest.importorskip("matplotlib").use("Agg")
    for energies, shown, places in (
        ((2.0, 0.0, np.nan, 1.0), [2.0, 0.0, 1.0], [[1.0, 90.0], [1.0, 100.0], [1.0, 110.0]]),
        ((np.nan, 2.0, 0.0, np.nan), [2.0, 0.0], [[1.0, 100.0], [1.2, 90.0]]),
        ((np.nan, np.nan, 0.0, np.nan), [0.0], [[1.2, 90.0]]),
    ):
        (points,) = made_map(*energies).plot().collections
        assert (points.get_array().tolist(), points.get_offsets().tolist()) == (shown, places)
    with recorded_error(InputError):
        made_map(np.nan, np.nan, np.nan, np.nan).plot()


def test_a_map_is_drawn():
    pytest.importorskip("matplotlib").use("Agg")
    axes = made_map(0.0, 2.0, 5.0, float("nan")).plot()
    assert axes.get_ylabel() == "angle 2 1 3 / degree"
    assert axes.get_xlabel() == "bond 1 2 / angstrom"
    assert axes.get_xlim() == (1.0, 1.2) and axes.get_ylim() == (90.0, 100.0)
    assert axes.figure.axes[1].get_ylabel() == "E - lowest / kJ/mol"


def test_what_cannot_be_drawn(monkeypatch, helium_scan):
    with recorded_error(InputError):
        made("cbs").plot()
    with recorded_error(InputError):
        made("scan").plot()
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with recorded_error(ImportError):
        helium_scan.plot()


def test_a_study_in_a_notebook(helium_scan):
    text = helium_scan._repr_html_()
    lowest = min(run.total_energy for run in helium_scan.runs.values())
    assert f"{lowest:.10f}" in text
    assert "<th>bond_1_2 / angstrom</th>" in text
    escaped = made("cbs", basis=(["a<b"], ""))._repr_html_()
    assert "made &lt;here&gt;" in escaped
    assert "a&lt;b" in escaped
    assert "-1.5000000000" in escaped
