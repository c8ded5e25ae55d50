"""Whatever fails while a file is written: one clear line, code 7, the old file intact, nothing beside it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from dfmp2 import memory
from dfmp2.errors import ResourceError
from dfmp2.io import batch
from dfmp2.io.checkpoint import VARIABLE
from tests.conftest import Runner, listing, run_command, succeed, write_molecules
from tests.faults import numbers
from tests.writers import FAULTS, Fault, failing

H2 = ("--basis", "sto-3g", "--threads", "1")
COMMANDS = {
    "result": ("run", "h2.xyz", *H2, "--output", "new.h5", "--overwrite"),
    "derived result": ("derive", "h2.h5", "--os-scale", "1", "--output", "new.h5", "--overwrite"),
    "report": ("report", "h2.h5", "--output", "new.html", "--overwrite"),
    "export": ("export", "h2.h5", "--to", "xyz", "--output", "new.xyz", "--overwrite"),
    "study": ("scan", "h2.xyz", "--bond", "1,2", "0.7:0.8:2", *H2, "--output", "new.h5", "--overwrite"),
}
NAMES = {"report": "new.html", "export": "new.xyz"}
ids = [f"{step} {errno.errorcode[number]}" for step, number in FAULTS]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a molecule and its result."""
    folder = write_molecules(tmp_path_factory.mktemp("prepared"))
    succeed(run_command("run", "h2.xyz", *H2, "--output", "h2.h5", cwd=folder))
    return folder


@pytest.mark.parametrize("fault", FAULTS, ids=ids)
@pytest.mark.parametrize("writer", COMMANDS)
def test_command(writer: str, fault: Fault, prepared: Path, call: Runner, folder: Path) -> None:
    shutil.copy(prepared / "h2.h5", folder)
    (folder / NAMES.get(writer, "new.h5")).write_text("old")
    before = listing(folder)
    with failing(fault) as met:
        done = call(*COMMANDS[writer])
    assert met and done.code == 7 and done.out == ""
    assert os.strerror(fault[1]) in done.message
    assert listing(folder) == before


WRITERS: dict[str, Callable[[Path], Any]] = {
    "batch error.json": lambda path: batch.write_failure(path, 3, "wrong", "trace"),
    "batch.json": lambda path: batch.write_index(path, {"items": []}),
    "collected csv": lambda path: batch.write_rows(path.with_suffix(".csv"), [{"name": "a"}], {}, overwrite=True),
    "collected h5": lambda path: batch.write_rows(path.with_suffix(".h5"), [{"name": "a"}], {}, overwrite=True),
}


@pytest.mark.parametrize("fault", FAULTS, ids=ids)
@pytest.mark.parametrize("writer", WRITERS)
def test_batch_files(writer: str, fault: Fault, tmp_path: Path) -> None:
    for suffix in (".json", ".csv", ".h5"):
        (tmp_path / f"x{suffix}").write_text("old")
    before = listing(tmp_path)
    with failing(fault) as met, pytest.raises(ResourceError, match=os.strerror(fault[1])) as error:
        WRITERS[writer](tmp_path / "x.json")
    assert met and error.value.exit_code == 7 and listing(tmp_path) == before


@pytest.mark.parametrize("fault", FAULTS, ids=ids)
def test_a_checkpoint_that_cannot_be_saved_costs_only_the_checkpoint(
    fault: Fault, prepared: Path, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    with failing(fault, only=lambda name: "checkpoint" in name) as met:
        done = succeed(call("run", "h2.xyz", *H2, "--output", "x.h5"))
    assert len(met) > 1 and done.err.count("warning: no checkpoint could be saved, the run goes on without") == 1
    assert os.strerror(fault[1]) in done.err
    assert numbers(folder / "x.h5") == {**numbers(prepared / "h2.h5"), **warned(folder / "x.h5")}
    assert not [path for path in folder.iterdir() if path.name.startswith((".x", "x.h5."))]


def warned(path: Path) -> dict[str, bytes]:
    return {name: value for name, value in numbers(path).items() if "warnings" in name}


def test_result_that_cannot_be_written_leaves_its_checkpoint(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room can be made, and then there is little left to compute."""
    monkeypatch.setenv(VARIABLE, "0")
    command = ("run", "h2.xyz", *H2, "--output", "x.h5")
    with failing(("write", errno.ENOSPC), only=lambda name: "checkpoint" not in name):
        done = call(*command)
    assert done.code == 7 and "No space left on device" in done.message
    assert (folder / "x.h5.checkpoint").exists() and not (folder / "x.h5").exists()
    done = succeed(call(*command, "--resume"))
    assert "going on from x.h5.checkpoint" in done.err and not (folder / "x.h5.checkpoint").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("after", [0, 2])
def test_scratch(number: int, after: int, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scf_fits_in_core", "mp2_fits_in_core"):
        monkeypatch.setattr(memory.MemoryPlan, name, property(lambda _: False))
    written, store = [0], h5py.Dataset.__setitem__

    def failing_store(self: Any, place: Any, values: Any) -> None:
        written[0] += self.file.filename.startswith(str(folder / "scratch"))
        if written[0] > after:
            raise OSError(number, os.strerror(number))
        store(self, place, values)

    (folder / "scratch").mkdir()
    before = listing(folder)
    monkeypatch.setattr(h5py.Dataset, "__setitem__", failing_store)
    done = call("run", "h2o.xyz", *H2, "--output", "x.h5", "--scratch", str(folder / "scratch"))
    assert done.code == 7 and f"scratch folder {folder / 'scratch'}: {os.strerror(number)}" in done.message
    assert {k: v for k, v in listing(folder).items() if k != "scratch"} == {
        k: v for k, v in before.items() if k != "scratch"
    }


def test_log_on_a_full_disk(call: Runner, folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    done = call("run", "h2.xyz", *H2, "--output", "x.h5", "--log", "/dev/full")
    assert done.code == 7 and "No space left on device" in done.message
    assert not (folder / "x.h5").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
@pytest.mark.parametrize("options", ["size=8k", "ro"], ids=["full", "read-only"])
def test_real_file_system(options: str, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
        monkeypatch.setenv(VARIABLE, "0")
        monkeypatch.setattr("dfmp2.io.files.free_disk", lambda _: 10**9)  # as if somebody else had filled it since
        done = call("run", "h2.xyz", *H2, "--output", "small/x.h5")
        said = "No space left on device" if options != "ro" else "Read-only file system"
        assert done.code == 7 and said in done.message
        left = {path.name for path in place.iterdir()}
        assert left <= {"x.h5.checkpoint"}  # it may just have fitted
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize(
    "variables", [{"LC_ALL": "C"}, {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}], ids=["C", "tr"]
)
def test_locale_changes_nothing(variables: dict[str, str], prepared: Path, tmp_path: Path) -> None:
    shutil.copy(prepared / "h2.xyz", tmp_path)
    succeed(run_command("run", "h2.xyz", *H2, "--output", "x.h5", cwd=tmp_path, env={**variables, VARIABLE: "0"}))
    assert numbers(tmp_path / "x.h5") == numbers(prepared / "h2.h5")


def test_clock_that_runs_backwards(prepared: Path, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(2_000_000_000, 0, -3600))
    monkeypatch.setattr("time.time", lambda: float(next(now)))
    monkeypatch.setenv(VARIABLE, "0")
    succeed(call("run", "h2.xyz", *H2, "--output", "x.h5"))
    assert numbers(folder / "x.h5") == numbers(prepared / "h2.h5")
