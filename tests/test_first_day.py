"""scripts/neuron_first_day.py with stand-ins for AWS's packages: announcements, decisions of steps,
and files kept."""

from __future__ import annotations

import json
import math
import re
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from dfmp2.trainium.costs import catalogue
from dfmp2.trainium.interpreter import arithmetic
from tests.conftest import PATIENCE, ROOT
from tests.stand_in_nki.site import planted

SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))

import neuron_first_day as day  # noqa: E402
from neuron_first_day import Step  # noqa: E402


@pytest.fixture
def machine(tmp_path, monkeypatch):
    with planted(tmp_path, monkeypatch) as site:
        yield site


def script(name, text, **more):
    """A step that runs a line of Python."""
    return Step(
        name=name,
        about="?",
        command=("-c", text),
        decides=f"{name} decides",
        then=f"{name} failed",
        **more,
    )


def test_what_is_missing_is_said_before_anything_starts(machine, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "found"
    assert day.main(["--results", str(folder)]) == 6
    printed = capsys.readouterr().out
    assert printed.count("before it starts: lane ") == 3 and "nothing was started" in printed
    assert not folder.exists()
    machine.sound()
    monkeypatch.setattr(day, "run", lambda folder, chosen, end: print("steps run") or 0)
    monkeypatch.setattr(day, "find_spec", lambda name: None)
    monkeypatch.setattr(day, "FREE", math.inf)
    assert day.main(["--results", str(folder)]) == 0
    printed = capsys.readouterr().out
    before, _, _ = printed.partition("steps run")
    assert "has no pytest: pip install pytest" in before and "GB free" in before
    assert "others run 0.6 on trn1" in before and "left out" not in before


def test_one_command_shows_all_steps_in_their_order(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert day.main(["--dry-run", "--lane", "nki"]) == 0
    shown = capsys.readouterr().out
    for file in re.findall(r"(?:scripts|tests|inputs)/[\w./-]+\.(?:py|sh|xyz)", shown):
        assert (ROOT / file).is_file(), file
    order = ["--ask root", "--backend nki --check", "kernels check", "--require nki", "--ask times"]
    places = [shown.index(word) for word in order]
    assert places == sorted(places) and list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        day.main(["--dry-run", "--only", "wather"])
    assert "--only wather: expected root-nki" in capsys.readouterr().err


def test_steps_go_on_after_a_failure_and_stop_after_a_fault_of_the_device(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(day, "GRACE", 1.0)  # background processes ignore Ctrl-C
    steps = (
        script("wrong", "import sys; print('came back wrong'); sys.exit(5)"),
        script("needs it", "print(1)", after=("wrong",)),
        script("hangs", "import time; time.sleep(600)", seconds=0.2),
        script("well", "print('it is')"),
        script("fault", "import sys; print('NRT_EXEC_HW_ERR'); sys.exit(7)"),
        script("launch", "print(1)"),
    )
    end = day.time.monotonic() + PATIENCE
    assert day.run(tmp_path, steps, end) == 5
    printed = capsys.readouterr().out
    assert "found: came back wrong" in printed and "then: wrong failed" in printed
    assert "not run: wrong did not pass" in printed and "no answer in 0 s" in printed
    assert "well decides" in printed and "not run: the device failed in fault" in printed
    found = json.loads((tmp_path / "summary.json").read_text())["steps"]
    assert {name: one["code"] for name, one in found.items()} == {
        "wrong": 5,
        "hangs": 1,
        "well": 0,
        "fault": 7,
    }
    assert day.run(tmp_path, steps[3:4], 0.0) == 0
    assert "passed before" in capsys.readouterr().out
    assert day.run(tmp_path, steps[:1], 0.0) == 0
    assert "no time is left" in capsys.readouterr().out
    monkeypatch.setattr(day, "machine", lambda: {"chip": "trn2"})
    assert day.run(tmp_path, steps[3:4], end) == 0
    assert "every step runs again" in capsys.readouterr().out


@pytest.mark.slow
def test_a_coarse_root_asks_for_the_newton_step(capsys, monkeypatch):
    assert day.ask_root("nki-interpreter") == 0
    assert float(re.search(r"1 / D: (\S+),", capsys.readouterr().out)[1]) < 4e-7
    exact = arithmetic.BINARY["power"]
    monkeypatch.setitem(arithmetic.BINARY, "power", lambda x, y: exact(x, y) * (1 + 1e-5))
    assert day.ask_root("nki-interpreter") == 8
    (step,) = (one for one in day.steps("nki", Path("x")) if one.name == "root-nki")
    assert "NEWTON = True" in step.then
    assert re.search(
        r"^NEWTON = False", (ROOT / "dfmp2/trainium/kernels/tiles.py").read_text(), re.M
    )


@pytest.mark.parametrize(("seconds", "code"), [(0.0, 8), (1.0, 0), (1e9, 8)])
def test_times_are_judged_by_the_predicted_range(capsys, monkeypatch, seconds, code):
    """The range: from the best time with queued calls to that at 40 % with each call awaited."""
    monkeypatch.setattr(day, "RAMP", 0.0)
    monkeypatch.setitem(day.SHAPES, "medium", day.Shape(2, 5, 10))
    monkeypatch.setattr(day, "Shape", lambda *sizes: day.SHAPES["medium"])
    (one,) = catalogue.predict((day.SHAPES["medium"],), chips=("trn1",))
    low, high = one.device + one.queued, one.slowest + one.dispatch
    clock = [0.0]
    middle = (low + high) / 2 if seconds == 1.0 else seconds

    def work(operands, backend):
        clock[0] += middle

    monkeypatch.setattr(day, "pair_energies", work)
    monkeypatch.setattr(day, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert day.ask_times("nki-interpreter") == code
    assert f"predicted {low:.4f} to {high:.4f} on 1 trn1 cores" in capsys.readouterr().out


def test_names_and_addresses_stay_out_of_the_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(day.socket, "gethostname", lambda: "my.own.host")
    monkeypatch.setattr(day.getpass, "getuser", lambda: "mary")
    folder = tmp_path / "found"
    (folder / "neff" / "x").mkdir(parents=True)
    (folder / "a.log").write_text(
        "mary on my.own.host, ip-10-0-0-1.ec2, i-0123456789abcdef0, 10.1.2.3 1.2.3.4\n"
    )
    (folder / "neff/x/failed.log").write_text("NCC_X\n")
    with tarfile.open(day.pack(folder)) as archive:
        names = sorted(archive.getnames())
        text = archive.extractfile("found/a.log").read().decode()
    assert names == ["found/a.log", "found/neff/x/failed.log"]
    assert text == "USER on HOST, HOST, INSTANCE, ADDRESS 1.2.3.4\n"


def test_the_manual_lists_the_steps_and_the_failures():
    page = (ROOT / "docs/project/trainium/first-day.md").read_text()
    for step in day.steps("nki", Path("x")):
        assert f"| `{step.name.removesuffix('-nki')}` |" in page
        assert step.decides.replace("--backend nki", "--backend LANE") in page
    assert len((SCRIPTS / "neuron_first_day.py").read_text().splitlines()) <= 350


@pytest.mark.slow
def test_the_whole_command_on_the_stand_in(machine, tmp_path, capsys):
    machine.sound()
    machine.processes()
    folder = tmp_path / "found"
    assert day.main(["--results", str(folder), "--lane", "nki", "--only", "root,water"]) == 0
    printed = capsys.readouterr().out
    assert "largest relative error of 1 / D" in printed and "checked against PySCF" in printed
    assert (tmp_path / "found.tar.gz").is_file()
