"""Plans: memory and times that were measured, rates that are measured once and cached, and runs
against their plans."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import dfmp2
from dfmp2.backends.cpu import CpuBackend
from dfmp2.cli.main import main
from dfmp2.host import files
from dfmp2.host.scratch import RESERVE
from dfmp2.molecule.xyz import read_xyz
from dfmp2.options import Options
from dfmp2.planning import plan as planning
from dfmp2.planning import rates, time
from dfmp2.planning.rates import Rates
from dfmp2.planning.system import with_kept_pairs
from dfmp2.progress import Silent
from dfmp2.units import format_bytes
from tests.awkward import BASIS, MOLECULES, mole_of
from tests.conftest import INPUTS, only_free_in, run_command, succeed, write_rates
from tests.test_disk import set_variant


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(rates, "SIZE", rates.CHUNK)  # of the file by which a folder is measured


@pytest.fixture
def measured(private_cache):
    """Rates of this host, stored as if they had been measured."""
    write_rates()


# --- time and rates -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "basis", "measured"),
    [
        ("glycine", "cc-pvdz", 0.60),
        ("benzene", "cc-pvtz", 2.20),
        ("water-10", "cc-pvdz", 4.28),
        ("water-8", "cc-pvtz", 13.96),
        ("c20h42", "cc-pvdz", 38.56),
    ],
)
def test_built_in_rates_repeat_what_was_measured(name, basis, measured):
    """Seconds from docs/performance, on the idle machine whose rates are built in, 22 November
    2026."""
    molecule, options = read_xyz(INPUTS / f"{name}.xyz").molecule, Options(basis)
    sizes = planning.workload_sizes(molecule, options, Silent())
    system = SimpleNamespace(naux_scf=sizes.naux_scf, mole=mole_of(molecule, basis))
    work = with_kept_pairs(sizes, system)
    assert time.time_text(work, Rates()).total == pytest.approx(measured, rel=0.2)


def test_rates_are_kept_per_backend_and_threads_and_damage_counts_as_none(monkeypatch):
    monkeypatch.setattr(rates, "_host", lambda count: {"integrals": 1e7, "functional": 4e6})
    monkeypatch.setattr(rates, "_pairs", lambda backend: {"pairs_fp64": 5e9})
    found = rates.measure_rates(CpuBackend(1), 1)
    assert (found.integrals, found.functional, found.pairs_fp64) == (1e7, 4e6, 5e9)
    assert found.foreign >= 0 and found.date
    assert rates.load_rates("cpu", 1) == found
    assert rates.load_rates("cpu", 2) is None and rates.load_rates("torch", 1) is None
    entry = rates._key("cpu", 1)
    measured_earlier = {**asdict(found), "start": 0.9, "launch": 1.2, "torch_import": 2.0}
    files.store_cached(entry, measured_earlier)  # as written by version 0.1
    assert rates.load_rates("cpu", 1) == replace(found, start=0.9, launch=1.2)
    del measured_earlier["functional"]
    files.store_cached(entry, measured_earlier)
    assert rates.load_rates("cpu", 1) is None
    files.cache_file().write_text("{ not json")
    assert rates.load_rates("cpu", 1) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    rates.store_rates("cpu", 2, Rates())  # an unwritable cache does not stop a plan
    assert rates.load_rates("cpu", 2) is None


@pytest.mark.parametrize(
    ("now", "measured"), [(2.1, 1), (3.6, 0)], ids=["quieter now", "still busy"]
)
def test_rates_of_a_busy_machine_are_measured_again_when_it_is_quiet(monkeypatch, now, measured):
    """The better rate of each kind is kept: other load can only slow a routine down. Two of three
    cores are idle."""
    known = Rates(integrals=9e8, products=1e9, start=0.9, foreign=1.5, date="2026-01-01")
    fresh = Rates(integrals=5e8, products=9e9, start=0.3, foreign=0.05, date="2026-01-02")
    calls = []
    # s; the CPU clock beside it runs `now` times as fast, without a contribution of this process
    clock = [0.0]
    monkeypatch.setattr(rates.time, "sleep", lambda seconds: clock.append(clock[-1] + seconds))
    monkeypatch.setattr(rates.time, "perf_counter", lambda: clock[-1])
    monkeypatch.setattr("dfmp2.host.resources.os.times", lambda: (0.0,) * 5)
    monkeypatch.setattr(rates.os, "cpu_count", lambda: 3)
    monkeypatch.setattr("dfmp2.host.resources.busy_seconds", lambda: now * clock[-1])
    monkeypatch.setattr(rates, "measure_rates", lambda *given: calls.append(given) or fresh)
    found = rates.refreshed(CpuBackend(1), 1, known)
    assert len(calls) == measured
    if measured:
        assert (found.integrals, found.products, found.start) == (9e8, 9e9, 0.3)
        assert not found.disturbed and rates.load_rates("cpu", 1) == found
        assert rates.refreshed(CpuBackend(1), 1, found) == found and len(calls) == 1
    else:
        assert found == known


def test_a_folder_is_measured_once_and_left_empty(tmp_path, monkeypatch):
    """The written data are dropped from the page cache before they are read."""
    dropped, folder = [], tmp_path / "scratch"
    monkeypatch.setattr(rates, "SIZE", 2 * rates.CHUNK)
    monkeypatch.setattr(rates.os, "posix_fadvise", lambda *given: dropped.append(given[3]))
    folder.mkdir()
    assert rates.load_disk(folder) is None
    found = rates.measure_disk(folder)
    assert found.write > 0 and found.read > 0 and found.cached > 0 and found.date
    assert dropped == [os.POSIX_FADV_DONTNEED]
    assert list(folder.iterdir()) == []
    (tmp_path / "link").symlink_to(folder)
    assert rates.load_disk(folder) == rates.load_disk(tmp_path / "link") == found
    assert rates.load_disk(tmp_path / "other" / "scratch") is None
    files.store_cached(rates._disk_key(folder), {"write": "fast"})
    assert rates.load_disk(folder) is None


# --- the command, and a run against its plan ------------------------------------------------------


def test_plan_command_measures_once(monkeypatch, capsys, tmp_path):
    calls = []

    def measure(backend, count):
        calls.append((backend.name, count))
        found = Rates(date="2026-11-22T12:00:00+00:00")
        rates.store_rates(backend.name, count, found)
        return found

    monkeypatch.setattr(rates, "measure_rates", measure)
    monkeypatch.setattr(rates, "measure_disk", calls.append)
    arguments = ["plan", "inputs/h2o.xyz", "--basis", "cc-pvdz", "--threads", "1", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert main(arguments) == 0
    assert calls == [("cpu", 1)]
    assert main([*arguments, "--calibrate", "--scratch", str(tmp_path)]) == 0
    assert calls[1:] == [("cpu", 1), tmp_path]


def test_files_have_the_planned_size(measured, tmp_path):
    """Within a tenth; a gradient leaves its relaxed densities in the file."""
    molecule = MOLECULES["methanol radical in a field"]
    given = {**BASIS, "threads": 1, "allow_poor_fit": True}
    planned = dfmp2.plan(molecule, **given, gradient=True).to_dict()
    dfmp2.write(dfmp2.gradient(molecule, **given).result, tmp_path / "x.h5")
    written = (tmp_path / "x.h5").stat().st_size
    assert planned["memory_bytes"]["disk"] == pytest.approx(written, rel=0.1)


def test_plan_measures_the_folder_when_arrays_go_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rates, "measure_rates", lambda backend, count: Rates())

    def planned(*more):
        options = ("--basis", "cc-pvdz", "--threads", "1", "--scratch", str(tmp_path))
        assert main(["plan", str(INPUTS / "h2o.xyz"), *options, *more]) == 0
        return capsys.readouterr().out

    assert "traffic:" not in planned()
    assert rates.load_disk(tmp_path) is None
    set_variant(monkeypatch, disk=True)
    facts = json.loads(planned("--json"))["scratch"]
    assert facts["rates"] == "measured on this host"
    assert facts["read_bytes"] > facts["written_bytes"] > 0
    assert rates.load_disk(tmp_path).read == facts["bytes_per_second"]["read"]
    # 200 MB are far less than is free
    assert "it stays in the system's memory" in planned("--memory", "200MB")
    monkeypatch.setattr(planning.resources, "available_memory", lambda: 0)
    said = planned("--memory", "200MB")
    assert " written at " in said and "no memory free for it" in said


@pytest.mark.usefixtures("measured")
def test_a_disk_without_room_for_scratch_files_is_what_has_to_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Down to the byte: the size written, and the space left free beside it; another disk does not
    matter. Two plans of one process may differ by what earlier runs left in memory."""
    monkeypatch.setattr(planning, "_program", None)
    monkeypatch.setattr("dfmp2.host.resources.resident_memory", lambda: 10**8)
    radical = MOLECULES["methanol radical in a field"]
    bytes_ = dfmp2.plan(radical, "cc-pvqz", threads=1).to_dict()["memory_bytes"]
    between = (bytes_["least"] + bytes_["comfortable"]) // 2
    outlook = dfmp2.plan(radical, "cc-pvqz", memory=between, threads=1, scratch=str(tmp_path))
    needed = outlook.to_dict()["scratch"]["bytes"]
    assert needed > 10**6
    disk = f"--scratch on a disk with {format_bytes(needed + RESERVE)} free"
    for lacking, change in ((0, ""), (1, disk)):
        free = needed + RESERVE - lacking
        disks = only_free_in(tmp_path, free, 10**15 * lacking)
        monkeypatch.setattr("dfmp2.output.plan.free_disk", disks)
        found = outlook.to_dict()
        assert (found["fits"], str(found["change"])) == (not lacking, change)
        assert found["scratch"]["free_bytes"] == free
    outlook = dfmp2.plan(radical, "cc-pvqz", memory=between, threads=1, scratch=str(tmp_path))
    assert outlook.change == disk.removeprefix("--") and "does not fit" in repr(outlook)


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_the_least_memory_of_a_plan_suffices_for_the_run(tmp_path: Path) -> None:
    """The process of a run has loaded more than that of its plan when it checks memory, most with a
    functional."""
    options = (
        "--basis",
        "sto-3g",
        "--threads",
        "1",
        "--method",
        "ks",
        "--xc",
        "pbe",
        "--grid",
        "0",
    )
    command = (str(INPUTS / "nh2.xyz"), *options)
    planned = succeed(run_command("plan", *command, "--json", cwd=tmp_path))
    least = -(-planned.json["memory_bytes"]["least"] // 10**6)
    files = ("--output", "x.h5", "--quiet")
    succeed(run_command("run", *command, *files, "--memory", f"{least}MB", cwd=tmp_path))
