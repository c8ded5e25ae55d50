"""Shell scripts of the Trainium lanes and the workflows that call them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
SHELL = ("run_xla_tests", "install_for_tests")


def shell(name, *arguments, cwd=ROOT):
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", str(SCRIPTS / f"{name}.sh"), *arguments], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip


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
    done = shell(name, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_files(done.stderr + done.stdout, some=name != "install_for_tests")
    assert list(tmp_path.iterdir()) == []


def check_files(shown, *, some):
    """Every file of the repository that is named exists."""
    files = re.findall(r"(?:scripts|tests|inputs)/[\w./-]+\.(?:py|sh|xyz)", shown)
    assert files or not some
    for file in files:
        assert (ROOT / file).is_file(), file


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
