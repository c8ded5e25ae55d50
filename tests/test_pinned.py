"""Compatibility with dfmp2 0.1: its files are read, and its JSON keys and options still exist.

`tests/data/written_by_0.1` holds one file of every kind (`commands.sh` says how each was made) and
the output of 0.1: `shown.json.xz` has what `show` printed for each, `json_keys.txt` the keys of
every command that prints JSON, `options.txt` every option of every command with its choices.
Deliberate removals are listed here.
"""

from __future__ import annotations

import csv
import json
import lzma
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
import pytest

import dfmp2
from dfmp2.cli.main import cli
from dfmp2.validation import doctor
from tests.conftest import WRITTEN, Runner, run_command, succeed
from tests.sessions import leaves
from tests.test_visits import names_of_commands

SHOWN: dict[str, dict[str, Any]] = json.loads(
    lzma.decompress((WRITTEN / "shown.json.xz").read_bytes())
)
DROPPED_KEYS: dict[
    str, str
] = {  # command, as in json_keys.txt: its dropped keys, with all below them
    "plan": "transform",  # no longer chosen automatically
    # a slower form of pair_energy; dfmp2 plan counts the programs and calls for a molecule
    "kernels list": "transform kernels.pair_fused b_bytes_by_core buckets neffs programs shapes",
}
DROPPED_OPTIONS: dict[str, str] = {  # command: its dropped options, with all of their choices
    "dfmp2 run": "--ranks --max-restarts",
    "dfmp2 report": "--format",
    "dfmp2 batch submit": "--mount --efs --programs",
    "dfmp2 bench": "--against --auxbasis --basis --charge --frozen-core --molecule --multiplicity "
    "--reference --scaling --scf-auxbasis --scratch --show-scripts --sizes --touch --units",
    "dfmp2 batch "
    "plan": "--fleet --instances --molecule --ranks --measure-tiles --tiles --seed --replay "
    "--store-latency "
    "--hand-out "
    "--overwrite --basis --charge --multiplicity --units --point-charges "
    "--point-charge-units --reference --relativity --scf --scf-auxbasis --scf-conv-tol "
    "--scf-max-cycles --guess --scf-from --scf-starts --stability --auxbasis --frozen-core "
    "--frozen-virtual --os-scale --ss-scale --backend --precision --tolerance --transform --memory "
    "--scratch --threads --allow-small-gap --allow-poor-fit",
    "dfmp2 kernels list": "--basis --shape --beta --target --cores",
    "dfmp2 kernels cost": "--lane --recompile --one-zero-hint",
    "dfmp2 kernels "
    "timeline": "--kernel --shape --target --variant --one-zero-hint --call --begin --length "
    "-h --help",
}
DROPPED_COMMANDS = {"dfmp2 kernels timeline"}

# And one of the runs in it
STUDIES = {"interaction": "complex", "cbs": "cc-pvdz", "scan": "point-001"}
EVERYWHERE = ("uhf", "core-potential", "point-charges", "derived", "from-prepared")
DESCRIBED = (
    "uhf",
    "frozen",
    "core-potential",
    "ghosts",
    "point-charges",
    "x2c",
    "conventional",
    "broken-symmetry",
)


