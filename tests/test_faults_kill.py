"""A killed scan goes on, and two processes write one result. That there is a whole file at every
step of writing is in `test_faults_write`, and that a run is resumed from any state in
`test_checkpoint`."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from dfmp2.cli.main import main
from dfmp2.mp2.calculation import RUN
from dfmp2.output.checkpoint import FileCheckpoint
from dfmp2.output.study import read_study
from tests.conftest import INPUTS, PATIENCE, run_here, succeed
from tests.faults import EACH, numbers, start

QUIETLY = ("--threads", "1", "--output", "x.h5", "--quiet")
EVERY = {EACH: "0"}  # a checkpoint at every safe point


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
    """Its file holds the first point, which is not computed again."""
    process = multiprocessing.get_context("spawn").Process(target=scan_until_killed, args=(folder,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    left = read_study(folder / "x.h5")
    assert not left.complete and list(left.runs) == ["point-001"]
    done = succeed(run_here(*SCAN, "--output", "x.h5", cwd=folder))
    assert done.kept_runs == 1 and done.went_on
    found = read_study(folder / "x.h5")
    assert found.complete and len(found.runs) == 3
    created = [study.runs["point-001"].provenance.created for study in (left, found)]
    assert created[0] == created[1]
    assert not list(folder.glob(".*")) and not list(folder.glob("*.checkpoint"))
