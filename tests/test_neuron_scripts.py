"""The scripts for Trainium without a device: dry runs, refusals, probes on the model and on a stand-in, workflows."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dfmp2.errors import BackendUnavailable, ComparisonFailed, InputError
from dfmp2.trainium import calls
from dfmp2.trainium.calls import SHAPES
from dfmp2.trainium.costs.chips import CHIPS, Assumptions
from dfmp2.trainium.costs.schedule import schedule_call
from dfmp2.trainium.interpreter.lint import lint
from dfmp2.trainium.interpreter.run import Settings
from dfmp2.trainium.launch import compiler, toolchain
from tests.stand_in_nki.site import planted

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))

import neuron_benchmark  # noqa: E402
import probe_neuron  # noqa: E402
import profile_table  # noqa: E402
from neuron_probes import bench  # noqa: E402
from neuron_probes.bench import DeviceBench, ModelBench  # noqa: E402
from neuron_probes.probe import ProbeError  # noqa: E402
from neuron_probes.questions import PROBES  # noqa: E402

KERNELS = ("products", "elementwise", "transfers", "counted_loop")
SHELL = ("run_simulator_tests", "run_neuron_tests", "run_neuron_profile", "run_xla_tests", "bench_neuron")
SHELL += ("install_for_tests",)
NEED_DEVICE = ("run_neuron_tests", "run_neuron_profile", "bench_neuron")
BY_NAME = {probe.name: probe for probe in PROBES}


def shell(name, *arguments, cwd=ROOT):
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", str(SCRIPTS / f"{name}.sh"), *arguments], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("name", [*SHELL, "neuron_host"])
def test_shell_scripts_are_sound(name):
    path = SCRIPTS / f"{name}.sh"
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0
    if shutil.which("shellcheck"):
        found = subprocess.run(["shellcheck", "-x", str(path)], cwd=ROOT, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("name", SHELL)
def test_help_names_every_option_and_exit_code(name):
    done = shell(name, "--help")
    assert done.returncode == 0
    options = set(re.findall(r"^    (--[a-z]+)[ )|]", (SCRIPTS / f"{name}.sh").read_text(), flags=re.M)) - {"--help"}
    assert options
    for option in options:
        assert option in done.stdout
    assert f"scripts/{name}.sh" in done.stdout and "Exit codes: 0, " in done.stdout
    assert os.access(SCRIPTS / f"{name}.sh", os.X_OK)


@pytest.mark.parametrize("name", SHELL)
def test_unknown_options_and_missing_values_are_refused(name):
    for wrong in (("--frobnicate",), ("--lane",) if "lane" in shell(name, "--help").stdout else ("--folder",)):
        done = shell(name, *wrong)
        assert done.returncode == 2 and name in done.stderr
        assert "--help" in done.stderr


@pytest.mark.parametrize("name", SHELL)
def test_a_dry_run_shows_commands_that_exist_and_leaves_nothing(name, tmp_path):
    arguments = {"run_neuron_tests": ("--everything",), "bench_neuron": ("--shapes", "small")}.get(name, ())
    done = shell(name, "--dry-run", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = done.stderr + done.stdout
    files = re.findall(r"(?:scripts|tests|inputs)/[\w./-]+\.(?:py|sh|xyz)", shown)
    assert files or name in ("bench_neuron", "install_for_tests")
    for file in files:
        assert (ROOT / file).is_file(), file
    assert list(tmp_path.iterdir()) == []


def test_one_command_runs_tests_probes_profile_and_benchmark(tmp_path):
    shown = shell("run_neuron_tests", "--dry-run", "--everything", cwd=tmp_path).stderr
    order = ["doctor", "kernels warmup", "kernels check", "--require nki", "--backend nki --check", "probe_neuron.py"]
    places = [shown.index(word) for word in [*order, "run_neuron_profile.sh", "bench_neuron.sh"]]
    assert places == sorted(places)
    xla = shell("run_neuron_tests", "--dry-run", "--lane", "nki-xla", cwd=tmp_path).stderr
    assert "-m nki_xla --require nki_xla" in xla


@pytest.mark.skipif(bool(list(Path("/dev").glob("neuron[0-9]*"))), reason="there is a Neuron device here")
@pytest.mark.parametrize("name", NEED_DEVICE)
def test_without_a_device_a_script_says_so(name, tmp_path):
    done = shell(name, cwd=tmp_path)
    assert done.returncode == 6
    assert "there is no Neuron device" in done.stderr and "--dry-run" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_environments_are_not_made_inside_the_source_tree():
    done = shell("run_xla_tests", "--folder", "venv")
    assert done.returncode == 2 and "lies in the source tree" in done.stderr


def test_the_simulator_needs_the_package_and_says_where_it_comes_from():
    if toolchain.refusal("nki-simulator") is None:
        pytest.skip("nki is installed here")
    done = shell("run_simulator_tests")
    assert done.returncode == 6
    assert "nki is not installed: install it from AWS's own package index" in done.stderr


# Probes


@pytest.mark.parametrize("name", KERNELS)
def test_probe_kernels_keep_to_the_common_subset(name):
    path = SCRIPTS / "neuron_probes" / f"{name}.py"
    lint(path.read_text(), path.name)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """All nine probes on the model, through the command."""
    file = tmp_path_factory.mktemp("probes") / "probes.json"
    assert probe_neuron.main(["--dry-run", "--json", str(file)]) == 0
    return {found["probe"]: found for found in json.loads(file.read_text())}


def test_the_model_predicts_what_the_documentation_says(rehearsal):
    assert list(rehearsal) == [f"P{number}" for number in range(1, 10)]
    predicted = {name: found["predicted"] for name, found in rehearsal.items()}
    assert set(predicted["P1"].values()) == {1.0}  # float32 arithmetic keeps 2^-14 and 2^-20
    assert predicted["P2"]["dense, cycles per row"] == pytest.approx(4, abs=1e-9)
    assert predicted["P2"]["largest relative error of 12 x 128 terms"] < 1e-6
    assert max(predicted["P3"].values()) < 1.5 * 2.0**-23
    per_element = {name: value for name, value in predicted["P4"].items() if name.endswith("per element")}
    assert list(per_element.values()) == pytest.approx([8, 1, 2, 1])
    besides = [value for name, value in predicted["P4"].items() if name.endswith("besides")]
    assert besides == pytest.approx([100, 100, 100, 64])
    for runs, size in (("24.6 kB", 24_576), ("1.3 kB", 1_344)):
        assert predicted["P5"][f"{runs} runs, static, GB/s"] == pytest.approx(272 * size / (size + 512), rel=2e-3)
    assert (predicted["P7"]["programs for 3 blocks"], predicted["P7"]["programs for 5 blocks"]) == (2, 0)
    assert set(predicted["P8"].values()) == {None}
    assert predicted["P9"]["blocks right / blocks"] == 1.0


def test_a_dry_run_claims_no_measurement(rehearsal, capsys):
    assert all(found["measured"] is None and found["decision"] is None for found in rehearsal.values())
    assert probe_neuron.main(["--dry-run", "--only", "P9"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("dry run: predicted") and "nothing was measured" in printed
    assert "would decide" in printed and "    decides" not in printed


def test_every_constant_that_a_probe_settles_exists(rehearsal):
    places = set()
    for probe in PROBES:
        predicted = {k: math.nan if v is None else v for k, v in rehearsal[probe.name]["predicted"].items()}
        places |= {setting.place for setting in probe.decide(predicted).settles}
    assert len(places) >= 12
    for place in places:
        module, _, name = place.partition(":")
        if ".kernels." in module:  # cannot be imported without nki
            assert re.search(
                rf"^(def )?{name}\b", (ROOT / module.replace(".", "/")).with_suffix(".py").read_text(), re.M
            )
            continue
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part, None) or getattr(found, "__dataclass_fields__", {}).get(part)
        assert found is not None, place


def test_rounded_products_are_recognised():
    numbers = BY_NAME["P1"].ask(ModelBench(Settings(pe_model="bf16prod")))
    assert numbers["bfloat16 excess / expected"] == 0.0 and numbers["float32 excess / expected"] == 1.0
    decision = BY_NAME["P1"].decide(numbers)
    assert "splitting float32 into halves gains nothing" in decision.text
    assert decision.settles[0].value == '"bf16prod"'


DECISIONS = [
    ("P1", {"float32 excess / expected": 0.0}, "stop here"),
    ("P2", {"hinted, cycles per row": 2.0}, "halves the cost"),
    ("P2", {"dense, cycles per row": 1.02, "largest relative error of 12 x 128 terms": 3e-3}, "1 passes in place of 4"),
    ("P3", {"Vector reciprocal, largest relative error": 2e-3}, "too coarse (more than 2.4e-07): Vector reciprocal"),
    ("P3", {"Scalar copy + bias, largest relative error": math.nan}, "Scalar copy + bias"),
    ("P4", {"multiply from PSUM, cycles per element": 2.0}, "saves nothing"),
    ("P5", {"24.6 kB runs, unknown, GB/s": 290.0, "1.3 kB runs, unknown, GB/s": 220.0}, "let the compiler choose"),
    ("P6", {"pair block, each further call, ms": 4.0}, "dispatch adds to every call"),
    ("P7", {"programs for 5 blocks": 15.0}, "something of a molecule is compiled in"),
    ("P7", {"programs for 3 blocks": math.nan}, "does not count"),
    ("P8", {"medium, edge 8, s": 30.0, "medium, edge 8, GiB": 3.0}, "within 600 s and 24 GiB: medium, edge 8"),
    ("P8", {"medium, edge 8, s": 700.0, "medium, edge 8, GiB": 3.0}, "even the default block is too large"),
    ("P9", {"blocks right / blocks": 0.125}, "keep static blocks"),
]


@pytest.mark.parametrize(("name", "changed", "told"), DECISIONS, ids=[f"{n}-{t[:20]}" for n, _, t in DECISIONS])
def test_other_numbers_decide_otherwise(rehearsal, name, changed, told):
    predicted = {k: math.nan if v is None else v for k, v in rehearsal[name]["predicted"].items()}
    assert told in BY_NAME[name].decide(predicted | changed).text
    assert told not in BY_NAME[name].decide(predicted).text


def test_the_rate_of_transfers_is_fitted_through_two_points():
    rates = {"24.6 kB": 100 * 24_576 / (24_576 + 900), "1.3 kB": 100 * 1_344 / (1_344 + 900)}
    numbers = {f"{runs} runs, {mode}, GB/s": v for runs, v in rates.items() for mode in ("static", "unknown")}
    settled = {s.place.partition(":")[2]: s.value for s in BY_NAME["P5"].decide(numbers).settles}
    assert settled["Chip.dma"].startswith("6.2 ") and settled["Assumptions.dma_half"].startswith("900 ")


def test_probes_without_a_device_are_refused(capsys):
    assert probe_neuron.main([]) == 6
    assert "lane nki cannot be used" in capsys.readouterr().err
    assert probe_neuron.main(["--dry-run", "--only", "P1,P11"]) == 1
    assert "no probe 'P11': expected one or more of P1, P2" in capsys.readouterr().err


def test_a_lane_that_compiles_in_every_call_answers_no_question_of_time(capsys):
    assert [probe.name for probe in probe_neuron.choose(None, "nki-call")] == ["P1", "P3", "P9"]
    assert probe_neuron.main(["--only", "P5,P1", "--lane", "nki-call"]) == 1
    assert "P5: lane nki-call compiles in every call" in capsys.readouterr().err


def test_a_probe_that_hangs_is_ended():
    with pytest.raises(ProbeError, match="no answer within 0 s"):
        probe_neuron.answer_of(["--dry-run"], {}, 0.3)


def test_a_probe_that_fails_is_reported_and_the_others_go_on(monkeypatch, capsys):
    monkeypatch.setattr(probe_neuron, "require_device", lambda lane: None)
    assert probe_neuron.main(["--only", "P9"]) == 1  # its process finds no device
    printed = capsys.readouterr().out
    assert "FAILED after" in printed and "there is no Neuron device" in printed
    assert "decides" not in printed


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The stand-in of AWS's packages, with the probes' kernels within reach of its compiler."""
    with planted(tmp_path, monkeypatch) as site:
        site.sound()
        monkeypatch.setenv("PYTHONPATH", f"{SCRIPTS}:{os.environ['PYTHONPATH']}")
        monkeypatch.setattr(DeviceBench, "few", 4)
        monkeypatch.setattr(DeviceBench, "many", 12)
        monkeypatch.setattr(bench, "WARM", 1)
        yield site
    for name in KERNELS:
        sys.modules.pop(f"neuron_probes.{name}", None)


