"""A study stopped in the middle of a run goes on from its last tile, with the same bits."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import dfmp2
from dfmp2.cli.main import main
from dfmp2.errors import DeviceFault, Interrupted
from dfmp2.mp2.calculation import RUN
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import FileCheckpoint
from dfmp2.output.study import read_study
from tests.awkward import read
from tests.conftest import INPUTS, PATIENCE, Finished, Heard, Runner, listing, succeed
from tests.faults import EACH, Stopping, numbers, start
from tests.recorded import recorded_failure
from tests.springs import on_springs, springs

BASIS = ("--basis", "sto-3g", "--threads", "1")
SCAN = ("scan", "h2o.xyz", "--bond", "1,2", "0.9:1.0:2", *BASIS)
LINE = ("scan", "h2.xyz", "--bond", "1,2", "0.7:0.9:5", *BASIS)
H2 = read("", "H 0 0 0", "H 0 0 0.74")


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every eleventh SCF iteration or tile ends the study, as a signal would; only then is anything
    saved."""
    monkeypatch.setenv(EACH, "1000")
    with Stopping(every=11):
        yield


def test_an_scf_that_starts_from_another_run_begins_there_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A displaced geometry, whose gradient is subtracted from another, has the bits of one that was
    never stopped within its SCF."""
    monkeypatch.setenv(EACH, "1000")
    ion = read("charge=1", "He 0 0 0", "H 0.3 0.5 0.72")
    given: dict[str, Any] = {"basis": "sto-3g", "threads": 1, "allow_gradient": True}
    add = FileCheckpoint.add_orbitals

    def stopped_in(run: str, file: str) -> dict[str, Any]:
        names = []

        def added(checkpoint: FileCheckpoint, *orbitals: Any) -> None:
            names.append(checkpoint.identity[RUN])
            checkpoint.stop_asked = names.count(run) == 2
            add(checkpoint, *orbitals)

        monkeypatch.setattr(FileCheckpoint, "add_orbitals", added)
        with pytest.raises(dfmp2.Interrupted):
            dfmp2.frequencies(ion, output=folder / file, listener=Heard(), **given)
        return dict(read_study(folder / file).runs)

    expected = stopped_in("minus-001-x", "y.h5")
    assert list(stopped_in("plus-001-x", "x.h5")) == ["reference"]
    found = stopped_in("minus-001-x", "x.h5")
    one, two = (numbers(hdf5.to_bytes(runs["plus-001-x"])) for runs in (found, expected))
    assert one.pop("dfmp2/gradient/seconds") and two.pop("dfmp2/gradient/seconds")
    assert one == two


@pytest.mark.usefixtures("stopping")
def test_a_foreign_checkpoint_is_refused(call: Runner, folder: Path) -> None:
    """Of another point and of `dfmp2 run`: named, and nothing is touched."""
    assert call(*SCAN, "--output", "x.h5").code == 75 and not (folder / "x.h5").exists()
    other = (*SCAN[:-1], "2", "--output", "x.h5", "--resume")
    recorded_failure(call(*other), 3)
    while not (folder / "x.h5").exists():
        assert call(*SCAN, "--output", "x.h5", "--resume").code == 75
    before = listing(folder)
    recorded_failure(call(*other), 3)
    assert call("run", "h2o.xyz", *BASIS, "--output", "z.h5").code == 75
    recorded_failure(call(*SCAN, "--output", "z.h5", "--resume"), 3)
    assert {name: value for name, value in listing(folder).items() if name in before} == before


@pytest.mark.usefixtures("stopping")
def test_the_same_command_goes_on(call: Runner, folder: Path) -> None:
    """A scan stopped at its second point; another one is refused, unless it overwrites the file,
    and then goes on by itself."""
    command = (*SCAN, "--output", "x.h5")
    while not (folder / "x.h5").exists():
        stopped = call(*command)
        assert stopped.code == 75 and stopped.out == "" and not list(folder.glob(".*"))
        assert ("finished runs are in x.h5" in stopped.message) == (folder / "x.h5").exists()
    before = listing(folder)
    recorded_failure(call("cbs", "h2.xyz", "--basis", "cc-pv[dt]z", "--output", "x.h5"), 3)
    other = (*SCAN[:-1], "2", "--output", "x.h5")
    recorded_failure(call(*other), 3)
    assert listing(folder) == before
    done = finished_from_here(call, *command)
    assert read_study("x.h5").complete
    assert "other products" not in done.err and done.went_on
    assert not (folder / "x.h5.checkpoint").exists() and not list(folder.glob(".*"))
    recorded_failure(call(*command), 3)
    other = (*other, "--overwrite")
    while read_study("x.h5").complete:
        assert call(*other).code == 75
    finished_from_here(call, *other)
    assert all(run.provenance.threads == 2 for run in read_study("x.h5").runs.values())


def finished_from_here(call: Runner, *command: str) -> Finished:
    """The end of a scan that is stopped again and again, and keeps its first point."""
    first = read_study("x.h5").runs["point-001"].provenance.created
    for _ in range(10):
        done = call(*command)
        assert read_study("x.h5").runs["point-001"].provenance.created == first
        if done.code != 75:
            break
    return succeed(done)


def test_a_damaged_file_is_named_and_not_used(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_springs(monkeypatch, H2)
    succeed(call(*LINE, "--output", "x.h5"))
    content = bytearray((folder / "x.h5").read_bytes())
    with h5py.File(folder / "x.h5") as handle:
        place = handle["runs/point-002/scf/e_tot"].id.get_offset()
    content[place] ^= 1
    (folder / "x.h5").write_bytes(content)
    recorded_failure(call(*LINE, "--output", "x.h5", "--resume"), 3)
    assert (folder / "x.h5").read_bytes() == bytes(content)
    assert succeed(call(*LINE, "--output", "x.h5", "--overwrite")).kept_runs == 0


def test_a_broken_device_ends_a_scan(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point with its own error is listed and the next one tried; a hardware fault would affect
    all of them."""
    on_springs(monkeypatch, H2, stop=2, error=DeviceFault("take this host out of use"))
    recorded_failure(call(*LINE, "--output", "x.h5"), 7)
    assert list(read_study("x.h5").runs) == ["point-001"]
    on_springs(monkeypatch, H2)
    monkeypatch.setattr("dfmp2.studies.keeper.blas_and_kernels", lambda: "Zen9")
    done = succeed(call(*LINE, "--output", "x.h5"))
    assert "were made with other products than those of this host (Zen9): their last" in done.err


