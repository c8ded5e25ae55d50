"""Broken input of every kind: the documented exit code, one line that says what to do, nothing
written."""

from __future__ import annotations

import io
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from dfmp2.cli import main as main_module
from dfmp2.errors import InputError
from dfmp2.output import hdf5
from tests.conftest import (
    Finished,
    Runner,
    Stored,
    in_shell,
    listing,
    run_command,
    succeed,
    write_molecules,
)

H2, H2O, STO3G = "h2.xyz", "h2o.xyz", ("--basis", "sto-3g")
LONG = "a" * 300


@dataclass(frozen=True)
class Case:
    """One broken call.

    name : what is broken; arguments : of `dfmp2`; code : documented exit code; fragments : in the
        one line on stderr
    files : text of further files in the working directory; stdin, env : of the process
    """

    name: str
    arguments: tuple[str, ...]
    code: int
    fragments: tuple[str, ...]
    files: tuple[tuple[str, str | bytes], ...] = ()
    stdin: str = ""
    env: tuple[tuple[str, str], ...] = ()


def xyz(name: str, text: str | bytes, *fragments: str) -> Case:
    """A file that is not the xyz file of one molecule."""
    return Case(name, ("run", "bad.xyz", *STO3G), 3, ("bad.xyz", *fragments), (("bad.xyz", text),))


def h2o(name: str, code: int, options: tuple[str, ...], *fragments: str) -> Case:
    """Options that are invalid for water in STO-3G; with --json standard output stays empty."""
    return Case(name, ("run", H2O, *STO3G, "--json", *options), code, fragments)


def nobody_may_write() -> str:
    """A folder in which nobody, not even root, can create a file."""
    return "/proc" if os.path.isdir("/proc/self") else "/dev/fd"


COMMAND_LINE = (
    Case("no command", (), 2, ("Missing command", "dfmp2 --help")),
    Case("unknown command", ("compute",), 2, ("No such command 'compute'",)),
    Case(
        "unknown option", ("run", H2, *STO3G, "--nonsense"), 2, ("--nonsense", "dfmp2 run --help")
    ),
    Case("no molecule", ("run", *STO3G), 2, ("MOLECULE",)),
    Case(
        "ranks",
        ("run", H2, *STO3G, "--ranks", "2"),
        2,
        ("--ranks", "dfmp2 prepare and dfmp2 energy", "dfmp2 batch"),
    ),
    Case(
        "restarts", ("run", H2, *STO3G, "--max-restarts", "1"), 2, ("--max-restarts", "dfmp2 batch")
    ),
    Case(
        "torchrun",
        ("run", H2, *STO3G),
        2,
        ("2 processes", "dfmp2 prepare and dfmp2 energy", "dfmp2 batch"),
        env=(
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", "29500"),
        ),
    ),
    Case("no basis", ("run", H2), 2, ("--basis",)),
    Case("charge no integer", ("run", H2, *STO3G, "--charge", "x"), 2, ("--charge", "'x'")),
    Case("reference unknown", ("run", H2, *STO3G, "--reference", "ghf"), 2, ("'rohf'", "'uhf'")),
    Case(
        "backend unknown", ("run", H2, *STO3G, "--backend", "tpu"), 2, ("'tpu'", "'nki-simulator'")
    ),
    Case("show nothing", ("show",), 2, ("RESULT", "dfmp2 show --help")),
    Case(
        "compare tolerance no number", ("compare", "x.h5", "--tolerance", "small"), 2, ("'small'",)
    ),
)

GEOMETRY = (
    Case("file missing", ("run", "nowhere.xyz", *STO3G), 3, ("nowhere.xyz", "no such file")),
    Case("a device", ("run", "/dev/zero", *STO3G), 3, ("/dev/zero", "regular file")),
    Case("standard input empty", ("run", "-", *STO3G), 3, ("stdin", "empty")),
    Case(
        "standard input broken",
        ("run", "-", *STO3G),
        3,
        ("stdin, line 3", "'Xx'"),
        stdin="1\n\nXx 0 0 0\n",
    ),
    xyz("binary", b"\x7fELF\x02\x01\x00\xff\xfe", "not an xyz file"),
    xyz("no number", "1\n\nHe 0 0 zero\n", "line 3", "'zero'"),  # all the others: test_xyz
    xyz("atoms on top of each other", "2\n\nH 0 0 0\nH 0 0 0.1\n", "0.1000 angstrom apart"),
)

