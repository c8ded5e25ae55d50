"""Whatever fails during a write: one clear line, code 7, the old file intact, no other file
left."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import pytest

from dfmp2.errors import ResourceError
from dfmp2.execution.items import compute_item, read_input
from dfmp2.execution.manifest import make_batch
from dfmp2.execution.pool import WorkerShare
from dfmp2.host.files import write_atomically
from dfmp2.output.checkpoint import VARIABLE, checkpoint_of
from tests.conftest import (
    Finished,
    Runner,
    listing,
    only_free_in,
    run_here,
    succeed,
    write_molecules,
)
from tests.writers import (
    FAULTS,
    H2,
    OLD,
    SCAN,
    SECOND,
    WRITERS,
    Fault,
    Writer,
    failing,
    intact,
    named,
    prepare,
    remembered,
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a molecule and its result."""
    folder = write_molecules(tmp_path_factory.mktemp("prepared"))
    succeed(run_here("run", "h2.xyz", *H2, "--output", "h2.h5", cwd=folder))
    return folder


# Files written through the same function fail in its other steps as the result does.
EVERY_WRITER = [
    pytest.param(name, fault, marks=marks, id=f"{name}-{named(fault)}")
    for name, writer in WRITERS.items()
    for fault in FAULTS
    if fault[0] in writer.steps
    for common in [
        fault[0] in ("short write", "flush", "fsync")
        and name not in ("result", "log", "checkpoint of a run")
    ]
    for marks in [[pytest.mark.slow] if common or fault in SECOND else []]
]


def outcome(writer: Writer, call: Runner, folder: Path) -> Finished:
    """How a writer ends, as a command."""
    if isinstance(writer.write, tuple):
        return call(*writer.write)
    try:
        writer.write(folder)
    except ResourceError as error:
        return Finished(error.exit_code, "", f"dfmp2: {error}\n")
    return Finished(0, "", "")


