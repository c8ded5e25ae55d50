"""The report in a real browser: it renders in light, dark and on paper, requests nothing, and is
usable."""

from __future__ import annotations

import base64
import dataclasses
import re

import numpy as np
import pytest

from dfmp2.molecule.elements import internal_coordinate
from dfmp2.molecule.molecule import Molecule
from dfmp2.output import hdf5
from dfmp2.output.html.page import UNITS
from dfmp2.output.study import Column
from dfmp2.units import ANGSTROM_PER_BOHR
from tests import chromium
from tests.report_page import ascii_numbers, enlarged, page_of, page_of_runs

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    program = chromium.find()
    if program is None:
        pytest.skip("no chromium on this machine")
    with chromium.tab(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def result(water):
    return hdf5.read(water.path)


@pytest.fixture(scope="module")
def page_of_three(tmp_path_factory, result):
    """The file of a page of three results with a hostile title."""
    exact = dataclasses.replace(
        result, precision="fp64", timings=dataclasses.replace(result.timings, total=0.001)
    )
    mixed = [dataclasses.replace(result, backend=name) for name in ("b", "c")]
    title = "<img src=http://x.invalid/a.png><script>document.title='no'</script>"
    path = tmp_path_factory.mktemp("pages") / "three.html"
    path.write_text(page_of_runs(exact, *mixed, title=title), encoding="utf-8")
    return path


@pytest.fixture
def three(tab, page_of_three):
    """That page, just opened."""
    tab.requests.clear()
    tab.complaints.clear()
    tab.open(page_of_three)
    return tab


@pytest.fixture
def resize(tab):
    """A function that gives the tab a width and a height; afterwards it has its own again."""

    def resize_to(width, height=700):
        tab.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    yield resize_to
    tab.ask("Emulation.clearDeviceMetricsOverride")


def pages(tab):
    """The number of A4 sheets on which the page is printed."""
    paper = base64.b64decode(
        tab.ask("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"]
    )
    assert paper.startswith(b"%PDF-")
    return len(re.findall(rb"/Type\s*/Page\b", paper))


def test_the_page_is_light_or_dark_as_the_reader_likes(three):
    """The mean of red, green and blue of the ground."""
    ground = {}
    for scheme in ("light", "dark"):
        liked = [{"name": "prefers-color-scheme", "value": scheme}]
        three.ask("Emulation.setEmulatedMedia", media="screen", features=liked)
        colour = three.run("getComputedStyle(document.documentElement).backgroundColor")
        ground[scheme] = np.mean([int(part) for part in re.findall(r"\d+", colour)[:3]])
    three.ask("Emulation.setEmulatedMedia", media="", features=[])
    assert ground["light"] > 225 and ground["dark"] < 60


def test_the_summary_alone_is_printed_unless_everything_is_requested(three):
    assert pages(three) == 1
    three.run("document.querySelector('#all').checked = true")
    assert 3 <= pages(three) <= 30


def test_the_page_fits_on_a_small_screen(three, resize, tmp_path, result):
    resize(360)
    assert three.run("document.documentElement.scrollWidth") <= 360
    molecule = dataclasses.replace(result.molecule, text="H 0 0 0\n" * 40)
    large = dataclasses.replace(enlarged(result, 40), molecule=molecule)
    (tmp_path / "large.html").write_text(page_of(large), encoding="utf-8")
    three.open(tmp_path / "large.html")
    assert three.run("document.documentElement.scrollWidth") <= 360


def test_nothing_is_asked_for_and_nothing_can_be_put_in(three, page_of_three):
    assert three.complaints == []
    asked_for = [url for url in three.requests if not url.startswith("data:")]
    assert asked_for == [page_of_three.as_uri()]
    assert three.run("document.title").startswith("<img src=http://x.invalid")
    assert three.run("document.querySelectorAll('img, script').length") == 1
    three.run("""(() => { const script = document.createElement("script"), image = new Image();
        script.textContent = "window.intruder = 1"; image.src = "http://127.0.0.1:9/x.png";
        document.body.append(script, image); })()""")
    assert three.run("window.intruder") is None
    assert any("Content Security Policy" in complaint for complaint in three.complaints)


def type_key(tab, key, **more):
    for kind in ("keyDown", "keyUp"):
        tab.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)


