"""Shell scripts of the Trainium lanes, the workflows that call them, and tests that are independent of
the shell they are started from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import PATIENCE, ROOT

SCRIPTS = ROOT / "scripts"
SHELL = ("run_xla_tests", "install_for_tests")


@pytest.mark.parametrize("name", [*SHELL, "neuron_host"])
def test_shell_scripts_are_sound(name):
    path = SCRIPTS / f"{name}.sh"
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0
    if shutil.which("shellcheck"):
        found = subprocess.run(
            ["shellcheck", "-x", str(path)], cwd=ROOT, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("name", SHELL)
def test_a_dry_run_shows_commands_that_exist_and_leaves_nothing(name, tmp_path):
    done = subprocess.run(
        ["bash", SCRIPTS / f"{name}.sh", "--dry-run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stderr + done.stdout
    files = re.findall(r"(?:scripts|tests|inputs)/[\w./-]+\.(?:py|sh|xyz)", shown)
    assert files or name == "install_for_tests"
    for file in files:
        assert (ROOT / file).is_file(), file
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["cpu", "simulator", "hardware"])
def test_workflows_call_what_exists(name):
    text = (ROOT / ".github/workflows" / f"{name}.yml").read_text()
    called = re.findall(r"(scripts/[\w./-]+\.(?:sh|py))([^\n|]*)", text)
    assert called or name == "cpu"
    for script, options in called:
        assert os.access(ROOT / script, os.X_OK), script
        for word in re.findall(r"--[a-z]+", options):
            assert re.search(rf'^ +{word}\)|"{word}"', (ROOT / script).read_text(), re.M), (
                script,
                word,
            )


# --- tests without the variables of the shell -----------------------------------------------------


VARIABLES = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": "/elsewhere",
    "OMP_NUM_THREADS": "7",
    "MKL_NUM_THREADS": "7",
    "LANG": "tr_TR.UTF-8",
    "TERM": "xterm",
    "COLUMNS": "20",
    "DFMP2_BACKEND": "torch",
}
INSTALLER = {
    "PIP_INDEX_URL": "https://host/a b",
    "https_proxy": "http://proxy",
    "SSL_CERT_FILE": "/certificates",
}
OF_BASH = {"PWD", "OLDPWD", "SHLVL", "_"}
PYTHON = """#!/bin/bash
echo "$@" >>{seen}
compgen -e >>{seen}
if [[ "$*" == *venv* ]]; then mkdir -p .venv-test/bin && cp "$0" .venv-test/bin/python; fi
"""


def test_the_test_command_keeps_the_variables_of_the_shell_out(tmp_path):
    """`.ci/run` with a python3 that notes how it is called: HOME, PATH and what pip needs
    arrive."""
    for name in (
        ".ci/run",
        "scripts/test",
        "scripts/check",
        "scripts/core_types",
        "scripts/clean_environment",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    programs, seen = tmp_path / "bin", tmp_path / "seen"
    programs.mkdir()
    (programs / "python3").write_text(PYTHON.format(seen=seen))
    (programs / "python3").chmod(0o755)
    given = {"HOME": "/home", "PATH": f"{programs}:/usr/bin:/bin", **VARIABLES, **INSTALLER}
    done = subprocess.run(
        [tmp_path / ".ci/run"], env=given, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    lines = set(seen.read_text().split("\n"))
    assert "-m venv --clear .venv-test" in lines and any(
        line.startswith("-m pytest ") for line in lines
    )
    assert {"HOME", "PATH", *INSTALLER} <= lines
    assert {line for line in lines if line.isidentifier()} <= {
        "HOME",
        "PATH",
        "PYTHON",
        "NO_MKDOCS_2_WARNING",
        "OPENBLAS_CORETYPE",
        *INSTALLER,
    } | OF_BASH


def test_pages_that_cannot_be_built_are_a_failure(tmp_path):
    """The check fails and names the missing extra, instead of passing silently."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/check", tmp_path / "scripts")
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\nif [[ "$*" == *mkdocstrings* ]]; then exit 1; fi\n')
    python.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "scripts/check"],
        env={"PATH": os.environ["PATH"], "PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1 and "pip install --editable '.[test,docs]'" in done.stderr


def test_pytest_alone_keeps_them_out_too():
    code = "import os, tests.conftest; print(sorted(os.environ))"
    given = {"PATH": os.environ["PATH"], **VARIABLES, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=given,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    # Two of the tests' own
    assert done.stdout == "['OMP_WAIT_POLICY', 'OPENBLAS_NUM_THREADS', 'PATH', 'PYTHONPATH']\n"
