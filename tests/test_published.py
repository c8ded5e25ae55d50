"""Published figures and ideas: each has a source, sizes and a test."""

from __future__ import annotations

import csv

import pytest

from dfmp2.backends.base import Shape
from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.costs.model import CHIPS
from tests.conftest import ROOT
from tests.test_numbers import require_test

# The sources' own figures: NKI over PyTorch on the same machine, worded as in the table.
RATIOS = {
    "einsum ap,bp->ab 48x128": 53,
    "einsum mi,mnP->inP 32x8, 32x32x64": 1.0,
    "einsum ij,jk->ik 512^3": 3.0,
    "einsum bij,bjk->bik 16x256^3": 2.3,
    "einsum ij,jk->ik 1024^3": 1.2,
    "einsum ij,jk->ik 2048^3": 1 / 1.6,
    "einsum bij,bjk->bik 32x1024^3": 1.5,
    "mp2_energy 5x19x72, fused": 10,
    "mp2_energy 16x128x128, fused": 1.6,
    "MP2 energy of T, medium, fused": 1 / 1.48,
    "MP2 energy of T, large, fused": 1 / 1.47,
}
VERDICTS = {"better", "works", "different", "not here", "device"}


def figures():
    with (ROOT / "docs/project/trainium/published.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def number(text):
    return float(text.replace(",", ""))


def predicted(again):
    """Smallest and largest prediction for a column `repeated as`; ms, or a ratio if B stays."""
    kind, _, sizes = again.partition(" ")
    sizes = tuple(map(int, sizes.split("/")))
    if kind == "pairs":
        (one,) = catalogue.predict((Shape(*sizes),), chips=("trn1",))
        return 1e3 * (one.device + one.queued), 1e3 * (one.slowest + one.dispatch)
    one = catalogue.predict_product(sizes, CHIPS["trn1"])
    batches, _, rows, columns = sizes
    up, down = one.uploaded / 4.6e6, 4 * batches * rows * columns / 5.6e6
    calls = [1e3 * (time + one.dispatch) for time in (one.device, one.slowest)]
    if kind == "resident":  # five calls
        return sorted(5 * (call + up + down) / (5 * call + up + down) for call in calls)
    if kind == "product":
        return [call + up + down for call in calls]
    return {"up": (up, up), "down": (down, down), "kernel": (1e3 * one.device, 1e3 * one.slowest)}[
        kind
    ]


def short(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def test_every_figure_has_a_source_and_what_can_be_predicted_is():
    rows = {row["what"]: row for row in figures()}
    assert len(rows) == 20 and all(row["source"].startswith("trnsci") for row in rows.values())
    for name, ratio in RATIOS.items():
        row = rows[name]
        published, torch = row["published, NKI on trn1"], row["published, PyTorch on its CPU"]
        assert number(published) / number(torch) == pytest.approx(ratio, rel=0.08), name
    assert {
        name for name, row in rows.items() if row["published, PyTorch on its CPU"] != "-"
    } == set(RATIOS)
    for row in rows.values():
        if row["repeated as"] != "-":
            values = dict.fromkeys(map(short, predicted(row["repeated as"])))
            assert row["predicted, trn1 core"] == " to ".join(values)
    resident = predicted(rows["5 x 2048^3, operands sent / resident"]["repeated as"])
    assert 2 < resident[0] < resident[1] < 4


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
            if test:
                require_test(name)
            else:
                assert "\ndef test_" in (ROOT / "tests" / file).read_text(), name
                assert file != "test_sessions.py", f"{row['idea']}: which session?"
            # Only entries that await a device may rest on tests that are skipped without one.
            assert row["verdict"] == "device" or file not in (
                "test_nki_on_lanes.py",
                "test_nki_xla.py",
            ), row
