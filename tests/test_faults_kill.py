"""kill -9 at random moments: all files left can be read, and resumed runs give the same energies.
That there is a whole file at every step of writing is in `test_faults_write`."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from dfmp2.host.files import stamp
from tests.conftest import COMMAND, PATIENCE, wait_until
from tests.faults import EACH, close, numbers

pytestmark = pytest.mark.slow
INPUTS = Path(__file__).parent.parent / "inputs"


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a run that saves a checkpoint at every safe point."""
    command = [COMMAND, "run", *arguments, "--threads", "1", "--output", "x.h5", "--quiet"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=folder, env={**os.environ, EACH: "0"}, **quiet)


@pytest.mark.parametrize(("file", "basis"), [("nh2.xyz", "cc-pvdz"), ("glycine.xyz", "sto-3g")])
def test_killed_and_resumed(file: str, basis: str, tmp_path: Path) -> None:
    """A killed SCF continues from its last orbitals, so energies agree within its convergence."""
    arguments = (str(INPUTS / file), "--basis", basis, "--resume")
    result, checkpoint = tmp_path / "x.h5", tmp_path / "x.h5.checkpoint"
    assert start(tmp_path, *arguments).wait(PATIENCE) == 0
    expected = numbers(result)
    result.unlink()
    rng = random.Random(20261121)
    for _ in range(5):
        before = stamp(checkpoint)
        process = start(tmp_path, *arguments)
        wait_until(lambda: stamp(checkpoint) != before or process.poll() is not None)  # noqa: B023
        time.sleep(rng.uniform(0.0, 0.2))
        process.kill()
        process.wait(PATIENCE)
        if result.exists():
            assert close(numbers(result), expected)
            result.unlink()
            checkpoint.unlink(missing_ok=True)
    assert start(tmp_path, *arguments).wait(PATIENCE) == 0
    assert close(numbers(result), expected) and list(tmp_path.iterdir()) == [result]


def test_two_processes_one_result(tmp_path: Path) -> None:
    """One of them writes it; the other reports that, and neither leaves anything else."""
    arguments = (str(INPUTS / "nh2.xyz"), "--basis", "sto-3g")
    both = [start(tmp_path, *arguments) for _ in range(2)]
    assert sorted(process.wait(PATIENCE) for process in both) == [0, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]
    assert numbers(tmp_path / "x.h5")
