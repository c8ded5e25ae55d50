"""The machine's time zone, locale and encoding change nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MOLECULES, run_command, succeed
from tests.faults import EACH, numbers

H2 = ("--basis", "sto-3g", "--threads", "1")
NAME = "h2-\u00f6\u0131.xyz"  # o with dots, i without
UNSET = (
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LC_NUMERIC",
    "PYTHONUTF8",
    "PYTHONCOERCECLOCALE",
    "PYTHONIOENCODING",
)
# as an application that embeds us may do
ACTIVATE = "import locale; locale.setlocale(locale.LC_ALL, '')\n"
PLACES = {
    "no locale": {"TZ": "Pacific/Kiritimati"},
    "ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TZ": ":nonsense"},
    "Turkish, 8 bits": {"LC_ALL": "tr_TR.ISO-8859-9", "PYTHONUTF8": "0"},
}


@pytest.fixture(scope="module")
def turkish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for LOCPATH: a comma in numbers, and an I whose small letter has no dot."""
    folder = tmp_path_factory.mktemp("locales")
    for charset in ("UTF-8", "ISO-8859-9"):
        make = ["localedef", "-c", "-i", "tr_TR", "-f", charset, str(folder / f"tr_TR.{charset}")]
        if (
            shutil.which("localedef") is None
            or subprocess.run(make, capture_output=True).returncode
        ):
            pytest.skip("localedef cannot make a Turkish locale here (package locales)")
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("expected")
    (folder / NAME).write_text(MOLECULES["h2"])
    succeed(run_command("run", NAME, *H2, "--output", "x.h5", cwd=folder))
    return calculated(folder / "x.h5")


def calculated(path: Path) -> dict[str, bytes]:
    """All numbers, without the name of the molecule's file."""
    return {
        name: value for name, value in numbers(path).items() if not name.startswith("dfmp2/input")
    }


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_place(
    place: str,
    expected: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "sitecustomize.py").write_text(ACTIVATE)  # every Python runs it first
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    variables = {EACH: "0", "PYTHONPATH": path, **PLACES[place]}
    if "Turkish" in place:
        variables["LOCPATH"] = str(request.getfixturevalue("turkish"))
        check = ("import locale; print(locale.localeconv()['decimal_point'], 'I'.lower())",)
        python = run_command("-c", *check, cwd=tmp_path, env=variables, program=("python3",))
        # The locale is in force, and Python's own letters are not touched by it
        assert python.out == ", i\n"
    (tmp_path / NAME).write_text(MOLECULES["h2"])
    arguments = ("run", NAME, *H2, "--output", "x.h5", "--log", "l.txt")
    done = succeed(run_command(*arguments, cwd=tmp_path, env=variables))
    (energy,) = re.findall(r"^dfmp2 finished: E\(MP2, total\) = (\S+) Eh", done.out, re.MULTILINE)
    assert "Traceback" not in done.err
    assert calculated(tmp_path / "x.h5") == expected
    assert "dfmp2 finished" in (tmp_path / "l.txt").read_text(encoding="utf-8")
    shown = succeed(run_command("show", "x.h5", cwd=tmp_path, env=variables)).out.splitlines()
    elsewhere = succeed(run_command("show", "x.h5", cwd=tmp_path)).out.splitlines()
    # Letters that an encoding lacks are escaped
    expected_lines = [line for line in elsewhere if line.isascii()]
    assert [line for line in expected_lines if line not in shown] == []
    assert any(energy in line for line in shown)
