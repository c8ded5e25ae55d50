"""A run on a terminal, and two runs of one molecule at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dfmp2.output import hdf5
from tests.conftest import on_a_terminal, run_command

# --- screen ---------------------------------------------------------------------------------------


def test_terminal_gets_a_bar_and_colour(folder: Path) -> None:
    run = ("run", "h2-far.xyz", "--basis", "sto-3g", "--overwrite")
    coloured = on_a_terminal("stderr", *run, cwd=folder)
    for what in ("SCF integrals", "integrals", "pairs"):
        assert re.search(rf"\r  {what} \[#{{30}}\] (\d+)/\1 *[\r\n]", coloured), coloured
    assert coloured.endswith("\r")  # the line that is rewritten is gone
    assert "\x1b[33mwarning: " in coloured


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_runs_at_once_leave_one_whole_file(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    arguments = ("run", "h2.xyz", "--basis", "sto-3g", "--quiet")
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: run_command(*arguments, cwd=folder), range(2)))
    assert sorted(one.code for one in done) == [0, 3]
    hdf5.read(folder / "h2.dfmp2.h5")
    assert not list(folder.glob(".*"))
