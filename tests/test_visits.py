"""Somebody else's files, typing errors of the command line, and the width of what it prints."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from dfmp2.cli import main as program
from dfmp2.cli.checks import without_paths
from dfmp2.cli.help import LINES, WISHES
from dfmp2.cli.main import COMMANDS, cli
from dfmp2.cli.options import GROUPS, OF_A_CALCULATION
from dfmp2.validation import doctor
from tests.conftest import Runner, Stored, on_a_terminal, run_command, succeed
from tests.recorded import recorded_failure
from tests.wrong_inputs import FILES, prepare, rows

# --- molecules and files --------------------------------------------------------------------------


def test_a_referee(call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's file and report: nothing reveals where they were made."""
    secret = folder / "secret place"
    secret.mkdir()
    shutil.copy(folder / "h2o.xyz", secret)
    succeed(call("run", str(secret / "h2o.xyz"), "--basis", "sto-3g", "--frozen-core", "auto"))
    shown = succeed(call("show", "h2o.dfmp2.h5", "--verify")).out
    assert (
        "read from: h2o.xyz" in shown and "secret" not in shown and "content hash verified" in shown
    )
    monkeypatch.chdir(secret)
    monkeypatch.delitem(doctor.CHECKS, "PyTorch")  # takes two seconds
    told = succeed(call("doctor", "--report")).out
    assert "default run" in told and "What I typed:" in told
    assert "secret" not in told and not re.search(r"(?<![\w.])/\w+/", told), told


