"""Called by pages of docs/howto and docs/tutorials: make their pictures of report pages.

    python scripts/docs_pictures.py [NAME ...]

Each result is computed as on its page, and one section of its report is photographed.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.report_pages import dfmp2, prepare  # noqa: E402
from tests import chromium  # noqa: E402

WATER = "run inputs/h2o.xyz --basis cc-pvdz"
PICTURES = {  # path below docs/ -> command, and the section of the report that is shown
    "howto/basis-sets": ("run inputs/ch2i2.xyz --basis def2-svp --frozen-core auto", "method"),
    "howto/compare": (f"{WATER} --check", "trust"),
    "howto/double-hybrids": (f"{WATER} --method b2plyp-d3bj", "energies"),
    "howto/from-psi4-or-orca": (f"{WATER} --frozen-core psi4", "method"),
    "howto/from-pyscf": (f"{WATER} --frozen-core 1", "energies"),
    "howto/frozen-core": (WATER, "pairs"),
    "howto/memory": ("run inputs/glycine.xyz --basis cc-pvdz --memory 140MB", "cost"),
    "howto/methods": (f"{WATER} --method drpa --xc pbe", "energies"),
    "howto/plan": ("run inputs/glycine.xyz --basis cc-pvdz", "cost"),
    "howto/point-charges": (f"{WATER} --point-charges charges.txt", "summary"),
    "howto/properties": (f"{WATER} --properties", "properties"),
    "howto/relativity": (
        "run inputs/h2o.xyz --basis cc-pvtz-dk --relativity x2c --scf-auxbasis cc-pvtz-jkfit "
        "--auxbasis cc-pvtz-ri",
        "method",
    ),
    "howto/scf-trouble": (WATER, "reference"),
    "tutorials/double-hybrid": (
        "run hcn.xyz --basis cc-pvtz --frozen-core auto --method b2plyp-d3bj",
        "summary",
    ),
}
WIDTH, HIGHEST, SCALE = 1440, 900, 0.65
BOX = """(() => {
const {x, y, width, height} = document.getElementById("SECTION").getBoundingClientRect();
return JSON.stringify({x, y: y + scrollY, width, height});
})()"""


def take(tab: chromium.Tab, page: Path, section: str, picture: Path) -> None:
    """The picture of a section, from its top."""
    tab.open(page)
    clip = json.loads(tab.run(BOX.replace("SECTION", section)))
    clip["height"] = min(clip["height"], HIGHEST)
    clip["scale"] = SCALE
    taken = tab.ask(
        "Page.captureScreenshot", format="webp", quality=70, captureBeyondViewport=True, clip=clip
    )
    picture.write_bytes(base64.b64decode(taken["data"]))


def main() -> None:
    program = chromium.find()
    if program is None:
        raise SystemExit("no chromium on this machine")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "pages"
        folder.mkdir()
        prepare(folder)
        (folder / "charges.txt").write_text("0 0  3.0  0.5\n0 0 -3.0 -0.5\n")
        (folder / "hcn.xyz").write_text("3\nhydrogen cyanide\nH 0 0 -1.065\nC 0 0 0\nN 0 0 1.156\n")
        with chromium.tab(program, Path(temporary) / "profile") as tab:
            tab.ask(
                "Emulation.setDeviceMetricsOverride",
                width=WIDTH,
                height=900,
                deviceScaleFactor=1,
                mobile=False,
            )
            for name in sys.argv[1:] or PICTURES:
                command, section = PICTURES[name]
                dfmp2(folder, f"{command} --output result.h5 --overwrite")
                dfmp2(folder, "report result.h5 -o page.html --overwrite")
                take(tab, folder / "page.html", section, ROOT / "docs" / f"{name}.webp")


if __name__ == "__main__":
    main()
