"""A study stopped in the middle of a run goes on from its last tile, with the same bits."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import pytest

import dfmp2
from dfmp2.errors import DeviceFault, Interrupted
from dfmp2.mp2 import energy
from dfmp2.mp2.calculation import RUN
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import FileCheckpoint
from dfmp2.output.study import Study, read_study
from tests.awkward import read
from tests.conftest import PATIENCE, Heard, Runner, listing, succeed
from tests.faults import EACH, Stopping, close, numbers
from tests.recorded import recorded_failure
from tests.test_signals import start, wait_for

INPUTS = Path(__file__).parent.parent / "inputs"
BASIS = ("--basis", "sto-3g", "--threads", "1")
SCAN = ("scan", "h2o.xyz", "--bond", "1,2", "0.9:1.0:2", *BASIS)
KINDS = {
    "scan": SCAN,
    "interaction": ("interaction", "pair.xyz", "--fragments", "1-3,4-5", *BASIS),
    "cbs": ("cbs", "h2.xyz", "--basis", "cc-pv[dt]z", "--threads", "1"),
}
PAIR = "5\n\nO 0 0 0.12\nH 0 0.76 -0.47\nH 0 -0.76 -0.47\nH 3 0 0\nH 3 0 0.74\n"


def same(found: Study, expected: Study) -> bool:
    """Require the same energies of all runs, allowing for an SCF resumed from its last orbitals."""
    runs = found.runs.keys() == expected.runs.keys() and all(
        close(numbers(hdf5.to_bytes(found.runs[name])), numbers(hdf5.to_bytes(run)))
        for name, run in expected.runs.items()
    )
    return runs and found.values.keys() == expected.values.keys()


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every eleventh SCF iteration or tile ends the study, as a signal would; only then is anything
    saved."""
    monkeypatch.setenv(EACH, "1000")
    with Stopping(every=11):
        yield


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("interaction", "scan")]


