"""The published figures and ideas: each has its source, its sizes and its test."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dfmp2.trainium.costs import published
from dfmp2.validation import entries
from tests.conftest import succeed

ROOT = Path(__file__).parent.parent
# What the sources say of their own figures: NKI over PyTorch on the same machine, in words of the
# table.
RATIOS = {
    "pair": 53,
    "four-index": 1.0,
    "einsum-512": 3.0,
    "batch-256": 2.3,
    "einsum-1024": 1.2,
    "einsum-2048": 1 / 1.6,
    "batch-1024": 1.5,
    "mp2-5": 10,
    "mp2-16": 1.6,
    "medium-fused": 1 / 1.48,
    "large-fused": 1 / 1.47,
}
VERDICTS = {"better", "works", "different", "not here", "device"}


def test_every_figure_has_a_source_and_what_can_be_repeated_is():
    sources, figures = published.load_published()
    assert {one.source for one in figures} <= set(sources) and len(
        {one.id for one in figures}
    ) == len(figures)
    by_id = {one.id: one for one in figures}
    for name, ratio in RATIOS.items():
        assert by_id[name].published / by_id[name].torch == pytest.approx(ratio, rel=0.08), name
    assert {name for name, one in by_id.items() if one.torch} == set(RATIOS)
    known = {entry.id for entry in entries.load_entries("trnsci")}
    assert {one.entry for one in figures if one.entry} <= known
    for one in figures:
        predicted = published.model(one, "trn1") if one.operations < 1e10 else None
        assert one.operations >= 1e10 or (predicted is None) == (not one.kind), one
        if predicted is not None:
            assert 0 < predicted[0] <= predicted[1]
            assert one.unit != "x" or 2 < predicted[0] < 4
    up, down, kernel = (
        published.model(by_id[name], "trn1") for name in ("up-2048", "down-2048", "kernel-2048")
    )
    # Operands, stored with one column more
    assert up == (pytest.approx(2 * 4 * 2048 * 2049 / 4.6e6),) * 2
    assert down == (pytest.approx(4 * 2048**2 / 5.6e6),) * 2
    assert 4 * 2048**3 / 128**2 / 2.8e6 < kernel[0] < 0.85 < kernel[1]


def test_the_table_is_labelled_and_measures_when_it_is_told_to(call, monkeypatch):
    sources, figures = published.load_published()
    short = tuple(one for one in figures if one.id in ("pair", "mp2-5", "cached", "h2o"))
    monkeypatch.setattr(published, "load_published", lambda: (sources, short))
    told = succeed(call("kernels", "published", "--threads", "1")).out
    assert (
        "measured by others on trn1" in told
        and "predicted, one trn1 core" in told
        and "source: trns" in told
    )
    rows = succeed(call("kernels", "published", "--threads", "1", "--json")).json["figures"]
    assert [row["host"] for row in rows] == [None] * 4
    rows = succeed(call("kernels", "published", "--measure", "--threads", "1", "--json")).json[
        "figures"
    ]
    times = {row["id"]: row["host"] for row in rows}
    assert 0 < times["pair"] < times["mp2-5"] < 1e3 and times["cached"] is times["h2o"] is None
    assert "trntensor" in rows[1]["source"]


def test_what_takes_long_is_measured_only_when_asked_for():
    medium = next(one for one in published.load_published()[1] if one.id == "medium-fused")
    assert medium.operations == 64 * 65 * 448**2 * 1536
    assert published.measured(medium, 1, slow=False) is None


def test_every_published_idea_has_a_verdict_and_a_test_that_exists():
    with (ROOT / "docs/project/trainium/audit.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert len(rows) >= 93 and {row["page"] for row in rows} == set("01234")
    assert len({row["idea"] for row in rows}) == len(rows)
    for row in rows:
        assert row["verdict"] in VERDICTS and row["ours"] and row["evidence"], row
        assert "|" not in row["idea"] + row["ours"], row
        for name in row["evidence"].split():
            file, _, test = name.partition("::")
            text = (ROOT / "tests" / file).read_text()
            assert f"\ndef {test}(" in text if test else "\ndef test_" in text, name
            # Only what waits for a device may rest on tests that are skipped without one.
            assert row["verdict"] == "device" or file not in (
                "test_nki_on_lanes.py",
                "test_nki_xla.py",
            ), row
