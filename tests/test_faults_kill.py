"""kill -9 at random moments: all files left can be read, and resumed runs give the same
energies. That there is a whole file at every step of writing is in `test_faults_write`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import Server, kill_and_resume, numbers

pytestmark = pytest.mark.slow
INPUTS = Path(__file__).parent.parent / "inputs"
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


@pytest.mark.parametrize("name", CASES)
def test_many_kills(name: str, server: Server, tmp_path: Path) -> None:
    file, *options = CASES[name]
    folder = tmp_path / "run"
    folder.mkdir()
    command = ["run", str(INPUTS / file), *options, "--threads", "1"]
    code, _ = server.wait(server.start([*command, "--output", "whole.h5"], folder))
    assert code == 0
    counts = kill_and_resume(server, command, folder, 67, 20261121, numbers(folder / "whole.h5"))
    assert (counts["different"], counts["unreadable"]) == (0, 0)
    assert not [path for path in folder.iterdir() if path.suffix == ".checkpoint"]


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
