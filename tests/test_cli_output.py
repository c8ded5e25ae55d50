"""A run on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import on_a_terminal


def test_terminal_gets_a_bar_and_colour(folder: Path) -> None:
    run = ("run", "h2-far.xyz", "--basis", "sto-3g", "--overwrite")
    coloured = on_a_terminal("stderr", *run, cwd=folder)
    for what in ("SCF integrals", "integrals", "pairs"):
        assert re.search(rf"\r  {what} \[#{{30}}\] (\d+)/\1 *[\r\n]", coloured), coloured
    assert coloured.endswith("\r")  # the line that is rewritten is gone
    assert "\x1b[33mwarning: " in coloured
