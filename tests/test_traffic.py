"""What goes to scratch: bytes foreseen against bytes moved, and a folder's speed measured without its cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import dfmp2
from dfmp2 import calibration, forecast, host_cache, pipeline, planning
from dfmp2.cli.main import main
from dfmp2.errors import ResourceError
from dfmp2.forecast import Rates
from dfmp2.scratch import speed
from dfmp2.scratch.speed import DiskRates
from dfmp2.traffic import Traffic
from dfmp2.workload import Spin, Workload
from tests.test_out_of_core import set_variant

INPUTS = Path(__file__).parent.parent / "inputs"
WORK = Workload(490, 2366, 1708, (Spin(81, 81, 409),), "fp64", 66)


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(("name", "precision"), [("h2o", "fp64"), ("nh2", "mixed")])
def test_bytes_foreseen_are_the_bytes_moved(name, precision, monkeypatch, tmp_path):
    plans = []

    def remember(*given, **more):
        plans.append(planning.make_plan(*given, **more))
        return plans[-1]

    set_variant(monkeypatch, disk=True)
    monkeypatch.setattr(pipeline, "make_plan", remember)
    given = {"precision": precision, "threads": 1, "scratch": str(tmp_path), "stability": "off"}
    result = dfmp2.run(INPUTS / f"{name}.xyz", "cc-pvdz", **given)
    [foreseen] = [plan.traffic for plan in plans]
    assert foreseen.written == result.storage.written
    others = result.storage.read - (foreseen.read - foreseen.scf_read)  # but for the number of iterations
    builds = others / foreseen.scf_written
    assert builds == pytest.approx(result.reference.cycles + 1, abs=0.01)


def test_reading_ahead_costs_only_what_the_computation_does_not_hide():
    disk = DiskRates(write=1e9, read=1e9)
    plain = forecast.seconds(WORK, Rates())
    hidden = Traffic(pairs_read=10**9, pairs_ahead=10**9)
    assert forecast.seconds(WORK, Rates(), hidden, disk).pair_energies == pytest.approx(plain.pair_energies)
    waited = Traffic(pairs_read=10**9)
    assert forecast.seconds(WORK, Rates(), waited, disk).pair_energies == pytest.approx(plain.pair_energies + 1.0)
    slow = forecast.seconds(WORK, Rates(), hidden, DiskRates(1e9, 1e7))
    assert slow.pair_energies == pytest.approx(100.0)
    moved = Traffic(scf_written=2 * 10**9, fit_written=10**9, fit_read=3 * 10**9)
    found = forecast.seconds(WORK, Rates(), moved, disk)
    assert found.scf == pytest.approx(plain.scf + 2.0)
    assert found.fit == pytest.approx(plain.fit + 4.0)
    assert found.total == pytest.approx(plain.total + 6.0)


def test_a_folder_is_measured_once_and_left_empty(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    assert speed.load(folder) is None
    found = speed.measure(folder, 2 * speed.CHUNK)
    assert found.write > 0 and found.read > 0 and found.date
    assert list(folder.iterdir()) == []
    assert speed.load(folder) == found
    assert speed.load(tmp_path) is None


def test_a_file_system_without_direct_access_is_measured_too(tmp_path, monkeypatch):
    real, dropped = os.open, []

    def refuse(path, flags, *more, **given):
        if flags & speed.DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *more, **given)

    monkeypatch.setattr(speed.os, "open", refuse)
    monkeypatch.setattr(speed.os, "posix_fadvise", lambda *given: dropped.append(given[3]))
    assert speed.measure(tmp_path, speed.CHUNK).read > 0
    assert dropped == [os.POSIX_FADV_DONTNEED]


def test_a_full_or_failing_folder_is_named(tmp_path, monkeypatch):
    with pytest.raises(ResourceError, match="no-such"):
        speed.measure(tmp_path / "no-such", speed.CHUNK)

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(speed.os, "fsync", fail)
    with pytest.raises(ResourceError, match="No space left"):
        speed.measure(tmp_path, speed.CHUNK)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("dfmp2-scratch")] == []


def test_damaged_records_count_as_none(tmp_path):
    speed.measure(tmp_path, speed.CHUNK)
    host_cache.store(speed._key(tmp_path), {"write": "fast"})
    assert speed.load(tmp_path) is None


def test_plan_measures_the_folder_when_arrays_go_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(calibration, "measure", lambda backend, count: Rates())
    monkeypatch.setattr(speed, "SIZE", speed.CHUNK)
    command = ["plan", str(INPUTS / "h2o.xyz"), "--basis", "cc-pvdz", "--threads", "1", "--scratch", str(tmp_path)]
    assert main(command) == 0
    assert "traffic:" not in capsys.readouterr().out
    assert speed.load(tmp_path) is None
    set_variant(monkeypatch, disk=True)
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["scratch"]
    assert facts["rates"] == "measured on this host"
    assert facts["read_bytes"] > facts["written_bytes"] > 0
    assert speed.load(tmp_path).read == facts["bytes_per_second"]["read"]
    assert main(command) == 0
    assert " written at " in capsys.readouterr().out
