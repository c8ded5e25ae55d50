"""`dfmp2 report` on one result: a page that is whole, says what is stored, and cannot be made to say anything else."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from dfmp2 import calibration, product_rates
from dfmp2.covalent_radii import COVALENT, bonds
from dfmp2.forecast import Rates
from dfmp2.record import Certificate, Storage, Timings
from dfmp2.report.cost import Speed, cost_blocks, stage_rates, work_of
from dfmp2.report.drawing import FAINTEST, FILLS, OTHER_FILL, orient
from dfmp2.report.pairs import list_pairs
from dfmp2.report.sources import known_speed
from dfmp2.report.style import DARK, LEVELS, LIGHT, mix
from tests.conftest import listing
from tests.report_page import enlarged, open_shell, page_of, parse, stored

NASTY = "</title><script>alert(1)</script><img src=//x.invalid/a onerror=alert(2)> \"'&amp;\x1b[2J\r\n\x00\u202e|`*_$@x"


@pytest.fixture(scope="module")
def result(water):
    return stored(water.path)


@pytest.fixture(scope="module")
def page(result):
    return page_of(result)


def written(call, *arguments):
    """Run `dfmp2 report` and return what it wrote."""
    done = call("report", *arguments)
    assert done.code == 0, done.err
    return done


def test_the_page_is_whole_and_refers_to_nothing_outside(page):
    elements = parse(page)
    ids = elements.values("id")
    assert len(ids) == len(set(ids)) and len(ids) > 10
    assert all(link[0] == "#" and link[1:] in ids for link in elements.values("href") if link != "data:,")
    assert set(elements.values("aria-labelledby")) <= set(ids)
    assert not elements.values("src") and not elements.values("style")
    assert not [name for _, name, _ in elements.attributes if name.startswith("on")]
    assert not [value for value in (v for _, _, v in elements.attributes) if re.search(r"https?:|//|url\(", value)]
    assert not re.search(r"@import|url\(|https?:", page.split("<style>")[1].split("</style>")[0])
    assert elements.tags.count("script") == 1 and elements.tags.count("style") == 1
    assert all(value in ("col", "row") for value in elements.values("scope"))
    assert elements.tags.count("h1") == 1 and elements.tags.count("svg") == elements.values("role").count("img")
    assert len(elements.values("aria-label")) >= elements.tags.count("svg")
    assert all(np.isfinite(float(key)) for key in elements.values("data-key"))


@pytest.mark.parametrize("which", ["water", "radical"])
def test_printed_energies_are_the_stored_ones_to_the_last_digit(which, call, request):
    case = request.getfixturevalue(which)
    written(call, str(case.path), "-o", "r.html")
    rows = parse(Path("r.html").read_text(encoding="utf-8"))
    names = {
        "nuclear repulsion": "nuclear_repulsion_energy",
        "reference energy": "scf_total_energy",
        "same-spin correlation": "mp2_same_spin_correlation_energy",
        "opposite-spin correlation": "mp2_opposite_spin_correlation_energy",
        "MP2 correlation": "mp2_correlation_energy",
        "MP2 total": "mp2_total_energy",
        "SCS-MP2 correlation": "scs_mp2_correlation_energy",
        "SOS-MP2 correlation": "sos_mp2_correlation_energy",
    }
    if which == "radical":
        names["scaled MP2 correlation"] = "scaled_mp2_correlation_energy"
    for name, key in names.items():
        assert rows.row(name)[1] == f"{case.json[key]:.10f}", name
    assert case.json["provenance"]["command"] in rows.text
    assert case.json["certificate" if "certificate" in case.json else "precision"] is not None
    for text in (case.json["backend_reason"], case.json["provenance"]["blas"], case.json["provenance"]["host"]):
        assert text in rows.text
    found = case.json["precision_certificate"]
    assert rows.row("estimated error of E(corr)")[1] == f"{found['correlation_error']:.1e} Eh"
    assert f"{case.json['check']['same_spin_difference']:+.2e}" in rows.text


def test_markdown_has_the_numbers_of_the_page(call, water):
    written(call, str(water.path), "-o", "r.html")
    written(call, str(water.path), "-o", "r.md")
    text = Path("r.md").read_text(encoding="utf-8")
    cells = {cell for row in parse(Path("r.html").read_text(encoding="utf-8")).rows for cell in row}
    numbers = {cell for cell in cells if re.fullmatch(r"-?\d+\.\d+", cell)}
    assert len(numbers) >= 60 and [number for number in numbers if f"| {number} |" not in text] == []
    assert [line for line in text.splitlines() if line.startswith("## ")] and "<" not in text.replace("&lt;", "")
    assert (
        call("report", str(water.path), "--format", "md").code == 0
        and Path("report.md").read_text(encoding="utf-8") == text
    )


def nasty(result):
    """The same result with every text in it hostile."""
    molecule = dataclasses.replace(result.molecule, name=NASTY, source=NASTY, text=f"3\n{NASTY}\nO 0 0 0")
    texts = {
        f.name: NASTY for f in dataclasses.fields(result.provenance) if f.name not in ("threads", "backend_details")
    }
    return dataclasses.replace(
        result,
        molecule=molecule,
        backend_reason=NASTY,
        backend=NASTY,
        frozen_core_note=NASTY,
        orbital_basis=dataclasses.replace(result.orbital_basis, name=NASTY),
        diagnostics=dataclasses.replace(result.diagnostics, warnings=(NASTY,)),
        reference=dataclasses.replace(result.reference, start=NASTY, ladder=(NASTY,)),
        check=dataclasses.replace(result.check, program=NASTY),
        provenance=dataclasses.replace(result.provenance, **texts, backend_details=(NASTY, f"a: {NASTY}")),
    )


def harmless(result):
    """The same result with as many texts, all harmless."""
    other = nasty(result)
    replaced = json.dumps(NASTY)[1:-1]
    assert replaced  # the texts differ, the structure does not
    plain = "plain"
    molecule = dataclasses.replace(other.molecule, name=plain, source=plain, text=f"3\n{plain}\n{plain}\nO 0 0 0")
    texts = {
        f.name: plain for f in dataclasses.fields(other.provenance) if f.name not in ("threads", "backend_details")
    }
    return dataclasses.replace(
        other,
        molecule=molecule,
        backend_reason=plain,
        backend=plain,
        frozen_core_note=plain,
        orbital_basis=dataclasses.replace(other.orbital_basis, name=plain),
        diagnostics=dataclasses.replace(other.diagnostics, warnings=(plain,)),
        reference=dataclasses.replace(other.reference, start=plain, ladder=(plain,)),
        check=dataclasses.replace(other.check, program=plain),
        provenance=dataclasses.replace(other.provenance, **texts, backend_details=(plain, f"a: {plain}")),
    )


def test_texts_of_a_result_cannot_become_markup(result):
    hostile, plain = (parse(page_of(r, title=t)) for r, t in ((nasty(result), NASTY), (harmless(result), "plain")))
    assert hostile.tags == plain.tags
    assert [(tag, name) for tag, name, _ in hostile.attributes] == [(tag, name) for tag, name, _ in plain.attributes]
    assert "<script>alert(1)</script>" in hostile.text  # shown, not run
    assert not re.search("[\x00\x1b\r\u202e]", page_of(nasty(result), title=NASTY))


def test_texts_of_a_result_cannot_become_markup_in_markdown(result):
    from dfmp2.report import build
    from dfmp2.report.markdown import to_markdown
    from tests.report_page import entry

    text = to_markdown(build.single_page(entry(nasty(result)), Speed(), NASTY))
    outside = re.sub(r"\n(`{3,})\n.*?\n\1\n", "\n", text, flags=re.DOTALL)
    assert "alert(1)" in outside and "<script" not in outside and not re.search("[\x00\x1b\r\u202e]", text)
    rows = [re.sub(r"\\.", "", line) for line in outside.splitlines() if line.startswith("|")]
    heads = [k for k, row in enumerate(rows) if set(row) <= set("|-: ")]
    for start, end in zip(heads, [*(k - 1 for k in heads[1:]), len(rows)], strict=True):
        assert {row.count("|") for row in rows[start - 1 : end]} == {rows[start].count("|")}


def test_three_large_results_stay_below_one_megabyte(result):
    large = enlarged(result, 100)
    moved = [
        dataclasses.replace(large, precision=precision, backend=backend)
        for precision, backend in (("fp64", "cpu"), ("mixed", "cpu"), ("mixed", "torch"))
    ]
    page = page_of(*moved)
    assert len(page.encode()) < 1_000_000
    worst = open_shell(result, 100)  # three maps of the finest mesh each
    assert len(page_of(*(dataclasses.replace(worst, backend=name) for name in "abc")).encode()) < 1_000_000
    elements = parse(page)
    assert (
        "100 by 100 values are too many to show: each square is the sum over a block of 5 by 5 orbitals"
        in elements.text
    )
    # Sums over blocks, printed with their squares: recomputed here from the matrices.
    opposite, same = large.pairs.opposite_spin, large.pairs.same_spin[0]
    assert f"1 to 5, 6 to 10: {opposite[:5, 5:10].sum():.10f} Eh" in elements.text
    assert f"6 to 10, 6 to 10: {opposite[5:10, 5:10].sum():.10f} Eh" in elements.text
    assert f"6 to 10, 1 to 5: {same[5:10, :5].sum():.10f} Eh" in elements.text


def test_pairs_add_up_to_the_correlation_energy(water, radical):
    for case in (water, radical):
        pairs = list_pairs(stored(case.path))
        assert sum(pair.total for pair in pairs) == pytest.approx(case.json["mp2_correlation_energy"], abs=1e-14)
        same = sum(pair.same for pair in pairs)
        # The diagonal of a same-spin matrix is rounding, of which the unrestricted list has no row.
        assert same == pytest.approx(case.json["mp2_same_spin_correlation_energy"], abs=1e-9)
        assert [pair.total for pair in pairs] == sorted(pair.total for pair in pairs)


def test_squares_of_the_map_grow_with_the_magnitude(page):
    found = re.findall(
        r'<rect class="l\d" x="[\d.]+" y="[\d.]+" width="([\d.]+)"[^>]*><title>\d[^:]*: (-?[\d.]+) Eh', page
    )
    by_value = sorted((abs(float(value)), float(width)) for width, value in found)
    widths = [width for _, width in by_value]
    assert len(found) == 25 and widths == sorted(widths) and len(set(widths)) > 5


def luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def contrast(one, other):
    """Contrast ratio of WCAG 2.1."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_has_enough_contrast(palette):
    for name in ("text", "muted", "accent", "ok", "warning", "failure", "info"):
        for ground in ("page", "surface"):
            assert contrast(palette[name], palette[ground]) >= 4.5, (name, ground)
    for fill in (*FILLS.values(), OTHER_FILL):  # element symbols, on the faintest and on the nearest atom
        for share in (FAINTEST, 1.0):
            assert contrast(palette["ink"], mix(palette["surface"], fill, share)) >= 4.5, fill
    for k in range(1, 5):
        assert contrast(palette[f"series{k}"], palette["surface"]) >= 3.0
    steps = [luminance(mix(palette["low"], palette["high"], k / (LEVELS - 1))) for k in range(LEVELS)]
    assert steps in (sorted(steps), sorted(steps, reverse=True))  # also in shades of grey


