"""A batch on a Dask cluster: a real scheduler and real workers on loopback, found by a scheduler
file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

import dfmp2
from dfmp2.errors import InputError, ResourceError
from dfmp2.execution import dask
from dfmp2.execution.pool import Call, Died, WorkerShare
from dfmp2.output import hdf5
from tests.conftest import PATIENCE, Runner, wait_until
from tests.faults import numbers, start
from tests.recorded import recorded_error, recorded_failure
from tests.test_batch import chain, results, worker_of

COMMON = ("--precision", "fp64", "--threads", "1")
LONG = 16  # waters, which take some ten seconds


class Cluster:
    """A scheduler and its workers."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.file, self._folder = folder / "scheduler.json", folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0")
        wait_until(self.file.exists)
        self.add(workers)

    def add(self, count: int) -> None:
        """Start workers, without nannies so that a dead one stays dead."""
        options = ("--nthreads", "1", "--no-nanny", "--memory-limit", "2GB")
        self.workers += [self._start("worker", *options) for _ in range(count)]

    def close(self) -> None:
        """End all processes."""
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait(PATIENCE)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [
            sys.executable,
            "-m",
            "dask",
            *arguments,
            "--no-dashboard",
            "--scheduler-file",
            self.file.name,
        ]
        return subprocess.Popen(command, cwd=self._folder, **quiet)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker, for tests that do not change it."""
    with closing(Cluster(tmp_path_factory.mktemp("cluster"), 1)) as made:
        yield made


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers and a scheduler that a test may kill."""
    with closing(Cluster(tmp_path_factory.mktemp("mortal"), 2)) as made:
        yield made


def test_items_are_those_of_this_host_and_a_bad_one_fails_alone(
    cluster: Cluster, folder: Path, call: Runner
) -> None:
    (folder / "cut.xyz").write_text("3\n\nO 0 0 0\n")
    batch = ("batch", "run", "nh2.xyz", "h2.xyz", "cut.xyz", "--basis", "sto-3g", *COMMON)
    far = (*batch, "--output", "out", "--engine", str(cluster.file))
    done = call(*far)
    assert done.code == 9 and "2 of 3 items complete (0 of them before), 1 failed" in done.out
    assert call(*batch, "--output", "here").code == 9
    for name in ("nh2", "h2"):
        there, near = (dfmp2.read(folder / where / f"{name}.h5") for where in ("out", "here"))
        one, two = (numbers(hdf5.to_bytes(result)) for result in (there, near))
        assert one.pop("dfmp2/input/options/memory") != two.pop("dfmp2/input/options/memory")
        assert one == two
        assert there.provenance.threads == 1 and there.options.memory == int(0.8 * 2 * 10**9)
    before = results(folder / "out")
    assert "(2 of them before)" in call(*far).out
    assert results(folder / "out") == before and not list((folder / "out").glob(".*"))