CHAIN = (
    "neuron_probes.elementwise",
    "copies",
    {"x": np.ones((128, 64), np.float32)},
    "rounds",
    lambda found, turns: bool((found == 1).all()),
)


@pytest.mark.parametrize("lane", ["nki", "nki-xla"])
def test_a_device_is_asked_what_the_model_is_asked(machine, lane):
    """The stand-in computes like the interpreter, so that numbers agree and times are all that differs."""
    for name in ("P1", "P9"):
        assert probe_neuron.ask_here(BY_NAME[name], lane) == BY_NAME[name].ask(ModelBench())
    device = DeviceBench(probe_neuron.executors.executor(lane), probe_neuron.compile_apart)
    assert math.isfinite(device.nanoseconds(*CHAIN))
    assert device.calls(*CHAIN[:2], {**CHAIN[2], "rounds": 1}, 3) > 0.0


def test_programs_are_counted_as_they_are_loaded(machine):
    device = DeviceBench(probe_neuron.executors.executor("nki"), probe_neuron.compile_apart)
    machine.patch.setattr(bench, "EDGE", 9)  # nine orbitals in each of `blocks`: two blocks of the kernels
    assert device.programs(1) == 2.0
    assert device.programs(1) == 0.0


def test_wrong_numbers_make_a_time_worthless(machine):
    machine.fault("wrong-numbers")
    with pytest.raises(ProbeError, match="the device did not compute what the kernel says"):
        DeviceBench(probe_neuron.executors.executor("nki"), probe_neuron.compile_apart).nanoseconds(*CHAIN)


