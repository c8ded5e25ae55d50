"""All output of studies and runs, against tables in `tests/data/outputs`: JSON, names, shapes and
units in HDF5, rows of numbers and chart marks of pages, number lines of `show`, stages and warnings
during the run.

`python -m tests.test_outputs [NAME...]` writes the tables anew, to be read as a diff: each changed
number needs a reason. Important numbers are compared with other programs elsewhere
(docs/validation/numbers.md); these tests show that each is still output in its place with its unit.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import pytest

from dfmp2.cli.main import main
from tests.report_page import parse

STORED = Path(__file__).parent / "data" / "outputs"
FIXED = ("--basis", "sto-3g", "--threads", "1", "--precision", "fp64", "--json")
FILES = {
    "oh.xyz": "3\nmultiplicity=2\nO 0 0 0\nH 0.3 0.8 0.5\n@He -1.4 0.3 0.2\n",
    "heh.xyz": "2\ncharge=1\nHe 0 0 0\nH 0.3 0.5 0.72\n",
    "wide.xyz": "2\ncharge=1\nHe 0 0 0\nH 0.3 0.6 0.9\n",
    "li.xyz": "3\ncharge=1\nLi 0 0 0\nH 0.2 0.3 2.0\nH 0.2 0.9 2.4\n",
    # Near the minimum of its relaxed scan.
    "near.xyz": "3\ncharge=1\nLi 0 0 0\nH 0.23 0.10 2.18\nH 0.17 0.80 2.04\n",
    "he.xyz": "1\n\nHe 0 0 0\n",
    "proton.xyz": "2\n\nH 0 0 0\nH 0.1 0.2 0.71\n",
    "field.txt": "3.1 -1.2 2.5 0.4\n-2.2 1.9 -2.8 -0.3\n",
}
HEH = ("heh.xyz", *FIXED, "--stability", "off")
# All run in one folder, in order; each writes the file NAME.h5.
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "oh.xyz", *FIXED, "--frozen-core", "1", "--point-charges", "field.txt", "--properties"),
    "gradient": ("gradient", "oh.xyz", *FIXED, "--frozen-core", "1"),
    "optimization": ("optimize", *HEH, "--max-steps", "9"),
    "frequencies": ("frequencies", *HEH, "--allow-gradient", "--temperature", "350"),
    "scan": ("scan", "oh.xyz", *FIXED, "--bond", "1,2", "0.9:1.2:4", "--frozen-core", "1"),
    "map": ("scan", "li.xyz", *FIXED, "--bond", "2,3", "0.7:0.8:2", "--angle", "1,2,3", "95:120:2"),
    "interaction": ("interaction", "li.xyz", *FIXED, "--fragments", "1,2-3", "--charges", "1,0"),
    "cbs": ("cbs", "proton.xyz", *FIXED[2:], "--basis", "cc-pv[dt]z", "--method", "scs-mp2"),
    "reaction": ("reaction", *FIXED, "--reactants", "he.xyz,wide.xyz", "--products", "heh.xyz,he.xyz"),
    "relaxed": ("scan", "near.xyz", *FIXED, "--bond", "2,3", "0.72:0.78:2", "--relaxed"),
    "thermo": ("thermo", "frequencies.h5", "--json", "--temperature", "200,300", "--isotope", "H=2H"),
}  # fmt: skip
# Depends on the host, the time or the version; sentences; and whatever rounding may change.
CHANGING = re.compile(
    r"provenance|timings|memory|storage|resources|seconds|sha256|SHA-256|hash|created|version|"
    r"command|host|threads|processor|peak|kernel|predict|finished|wall|MB|GB|file_time|path|"
    r"[0-9a-f]{12,}|/how |summary|iterations|cycles|history|condition|certificate/.*(error|difference|slope)"
)
# Seconds of a stage, cycles of an SCF, zeros up to rounding, positions in a picture, versions.
LEFT_OUT = re.compile(
    r"(python|numpy|scipy|pyscf|h5py) \| [\d.]+|"
    r"[A-Za-z ]+( \| [\d.e-]*){4}|\d+ \| -\d+\.\d{10} \| .*|electrons difference.*|SCF convergence .*|"
    r"\d+ [A-Z][a-z]?|(change of the energy|orbital gradient|largest rotation).*"
)
SECONDS = re.compile(
    r"(SCF|integrals|transformation|metric and fit|pair energies|gradient and densities|total|"
    r"everything else|fitting certificate|stability.*) \d+\.\d\d|"
    r".*\de-1[2-9]"  # zero but for rounding
)
TIME_OF_A_RUN = r"\d+ \| [\d.]+(?= \| CPU)"  # and its cycles
TIME_LEFT = ", (about .*|a few seconds) left$"
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
NOISY = {"relaxed", "optimization", "frequencies", "reaction", "thermo"}  # differences of gradients


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers and texts of a JSON value by their path."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{path}/{name}")
    elif isinstance(value, list):
        yield f"{path}[]", len(value)
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}/{place}")
    else:
        yield path, value


def rounded(value: Any) -> str:
    """As stored: seven digits, and nothing below 1e-7, which differs between processors."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value)
    if abs(value) < 1e-7:
        return "0"
    return f"{value:.7g}"


