"""Broken input of every kind: the documented exit code, one line that says what to do, nothing
written."""

from __future__ import annotations

import io
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dfmp2.cli import main as main_module
from dfmp2.output import hdf5
from tests.conftest import (
    Runner,
    Stored,
    in_shell,
    listing,
    succeed,
    write_molecules,
)
from tests.recorded import recorded_error, recorded_failure

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


def test_pipe_and_socket_are_refused_at_once(call: Runner, folder: Path) -> None:
    os.mkfifo(folder / "pipe.xyz")
    for command in (
        ("run", "pipe.xyz", *STO3G),
        ("show", "pipe.xyz"),
        ("run", H2, *STO3G, "--output", "pipe.xyz"),
    ):
        assert call(*command).code == 3
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{short}/s")  # the path of a socket is limited to about 100 characters
        assert call("run", f"{short}/s", *STO3G).code == 3


def test_huge_file_is_refused_by_its_size(dfmp2: Runner, call: Runner, folder: Path) -> None:
    with open(folder / "huge.xyz", "wb") as handle:
        handle.truncate(10**12)  # sparse
    assert call("run", "huge.xyz", *STO3G).code == 3
    assert dfmp2("run", "-", *STO3G, stdin="1\n\nHe 0 0 0\n" + "\n" * 65_000_000).code == 3


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
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


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


def test_full_disk(call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dfmp2.host import files

    before = listing(folder)
    with monkeypatch.context() as full:
        full.setattr(files, "free_disk", lambda folder: 1000)
        done = call("run", H2O, *STO3G)
    recorded_failure(done, 7)
    assert listing(folder) == before
    assert call("run", H2, *STO3G, "--output", "h2.h5").code == 0
    for free, code in ((10**4 - 1, 7), (10**4, 0)):
        monkeypatch.setattr(files, "free_disk", lambda folder, free=free: free)
        assert call("derive", "h2.h5", "--method", "scs-mp2", "--output", "scaled.h5").code == code


def test_full_standard_output(folder: Path) -> None:
    """The result is kept: it was complete before there was anything to print."""
    if not os.path.exists("/dev/full"):
        pytest.fail("this test needs /dev/full")
    for redirection, code in ((">/dev/full", 7), ("2>&-", 0)):
        (folder / "h2.dfmp2.h5").unlink(missing_ok=True)
        done = in_shell(f'exec "$@" {redirection}', "run", H2, *STO3G, cwd=folder)
        assert done.code == code, (redirection, done.err)
        assert "Traceback" not in done.err + done.out
        hdf5.read(folder / "h2.dfmp2.h5")
        if code:
            assert "what was computed is stored: dfmp2 finished" in done.err
    done = in_shell('exec "$@" >/dev/full', "derive", "h2.dfmp2.h5", cwd=folder)
    assert done.code == 7 and "stored" not in done.err.partition("not stored")[0]
    assert "standard output cannot be written (No space left on device): dfmp2 fin" in done.err


def test_reader_that_leaves_early_is_no_error(folder: Path) -> None:
    script = '"$@" | head -n 1; echo "${PIPESTATUS[0]}"'
    for arguments in (("run", H2, *STO3G), ("show", "--help")):
        done = in_shell(script, *arguments, cwd=folder)
        assert done.out.splitlines()[-1] == "0" and "Traceback" not in done.err + done.out


def test_progress_that_cannot_be_shown_does_not_stop_a_run(folder: Path) -> None:
    done = in_shell('"$@" 2> >(head -n 1 >&2)', "run", H2, *STO3G, cwd=folder)
    assert done.code == 0 and "dfmp2 finished" in done.out


def test_names_no_screen_should_see_raw(dfmp2: Runner, call: Runner, folder: Path) -> None:
    """Control characters and bytes that are not text are shown as escapes and stored unchanged,
    without an error."""
    name = b"red\x1b[31m\xff\n.xyz"
    (folder / os.fsdecode(name)).write_bytes((folder / H2).read_bytes())
    done = succeed(dfmp2("run", name, *STO3G, "--output", "x.h5"))
    assert all(line.isprintable() for text in (done.out, done.err) for line in text.splitlines())
    missing = call("run", os.fsdecode(b"no" + name), *STO3G)
    assert missing.code == 3 and missing.message.isprintable()
    assert "run" in hdf5.read(folder / "x.h5").provenance.command and hdf5.read(folder / "x.h5")


def test_failed_check_exits_8_and_keeps_the_result(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dfmp2.mp2 import check

    succeed(call("run", H2O, *STO3G, "--output", "unchecked.h5"))
    unchecked = ("--output", "unchecked.h5", "--check", "--resume")
    recorded_failure(call("run", H2O, *STO3G, *unchecked), 3)
    monkeypatch.setattr(check, "SAME_ORBITALS", 1e-30)
    for more in ((), ("--resume",)):
        recorded_failure(call("run", H2O, *STO3G, "--check", "--precision", "fp64", *more), 8)
        assert (folder / "h2o.dfmp2.h5").is_file()


def test_a_fault_in_the_program_keeps_its_traceback(
    call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dfmp2.interop import python

    def fail(*_given: Any, **_named: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(python, "run_options", fail)
    with recorded_error(RuntimeError):
        call("run", H2, *STO3G)


def test_machine_out_of_memory(call: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    from dfmp2.interop import python

    def fail(*_given: Any, **_named: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(python, "run_options", fail)
    recorded_failure(call("run", H2, *STO3G), 7)


@pytest.mark.parametrize(
    "command", [("show", "FILE"), ("derive", "FILE", "--os-scale", "1.2"), ("compare", "FILE")]
)
def test_output_ends_with_one_line_end(
    command: tuple[str, ...], water: Stored, call: Runner
) -> None:
    arguments = [str(water.path) if word == "FILE" else word for word in command]
    for more in (("--json",), ()):
        done = call(*arguments, *more)
        assert done.code == 0 and done.out == done.out.rstrip() + "\n"


# --- what ends a command --------------------------------------------------------------------------


def test_letters_that_a_stream_cannot_write_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(written, encoding="latin-1"))
    assert main_module.main(["show", "nowhere-\u0151.h5"]) == 3
    sys.stderr.flush()
    assert b"nowhere-\\u0151.h5" in written.getvalue()