@pytest.mark.parametrize("kind", [*SLOW, "cbs"])
def test_stopped_again_and_again(
    kind: str, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pair.xyz").write_text(PAIR)
    command = (*KINDS[kind], "--output", "x.h5", "--resume")
    stops = 0
    monkeypatch.setenv(EACH, "1000")
    with Stopping(every=5 if kind == "cbs" else 11):
        while (done := call(*command)).code == 75:
            stops += 1
            assert done.out == "" and (folder / "x.h5.checkpoint").exists() and stops < 60
            assert not list(folder.glob(".*"))
            runs = read_study("x.h5").runs if (folder / "x.h5").exists() else {}
            assert ("finished runs are in x.h5" in done.message) == bool(runs)
    succeed(done)
    assert stops >= 2 and done.went_on
    assert not (folder / "x.h5.checkpoint").exists() and not list(folder.glob(".*"))
    succeed(call(*KINDS[kind], "--output", "y.h5"))
    assert same(read_study("x.h5"), read_study("y.h5"))


@pytest.mark.slow
def test_a_hessian_has_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped within the SCF of displaced geometries, whose gradients are subtracted from each
    other."""
    monkeypatch.setenv(EACH, "1000")
    given: dict[str, Any] = {"basis": "sto-3g", "threads": 1, "allow_gradient": True}
    radical = read("multiplicity=2", "O 0 0 0", "H 0.3 0.8 0.5")
    expected = dfmp2.frequencies(radical, output=folder / "y.h5", **given)
    stops = 0
    with Stopping(every=59):
        while not (folder / "x.h5").exists() or not read_study(folder / "x.h5").complete:
            try:
                dfmp2.frequencies(radical, output=folder / "x.h5", **given)
            except dfmp2.Interrupted:
                stops += 1
    assert stops > 2
    found = read_study(folder / "x.h5").arrays["hessian"].value
    assert found.tobytes() == expected.arrays["hessian"].value.tobytes()


def test_an_scf_that_starts_from_another_run_begins_there_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frequencies that were stopped within the SCF of a displaced geometry, whose gradient is
    subtracted from another, have the bits of some that were never stopped."""
    monkeypatch.setenv(EACH, "1000")
    ion = read("charge=1", "He 0 0 0", "H 0.3 0.5 0.72")
    given: dict[str, Any] = {"basis": "6-31g", "threads": 1, "allow_gradient": True}
    given["listener"] = Heard()
    expected = dfmp2.frequencies(ion, output=folder / "y.h5", **given)
    displaced = "plus-001-x"
    add, names = FileCheckpoint.add_orbitals, []

    def added(checkpoint: FileCheckpoint, *orbitals: Any) -> None:
        names.append(checkpoint.identity[RUN])
        checkpoint.stop_asked = names.count(displaced) == 3
        add(checkpoint, *orbitals)

    with monkeypatch.context() as patch:
        patch.setattr(FileCheckpoint, "add_orbitals", added)
        with pytest.raises(dfmp2.Interrupted):
            dfmp2.frequencies(ion, output=folder / "x.h5", **given)
    assert displaced not in read_study(folder / "x.h5").runs
    found = dfmp2.frequencies(ion, output=folder / "x.h5", **given)
    for name in expected.runs:
        one, two = (numbers(hdf5.to_bytes(study.runs[name])) for study in (found, expected))
        assert one.pop("dfmp2/gradient/seconds") and two.pop("dfmp2/gradient/seconds")
        assert one == two, name


@pytest.mark.usefixtures("stopping")
def test_a_foreign_checkpoint_is_refused(call: Runner, folder: Path) -> None:
    """Of another point, of `dfmp2 run`, and of a study given to `dfmp2 run`: named, and nothing is
    touched."""
    assert call(*SCAN, "--output", "x.h5").code == 75 and not (folder / "x.h5").exists()
    other = call(*SCAN[:-1], "2", "--output", "x.h5", "--resume")
    recorded_failure(other, 3)
    while not (folder / "x.h5").exists():
        assert call(*SCAN, "--output", "x.h5", "--resume").code == 75
    before = listing(folder)
    other = call(*SCAN[:-1], "2", "--output", "x.h5", "--resume")
    recorded_failure(other, 3)
    shutil.copy(folder / "x.h5.checkpoint", folder / "y.h5.checkpoint")
    single = call("run", "h2o.xyz", *BASIS, "--output", "y.h5", "--resume")
    recorded_failure(single, 3)
    assert call("run", "h2o.xyz", *BASIS, "--output", "z.h5").code == 75
    study = call(*SCAN, "--output", "z.h5", "--resume")
    recorded_failure(study, 3)
    assert {name: value for name, value in listing(folder).items() if name in before} == before


@pytest.mark.usefixtures("stopping")
@pytest.mark.parametrize(
    "options", [(), pytest.param(("--quiet",), marks=pytest.mark.slow), ("--overwrite",)]
)
def test_the_same_command_goes_on(call: Runner, folder: Path, options: tuple[str, ...]) -> None:
    """A scan stopped at its second point; another scan is refused, or replaces it with
    --overwrite."""
    command = (*SCAN, "--output", "x.h5", *options)
    for _ in range(3):
        assert call(*command).code == 75
    before = listing(folder)
    kind = call("cbs", "h2o.xyz", "--basis", "cc-pv[dt]z", "--output", "x.h5")
    recorded_failure(kind, 3)
    other = call(*SCAN[:-1], "2", "--output", "x.h5")
    recorded_failure(other, 3)
    assert listing(folder) == before
    first = read_study("x.h5").runs["point-001"].provenance.created
    for _ in range(10):
        done = call(*command)
        assert read_study("x.h5").runs["point-001"].provenance.created == first
        if done.code != 75:
            break
    succeed(done)
    assert read_study("x.h5").complete and "other products" not in done.err
    assert read_study("x.h5").runs["point-001"].provenance.created == first
    again = call(*SCAN, "--output", "x.h5")
    recorded_failure(again, 3)


@pytest.mark.usefixtures("stopping")
def test_overwrite_drops_another_study(call: Runner, folder: Path) -> None:
    for _ in range(3):
        assert call(*SCAN, "--output", "x.h5").code == 75
    assert list(read_study("x.h5").runs)
    other = (*SCAN[:-1], "2", "--output", "x.h5", "--overwrite")
    for _ in range(10):
        done = call(*other)
        if done.code != 75:
            break
    succeed(done)
    assert all(run.provenance.threads == 2 for run in read_study("x.h5").runs.values())


def test_a_damaged_file_is_named_and_not_used(call: Runner, folder: Path) -> None:
    succeed(call(*SCAN, "--output", "x.h5"))
    content = bytearray((folder / "x.h5").read_bytes())
    with h5py.File(folder / "x.h5") as handle:
        place = handle["runs/point-002/scf/e_tot"].id.get_offset()
    content[place] ^= 1
    (folder / "x.h5").write_bytes(content)
    done = call(*SCAN, "--output", "x.h5", "--resume")
    recorded_failure(done, 3)
    assert (folder / "x.h5").read_bytes() == bytes(content)
    assert succeed(call(*SCAN, "--output", "x.h5", "--overwrite")).kept_runs == 0


def test_a_study_has_one_writer(call: Runner, folder: Path) -> None:
    with start(*SCAN, "--output", "y.h5", cwd=folder) as process:
        wait_for(process, "[1/2]")
        os.kill(process.pid, signal.SIGSTOP)
        other = call(*SCAN, "--output", "y.h5")
        os.kill(process.pid, signal.SIGCONT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    recorded_failure(other, 3)


def test_a_broken_device_ends_a_scan(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point with its own error is listed and the next one tried; a hardware fault would affect
    all of them."""
    whole, calls = energy.mp2_energy, []

    def run(*given: object, **more: object) -> object:
        calls.append(given)
        if len(calls) == 2:
            raise DeviceFault("take this host out of use")
        return whole(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(energy, "mp2_energy", run)
    done = call(*SCAN, "--output", "x.h5")
    recorded_failure(done, 7)
    assert len(calls) == 2
    assert list(read_study("x.h5").runs) == ["point-001"]
    monkeypatch.setattr("dfmp2.studies.keeper.blas_and_kernels", lambda: "Zen9")
    done = succeed(call(*SCAN, "--output", "x.h5"))
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
    whole, calls = energy.mp2_energy, []

    def run(*given: object, **more: object) -> object:
        calls.append(given)
        if len(calls) == 4:
            raise error
        return whole(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(energy, "mp2_energy", run)
    monkeypatch.setattr("dfmp2.studies.keeper.REST", 1e9)
    with suppress(KeyboardInterrupt, ValueError):
        assert call("scan", "h2.xyz", "--bond", "1,2", "0.7:0.9:5", *BASIS, "-o", "x.h5").code
    left = read_study("x.h5")
    assert not left.complete and list(left.runs) == [f"point-00{n}" for n in (1, 2, 3)]
    assert len(left.table["exit_code"].values) == 3 and len(calls) == 4


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
    )
    command += ("--threads", "1", "--output", "x.h5")
    with start(*command, cwd=folder) as process:
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
