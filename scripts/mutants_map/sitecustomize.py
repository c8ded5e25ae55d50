"""Make coverage.py record the lines of dfmp2 that each test executes, including in processes that
it starts; the map of `scripts/mutants`.

Python loads this module by name at startup if its folder is on PYTHONPATH; it is also a pytest
plugin. A context of coverage.py is the id of a test, or the name of a fixture, whose lines count
for every test that uses it; MUTANTS_NAME is the context of a process started by a test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

NOTES = os.environ.get("MUTANTS_NOTES", "")  # file for notes that coverage.py does not take
NAME = "MUTANTS_NAME"
failed: set[str] = set()

if "COVERAGE_PROCESS_START" in os.environ:
    import coverage

    coverage.process_startup()


def switch(name: str) -> None:
    """Attribute further lines to a test or a fixture, or to neither."""
    os.environ[NAME] = name
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(name)


def pytest_runtest_logreport(report: Any) -> None:
    """Record tests that fail or are skipped without any fault."""
    if report.outcome != "passed":
        failed.add(report.nodeid)


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[Any]:
        """Separate the lines of a fixture from those of its test, or of the fixture that requested
        it."""
        before = os.environ.get(NAME, "")
        switch(f"fixture {fixturedef.baseid} {fixturedef.argname}")
        try:
            return (yield)
        finally:
            switch(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item: Any) -> Iterator[Any]:
        """Record the processor time of a test, including its processes, and its fixtures."""
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