def test_compile_time_and_memory_are_those_of_the_compiler_process(machine):
    done = probe_neuron.compile_here(16, 112, 384, 8)
    assert done["seconds"] > 0.0 and 20e6 < done["peak"] < 2e9
    machine.fault("compiler-refuses")
    machine.patch.setenv("DFMP2_NEFF_CACHE", str(machine.folder / "other"))
    assert probe_neuron.main(["--compile", "16,112,384,8"]) == 6


# Profile and benchmark


def summary(call, total):
    """A profile in which every engine does what was predicted."""
    _, account, _ = schedule_call(call, CHIPS["trn1"], Assumptions())
    found = {"total_time": total, "hbm_read_bytes": account.bytes_read, "hbm_write_bytes": account.bytes_written}
    for engine in profile_table.ENGINES:
        found[f"{engine}_engine_active_time"] = account.busy[engine] / 1e9
        found[f"{engine}_engine_active_time_percent"] = account.busy[engine] / 1e9 / total
    return found, account


def test_the_profile_table_compares_with_the_prediction(tmp_path, capsys):
    off, diagonal = calls.pair_energy_calls(*SHAPES["small"])
    first, account = summary(off, 0.5e-3)
    second, _ = summary(diagonal, 0.1e-3)
    for number, found in enumerate(({"profile-1": first}, second)):  # both forms that releases have
        (tmp_path / f"{number}.json").write_text(json.dumps(found))
    assert profile_table.main(["--shape", "small", str(tmp_path / "0.json"), str(tmp_path / "1.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("pair_energy_block, off-diagonal: 0.500 ms measured, ")
    tensor = lines[2].split()
    assert tensor[0] == "tensor" and tensor[1] == tensor[2] == f"{account.busy['tensor'] / 1e6:.3f}"
    assert any(line.strip().startswith("the Tensor Engine waits") for line in lines)
    assert any(f"HBM: {account.bytes_read} bytes read ({account.bytes_read} predicted)" in line for line in lines)
    assert any(line.startswith("pair_energy_block, diagonal: 0.100 ms") for line in lines)


def test_files_that_are_no_profile_are_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    assert profile_table.main(["--shape", "small", str(tmp_path / "x.json")]) == 3
    assert "has no total_time" in capsys.readouterr().err
    assert profile_table.main([]) == 3
    with pytest.raises(InputError, match="kernels warmup --shape small"):
        profile_table.compiled("small")


def test_the_profile_takes_the_programs_that_runs_launch(machine):
    from dfmp2.trainium.entry import compile_ahead
    from dfmp2.trainium.launch.compiler import NeffCache

    compile_ahead((SHAPES["small"],), "trn1")
    files = profile_table.compiled("small")
    assert len(files) == 2 and all(Path(file).suffix == ".neff" for file in files)
    assert Path(files[0]).is_relative_to(NeffCache(machine.folder / "neff").folder)
    assert compiler.compiler_versions()["nki"] == "0.5.0"


def test_the_benchmark_times_three_phases_and_proves_what_ran(tmp_path, capsys):
    file = tmp_path / "b.json"
    options = [
        "--lane",
        "nki-interpreter",
        "--shapes",
        "3/5/10",
        "--repeats",
        "2",
        "--json",
        str(file),
        "--without-torch",
    ]
    assert neuron_benchmark.main(options) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("REHEARSAL on the interpreter: nothing of this is a time of a device")
    found = json.loads(file.read_text())
    one = found["shapes"]["3/5/10"]
    assert found["rehearsal"] is True
    for kind in ("cold", "fresh"):
        assert one[kind]["process"] > one[kind]["first"] > 0.0 and len(one[kind]["warm"]) == 1
        assert one[kind]["proof"]["lane"] == "interpreter"
        assert one[kind]["proof"]["kernel launches"] == "2"
        assert abs(one[kind]["difference"]) < 1e-6
    assert one["predicted"]["calls"] == 1


def test_the_benchmark_runs_the_lanes(machine):
    found = neuron_benchmark.phase("nki", "9/5/10", 2)
    assert found["proof"]["lane"] == "nki" and found["proof"]["kernel launches"] == "6"
    assert found["proof"]["programs"] == "2 launched, 2 compiled now, 0 found in the cache"
    again = neuron_benchmark.phase("nki", "9/5/10", 2)
    assert again["proof"]["programs"] == "2 launched, 0 compiled now, 2 found in the cache"
    with pytest.raises(ComparisonFailed, match="its time means nothing"):
        neuron_benchmark.judge("9/5/10", {"fresh": {"difference": math.nan}})


def test_the_benchmark_refuses_before_it_measures(tmp_path, capsys):
    assert neuron_benchmark.main(["--repeats", "1"]) == 3
    assert neuron_benchmark.main(["--shapes", "tiny", "--dry-run"]) == 3
    assert "--shape 'tiny'" in capsys.readouterr().err
    with pytest.raises(BackendUnavailable, match="--dry-run shows"):
        neuron_benchmark.refuse("nki")
    assert neuron_benchmark.main(["--shapes", "small", "--dry-run"]) == 0
    assert "(floor 0.06)" in capsys.readouterr().out  # 136 pairs, 112^2 x 384, 4 passes, 128^2 at 2.8 GHz


# Workflows


def workflow(name):
    yaml = pytest.importorskip("yaml")
    return yaml.load((ROOT / ".github/workflows" / f"{name}.yml").read_text(), Loader=yaml.BaseLoader)


def steps(found):
    return [step for job in found["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", ["cpu", "simulator", "hardware"])
def test_workflows_are_well_formed_and_call_what_exists(name):
    found = workflow(name)
    assert set(found) <= {"name", "on", "permissions", "concurrency", "jobs"}
    assert found["permissions"] == {"contents": "read"}
    called = []
    for job in found["jobs"].values():
        assert {"runs-on", "timeout-minutes", "steps"} <= set(job)
    for step in steps(found):
        assert ("uses" in step) != ("run" in step)
        called += re.findall(r"scripts/[\w./*-]+", step.get("run", ""))
    assert called
    for script in called:
        assert list(ROOT.glob(script)), script
        if "*" not in script:
            assert os.access(ROOT / script, os.X_OK), script
    for option in re.findall(r"(scripts/\w+\.sh)([^\n|]*)", "\n".join(step.get("run", "") for step in steps(found))):
        for word in re.findall(r"--[a-z]+", option[1]):
            assert f"    {word})" in (ROOT / option[0]).read_text(), option


def test_three_gates():
    cpu, simulator, hardware = (workflow(name) for name in ("cpu", "simulator", "hardware"))
    matrix = cpu["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    assert {*matrix["constraints"], *(row["constraints"] for row in matrix["include"])} == {
        "pinned",
        "newest",
        "oldest",
    }
    assert {"push", "pull_request"} <= set(cpu["on"])
    assert simulator["jobs"]["simulator"]["if"] == "vars.NEURON_PIP_INDEX != ''"
    [step] = [step for step in simulator["jobs"]["simulator"]["steps"] if "run" in step]
    assert step["env"]["NEURON_PIP_INDEX"] == "${{ vars.NEURON_PIP_INDEX }}"  # no address in the repository
    assert list(hardware["on"]) == ["workflow_dispatch"]
    assert hardware["jobs"]["trn1"]["runs-on"] == ["self-hosted", "linux", "trn1"]
    assert "amazonaws" not in "".join(path.read_text() for path in (ROOT / ".github").rglob("*.yml"))
