"""The process behind the command: its exit code, its buffers, its exit handlers."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dfmp2.trainium.launch.toolchain import NEWEST, OLDEST, PLACEHOLDERS


def ended(code: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


PROGRAM = "import atexit, sys; from dfmp2.cli import main as p; "


@pytest.mark.parametrize("code", [0, 3, 75])
def test_the_exit_code_is_that_of_the_command_line(code):
    done = ended(f"{PROGRAM} p.main = lambda **_: {code}; sys.exit(p.program())")
    assert done.returncode == code


def test_what_is_buffered_is_written_and_handlers_are_called():
    work = (
        "lambda **_: (atexit.register(print, 'handler', end=''), sys.stdout.write('work '), 0)[-1]"
    )
    done = ended(f"{PROGRAM} p.main = {work}; sys.exit(p.program())")
    assert (done.returncode, done.stdout) == (0, "work handler")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(("stream", "code"), [("stderr", 0), ("stdout", 120)])
def test_progress_that_cannot_be_written_is_no_failure_and_a_report_is(stream, code):
    """120 is the interpreter's own: https://docs.python.org/3/library/sys.html#sys.exit."""
    with open("/dev/full", "w") as full:
        work = f"{PROGRAM} p.main = lambda **_: sys.{stream}.write('said') and 0; sys.exit(p.program())"
        done = subprocess.run([sys.executable, "-c", work], **{stream: full}, env={}, timeout=60)
    assert done.returncode == code


def test_threads_are_waited_for():
    thread = "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()"
    done = ended(
        f"{PROGRAM} import threading, time; p.main = lambda **_: {thread} or 0; sys.exit(p.program())"
    )
    assert (done.returncode, done.stdout) == (0, "thread\n")


def test_a_fault_keeps_its_traceback():
    done = ended(f"{PROGRAM} p.main = lambda **_: 1 / 0; sys.exit(p.program())")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_the_interpreter_is_not_taken_apart():
    held = "class Held:\n    def __del__(self): print('taken apart')\n"
    usual = ended(f"{held}held = Held()")
    assert usual.stdout == "taken apart\n"
    done = ended(f"{held}{PROGRAM}\nheld = Held(); p.main = lambda **_: 0; sys.exit(p.program())")
    assert (done.returncode, done.stdout) == (0, "")


def test_extras_of_trainium_name_what_they_bring():
    """torch-xla with its own PyTorch; of AWS's packages the releases that the kernels follow, never a placeholder."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())[
        "project"
    ]
    extras = {
        name: list(map(Requirement, found))
        for name, found in project["optional-dependencies"].items()
    }
    torch, xla = extras["xla"]
    assert (torch.name, xla.name) == ("torch", "torch-xla") and torch.specifier == xla.specifier
    assert str(xla.specifier).startswith("==2.9.")  # what the lane is written for
    for one in extras["neuron"]:
        assert not one.specifier.contains(PLACEHOLDERS[one.name])
    nki = next(one for one in extras["neuron"] if one.name == "nki").specifier
    for release in (OLDEST, NEWEST):
        assert nki.contains("{}.{}.0".format(*release))
    assert not nki.contains(f"{NEWEST[0]}.{NEWEST[1] + 1}.0")
    assert not any("torch" in one for one in project["dependencies"])
