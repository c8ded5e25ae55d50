"""`dfmp2 report` on a study or a batch."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from xml.etree import ElementTree

import h5py
import pytest

from dfmp2.output import hdf5
from dfmp2.output.hdf5_datasets import Dataset
from dfmp2.output.html.svg import scan_curve
from dfmp2.output.study import Column, Study, StudyWriter
from tests.conftest import listing
from tests.report_page import parse

NASTY = "</td><script>alert(1)</script>"


# --- a study --------------------------------------------------------------------------------------


@pytest.fixture
def study(folder, water, radical):
    """A study of two runs, with hostile texts."""
    runs = {"complex": hdf5.read(water.path), "fragment": hdf5.read(radical.path)}
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
    assert elements.row("total, CP")[1:] == [
        "-0.0224119246",
        "Eh",
        "-14.0637",
        NASTY,
    ]
    assert next(row for row in elements.rows if row) == [
        "interaction energy, counterpoise-corrected / kcal/mol",
        "-14.0637",
        "the same",
    ]
    assert elements.row("status")[1] == "incomplete"
    assert elements.row("distance") == ["distance", "1.9", "Å", "", "between them"]
    assert elements.row("complex", "-1.2500000000") and elements.row("fragment", "-")
    assert elements.row("complex", "H₂O")[6] == f"{water.json['mp2_total_energy']:.10f}"
    assert "INCOMPLETE" in elements.text and elements.tags.count("script") == 1
    assert "must not be subtracted" not in elements.text  # which is what the study did, and rightly


def test_the_curve_of_a_scan_is_a_file_of_its_own_whatever_its_title():
    columns = {
        "bond": Column((1.0, 2.0, math.nan), NASTY, ""),
        "relative_energy": Column((3.0, 0.0, math.nan), "", ""),
    }
    study = Study("scan", NASTY, {}, (), {}, columns, {}, True, version="1", command="", created="")
    svg = scan_curve(study)
    root = ElementTree.fromstring(svg)
    drawn = {"svg", "style", "g", "rect", "text", "line", "polyline", "circle", "title"}
    assert {item.tag.partition("}")[2] for item in root.iter()} <= drawn
    assert svg.count("<title>") == 2 and NASTY in "".join(root.itertext())


def test_a_study_that_was_changed_is_refused(call, study):
    with h5py.File(study, "a") as handle:
        handle["study/values/cp_corrected_interaction_energy"][()] = -1.0
    done = call("report", "study.h5", "-o", "r.html")
    assert done.code == 3 and "stored hash" in done.message and not Path("r.html").exists()


# --- a batch --------------------------------------------------------------------------------------


@pytest.fixture
def batch(folder, water, radical):
    """The output folder of a batch with every kind of item, hostile ones among them."""
    output = folder / "out"
    output.mkdir()
    shutil.copy(water.path, output / "h2o.h5")
    shutil.copy(radical.path, output / "nh2.h5")
    (output / "cut.h5").write_bytes(water.path.read_bytes()[:20_000])
    (output / "link.h5").symlink_to(water.path)
    failure = {
        "code": 4,
        "message": "the SCF did not converge: try <b>more</b>",
        "traceback": "Traceback\n  <i>x</i>",
    }
    (output / "cr2.error.json").write_text(json.dumps(failure))
    (output / "odd.error.json").write_text("no json")
    (output / "h2o.error.json").write_text(json.dumps({"code": 75, "message": "old"}))
    items = [
        {"name": "later", "status": "pending"},
        {"name": "lost", "status": "complete"},
        {"name": "../../etc/passwd", "status": "pending", "output": "/etc/passwd"},
        {"name": "<script>alert(1)</script>", "status": "running", "seconds": 2.5},
        {"name": "cr2", "status": "failed", "seconds": 10**400},
        {"name": 7},
        "nonsense",
    ]
    (output / "batch.json").write_text(json.dumps({"dfmp2_batch_version": 2, "items": items}))
    return output


@pytest.mark.parametrize("source", ["out", "out/batch.json"])
def test_every_item_has_its_row(call, batch, water, source):
    before = listing(batch)
    done = call("report", source, "-o", "r.html", "--title", "Night <run>")
    assert done.code == 0, done.err
    assert listing(batch) == before
    elements = parse(Path("r.html").read_text(encoding="utf-8"))
    good = elements.row("h2o", "complete")
    keys = ("scf_total_energy", "mp2_correlation_energy", "mp2_total_energy")
    assert good[4:7] == [f"{water.json[key]:.10f}" for key in keys]
    states = {row[0]: row[1] for row in elements.rows if len(row) == 10}
    assert states == {
        "item": "state (exit code)",
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
    assert (
        "the SCF did not converge: try <b>more</b>" in elements.text and "<i>x</i>" in elements.text
    )
    assert "SCF did not converge" in elements.row("4")[1]
    assert "h2o has a result and an error file: the result counts" in elements.text
    assert "computed with different methods" in elements.text
    assert "frozen-core: none (1, e.g. h2o), 1 (1," in elements.text
    assert "not followed, because they are links: link.h5" in elements.text
    assert "Night <run>" in elements.text and elements.tags.count("script") == 1
    links = [value for value in elements.values("href") if value.startswith("#failure")]
    assert set(links) == {"#failures", "#failure-1", "#failure-2", "#failure-3", "#failure-4"}
    assert all(link[1:] in elements.values("id") for link in links)


def test_what_follows_from_the_molecule_is_no_other_method(call, folder):
    """RHF or UHF and the number of core orbitals differ; an SCF or a basis that differs is said,
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
    asked = ["method", "DF-MP2/STO-3G", "reference auto, frozen core auto"]
    assert parse(Path("r.html").read_text(encoding="utf-8")).row("method") == asked
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
