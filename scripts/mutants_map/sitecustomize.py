"""Notes which functions of dfmp2 each test calls, also in the processes that it starts: the map of
`scripts/mutants`.

Python loads this module by its name when it starts, where its folder is on PYTHONPATH; it is a
plugin of pytest, too. Each process adds lines of JSON to a file of its own in the folder
MUTANTS_MAP. MUTANTS_NAME is what runs: the id of a test or the name of a fixture, whose calls count
for every test that has it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

FOLDER = os.environ.get("MUTANTS_MAP", "")
NAME = "MUTANTS_NAME"
PACKAGE = f"{os.sep}dfmp2{os.sep}"
called: dict[int, CodeType] = {}  # by id: the hash of code is slow
failed: set[str] = set()


def note(frame: FrameType, _event: str, _argument: Any) -> None:
    """Note a call; None, so that lines are not traced."""
    called[id(frame.f_code)] = frame.f_code


def trace() -> None:
    """Note the calls of this thread, and of those it starts."""
    sys.settrace(note)
    threading.settrace(note)


def write(name: str, codes: dict[int, CodeType], **more: Any) -> None:
    """Add what a test or a fixture has called."""
    inside = (code for code in list(codes.values()) if PACKAGE in code.co_filename)
    functions = sorted(
        f"{code.co_filename.rpartition(PACKAGE)[2]}:{code.co_qualname}" for code in inside
    )
    with open(f"{FOLDER}/{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps({"name": name, "functions": functions, **more}) + "\n")


def write_at_the_end() -> None:
    """Have this process write what it has called, also when it ends as `dfmp2` does: by _exit,
    before the functions that were registered first."""
    end = os._exit

    def write_and_end(code: int) -> None:
        write(os.environ[NAME], called)
        end(code)

    atexit.register(lambda: write(os.environ[NAME], called))
    os._exit = write_and_end


if FOLDER:
    trace()
    if os.environ.get(NAME):
        write_at_the_end()


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
        """Write what a fixture calls by itself."""
        outside = dict(called)
        called.clear()
        before = os.environ.get(NAME, "")
        name = f"fixture {fixturedef.baseid} {fixturedef.argname}"
        os.environ[NAME] = name
        try:
            return (yield)
        finally:
            write(name, called)
            os.environ[NAME] = before
            called.update(outside)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item: Any) -> Iterator[Any]:
        """Write what a test calls, beside its fixtures."""
        called.clear()
        os.environ[NAME] = item.nodeid
        trace()
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            fixtures = [
                f"fixture {one.baseid} {one.argname}"
                for definitions in item._fixtureinfo.name2fixturedefs.values()
                for one in definitions
            ]
            seconds = time.perf_counter() - begun
            passed = item.nodeid not in failed
            write(item.nodeid, called, fixtures=fixtures, seconds=seconds, passed=passed)
            os.environ.pop(NAME, None)
