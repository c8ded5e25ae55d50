"""`dfmp2 report` on one result: a page that is whole, says what is stored, and cannot be made to say anything else."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from dfmp2.molecule.elements import COVALENT, bonds
from dfmp2.mp2.result import Certificate
from dfmp2.output import hdf5
from dfmp2.output.html import result as result_values
from dfmp2.output.html.page import FOLDER
from dfmp2.output.html.result import Speed, known_speed, list_pairs, stage_rates
from dfmp2.output.html.svg import FAINTEST, FILLS, LEVELS, OTHER_FILL, orient
from dfmp2.planning import rates as calibration
from dfmp2.planning.memory import Storage
from dfmp2.planning.rates import Rates
from dfmp2.planning.time import Timings
from tests.conftest import listing
from tests.report_page import enlarged, open_shell, page_of, parse

NASTY = "</title><script>alert(1)</script><img src=//x.invalid/a onerror=alert(2)> \"'&amp;\x1b[2J\r\n\x00\u202e|`*_$@x"


@pytest.fixture(scope="module")
def result(water):
    return hdf5.read(water.path)


@pytest.fixture(scope="module")
def page(result):
    return page_of(result)


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
    policy = next(value for value in elements.values("content") if "src" in value)
    assert re.fullmatch(
        "default-src 'none'; style-src 'sha256-[^' ;]+'; script-src 'sha256-[^' ;]+'; img-src data:; base-uri 'none'; "
        "form-action 'none'",
        policy,
    )
    assert all(value in ("col", "row") for value in elements.values("scope"))
    assert elements.tags.count("h1") == 1 and elements.tags.count("svg") == elements.values("role").count("img")
    assert len(elements.values("aria-label")) >= elements.tags.count("svg")


@pytest.mark.parametrize("which", ["water", "radical"])
def test_printed_energies_are_the_stored_ones_to_the_last_digit(which, call, request):
    stored = request.getfixturevalue(which)
    assert call("report", str(stored.path), "-o", "r.html").code == 0
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
        assert rows.row(name)[1] == f"{stored.json[key]:.10f}", name
    provenance = stored.json["provenance"]
    for text in (stored.json["backend_reason"], *(provenance[name] for name in ("command", "blas", "host"))):
        assert text in rows.text
    found, check = stored.json["precision_certificate"], stored.json["check"]
    for name, key in (("E(corr)", "correlation"), ("E(SS)", "same_spin"), ("E(OS)", "opposite_spin")):
        assert rows.row(f"estimated error of {name}")[1] == f"{found[f'{key}_error']:.1e} Eh"
    for name in ("same-spin", "opposite-spin"):
        key = name.replace("-", "_")
        shown = [f"{name} correlation", f"{check[key]:.10f}", f"{check[f'{key}_difference']:+.2e}"]
        assert shown in rows.rows
    diagnostics, sizes = stored.json["diagnostics"], stored.json["sizes"]
    for name, value in {
        "formula": stored.json["formula"],
        "explicit electrons": str(sizes["nelectron"]),
        "E(MP2, total) / Eh": f"{stored.json['mp2_total_energy']:.10f}",
        "SCF iterations": f"{stored.json['scf_iterations']}, at most 100 in each SCF",
        "HOMO-LUMO gap": f"{diagnostics['homo_lumo_gap']:.4f} Eh",
        "smallest MP2 denominator": f"{diagnostics['smallest_denominator']:.4f} Eh",
        "pairs evaluated": str(found["pairs"]),
        "accepted up to": f"{found['tolerance']:.1e} Eh",
    }.items():
        assert rows.row(name)[1] == value, name
    assert rows.row("orbital", stored.json["basis"])[4] == str(sizes["nao"])
    assert rows.row("MP2 fitting", stored.json["auxbasis"])[4] == str(sizes["naux"])


def with_texts(result, text):
    """The same result with one text everywhere."""
    replace = dataclasses.replace
    names = {f.name for f in dataclasses.fields(result.provenance)} - {"threads", "backend_details"}
    details = (text, f"a: {text}")
    return replace(
        result,
        molecule=replace(result.molecule, name=text, source=text, text=f"3\n{text}\nO 0 0 0"),
        backend_reason=text,
        backend=text,
        frozen_core_note=text,
        orbital_basis=replace(result.orbital_basis, name=text),
        diagnostics=replace(result.diagnostics, warnings=(text,)),
        reference=replace(result.reference, start=text, ladder=(text,)),
        check=replace(result.check, program=text),
        provenance=replace(result.provenance, **dict.fromkeys(names, text), backend_details=details),
    )


@pytest.mark.parametrize("kind", ["one", "lanes", "series"])
def test_texts_of_a_result_cannot_become_markup(result, kind):
    pages = []
    for text in (NASTY, "plain" * 20):
        shown = [with_texts(result, text)] * (1 if kind == "one" else 2)
        if kind == "series":  # another basis of that name
            element = dataclasses.replace(result.orbital_basis.elements["O"], shells=((0, (1.0, 1.0)),))
            other = dataclasses.replace(shown[0].orbital_basis, elements={"O": element})
            shown[1] = dataclasses.replace(shown[1], orbital_basis=other)
        pages.append(page_of(*shown, title=text, folder=f"{text}/"))
    hostile, plain = map(parse, pages)
    assert hostile.tags == plain.tags
    assert [(tag, name) for tag, name, _ in hostile.attributes] == [(tag, name) for tag, name, _ in plain.attributes]
    assert hostile.text.count("<script>alert(1)</script>") > 20  # shown, not run
    assert not re.search("[\x00\x1b\r\u202e]", pages[0])
    assert {"one": "Molecule", "lanes": "The same calculation, compared", "series": "Basis series"}[kind] in plain.text


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
        pairs = list_pairs(hdf5.read(case.path))
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


def palettes():
    """The colours of the style sheet, in light and in dark."""
    sheet = (FOLDER / "page.css").read_text(encoding="utf-8")
    return [dict(re.findall(r"--(\w+):(#\w{6})", part)) for part in re.findall(r":root\{([^}]*--[^}]*)\}", sheet)]


def luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def contrast(one, other):
    """Contrast ratio of WCAG 2.1."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def mix(low, high, share):
    """The colour a `share` of the way from `low` to `high`."""
    ends = [[int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in (low, high)]
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_every_text_has_enough_contrast(palette):
    for name in ("text", "muted", "accent", "ok", "warning", "failure", "info"):
        for ground in ("page", "surface"):
            assert contrast(palette[name], palette[ground]) >= 4.5, (name, ground)
    for fill in (*FILLS.values(), OTHER_FILL):  # element symbols, on the faintest and on the nearest atom
        for share in (FAINTEST, 1.0):
            assert contrast(palette["ink"], mix(palette["surface"], fill, share)) >= 4.5, fill
    for k in range(1, 5):
        assert contrast(palette[f"series{k}"], palette["surface"]) >= 3.0
    steps = [luminance(palette[f"level{k}"]) for k in range(LEVELS)]
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


def test_rates_are_operations_over_time(result, monkeypatch):
    # RHF: nocc (nocc + 1) / 2 pairs of nvir^2 integrals, each a product over naux, counted as two operations.
    nocc, nvir, naux = 5, 2, result.sizes.naux
    flops = nocc * (nocc + 1) * nvir**2 * naux
    exact = dataclasses.replace(
        result, certificate=None, precision="fp64", timings=Timings(1.0, 1.0, 1.0, 1.0, 0.5, 9.0)
    )
    assert stage_rates(exact, Rates(pairs_fp64=2e9, pairs_mixed=4e9))["pair_energies"] == (flops, pytest.approx(2e9))
    speed = Speed(Rates(pairs_fp64=4.0 * flops), {"pair_energies": 8.0 * flops})
    monkeypatch.setattr(result_values, "known_speed", lambda _: speed)
    cells = next(row for row in parse(page_of(exact)).rows if row[0] == "pair energies" and len(row) == 8)
    assert (cells[2], cells[5], cells[7]) == ("0.50 s", "50 %", "25 %")
    repeated = dataclasses.replace(exact, certificate=Certificate(15, 15, 1e-5, 1e-5, 1e-5, 1e-6, 1e-7, True))
    assert stage_rates(repeated, None)["pair_energies"][0] == 3 * flops  # mixed, its sample of all pairs, float64


def test_speeds_are_those_of_the_host_of_the_run_only(result, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert known_speed(result) == Speed()
    count, rates = result.provenance.threads, Rates(pairs_fp64=123.0)
    calibration.store(result.backend, count, rates)
    products = {f"numpy fp64 {count}": 1e9, f"numpy mixed {count}": 2e9, f"torch mixed {count}": 3e9}
    monkeypatch.setattr(calibration, "load_products", {count: SimpleNamespace(products=products)}.get)
    assert known_speed(result) == Speed(rates, {"transform": 1e9, "fit": 1e9, "pair_energies": 2e9})
    exact = dataclasses.replace(result, precision="fp64", certificate=None)
    assert known_speed(exact).products["pair_energies"] == 1e9
    elsewhere = dataclasses.replace(result, provenance=dataclasses.replace(result.provenance, host="elsewhere"))
    assert known_speed(elsewhere) == Speed()


def test_nothing_to_correlate_is_a_page_too(call):
    Path("h.xyz").write_text("1\nmultiplicity=2\nH 0 0 0\n")
    assert call("run", "h.xyz", "--basis", "cc-pvdz").code == 0
    assert call("report", "h.dfmp2.h5").code == 0
    assert parse(Path("report.html").read_text(encoding="utf-8")).row("MP2 correlation")[1] == "0.0000000000"


def damaged(water, folder):
    """Files that are no results, by what is wrong with them."""
    content = water.path.read_bytes()
    (folder / "cut.h5").write_bytes(content[: len(content) // 2])
    for name in ("version.h5", "changed.h5", "good.h5"):
        (folder / name).write_bytes(content)
    with h5py.File(folder / "version.h5", "a") as handle:
        handle.attrs["dfmp2_schema_version"] = 99
    with h5py.File(folder / "changed.h5", "a") as handle:
        handle["dfmp2/pairs/opposite_spin"][0, 0] -= 1.0
    (folder / "old.html").write_text("mine")
    (folder / "empty").mkdir()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cut.h5",), "not a readable HDF5 file"),
        (("version.h5",), "schema version 99"),
        (("changed.h5",), "stored hash"),
        (("none.h5",), "no such file"),
        (("good.h5", "cut.h5"), "cut.h5"),
        (("good.h5", "./good.h5"), "same file"),
        (("good.h5", "--format", "md"), "dfmp2 show prints text"),
        (("good.h5", "-o", "r.md"), "ends in .html (dfmp2 show prints text"),
        (("good.h5", "-o", "old.html"), "--overwrite"),
        (("good.h5", "-o", "nowhere/r.html"), "there is no folder"),
        (("good.h5", "-o", "good.h5", "--format", "html", "--overwrite"), "is read for the report"),
        (("empty", "-o", "r.html"), "no results (.h5)"),
        (("empty", "good.h5"), "shown alone"),
        (("batch.json",), "no such file"),
    ],
)
def test_refusals_name_their_reason_and_leave_nothing(call, folder, water, arguments, words):
    damaged(water, folder)
    before = listing(folder)
    done = call("report", *arguments)
    assert (done.code, done.out) == (3, "")
    assert words in done.message
    assert listing(folder) == before


def test_a_required_browser_that_is_missing_is_a_failure(tmp_path):
    browser_test = f"{Path(__file__).with_name('test_report_browser.py')}::test_headings_sort"
    program = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", browser_test, "--require", "browser"]
    root = Path(__file__).parent.parent
    done = subprocess.run(program, env={**os.environ, "PATH": str(tmp_path)}, cwd=root, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert "--require browser, but it was skipped" in done.stdout and "no chromium on this machine" in done.stdout
