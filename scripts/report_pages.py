"""Make docs/project/validation/report-pages.md: pictures of each kind of page, and what a browser and
axe-core found on them.

    npm install axe-core
    python scripts/report_pages.py --axe node_modules/axe-core/axe.min.js [--keep FOLDER]

Computes a result or a study of each kind with `dfmp2`, writes its page, and opens it in Chromium at
two widths, light and dark, unfolded: axe-core examines it, its width is compared with the window,
and the Tab key has to reach all that can be used, visibly. Exit code 1 where a finding is serious
or critical, or one of these fails.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests import chromium  # noqa: E402

PAGE = ROOT / "docs" / "project" / "validation" / "report-pages.md"
PICTURES = ROOT / "docs" / "project" / "validation" / "report-pages"
DFMP2 = Path(sys.executable).with_name("dfmp2")
WIDTHS, SCHEMES = (1440, 390), ("light", "dark")
MOST_BYTES = 2_000_000  # of a page
CC = "--basis cc-pvdz"
KINDS = {  # name: what it shows, commands that compute it, and what `dfmp2 report` is given
    "result": (
        "one result",
        [f"run inputs/glycine.xyz {CC} --check --output result.h5"],
        "result.h5",
    ),
    "unstable": (
        "one result with a warning",
        [f"run h2.xyz {CC} --reference rhf --allow-small-gap --output unstable.h5"],
        "unstable.h5",
    ),
    "gradient": (
        "a gradient",
        [f"gradient inputs/h2o.xyz {CC} --output gradient.h5"],
        "gradient.h5",
    ),
    "interaction": (
        "an interaction energy",
        [
            f"interaction inputs/formic-acid-dimer.xyz --fragments 1-5,6-10 {CC} --output "
            "interaction.h5"
        ],
        "interaction.h5",
    ),
    "cbs": (
        "a basis set limit",
        ["cbs inputs/h2o.xyz --basis cc-pv[tq]z --output cbs.h5"],
        "cbs.h5",
    ),
    "scan": (
        "a scan",
        [f"scan inputs/h2o.xyz --bond 1,2 0.90:1.02:7 {CC} --output scan.h5"],
        "scan.h5",
    ),
    "optimize": (
        "an optimisation",
        [f"optimize inputs/nh3.xyz {CC} --output optimize.h5"],
        "optimize.h5",
    ),
    "frequencies": (
        "frequencies",
        [f"frequencies optimize.xyz {CC} --output frequencies.h5"],
        "frequencies.h5",
    ),
    "imaginary": (
        "a transition state's frequencies",
        [f"frequencies flat.xyz {CC} --allow-gradient --output imaginary.h5"],
        "imaginary.h5",
    ),
    "thermochemistry": (
        "a thermochemistry",
        ["thermo frequencies.h5 --temperature 200:600:5 --output thermochemistry.h5"],
        "thermochemistry.h5",
    ),
    "reaction": (
        "a reaction",
        [
            "reaction --reactants co.xyz,inputs/h2o.xyz --products co2.xyz,h2-short.xyz --optimize "
            "--frequencies --temperature 500 --basis sto-3g --output reaction.h5"
        ],
        "reaction.h5",
    ),
    "radical": (
        "a radical with ghost centres",
        [f"run radical.xyz {CC} --properties --output radical.h5"],
        "radical.h5",
    ),
    "solvent": (
        "a run in a solvent",
        [f"run inputs/h2o.xyz {CC} --solvent water --output solvent.h5"],
        "solvent.h5",
    ),
    "batch": ("a batch", ["batch run batch.toml --workers 1"], "results"),
    "hundred": (
        "100 geometries of glycine",
        ["batch run distorted/*.xyz --basis sto-3g --workers 1 --output hundred"],
        "hundred",
    ),
}
HEAD = """# Report pages

Made by `scripts/report_pages.py` with {browser} and axe-core {axe}, {date}. Each page was opened at {widths} pixels,
light and dark, {looks} times in all, with everything unfolded except the runs of a study, which look like single results.
**Sheets** are the A4 pages of the printed summary and of all sections. **Findings** come from all rules of axe-core.
**Too wide** counts windows that the page did not fit. **Tab** is how many of the visible controls the Tab key reached
with a visible focus.

