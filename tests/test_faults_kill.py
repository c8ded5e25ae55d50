"""kill -9 at random moments: all files left can be read, and resumed runs give the same
energies."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dfmp2.output import hdf5
from dfmp2.output.study import read_study
from tests.faults import Server, close, kill_and_resume, numbers

INPUTS = Path(__file__).parent.parent / "inputs"
SMALL = {"nh2 small": ("nh2.xyz", "--basis", "sto-3g")}
CASES = {
    "h2o": ("h2o.xyz", "--basis", "cc-pvdz"),
    "nh2": ("nh2.xyz", "--basis", "cc-pvdz"),
    "glycine": ("glycine.xyz", "--basis", "sto-3g"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def killed(server: Server, name: str, folder: Path, kills: int) -> None:
    file, *options = {**SMALL, **CASES}[name]
    folder.mkdir()
    command = ["run", str(INPUTS / file), *options, "--threads", "1"]
    code, _ = server.wait(server.start([*command, "--output", "whole.h5"], folder))
    assert code == 0
    counts = kill_and_resume(server, command, folder, kills, 20261121, numbers(folder / "whole.h5"))
    assert (counts["different"], counts["unreadable"]) == (0, 0)
    assert not [path for path in folder.iterdir() if path.suffix == ".checkpoint"]


def test_two_kills(server: Server, tmp_path: Path) -> None:
    killed(server, "nh2 small", tmp_path / "run", 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_kills(name: str, server: Server, tmp_path: Path) -> None:
    killed(server, name, tmp_path / "run", 67)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, 60])
def test_scan(kills: int, server: Server, tmp_path: Path) -> None:
    """Every file left holds complete points with the energies of a scan that was never killed."""
    folder, rng, met, chains = tmp_path / "run", random.Random(20261121), 0, 0
    folder.mkdir()
    command = [
        "scan",
        str(INPUTS / "h2o.xyz"),
        "--bond",
        "1,2",
        "0.9:1.0:2",
        "--basis",
        "sto-3g",
        "--threads",
        "1",
    ]
    code, seconds = server.wait(server.start([*command, "--output", "whole.h5"], folder))
    assert code == 0
    whole = {
        name: numbers(hdf5.to_bytes(run))
        for name, run in read_study(folder / "whole.h5").runs.items()
    }
    while met < kills or not chains:
        started = server.start([*command, "--output", "x.h5", "--resume", "--quiet"], folder)
        code, _ = server.wait(started, rng.uniform(0.0, 1.1 * seconds))
        assert code in (0, -signal.SIGKILL), (tmp_path / "last.out").read_text()
        met += code != 0
        runs = read_study(folder / "x.h5").runs if (folder / "x.h5").exists() else {}
        assert all(close(numbers(hdf5.to_bytes(run)), whole[name]) for name, run in runs.items())
        if code == 0:
            chains += 1
            assert list(runs) == list(whole) and not (folder / "x.h5.checkpoint").exists()
            for suffix in ("h5", "csv", "svg"):
                (folder / f"x.{suffix}").unlink()


def test_two_processes_one_result(server: Server, tmp_path: Path) -> None:
    """One of them writes it; the other reports that, and neither leaves anything else."""
    folder = tmp_path / "run"
    folder.mkdir()
    command = [
        "run",
        str(INPUTS / "nh2.xyz"),
        "--basis",
        "sto-3g",
        "--threads",
        "1",
        "--output",
        "x.h5",
    ]
    first, second = (server.start(command, folder) for _ in range(2))
    codes = sorted((server.wait(first)[0], server.wait(second)[0]))
    assert codes == [0, 3]
    assert [path.name for path in folder.iterdir()] == ["x.h5"]
    assert numbers(folder / "x.h5")
