"""The process behind the command: its exit code, its buffers, its exit handlers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from dfmp2.trainium.launch.toolchain import PLACEHOLDERS, RELEASES
from tests.conftest import PATIENCE


def ended(code: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


PROGRAM = "import atexit, sys; from dfmp2.cli import main as p; "


@pytest.mark.parametrize("code", [0, 3, 75])
def test_the_exit_code_is_that_of_the_command_line(code):
    assert ended(f"{PROGRAM} p.main = lambda **_: {code}; sys.exit(p.program())").returncode == code


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
        work = (
            f"{PROGRAM} p.main = lambda **_: sys.{stream}.write('said') and 0; "
            "sys.exit(p.program())"
        )
        done = subprocess.run(
            [sys.executable, "-c", work], **{stream: full}, env={}, timeout=PATIENCE
        )
    assert done.returncode == code


def test_threads_are_waited_for():
    thread = "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()"
    done = ended(
        f"{PROGRAM} import threading, time; p.main = lambda **_: {thread} or 0; "
        "sys.exit(p.program())"
    )
    assert (done.returncode, done.stdout) == (0, "thread\n")


def test_a_fault_keeps_its_traceback():
    done = ended(f"{PROGRAM} p.main = lambda **_: 1 / 0; sys.exit(p.program())")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_the_interpreter_is_not_taken_apart():
    held = "class Held:\n    def __del__(self): print('taken apart')\n"
    assert ended(f"{held}held = Held()").stdout == "taken apart\n"
    done = ended(f"{held}{PROGRAM}\nheld = Held(); p.main = lambda **_: 0; sys.exit(p.program())")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("program", ["installed", "module"])
def test_a_signal_during_the_imports_is_one_line(name, program, tmp_path):
    """A planted module sends it, and would lose an exception."""
    (tmp_path / "click.py").write_text(
        "import os, signal\n"
        "try:\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    for _ in range(1000): pass\n"
        "except BaseException as error: raise ImportError('lost') from error\n"
    )
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    module, _, function = project["project"]["scripts"]["dfmp2"].partition(":")
    command = [sys.executable, "-m", "dfmp2"]
    if program == "installed":
        script = f"import sys; from {module} import {function}; sys.exit({function}())"
        command = [sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code, kind, message = {
        "SIGINT": (130, "KeyboardInterrupt", "interrupted (Ctrl-C): nothing was written"),
        "SIGTERM": (75, "Interrupted", "terminated (SIGTERM): nothing was written; run it again"),
    }[name]
    as_json = json.dumps({"error": message, "kind": kind, "exit_code": code})
    for arguments, said in (
        (["run", "h2o.xyz"], f"dfmp2: {message}"),
        (["plan", "h2o.xyz", "--json"], as_json),
        (["bench", "--json", "rates.json"], f"dfmp2: {message}"),  # names a file
    ):
        done = subprocess.run(
            command + arguments, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, "", f"{said}\n")


def test_extras_of_trainium_name_what_they_bring():
    """torch-xla with its own PyTorch; AWS's packages in the releases that the kernels follow, never
    placeholders."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())[
        "project"
    ]
    extras = {
        name: list(map(Requirement, found))
        for name, found in project["optional-dependencies"].items()
    }
    torch, xla = extras["xla"]
    assert (torch.name, xla.name) == ("torch", "torch-xla") and torch.specifier == xla.specifier
    assert str(xla.specifier).startswith("==2.9.")  # the version the lane is written for
    for name, target in (("neuron", "trn1"), ("neuron-trn2", "trn2")):
        nki, compiler = extras[name]
        assert (nki.name, compiler.name) == ("nki", "neuronx-cc")
        major, minor = RELEASES[target]
        assert str(nki.specifier) == f"=={major}.{minor}.*"
        assert str(compiler.specifier).startswith("==2.")
        for one in (nki, compiler):
            assert not one.specifier.contains(PLACEHOLDERS[one.name])
    assert not any("neuron" in one for one in project["optional-dependencies"]["test"])
    assert not any("torch" in one for one in project["dependencies"])


@pytest.mark.parametrize(
    ("extra", "nki", "compiler"),
    [("neuron", "0.6.1", "2.27.9"), ("neuron-trn2", "0.7.0", "2.28.3")],
)
def test_extras_take_the_newest_of_the_pinned_releases(extra, nki, compiler):
    """Others are older, newer, and PyPI's placeholders."""
    offered = {
        "nki": ("0.0.1", "0.3.0", "0.6.0", "0.6.1", "0.7.0", "0.8.0"),
        "neuronx-cc": ("1.0.post1", "2.26.1", "2.27.9", "2.28.3", "2.29.0"),
    }
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())[
        "project"
    ]
    wanted = map(Requirement, project["optional-dependencies"][extra])
    taken = [max(one.specifier.filter(offered[one.name]), key=Version) for one in wanted]
    assert taken == [nki, compiler]
