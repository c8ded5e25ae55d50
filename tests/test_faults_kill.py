"""kill -9 at random moments: all files left can be read, and resumed runs give the same energies.
That there is a whole file at every step of writing is in `test_faults_write`."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from dfmp2.cli.main import main
from dfmp2.host.files import stamp
from dfmp2.mp2.calculation import RUN
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import FileCheckpoint
from dfmp2.output.study import read_study
from tests.conftest import PATIENCE, run_here, succeed, wait_until
from tests.faults import EACH, INPUTS, close, numbers, start

QUIETLY = ("--threads", "1", "--output", "x.h5", "--quiet")
EVERY = {EACH: "0"}  # a checkpoint at every safe point


@pytest.mark.slow
@pytest.mark.parametrize(("file", "basis"), [("nh2.xyz", "cc-pvdz"), ("glycine.xyz", "sto-3g")])
def test_killed_and_resumed(file: str, basis: str, tmp_path: Path) -> None:
    """A killed SCF continues from its last orbitals, so energies agree within its convergence."""
    arguments = ("run", str(INPUTS / file), "--basis", basis, "--resume", *QUIETLY)
    result, checkpoint = tmp_path / "x.h5", tmp_path / "x.h5.checkpoint"
    assert start(tmp_path, *arguments, **EVERY).wait(PATIENCE) == 0
    expected = numbers(result)
    result.unlink()
    rng = random.Random(20261121)
    for _ in range(5):
        before = stamp(checkpoint)
        process = start(tmp_path, *arguments, **EVERY)
        wait_until(lambda: stamp(checkpoint) != before or process.poll() is not None)  # noqa: B023
        time.sleep(rng.uniform(0.0, 0.2))
        process.kill()
        process.wait(PATIENCE)
        if result.exists():
            assert close(numbers(result), expected)
            result.unlink()
            checkpoint.unlink(missing_ok=True)
    assert start(tmp_path, *arguments, **EVERY).wait(PATIENCE) == 0
    assert close(numbers(result), expected) and list(tmp_path.iterdir()) == [result]


@pytest.mark.slow
def test_two_processes_one_result(tmp_path: Path) -> None:
    """One of them writes it; the other reports that, and neither leaves anything else."""
    arguments = ("run", str(INPUTS / "nh2.xyz"), "--basis", "sto-3g", *QUIETLY)
    both = [start(tmp_path, *arguments, **EVERY) for _ in range(2)]
    assert sorted(process.wait(PATIENCE) for process in both) == [0, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]
    assert numbers(tmp_path / "x.h5")


SCAN = ("scan", "h2.xyz", "--bond", "1,2", "0.7:0.9:3", "--basis", "sto-3g", "--threads", "1")


def scan_until_killed(folder: Path) -> None:
    """Begin a scan in this process, and kill it where it has saved an iteration of its second
    point."""
    os.chdir(folder)
    os.environ[EACH] = "0"
    save = FileCheckpoint.save

    def save_and_die(checkpoint: FileCheckpoint) -> None:
        save(checkpoint)
        if checkpoint.identity[RUN] == "point-002":
            os.kill(os.getpid(), signal.SIGKILL)

    FileCheckpoint.save = save_and_die  # type: ignore[method-assign]
    main((*SCAN, "--output", "x.h5"))


def test_a_killed_scan_goes_on(folder: Path) -> None:
    """Its file holds the first point, which is not computed again; the others are as if it had not
    been killed."""
    process = multiprocessing.get_context("spawn").Process(target=scan_until_killed, args=(folder,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    left = read_study(folder / "x.h5")
    assert not left.complete and list(left.runs) == ["point-001"]
    done = succeed(run_here(*SCAN, "--output", "x.h5", cwd=folder))
    assert done.kept_runs == 1 and done.went_on
    succeed(run_here(*SCAN, "--output", "y.h5", cwd=folder))
    found, expected = read_study(folder / "x.h5"), read_study(folder / "y.h5")
    assert found.complete and list(found.runs) == list(expected.runs)
    created = [study.runs["point-001"].provenance.created for study in (left, found)]
    assert created[0] == created[1]
    for name, run in expected.runs.items():
        there, here = (numbers(hdf5.to_bytes(one)) for one in (found.runs[name], run))
        assert close(there, here), name
    assert not list(folder.glob(".*")) and not list(folder.glob("*.checkpoint"))
