"""The scripts for Trainium without a device: dry runs, refusals, probes on the model and on a stand-in, workflows."""

from __future__ import annotations

import importlib
import itertools
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
from dfmp2.trainium.costs.schedule import schedule_call

from dfmp2.errors import ComparisonFailed
from dfmp2.trainium import calls
from dfmp2.trainium.calls import SHAPES
from dfmp2.trainium.costs.chips import CHIPS, Assumptions
from dfmp2.trainium.interpreter.lint import lint
from dfmp2.trainium.interpreter.rules import Settings
from tests.stand_in_nki.site import planted

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))

import draw_pair  # noqa: E402
import neuron_benchmark  # noqa: E402
import probe_neuron  # noqa: E402
import profile_table  # noqa: E402
from neuron_probes import bench, rates  # noqa: E402
from neuron_probes.bench import DeviceBench, ModelBench  # noqa: E402
from neuron_probes.probe import ProbeError  # noqa: E402
from neuron_probes.questions import PROBES  # noqa: E402

KERNELS = (
    "products",
    "elementwise",
    "transfers",
    "counted_loop",
    "residents",
)  # biases breaks a rule on purpose
SHELL = ("run_xla_tests", "install_for_tests")
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
        found = subprocess.run(
            ["shellcheck", "-x", str(path)], cwd=ROOT, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("name", SHELL)
def test_a_dry_run_shows_commands_that_exist_and_leaves_nothing(name, tmp_path):
    done = shell(name, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_files(done.stderr + done.stdout, some=name != "install_for_tests")
    assert list(tmp_path.iterdir()) == []


def check_files(shown, *, some):
    """Every file of the repository that is named exists."""
    files = re.findall(r"(?:scripts|tests|inputs)/[\w./-]+\.(?:py|sh|xyz)", shown)
    assert files or not some
    for file in files:
        assert (ROOT / file).is_file(), file


def test_one_command_shows_all_steps_in_their_order(tmp_path):
    command = [sys.executable, str(SCRIPTS / "neuron_first_day.py"), "--dry-run"]
    done = subprocess.run(
        [*command, "--lane", "nki"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    check_files(done.stdout, some=True)
    order = [
        "--ask machine",
        "--ask predictions",
        "--ask smallest",
        "P1,P3,P10,P11,P12",
        "--backend nki --check",
    ]
    order += [
        "--shapes medium",
        "--shapes large",
        "kernels check",
        "--capture medium",
        "P2,P4",
        "--require nki",
        "P8",
    ]
    places = [done.stdout.index(word) for word in order]
    assert places == sorted(places) and list(tmp_path.iterdir()) == []
    bad = subprocess.run(
        [*command, "--only", "wather"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert bad.returncode == 2 and "--only wather: expected beginnings of machine" in bad.stderr


# Probes


@pytest.mark.parametrize("name", KERNELS)
def test_probe_kernels_keep_to_the_common_subset(name):
    path = SCRIPTS / "neuron_probes" / f"{name}.py"
    lint(path.read_text(), path.name)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """All probes on the model, through the command."""
    file = tmp_path_factory.mktemp("probes") / "probes.json"
    assert probe_neuron.main(["--dry-run", "--json", str(file)]) == 0
    return {found["probe"]: found for found in json.loads(file.read_text())}


def test_the_model_predicts_what_the_documentation_says(rehearsal):
    assert list(rehearsal) == [f"P{number}" for number in range(1, 13)]
    predicted = {name: found["predicted"] for name, found in rehearsal.items()}
    assert set(predicted["P1"].values()) == {1.0}  # float32 arithmetic keeps 2^-14 and 2^-20
    assert predicted["P2"]["dense, cycles per row"] == pytest.approx(4, abs=1e-9)
    assert predicted["P2"]["2048^3 product, us"] == pytest.approx(
        2048**3 / 128**2 * 4 / 2.8e3
    )  # 749
    assert max(predicted["P3"].values()) < 1.5 * 2.0**-23
    per_element = [value for name, value in predicted["P4"].items() if name.endswith("per element")]
    assert per_element == pytest.approx([8, 1, 2, 1])
    assert predicted["P5"]["24.6 kB runs, static, GB/s"] == pytest.approx(
        272 * 24_576 / (24_576 + 512), rel=2e-3
    )
    assert (predicted["P7"]["programs for 3 blocks"], predicted["P7"]["programs for 5 blocks"]) == (
        2,
        0,
    )
    assert predicted["P9"]["blocks right / blocks"] == 1.0
    times = list(predicted["P11"].values())  # 48, 64, 80, 96, 112 KiB
    assert times[:3] == pytest.approx([times[0]] * 3) and times[3:] == pytest.approx(
        [4 * times[0]] * 2, rel=1e-2
    )


def test_a_probe_tells_a_coarse_reciprocal_and_fewer_passes(rehearsal):
    single = {
        **rehearsal["P2"]["predicted"],
        "dense, cycles per row": 1.0,
        "2048^3 product, us": 190.0,
    }
    assert (
        "1 passes in place of 4; a 2048^3 product takes 190 us" in BY_NAME["P2"].decide(single).text
    )
    for error, switch in ((2.0**-23, "False"), (1e-5, "True"), (1e-2, "False")):
        found = {**rehearsal["P3"]["predicted"], "Vector reciprocal, largest relative error": error}
        settled = {setting.place: setting.value for setting in BY_NAME["P3"].decide(found).settles}
        assert settled["dfmp2.trainium.kernels.tiles:NEWTON"] == switch


def test_on_trn2_the_hardware_makes_descriptors_too(monkeypatch):
    monkeypatch.setattr(rates, "CHIP", CHIPS["trn2"])
    found = rates.transfers(ModelBench(Settings(target="gen3")))
    assert len(found) == 6
    assert found["24.6 kB runs, hardware, GB/s"] == pytest.approx(
        368 * 24_576 / (24_576 + 512), rel=2e-3
    )
    quicker = {
        name: value * (1.2 if "hardware" in name else 1.1 if "unknown" in name else 1)
        for name, value in found.items()
    }
    for numbers, mode in ((found, "none"), (quicker, "hwdge")):
        settled = {
            setting.place: setting.value for setting in rates.decide_transfers(numbers).settles
        }
        assert settled["dfmp2.trainium.kernels.tiles:DGE"] == f"nisa.dge_mode.{mode}"


def test_every_constant_that_a_probe_settles_exists(rehearsal):
    places = set()
    for probe in PROBES:
        predicted = {
            k: math.nan if v is None else v for k, v in rehearsal[probe.name]["predicted"].items()
        }
        places |= {setting.place for setting in probe.decide(predicted).settles}
    assert len(places) >= 12
    for place in places:
        module, _, name = place.partition(":")
        if ".kernels." in module:  # cannot be imported without nki
            assert re.search(
                rf"^(def )?{name}\b",
                (ROOT / module.replace(".", "/")).with_suffix(".py").read_text(),
                re.M,
            )
            continue
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part, None) or getattr(found, "__dataclass_fields__", {}).get(
                part
            )
        assert found is not None, place


def test_probes_without_a_device_are_refused(capsys):
    assert probe_neuron.main([]) == 6
    assert "lane nki cannot be used" in capsys.readouterr().err
    assert probe_neuron.main(["--dry-run", "--only", "P1,P13"]) == 1
    assert "no probe 'P13': expected one or more of P1, P2" in capsys.readouterr().err


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
        assert probe_neuron.ask_here(BY_NAME[name], lane, (4, 12)) == BY_NAME[name].ask(
            ModelBench()
        )
    device = DeviceBench(probe_neuron.executors.executor(lane), probe_neuron.compile_apart)
    assert math.isfinite(device.nanoseconds(*CHAIN))
    assert device.calls(*CHAIN[:2], {**CHAIN[2], "rounds": 1}, 3) > 0.0
    clock = device.device(*CHAIN[:2], {**CHAIN[2], "rounds": 1})
    assert clock > 0.0 if lane == "nki" else math.isnan(clock)


def test_programs_are_counted_as_they_are_loaded(machine):
    device = DeviceBench(probe_neuron.executors.executor("nki"), probe_neuron.compile_apart)
    machine.patch.setattr(
        bench, "EDGE", 9
    )  # nine orbitals in each of `blocks`: two blocks of the kernels
    assert device.programs(1) == 2.0
    assert device.programs(1) == 0.0


def test_graphs_of_torch_xla_are_counted_as_it_compiles_them(machine):
    """A graph for every launch, as a slice of a resident tensor would make them, is more than the two programs."""
    executor, launched = probe_neuron.executors.executor("nki-xla"), itertools.count(1)
    machine.patch.setattr(bench, "EDGE", 9)
    machine.patch.setattr(type(executor), "_graphs", lambda self: (next(launched), 0.0))
    assert DeviceBench(executor, probe_neuron.compile_apart).programs(1) == 3.0


def test_wrong_numbers_make_a_time_worthless(machine):
    machine.fault("wrong-numbers")
    with pytest.raises(ProbeError, match="the device did not compute what the kernel says"):
        DeviceBench(probe_neuron.executors.executor("nki"), probe_neuron.compile_apart).nanoseconds(
            *CHAIN
        )


def test_compile_time_and_memory_are_those_of_the_compiler_process(machine):
    done = probe_neuron.compile_here(16, 112, 384, 8)
    assert done["seconds"] > 0.0 and 20e6 < done["peak"] < 2e9
    machine.fault("compiler-refuses")
    machine.patch.setenv("DFMP2_NEFF_CACHE", str(machine.folder / "other"))
    assert probe_neuron.main(["--compile", "16,112,384,8"]) == 6


# The picture of one pair


@pytest.mark.slow
def test_the_picture_in_the_page_is_that_of_the_kernel():
    assert draw_pair.picture("medium", "trn1", 12) == draw_pair.OUTPUT.read_text(), (
        "python scripts/draw_pair.py"
    )


# Profile and benchmark


def summary(call, total):
    """A profile in which every engine does what was predicted."""
    _, account, _ = schedule_call(call, CHIPS["trn1"], Assumptions())
    found = {
        "total_time": total,
        "hbm_read_bytes": account.bytes_read,
        "hbm_write_bytes": account.bytes_written,
    }
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
    assert (
        profile_table.main(["--shape", "small", str(tmp_path / "0.json"), str(tmp_path / "1.json")])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("pair_energy_block, off-diagonal: 0.500 ms measured, ")
    tensor = lines[2].split()
    assert tensor[0] == "tensor" and tensor[1] == tensor[2] == f"{account.busy['tensor'] / 1e6:.3f}"
    assert any(line.strip().startswith("the Tensor Engine waits") for line in lines)
    assert any(
        f"HBM: {account.bytes_read} bytes read ({account.bytes_read} predicted)" in line
        for line in lines
    )
    assert any(line.startswith("pair_energy_block, diagonal: 0.100 ms") for line in lines)


def test_the_benchmark_times_three_phases_and_proves_what_ran(tmp_path, capsys):
    file = tmp_path / "b.json"
    options = (
        f"--lane nki-interpreter --shapes 3/5/10 --repeats 2 --json {file} --without-torch".split()
    )
    assert neuron_benchmark.main(options) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("REHEARSAL on the interpreter: nothing of this is a time of a device")
    found = json.loads(file.read_text())
    one = found["shapes"]["3/5/10"]
    assert found["rehearsal"] is True
    for kind in ("cold", "fresh"):
        assert one[kind]["process"] > one[kind]["first"] > 0.0 and len(one[kind]["warm"]) == 1
        assert one[kind]["proof"]["lane"] == "nki-interpreter"
        assert one[kind]["proof"]["kernel launches"] == "2"
        assert abs(one[kind]["difference"]) < 1e-6
    assert one["predicted"]["calls"] == 1


def test_the_benchmark_runs_the_lanes(machine, monkeypatch):
    monkeypatch.setattr(neuron_benchmark, "RAMP", 0.0)  # the stand-in has no first seconds
    found = neuron_benchmark.phase("nki", "9/5/10", 2)
    assert found["proof"]["lane"] == "nki" and found["proof"]["kernel launches"] == "6"
    assert found["proof"]["programs"] == "2 launched, 2 compiled now, 0 found in the cache"
    with pytest.raises(ComparisonFailed, match="its time means nothing"):
        neuron_benchmark.judge("9/5/10", {"fresh": {"difference": math.nan}})


@pytest.mark.parametrize("name", ["cpu", "simulator", "hardware"])
def test_workflows_call_what_exists(name):
    text = (ROOT / ".github/workflows" / f"{name}.yml").read_text()
    called = re.findall(r"(scripts/[\w./-]+\.(?:sh|py))([^\n|]*)", text)
    assert called or name == "cpu"
    for script, options in called:
        assert os.access(ROOT / script, os.X_OK), script
        for word in re.findall(r"--[a-z]+", options):
            assert re.search(rf'^ +{word}\)|"{word}"', (ROOT / script).read_text(), re.M), (
                script,
                word,
            )