def test_covalent_radii_are_the_published_ones():
    from pyscf.data.radii import COVALENT as THEIRS  # bohr, from the same table

    ours = np.array(COVALENT)
    theirs = np.array(THEIRS[1 : 1 + len(ours)]) * 0.52917721092
    # PySCF's list takes other spin states or hybridisations for a few elements.
    assert (np.abs(ours - theirs) < 0.006).mean() > 0.9


def test_drawing_keeps_distances_and_shows_the_longest_axis_across():
    rng = np.random.default_rng(3)
    points = rng.standard_normal((12, 3)) * (4.0, 2.0, 1.0)
    turned = orient(points)
    gaps = [np.linalg.norm(x[:, None] - x[None], axis=2) for x in (points, turned)]
    assert np.abs(gaps[0] - gaps[1]).max() < 1e-12
    assert np.linalg.det(np.linalg.lstsq(points - points.mean(0), turned, rcond=None)[0]) == pytest.approx(1.0)
    ring = [(np.cos(t), 0.0, np.sin(t)) for t in np.linspace(0, 2 * np.pi, 6, endpoint=False)]
    assert np.ptp(orient(np.array(ring) * 1.4)[:, 2]) < 1e-12  # benzene is seen face on
    behind = np.array([[x, 0.0, z] for x in (-2.0, 2.0) for z in (-0.9, 0.9)] + [[0.0, 1.0, 0.0], [0.0, -1.5, 0.0]])
    view = orient(behind)[:, :2]  # of two atoms behind each other both are seen
    assert min(np.linalg.norm(view[i] - view[j]) for i in range(6) for j in range(i)) > 0.3


