"""Broken input of every kind: the documented exit code, one line that says what to do, nothing
written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dfmp2.mp2 import energy
from dfmp2.output import hdf5
from tests.conftest import (
    Runner,
    Stored,
    in_shell,
    listing,
    succeed,
    write_molecules,
)
from tests.recorded import recorded_failure

H2, H2O, STO3G = "h2.xyz", "h2o.xyz", ("--basis", "sto-3g")


def test_a_folder_of_pyscf_that_is_not_there(dfmp2: Runner, folder: Path) -> None:
    """PySCF reads the variable when it is imported, so this needs a process of its own."""
    before = listing(folder)
    done = dfmp2("run", H2, *STO3G, env={"PYSCF_TMPDIR": "/nonexistent/folder"})
    recorded_failure(done, 7)
    assert done.out == ""
    assert listing(folder) == before


# --- cases that need more than files --------------------------------------------------------------


def test_cuda_without_a_device(call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listing(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = call("run", H2O, *STO3G, "--backend", "cuda")
    assert done.code == 6 and "--backend cuda" in done.message and done.out == ""
    assert listing(folder) == before


def test_closed_standard_input(folder: Path) -> None:
    assert in_shell('exec "$@" <&-', "run", "-", *STO3G, cwd=folder).code == 3


def test_deleted_working_directory(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    done = in_shell('rmdir ../gone && exec "$@"', "run", str(folder / H2), *STO3G, cwd=gone)
    assert done.code == 7


@contextmanager
def as_nobody() -> Iterator[None]:
    """Run as user nobody, since root is allowed everything."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(own)


def test_without_permission(call: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of another user gives an error for results, logs and input alike."""
    succeed(call("run", H2, *STO3G))  # import modules that nobody may not be allowed to read
    with tempfile.TemporaryDirectory() as public:
        write_molecules(Path(public))
        Path(public).chmod(0o755)
        monkeypatch.chdir(public)
        closed = Path(public, "closed")
        closed.mkdir(mode=0)
        with as_nobody():
            for code, arguments in (
                (7, ("run", H2, *STO3G, "--output", "closed/x.h5")),
                (7, ("run", H2, *STO3G, "--log", "closed/x.log")),
                (3, ("run", "closed/x.xyz", *STO3G)),
                (3, ("show", "closed/x.h5")),
                (3, ("batch", "status", "closed")),
            ):
                recorded_failure(call(*arguments), code)
            assert call("rank", "closed", "closed").code == 3
        closed.chmod(0o700)
        assert not list(closed.iterdir())


def test_full_standard_output(folder: Path) -> None:
    """The result is kept: it was complete before there was anything to print."""
    done = in_shell('exec "$@" >/dev/full', "run", H2, *STO3G, cwd=folder)
    assert done.code == 7 and "Traceback" not in done.err
    assert "what was computed is stored: dfmp2 finished" in done.err
    hdf5.read(folder / "h2.dfmp2.h5")


def test_readers_that_leave_early_are_no_error(folder: Path) -> None:
    """Neither that of the result nor that of the progress."""
    script = '"$@" 2> >(head -n 1 >&2) | head -n 1; echo "${PIPESTATUS[0]}"'
    done = in_shell(script, "run", H2, *STO3G, cwd=folder)
    assert done.out.splitlines()[-1] == "0" and "Traceback" not in done.err + done.out
    hdf5.read(folder / "h2.dfmp2.h5")


def test_failed_check_exits_8_and_keeps_the_result(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed(call("run", H2O, *STO3G, "--output", "unchecked.h5"))
    unchecked = ("--output", "unchecked.h5", "--check", "--resume")
    recorded_failure(call("run", H2O, *STO3G, *unchecked), 3)
    monkeypatch.setattr("dfmp2.mp2.check.SAME_ORBITALS", 1e-30)
    for more in ((), ("--resume",)):
        recorded_failure(call("run", H2O, *STO3G, "--check", "--precision", "fp64", *more), 8)
        assert (folder / "h2o.dfmp2.h5").is_file()


def test_a_machine_that_refuses_memory(call: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfmp2.interop.python.run_options", Mock(side_effect=MemoryError()))
    done = call("run", H2, *STO3G)
    assert done.code == 7 and "the machine refused to give more memory" in done.message


def test_a_fault_of_the_program_is_not_hidden(
    call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Mock(side_effect=RuntimeError("a bug"))
    monkeypatch.setattr("dfmp2.interop.python.run_options", fault)
    with pytest.raises(RuntimeError, match="a bug"):
        call("run", H2, *STO3G)


@pytest.mark.parametrize(("free", "code"), [(9_999, 7), (10_000, 0)])
def test_a_derived_result_needs_ten_kilobytes(
    call: Runner, water: Stored, monkeypatch: pytest.MonkeyPatch, free: int, code: int
) -> None:
    monkeypatch.setattr("dfmp2.host.files.free_disk", lambda folder: free)
    done = call("derive", str(water.path), "--method", "scs-mp2", "-o", "d.h5")
    assert (done.code, Path("d.h5").exists()) == (code, code == 0)


@pytest.mark.parametrize("seconds", ["0", "600"])
@pytest.mark.parametrize(("command", "function"), [("run", "correlate"), ("prepare", "build_b")])
def test_a_file_that_was_written_meanwhile_is_kept(
    call: Runner, monkeypatch: pytest.MonkeyPatch, command: str, function: str, seconds: str
) -> None:
    """With a checkpoint beside it, and before the first one."""
    own = getattr(energy, function)

    def write_first(*arguments: Any, **more: Any) -> Any:
        Path("new.h5").write_text("precious")
        return own(*arguments, **more)

    monkeypatch.setenv("DFMP2_CHECKPOINT_SECONDS", seconds)
    monkeypatch.setattr(energy, function, write_first)
    done = call(command, H2, *STO3G, "-o", "new.h5")
    assert done.code == 3 and "new.h5 was written by another process meanwhile" in done.message
    assert Path("new.h5").read_text() == "precious"


def test_a_disk_without_hard_links(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listing(folder).keys()
    monkeypatch.setattr("os.link", Mock(side_effect=PermissionError(1, "not permitted")))
    succeed(call("run", H2, *STO3G, "-o", "new.h5"))
    hdf5.read("new.h5")
    assert listing(folder).keys() == before | {"new.h5"}
