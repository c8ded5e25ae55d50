"""Machines that fail a batch: the out-of-memory killer, and accelerators that break."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dfmp2.io.lock import holder
from tests.conftest import COMMAND, MOLECULES, Runner, succeed
from tests.control_group import killed, limited_memory
from tests.test_batch import chain, results, wait_for

MB = 10**6


@pytest.mark.control_group
def test_out_of_memory_killer_takes_one_item(folder: Path) -> None:
    """A worker that needs more than its control group has is killed by the kernel; the rest of the batch is not."""
    if not Path("/proc/self/cgroup").exists():
        pytest.skip("no control groups on this system")
    (folder / "chain.xyz").write_text(chain(8))
    with limited_memory(320 * MB) as group:
        command = [str(COMMAND), "batch", "run", "chain.xyz", "h2o.xyz", "h2.xyz", "--basis", "cc-pvtz"]
        command += ["--precision", "fp64", "--threads", "1", "--memory", "3GB", "--output", "out"]
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        running = subprocess.Popen(
            ["sh", "-c", enter, "sh", *command],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        worker = wait_for(lambda: holder(folder / "out" / "chain.h5")).pid
        scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (running.pid, worker)]
        out, err = running.communicate(timeout=120)
        assert running.returncode == 9 and "2 of 3 items complete" in out, err
        assert killed(group) == 1
    assert scores[1] >= scores[0] + 100 or scores[1] == 1000
    error = json.loads((folder / "out" / "chain.error.json").read_text())
    assert error["code"] == 7
    assert "its worker process was ended by the system's out-of-memory killer" in error["message"]
    assert "was allowed 3.00 GB" in error["message"] and "per worker would fit" in error["message"]
    assert set(results(folder / "out")) == {"h2o.h5", "h2.h5"} and not list((folder / "out").glob(".*"))


# A worker whose device breaks at the molecule `bad`; every calculation is noted in used.txt.
BROKEN = """
import os, sys
sys.path.append(sys.argv.pop())
from dfmp2 import pipeline
from dfmp2.errors import DeviceFault
whole = pipeline.run
def run(molecule, *given, **more):
    with open("used.txt", "a") as used:
        print(os.environ.get("CUDA_VISIBLE_DEVICES"), molecule.name, file=used)
    if molecule.name == "bad":
        raise DeviceFault("kernel k on host x: NRT_EXEC_HW_ERR_NC_UE(1202): take this host out of use")
    return whole(molecule, *given, **more)
pipeline.run = run
from dfmp2.batch.worker import main
sys.exit(main())
"""


@pytest.fixture
def fleet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Six molecules, of which `bad` comes first."""
    (folder / "bad.xyz").write_text(chain(2))
    names = [f"w{number}" for number in range(5)]
    for number, name in enumerate(names):
        (folder / f"{name}.xyz").write_text(MOLECULES["h2o"].replace("0.7572", f"{0.75 + 0.01 * number}"))
    monkeypatch.setattr("dfmp2.batch.process.START", BROKEN)
    return [f"{name}.xyz" for name in (*names, "bad")]


def used(folder: Path) -> list[tuple[str, str]]:
    """(device, molecule) in the order of the calculations."""
    lines = (folder / "used.txt").read_text().splitlines()
    return [(device, name) for device, name in (line.split() for line in lines)]


def test_a_broken_device_gets_no_more_items(
    fleet: list[str], call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    done = call("batch", "run", *fleet, "--basis", "sto-3g", "--threads", "1", "--output", "out", "--workers", "2")
    assert done.code == 9 and "1 of 6 items failed" in done.message
    assert "5 of 6 items complete" in done.out
    log = used(folder)
    broken = next(device for device, name in log if name == "bad")
    assert [name for device, name in log if device == broken][-1] == "bad"
    assert f"CUDA_VISIBLE_DEVICES={broken} reported a hardware fault: it gets no more items" in done.err
    error = json.loads((folder / "out" / "bad.error.json").read_text())
    assert error["code"] == 7 and "take this host out of use" in error["message"]


def test_without_another_device_the_rest_is_left_for_another_host(
    fleet: list[str], call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    command = ("batch", "run", *fleet, "--basis", "sto-3g", "--threads", "1", "--output", "out", "--workers", "2")
    done = call(*command)
    assert done.code == 7 and f"CUDA_VISIBLE_DEVICES=0 of host {os.uname().nodename} reported a" in done.message
    assert "take this host out of use; the same command on another one goes on" in done.message
    value = succeed(call("batch", "status", "out", "--json")).json
    assert value["failed"] == 1 and value["pending"] >= 3 and value["running"] == 0
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert "6 of 6 items complete" in succeed(call(*command)).out