def test_sticks_join_what_chemists_join(result):
    positions = result.molecule.coordinates * 0.52917721092
    assert bonds(result.molecule.symbols, positions, result.molecule.ghost) == [(0, 1), (0, 2)]
    assert bonds(("O", "H", "H"), positions, (False, True, False)) == [(0, 2)]


def test_rates_are_operations_over_time(result):
    # RHF: nocc (nocc + 1) / 2 pairs of nvir^2 integrals, each a product over naux, counted as two operations.
    nocc, nvir, naux = 5, 2, result.sizes.naux
    exact = dataclasses.replace(result, certificate=None, precision="fp64")
    flops = nocc * (nocc + 1) * nvir**2 * naux
    rates = Rates(pairs_fp64=2e9, pairs_mixed=4e9)
    found = stage_rates(exact, rates)["pair_energies"]
    assert found.operations == flops and found.calibrated == pytest.approx(2e9)
    timed = dataclasses.replace(exact, timings=Timings(1.0, 1.0, 1.0, 1.0, 0.5, 9.0))
    speed = Speed(Rates(pairs_fp64=4.0 * flops), {"pair_energies": 8.0 * flops})
    table = next(block for block in cost_blocks(timed, speed) if hasattr(block, "rows"))
    texts = [cell.text for cell in table.rows[2]]
    assert (texts[0], texts[2], texts[5], texts[7]) == ("pair energies", "0.50 s", "50 %", "25 %")
    repeated = dataclasses.replace(
        result, certificate=Certificate(15, 15, 1e-5, 1e-5, 1e-5, 1e-6, 1e-7, True), precision="fp64"
    )
    mixed = work_of(result, "mixed").flops()
    assert stage_rates(repeated, None)["pair_energies"].operations == flops + mixed["pairs_fp64"] + mixed["pairs_mixed"]


