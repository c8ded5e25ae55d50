"""`dfmp2 report` on the file of an interaction energy, a basis-set limit or a scan: stored numbers, not new ones."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import pytest

from dfmp2.io.study import Column, Study, StudyWriter, Value
from tests.report_page import parse, stored

NASTY = "</td><script>alert(1)</script>"


@pytest.fixture
def study(folder, water, radical):
    """A study of two runs, with hostile texts."""
    runs = {"complex": stored(water.path), "fragment": stored(radical.path)}
    found = Study(
        kind="interaction",
        title=NASTY,
        settings={"basis": NASTY},
        notes=(NASTY, "counterpoise"),
        values={
            "interaction_energy": Value(-0.0224119246, "hartree", NASTY),
            "interaction_energy_kj_per_mol": Value(-58.8424999, "kJ/mol", "the same"),
            "distance": Value(1.9, "angstrom", "between them"),
        },
        table={"run": Column(tuple(runs), "", ""), "energy": Column((-1.25, math.nan), "hartree", "")},
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
    assert elements.row("interaction energy") == ["interaction energy", "-0.0224119246", "-58.8425", NASTY]
    assert elements.row("distance") == ["distance", "1.9", "angstrom", "between them"]
    assert elements.row("complex", "-1.2500000000") and elements.row("fragment", "not recorded")
    assert elements.row("complex", "H2O")[6] == f"{water.json['mp2_total_energy']:.10f}"
    assert "The study is incomplete" in elements.text and elements.tags.count("script") == 1
    assert "must not be subtracted" not in elements.text  # which is what the study did, and rightly
    assert call("report", "study.h5", "-o", "r.md").code == 0
    text = Path("r.md").read_text(encoding="utf-8")
    assert "| interaction energy | -0.0224119246 | -58.8425 |" in text and "<script" not in text.split("```")[0]


def test_a_study_is_shown_alone_and_whole(call, study, water):
    done = call("report", "study.h5", str(water.path), "-o", "r.html")
    assert done.code == 3 and "name it alone" in done.message
    with h5py.File(study, "a") as handle:
        handle["study/values/interaction_energy"][()] = -1.0
    done = call("report", "study.h5", "-o", "r.html")
    assert done.code == 3 and "stored hash" in done.message
    study.write_bytes(study.read_bytes()[:10_000])
    assert call("report", "study.h5", "-o", "r.html").code == 3 and not Path("r.html").exists()
