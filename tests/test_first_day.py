"""The first day on a device, rehearsed on the stand-in: the right diagnosis of each failure, no wrong energy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.stand_in_nki.site import planted

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))

import neuron_first_day as day  # noqa: E402
import rehearse_first_day  # noqa: E402
from neuron_first_day import Day, Step, Verdict  # noqa: E402
from neuron_signs import SIGNS, diagnose  # noqa: E402

MANUAL = ROOT / "docs/trainium/first-day.md"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    with planted(tmp_path, monkeypatch) as site:
        site.sound()
        monkeypatch.setenv("PYTHONPATH", f"{SCRIPTS}:{site.folder / 'site'}:{ROOT}")
        yield site
    sys.modules.pop("neuron_probes.elementwise", None)


@pytest.mark.parametrize(
    ("fault", "question", "code", "says"),
    [
        ("no-compiler-on-path", "smallest", 6, "neuronx-cc is not on PATH"),
        ("flag-refused", "smallest", 6, "does not know --auto-cast=none"),
        ("without-nisa.reciprocal", "smallest", 6, "has no reciprocal"),
        ("target-ignored", "smallest", 1, "compiled for v4 was loaded on v2"),
        ("other-names", "smallest", 1, "different names: ['input0_x'] ['output_0']"),
        ("dma-abort", "smallest", 7, "aborted a transfer"),
        ("frozen-types", "kept", 1, "refuses a new type"),
    ],
)
def test_what_a_device_says_is_recognised(machine, capsys, tmp_path, fault, question, code, says):
    machine.fault(fault)
    assert day.ask(question, "nki", tmp_path / "numbers.json") == code
    sign = diagnose(capsys.readouterr().out, code)
    assert says in sign.what and sign.then
    assert sign.stops == (fault == "dma-abort")


def test_a_copy_comes_back_and_tells_how_it_was_compiled(machine, tmp_path, capsys):
    assert day.ask("smallest", "nki", tmp_path / "numbers.json") == 0
    found = json.loads((tmp_path / "numbers.json").read_text())
    assert found["wrong"] == 0 and found["tensors"] == {"x": "float32", "output_0": "|V4"}
    told = day.judge_smallest("", found)
    assert "standalone, neuronx-cc 2.27.5334.0, nki 0.6.0" in told.found and told.code == 0
    machine.fault("wrong-numbers")
    assert day.ask("smallest", "nki", tmp_path / "numbers.json") == 0
    assert day.judge_smallest("", json.loads((tmp_path / "numbers.json").read_text())).code == 8


def test_the_guard_is_awake(machine, tmp_path, capsys):
    file = tmp_path / "numbers.json"
    assert day.ask("guard", "nki", file) == 0
    told = day.judge_guard("", json.loads(file.read_text()))
    assert (
        told.code == 0
        and "accepted: 1, largest relative difference" in told.found
        and "came back as" in told.found
    )
    assert day.judge_guard("", {"accepted": "1", "refused": ""}).code == 8
    machine.fault("wrong-numbers")
    assert day.ask("guard", "nki", file) == 5
    assert "the guard refused a wrong pair" in diagnose(capsys.readouterr().out, 5).what


def test_the_last_line_that_is_known_decides():
    assert diagnose("NRT_EXEC_HW_ERR_DMA_ABORT(1203)\nwarning: nothing", 7).stops
    assert "not foreseen (exit code 42): what" in diagnose("well\nwhat", 42).what
    assert diagnose("", 124).what == "no answer in time"
    assert len({sign.pattern for sign in SIGNS}) == len(SIGNS)


def script(text):
    return ("-c", text)


def judged(text, numbers):
    return Verdict(text.strip(), "something", stops=False)


def run(tmp_path, *steps, seconds=60.0):
    made = Day(tmp_path, rehearsal=True)
    return day.run(made, steps, day.time.monotonic() + seconds), made


def test_steps_go_on_after_a_failure_and_stop_after_a_fault_of_the_device(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(
        day, "GRACE", 0.5
    )  # where the tests run in the background, no process hears an interrupt
    fault = script(
        "import sys; print('NRT Error NRT_EXEC_HW_ERR_DMA_ABORT(1203): Failed'); sys.exit(7)"
    )
    steps = (
        Step(
            "wrong",
            "?",
            script("import sys; print('came back as 1 Eh and is 2 Eh'); sys.exit(5)"),
            9,
            judged,
        ),
        Step("needs it", "?", script("print(1)"), 9, judged, ("wrong",)),
        Step("fault", "?", fault, 9, judged, lane="nki"),
        Step("launch", "?", script("print(1)"), 9, judged, lane="nki"),
        Step("hangs", "?", script("import time; time.sleep(60)"), 0.1, judged),
        Step("host", "?", script("print('well')"), 9, judged),
    )
    code, made = run(tmp_path, *steps)
    printed = capsys.readouterr().out
    assert code == 5 and printed.startswith("REHEARSAL")
    assert (
        "not run: wrong did not pass" in printed
        and "not run: the device failed in fault" in printed
    )
    codes = {name: found["code"] for name, found in made.steps.items()}
    assert codes == {"wrong": 5, "fault": 7, "hangs": 1, "host": 0}
    assert "no answer in time" in printed
    made.load()
    assert run(tmp_path, steps[-1])[0] == 0 and day.run(made, steps[-1:], 0.0) == 0
    assert "passed before" in capsys.readouterr().out
    assert (
        day.run(Day(tmp_path, True), steps[-1:], 0.0) == 0
        and "the time is over" in capsys.readouterr().out
    )


def test_a_rehearsal_and_a_device_never_share_a_folder(tmp_path, machine, monkeypatch, capsys):
    assert day.rehearsing()
    Day(tmp_path, rehearsal=True).save()
    monkeypatch.setattr(day, "rehearsing", lambda: False)
    with pytest.raises(SystemExit):
        day.main(["--results", str(tmp_path)])
    assert "mixes a rehearsal with a device" in capsys.readouterr().err
    known = Day(
        tmp_path, rehearsal=True, steps={"water": {"code": 0}}, machine={"instance": "trn1.2xlarge"}
    )
    known.meet({"instance": "trn2.48xlarge"})
    assert not known.passed("water")


def test_the_archive_names_nobody_and_holds_no_program(tmp_path, monkeypatch):
    monkeypatch.setattr(day.socket, "gethostname", lambda: "ip-172-31-5-9.ec2.internal")
    monkeypatch.setattr(day.getpass, "getuser", lambda: "schroedinger")
    monkeypatch.setenv("HOME", "/home/schroedinger")
    text = "on host ip-172-31-5-9.ec2.internal: /home/schroedinger/x of schroedinger at 172.31.5.9, i-0123456789abcdef0, "
    (tmp_path / "water.log").write_text(
        text + "aws-neuronx-dkms 2.22.2.0, scipy-openblas 0.3.31.188.0\n"
    )
    (tmp_path / "neff" / "1234").mkdir(parents=True)
    (tmp_path / "neff" / "1234" / "nki.neff").write_bytes(b"program")
    (tmp_path / "neff" / "1234" / "failed.log").write_text("NCC_EVRF004")
    (tmp_path / "h2o.dfmp2.h5").write_bytes(b"result")
    with tarfile.open(
        day.pack(Day(tmp_path, rehearsal=False, machine={"instance": "trn1.2xlarge"}))
    ) as archive:
        files = {
            Path(entry.name).name: archive.extractfile(entry) for entry in archive if entry.isfile()
        }
        held = {name: file.read().decode() for name, file in files.items() if file}
    assert set(held) == {"water.log", "programs.json", "failed-1234.log"}
    assert held["water.log"].strip() == (
        "on host HOST: ~/x of USER at ADDRESS, INSTANCE, aws-neuronx-dkms 2.22.2.0, scipy-openblas 0.3.31.188.0"
    )
    assert json.loads(held["programs.json"])[1] == {
        "program": "1234",
        "file": "nki.neff",
        "bytes": 7,
    }


def timed(warm):
    one = {"warm": [warm], "first": 1.0, "difference": 1e-9}
    predicted = {"device": 0.07, "usual": 0.08, "slowest": 0.17, "dispatch": 0.05, "floor": 0.056}
    return {"shapes": {"medium": {"fresh": one, "predicted": predicted}}}


@pytest.mark.parametrize(
    ("warm", "says"),
    [
        (0.06, "charges too much"),
        (0.09, "within the range: 140 %"),
        (0.34, "1.5 times slower than the slowest"),
    ],
)
def test_times_are_judged_by_the_predicted_range(warm, says):
    verdict = day.judge_times("", timed(warm))
    assert (
        says in verdict.decides
        and "(discarded)" in verdict.found
        and "predicted 70.0 ms" in verdict.found
    )


def water(**more):
    details = ["kernel launches: 1", "inference counters: neuron0/neuron_core0 7 -> 8"]
    found = {
        "check": {"correlation_difference": 1e-9},
        "mp2_correlation_energy": -0.2,
        "backend": "nki",
    }
    return {**found, "provenance": {"backend_details": details}, **more}


def test_a_wrong_energy_and_a_device_that_did_not_count_fail():
    assert day.judge_water("", water()).code == 0
    assert day.judge_water("", water(check={"correlation_difference": 2e-7})).code == 8
    unmoved = {"backend_details": ["kernel launches: 1", "inference counters: did not move"]}
    assert "it was not the device" in day.judge_water("", water(provenance=unmoved)).decides
    assert day.judge_water("", water(check={"correlation_difference": float("nan")})).code == 8


def test_the_manual_lists_the_steps_and_the_failures():
    text = MANUAL.read_text()
    lanes = day.steps(Path("/x"), ("nki",), rehearsal=False)
    for step in lanes:
        assert (
            f"| `{step.name.replace('-nki', '-LANE') if step.lane == 'nki' else step.name}` |"
            in text
        ), step.name
    rows = re.findall(r"^\| (.+?) \| `?([\w-]+)`? \| .+ \| (\d) \|$", text, re.MULTILINE)
    assert [(row.name, row.step, str(row.code)) for row in rehearse_first_day.ROWS] == rows
    listed = {
        row.name: line.replace("`", "")
        for row in rehearse_first_day.ROWS
        for line in text.splitlines()
        if f"| {row.name} |" in line
    }
    for row in rehearse_first_day.ROWS:
        assert row.says.replace("|", "\\|").replace("`", "") in listed[row.name]


@pytest.mark.slow
@pytest.mark.parametrize("row", rehearse_first_day.ROWS, ids=lambda row: row.name)
def test_every_failure_gets_its_diagnosis_and_never_an_energy(row):
    line, wrong = rehearse_first_day.rehearse(row)
    assert not wrong, (line, wrong)


def test_without_a_device_the_script_says_so(tmp_path):
    command = [
        sys.executable,
        str(SCRIPTS / "neuron_first_day.py"),
        "--only",
        "machine",
        "--results",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert "no Neuron device" in done.stdout and "--dry-run shows the steps" in done.stdout