@pytest.mark.parametrize(
    "error",
    [DeviceFault("made up"), Interrupted("made up"), KeyboardInterrupt(), ValueError("a bug")],
    ids=lambda error: type(error).__name__,
)
def test_however_a_study_ends_its_file_holds_what_is_finished(
    error: BaseException, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though writing takes so much longer than the runs that the file is not written meanwhile."""
    asked = on_springs(monkeypatch, H2, stop=4, error=error)
    monkeypatch.setattr("dfmp2.studies.keeper.REST", 1e9)
    with suppress(KeyboardInterrupt, ValueError):
        assert call(*LINE, "-o", "x.h5").code
    left = read_study("x.h5")
    assert not left.complete and list(left.runs) == [f"point-00{n}" for n in (1, 2, 3)]
    assert len(left.table["exit_code"].values) == 3 == len(asked)


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Read the progress until a line holds `words`."""
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"{words!r} was never shown")


@pytest.mark.slow
def test_a_signal_in_the_middle_of_a_point(call: Runner, folder: Path) -> None:
    """From the second point on a study can be resumed: the tile is finished and saved, and the code
    is 75."""
    command = (
        "scan",
        str(INPUTS / "glycine.xyz"),
        "--bond",
        "1,2",
        "1.20:1.22:2",
        "--basis",
        "6-31g",
        "--verbose",
        "--threads",
        "1",
        "--output",
        "x.h5",
    )
    with start(folder, *command) as process:
        wait_for(process, "[2/2]")
        wait_for(process, "  SCF   3 ")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75 and out == "" and "Traceback" not in err
    assert err.splitlines()[-1].endswith(
        "finished runs are in x.h5 and x.h5.checkpoint holds what was done; repeat the command to "
        "continue"
    )
    assert {path.name for path in folder.iterdir() if path.name.startswith(("x", "."))} == {
        "x.h5",
        "x.h5.checkpoint",
    }
    done = succeed(call(*command, "--resume"))
    assert "going on from x.h5.checkpoint" in done.err.partition("[2/2]")[2]


def second_command(computing: Any) -> None:
    """Repeat the command of a study that is being computed by another process."""
    assert computing.wait(PATIENCE)
    sys.exit(main((*LINE, "--output", "x.h5")))


def test_a_study_keeps_its_lock_to_the_end(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its last run, when its file has been written, another process is refused."""
    forked = multiprocessing.get_context("fork")
    computing = forked.Event()
    other = forked.Process(target=second_command, args=(computing,))

    def energy(place: np.ndarray) -> float:
        if len(asked) == 5 and not computing.is_set():
            computing.set()
            other.join(PATIENCE)
        return springs(place)

    asked = on_springs(monkeypatch, H2, energy)
    other.start()
    done = succeed(call(*LINE, "--output", "x.h5"))
    assert other.exitcode == 3
    assert "x.h5 is being computed by process" in done.err
    assert len(asked) == 5 and read_study("x.h5").complete