STATE = (
    h2o("no electrons", 3, ("--charge", "10"), "0 electrons"),
    h2o("more electrons than orbitals", 3, ("--charge", "-10"), "H2O"),
    h2o(
        "restricted triplet",
        3,
        ("--reference", "rhf", "--multiplicity", "3"),
        "multiplicity 1",
        "--reference uhf",
    ),
)

BASIS = (
    Case("empty basis", ("run", H2, "--basis", ""), 3, ("--basis is empty",)),
    Case("basis without virtual orbitals", ("run", "bad.xyz", *STO3G), 3, ("larger --basis",),
         (("bad.xyz", "1\n\nHe 0 0 0\n"),)),
    h2o("unknown SCF fitting set", 3, ("--scf-auxbasis", "no-such-jkfit"), "--scf-auxbasis"),
    h2o("fitting set for a conventional "
        "SCF", 3, ("--scf", "conventional", "--scf-auxbasis", "def2-universal-jkfit"),
        "drop one of the two"),
)  # fmt: skip

NUMBERS = (
    h2o(
        "frozen core takes all beta",
        3,
        ("--basis", "6-31g", "--multiplicity", "5", "--frozen-core", "4"),
        "beta",
    ),
    h2o("frozen virtuals take all", 3, ("--frozen-virtual", "2"), "--frozen-virtual 2"),
    h2o("scale infinite", 3, ("--os-scale", "inf"), "--os-scale inf"),
    h2o("tolerance nan", 3, ("--tolerance", "nan"), "--tolerance nan"),
    h2o("tolerance zero", 3, ("--tolerance", "0"), "above zero"),
    h2o("conv tol zero", 3, ("--scf-conv-tol", "0"), "--scf-conv-tol 0.0"),
    h2o("no cycles", 3, ("--scf-max-cycles", "0"), "--scf-max-cycles 0"),
    h2o("no threads", 3, ("--threads", "0"), "--threads 0"),
    h2o("memory without unit", 3, ("--memory", "8"), "8GB"),
    Case(
        "compare tolerance negative",
        ("compare", "x.h5", "--tolerance", "-1"),
        3,
        ("--tolerance -1",),
    ),
    Case("compare no threads", ("compare", "x.h5", "--threads", "0"), 3, ("--threads 0",)),
)

CALCULATION = (
    h2o("odd electrons", 3, ("--charge", "1"), "9 electrons", "--multiplicity 2"),
    Case("unknown basis", ("run", H2, "--basis", "cc-pvdzz"), 3, ("cc-pvdzz", "did you mean")),
    h2o("SCF does not "
        "converge", 4, ("--scf-max-cycles", "2"), "did not converge in 2 cycles", "no MP2 energy"),
    h2o("precision not "
        "reached", 5, ("--precision", "mixed", "--tolerance", "1e-20"), "--precision auto"),
    *(h2o("backend "
          f"{name}", 6, ("--backend", name), "--backend "
                                             f"{name}", "nki is not installed", "AWS's own package")
      for name in ("nki", "nki-xla", "nki-simulator")),
    h2o("no float64 on "
        "Trainium", 6, ("--backend", "nki-interpreter", "--precision", "fp64"), "it offers mixed"),
    h2o("Trainium "
        "tolerance", 5, ("--backend", "nki-interpreter", "--tolerance", "1e-20"), "has no float64"),
    h2o("memory too small", 7, ("--memory", "30MB"), "are required", "30.00 MB may be used"),
    Case("temporary folder missing", ("run", H2O, *STO3G), 7, ("/nonexistent/folder", "TMPDIR"),
         env=(("PYSCF_TMPDIR", "/nonexistent/folder"),)),
)  # fmt: skip

