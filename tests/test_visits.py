"""Somebody else's files, typing errors of the command line, and the width of what it prints."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from dfmp2.cli import main as program
from dfmp2.cli.checks import without_paths
from dfmp2.cli.help import COLUMN, LINES, WISHES, GroupedCommand
from dfmp2.cli.main import COMMANDS, cli
from dfmp2.cli.options import GROUPS, OF_A_CALCULATION
from dfmp2.output import hdf5
from dfmp2.output.document import WIDEST, Table, aligned, fitted_lines
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
    monkeypatch.setenv("HOME", str(secret))
    monkeypatch.setenv("USER", "jane")
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


def test_the_dipole_moment_is_that_of_pyscf(radical: Stored, water: Stored) -> None:
    """RHF and UHF, to the accuracy of the orbitals."""
    from dfmp2.molecule.pyscf_shield import import_pyscf

    import_pyscf()
    from pyscf import lib, scf

    for stored, kind in ((water, scf.RHF), (radical, scf.UHF)):
        mean_field = kind(lib.chkfile.load_mol(str(stored.path)))
        mean_field.__dict__.update(lib.chkfile.load(str(stored.path), "scf"))
        expected = mean_field.dip_moment(unit="AU", verbose=0)
        assert stored.json["scf_dipole_moment"] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("end", "kind"), [("mol", "mol"), ("sdf", "sdf"), ("pdb", "proteindatabank")]
)
def test_other_formats_give_the_energy_of_the_xyz_file(
    end: str, kind: str, call: Runner, folder: Path
) -> None:
    """Their coordinates have three or four decimals; atomic charges are added up."""
    io = pytest.importorskip("ase.io")
    atoms = io.read("h2o.xyz")
    atoms.positions = atoms.positions.round(3)
    io.write(f"w.{end}", atoms, format=kind)
    io.write("w.xyz", atoms, format="xyz")
    run = ("--basis", "sto-3g", "--json", "--overwrite", "--threads", "1")
    expected = succeed(call("run", "w.xyz", *run)).json["mp2_total_energy"]
    done = succeed(call("run", f"w.{end}", *run))
    assert (
        done.json["mp2_total_energy"] == pytest.approx(expected, abs=1e-8)
        and "charge 0 (default)" in done.err
    )
    assert "belongs" not in done.err and call("run", f"w.{end}", *run, "--units", "bohr").code == 3
    text = (folder / f"w.{end}").read_text()
    charged = text.replace("M  END", "M  CHG  1   1   1\nM  END")
    if end == "pdb":
        charged = re.sub(r"(O) *$", "O1+", text, count=1, flags=re.MULTILINE)
    (folder / f"w.{end}").write_text(charged)
    done = succeed(call("run", f"w.{end}", *run, "--multiplicity", "2"))
    assert done.json["charge"] == 1 and "charge 1 (file)" in done.err


@pytest.mark.parametrize(
    ("end", "kind"),
    [("sdf", "sdf"), pytest.param("pdb", "proteindatabank", marks=pytest.mark.slow)],
)
def test_several_molecules_of_a_file_are_the_frames_of_a_scan(
    end: str, kind: str, call: Runner, folder: Path
) -> None:
    """Items of a batch may be such files, too; where one molecule is expected, several are an
    error."""
    io = pytest.importorskip("ase.io")
    frames = [io.read("h2.xyz") for _ in range(3)]
    for number, atoms in enumerate(frames):
        atoms.positions[1, 2] = 0.7 + 0.1 * number
    texts = []
    for number, atoms in enumerate(frames):
        io.write(f"{number}.{end}", atoms, format=kind)
        texts.append((folder / f"{number}.{end}").read_text())
    if end == "pdb":
        io.write("all.pdb", frames, format=kind)
    else:
        (folder / "all.sdf").write_text(
            "".join(text.rstrip().removesuffix("$$$$") + "$$$$\n" for text in texts)
        )
    io.write("all.xyz", frames, format="xyz")
    run = ("--basis", "sto-3g", "--json", "--quiet", "--threads", "1")
    found, expected = (
        succeed(call("scan", f"all.{one}", *run, "--overwrite")).json["table"]
        for one in (end, "xyz")
    )
    assert found["mp2_total_energy"] == pytest.approx(expected["mp2_total_energy"], abs=1e-9)
    several = call("run", f"all.{end}", *run)
    assert several.code == 3 and json.loads(several.err)["error"].startswith(
        f"all.{end}: 3 molecules"
    )
    before, _, after = (folder / f"all.{end}").read_text().rpartition("0.900")
    (folder / f"bad.{end}").write_text(f"{before}x.xxx{after}")
    assert f"bad.{end}, frame 3 (line" in call("scan", f"bad.{end}", *run).err
    succeed(call("batch", "run", f"0.{end}", f"2.{end}", *run, "--output", "out"))
    energies = [hdf5.read(f"out/{number}.h5").mp2_total_energy for number in (0, 2)]
    assert energies == pytest.approx(expected["mp2_total_energy"][::2], abs=1e-9)


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
    assert command is not None
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
    assert list(GROUPS) == [
        "Options",
        "Method",
        "SCF",
        "Fitting",
        "Resources",
        "Accelerators",
        "Slurm",
        "AWS Batch",
        "Output",
    ]
    assert isinstance(
        cli.get_command(cli.make_context("dfmp2", [], resilient_parsing=True), "run"),
        GroupedCommand,
    )
    assert COLUMN < 30


def test_headings_are_bold_on_a_terminal_unless_no_color(folder: Path, water: Stored) -> None:
    for arguments, heading in (
        (("run", "--help"), "Method"),
        (("show", str(water.path)), "Energies"),
    ):
        assert f"\x1b[1m{heading}" in on_a_terminal("stdout", *arguments, cwd=folder)
    assert "\x1b" not in on_a_terminal("stdout", "run", "--help", cwd=folder, NO_COLOR="1")


def test_wide_tables_are_shown_in_turns() -> None:
    """No cell is lost, and the first column is repeated to identify the rows."""
    heads = [
        "atom",
        *(f"#{kind} charge, density {k} / e" for kind in ("Mulliken", "Loewdin") for k in range(6)),
    ]
    rows = [(f"{k} C", *(f"{k}.{n:05d}" for n in range(12))) for k in (1, 2)]
    lines = fitted_lines(Table("", heads, rows))
    assert max(map(len, lines)) <= WIDEST and sum(line.startswith("1 C") for line in lines) > 1
    cells = [word for line in lines for word in line.split()]
    assert all(cells.count(cell) == 1 for row in rows for cell in row[1:])
    assert fitted_lines(Table("", heads[:3], [row[:3] for row in rows])) == aligned(
        Table("", heads[:3], [r[:3] for r in rows])
    )


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("run h2o.xyz --basis sto-3g", "h2o.xyz, sto-3g"),
        ("gradient - --basis sto-3g", "standard input, sto-3g"),
        ("optimize h2o.xyz --basis sto-3g", "h2o.xyz, sto-3g"),
        ("energy --from x.prepared.h5", "x.prepared.h5"),
        (
            "batch run 1.xyz 2.xyz 3.xyz 4.xyz --basis sto-3g --output out",
            "1.xyz, 2.xyz, 3.xyz and 1 more, sto-3g",
        ),
        ("validate", ""),
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


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/dfmp2/completion.bash"),
        ("zsh", ".local/share/dfmp2/completion.zsh"),
        ("fish", ".config/fish/completions/dfmp2.fish"),
    ],
)
def test_completion_is_installed_once(
    shell: str, place: str, call: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / f".{shell}rc").write_bytes(b"alias ll='ls -l' # \xe9")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    for _ in range(2):
        assert place in succeed(call("completion", "--install")).out
    script = (home / place).read_text()
    assert "_DFMP2_COMPLETE" in script and script == succeed(call("completion", shell)).out
    start = (home / f".{shell}rc").read_bytes()
    assert start.startswith(b"alias ll='ls -l' # \xe9") and start.count(b"dfmp2") == (
        0 if shell == "fish" else 2
    )
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("no home directory")))
    recorded_failure(call("completion", "--install"), 7)
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert call("completion").code == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dfmp2 run --frozen-c", "plain,--frozen-core"),
        ("dfmp2 run h2o.xyz --reference u", "plain,uhf"),
        ("dfmp2 run h2", "file,h2"),
        ("dfmp2 run h2o.xyz --scf-from h", "file,h"),
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
