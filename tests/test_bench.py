"""`bench --molecule`: child processes measured from outside, peers given the same calculation, nothing left behind."""

from __future__ import annotations

import ast
import json
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dfmp2.bench import process
from dfmp2.bench.machine import Machine
from dfmp2.bench.peers import psi4_times
from dfmp2.bench.process import Child
from dfmp2.bench.pyscf_script import pyscf_script
from dfmp2.bench.race_report import MEASURES, compared, judge, to_json, to_text
from dfmp2.bench.race_values import Calculation, Outcome, Race, Run, Stages
from dfmp2.bench.spread import exponent, ratios, spread
from dfmp2.errors import BackendError, ComparisonFailed
from dfmp2.io import hdf5
from tests.conftest import COMMAND, Runner, Stored, listing

DATA = Path(__file__).parent / "data" / "psi4"
MACHINE = Machine("test processor", 2, 10**10, {"dfmp2": "0"}, "2026-01-01T00:00:00+00:00", 0.0, 0.0)


def python(*code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", *code]


# --- numbers ---


def test_exponent_of_a_power_law_and_of_too_few_sizes():
    sizes = [58.0, 106.0, 202.0, 490.0]
    assert exponent(sizes, [3e-9 * n**2.5 for n in sizes]) == pytest.approx(2.5)
    assert exponent([10, 10], [1, 2]) is None
    assert exponent([10, 20], [0.0, 2]) is None  # a stage too short to be seen has no exponent


def test_ratios_are_taken_run_by_run():
    # The machine was twice as slow in the second round: the medians' ratio would be the same, the range would not.
    assert ratios([1.0, 2.0, 1.0], [2.0, 4.0, 2.0]) == spread([0.5])
    assert spread([3.0, 1.0, 2.0, 10.0]).median == 2.5


# --- child processes ---


def test_a_child_is_measured_alone(tmp_path: Path):
    """The peak of a process that is large itself must not appear in that of a small child."""
    ballast = np.ones(50_000_000)  # 400 MB
    small = process.run_child(python("import time; time.sleep(0.3)"), tmp_path, {})
    large = process.run_child(python("x = b'x' * 200_000_000"), tmp_path, {})
    assert ballast[-1] == 1.0
    assert small.code == 0 and 0.3 <= small.wall < 3.0 and small.cpu < 0.25
    assert small.peak < 60e6
    assert 200e6 < large.peak < 260e6


def test_a_busy_child_is_not_foreign(tmp_path: Path):
    burn = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.5: pass"
    child = process.run_child(python(burn), tmp_path, {})
    assert 0.45 < child.cpu < 1.0
    # Others may be at work on this machine, but never with more than all of its cores.
    assert child.foreign <= (os.cpu_count() or 1) * child.wall - child.cpu + 0.1


def test_exit_code_output_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYSCF_EXT_PATH", "PSIPATH"):
        monkeypatch.setenv(name, "7")
    show = "import os, sys; print([k for k in os.environ if '7' == os.environ[k]], os.environ['TMPDIR']); sys.exit(3)"
    child = process.run_child(python(show), tmp_path, {"OMP_NUM_THREADS": "1", "HOME": process.FOLDER})
    assert child.code == 3
    assert child.output.split() == ["[]", str(tmp_path)]
    assert process.environment(tmp_path, {"HOME": process.FOLDER})["HOME"] == str(tmp_path)
    with pytest.raises(BackendError, match="no-such-program cannot be started"):
        process.run_child(["no-such-program"], tmp_path, {})


# --- what the peers are given and say ---


def test_the_pyscf_script_names_both_fitting_sets_and_our_convergence(water: Stored):
    result = hdf5.read(water.path)
    text = pyscf_script(result, "molecule.xyz", None)
    tree = ast.parse(text)
    assigned = {ast.unparse(n.targets[0]): ast.unparse(n.value) for n in ast.walk(tree) if isinstance(n, ast.Assign)}
    # The energy change and gradient norm at which dfmp2 stops by default.
    assert float(assigned["mf.conv_tol"]) == result.options.scf_conv_tol == 1e-10
    assert float(assigned["mf.conv_tol_grad"]) == 1e-6 == pytest.approx(result.options.scf_gradient_tol)
    calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert "scf.RHF(mol).density_fit(auxbasis='def2-universal-jkfit')" in calls
    assert "dfmp2_native.DFRMP2(mf, frozen=0, auxbasis='def2-svp-ri')" in calls
    assert "max_memory" not in text and "max_memory=2000" in pyscf_script(result, "molecule.xyz", 2 * 10**9)


def test_sets_pyscf_cannot_name_go_in_as_numbers(radical: Stored):
    result = hdf5.read(radical.path)
    foreign = {s: replace(e, source="elsewhere") for s, e in result.mp2_fitting.elements.items()}
    text = pyscf_script(replace(result, mp2_fitting=replace(result.mp2_fitting, elements=foreign)), "m.xyz", None)
    assert "scf.UHF(mol)" in text and "spin=1" in text and "frozen=1" in text
    [call] = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and "DFUMP2" in ast.unparse(n.func)]
    data = ast.literal_eval(call.keywords[-1].value)
    assert sorted(data) == ["H", "N"]
    assert data["H"][0][1][0] == result.mp2_fitting.elements["H"].shells[0][1][0]


