"""The doctor as a command: what a run would do. What it needs, its reference energies and what it says
of each trap are the sessions `doctor` and `doctor-traps`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dfmp2.validation import doctor
from tests.conftest import Runner, listing, run_command, succeed

# The command without PyTorch: importing it takes longer than everything else together.
WITHOUT_TORCH = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from dfmp2.validation import doctor; del doctor.CHECKS['PyTorch']; "
    "from dfmp2.cli.main import main; sys.exit(main(sys.argv[1:]))",
)


def test_command(call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(doctor.CHECKS, "PyTorch")
    before = listing(folder)
    done = succeed(call("doctor", "--json"))
    assert (done.json["works"], done.json["exit_code"]) == (True, 0)
    names = [check["name"] for check in done.json["checks"]]
    assert names[-2:] == ["scratch", "default run"]
    assert len(names) == len(set(names)) == 10  # without PyTorch, with Neuron
    assert all(list(check) == ["name", "status", "detail", "fix"] for check in done.json["checks"])
    assert listing(folder) == before


@pytest.mark.parametrize(
    "library",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("filelock", "jinja2")),
        "click",
        "numpy",
    ],
)
def test_a_missing_library_fails_as_the_run_does(folder: Path, library: str) -> None:
    """A library in the metadata is missing: the doctor says so, or fails like every command; a run
    without NumPy ends in a traceback."""
    planted = (
        *WITHOUT_TORCH[:-1],
        WITHOUT_TORCH[-1].replace(";", f"; sys.modules[{library!r}] = None;", 1),
    )
    done = run_command("doctor", cwd=folder, program=planted)
    assert done.code == 1
    if library != "jinja2":  # needed only by report pages
        run = run_command("run", "h2.xyz", "--basis", "sto-3g", cwd=folder, program=planted)
        assert run.code == 1
    if library == "click":
        return
    assert f"import of {library} halted" in done.out and "Traceback" not in done.err
    assert "the default run does not work (exit code 1)" in done.out


def test_exit_code_is_that_of_the_run(folder: Path):
    # By themselves codes 7 and 3
    variables = {"PYSCF_TMPDIR": "/nowhere", "PYSCF_MAX_MEMORY": "lots"}
    run = run_command("run", "h2.xyz", "--basis", "sto-3g", cwd=folder, env=variables)
    done = run_command("doctor", cwd=folder, env=variables, program=WITHOUT_TORCH)
    assert done.code == run.code == 3
    assert "fail scratch" in done.out and "fail PySCF" in done.out


def test_a_folder_that_is_gone(tmp_path: Path):
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@" doctor --json'
    program = ("sh", "-c", script, "sh", *WITHOUT_TORCH)
    done = run_command(cwd=tmp_path, program=program)
    assert done.code == 7 and "Traceback" not in done.err, done.err
    assert (done.json["works"], done.json["exit_code"]) == (False, 7)
    statuses = {check["name"]: check["status"] for check in done.json["checks"]}
    assert statuses["working directory"] == "fail"
