"""`dfmp2 report` on a study or a batch."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import dfmp2
from dfmp2.output import hdf5
from dfmp2.output.drawings.plots import (
    Curve,
    _labelled_peaks,
    _without_overshoot,
    convergence,
    curves,
)
from dfmp2.output.drawings.studies import curve_file
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.html import batch as batch_pages
from dfmp2.output.html.sources import Origin, _answers, study_page
from dfmp2.output.reports.study import study_figures, study_warnings
from dfmp2.output.study import Column, Study, StudyWriter, Warned
from tests.report_page import page_of_runs, parse
from tests.test_error_budget import budget_of

NASTY = "</td><script>alert(1)</script>"


# --- a study --------------------------------------------------------------------------------------


@pytest.fixture
def study(folder, water, radical):
    """A study of two runs, with hostile texts."""
    one, other = hdf5.read(water.path), hdf5.read(radical.path)
    runs = {
        "complex": replace(one, diagnostics=replace(one.diagnostics, warnings=("dark", "cold"))),
        "fragment": replace(other, diagnostics=replace(other.diagnostics, warnings=("dark",))),
    }
    found = Study(
        kind="interaction",
        title=NASTY,
        settings={"basis": NASTY},
        notes=(NASTY, "counterpoise"),
        values={
            "cp_corrected_interaction_energy": Dataset(-0.0224119246, "hartree", NASTY),
            "cp_corrected_interaction_energy_kcal_per_mol": Dataset(
                -14.06369499, "kcal/mol", "the same"
            ),
            "distance": Dataset(1.9, "angstrom", "between them"),
        },
        table={
            "run": Column(tuple(runs), "", ""),
            "energy": Column((-1.25, math.nan), "hartree", ""),
        },
        runs=runs,
        complete=False,
        version="1",
        command=NASTY,
        created="2026",
    )
    writer = StudyWriter(folder / "study.h5", overwrite=False)
    for name, run in runs.items():
        writer.add(name, run)
    writer.write(found)
    return folder / "study.h5"


def test_a_study_is_shown_with_its_runs(call, study, water):
    assert call("report", "study.h5", "-o", "r.html").code == 0
    elements = parse(Path("r.html").read_text(encoding="utf-8"))
    energies = ["total, CP", "-0.0224119246", "Eh", "-14.0637"]
    assert elements.row("total, CP") == energies  # in the summary
    assert [*energies, NASTY] in elements.rows  # over all results
    assert next(row for row in elements.rows if row) == [
        "interaction energy, counterpoise-corrected / kcal/mol",
        "-14.0637",
        "the same",
    ]
    assert elements.row("warnings")[:3] == ["warnings", "2", "in 2 of 2 runs"]
    assert elements.row("complex", "-1.2500000000") and elements.row("fragment", "-")
    assert elements.row("complex", "H₂O")[6] == f"{water.json['mp2_total_energy']:.10f}"
    assert "INCOMPLETE" in elements.text and elements.tags.count("script") == 1
    assert "must not be subtracted" not in elements.text  # the study did just that, rightly


def test_three_curves_are_drawn_of_many() -> None:
    """There is no fourth dash pattern."""
    items = [Curve(name, [(0.0, 1.0), (1.0, float(ord(name)))]) for name in "ABCDE"]
    root = ElementTree.fromstring(curves("many", items, "x", "y"))
    assert [node.get("class") for node in root.iter() if node.tag.endswith("polyline")] == [
        *("s1", "s2", "s3"),
    ]
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert [text for text in texts if text in ("A", "B", "C", "D", "E")] == ["A", "B", "C"]


def test_an_axis_spans_the_points_and_what_a_fit_has_far_beyond() -> None:
    """A twentieth of the range of the points beyond them is within the axis."""
    points = Curve("points", [(0.0, 1.0), (1.0, 3.0)])
    fit = Curve("fit", [(0.0, 0.91), (0.5, 0.89), (1.0, 3.11)], fitted=True)
    assert _without_overshoot([points, fit]) == (1.0, 3.0, 0.89, 3.11)
    assert _without_overshoot([fit]) == ()


def test_labels_of_peaks_stand_apart_and_steps_without_energy_are_left_out() -> None:
    """A label is 34 wide; peaks below 3 % of the strongest have none."""
    lines = [(1610.0, 90.0), (1600.0, 100.0), (3000.0, 2.9), (2500.0, 3.1), (2000.0, 50.0)]
    assert _labelled_peaks(lines, lambda x: x / 10) == [1600.0, 2000.0, 2500.0]
    assert _labelled_peaks(lines, lambda x: 4 * x) == [1600.0, 1610.0, 2000.0, 2500.0]
    drawn = convergence("", Curve("energy", [(0.0, math.nan), (1.0, 2.0)]), [], [])
    assert "nan" not in drawn and "energy: 1, 2" in drawn


def test_warnings_name_their_first_three_runs() -> None:
    class Warning:
        """A study of six runs, four of which say the same."""

        runs = dict.fromkeys("abcdef")
        all_warnings = (
            Warned("alone", ()),
            Warned("once", ("c",)),
            Warned("thrice", ("a", "b", "d")),
            Warned("often", ("a", "b", "d", "e")),
            Warned("0.1 at least", ("a", "b", "d", "e"), differs=True),
        )

    assert study_warnings(Warning()) == [  # type: ignore[arg-type]
        "alone",
        "c: once",
        "3 of 6 runs (a, b, d): thrice",
        "4 of 6 runs (a, b, d, ...): often",
        "4 of 6 runs (a, b, d, ...; figures of the first): 0.1 at least",
    ]


# --- a batch --------------------------------------------------------------------------------------


@pytest.fixture
def batch(folder, water, radical):
    """The output folder of a batch with every kind of item, hostile ones among them."""
    output = folder / "out"
    output.mkdir()
    shutil.copy(water.path, output / "h2o.h5")
    shutil.copy(radical.path, output / "nh2.h5")
    for name in ("cut", "cr2"):  # of which the second has also its error
        (output / f"{name}.h5").write_bytes(water.path.read_bytes()[:20_000])
    (output / "link.h5").symlink_to(water.path)
    failure = {
        "code": 4,
        "message": "the SCF did not converge: try <b>more</b>",
        "traceback": "Traceback\n" + 5000 * " " + "<i>x</i>",
    }
    (output / "cr2.error.json").write_text(json.dumps(failure))
    (output / "odd.error.json").write_text("no json")
    (output / "h2o.error.json").write_text(json.dumps({"code": 75, "message": "old"}))
    items = [
        {"name": "later", "status": "pending"},
        {"name": "lost", "status": "complete"},
        {"name": "h2o", "status": "complete", "seconds": 99.0},  # of the file the time counts
        {"name": "../../etc/passwd", "status": "pending", "output": "/etc/passwd"},
        {"name": "<script>alert(1)</script>", "status": "running", "seconds": 2.5},
        {"name": "cr2", "status": "failed", "seconds": 10**400},
        {"name": "odd", "status": "failed", "seconds": 7.25},
        {"name": 7},
        "nonsense",
    ]
    (output / "batch.json").write_text(json.dumps({"dfmp2_batch_version": 2, "items": items}))
    return output


@pytest.mark.parametrize("source", ["out", "out/batch.json"])
def test_every_item_has_its_row(call, batch, water, source):
    done = call("report", source, "-o", "r.html", "--title", "Night <run>")
    assert done.code == 0, done.err
    elements = parse(Path("r.html").read_text(encoding="utf-8"))
    good = elements.row("h2o", "complete")
    runs = [dfmp2.read(batch / f"{name}.h5") for name in ("h2o", "nh2")]
    spent = sum(run.timings.total for run in runs)
    assert elements.row("complete", "2 of 9")[2] == f"wall time {spent:.1f} s in all"
    keys = ("scf_total_energy", "mp2_correlation_energy", "mp2_total_energy")
    assert good[4:7] == [f"{water.json[key]:.10f}" for key in keys]
    assert elements.row("odd", "failed")[7] == "7.25"
    assert batch_pages.LOST in elements.text
    states = {row[0]: row[1] for row in elements.rows if len(row) == 10}
    assert states == {
        "item": "state",
        "h2o": "complete",
        "nh2": "complete",
        "cut": "damaged (3)",
        "cr2": "failed (4)",
        "odd": "failed",
        "later": "pending",
        "lost": "damaged",
        "../../etc/passwd": "pending",
        "<script>alert(1)</script>": "running",
    }
    message = "the SCF did not converge: try <b>more</b>"
    assert ["cr2", message] in elements.rows and "<i>x</i>" in elements.text
    assert "SCF did not converge" in elements.row("4")[1]
    assert "h2o has a result and an error file: the result counts" in elements.text
    assert "frozen-core: none (1, e.g. h2o), 1 (1," in elements.text
    assert "not followed, because they are links: link.h5" in elements.text
    assert "Night <run>" in elements.text and elements.tags.count("script") == 1


def test_tiles_of_a_batch_count_items_of_each_state_and_warnings_of_complete_ones():
    """Made up: of every state another number, and other times and warnings in each item."""
    items = [
        batch_pages.BatchRow(
            name=f"{state}-{number}",
            state=state,
            seconds=10.0 * place + number,
            cells=("",) * 7 + (str(number + place),),
            asked=("DF-MP2/STO-3G", "auto"),
            code=(None, 4, 4, 3, 4, 4)[number],
        )
        for place, state in enumerate(batch_pages.STATES, start=1)
        for number in range(place + 1)
    ]
    done = [item for item in items if item.state == "complete"]
    tiles = {tile.name: tuple(map(str, tile[1:])) for tile in batch_pages._tiles(items, done)}
    assert tiles == {
        "complete": (f"2 of {len(items)}", "wall time 21.0 s in all", ""),
        "failed": ("3", "", "failure"),
        "damaged": ("4", "", "failure"),
        "running": ("5", "", ""),
        "pending": ("6", "", ""),
        "method": ("DF-MP2/STO-3G", "auto", ""),
        "warnings": ("3", "of complete items", "warning"),
    }
    by_code = batch_pages._by_code([item for item in items if item.state in ("failed", "damaged")])
    assert by_code.rows == [
        (4, "SCF did not converge", 4),
        ("none", "unknown", 2),
        (3, "input or result file", 1),
    ]


@pytest.mark.parametrize(("most", "said"), [(3, True), (4, False)])
def test_the_first_failures_are_shown(call, batch, monkeypatch, most, said):
    """The batch has four failures and two complete items."""
    monkeypatch.setattr(batch_pages, "MOST_FAILURES", most)
    monkeypatch.setattr(batch_pages, "SUMMARISED", most - 1)
    monkeypatch.setattr(batch_pages, "SLOWEST", most - 2)
    assert call("report", "out", "-o", "r.html").code == 0
    elements = parse(Path("r.html").read_text(encoding="utf-8"))
    assert (f"The first {most} of 4 failures are shown below" in elements.text) == said
    links = {value for value in elements.values("href") if value.startswith("#failure-")}
    assert links == {f"#failure-{place}" for place in range(1, most + 1)}
    assert {link[1:] for link in links} <= set(elements.values("id"))
    assert f"Failed items, the first {most - 1} of 4" in elements.text
    assert ("Wall time of the 2 longest items" in elements.text) == (most - 2 == 2)


def test_what_follows_from_the_molecule_is_no_other_method(call, folder):
    """RHF or UHF and the number of core orbitals may differ; a different SCF or basis is reported,
    with an example."""
    (folder / "out").mkdir()
    for name in ("nh2", "nah", "h2"):
        options = ("--basis", "sto-3g", "--frozen-core", "auto", "--output", f"out/{name}.h5")
        assert call("run", f"{name}.xyz", *options).code == 0

    def page():
        done = call("report", "out", "-o", "r.html", "--overwrite")
        assert done.code == 0, done.err
        return parse(Path("r.html").read_text(encoding="utf-8")).text

    assert "All complete items: basis STO-3G, reference auto, relativity none, SCF df" in page()
    assert (
        call("run", "o2.xyz", *options[:4], "--scf", "conventional", "--output", "out/o2.h5").code
        == 0
    )
    assert (
        "different methods, so their energies cannot be compared: SCF: df (3, e.g. h2), "
        "conventional (1" in page()
    )


def test_an_index_that_is_nonsense_is_said_and_not_used(call, batch):
    for content in ("[" * 100_000, '{"items": 3}', None):
        (batch / "batch.json").unlink() if content is None else (batch / "batch.json").write_text(
            content
        )
        done = call("report", "out", "-o", "r.html", "--overwrite")
        assert done.code == 0, done.err
        elements = parse(Path("r.html").read_text(encoding="utf-8"))
        assert ("holds no list of items" in elements.text) == (content is not None)
        assert elements.row("cr2", "failed (4)") and "later" not in elements.text


# --- drawings of studies --------------------------------------------------------------------------


def drawn_study(kind, table, arrays=None, values=None, settings=None, title="study"):
    """A study without runs that has the data of a drawing."""
    return Study(
        kind=kind,
        title=title,
        settings=settings or {},
        notes=(),
        values=values or {},
        table=table,
        runs={},
        complete=True,
        arrays=arrays or {},
    )


def test_the_curve_of_a_scan_is_a_file_of_its_own_whatever_its_title():
    """Quotes and brackets stay in an attribute, or in a text."""
    title = f'say "x" onload="alert(1)" > <y> & \'z\' {NASTY}'
    table = {
        "bond": Column((1.0, 2.0, math.nan), 'A" onclick="x', ""),
        "relative_energy": Column((3.0, 0.0, math.nan), "kJ/mol", ""),
    }
    svg = curve_file(drawn_study("scan", table, title=title))
    root = ElementTree.fromstring(svg)
    drawn = {"svg", "style", "g", "rect", "text", "line", "polyline", "circle", "title"}
    assert {item.tag.partition("}")[2] for item in root.iter()} <= drawn
    assert svg.count("<title>") == 2 and 'A" onclick="x' in "".join(root.itertext())
    assert root.get("aria-label") == title
    assert set(root.keys()) == {"viewBox", "width", "height", "role", "aria-label", "data-axis"}
    for item in root.iter():
        assert not [name for name in item.attrib if name.startswith("on")]


def test_an_unfinished_map_shows_its_points_and_the_lowest_of_them(monkeypatch):
    """One of its points has failed, and the last row is still to come."""
    table = {
        "bond_1_2": Column((0.7, 0.7, 0.75, 0.75), "angstrom", ""),
        "angle_1_2_3": Column((95.0, 120.0, 95.0, 120.0), "degree", ""),
        "relative_energy": Column((math.nan, 5.9, 8.1, 0.0), "kJ/mol", ""),
    }
    settings = {"coordinates": list(table)[:2], "grid": [[0.7, 0.75, 0.8], [95.0, 120.0]]}
    settings |= {"failed": 1, "points": 6, "name": "pbe"}
    study = drawn_study("scan", table, settings=settings)
    monkeypatch.setattr(Study, "error_budget", budget_of(None))
    elements = parse(study_page(study, [], None, Origin("x.h5", "0" * 64)))
    assert elements.row("failed points") == ["failed points", "1", "of 6"]
    assert "good to" not in elements.text
    assert _answers(study)[0][:2] == ("lowest point / angstrom, degree", "0.75, 120")
    boxes = re.findall(
        r'<rect class="l(\d)" x="([\d.]+)" y="([\d.]+)" [^>]*><title>([^<]+)</title>',
        curve_file(study),
    )
    # 52 by 40 a box, from 64 to the right and from 154 upwards
    assert [title for *_, title in boxes] == [
        "bond 1 2 = 0.7, angle 1 2 3 = 120: 5.90 kJ/mol",
        "bond 1 2 = 0.75, angle 1 2 3 = 95: 8.10 kJ/mol",
        "bond 1 2 = 0.75, angle 1 2 3 = 120: 0.00 kJ/mol",
    ]
    shares = [1 - math.log1p(energy) / math.log1p(8.1) for energy in (5.9, 8.1, 0.0)]
    assert [int(shade) for shade, *_ in boxes] == [round(9 * share) for share in shares]
    for share, (_, x, y, _), place in zip(shares, boxes, ((1, 0), (0, 1), (1, 1)), strict=True):
        width, height = ((side - 1.5) * (0.25 + 0.75 * share) for side in (52, 40))
        middle = float(x) + width / 2, float(y) + height / 2
        assert middle == pytest.approx((90 + 52 * place[0], 134 - 40 * place[1]), abs=0.02)
    table["relative_energy"] = Column((math.nan,) * 4, "kJ/mol", "")
    assert "no point has an energy" in curve_file(drawn_study("scan", table, settings=settings))


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("scf_total_energy", "functional_energy", "hf_total_energy"), "hf_total_energy"),
        (("scf_total_energy", "functional_energy"), "functional_energy"),
        (("scf_total_energy",), "scf_total_energy"),
    ],
)
def test_a_series_of_basis_sets_shows_what_the_correlation_energy_is_added_to(names, chosen, water):
    table = {
        "basis": Column(("dz", "tz", "limit"), "", ""),
        "correlation_energy": Column((-0.1, -0.2, -0.3), "hartree", ""),
        **{name: Column((-1.0 - k, -2.5, -3.0), "hartree", "") for k, name in enumerate(names)},
    }
    study = replace(drawn_study("cbs", table), runs={"dz": hdf5.read(water.path)})
    (figure,) = study_figures(study)
    assert [curve.points for curve in figure.draw.args[1]] == [
        [(0, -0.1), (1, -0.2), (2, -0.3)],
        [(0, table[chosen].values[0] + 3.0), (1, 0.5), (2, 0.0)],
    ]


@pytest.mark.parametrize(
    ("note", "marked"),
    [
        ("NO STATIONARY POINT: the gradient of an atom is 6.7e-02 Eh/bohr", True),
        ("NOT CONVERGED: the last geometry is only the last", True),
        ("TOO COLD: rotations are those of a classical rotor", True),
        ("a is NO MINIMUM and no transition state", True),
        ("a is NO TRANSITION STATE: it has no imaginary mode", True),
        ("a is a transition state", False),
    ],
)
def test_what_the_numbers_of_a_study_are_not_is_a_warning_on_its_first_sheet(note, marked):
    study = replace(drawn_study("reaction", {}, settings={"species": []}), notes=("usual", note))
    page = study_page(study, [], None, Origin("x.h5", "0" * 64))
    assert page.count('<p class="note warning"><b>! Warning:') == 2 * marked
    first, results = parse(page).text.split("x.h5", 1)
    assert (f"Warning: {note}" in first) == marked and note in results


def test_a_scan_whose_points_all_failed_is_a_page():
    table = {
        "bond_1_2": Column((0.7, 0.8), "angstrom", ""),
        "relative_energy": Column((math.nan, math.nan), "kJ/mol", ""),
        "exit_code": Column((4.0, 4.0), "", ""),
    }
    elements = parse(page_of_runs(kind="scan", table=table))
    assert elements.row("0.7") == ["0.7", "-", "4"] and "no point has an energy" in elements.text


@pytest.mark.parametrize(
    ("lowest", "position", "bend", "inside"),
    [
        (0.0, 0.0, 1e-3, 21),
        (30.0, 30.0, 1e-3, 31),
        (330.0, 330.0, 1e-3, 31),
        (360.0, 360.0, 1e-3, 21),
        (0.0, 180.0, -1e-3, 41),
    ],
)
def test_the_fit_of_a_circle_goes_on_beyond_its_ends(lowest, position, bend, inside):
    """A minimum at 0 and 360 degrees, or near them: the part of its curve that lies inside is
    drawn; all of a maximum far from them. The polynomial through five points of a cosine is off by
    less than 0.05 kJ/mol."""
    x = np.arange(0.0, 361.0, 30.0)
    above = 10.0 * (1.0 - np.cos(np.radians(x - lowest)))
    table = {
        "dihedral": Column(tuple(x), "degree", ""),
        "relative_energy": Column(tuple(above), "kJ/mol", ""),
    }
    arrays = {
        "extrema_position": Dataset(np.array([position]), "degree", ""),
        "extrema_curvature": Dataset(np.array([bend]), "", ""),
        "extrema_points": Dataset(np.array([5.0]), "", ""),
    }
    svg = curve_file(drawn_study("scan", table, arrays, settings={"units": "degree"}))
    fit = ElementTree.fromstring(svg).find(".//{*}polyline[@class='fit']")
    points = [point.split(",") for point in fit.get("points").split()]
    assert len(points) == inside  # of 41
    x, y = np.array(points, float).T
    axis = re.search('data-axis="([^"]+)"', svg)[1].split()
    low, high, bottom, top, left, right = map(float, axis)
    ticks = [float(number) for number in re.findall(r">([\d.]+)</text>", svg)]
    places = (x - left) / (right - left) * max(ticks)
    assert low + (y - bottom) / (top - bottom) * (high - low) == pytest.approx(
        10.0 * (1.0 - np.cos(np.radians(places - lowest))), abs=0.05
    )