def test_speeds_are_those_of_the_host_of_the_run_only(result, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert known_speed(result) == Speed()
    count, rates = result.provenance.threads, Rates(pairs_fp64=123.0)
    calibration._store(result.backend, count, rates)
    products = {f"numpy fp64 {count}": 1e9, f"numpy mixed {count}": 2e9, f"torch mixed {count}": 3e9}
    known = {count: SimpleNamespace(products=products)}
    monkeypatch.setattr(product_rates, "load", known.get)
    found = known_speed(result)
    assert found == Speed(rates, {"transform": 1e9, "fit": 1e9, "pair_energies": 2e9})
    exact = dataclasses.replace(result, precision="fp64", certificate=None)
    assert known_speed(exact).products["pair_energies"] == 1e9
    elsewhere = dataclasses.replace(result, provenance=dataclasses.replace(result.provenance, host="elsewhere"))
    assert known_speed(elsewhere) == Speed()


def test_warnings_and_failures_are_said_at_the_top_and_in_their_section(result):
    failed = dataclasses.replace(
        result,
        check=dataclasses.replace(result.check, same_spin_difference=1e-3),
        diagnostics=dataclasses.replace(result.diagnostics, warnings=("the moon is full",)),
    )
    elements = parse(page_of(failed))
    assert "✗ PySCF check failed, 1 warning" in elements.text and "Warning: the moon is full" in elements.text
    assert "differs: largest difference 1.0e-03 Eh" in elements.text


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e300])
def test_absurd_numbers_make_no_broken_page(result, value):
    def absurd(record):
        floats = [f.name for f in dataclasses.fields(record) if isinstance(getattr(record, f.name), float)]
        return dataclasses.replace(record, **dict.fromkeys(floats, value))

    parts = ("reference", "certificate", "check", "timings", "predicted", "diagnostics")
    strange = dataclasses.replace(result, **{name: absurd(getattr(result, name)) for name in parts})
    moved = dataclasses.replace(strange, molecule=dataclasses.replace(strange.molecule, coordinates=np.eye(3) * 2))
    for page in (page_of(strange), page_of(strange, moved)):
        drawn = [v for tag, name, v in parse(page).attributes if name in ("x", "y", "cx", "cy", "width", "d", "points")]
        assert drawn and not [v for v in drawn if re.search("nan|inf|e", v)]