def column(tab, place, table="table"):
    """Texts of a column of the first table found by a selector, with numbers as Python prints
    them."""
    texts = tab.run(
        f"[...document.querySelector('{table}').tBodies[0].rows].map(r => "
        f"r.cells[{place}].textContent)"
    )
    return [ascii_numbers(text) for text in texts]


def press(tab, place, table="table"):
    head = f"document.querySelector('{table}').tHead.rows[0].cells[{place}]"
    tab.run(f"{head}.querySelector('button').click()")
    return tab.run(f"{head}.getAttribute('aria-sort')")


RUNS = "#overview table"


def test_headings_sort(three):
    assert column(three, 0, RUNS) == ["1.h5", "2.h5", "3.h5"]
    times = [float(text) for text in column(three, 5, RUNS)]
    assert press(three, 5, RUNS) == "ascending" and [
        float(text) for text in column(three, 5, RUNS)
    ] == sorted(times)
    assert press(three, 5, RUNS) == "descending"
    assert [float(text) for text in column(three, 5, RUNS)] == sorted(times, reverse=True)
    assert three.run("document.querySelectorAll('[aria-sort]').length") == 1
    # By keyboard as well: a heading is a button.
    three.run(
        "document.querySelector('#overview "
        "table').tHead.rows[0].cells[0].querySelector('button').focus()"
    )
    type_key(three, "Enter", windowsVirtualKeyCode=13, text="\r")
    assert column(three, 0, RUNS) == ["1.h5", "2.h5", "3.h5"]
    # By value, not as text: -1.0e-2 is above -9.0e-2, and unknown values come last.
    cells = (
        "document.querySelector('#overview table').tBodies[0].rows[{}].cells[2].textContent = '{}'"
    )
    for place, text in enumerate(("", "-9.0e-2", "-1.0e-2")):
        three.run(cells.format(place, text))
    press(three, 2, RUNS)
    assert column(three, 2, RUNS) == ["-9.0e-2", "-1.0e-2", ""]


# Angstrom
PEROXIDE = np.array([[0.3, 0.95, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.45], [0.85, -0.4, 1.7]])
PLACES = (
    "[...document.querySelectorAll('.molecule [data-atom]')].map(a => [+a.dataset.atom, "
    "a.getAttribute('transform')])"
)


@pytest.fixture
def peroxide(tab, tmp_path, result):
    """The page of a molecule with a torsion."""
    molecule = Molecule(("H", "O", "O", "H"), PEROXIDE / ANGSTROM_PER_BOHR)
    (tmp_path / "one.html").write_text(page_of(dataclasses.replace(result, molecule=molecule)))
    tab.open(tmp_path / "one.html")
    return tab


def places(tab):
    """(x, y, scale) of every drawn atom by its number, and the drawing order."""
    found = tab.run(PLACES)
    return {k: [float(x) for x in re.findall(r"-?[\d.]+", text)] for k, text in found}, [
        k for k, _ in found
    ]


def mouse(tab, kind, x, y):
    tab.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def test_the_molecule_turns_and_stays_in_its_frame(peroxide):
    tab = peroxide
    start, order = places(tab)
    box = tab.run("(b => [b.width, b.height])(document.querySelector('.molecule').viewBox.baseVal)")
    tab.run("document.querySelector('.handles button').focus()")
    for _ in range(6):  # a quarter of a turn, by 15 degrees
        type_key(tab, "ArrowRight")
    turned, reordered = places(tab)
    assert sorted(order) == sorted(reordered) and order != reordered
    depth = tab.run(
        "[...document.querySelectorAll('[data-atom]')].map(a => +a.dataset.at.split(' ')[2])"
    )
    for k, z in zip(reordered, depth, strict=True):  # atoms in front are now at the right
        assert turned[k][0] - box[0] / 2 == pytest.approx(turned[k][2] * z, abs=0.05)
    for key in ["ArrowDown"] * 9 + ["ArrowRight"] * 5:
        type_key(tab, key)
        assert all(0 < x < box[0] and 0 < y < box[1] for x, y, *_ in places(tab)[0].values())
    type_key(tab, "Home")
    back, again = places(tab)
    assert again == order and all(np.allclose(back[k][:2], start[k][:2], atol=0.02) for k in start)
    # The same quarter of a turn by the mouse.
    x, y = tab.run(
        "(r => [r.x + r.width / 2, r.y + r.height / "
        "2])(document.querySelector('.molecule').getBoundingClientRect())"
    )
    mouse(tab, "mousePressed", x, y)
    mouse(tab, "mouseMoved", x + 60 * np.pi, y)  # 120 pixels are a radian
    mouse(tab, "mouseReleased", x + 60 * np.pi, y)
    dragged, _ = places(tab)
    assert all(np.allclose(dragged[k], turned[k], atol=0.3) for k in start)