FILES = (
    h2o("output in no folder", 3, ("--output", "no/where.h5"), "there is no folder no"),
    h2o("output is a folder", 3, ("--output", "."), "not a regular file"),
    h2o("output is a device", 3, ("--output", "/dev/null"), "not a regular file"),
    h2o("output without name", 3, ("--output", ""), "--output"),
    h2o("output name too long", 3, ("--output", f"{LONG}.h5"), "too long"),
    h2o("output is the "
        "input", 3, ("--output", H2O, "--overwrite"), "h2o.xyz is the file given as MOLECULE"),
    h2o("log is the input", 3, ("--log", f"./{H2O}"), "MOLECULE"),
    h2o("log is the output", 3, ("--log", "x.h5", "--output", "x.h5"), "--output"),
    h2o("log is the start", 3, ("--log", "x.h5", "--scf-from", "x.h5"), "--scf-from"),
    Case("log is a stored result", ("run", H2O, *STO3G, "--log", "old.h5"), 3, ("old.h5", "no text"),
         (("old.h5", b"\x89HDF\r\n\x1a\n\0\0"),)),
    h2o("log in no folder", 3, ("--log", "no/where.log"), "--log no/where.log"),
    h2o("output where nobody may "
        "write", 7, ("--output", f"{nobody_may_write()}/x.h5"), "cannot write into"),
    h2o("log where nobody may "
        "write", 7, ("--log", f"{nobody_may_write()}/x.log"), "cannot be written"),
    Case("output exists", ("run", H2O, *STO3G), 3, ("h2o.dfmp2.h5 already exists", "--overwrite"),
         (("h2o.dfmp2.h5", "precious"),)),
    h2o("start file missing", 3, ("--scf-from", "nowhere.h5"), "nowhere.h5: no such file"),
    h2o("start file foreign", 3, ("--scf-from", H2), "h2.xyz: not a readable HDF5 file"),
    h2o("start file a folder", 3, ("--scf-from", "."), "not a regular file"),
    *(Case(f"{command} {name}", (command, file), 3, (fragment,))
      for command in ("show", "compare")
      for name, file, fragment in (
          ("missing", "nowhere.h5", "nowhere.h5: no such file"),
          ("folder", ".", "not a regular file"),
          ("foreign", H2, "not a readable HDF5 file"),
          ("name too long", LONG, "File name too long"),
      )),
)  # fmt: skip

# Cases for the installed command: those that need a process of their own, and one without and one
# with a command; the others run in this process. Its exit code is that of `main` (test_program).
INSTALLED = ("no command", "file missing", "backend nki")
ALL = (*COMMAND_LINE, *GEOMETRY, *STATE, *BASIS, *NUMBERS, *CALCULATION, *FILES)
CASES = tuple(case for case in ALL if case.name in INSTALLED or case.env)
VARIANTS = tuple(case for case in ALL if case not in CASES)


def prepare(case: Case, folder: Path) -> dict[str, tuple[int, int]]:
    """Write the files of a case; returns the content of the folder."""
    write_molecules(folder)
    for name, content in case.files:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return listing(folder)


