"""Drawings and texts of studies in Python.

Measures of molecules, against ASE, are in the session molecules-of-others."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from dfmp2.errors import InputError
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.study import Column, Study
from tests.recorded import recorded_error


@pytest.fixture(autouse=True)
def no_window() -> None:
    pytest.importorskip("matplotlib").use("Agg")


def made(kind: str, **table: Any) -> Study:
    """A study with a title, an energy and columns of values with their units."""
    columns = {name: Column(values, units, "") for name, (values, units) in table.items()}
    energy = {"energy": Dataset(-1.5, "hartree", "<of it>")}
    return Study(kind, "made <here>", {}, (), energy, columns, {}, True)


@pytest.fixture
def scan() -> Study:
    """Three points along a bond."""
    study = made(
        "scan",
        bond_1_2=([2.6, 3.0, 3.4], "angstrom"),
        relative_energy=([1.5, 0.0, 0.25], "kJ/mol"),
    )
    study.settings["coordinates"] = ["bond_1_2"]
    study.settings["coordinate"] = "bond_1_2"
    return study


def test_a_scan_is_drawn(scan: Study) -> None:
    axes = scan.plot()
    (line,) = axes.get_lines()
    assert line.get_xydata().tolist() == [[2.6, 1.5], [3.0, 0.0], [3.4, 0.25]]
    labels = (scan.title, "bond 1 2 / angstrom", "E - lowest / kJ/mol")
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == labels
    assert scan.plot(axes) is axes


def test_spectrum_and_course_are_drawn() -> None:
    spectrum = made(
        "frequencies",
        wavenumber=([-50.0, 1600.0, 3700.0], "cm^-1"),
        ir_intensity=([1.0, 70.0, 5.0], "km/mol"),
    ).plot()
    (sticks,) = spectrum.collections
    assert [stick.tolist() for stick in sticks.get_segments()] == [
        [[1600.0, 0.0], [1600.0, 70.0]],
        [[3700.0, 0.0], [3700.0, 5.0]],
    ]
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
    assert [line.get_xydata().tolist() for line in course.get_lines()] == [
        [[0.0, 1e-2], [1.0, 1e-4]],
        [[0.0, 5e-3], [1.0, 5e-5]],
    ]
    names = [text.get_text() for text in course.get_legend().get_texts()]
    assert names == ["largest of an atom", "root mean square"]
    assert (course.get_xlabel(), course.get_ylabel()) == ("step", "gradient / Eh/bohr")


def made_map(*energies: float) -> Study:
    study = made(
        "scan",
        bond_1_2=([1.0, 1.0, 1.2, 1.0], "angstrom"),
        angle_2_1_3=([90.0, 100.0, 90.0, 110.0], "degree"),
        relative_energy=(energies, "kJ/mol"),
    )
    study.settings["coordinates"] = ["bond_1_2", "angle_2_1_3"]
    study.settings["coordinate"] = "bond_1_2, angle_2_1_3"
    return study


def test_finished_points_of_a_map_on_one_line_are_drawn_as_points() -> None:
    for energies, shown, places in (
        ((2.0, 0.0, np.nan, 1.0), [2.0, 0.0, 1.0], [[1.0, 90.0], [1.0, 100.0], [1.0, 110.0]]),
        ((np.nan, 2.0, 0.0, np.nan), [2.0, 0.0], [[1.0, 100.0], [1.2, 90.0]]),
        ((np.nan, np.nan, 0.0, np.nan), [0.0], [[1.2, 90.0]]),
    ):
        (points,) = made_map(*energies).plot().collections
        assert (points.get_array().tolist(), points.get_offsets().tolist()) == (shown, places)
    with recorded_error(InputError):
        made_map(np.nan, np.nan, np.nan, np.nan).plot()


def test_a_map_is_drawn() -> None:
    axes = made_map(0.0, 2.0, 5.0, float("nan")).plot()
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "bond 1 2 / angstrom",
        "angle 2 1 3 / degree",
    )
    assert axes.get_xlim() == (1.0, 1.2) and axes.get_ylim() == (90.0, 100.0)
    assert axes.figure.axes[1].get_ylabel() == "E - lowest / kJ/mol"


def test_what_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch, scan: Study) -> None:
    for kind in ("cbs", "scan"):
        with recorded_error(InputError):
            made(kind).plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with recorded_error(ImportError):
        scan.plot()


def test_a_study_in_a_notebook() -> None:
    text = made("cbs", basis=(["a<b"], ""), bond_1_2=([2.6], "angstrom"))._repr_html_()
    for part in ("made &lt;here&gt;", "a&lt;b", "-1.5000000000", "<th>bond_1_2 / angstrom</th>"):
        assert part in text