@pytest.mark.parametrize(("name", "fault"), EVERY_WRITER)
def test_writer(
    name: str,
    fault: Fault,
    prepared: Path,
    call: Runner,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failure is named with code 7, or the command goes on without the file if the table says
    so; a full disk with the file, the space and the option that helps."""
    writer = WRITERS[name]
    for variable, value in writer.settings.items():
        monkeypatch.setenv(variable, value)
    shutil.copy(prepared / "h2.h5", folder)
    prepare(writer, folder)
    before = listing(folder)
    with remembered(writer), failing(fault, folder, writer.only) as met:
        done = outcome(writer, call, folder)
    assert met
    if writer.goes_on:
        assert done.code == 0, done.err
    else:
        assert done.code == 7 and os.strerror(fault[1]) in done.message, done.err
        assert writer.option in done.message
        if fault[1] in (errno.ENOSPC, errno.EDQUOT):
            assert re.search(r" are needed and [\d.]+ \w?B are free", done.message)
    assert intact(writer, folder, before, listing(folder))


@pytest.mark.parametrize("name", [name for name in WRITERS if "checkpoint" not in name])
def test_a_link_or_a_protected_file_stays(
    name: str, prepared: Path, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --overwrite too, and whoever runs it: neither replaced nor written through."""
    writer = WRITERS[name]
    for variable, value in writer.settings.items():
        monkeypatch.setenv(variable, value)
    shutil.copy(prepared / "h2.h5", folder)
    prepare(writer, folder)
    place = folder / writer.target
    place.chmod(0o444)
    protected = listing(folder)
    code = {True: 0, False: 7}[writer.goes_on]
    with remembered(writer):
        assert outcome(writer, call, folder).code == code
        assert intact(writer, folder, protected, listing(folder))
        if name == "log":
            return  # is appended to, through a link too
        place.unlink()
        prepare(writer, folder)
        place.rename(folder / "precious")
        place.symlink_to(folder / "precious")
        linked = listing(folder)
        assert outcome(writer, call, folder).code == code
    assert place.is_symlink() and (folder / "precious").read_text().endswith(OLD)
    assert intact(writer, folder, linked, listing(folder))


def test_a_checkpoint_that_cannot_be_saved_costs_only_the_checkpoint(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever step it fails (`test_writer`)."""
    monkeypatch.setenv(VARIABLE, "0")
    with failing(("fsync", errno.EIO), folder, lambda name: "checkpoint" in name) as met:
        done = succeed(call("run", "h2.xyz", *H2, "--output", "x.h5"))
    assert (
        len(met) > 1
        and done.err.count("warning: no checkpoint could be saved, the run continues without") == 1
    )
    assert os.strerror(errno.EIO) in done.err
    assert not [path for path in folder.iterdir() if path.name.startswith((".x", "x.h5."))]


def test_only_what_does_not_fit_is_refused(
    prepared: Path, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of an export is known, and that of a result is at least 80 kB and its orbitals."""
    shutil.copy(prepared / "h2.h5", folder)
    export = ("export", "h2.h5", "--to", "xyz", "--output", "new.xyz")
    run = ("run", "h2.xyz", *H2, "--output", "new.h5")
    exported = succeed(run_here(*export, cwd=prepared)) and (prepared / "new.xyz").stat().st_size
    for command, needed in ((export, exported), (run, 80_000 + 8 * 2 * 2)):
        monkeypatch.setattr("dfmp2.host.files.free_disk", only_free_in(folder, needed - 1, 10**15))
        done = call(*command)
        assert done.code == 7
        assert not done.iterated and not (folder / command[-1]).exists()
        monkeypatch.setattr("dfmp2.host.files.free_disk", only_free_in(folder, needed, 0))
        succeed(call(*command))
        assert (folder / command[-1]).exists()


def test_what_a_killed_process_was_writing_is_removed(call: Runner, folder: Path) -> None:
    """Of the result, the study and its checkpoint, by the next run that writes the same file."""
    for command in (("run", "h2.xyz", *H2, "--output", "new.h5"), SCAN):
        for name in ("new.h5", "new.h5.checkpoint"):
            (folder / f".{name}.part-0123456789ab").write_text("half")
        (folder / ".renew.h5.part-0123456789ab").write_text("of another file")
        succeed(call(*command))
        left = [name for name in listing(folder) if ".part-" in name]
        assert left == [".renew.h5.part-0123456789ab"], command


def test_result_that_cannot_be_written_leaves_its_checkpoint(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After making room on the disk, little is left to compute."""
    monkeypatch.setenv(VARIABLE, "0")
    command = ("run", "h2.xyz", *H2, "--output", "x.h5")
    with failing(("write", errno.ENOSPC), folder, lambda name: ".h5.part-" in name):
        done = call(*command)
    assert done.code == 7 and "x.h5.checkpoint holds what was done" in done.message
    assert (folder / "x.h5.checkpoint").exists() and not (folder / "x.h5").exists()
    done = succeed(call(*command, "--resume"))
    assert done.went_on and not (folder / "x.h5.checkpoint").exists()


@pytest.mark.parametrize("overwrite", [True, False])
def test_file_and_folder_are_on_disk_when_it_is_written(
    overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data are synced before the rename and the folder after it: a power cut leaves the old or the
    new file."""
    done: list[str] = []

    def noted(step: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        def taken(*given: Any, **named: Any) -> Any:
            done.append(name(*given))
            return step(*given, **named)

        return taken

    kind = {True: "sync folder", False: "sync file"}
    monkeypatch.setattr(
        os, "fsync", noted(os.fsync, lambda number: kind[stat.S_ISDIR(os.fstat(number).st_mode)])
    )
    for name in ("replace", "link"):
        monkeypatch.setattr(os, name, noted(getattr(os, name), lambda *_: "name"))
    write_atomically(tmp_path / "x.h5", b"content", overwrite=overwrite)
    assert (
        done == ["sync file", "name", "sync folder"]
        and (tmp_path / "x.h5").read_bytes() == b"content"
    )


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
@pytest.mark.parametrize("options", ["size=8k", "ro"], ids=["full", "read-only"])
def test_real_file_system(
    options: str, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "small"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True
    ).returncode:
        pytest.skip("mount is not allowed here")
    try:
        monkeypatch.setenv(VARIABLE, "0")
        # As if somebody else had filled the disk since
        monkeypatch.setattr("dfmp2.host.files.free_disk", lambda _: 10**9)
        done = call("run", "h2.xyz", *H2, "--output", "small/x.h5")
        said = "No space left on device" if options != "ro" else "Read-only file system"
        assert done.code == 7 and said in done.message
        left = {path.name for path in place.iterdir()}
        assert left <= {"x.h5.checkpoint"}  # it may just have fitted
    finally:
        subprocess.run(["umount", place], check=True)


# --- order of the steps ---------------------------------------------------------------------------


def of_a_batch(folder: Path) -> None:
    (item,) = make_batch(["h2.xyz"], {"basis": "sto-3g"}, folder, folder).items
    row = compute_item(read_input(item), None, None, "", WorkerShare(1, 4 * 10**9))
    assert row.status == "complete", row.error


COMPUTING: dict[str, tuple[str, tuple[str, ...] | Callable[[Path], None]]] = {
    "run": ("x.h5", ("run", "h2.xyz", *H2, "--output", "x.h5")),
    "gradient": ("x.h5", ("gradient", "h2.xyz", *H2, "--output", "x.h5")),
    "prepare": ("x.h5", ("prepare", "h2.xyz", *H2, "--output", "x.h5")),
    "scan": ("x.h5", (*SCAN, "--output", "x.h5")),
    "item of a batch": ("h2.h5", of_a_batch),
}


@pytest.mark.parametrize("overwrites", [False, True])
@pytest.mark.parametrize("name", COMPUTING)
def test_what_was_computed_is_in_a_file_at_every_step(
    name: str, overwrites: bool, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the process may be killed there is the checkpoint or the result, which is whole; one
    that is replaced is there until then, and in a batch under another name."""
    monkeypatch.setenv(VARIABLE, "0")
    file, computing = COMPUTING[name]
    target = folder / file
    kept = checkpoint_of(target)
    if overwrites:
        target.write_bytes(b"old")
    seen: list[str] = []

    def look(function: str, path: Any) -> None:
        there = [one for one in (target, kept) if one.exists()]
        seen.append(f"{function} {Path(path).name}: {[one.name for one in there]}")
        if target.exists() and target.read_bytes() != b"old":
            with h5py.File(target) as handle:
                assert len(handle) > 0, seen
        saved = any(kept.name in one for one in seen)
        replaced = overwrites and name != "item of a batch"
        if saved or replaced:
            assert there, seen
        if replaced:
            assert target.exists(), seen
        if overwrites and not replaced:
            old = [one for one in (target, target.with_name(f"{file}.previous")) if one.exists()]
            assert b"old" in [one.read_bytes() for one in old], seen

    def step(own: Callable[..., None], *paths: Any, **how: Any) -> None:
        own(*paths, **how)
        look(own.__name__, paths[-1])

    for function in ("unlink", "remove", "replace", "rename", "link"):
        monkeypatch.setattr(os, function, partial(step, getattr(os, function)))
    if isinstance(computing, tuple):
        succeed(call(*computing, *(["--overwrite"] if overwrites else [])))
    else:
        computing(folder)
    assert any(kept.name in one for one in seen) and not kept.exists(), seen
    assert target.read_bytes() != b"old"