def test_nothing_to_correlate_is_a_page_too(call):
    Path("h.xyz").write_text("1\nmultiplicity=2\nH 0 0 0\n")
    assert call("run", "h.xyz", "--basis", "cc-pvdz").code == 0
    written(call, "h.dfmp2.h5")
    elements = parse(Path("report.html").read_text(encoding="utf-8"))
    assert elements.row("MP2 correlation")[1] in ("0.0000000000", "-0.0000000000")


def damaged(water, folder):
    """Files that are no results, by what is wrong with them."""
    content = water.path.read_bytes()
    (folder / "cut.h5").write_bytes(content[: len(content) // 2])
    (folder / "text.h5").write_text("energy: -76")
    for name in ("version.h5", "changed.h5"):
        (folder / name).write_bytes(content)
    with h5py.File(folder / "version.h5", "a") as handle:
        handle.attrs["dfmp2_schema_version"] = 99
    with h5py.File(folder / "changed.h5", "a") as handle:
        handle["dfmp2/pairs/opposite_spin"][0, 0] -= 1.0
    (folder / "good.h5").write_bytes(content)
    (folder / "old.html").write_text("mine")
    (folder / "locked").mkdir()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("cut.h5",), 3, "not a readable HDF5 file"),
        (("text.h5",), 3, "not a readable HDF5 file"),
        (("version.h5",), 3, "schema version 99"),
        (("changed.h5",), 3, "stored hash"),
        (("none.h5",), 3, "no such file"),
        (("good.h5", "cut.h5"), 3, "cut.h5"),
        (("good.h5", "good.h5"), 3, "same file"),
        (("good.h5", "./good.h5"), 3, "same file"),
        (("good.h5", "--format", "pdf"), 2, "'pdf' is not one of 'html', 'md'"),
        (("good.h5", "-o", "r.pdf"), 3, "ends in .html or .md"),
        (("good.h5", "-o", "old.html"), 3, "--overwrite"),
        (("good.h5", "-o", "nowhere/r.html"), 3, "there is no folder"),
        (("good.h5", "-o", "good.h5", "--format", "html", "--overwrite"), 3, "is read for the report"),
        (("locked", "-o", "r.html"), 3, "no results (.h5)"),
        (("locked", "good.h5"), 3, "shown alone"),
        (("batch.json",), 3, "no such file"),
        ((), 2, "Missing argument"),
    ],
)
def test_refusals_name_their_reason_and_leave_nothing(call, folder, water, arguments, code, words):
    damaged(water, folder)
    before = listing(folder)
    done = call("report", *arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.message
    assert listing(folder) == before


def test_a_required_browser_that_is_missing_is_a_failure(tmp_path):
    case = f"{Path(__file__).with_name('test_report_browser.py')}::test_headings_sort"
    program = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", case, "--require", "browser"]
    root = Path(__file__).parent.parent
    done = subprocess.run(program, env={**os.environ, "PATH": str(tmp_path)}, cwd=root, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert "--require browser, but it was skipped" in done.stdout and "no chromium on this machine" in done.stdout


def test_scratch_files_are_shown_planned_and_written(result):
    storage = Storage("disk", "disk", "/scratch/<x>", predicted=3 * 10**9, written=2 * 10**9, read=4 * 10**9)
    text = parse(page_of(dataclasses.replace(result, storage=storage))).text
    assert "2.00 GB written (planned 3.00 GB), 4.00 GB read, in /scratch/<x>" in text


def test_the_scf_is_drawn_with_every_iteration(result, page):
    history = result.reference.history
    elements = parse(page)
    for number, (energy, _, _) in enumerate(history, start=1):
        assert elements.row(str(number), f"{energy:.10f}")
    curves = page.split("Convergence of the SCF")[1].split("</svg>")[0]
    gradients, changes = (points.split() for points in re.findall(r'points="([^"]+)"', curves))
    assert len(gradients) == len(history) and len(changes) == len(history) - 1
    given = dataclasses.replace(result, reference=dataclasses.replace(result.reference, history=None))
    assert "The iterations of this SCF are not recorded" in page_of(given)
