"""`dfmp2 report FOLDER`: the overview of a batch with its failures, read from the files of the folder only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import listing
from tests.report_page import parse


@pytest.fixture
def batch(folder, water, radical):
    """The output folder of a batch with every kind of item, hostile ones among them."""
    output = folder / "out"
    output.mkdir()
    shutil.copy(water.path, output / "h2o.h5")
    shutil.copy(radical.path, output / "nh2.h5")
    (output / "cut.h5").write_bytes(water.path.read_bytes()[:20_000])
    failure = {"code": 4, "message": "the SCF did not converge: try <b>more</b>", "traceback": "Traceback\n  <i>x</i>"}
    (output / "cr2.error.json").write_text(json.dumps(failure))
    (output / "odd.error.json").write_text("no json")
    (output / "link.h5").symlink_to(water.path)
    (output / "h2o.error.json").write_text(json.dumps({"code": 75, "message": "old"}))
    items = [
        {"name": "later", "status": "pending"},
        {"name": "lost", "status": "complete"},
        {"name": "../../etc/passwd", "status": "pending", "output": "/etc/passwd"},
        {"name": "<script>alert(1)</script>", "status": "running", "seconds": 2.5},
        {"name": 7},
        {"name": "cr2", "status": "failed", "seconds": 10**400},
        "nonsense",
    ]
    (output / "batch.json").write_text(json.dumps({"items": items}))
    return output


@pytest.mark.parametrize("source", ["out", "out/batch.json"])
def test_every_item_has_its_row(call, batch, water, source):
    before = listing(batch)
    done = call("report", source, "-o", "r.html", "--title", "Night <run>")
    assert done.code == 0, done.err
    assert listing(batch) == before
    elements = parse(Path("r.html").read_text(encoding="utf-8"))
    good = elements.row("h2o", "complete")
    assert good[4:7] == [
        f"{water.json[key]:.10f}" for key in ("scf_total_energy", "mp2_correlation_energy", "mp2_total_energy")
    ]
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
    assert "the SCF did not converge: try <b>more</b>" in elements.text and "<i>x</i>" in elements.text
    assert "SCF did not converge" in elements.row("4")[1]
    assert "h2o has a result and an error file: the result counts" in elements.text
    assert (
        "computed with different methods" in elements.text and "frozen-core: none (1, e.g. h2o), 1 (1," in elements.text
    )
    assert "not followed, because they are links: link.h5" in elements.text
    assert "Night <run>" in elements.text and elements.tags.count("script") == 1
    links = [value for value in elements.values("href") if value.startswith("#failure")]
    assert set(links) == {"#failures", "#failure-1", "#failure-2", "#failure-3", "#failure-4"}
    assert all(link[1:] in elements.values("id") for link in links)


def test_a_folder_without_an_index_is_a_batch_too(call, batch):
    (batch / "batch.json").unlink()
    done = call("report", "out", "-o", "r.md")
    assert done.code == 0, done.err
    text = Path("r.md").read_text(encoding="utf-8")
    assert "| cr2 | failed (4) |" in text and "later" not in text


def test_what_follows_from_the_molecule_is_no_other_method(call, folder):
    """RHF or UHF and the number of core orbitals differ; an SCF or a basis that differs is said, with an example."""
    (folder / "out").mkdir()
    for name in ("h2o", "nh2", "nah", "h2"):
        options = ("--basis", "sto-3g", "--frozen-core", "auto", "--output", f"out/{name}.h5")
        assert call("run", f"{name}.xyz", *options).code == 0

    def page():
        done = call("report", "out", "-o", "r.html", "--overwrite")
        assert done.code == 0, done.err
        return parse(Path("r.html").read_text(encoding="utf-8")).text

    assert "All complete items: DF-MP2/sto-3g on DF-HF, reference auto, frozen core auto, precision auto." in page()
    assert call("run", "o2.xyz", *options[:4], "--scf", "conventional", "--output", "out/o2.h5").code == 0
    assert "different methods, so their energies cannot be compared: scf: df (4, e.g. h2), conventional (1" in page()


def test_the_page_does_not_replace_a_file_of_the_batch(call, batch):
    before = listing(batch)
    for name in ("h2o.h5", "cr2.error.json", "batch.json"):
        done = call("report", "out", "-o", f"out/{name}", "--format", "html", "--overwrite")
        assert done.code == 3 and "is read for the report" in done.message
    assert listing(batch) == before


def test_an_index_that_is_nonsense_is_said_and_not_used(call, batch):
    for content in ("[" * 100_000, "[]", '{"items": 3}', "\x00"):
        (batch / "batch.json").write_text(content)
        done = call("report", "out", "-o", "r.html", "--overwrite")
        assert done.code == 0, done.err
        assert "holds no list of items" in parse(Path("r.html").read_text(encoding="utf-8")).text