def test_psi4_timers_are_counted_once():
    times = psi4_times((DATA / "bench-h2o.timer").read_text())
    assert times["DFH: sparsity prep"] == 0.014 and times["DFMP2 Aia"] == 0.010
    assert "DFMP2 (A|mn)" not in times and "SAD Guess" not in times  # inside of others
    assert sum(times.values()) == pytest.approx(0.073)


def test_a_race_with_pyscf(dfmp2: Runner, water: Stored, tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = set(listing(tmp_path))
    arguments = ("--basis", "sto-3g", "--against", "pyscf", "--precision", "fp64", "--repeats", "2", "--json", "-")
    done = dfmp2("bench", "--molecule", "h2o.xyz", *arguments, "--threads", "1", "--scratch", str(scratch), "--quiet")
    assert done.code == 0, done.err
    found = done.json
    assert list(found["lanes"]) == ["dfmp2 fp64", "pyscf"]
    assert [run["lane"] for run in found["runs"]] == ["dfmp2 fp64", "pyscf"] * 2
    ours, theirs = found["runs"][:2]
    for run in (ours, theirs):  # the stored result was computed in another run, with PySCF's check
        outcome = run["outcome"]
        assert outcome["scf_energy"] == pytest.approx(water.json["scf_total_energy"], abs=1e-9)
        assert outcome["correlation_energy"] == pytest.approx(water.json["mp2_correlation_energy"], abs=1e-7)
        assert outcome["sizes"] == [7, water.json["sizes"]["naux"], 5, 2]
        stages = outcome["stages"]
        assert stages["scf"] > 0 and sum(stages.values()) < run["child"]["wall"]
        assert 50e6 < run["child"]["peak"] < 300e6
    ratio = found["ratios"]["dfmp2 fp64 / pyscf"]["total"]
    walls = [run["child"]["wall"] for run in found["runs"]]
    assert ratio["low"] == pytest.approx(min(walls[0] / walls[1], walls[2] / walls[3]))
    assert abs(found["differences"]["dfmp2 fp64 - pyscf"]["correlation"]) < 1e-8
    assert "mf.conv_tol_grad = 1e-06" in found["scripts"]["pyscf"]
    assert found["machine"]["cores"] >= 1 and found["load_average_after"] >= 0
    assert set(listing(tmp_path)) == before


# --- the verdict ---


def race(correlation: float, wall: float = 2.0) -> Race:
    def run(lane: str, seconds: float, energy: float) -> Run:
        child = Child(seconds, seconds, 0.0, 10**8, 0, "")
        stages = Stages(seconds / 2, seconds / 4, 0.001)
        return Run(lane, child, Outcome(lane, -76.0, energy, (7, 84, 5, 2), stages, {}, 9, ""), "")

    calculation = Calculation("sto-3g", 2, None, ())
    runs = (run("dfmp2", 1.0, -0.2), run("pyscf", wall, -0.2 + correlation))
    return Race(MACHINE, "water", calculation, runs * 2, 0, 0.0)


def test_energies_that_differ_are_refused_only_beyond_the_tolerance():
    judge(race(0.9e-7))
    with pytest.raises(ComparisonFailed, match=r"E\(corr\) of dfmp2 and pyscf differ by -1.1e-07 Eh"):
        judge(race(1.1e-7))


def test_ratios_of_stages_too_short_to_measure_are_left_out():
    found = race(0.0, wall=4.0)
    assert compared(found, "dfmp2", "pyscf", MEASURES["total"]) == spread([0.25])
    assert compared(found, "dfmp2", "pyscf", MEASURES["pair energies"]) is None
    row = next(line for line in to_text(found).splitlines() if line.startswith("dfmp2 / pyscf"))
    assert row.split()[3:] == ["0.25", "0.25", "0.25", "-", "0.25", "1.00"]  # rest: 0.249 / 0.999
    assert json.loads(to_json(found))["ratios"]["dfmp2 / pyscf"]["pair energies"] is None


# --- programs that are missing, fail or never end ---


def fake_psi4(folder: Path, body: str) -> dict[str, str]:
    """A program named psi4 first on PATH."""
    programs = folder / "programs"
    programs.mkdir()
    program = programs / "psi4"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    scratch = folder / "tmp"
    scratch.mkdir()
    return {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(scratch)}


RACE = (
    "bench",
    "--molecule",
    "h2.xyz",
    "--basis",
    "sto-3g",
    "--against",
    "psi4",
    "--precision",
    "fp64",
    "--threads",
    "1",
)


def test_a_peer_that_fails_is_quoted(dfmp2: Runner, folder: Path):
    env = fake_psi4(folder, "echo 'Fatal Error: out of ideas'; exit 2")
    done = dfmp2(*RACE, "--json", "out.json", env=env)
    assert done.code == 6
    assert "psi4 failed (exit code 2): Fatal Error: out of ideas" in done.message
    assert "apt-get install psi4" in done.message
    assert not (folder / "out.json").exists() and not list((folder / "tmp").iterdir())


def ended(pid: int) -> bool:
    """Whether a process is gone, or dead and only waiting for its parent's notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_ends_the_peer_and_leaves_nothing(folder: Path, number: signal.Signals, code: int):
    env = fake_psi4(folder, f"echo $$ > {folder}/pid; exec sleep 60")
    running = subprocess.Popen(
        [str(COMMAND), *RACE],
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not ((folder / "pid").exists() and (folder / "pid").read_text().strip()):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert running.returncode == code and not out
    assert "Traceback" not in err
    peer, patience = int((folder / "pid").read_text()), time.monotonic() + 10  # it was killed, and may still be dying
    while not ended(peer):
        assert time.monotonic() < patience
        time.sleep(0.05)
    assert not list((folder / "tmp").iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 3, "exactly one of --molecule"),
        (("--gemm", "--scaling"), 3, "--scaling and --gemm: give exactly one"),
        (("--molecule", "h2.xyz"), 3, "--molecule needs --basis"),
        (("--molecule", "absent.xyz", "--basis", "sto-3g"), 3, "absent.xyz: no such file"),
        (("--molecule", "h2.xyz", "--basis", "sto-3g", "--against", "orca"), 3, "--against 'orca': expected"),
        (("--molecule", "h2.xyz", "--basis", "sto-3g", "--precision", "fp16"), 3, "--precision 'fp16'"),
        (("--molecule", "h2.xyz", "--basis", "sto-3g", "--scratch", "absent"), 3, "--scratch absent: there is no such"),
        (("--molecule", "h2.xyz", "--basis", "sto-3g", "--memory", "0GB"), 3, "more than zero bytes"),
        (("--molecule", "h2.xyz", "--basis", "sto-3g", "--json", "absent/out.json"), 3, "--json absent/out.json"),
        (("--molecule", "h2.xyz", "--basis", "sto-3g", "--json", "h2.xyz"), 3, "--json names another file"),
        (("--shape", "huge"), 3, "--shape 'huge': expected one of small, medium"),
        (("--shape", "50/0/840"), 3, "--shape '50/0/840': expected one of"),
        (("--shape", "small", "--sizes", "4"), 3, "--sizes does not belong to --shape"),
        (("--shape", "small", "--backend", "nki"), 3, "nki lanes are never timed here"),
        (("--shape", "w60", "--backend", "cpu"), 6, "timed on a GPU only"),
        (("--shape", "w30", "--memory", "1GB"), 7, " GB and 1.00 GB may be used"),
        (("--gemm", "--repeats", "0"), 3, "--repeats 0: expected a whole number"),
        (("--gemm", "--threads", "0"), 3, "--threads 0: expected a whole number"),
        (("--scaling", "--sizes", "10,1"), 3, "expected carbon atoms from 2 to 1000"),
        (("--scaling", "--precision", "auto,fp64"), 3, "--scaling takes one of"),
        (("--speed",), 2, "No such option"),
    ],
)
def test_what_is_refused(call: Runner, folder: Path, arguments: tuple[str, ...], code: int, text: str):
    before = listing(folder)
    done = call("bench", *arguments)
    assert (done.code, done.out) == (code, "")
    assert text in done.message
    assert listing(folder) == before


def test_psi4_that_is_not_there(call: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    done = call("bench", "--molecule", "h2.xyz", "--basis", "sto-3g", "--against", "psi4")
    assert done.code == 6 and "apt-get install psi4" in done.message


def test_an_unknown_basis_is_our_own_error(dfmp2: Runner):
    done = dfmp2("bench", "--molecule", "h2.xyz", "--basis", "nope", "--precision", "fp64", "--repeats", "1")
    assert done.code == 3 and "--basis nope: no basis set of this name" in done.message
