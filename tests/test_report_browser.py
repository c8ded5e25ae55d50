"""The report in a real browser: it is drawn in light and dark and on paper, asks for nothing, and can be used."""

from __future__ import annotations

import base64
import dataclasses
import re

import pytest

from tests import chromium
from tests.report_page import page_of, stored

pytestmark = pytest.mark.browser

# Mean brightness (0 to 255) and number of distinct colours of a PNG, found by the browser itself.
LOOK = """(async () => {
const image = new Image(); image.src = "data:image/png;base64,%s"; await image.decode();
const canvas = document.createElement("canvas"); canvas.width = image.width; canvas.height = image.height;
const context = canvas.getContext("2d"); context.drawImage(image, 0, 0);
const data = context.getImageData(0, 0, image.width, image.height).data, colours = new Set(); let sum = 0;
for (let k = 0; k < data.length; k += 4) { sum += data[k] + data[k + 1] + data[k + 2];
colours.add(65536 * data[k] + 256 * data[k + 1] + data[k + 2]); }
return {mean: sum / (0.75 * data.length), colours: colours.size, width: image.width, height: image.height}; })()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory, water):
    """Three results in files: compared, a scan with a hostile title, and one alone."""
    folder = tmp_path_factory.mktemp("pages")
    result = stored(water.path)
    mixed = [dataclasses.replace(result, backend=name) for name in ("b", "c")]
    exact = dataclasses.replace(result, precision="fp64", timings=dataclasses.replace(result.timings, total=0.001))
    texts = {
        "three": page_of(exact, *mixed),
        "hostile": page_of(result, title="<img src=http://x.invalid/a.png><script>document.title='no'</script>"),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    program = chromium.find()
    if program is None:
        pytest.skip("no chromium on this machine")
    with chromium.tab(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def three(tab, pages):
    """The page of three results, just opened."""
    tab.requests.clear()
    tab.complaints.clear()
    tab.open(pages / "three.html")
    return tab


def look(tab, page, scheme):
    """What a screenshot in a colour scheme looks like."""
    tab.ask("Emulation.setEmulatedMedia", media="screen", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.open(page)
    picture = tab.screenshot(1200, 2400)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    tab.open(page.with_name("empty.html"))  # whose policy allows to look at the picture
    return tab.run(LOOK % base64.b64encode(picture).decode())


def test_three_results_are_drawn_in_light_and_dark(tab, pages):
    (pages / "empty.html").write_text("<!DOCTYPE html><title>empty</title>")
    light, dark = (look(tab, pages / "three.html", scheme) for scheme in ("light", "dark"))
    tab.ask("Emulation.setEmulatedMedia", media="", features=[])
    assert light["mean"] > 225 and dark["mean"] < 60
    assert light["colours"] > 100 and dark["colours"] > 100
    assert (light["width"], light["height"]) == (1200, 2400)


def test_nothing_is_asked_for_and_nothing_goes_wrong(three, pages):
    assert three.complaints == []
    assert [url for url in three.requests if not url.startswith("data:")] == [(pages / "three.html").as_uri()]
    # The page itself forbids what it does not need: neither a script nor a picture can be put into it afterwards.
    three.run("""(() => { const script = document.createElement("script"), image = new Image();
        script.textContent = "window.intruder = 1"; image.src = "http://127.0.0.1:9/x.png";
        document.body.append(script, image); })()""")
    assert three.run("window.intruder") is None
    assert any("Content Security Policy" in complaint for complaint in three.complaints)


def test_hostile_title_is_text(tab, pages):
    tab.requests.clear()
    tab.complaints.clear()
    tab.open(pages / "hostile.html")
    assert tab.run("document.title").startswith("<img src=http://x.invalid")
    assert tab.run("document.querySelectorAll('img, script').length") == 1
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith("data:")] == [(pages / "hostile.html").as_uri()]


def column(tab, place):
    """Texts of a column of the first table."""
    return tab.run(f"[...document.querySelector('table').tBodies[0].rows].map(r => r.cells[{place}].textContent)")


def press(tab, place):
    head = f"document.querySelector('table').tHead.rows[0].cells[{place}]"
    tab.run(f"{head}.querySelector('button').click()")
    return tab.run(f"{head}.getAttribute('aria-sort')")


def test_headings_sort(three):
    assert column(three, 0) == ["1.h5", "2.h5", "3.h5"]
    times = [float(text) for text in column(three, 7)]
    assert press(three, 7) == "ascending" and [float(text) for text in column(three, 7)] == sorted(times)
    assert press(three, 7) == "descending"
    assert [float(text) for text in column(three, 7)] == sorted(times, reverse=True)
    assert press(three, 3) == "ascending"
    assert column(three, 3) == sorted(column(three, 3), key=str.lower)
    assert three.run("document.querySelectorAll('[aria-sort]').length") == 1
    # By keyboard as well: a heading is a button.
    three.run("document.querySelector('table').tHead.rows[0].cells[0].querySelector('button').focus()")
    for kind in ("keyDown", "keyUp"):
        three.ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert column(three, 0) == ["1.h5", "2.h5", "3.h5"]
    # By value, not by letters: -1.0e-2 is above -9.0e-2.
    press(three, 5)
    values = [float(text) for text in column(three, 5)]
    assert values == sorted(values)


def test_links_lead_to_their_section(three):
    links = three.run("[...document.querySelectorAll('nav a, td a, th a')].map(a => a.getAttribute('href'))")
    assert len(links) >= 8
    for link in links:
        three.run(f"document.querySelector('a[href=\"{link}\"]').click()")
        assert three.run("location.hash") == link
        assert three.run("document.querySelector(location.hash).tagName") == "SECTION"


def test_nothing_hangs_over_the_edge_of_a_small_screen(three):
    three.ask("Emulation.setDeviceMetricsOverride", width=360, height=700, deviceScaleFactor=1, mobile=False)
    wide = three.run("document.documentElement.scrollWidth")
    three.ask("Emulation.clearDeviceMetricsOverride")
    assert wide <= 360


def test_page_can_be_read_without_script(tab, pages):
    tab.ask("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(pages / "three.html")
    root = tab.ask("DOM.getDocument", depth=0)["root"]["nodeId"]
    text = tab.ask("DOM.getOuterHTML", nodeId=root)["outerHTML"]
    tab.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert "<button" not in text and len(re.findall("<svg", text)) > 10


def test_page_can_be_printed(three):
    paper = three.ask("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"]
    content = base64.b64decode(paper)
    assert content.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 30
