"""The process behind the command: its exit code, its buffers, its exit handlers; the extras that
bring its accelerators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from dfmp2.trainium.launch.toolchain import PLACEHOLDERS, RELEASES
from tests.conftest import PATIENCE

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
SCRIPT = """
import atexit, sys, threading, time
from dfmp2.cli import main as command

class Held:
    def __del__(self):
        print("taken apart")

def late():
    time.sleep(0.3)
    print("thread")

def work(**_):
{work}

held = Held()
command.main = work
sys.exit(command.program())
"""


def ended(work: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A process that has ended, whose command line does some work."""
    script = SCRIPT.format(work=indent(work, "    "))
    return subprocess.run([sys.executable, "-c", script], text=True, timeout=PATIENCE, **options)


def test_a_process_ends_after_its_threads_and_handlers_and_is_not_taken_apart() -> None:
    """What is buffered is written, and the exit code is that of the command line."""
    work = (
        "atexit.register(print, 'handler', end='')\n"
        "threading.Thread(target=late).start()\n"
        "sys.stdout.write('work ')\n"
        "return 75"
    )
    done = ended(work, capture_output=True)
    assert (done.returncode, done.stdout) == (75, "work thread\nhandler")


def test_a_fault_keeps_its_traceback_and_leaves_the_process_to_python() -> None:
    done = ended("1 / 0", capture_output=True)
    assert (done.returncode, done.stdout) == (1, "taken apart\n")
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(("stream", "code"), [("stderr", 0), ("stdout", 120)])
def test_progress_that_cannot_be_written_is_no_failure_and_a_report_is(
    stream: str, code: int
) -> None:
    """120 is the interpreter's own: https://docs.python.org/3/library/sys.html#sys.exit."""
    with open("/dev/full", "w") as full:
        done = ended(f"sys.{stream}.write('said')\nreturn 0", **{stream: full}, env={})
    assert done.returncode == code


@pytest.mark.parametrize(
    ("name", "program", "arguments"),
    [
        ("SIGINT", "installed", ["plan", "h2o.xyz", "--json"]),
        ("SIGTERM", "module", ["plan", "h2o.xyz", "--json"]),
        ("SIGTERM", "installed", ["run", "h2o.xyz"]),
        ("SIGINT", "module", ["bench", "--json", "rates.json"]),  # names a file
    ],
)
def test_a_signal_during_the_imports_is_one_line(
    name: str, program: str, arguments: list[str], tmp_path: Path
) -> None:
    """A planted module sends it, and would lose an exception."""
    (tmp_path / "click.py").write_text(
        "import os, signal\n"
        "try:\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    for _ in range(1000): pass\n"
        "except BaseException as error: raise ImportError('lost') from error\n"
    )
    command = [sys.executable, "-m", "dfmp2"]
    if program == "installed":
        module, _, function = PROJECT["scripts"]["dfmp2"].partition(":")
        script = f"import sys; from {module} import {function}; sys.exit({function}())"
        command = [sys.executable, "-c", script]
    code, kind, message = {
        "SIGINT": (130, "KeyboardInterrupt", "interrupted (Ctrl-C): nothing was written"),
        "SIGTERM": (75, "Interrupted", "terminated (SIGTERM): nothing was written; run it again"),
    }[name]
    said = f"dfmp2: {message}"
    if arguments[-1] == "--json":
        said = json.dumps({"error": message, "kind": kind, "exit_code": code})
    done = subprocess.run(
        command + arguments,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"{said}\n")


def requirements(extra: str) -> list[Requirement]:
    """What an extra brings."""
    return [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]


def test_extras_of_trainium_name_what_they_bring() -> None:
    """torch-xla with its own PyTorch; AWS's packages in the releases that the kernels follow, never
    placeholders."""
    torch, xla = requirements("xla")
    assert (torch.name, xla.name) == ("torch", "torch-xla") and torch.specifier == xla.specifier
    assert str(xla.specifier).startswith("==2.9.")  # the version the lane is written for
    for extra, target in (("neuron", "trn1"), ("neuron-trn2", "trn2")):
        nki, compiler = requirements(extra)
        assert (nki.name, compiler.name) == ("nki", "neuronx-cc")
        major, minor = RELEASES[target]
        assert str(nki.specifier) == f"=={major}.{minor}.*"
        assert str(compiler.specifier).startswith("==2.")
        for one in (nki, compiler):
            assert not one.specifier.contains(PLACEHOLDERS[one.name])
    assert not any("neuron" in one for one in PROJECT["optional-dependencies"]["test"])
    assert not any("torch" in one for one in PROJECT["dependencies"])


@pytest.mark.parametrize(
    ("extra", "nki", "compiler"),
    [("neuron", "0.6.1", "2.27.9"), ("neuron-trn2", "0.7.0", "2.28.3")],
)
def test_extras_take_the_newest_of_the_pinned_releases(extra: str, nki: str, compiler: str) -> None:
    """Others are older, newer, and PyPI's placeholders."""
    offered = {
        "nki": ("0.0.1", "0.3.0", "0.6.0", "0.6.1", "0.7.0", "0.8.0"),
        "neuronx-cc": ("1.0.post1", "2.26.1", "2.27.9", "2.28.3", "2.29.0"),
    }
    taken = [
        max(one.specifier.filter(offered[one.name]), key=Version) for one in requirements(extra)
    ]
    assert taken == [nki, compiler]