| page of | bytes | sheets | findings | too wide | Tab |
|---|---|---|---|---|---|
"""
LOOK = """(async () => {
document.querySelectorAll('details:not(.run)').forEach((item) => { item.open = true; });
const {violations} = await axe.run(document, {resultTypes: ['violations']});
const row = ({impact, id, nodes}) => [impact, id, nodes.length, nodes[0].html.slice(0, 120)];
return JSON.stringify(violations.map(row));
})()"""
FOCUS = """(() => {
const element = document.activeElement, {outlineStyle, outlineWidth} = getComputedStyle(element);
if (element === document.body) return "";
return outlineStyle !== "none" && parseFloat(outlineWidth) > 0 ? "seen" : element.outerHTML.slice(0, 80);
})()"""
CONTROLS = """[...document.querySelectorAll('a, button, summary, select, input, [tabindex]')]
.filter((element) => element.checkVisibility()).length"""


def prepare(folder: Path) -> None:
    """Molecules and manifests."""
    shutil.copytree(ROOT / "inputs", folder / "inputs")
    (folder / "h2.xyz").write_text("2\nstretched\nH 0 0 0\nH 0 0 2.5\n")
    (folder / "h2-short.xyz").write_text("2\nhydrogen\nH 0 0 0\nH 0 0 0.74\n")
    (folder / "co.xyz").write_text("2\ncarbon monoxide\nC 0 0 0\nO 0 0 1.13\n")
    (folder / "co2.xyz").write_text("3\ncarbon dioxide\nO 0 0 0\nC 0 0 1.17\nO 0 0 2.34\n")
    (folder / "radical.xyz").write_text(
        "4\nmultiplicity=2\nO 0 0 0\nH 0 0 0.97\n@O 0 0 3\n@H 0 0.9 3.2\n"
    )
    (folder / "flat.xyz").write_text(
        "4\nplanar ammonia\nN 0 0 0\nH 1 0 0\nH -0.5 0.8660254 0\nH -0.5 -0.8660254 0\n"
    )
    items = "".join(
        f'[[item]]\nmolecule = "inputs/{name}.xyz"\n' for name in ("h2o", "nh2", "ch4", "nh3")
    )
    # which has no functions for iodine
    heavy = '[[item]]\nmolecule = "inputs/ch2i2.xyz"\nbasis = "cc-pvtz"\n'
    (folder / "batch.toml").write_text(
        f'basis = "cc-pvdz"\nfrozen-core = "auto"\noutput = "results"\n{items}{heavy}'
    )
    (folder / "distorted").mkdir()
    head, title, *atoms = (ROOT / "inputs" / "glycine.xyz").read_text().splitlines()
    rng = np.random.default_rng(1)
    for number in range(100):
        moved = [
            (name, *(float(x) + rng.normal(0, 0.01) for x in place))
            for name, *place in map(str.split, atoms)
        ]
        lines = [head, title, *(" ".join(map(str, atom)) for atom in moved)]
        (folder / "distorted" / f"glycine-{number:03d}.xyz").write_text("\n".join(lines) + "\n")


def dfmp2(folder: Path, command: str) -> None:
    """Run a command there; that an item of a batch fails (exit code 9) is foreseen."""
    print(f"dfmp2 {command}", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", f"{DFMP2} {command}"], cwd=folder, env=environment, capture_output=True
    )
    if done.returncode not in (0, 9):
        raise SystemExit(f"dfmp2 {command}: {done.stderr.decode()}")


def look(tab: chromium.Tab, page: Path, axe: str) -> tuple[Counter[str], int, str]:
    """What axe-core found, in how many windows the page was too wide, and how many controls Tab
    reached."""
    found: Counter[str] = Counter()
    wide, reached = 0, 0
    for width in WIDTHS:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        tab.ask("Emulation.setDeviceMetricsOverride", **size)
        for scheme in SCHEMES:
            media = [{"name": "prefers-color-scheme", "value": scheme}]
            tab.ask("Emulation.setEmulatedMedia", media="screen", features=media)
            tab.open(page)
            picture(tab, page.stem, width, scheme)
            tab.run(f"{axe};0")
            for impact, rule, count, example in json.loads(tab.run(LOOK)):
                print(
                    f"{page.stem} {width} {scheme}: {impact} {rule} x {count}: {example}",
                    flush=True,
                )
                found[f"{impact}: {rule}"] += count
            wide += tab.run("document.documentElement.scrollWidth") > width
    tab.open(page)
    controls = tab.run(CONTROLS)
    for _ in range(controls):
        for kind in ("keyDown", "keyUp"):
            tab.ask(
                "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
            )
        seen = tab.run(FOCUS)
        reached += seen == "seen"
        if seen != "seen":
            print(f"{page.stem}: no visible focus: {seen or 'nothing'}", flush=True)
    return found, wide, f"{reached} of {controls}"


def sheets(tab: chromium.Tab, page: Path) -> str:
    """How many sheets of A4 the summary is printed on, and how many all sections."""
    tab.ask("Emulation.clearDeviceMetricsOverride")
    tab.ask("Emulation.setEmulatedMedia", media="", features=[])
    tab.open(page)
    counts = []
    for whole in ("false", "true"):
        tab.run(f"document.querySelector('#all').checked = {whole}")
        paper = base64.b64decode(tab.ask("Page.printToPDF", preferCSSPageSize=True)["data"])
        counts.append(len(re.findall(rb"/Type\s*/Page\b", paper)))
    return f"{counts[0]}, {counts[1]}"


def picture(tab: chromium.Tab, name: str, width: int, scheme: str) -> None:
    """Pictures for the page: wide and light, narrow and dark."""
    if (width, scheme) not in ((1440, "light"), (390, "dark")) or name == "hundred":
        return
    clip = {
        "x": 0,
        "y": 0,
        "width": width,
        "height": 1100 if width > 500 else 900,
        "scale": 0.6 if width > 500 else 0.8,
    }
    taken = tab.ask(
        "Page.captureScreenshot", format="webp", quality=70, captureBeyondViewport=True, clip=clip
    )
    (PICTURES / f"{name}-{width}.webp").write_bytes(base64.b64decode(taken["data"]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--axe", type=Path, required=True, help="axe.min.js of the npm package axe-core"
    )
    parser.add_argument(
        "--keep", type=Path, help="folder for results and pages; results that are there are taken"
    )
    given = parser.parse_args()
    axe, program = given.axe.read_text(), chromium.find()
    if program is None:
        raise SystemExit("no chromium on this machine")
    PICTURES.mkdir(exist_ok=True)
    chromium.PATIENCE = 300.0  # s; axe-core is slow on large pages
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary) / "pages"
        fresh = not folder.exists()
        if fresh:
            folder.mkdir(parents=True)
            prepare(folder)
        for name, (_, commands, results) in KINDS.items():
            for command in [
                *(commands if fresh else []),
                f"report {results} -o {name}.html --overwrite",
            ]:
                dfmp2(folder, command)
        rows, failed = [], False
        with chromium.tab(program, Path(temporary) / "profile") as tab:
            browser = re.sub("^Headless", "", tab.ask("Browser.getVersion")["product"]).replace(
                "/", " "
            )
            for name, (shown, _, _) in KINDS.items():
                page = folder / f"{name}.html"
                found, wide, reached = look(tab, page, axe)
                size = page.stat().st_size
                said = ", ".join(f"{count} {what}" for what, count in found.items()) or "none"
                printed = sheets(tab, page)
                failed |= not printed.startswith("1,")
                rows.append(f"| {shown} | {size:,} | {printed} | {said} | {wide} | {reached} |")
                print(rows[-1], flush=True)
                grave = any(what.startswith(("serious", "critical")) for what in found)
                failed |= (
                    grave or wide > 0 or len(set(reached.split(" of "))) > 1 or size > MOST_BYTES
                )
    facts = {
        "browser": browser,
        "axe": re.search(r"axe v([\d.]+)", axe)[1],  # type: ignore[index]
        "date": f"{datetime.now(UTC):%-d %B %Y}",
        "widths": ", ".join(map(str, WIDTHS)),
        "looks": len(KINDS) * len(WIDTHS) * len(SCHEMES),
    }
    text = HEAD.format(**facts) + "\n".join(rows) + "\n"
    for name, (shown, _, _) in KINDS.items():
        if name != "hundred":
            wide, narrow = (
                f"![The page of {shown}]({PICTURES.name}/{name}-{width}.webp)"
                for width in (1440, 390)
            )
            text += f"\n## {shown[0].upper()}{shown[1:]}\n\n{wide}\n{narrow}\n"
    PAGE.write_text(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
