"""`dfmp2 report` on one result: the page is complete, shows the stored data, and cannot be made to
show anything else."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dfmp2.molecule.molecule import Molecule
from dfmp2.output import hdf5
from dfmp2.output.drawings.molecule import FILLS, OTHER_FILL, draw_molecule
from dfmp2.output.drawings.plots import LEVELS, _square
from dfmp2.output.html.page import FOLDER
from dfmp2.output.reports.energies import _pair_map
from tests.conftest import pytest_runtest_makereport
from tests.report_page import enlarged, open_shell, page_of, page_of_runs, parse

NASTY = (
    "</title><script>alert(1)</script><img src=//x.invalid/a onerror=alert(2)> "
    "\"'&amp;\x1b[2J\r\n\x00\u202e|`*_$@x"
)


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
    assert all(
        link[0] == "#" and link[1:] in ids for link in elements.values("href") if link != "data:,"
    )
    assert set(elements.values("aria-labelledby")) <= set(ids)
    assert not elements.values("src") and not elements.values("style")
    assert not [name for _, name, _ in elements.attributes if name.startswith("on")]
    assert not [
        value for _, _, value in elements.attributes if re.search(r"https?:|//|url\(", value)
    ]
    assert not re.search(r"@import|url\(|https?:", page.split("<style>")[1].split("</style>")[0])
    assert elements.tags.count("script") == 1 and elements.tags.count("style") == 1
    policy = next(value for value in elements.values("content") if "src" in value)
    assert re.fullmatch(
        "default-src 'none'; style-src 'sha256-[^' ;]+'; script-src 'sha256-[^' ;]+'; img-src "
        "data:; base-uri 'none'; form-action 'none'",
        policy,
    )
    assert set(elements.values("scope")) == {"col", "row"}
    # Buttons need the script, drawings do not
    assert "button" not in elements.tags and elements.tags.count("svg") > 4
    assert elements.tags.count("h1") == 1 and elements.tags.count("svg") == elements.values(
        "role"
    ).count("img")
    assert len(elements.values("aria-label")) >= elements.tags.count("svg")


def test_every_set_of_functions_is_told_by_its_hash(page, result):
    text = parse(page).text
    for functions in (result.orbital_basis, result.scf_fitting, result.mp2_fitting):
        assert all(element.sha256 in text for element in functions.elements.values())


def with_texts(result, text):
    """The same result with one text everywhere."""
    names = {f.name for f in fields(result.provenance)} - {"threads", "backend_details"}
    return replace(
        result,
        molecule=replace(result.molecule, name=text, source=text, text=f"3\n{text}\nO 0 0 0"),
        **dict.fromkeys(("backend_reason", "backend", "frozen_core_note"), text),
        orbital_basis=replace(result.orbital_basis, name=text),
        diagnostics=replace(result.diagnostics, warnings=(text,)),
        reference=replace(result.reference, start=text, ladder=(text,)),
        check=replace(result.check, program=text),
        provenance=replace(
            result.provenance, **dict.fromkeys(names, text), backend_details=(text, f"a: {text}")
        ),
    )


def test_texts_of_a_result_cannot_become_markup(result):
    pages = [
        page_of(with_texts(result, text), title=text, name=f"{text}/1.h5")
        for text in (NASTY, "plain" * 20)
    ]
    hostile, plain = map(parse, pages)
    assert hostile.tags == plain.tags
    assert [(tag, name) for tag, name, _ in hostile.attributes] == [
        (tag, name) for tag, name, _ in plain.attributes
    ]
    assert hostile.text.count("<script>alert(1)</script>") > 20  # shown, not run
    assert not re.search("[\x00\x1b\r\u202e]", pages[0])
    assert "Molecule" in plain.text


@pytest.mark.parametrize("value", [np.nan, -np.inf, 0.0, 1e300])
def test_absurd_numbers_make_no_broken_page(result, value):
    def absurd(record):
        floats = [f.name for f in fields(record) if isinstance(getattr(record, f.name), float)]
        return replace(record, **dict.fromkeys(floats, value))

    parts = ("reference", "certificate", "check", "timings", "predicted", "diagnostics")
    strange = replace(result, **{name: absurd(getattr(result, name)) for name in parts})
    drawn = [
        v
        for tag, name, v in parse(page_of(strange)).attributes
        if name in ("x", "y", "cx", "cy", "width", "d", "points")
    ]
    assert drawn and not [v for v in drawn if re.search("nan|inf|e", v)]


# --- pair energies --------------------------------------------------------------------------------


def test_a_large_result_stays_below_a_third_of_a_megabyte(result):
    # Three maps of the finest mesh each
    large, worst = (enlarged(result, 100), open_shell(result, 100))
    assert len(page_of(worst).encode()) < 333_000
    text = parse(page_of(large)).text
    said = (
        "100 by 100 values are too many to show: each square is the sum over a block of 5 by 5 "
        "orbitals"
    )
    # Printed with their squares
    opposite, same = (large.pairs.opposite_spin, large.pairs.same_spin[0])
    assert said in text and f"1 to 5, 6 to 10: {opposite[:5, 5:10].sum():.10f} Eh" in text
    assert f"6 to 10, 1 to 5: {same[5:10, :5].sum():.10f} Eh" in text


# --- colours and drawings -------------------------------------------------------------------------


def palettes():
    """The colours of the style sheet, in light and in dark."""
    sheet = (FOLDER / "page.css").read_text(encoding="utf-8")
    return [
        dict(re.findall(r"--(\w+):(#\w{6})", part))
        for part in re.findall(r":root\{([^}]*--[^}]*)\}", sheet)
    ]


def luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_every_text_has_enough_contrast(palette):
    def contrast(one, other):
        """Contrast ratio of WCAG 2.1."""
        dark, light = sorted(map(luminance, (one, other)))
        return (light + 0.05) / (dark + 0.05)

    for name in ("text", "muted", "accent", "ok", "warning", "failure", "info"):
        assert all(
            contrast(palette[name], palette[ground]) >= 4.5 for ground in ("page", "surface")
        ), name
    assert all(contrast(palette["ink"], fill) >= 4.5 for fill in (*FILLS.values(), OTHER_FILL))
    assert all(contrast(palette[f"series{k}"], palette["surface"]) >= 3.0 for k in range(1, 4))
    steps = [luminance(palette[f"level{k}"]) for k in range(LEVELS)]
    assert steps in (sorted(steps), sorted(steps, reverse=True))  # also in shades of grey


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("required", "outcome"), [(["browser"], "failed"), ([], "skipped")])
def test_a_required_browser_that_is_missing_is_a_failure(required, outcome):
    config = SimpleNamespace(getoption={"--require": required}.__getitem__)
    item = SimpleNamespace(config=config, get_closest_marker={"browser": True}.get)
    made = SimpleNamespace(skipped=True, outcome="skipped", longrepr="no chromium")
    hook = pytest_runtest_makereport(item)
    next(hook)
    with pytest.raises(StopIteration) as ended:
        hook.send(made)
    assert ended.value.value is made and made.outcome == outcome
    assert "no chromium" in made.longrepr
    assert ("--require browser" in made.longrepr) == bool(required)


@pytest.mark.parametrize("shape", [(3, 5), (20, 7), (21, 4), (45, 61)])
def test_a_map_of_pairs_holds_every_pair_once(shape: tuple[int, int]) -> None:
    """Up to 20 orbitals one by one, more in equal blocks named by their first and last orbital."""
    matrix = -np.random.default_rng(3).random(shape)
    first = (2, 1)  # frozen orbitals
    drawn = _pair_map("opposite spin", matrix, first, 1.0)
    sums = np.array(drawn.draw.args[1])
    block = -(-max(shape) // 20)
    for axis, (count, core) in enumerate(zip(shape, first, strict=True)):
        names = drawn.draw.args[2 + axis]
        assert len(names) == sums.shape[axis] == -(-count // block)
        assert names[0].split(" to ")[0] == str(core + 1)
        assert names[-1].split(" to ")[-1] == str(core + count)
    for i, row in enumerate(sums):
        for j, value in enumerate(row):
            part = matrix[i * block : (i + 1) * block, j * block : (j + 1) * block]
            assert value == pytest.approx(part.sum(), rel=1e-12)
    svg = drawn.draw()
    width, squares = map(float, re.findall(r' width="([\d.]+)"', svg)[:2])
    assert 46 + squares < width <= 468  # all of them, within the width of the page
    legend = re.findall(r">\u22121\.0([^<]*)<", svg)
    assert legend == ["", *(f" \u00d7 10\u207b{power}" for power in "¹²³⁴")]
    sides = [float(side) for side in re.findall(r'<rect class="l.*? width="([\d.]+)"', svg)]
    expected = [18.5 * part for part in (1, 0.7875, 0.575, 0.3625, 0.15)]
    assert sides[-5:] == pytest.approx(expected, abs=0.01)


def test_bars_of_spin_components_are_as_long_as_their_energies(page, result):
    """Opposite spin before same spin: of MP2, SCS-MP2 and SOS-MP2."""
    same, opposite = result.components
    bars = re.findall(r'width="([^"]+)" height="18" rx="2" class="(bar2?)"', page)[:6]
    lengths = [float(length) for length, _ in bars]
    energies = [opposite, same, 1.2 * opposite, same / 3, 1.3 * opposite]
    assert [kind for _, kind in bars] == 3 * ["bar", "bar2"]
    assert lengths[:5] == pytest.approx([lengths[0] * e / opposite for e in energies], abs=0.01)


def test_squares_of_small_pair_energies_have_no_sign() -> None:
    """Red if an energy is positive and large enough to be visible beside the largest."""
    for value, positive in ((0.5, True), (1e-3, True), (1e-9, False), (0.0, False), (-0.5, False)):
        drawn = _square(0.0, 0.0, 20.0, value, 1.0, "")
        assert ("positive" in drawn) == positive, value


TETRAHEDRON = [[0, 0, 0], [0, 0, 1], [0, 0.94, -0.33], [0.82, -0.47, -0.33], [-0.82, -0.47, -0.33]]


def test_a_drawing_is_as_high_as_its_molecule_needs() -> None:
    """A flat molecule gets half of the usual 340, so that it can be turned; no molecule more than
    340."""
    flat = Molecule(("O", "C", "S"), [[0, 0, -2.2], [0, 0, 0], [0, 0, 2.95]])
    round_one = Molecule(("C", "F", "F", "F", "F"), 5.0 * np.array(TETRAHEDRON))
    for molecule, lowest, highest in ((flat, 169.0, 171.0), (round_one, 171.0, 341.0)):
        box = re.search(r'viewBox="([^"]+)"', draw_molecule(molecule))
        height = float(box[1].split()[3])
        assert lowest < height < highest


def test_a_page_shows_eight_results_in_full(result):
    text = parse(page_of_runs(*[result] * 9)).text
    assert "The first 8 of 9 results are shown in full" in text