def energy(name: str, which: str = "mp2_total_energy") -> float:
    """The value that 0.1 showed for a result, hartree."""
    value = SHOWN[f"{name}.h5"]["json"][which]
    assert isinstance(value, float)
    return value


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a molecule this small, two threads wait for each other if other tests run at the same
    time."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def key_paths(value: Any, path: str = "") -> Iterator[str]:
    """Every key of a JSON value, as a.b[].c."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}".lstrip(".")
            yield from key_paths(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from key_paths(inner, f"{path}[]")


def missing_parts(old: Any, new: Any) -> Iterator[str]:
    """Places where `new` lacks a number or text of `old`, or has another one."""
    found = dict(leaves(new))
    for path, value in leaves(old):
        expected = value
        if isinstance(value, float):
            expected = pytest.approx(value, rel=1e-13, abs=1e-15)
        if path not in found or found[path] != expected:
            yield f"{path}: {value!r} became {found.get(path, 'nothing')!r}"


def rows_of(table: str) -> list[dict[str, str]]:
    """Rows of a CSV table as dictionaries by column."""
    return list(csv.DictReader(table.splitlines()))


def numbers(text: str) -> set[str]:
    """Every number with a decimal point in a text, except in curves drawn with letters."""
    found = re.findall(
        r"-?\d+\.\d+(?:e[-+]\d+)?", re.sub(r"^.* \|.*$", "", text, flags=re.MULTILINE)
    )
    # An exact zero is printed as 0
    return {number for number in found if "e" not in number or float(number)}


# What 0.1 wrote


@pytest.mark.parametrize("name", SHOWN)
def test_show_prints_what_it_printed(name: str, written: Path, call: Runner) -> None:
    """Same keys and values with --json, same numbers in the report, intact hash."""
    shown = succeed(call("show", str(written / name), "--json", "--verify"))
    missing = set(missing_parts(SHOWN[name]["json"], shown.json))
    if name == "ghosts.h5":  # the fitting errors of a ghost, which are in no sum
        gone = re.compile(r".*_fitting_error/elements/H: .* became 'nothing'")
        missing = {line for line in missing if not gone.fullmatch(line)}
    assert not missing
    pairs = ["--pairs"] if "mp2_correlation_energy" in SHOWN[name]["json"] else []
    report = succeed(call("show", str(written / name), *pairs)).out
    left_out = numbers(SHOWN[name]["text"]) - numbers(report)
    if name == "scan.h5":  # its table has fewer decimals now
        printed = np.array(sorted(numbers(report)), dtype=np.float64)
        left_out = {one for one in left_out if np.abs(printed - float(one)).min() > 5.1e-7}
    if name == "ghosts.h5":
        left_out -= {"-7.4e-05"}  # the fitting error of a ghost, which is in no sum
    assert not left_out


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_result_is_read_everywhere(name: str, written: Path, call: Runner) -> None:
    """Python, derive, report and export give the energies that 0.1 showed."""
    path, total = str(written / f"{name}.h5"), energy(name)
    assert dfmp2.read(path).mp2_total_energy == pytest.approx(total, rel=0, abs=1e-12)

    derived = succeed(call("derive", path, "--os-scale", "1.3", "--json"))
    same, opposite = (
        energy(name, f"mp2_{spin}_spin_correlation_energy") for spin in ("same", "opposite")
    )
    assert derived.json["scaled_mp2_correlation_energy"] == pytest.approx(
        1.3 * opposite + same, rel=0, abs=1e-12
    )

    assert call("report", path, "-o", "page.html").code == 0

    for form in ("molden", "xyz", "qcschema"):
        succeed(call("export", path, "--to", form, "-o", f"exported.{form}"))
    properties = json.loads(Path("exported.qcschema").read_text())["properties"]
    assert properties["mp2_total_energy"] == pytest.approx(total, rel=0, abs=1e-12)


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_result_is_computed_again_by_pyscf(name: str, written: Path, call: Runner) -> None:
    """The stored input, bases and options still describe the whole calculation."""
    assert succeed(call("compare", str(written / f"{name}.h5"), "--json")).json["passed"]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_read_everywhere(name: str, written: Path, call: Runner) -> None:
    """Its table, one of its runs, its page, and the export of a run."""
    path, run = str(written / f"{name}.h5"), STUDIES[name]
    table = succeed(call("show", path, "--csv"))
    if name == "scan":
        assert not list(
            missing_parts(rows_of((WRITTEN / "scan.csv").read_text()), rows_of(table.out))
        )
    assert call("show", path, "--run", run, "--json").json["mp2_total_energy"] < 0
    assert call("report", path, "-o", "page.html").code == 0
    assert call("export", path, "--run", run, "--to", "xyz", "-o", "run.xyz").code == 0


def test_a_prepared_file_is_computed(written: Path, call: Runner) -> None:
    """Pair energies from a B fitted by 0.1 equal those of 0.1."""
    file = str(written / "prepared.h5")
    done = succeed(
        call("energy", "--from", file, "--precision", "fp64", "--output", "e.h5", "--json")
    )
    assert done.json["mp2_total_energy"] == pytest.approx(energy("fp64"), rel=0, abs=1e-11)


def test_orbitals_of_a_result_start_an_scf(written: Path, call: Runner) -> None:
    """And the SCF is converged at once."""
    start = str(written / "rhf.h5")
    asked = ("--basis", "6-31g", "--scf-from", start, "--output", "again.h5", "--json")
    said = succeed(call("run", "h2.xyz", *asked)).json
    assert said["scf_total_energy"] == pytest.approx(
        energy("rhf", "scf_total_energy"), rel=0, abs=1e-9
    )
    assert said["scf_iterations"] <= 3


def test_a_batch_goes_on(written: Path, call: Runner, tmp_path: Path) -> None:
    """Items completed by 0.1 count as complete, its failed item fails again, and its table is the
    same."""
    shutil.copytree(written, tmp_path / "old")
    before = (tmp_path / "old/batch/h2.h5").stat().st_mtime_ns
    status = call("batch", "status", "old/batch.toml", "--json").json
    assert [item["status"] for item in status["items"]] == ["complete", "complete", "failed"]
    assert call("batch", "run", "old/batch.toml", "--quiet").code == 9
    assert (tmp_path / "old/batch/h2.h5").stat().st_mtime_ns == before
    assert call("batch", "collect", "old/batch.toml", "-o", "table.csv").code == 0
    tables = [rows_of(path.read_text()) for path in (WRITTEN / "collected.csv", Path("table.csv"))]
    assert not list(missing_parts(*tables))
    assert call("report", "old/batch", "-o", "batch.html").code == 0


def test_tables_are_what_they_were(written: Path, call: Runner) -> None:
    """`batch collect` and `validate` write the columns of 0.1, to be read without dfmp2."""
    assert call("batch", "collect", str(written / "batch.toml"), "-o", "collected.h5").code == 0
    only = ("--only", "h2o-sto-3g-weigend", "--table", "trnsci", "--quiet")
    assert call("validate", *only, "--output", "validation.h5").code == 0
    for name in ("collected.h5", "validation.h5"):
        with h5py.File(written / name) as old, h5py.File(name) as new:
            datasets: list[str] = []
            old.visititems(lambda path, value, found=datasets: found.append(path))
            assert datasets
            assert all(path in new for path in datasets), name
            assert set(old.attrs) <= set(new.attrs)


# What 0.1 said

CHARGED = ("--point-charges", "charges.txt")
JSON_COMMANDS = {
    "run": (
        "run",
        "h2.xyz",
        "--basis",
        "6-31g",
        "--check",
        "--os-scale",
        "1.1",
        *CHARGED,
        "--json",
    ),
    "run uhf": (
        "run",
        "nh2.xyz",
        "--basis",
        "sto-3g",
        "--scf-starts",
        "2",
        "--overwrite",
        "--json",
    ),
    "prepare": ("prepare", "h2.xyz", "--basis", "6-31g", "--json"),
    "energy": ("energy", "--from", "prepared.h5", "--output", "energy.h5", "--json"),
    "plan": ("plan", "h2.xyz", "--basis", "6-31g", "--json"),
    "derive": ("derive", "rhf.h5", "--json"),
    "compare": ("compare", "rhf.h5", "--json"),
    "compare exact": ("compare", "rhf.h5", "--exact", "--json"),
    "interaction": (
        "interaction",
        "he2.xyz",
        "--fragments",
        "1,2",
        "--basis",
        "cc-pvdz",
        "--output",
        "i.h5",
        "--json",
    ),
    "cbs": ("cbs", "he.xyz", "--basis", "cc-pv[dt]z", "--output", "c.h5", "--json"),
    "scan": (
        "scan",
        "h2.xyz",
        "--bond",
        "1,2",
        "0.7:0.8:3",
        "--basis",
        "6-31g",
        "--output",
        "s.h5",
        "--json",
    ),
    "batch run": ("batch", "run", "batch.toml", "--json"),
    "batch status": ("batch", "status", "batch.toml", "--json"),
    "batch submit slurm": ("batch", "submit", "batch.toml", "--slurm", "--shards", "2", "--json"),
    "validate": ("validate", "--only", "h2o-sto-3g-weigend", "--table", "trnsci", "--json"),
    "doctor": ("doctor", "--json"),
    "backends": ("backends", "--json"),
    "kernels list": ("kernels", "list", "--json"),
    "kernels cost": ("kernels", "cost", "--kernel", "K3", "--shape", "small", "--json"),
    "qcschema": ("qcschema", "input.json"),
}
CODES = {"batch run": 9}
NAMED_BY_FOLDER = re.compile(r"(files)\.[^\[\]]*/")  # keys that are paths


def keys_of(name: str, run: Runner) -> list[str]:
    """Lines of json_keys.txt: the command and a key it prints."""
    done = run(*JSON_COMMANDS[name])
    assert done.code == CODES.get(name, 0), done.err
    found = (NAMED_BY_FOLDER.sub(r"\1.", key) for key in key_paths(json.loads(done.out)))
    return sorted({f"{name}: {key}" for key in found})


@pytest.mark.parametrize("name", JSON_COMMANDS)
def test_json_keys_are_still_there(
    name: str, written: Path, call: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys may be added; only those named in DROPPED_KEYS may disappear."""
    monkeypatch.delitem(doctor.CHECKS, "PyTorch")  # a row like the others, but it takes seconds
    dropped = tuple(f"{name}: {key}" for key in DROPPED_KEYS.get(name, "").split())
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    pinned = [
        line
        for line in (WRITTEN / "json_keys.txt").read_text().splitlines()
        if line.startswith(f"{name}: ")
    ]
    keys = keys_of(name, call)
    assert pinned
    assert not [line for line in pinned if line not in keys and not line.startswith(dropped)]