def test_the_molecule_is_measured(peroxide):
    tab = peroxide
    field, said = (f"document.querySelector('.handles {name}')" for name in ("input", "output"))
    for atoms, name, unit, factor in (
        ([0, 3], "distance", " Å", 1.0),
        ([0, 1, 2], "angle", "°", 180 / np.pi),
        ([0, 1, 2, 3], "torsion", "°", 180 / np.pi),
    ):
        tab.run(
            f"{field}.value = '{' '.join(str(k + 1) for k in atoms)}'; {field}.dispatchEvent(new "
            "Event('input'))"
        )
        value = float(tab.run(f"{said}.textContent").removeprefix(name).removesuffix(unit))
        assert value == pytest.approx(factor * internal_coordinate(PEROXIDE[atoms]), abs=0.006)
    tab.run(f"{field}.value = ''")
    for k in (1, 2):
        circle = f"document.querySelector('[data-atom=\"{k}\"] circle').getBoundingClientRect()"
        x, y = tab.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({circle})")
        mouse(tab, "mousePressed", x, y)
        mouse(tab, "mouseReleased", x, y)
    assert (
        tab.run(f"{field}.value") == "2 3" and tab.run(f"{said}.textContent") == "distance 1.4500 Å"
    )
    assert tab.run("document.querySelectorAll('.chosen').length") == 2


def test_energies_are_shown_in_the_unit_that_is_chosen(tab, tmp_path, result):
    totals = (result.total_energy, result.total_energy + 0.005)
    table = {
        "bond": Column((1.0, 1.05), "angstrom", ""),
        "relative_energy": Column((0.0, 0.005 * UNITS["kJ/mol"]), "kJ/mol", ""),
        "mp2_total_energy": Column(totals, "hartree", ""),
    }
    (tmp_path / "two.html").write_text(page_of_runs(result, result, kind="scan", table=table))
    tab.open(tmp_path / "two.html")
    heads = "[...document.querySelector('table').tHead.rows[0].cells].map(c => c.textContent)"
    before = column(tab, 2)
    marks = (
        "[...document.querySelectorAll('.ticks')[0].querySelectorAll('text')].map(t => "
        "+t.textContent)"
    )
    pick = (
        "(s => {{ s.value = '{}'; s.dispatchEvent(new Event('change')); "
        "}})(document.querySelector('select'))"
    )
    for unit in ("eV", "kJ/mol"):
        factor = UNITS[unit]
        tab.run(pick.format(factor))
        assert tab.run(heads)[2] == f"E(MP2) / {unit}"
        energy = column(tab, 2)[0]
        assert float(energy) == pytest.approx(result.total_energy * factor, rel=1e-9)
        decimals = len(energy.partition(".")[2])  # those of 1e-10 Eh in this unit, no more
        assert 1 - 1e-9 < 10.0**-decimals / (1e-10 * factor) < 10
        assert tab.run("document.querySelector('.up').textContent").endswith(f" / {unit}")
        steps = np.diff(tab.run(marks))
        assert len(steps) >= 2 and steps == pytest.approx(steps[0]) and f"{steps[0]:e}"[0] in "125"
    tab.run(pick.format(""))
    assert column(tab, 2) == before and tab.run(heads)[2] == "E(MP2) / Eh"