def test_private_names_are_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of local folders, with blanks, of other folders, and of the user; text that is no path
    stays."""
    secret = tmp_path / "secret place"
    secret.mkdir()
    monkeypatch.setenv("HOME", str(secret))
    monkeypatch.setenv("LOGNAME", "jane")
    told = without_paths(
        f"3.11 (x86_64), {secret}/bin/python; /opt/jane doe/psi4 of jane; 2/3 cores, numpy/scipy"
    )
    assert told == "3.11 (x86_64), .../bin/python; .../... doe/psi4 of ...; 2/3 cores, numpy/scipy"
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=KeyError("uid not found")))
    assert without_paths(f"{secret}/a of jane") == ".../a of jane"


# --- wrong inputs ---------------------------------------------------------------------------------


@pytest.fixture
def beside(folder: Path, water: Stored, call: Runner) -> Path:
    """Create the files named in the table."""
    prepare(folder)
    succeed(call("prepare", "nh2.xyz", "--basis", "sto-3g"))
    shutil.copy(water.path, folder / "h2o.dfmp2.h5")
    return folder


def test_wrong_inputs_have_their_messages(beside: Path, call: Runner) -> None:
    """As both tables show them: exit code, one line, nothing on standard output, nothing written;
    with 2 and 3 nothing was computed."""
    before = sorted(path.name for path in beside.iterdir())
    table = rows()
    assert len(table) >= 260 and set(FILES) <= set(" ".join(typed for typed, *_ in table).split())
    different = {}
    for typed, code, said in table:
        done = call(*shlex.split(typed))
        computed = "  SCF   1 " in done.err and code <= 3
        if computed or (done.code, done.message, done.out) != (code, f"dfmp2: {said}", ""):
            different[typed] = (done.code, done.message, done.out)
    assert not different
    assert sorted(path.name for path in beside.iterdir()) == before


def test_wishes_name_what_is_there(call: Runner) -> None:
    """Every command and option that a hint points to exists, and no hint hides an existing one."""
    options = {name for command in ("run", "optimize", "export") for name in spoken(command)}
    for wish, text in WISHES.items():
        assert wish not in COMMANDS and wish not in spoken("run"), wish
        assert set(re.findall(r"dfmp2 ([a-z]+)", text)) <= set(COMMANDS), text
        assert set(re.findall(r"(--[a-z-]+)", text)) <= options, text


def spoken(name: str) -> list[str]:
    """The options of a command, and of the whole program."""
    context = cli.make_context("dfmp2", [], resilient_parsing=True)
    command = cli.get_command(context, name)
    return [word for one in (*command.get_params(context), *cli.params) for word in one.opts]


# --- help, and what is printed --------------------------------------------------------------------


def names_of_commands() -> list[str]:
    """All commands, those of groups too, as they are typed."""
    context = cli.make_context("dfmp2", [], resilient_parsing=True)
    found = []
    for name in COMMANDS:
        more = getattr(cli.get_command(context, name), "commands", {})
        found += [name, *(f"{name} {one}" for one in more)]
    return found


@pytest.mark.parametrize("name", ["", *names_of_commands()])
def test_help_fits_a_terminal(name: str, call: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = succeed(call(*name.split(), "--help"))
    lines = done.out.splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= 80
    assert succeed(call("help", *name.split())) == done
    if "--help-all" not in done.out:
        return
    every = succeed(call(*name.split(), "--help-all")).out
    assert max(map(len, every.splitlines())) <= 80 and "options more" not in every
    assert set(re.findall(r"^  (--[\w-]+)", done.out, re.MULTILINE)) < set(
        re.findall(r"^  (?:-h, )?(--[\w-]+)", every, re.MULTILINE)
    )


def test_every_option_of_a_calculation_has_one_group() -> None:
    named = [name for lists in GROUPS.values() for one in lists for name in one.split()]
    assert len(named) == len(set(named))
    assert {name.replace("_", "-") for name in OF_A_CALCULATION} <= set(named)


def test_headings_are_bold_on_a_terminal_unless_no_color(folder: Path) -> None:
    asked = ("run", "--help")
    assert "\x1b[1mMethod" in on_a_terminal("stdout", *asked, cwd=folder)
    assert "\x1b" not in on_a_terminal("stdout", *asked, cwd=folder, NO_COLOR="1")


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("run h2o.xyz --basis sto-3g", "h2o.xyz, sto-3g"),
        ("gradient - --basis sto-3g", "standard input, sto-3g"),
        (
            "batch run 1.xyz 2.xyz 3.xyz 4.xyz --basis sto-3g --output out",
            "1.xyz, 2.xyz, 3.xyz and 1 more, sto-3g",
        ),
        ("kernels check", "nki-interpreter"),
    ],
)
def test_the_first_line_comes_before_numpy(
    typed: str, first: str, folder: Path, tmp_path: Path
) -> None:
    """Libraries take seconds to load on a busy host. --quiet keeps it away."""
    (tmp_path / "numpy.py").write_text(
        "import os, sys; sys.stderr.write('NUMPY\\n'); sys.stderr.flush(); os._exit(0)"
    )
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    said = run_command(*typed.split(), cwd=folder, env=env).err.splitlines()
    command = " ".join(
        word for word in typed.split()[:2] if word in ("run", "check") or word in COMMANDS
    )
    assert said == [f"dfmp2 {command}{': ' if first else ''}{first}", "NUMPY"]
    if typed.startswith("run"):
        assert run_command(*typed.split(), "--quiet", cwd=folder, env=env).err == "NUMPY\n"


# --- shells ---------------------------------------------------------------------------------------


def test_completion_is_installed_once(
    call: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below lines in any encoding; a session shows what each shell gets."""
    start = tmp_path / ".bashrc"
    start.write_bytes(b"alias ll='ls -l' # \xe9")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/bash")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    for _ in range(2):
        assert ".local/share/dfmp2/completion.bash" in succeed(call("completion", "--install")).out
    assert start.read_bytes().startswith(b"alias ll='ls -l' # \xe9")
    assert start.read_bytes().count(b"dfmp2") == 2
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("no home directory")))
    recorded_failure(call("completion", "--install"), 7)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dfmp2 run --frozen-c", "plain,--frozen-core"),
        ("dfmp2 run h2o.xyz --reference u", "plain,uhf"),
        ("dfmp2 run h2", "file,h2"),
        ("dfmp2 run h2o.xyz --scf-from h", "file,h"),
        ("dfmp2 prepare h2o.xyz --scratch h", "file,h"),
        ("dfmp2 thermo h", "file,h"),
    ],
)
def test_shells_complete_names(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in completing(words).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        program.main([])
    assert expected in capfd.readouterr().out.splitlines()


def completing(words: str) -> dict[str, str]:
    """The variables that bash sets to ask for the last of these words."""
    return {
        "_DFMP2_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }


def test_the_installed_command_completes_names(dfmp2: Runner) -> None:
    assert "plain,optimize" in dfmp2(env=completing("dfmp2 opt")).out.splitlines()
