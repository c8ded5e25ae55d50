"""Faults of workers and machines: each fails at most one item, is reported, and loses nothing."""

from __future__ import annotations

import errno
import json
import multiprocessing
import multiprocessing.popen_fork
import os
import signal
from contextlib import closing
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from dfmp2.errors import ConvergenceError, Dfmp2Error, DiskFull, ResourceError
from dfmp2.execution.items import compute_item, error_file, read_input
from dfmp2.execution.manifest import make_batch
from dfmp2.execution.pool import Call, Died, Pool, Slot, WorkerShare, stops
from dfmp2.host import processes
from dfmp2.host.processes import exit_code
from dfmp2.mp2.energy import mp2_energy
from dfmp2.mp2.result import MP2Result
from dfmp2.output.checkpoint import VARIABLE
from tests import broken_worker
from tests.conftest import MOLECULES, Runner, wait_until
from tests.recorded import recorded_error
from tests.test_batch import results
from tests.writers import failing

MB = 10**6


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that compute nothing."""
    monkeypatch.setattr("dfmp2.execution.pool.begin", broken_worker.begin_light)
    monkeypatch.setattr("dfmp2.execution.pool.load_libraries", broken_worker.load_nothing)


def test_a_slot_sets_up_its_process_and_replaces_a_dead_one(
    light: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before NumPy is imported, and with nothing from the working directory; tasks run in the
    thread that handles signals."""
    for name in ("numpy", "random", "ctypes", "pickle", "runpy", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    others = set(multiprocessing.active_children())  # of tests before this one
    with closing(Slot(WorkerShare(3, 10**9), {"CUDA_VISIBLE_DEVICES": "5"})) as slot:
        for number in (signal.SIGKILL, signal.SIGSEGV):
            slot.submit(Call(broken_worker.surroundings, ()))
            found = slot.result()
            pid = found.pop("pid")
            assert found == {
                "early": [],
                "main": True,
                "threads": "3",
                "device": "5",
                "numpy": True,
            }
            slot.submit(Call(broken_worker.wait, ()))
            os.kill(pid, number)
            with recorded_error(Died) as death:
                slot.result()
        assert "Fatal Python error: Segmentation fault" in death.value.errors
        slot.submit(Call(broken_worker.surroundings, ()))
        # While it is idle, so the next task is not to blame
        os.kill(slot.result()["pid"], signal.SIGKILL)
        wait_until(lambda: not set(multiprocessing.active_children()) - others)
        slot.submit(Call(broken_worker.surroundings, ()))
        assert slot.result()["pid"] != pid
    assert not set(multiprocessing.active_children()) - others


def test_a_worker_that_ends_in_the_moment_of_a_call_is_replaced(
    light: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its executor may know before the slot does."""
    with Pool([{}], WorkerShare(1, 10**9)) as pool:
        pool.grow(1)
        (slot,) = pool.slots
        slot.submit(Call(broken_worker.surroundings, ()))
        pid = slot.result()["pid"]
        os.kill(pid, signal.SIGKILL)
        assert exit_code(slot._process) == -signal.SIGKILL
        wait_until(lambda: slot._executor._broken)
        with monkeypatch.context() as blind:
            blind.setattr("dfmp2.execution.pool.has_ended", lambda process: False)
            slot.submit(Call(broken_worker.surroundings, ()))
        assert slot.result()["pid"] != pid


def test_how_a_process_ended_may_have_been_told_to_others(
    light: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that waits for all of its children."""
    monkeypatch.setattr(processes, "REAPED", 0.1)
    monkeypatch.setattr(processes, "_served", [])  # by a test before this one
    monkeypatch.setattr(multiprocessing.popen_fork.Popen, "poll", lambda *_: None)
    slot = Slot(WorkerShare(1, 10**9), {})
    slot.submit(Call(broken_worker.wait, ()))
    slot._process.kill()
    with recorded_error(Died) as death:
        slot.result()
    assert death.value.exit_code == 1
    monkeypatch.undo()
    slot.close()


def test_signals_stay_blocked_while_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if Python starts its resource tracker, which unblocks them, because it is the first: else
    Ctrl-C ends the fork server with a traceback while it loads libraries."""
    tracker = resource_tracker.ResourceTracker()
    monkeypatch.setattr(resource_tracker, "ensure_running", tracker.ensure_running)
    with processes.clean_start():
        tracker.ensure_running()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    tracker._stop()
    assert blocked >= {signal.SIGINT, signal.SIGTERM}


def test_a_worker_that_cannot_start_blames_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time the task can be submitted again; the third failure says why."""
    monkeypatch.setattr("dfmp2.execution.pool.begin", broken_worker.end_at_once)
    slot = Slot(WorkerShare(1, 10**9), {})
    for _ in range(2):
        slot.submit(Call(broken_worker.surroundings, ()))
        with pytest.raises(Died) as death:
            slot.result()
        assert death.value.terminated
    slot.submit(Call(broken_worker.surroundings, ()))
    with recorded_error(Dfmp2Error):
        slot.result()


@pytest.mark.usefixtures("workers")
def test_each_fault_fails_its_item_alone(call: Runner, folder: Path, monkeypatch) -> None:
    """A failed check, a bug, a rejected file; SIGTERM to the worker during writing does no harm."""
    monkeypatch.setattr("dfmp2.execution.pool.begin", broken_worker.begin)
    monkeypatch.setenv("DFMP2_CHECKPOINT_SECONDS", "0")
    files = [f"{name}.xyz" for name in ("fault", "differs", "signalled", "full", "h2")]
    for file in files:
        (folder / file).write_text(MOLECULES["h2"])
    done = call("batch", "run", *files, "--basis", "sto-3g", "--check", "--output", "out")
    assert done.code == 9 and "2 of 5 items complete (0 of them before), 3 failed" in done.out
    assert set(results(folder / "out")) == {"signalled.h5", "h2.h5"}
    errors = {
        path.name.split(".")[0]: json.loads(path.read_text())
        for path in (folder / "out").glob("*.error.json")
    }
    assert {name: value["code"] for name, value in errors.items()} == {
        "differs": 8,
        "fault": 1,
        "full": 7,
    }
    assert "the result was not written" in errors["differs"]["message"]
    assert "a fault in dfmp2: ValueError: planted" in errors["fault"]["message"]
    assert "broken_worker.py" in errors["fault"]["traceback"]
    assert {path.name for path in (folder / "out").glob("*.checkpoint")} == {
        "full.h5.checkpoint",
        "differs.h5.checkpoint",
    }
    assert not list((folder / "out").glob(".*"))


def test_an_item_that_is_told_to_stop_is_pending_and_the_next_one_is_computed(folder: Path) -> None:
    (item,) = make_batch(["h2.xyz"], {"basis": "sto-3g"}, folder / "out", folder).items
    item.target.parent.mkdir()
    stops.add(signal.SIGTERM)
    found = [
        compute_item(read_input(item), None, None, "", WorkerShare(1, 4 * 10**9)).status
        for _ in range(2)
    ]
    assert found == ["pending", "complete"]


# --- a disk that is full --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "part"), [(errno.ENOSPC, ".h5.part-"), (errno.EDQUOT, ".checkpoint.part-")]
)
def test_a_full_disk_is_no_fault_of_the_item(
    number: int, part: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while the result or the checkpoint is written: the item stays pending and
    has no error file."""
    monkeypatch.setenv(VARIABLE, "0")
    (item,) = make_batch(["h2.xyz"], {"basis": "sto-3g"}, folder / "out", folder).items
    (folder / "out").mkdir()
    with failing(("write", number), folder / "out", lambda name: part in name):
        row = compute_item(read_input(item), None, None, "", WorkerShare(1, 4 * 10**9))
    assert (row.status, row.blocked) == ("pending", DiskFull), row.error
    assert row.error is not None and os.strerror(number) in row.error
    assert not item.target.exists() and not error_file(item.target).exists()
    row = compute_item(read_input(item), None, None, "", WorkerShare(1, 4 * 10**9))
    assert row.status == "complete"


@pytest.mark.parametrize("error", [None, ConvergenceError("made up"), MemoryError()])
def test_a_folder_that_becomes_unwritable_is_no_fault_of_the_item(
    error: BaseException | None, folder: Path
) -> None:
    """Whatever the item would have said, which could not be stored either: it stays pending, and is
    computed when the folder is there again."""
    asked = {"basis": "sto-3g", "task": "optimize"}
    (item,) = make_batch(["h2o.xyz"], asked, folder / "out", folder).items
    (folder / "out").mkdir()
    share = WorkerShare(1, 4 * 10**9)

    def compute(*given: object, **options: object) -> MP2Result:
        (folder / "out").rename(folder / "away")
        (folder / "out").touch()
        if error is not None:
            raise error
        return mp2_energy(*given, **options)  # type: ignore[arg-type]

    row = compute_item(read_input(item), None, None, "", share, compute)
    next_row = compute_item(read_input(item), None, None, "", share, mp2_energy)
    (folder / "out").unlink()
    (folder / "away").rename(folder / "out")
    for one in (row, next_row):
        assert (one.status, one.blocked) == ("pending", ResourceError), one
        assert one.error is not None and "out can no longer be written (" in one.error
    assert not error_file(item.target).exists() and not item.target.exists()
    assert compute_item(read_input(item), None, None, "", share, mp2_energy).status == "complete"