def test_workers_with_other_versions_or_another_disk_are_refused(
    cluster: Cluster, folder: Path, call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("batch", "run", "h2.xyz", "--basis", "sto-3g", "--output", "out")
    command += ("--engine", str(cluster.file))
    with monkeypatch.context() as patch:
        patch.setattr(
            dask.provenance, "versions", lambda: {"dfmp2": "9.9", "PySCF": "1.0", "NumPy": "0.1"}
        )
        done = call(*command)
    recorded_failure(done, 3)

    grow = dask.DaskPool.grow

    def elsewhere(pool: Any, size: int) -> None:
        pool.token = pool.token.parent / "elsewhere" / pool.token.name
        grow(pool, size)

    monkeypatch.setattr(dask.DaskPool, "grow", elsewhere)
    recorded_failure(call(*command), 3)
    assert not results(folder / "out")


def test_a_scheduler_that_does_not_answer_ends_the_batch(
    folder: Path, call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask, "ANSWER", 0.5)
    command = ("batch", "run", "h2.xyz", "--basis", "sto-3g", "--output", "out", "--engine")
    recorded_failure(call(*command, "tcp://127.0.0.1:9"), 7)
    assert not results(folder / "out")


def test_tiles_of_one_molecule(cluster: Cluster, folder: Path, call: Runner) -> None:
    """`energy --engine` gives the bits of one process, and a worker what is given for each."""
    assert call("prepare", "nh2.xyz", "--basis", "6-31g", "--threads", "1").code == 0
    energy = ("energy", "--from", "nh2.prepared.h5", *COMMON, "--memory", "1GB", "--output")
    with patch.object(dask, "DaskPool", wraps=dask.DaskPool) as pool:
        assert call(*energy, "far.h5", "--engine", str(cluster.file)).code == 0
    assert pool.call_args.args[2] == WorkerShare(threads=1, memory=10**9)
    assert call(*energy, "near.h5").code == 0
    assert numbers(folder / "far.h5") == numbers(folder / "near.h5")
    recorded_failure(call(*energy, "x.h5", "--engine", str(cluster.file), "--shard", "0/2"), 3)


# --- what becomes of a call, without a cluster ----------------------------------------------------

ADDRESS = "tcp://127.0.0.1:7"


@pytest.fixture
def pool(tmp_path: Path) -> SimpleNamespace:
    """A pool with one worker, whose calls end when the test says so."""
    submitted: list[tuple[Any, ...]] = []

    def submit(*given: Any) -> Future[Any]:
        submitted.append(given)
        return Future()

    client = SimpleNamespace(
        status="running", get_executor=lambda **_: SimpleNamespace(submit=submit)
    )
    worker = {"memory_limit": 10**9, "nthreads": 3, "local_directory": "/w"}
    token = tmp_path / "token"
    token.touch()
    return SimpleNamespace(
        client=client,
        workers={ADDRESS: worker},
        share=WorkerShare(0, 0),
        token=token,
        stopping=False,
        submitted=submitted,
        lost=lambda error: ResourceError(f"does not answer ({error})"),
    )


def ended(pool: SimpleNamespace, error: BaseException | None) -> Any:
    """The result of the slot for a call that ended with an error; None: it was cancelled."""
    slot = dask.DaskSlot(pool, ADDRESS)
    slot.submit(Call(print, (), tag="place"))
    if error is None:
        slot.close()
        assert slot.future.cancelled()
    else:
        slot.future.set_exception(error)
    try:
        return slot.result()
    finally:
        assert slot.future is None


@pytest.mark.parametrize("error", [None, BrokenExecutor("gone")])
@pytest.mark.parametrize("stopping", [False, True])
def test_a_worker_that_is_lost_takes_its_call_with_it(
    error: BaseException | None, stopping: bool, pool: SimpleNamespace
) -> None:
    """The item fails, or stays pending if the batch is stopped, and the worker gets no other
    call."""
    pool.stopping = stopping
    with recorded_error(Died) as death:
        ended(pool, error)
    assert (death.value.exit_code, death.value.terminated) == (7, stopping)
    assert death.value.share == WorkerShare(3, 8 * 10**8, pool.token)


def test_an_error_of_a_call_is_its_own(pool: SimpleNamespace) -> None:
    for error in (InputError("no such basis"), ImportError("No module")):
        with recorded_error(InputError):
            ended(pool, error)
    with recorded_error(Died) as fault:
        ended(pool, ValueError("planted"))
    assert fault.value.exit_code == 1 and fault.value.share is None
    pool.stopping = True  # a call that is asked to stop may say so in its own way
    with pytest.raises(Died) as stopped:
        ended(pool, InputError("stopped"))
    assert stopped.value.terminated


def test_calls_are_asked_to_stop_and_none_goes_to_a_scheduler_that_is_gone(
    pool: SimpleNamespace,
) -> None:
    slot = dask.DaskSlot(pool, ADDRESS)
    assert slot.ready and not slot.share.stop_asked()
    slot.terminate()
    assert pool.stopping and slot.share.stop_asked()
    slot.terminate()  # of each slot
    pool.client.status = "closed"
    with recorded_error(ResourceError):
        slot.submit(Call(print, ()))
    assert slot.future is None and not pool.submitted
    pool.workers.clear()
    assert not slot.ready


def test_a_worker_that_joins_takes_the_place_of_one_that_left(
    pool: SimpleNamespace, tmp_path: Path
) -> None:
    """Of two workers that leave, one is computing: its place is kept until its call is lost."""
    there = ["tcp://1", "tcp://2"]
    cluster = dask.DaskPool(ADDRESS, tmp_path, WorkerShare(0, 0))
    cluster.client = pool.client
    cluster.client.scheduler = SimpleNamespace(identity=None)
    cluster.client.sync = lambda *_, **__: {"workers": dict.fromkeys(there, pool.workers[ADDRESS])}
    cluster.grow(2)
    cluster.slots[0].future = Future()
    there[:] = ["tcp://3", "tcp://4"]
    cluster._looked = -dask.LOOK_EVERY
    cluster._look()
    assert [slot.address for slot in cluster.slots] == ["tcp://1", "tcp://3"]


def test_a_call_runs_in_the_process_that_was_meant(
    pool: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker restarted at its address rejects the call."""
    worker = SimpleNamespace(address=ADDRESS, local_directory="/w")
    monkeypatch.setattr("distributed.get_worker", lambda: worker)
    share, here = WorkerShare(1, 10**9, pool.token), dask.provenance.versions()
    with recorded_error(BrokenExecutor):
        dask.run_call(here, "/before", Call(print, ()), share)


@pytest.mark.slow
def test_killed_and_left_without_a_scheduler(mortal: Cluster, folder: Path) -> None:
    """One item after another, on a shrinking cluster."""
    (folder / "chain.xyz").write_text(chain(LONG))
    command = (
        "batch",
        "run",
        "chain.xyz",
        "h2.xyz",
        "--basis",
        "cc-pvdz",
        *COMMON,
        "--engine",
        str(mortal.file),
    )

    def begun(output: str) -> tuple[subprocess.Popen[str], int]:
        running = start(folder, *command, "--output", output)
        wait_until((folder / output / "h2.h5").exists)
        return running, worker_of(folder / output / "chain.h5")

    running, worker = begun("killed")
    os.kill(worker, signal.SIGKILL)
    out, err = running.communicate(timeout=PATIENCE)
    assert (
        running.returncode == 9 and "1 of 2 items complete (0 of them before), 1 failed" in out
    ), err
    error = json.loads((folder / "killed" / "chain.error.json").read_text())
    assert error["code"] == 7 and "its Dask worker tcp://127.0.0.1:" in error["message"]
    assert "was lost" in error["message"] and "per worker would fit" in error["message"]

    mortal.add(1)  # while the batch runs
    running, _ = begun("alone")
    before = results(folder / "alone")
    mortal.scheduler.kill()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 7, err
    # How the loss is noticed depends on the state of the connection.
    assert re.search(r"does not answer \(.+\): start it", err.splitlines()[-1])
    assert "finished items are kept; repeat the command to continue" in err.splitlines()[-1]
    assert results(folder / "alone") == before and not list((folder / "alone").glob("*.error.json"))