def test_links_lead_to_their_section(three):
    links = three.run(
        "[...document.querySelectorAll('nav a, td a, th a')].map(a => a.getAttribute('href'))"
    )
    assert len(links) >= 8
    for link in links:
        three.run(f"document.querySelector('a[href=\"{link}\"]').click()")
        assert three.run("location.hash") == link
        assert three.run("document.querySelector(location.hash).checkVisibility()")


def test_contents_stay_in_view(three, resize):
    for width in (1440, 390):
        resize(width, 800)
        three.run("scrollTo({top: 900, behavior: 'instant'})")
        top, bottom = three.run(
            "(r => [r.top, r.bottom])(document.querySelector('.contents').getBoundingClientRect())"
        )
        assert 0 <= top < 1 and bottom <= {1440: 800, 390: 80}[width], width  # one line
        assert three.run("document.documentElement.scrollWidth") <= width


def test_contents_are_reached_by_keyboard(three):
    for _ in range(2):  # the skip link, then the first of the contents
        type_key(three, "Tab")
    focus = three.run(
        "[document.activeElement.hash, getComputedStyle(document.activeElement).outlineStyle]"
    )
    assert focus == ["#summary", "solid"]


def test_tiles_hold_their_numbers_at_every_width(tab, resize, tmp_path, result):
    """A total energy of heavy atoms has 16 characters in the largest type of the page."""
    reference = dataclasses.replace(result.reference, scf_total_energy=-2943.6827909267)
    path = tmp_path / "heavy.html"
    path.write_text(page_of(dataclasses.replace(result, reference=reference)), encoding="utf-8")
    tab.open(path)
    assert "2943." in tab.run("document.querySelector('.headline dd').textContent")
    wide = "[...document.querySelectorAll('.headline dd')].map(x => x.scrollWidth - x.clientWidth)"
    for width in (360, 580, 640, 1000, 1024, 1160, 1440):
        resize(width)
        assert max(tab.run(wide)) <= 0, width


def test_the_summary_is_one_sheet_whatever_a_run_says(tab, tmp_path, result):
    """Long names, many warnings and a large molecule do not need a second one."""
    large = enlarged(result, 60)
    warnings = tuple(f"{k}: {'the moon is full and ' * 40}" for k in range(12))
    long = dataclasses.replace(
        large,
        molecule=dataclasses.replace(large.molecule, name="a long name " * 30),
        diagnostics=dataclasses.replace(large.diagnostics, warnings=warnings),
        provenance=dataclasses.replace(large.provenance, command="dfmp2 run " + "x.xyz " * 400),
    )
    (tmp_path / "long.html").write_text(page_of(long), encoding="utf-8")
    tab.open(tmp_path / "long.html")
    assert pages(tab) == 1


# Least distance of a text directly in a drawing from its left or right end, in units of the drawing.
ROOM = """Math.min(...[...document.querySelectorAll('svg')].flatMap(drawing =>
[...drawing.querySelectorAll(':scope > text')].map(text => { const box = text.getBBox();
return Math.min(box.x, drawing.viewBox.baseVal.width - box.x - box.width); })))"""


def test_texts_are_inside_their_drawing(tab, resize, tmp_path, result):
    """The longest name of a stage, and energies, also in the larger type of a small screen."""
    timings = dataclasses.replace(result.timings, gradient=1.5)
    path = tmp_path / "bars.html"
    path.write_text(page_of(dataclasses.replace(result, timings=timings)), encoding="utf-8")
    for width in (360, 1200):
        resize(width)
        tab.open(path)
        tab.run("document.querySelectorAll('details').forEach(part => part.open = true)")
        assert tab.run(ROOM) > -0.5, width


def test_copied_numbers_are_read_by_programs(three):
    for shown, copied in (
        ("\N{MINUS SIGN}7.7 \N{MULTIPLICATION SIGN} 10⁻⁶ Eh", "-7.7e-06 Eh"),
        ("+1.0 \N{MULTIPLICATION SIGN} 10¹²", "+1.0e+12"),
        ("\N{MINUS SIGN}76.2307247537", "-76.2307247537"),
        ("cm⁻¹", "cm⁻¹"),
    ):
        assert three.run(f"plain({shown!r})") == copied
        assert three.run(f"written({copied!r})") == shown
