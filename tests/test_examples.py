"""Every script and the notebook in inputs/examples runs and prints the numbers it should."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "inputs" / "examples"
EXPECTED = json.loads((EXAMPLES.parent / "expected.json").read_text())["cases"]
Printer = Callable[[str], str]


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Printer:
    """The output of a script run in an empty folder, which it must leave empty."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> str:
        out = io.StringIO()
        # Of a script that skips
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        assert not list(tmp_path.iterdir())
        if out.getvalue().startswith("skipped: "):
            pytest.skip(out.getvalue().strip())
        return out.getvalue()

    return run


def number(text: str, words: str) -> float:
    """The number after `words`."""
    match = re.search(rf"{words}\s*(-?[0-9.]+(?:e[-+]?[0-9]+)?)", text)
    assert match, text
    return float(match[1])


def test_all_are_listed() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    assert all(
        f"`{path.name}`" in readme
        for path in EXAMPLES.iterdir()
        if path.suffix in (".py", ".ipynb")
    )


@pytest.mark.parametrize(
    ("name", "words", "expected", "error"),
    [
        ("first_energy", r"E\(HF\)   =", EXPECTED["h2o"]["values"]["scf_total_energy"], 1e-7),
        ("with_ase", "eV =", EXPECTED["nh3"]["values"]["mp2_total_energy"], 1e-6),
        (
            "with_qcengine",
            r"success: True, [^\n]*\nE\(SCF\) =",
            EXPECTED["h2o"]["values"]["scf_total_energy"],
            1e-3,
        ),
        pytest.param(
            "interaction_s22", "counterpoise-corrected", -0.0224119246, 1e-6, marks=pytest.mark.slow
        ),
        # MP2/cc-pVDZ has r(OH) near 0.965 angstrom.
        pytest.param("bond_scan", "minimum at", 0.965, 0.005, marks=pytest.mark.slow),
    ],
)
def test_one_number(printed: Printer, name: str, words: str, expected: float, error: float) -> None:
    assert number(printed(name), words) == pytest.approx(expected, abs=error)


def test_basis_series(printed: Printer) -> None:
    """The series falls towards its limit, and both limits agree better with each other than with
    the largest basis."""
    text = printed("basis_series")
    names = ("cc-pvdz", "cc-pvtz", "cc-pvqz", r"limit cc-pv\[dt\]z", r"limit cc-pv\[tq\]z")
    dz, tz, qz, small, large = (number(text, rf"{name}\s+E\(corr\) =") for name in names)
    assert dz > tz > qz > large
    assert small == pytest.approx((27 * tz - 8 * dz) / 19, abs=2e-8)
    assert large == pytest.approx((64 * qz - 27 * tz) / 37, abs=3e-8)
    assert abs(large - small) < abs(large - qz)


@pytest.mark.slow
def test_compare_backends(printed: Printer) -> None:
    text = printed("compare_backends")
    expected = EXPECTED["nh3"]["values"]["mp2_correlation_energy"]
    assert number(text, r"E\(corr\) =") == pytest.approx(expected, abs=1e-7)
    differences = [float(found) for found in re.findall(r"difference ([-+0-9.e]+) Eh", text)]
    assert len(differences) >= 2 and max(map(abs, differences)) < 1e-7


@pytest.mark.slow
def test_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code cells in order in one namespace; the last expression of a cell is shown as
    HTML."""
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text())
    assert notebook["nbformat"] == 4 and len({cell["id"] for cell in notebook["cells"]}) == len(
        notebook["cells"]
    )
    monkeypatch.chdir(EXAMPLES)
    before = sorted(EXAMPLES.iterdir())
    space: dict[str, object] = {"__name__": "__main__"}
    shown, out = [], io.StringIO()
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(out):
            exec(compile(tree, "tour.ipynb", "exec"), space)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "tour.ipynb", "eval"), space)
                shown += [value._repr_html_()] if hasattr(value, "_repr_html_") else []
    assert len(shown) == 1 and "-76.230724" in shown[0]
    text = out.getvalue()
    # The dimer is bound
    assert -0.05 < number(text, "uncorrected   ") < number(text, "cp_corrected  ") < -0.015
    assert abs(number(text, "derived - computed: [+]?")) < 1e-8
    # MP2/cc-pVDZ, the experimental angle is 104.5 degrees
    assert 100 < number(text, "minimum at") < 104
    assert sorted(EXAMPLES.iterdir()) == before
