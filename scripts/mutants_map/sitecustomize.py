"""Has coverage.py note which lines of dfmp2 each test executes, also in the processes that it
starts: the map of `scripts/mutants`.

Python loads this module by its name when it starts, where its folder is on PYTHONPATH; it is a
plugin of pytest, too. A context of coverage.py is the id of a test, or the name of a fixture, whose
lines count for every test that has it; MUTANTS_NAME is that of a process that a test starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

NOTES = os.environ.get("MUTANTS_NOTES", "")  # the file for what coverage.py does not note
NAME = "MUTANTS_NAME"
failed: set[str] = set()

if "COVERAGE_PROCESS_START" in os.environ:
    import coverage

    coverage.process_startup()


def switch(name: str) -> None:
    """Have what follows count for a test or a fixture, or for neither."""
    os.environ[NAME] = name
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(name)


def pytest_runtest_logreport(report: Any) -> None:
    """Note what fails or is skipped without any fault."""
    if report.outcome != "passed":
        failed.add(report.nodeid)


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[Any]:
        """Keep what a fixture executes apart from its test, or from the fixture that asked for it."""
        before = os.environ.get(NAME, "")
        switch(f"fixture {fixturedef.baseid} {fixturedef.argname}")
        try:
            return (yield)
        finally:
            switch(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item: Any) -> Iterator[Any]:
        """Note the processor time of a test, with that of its processes, and which fixtures it has."""
        switch(item.nodeid)
        begun = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            fixtures = [
                f"fixture {one.baseid} {one.argname}"
                for definitions in item._fixtureinfo.name2fixturedefs.values()
                for one in definitions
            ]
            line = {
                "name": item.nodeid,
                "contexts": [item.nodeid, *fixtures],
                "seconds": sum(os.times()[:4]) - begun,
                "passed": item.nodeid not in failed,
            }
            with open(NOTES, "a") as file:
                file.write(json.dumps(line) + "\n")
            switch("")