def written(name: str) -> list[str]:
    """The lines of the table of a command that has run in this folder.

    Of a study's runs only the second is written in full; of the others, the energies.
    """
    printed = json.loads(Path(f"{name}.json").read_text())
    lines = [f"json {path} {rounded(value)}" for path, value in leaves(printed)]
    with h5py.File(f"{name}.h5") as handle:

        def note(path: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                units = item.attrs.get("units", "")
                lines.append(f"hdf5 /{path} {list(item.shape)} {units}")

        handle.visititems(note)
    text = Path(f"{name}.html").read_text()
    for row in parse(text).rows:
        cells = [" ".join(cell.split()) for cell in row]
        if any(re.fullmatch(r"[-+±]?\d\S*", cell) for cell in cells):
            shown = " | ".join(cells)
            if not LEFT_OUT.fullmatch(shown):
                lines.append(f"page {re.sub(TIME_OF_A_RUN, '', shown)}")
    for line in Path(f"{name}.out").read_text().splitlines():
        shown = re.sub(r" \d+ \d+\.\d\d$", "", " ".join(line.split()))  # cycles, seconds
        if re.search(r"\d\.\d", shown) and not SECONDS.match(shown):
            lines.append(f"text {shown}")
    marks = [" ".join(mark.split()) for mark in re.findall("<title>(.*?)</title>", text)]
    lines += [f"mark {mark}" for mark in marks if not LEFT_OUT.fullmatch(mark)]
    names = list(printed.get("runs", ()))
    others = [f"/runs/{run}/" for run in names if run not in names[1:2]]
    kept = []
    for line in lines:
        of_another = any(run in line for run in others) and "total_energy" not in line
        if not of_another and not CHANGING.search(line):
            kept.append(line)
    return kept


def heard(told: str) -> list[str]:
    """Stages, steps and warnings without numbers; neither iterations nor the time left."""
    lines = [line for line in told.splitlines() if not line.startswith(" ")]
    return [f"told {re.sub(TIME_LEFT, '', NUMBER.sub('#', line))}" for line in lines]


def run_all(names: list[str]) -> dict[str, list[str]]:
    """The tables of the commands, run in the current folder."""
    for file, text in FILES.items():
        Path(file).write_text(text)
    tables = {}
    for name in names:
        out, told = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(told):
            code = main([*COMMANDS[name], "--output", f"{name}.h5"])
        assert code in (0, 4), (name, code)
        shown = StringIO()
        with redirect_stdout(shown), redirect_stderr(StringIO()):
            assert main(["show", f"{name}.h5"]) == 0
            assert main(["report", f"{name}.h5", "-o", f"{name}.html"]) == 0
        Path(f"{name}.out").write_text(shown.getvalue())
        assert out.getvalue().endswith("}\n") and not out.getvalue().endswith("\n\n")
        Path(f"{name}.json").write_text(out.getvalue())
        tables[name] = [*written(name), *heard(told.getvalue())]
    return tables


def same(found: str, expected: str, relative: float) -> bool:
    """Whether two lines have the same words, and numbers that differ by rounding.

    Allowed are two units of the last decimal shown, or `relative`.
    """
    if NUMBER.sub("#", found) != NUMBER.sub("#", expected):
        return False
    for one, two in zip(NUMBER.findall(found), NUMBER.findall(expected), strict=True):
        digits, _, exponent = two.partition("e")
        decimals = len(digits.partition(".")[2])
        unit = 10.0 ** (int(exponent or 0) - decimals)
        allowed = max(relative * abs(float(two)), 2.001 * unit)
        if not decimals and not exponent:  # an integer, up to its last bit
            allowed = 0.0 if one.lstrip("+-").isdigit() else relative * abs(float(two))
        if abs(float(one) - float(two)) > allowed:
            return False
    return True


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("outputs"))
    try:
        return run_all(list(COMMANDS))
    finally:
        os.chdir(before)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_written_is_what_was_written(name: str, tables: dict[str, list[str]]) -> None:
    expected = (STORED / f"{name}.txt").read_text().splitlines()
    found = tables[name]
    assert len(found) == len(expected), set(found) ^ set(expected)
    relative = 1e-6
    if name in NOISY:
        relative = 1e-4
    pairs = zip(found, expected, strict=True)
    differing = [pair for pair in pairs if not same(*pair, relative)]
    assert not differing, differing[:10]


def rewrite() -> None:
    """Write the tables of the named commands, or of all."""
    STORED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        tables = run_all(list(COMMANDS))
        os.chdir("/")
    for name in sys.argv[1:] or COMMANDS:
        (STORED / f"{name}.txt").write_text("\n".join(tables[name]) + "\n")


if __name__ == "__main__":
    rewrite()