GROUPS = ("dfmp2", "dfmp2 batch", "dfmp2 kernels")  # of commands


def options_of(command: str, run: Runner) -> list[str]:
    """Lines of options.txt: the command, and its options with each of their choices."""
    done = succeed(run(*command.split()[1:], "--help" if command in GROUPS else "--help-all"))
    found = []
    for line in re.findall(r"^  (-\S.*)$", done.out, re.MULTILINE):
        names = re.findall(r"(?<![^\s/,])--?[a-zA-Z][\w-]*", re.split(r"  +", line)[0])
        found += [f"{command} {name}" for name in names]
        for choices in re.findall(r"^[^ ].*? \[([\w.|-]+\|[\w.|-]+)\]", line):
            found += [f"{command} {names[-1]}={choice}" for choice in choices.split("|")]
    return found + choices_behind_names(command)


def choices_behind_names(command: str) -> list[str]:
    """Lines of choices that are too many for --help to list: methods and backends."""
    entry: Any = cli
    for word in command.split()[1:]:
        entry = entry.get_command(click.Context(entry), word)
    found = []
    for parameter in entry.params:
        if isinstance(parameter.type, click.Choice) and parameter.metavar == "NAME":
            found += [f"{command} {parameter.opts[-1]}={one}" for one in parameter.type.choices]
    return found


def test_options_are_still_there(call: Runner) -> None:
    """Every command, option and choice of 0.1, except DROPPED_OPTIONS."""
    commands = ["dfmp2", *(f"dfmp2 {name}" for name in names_of_commands())]
    found = {line for command in commands for line in (command, *options_of(command, call))}
    dropped = {
        f"{command} {option}"
        for command, options in DROPPED_OPTIONS.items()
        for option in options.split()
    }
    dropped |= DROPPED_COMMANDS
    pinned = (WRITTEN / "options.txt").read_text().splitlines()
    assert not [
        line for line in pinned if line not in found and not {line, line.split("=")[0]} & dropped
    ]


def test_a_fault_in_dfmp2_is_exit_code_1(folder: Path) -> None:
    """It comes with Python's traceback to help find the fault."""
    broken = (
        "import sys, importlib.metadata as m, h5py; h5py.File = None; sys.argv = ['dfmp2', 'show', "
        "'h2.xyz'];sys.exit(next(iter(m.entry_points(group='console_scripts', "
        "name='dfmp2'))).load()())"
    )
    done = run_command(cwd=folder, program=(sys.executable, "-c", broken))
    assert (done.code, "Traceback" in done.err) == (1, True)