def execute(case: Case, folder: Path) -> tuple[Finished, bool]:
    """The outcome of a case, and whether the working directory is unchanged."""
    folder.mkdir()
    before = prepare(case, folder)
    done = run_command(*case.arguments, cwd=folder, env=dict(case.env))
    return done, listing(folder) == before


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Finished, bool]]:
    """All cases, run two at a time before the first test looks at one."""
    root = tmp_path_factory.mktemp("errors")
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(execute, CASES, [root / str(number) for number in range(len(CASES))])
        return dict(zip((case.name for case in CASES), done, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_broken_call(case: Case, outcomes: dict[str, tuple[Finished, bool]]) -> None:
    done, untouched = outcomes[case.name]
    check(case, done)
    assert untouched


@pytest.mark.parametrize("case", VARIANTS, ids=lambda case: case.name.replace(" ", "-"))
def test_broken_variant(
    case: Case, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(case.stdin.encode())))
    before = prepare(case, folder)
    check(case, call(*case.arguments))
    assert listing(folder) == before


def check(case: Case, done: Finished) -> None:
    assert done.code == case.code, done.err
    assert all(fragment in done.message for fragment in case.fragments), done.message
    assert done.out == ""


def test_every_exit_code_below_9_has_a_case() -> None:
    # 8: test_cli_options; 75 and 130: test_signals
    assert {case.code for case in ALL} == {2, 3, 4, 5, 6, 7}


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
    done = call("run", "huge.xyz", *STO3G)
    assert done.code == 3 and "more than 64 MB" in done.message
    endless = dfmp2("run", "-", *STO3G, stdin="1\n\nHe 0 0 0\n" + "\n" * 65_000_000)
    assert endless.code == 3 and "more than 64 MB" in endless.message


def test_closed_standard_input(folder: Path) -> None:
    done = in_shell('exec "$@" <&-', "run", "-", *STO3G, cwd=folder)
    assert done.code == 3 and "standard input is closed" in done.message


def test_deleted_working_directory(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    done = in_shell('rmdir ../gone && exec "$@"', "run", str(folder / H2), *STO3G, cwd=gone)
    assert done.code == 7 and "cannot write into" in done.message


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
                done = call(*arguments)
                assert done.code == code and "ermission denied" in done.message
            done = call("rank", "closed", "closed")
            assert done.code == 3 and "expected two or more to rank" in done.message
        closed.chmod(0o700)
        assert not list(closed.iterdir())


def test_full_disk(call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dfmp2.host import files

    before = listing(folder)
    with monkeypatch.context() as full:
        full.setattr(files, "free_disk", lambda folder: 1000)
        done = call("run", H2O, *STO3G)
    assert done.code == 7 and "1.00 kB free" in done.message
    assert listing(folder) == before
    assert call("run", H2, *STO3G, "--output", "h2.h5").code == 0
    for free, code in ((10**4 - 1, 7), (10**4, 0)):
        monkeypatch.setattr(files, "free_disk", lambda folder, free=free: free)
        done = call("derive", "h2.h5", "--method", "scs-mp2", "--output", "scaled.h5")
        assert done.code == code


def test_full_standard_output(folder: Path) -> None:
    """The result is kept: it was complete before there was anything to print."""
    if not os.path.exists("/dev/full"):
        pytest.fail("this test needs /dev/full")
    for redirection, code in ((">/dev/full", 7), ("2>&-", 0)):
        (folder / "h2.dfmp2.h5").unlink(missing_ok=True)
        done = in_shell(f'exec "$@" {redirection}', "run", H2, *STO3G, cwd=folder)
        assert done.code == code, (redirection, done.err)
        assert "Traceback" not in done.err + done.out
        hdf5.verify(folder / "h2.dfmp2.h5")
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


def test_names_no_screen_should_see_raw(dfmp2: Runner, folder: Path) -> None:
    """Control characters and bytes that are not text are shown as escapes and stored unchanged,
    without an error."""
    name = b"red\x1b[31m\xff\n.xyz"
    (folder / os.fsdecode(name)).write_bytes((folder / H2).read_bytes())
    done = succeed(dfmp2("run", name, *STO3G, "--output", "x.h5"))
    assert all(line.isprintable() for text in (done.out, done.err) for line in text.splitlines())
    missing = dfmp2("run", b"no" + name, *STO3G)
    assert missing.code == 3 and missing.message.isprintable()
    assert "run" in hdf5.read(folder / "x.h5").provenance.command and hdf5.verify(folder / "x.h5")


def test_failed_check_exits_8_and_keeps_the_result(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dfmp2.mp2 import check

    monkeypatch.setattr(check, "SAME_ORBITALS", 1e-30)
    done = call("run", H2O, *STO3G, "--check", "--precision", "fp64")
    assert done.code == 8 and "the result was written to h2o.dfmp2.h5" in done.message
    assert (folder / "h2o.dfmp2.h5").is_file()


def test_a_fault_in_the_program_keeps_its_traceback(
    call: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dfmp2.interop import python

    def fail(*_given: Any, **_named: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(python, "run_options", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        call("run", H2, *STO3G)


def test_machine_out_of_memory(call: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    from dfmp2.interop import python

    def fail(*_given: Any, **_named: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(python, "run_options", fail)
    done = call("run", H2, *STO3G)
    assert done.code == 7 and "--memory" in done.message


def test_an_option_that_is_meant_is_named(call: Runner) -> None:
    """A visible option, not a hidden one."""
    done = call("run", "h2.xyz", "--bassis", "sto-3g")
    assert done.code == 2 and "did you mean --basis" in done.message


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


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("a  b"), 3, "a  b"),
        (KeyboardInterrupt(), 130, "interrupted (Ctrl-C): nothing was written"),
        (click.Abort(), 130, "interrupted (Ctrl-C): nothing was written"),
        (click.UsageError("no\n  such thing."), 2, "no such thing (see dfmp2 --help)"),
        (
            click.UsageError("wrong", click.Context(click.Command("run"), info_name="dfmp2 run")),
            2,
            "wrong (see dfmp2 run --help)",
        ),
        (MemoryError(), 7, "the machine refused to give more memory: allow less with --memory"),
        (
            OSError(28, "No space left"),
            7,
            "the system refused: [Errno 28] No space left: check where",
        ),
    ],
)
def test_every_end_has_a_line_and_a_code(error: BaseException, code: int, said: str) -> None:
    found = main_module._said(error)
    assert found is not None and found[0].startswith(said) and found[1] == code
    assert main_module._said(ValueError("a fault in dfmp2")) is None


def test_letters_that_a_stream_cannot_write_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(written, encoding="latin-1"))
    assert main_module.main(["show", "nowhere-\u0151.h5"]) == 3
    sys.stderr.flush()
    assert b"nowhere-\\u0151.h5" in written.getvalue()


def test_show_of_a_missing_file_says_that_it_is_missing(call: Runner) -> None:
    """It was said to be no study."""
    for more in (("--csv",), ("--run", "complex"), ()):
        done = call("show", "missing.h5", *more)
        assert done.code == 3
        assert "missing.h5: no such file" in done.message
