"""Plans: operations counted by hand, refusals and advice on memory, times from rates that are
measured once and cached."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dfmp2
from dfmp2.backends.cpu import CpuBackend
from dfmp2.cli.main import main
from dfmp2.errors import ResourceError
from dfmp2.execution import batch
from dfmp2.host import files
from dfmp2.host.scratch import RESERVE
from dfmp2.molecule.molecule import Molecule
from dfmp2.molecule.xyz import read_xyz
from dfmp2.options import Options, make_options
from dfmp2.planning import memory, rates, time
from dfmp2.planning import plan as planning
from dfmp2.planning.rates import Rates
from dfmp2.planning.sizes import Spin, Workload
from dfmp2.planning.system import with_kept_pairs
from dfmp2.progress import Silent
from dfmp2.units import format_bytes
from tests.awkward import BASIS, MOLECULES, mole_of, read
from tests.conftest import Heard, only_free_in, run_command, succeed
from tests.recorded import recorded_error
from tests.test_disk import set_variant

INPUTS = Path(__file__).parent.parent / "inputs"


WATER = Workload(
    nao=24, naux_scf=116, naux=84, spins=(Spin(5, 5, 19),), precision="fp64", block_functions=84
)
LARGE = Workload(
    490, 2366, 1708, (Spin(81, 81, 409),), "fp64", 66, widest_shell=6, frontier=((16, 32),)
)
MEGABYTE = 10**6


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def measured(private_cache):
    """Rates of this host, stored as if they had been measured."""
    for count in (1, 3):
        rates.store_rates("cpu", count, Rates(foreign=0.05, date="2026-11-22T12:00:00+00:00"))


# --- memory ---------------------------------------------------------------------------------------


def test_planned_memory_is_what_was_measured():
    """2.54 GB."""
    limits = CpuBackend(2).limits
    work = replace(LARGE, precision="auto")
    plan = memory.memory_plan(work, limits, 2, program=100 * MEGABYTE, budget=10**11)
    assert plan.predicted_peak == pytest.approx(2.6e9, rel=0.1)


def test_integrals_of_the_float32_iterations_are_gathered_where_there_is_room():
    work = replace(LARGE, scf_columns=40_000, rectangles=90_000, single_exchange=True)
    gathered = 4 * LARGE.naux_scf * 90_000
    given = {"limits": CpuBackend(1).limits, "threads": 1, "program": 0}
    needed = memory.memory_plan(work, budget=10**12, **given).scf_in_core + gathered + memory.SLACK
    just, below = (memory.memory_plan(work, budget=needed - n, **given) for n in (0, 1))
    assert just.scf_gathers and just.scf == just.scf_in_core + gathered
    assert below.scf_fits_in_core and not below.scf_gathers and below.scf == below.scf_in_core
    assert just.comfortable >= needed and just.least == below.least
    # Integrals of occupied orbitals come first: more products use them.
    examined = memory.memory_plan(replace(work, examined=True), budget=needed, **given)
    assert examined.response_held and not examined.scf_gathers


def test_what_a_run_leaves_for_the_next_one_is_counted_once():
    given = {"limits": CpuBackend(1).limits, "threads": 1, "budget": 10**9}
    first = memory.memory_plan(WATER, program=100 * MEGABYTE, **given)
    assert memory.memory_plan(WATER, program=105 * MEGABYTE, grown=5 * MEGABYTE, **given) == first
    # An array owned by the caller
    later = memory.memory_plan(WATER, program=200 * MEGABYTE, grown=100 * MEGABYTE, **given)
    assert later.program > 150 * MEGABYTE


def test_a_check_that_does_not_fit_is_refused_before_the_scf(monkeypatch):
    from dfmp2.mp2 import energy

    monkeypatch.setattr(memory, "check_stage", lambda *given: memory.Stage(10**12, 0, 0))
    monkeypatch.setattr(energy, "run_scf", lambda *given, **named: pytest.fail("computed"))
    with pytest.raises(ResourceError, match=r"1\.00 TB are required"):
        dfmp2.run("inputs/h2o.xyz", "sto-3g", check=True, memory=10**9)


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


def test_a_part_of_a_run_is_forecast_alone(tmp_path):
    import pyscf

    mf = pyscf.gto.M(atom="H 0 0 0; H 0 0 0.74", basis="sto-3g", verbose=0).RHF().run()
    adopted = dfmp2.from_mean_field(mf, threads=1).predicted
    assert adopted.scf == 0.0 < adopted.pair_energies
    prepared = dfmp2.prepare(INPUTS / "h2o.xyz", "sto-3g", tmp_path / "b.h5", threads=1).predicted
    assert prepared.pair_energies == 0.0 < prepared.scf
    both = dfmp2.energy(tmp_path / "b.h5", threads=1).predicted
    assert both.scf == prepared.scf and both.pair_energies > 0
    assert both.total == pytest.approx(prepared.total + both.pair_energies + Rates().start)


@pytest.mark.parametrize("seconds", [0.0, 7.0])
def test_an_item_of_a_batch_starts_no_program(seconds):
    """Its workers are warm: only the computation counts, plus a fixed time per item."""
    rates_of_host = replace(Rates(), start=seconds)
    timings = time.time_text(WATER, rates_of_host)
    cost = batch.time_in_worker(timings, rates_of_host)
    assert cost == pytest.approx(batch.PER_ITEM + timings.total - seconds)
    slower = replace(Rates(), start=1.0)
    assert cost == pytest.approx(batch.time_in_worker(time.time_text(WATER, slower), slower))
    assert cost == pytest.approx(batch.shard_cost(WATER))
    assert batch.shard_cost(LARGE) > batch.shard_cost(WATER) > batch.shard_cost(None) == 0


def test_rates_are_kept_per_backend_and_threads_and_damage_counts_as_none(monkeypatch):
    host = {"integrals": 1e7, "products": 2e9, "products_single": 3e9, "functional": 4e6}
    pairs = {"pairs_fp64": 5e9, "pairs_mixed": 6e9}
    monkeypatch.setattr(rates, "_host", lambda count: host)
    monkeypatch.setattr(rates, "_pairs", lambda backend: pairs)
    found = rates.measure_rates(CpuBackend(1), 1)
    assert found == Rates(**host, **pairs, foreign=found.foreign, date=found.date)
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


def test_plan_says_under_which_load_the_rates_were_measured(monkeypatch, capsys):
    for foreign, words in (
        (0.0, "measured on this host, 2026-11-22\n"),
        (1.4, "while others took 1.4 cores, may be low"),
    ):
        rates.store_rates("cpu", 1, Rates(foreign=foreign, date="2026-11-22T12:00:00+00:00"))
        monkeypatch.setattr(rates, "refreshed", lambda backend, count, known: known)
        assert main(["plan", "inputs/h2o.xyz", "--basis", "cc-pvdz", "--threads", "1"]) == 0
        assert words in capsys.readouterr().out


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


def test_rates_of_a_disk_have_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "_moved", lambda path: (1.0, 2.0, 3.0))
    found = rates.measure_disk(tmp_path)
    assert (found.write, found.read, found.cached) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(("chunks", "written"), [(2, 2), (9, 4)])
def test_a_disk_is_tried_with_so_many_bytes_or_so_long(tmp_path, monkeypatch, chunks, written):
    """By a clock that goes on by a second at every look: writing ends after SIZE bytes, or LONGEST
    seconds."""
    clock = itertools.count()
    monkeypatch.setattr(rates, "CHUNK", 1000)
    monkeypatch.setattr(rates, "SIZE", 1000 * chunks)
    monkeypatch.setattr(rates, "LONGEST", 4.5)
    monkeypatch.setattr(rates.time, "perf_counter", lambda: float(next(clock)))
    write, read, again = rates._moved(tmp_path / "x")
    assert (tmp_path / "x").stat().st_size == 1000 * written
    assert write == 1000 * written / (written + 1 + (chunks > written))
    assert read == again == 1000 * written / (written + 2)


def test_a_full_or_failing_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "SIZE", rates.CHUNK)
    with recorded_error(ResourceError):
        rates.measure_disk(tmp_path / "no-such")

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rates.os, "fsync", fail)
    with recorded_error(ResourceError):
        rates.measure_disk(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("dfmp2-scratch")] == []


# --- the command, and a run against its plan ------------------------------------------------------


def fixed_rates(monkeypatch, calls):
    def measure(backend, count):
        calls.append((backend.name, count))
        found = Rates(date="2026-11-22T12:00:00+00:00")
        rates.store_rates(backend.name, count, found)
        return found

    monkeypatch.setattr(rates, "measure_rates", measure)


def test_plan_command_measures_once(monkeypatch, capsys):
    calls = []
    fixed_rates(monkeypatch, calls)
    arguments = ["plan", "inputs/h2o.xyz", "--basis", "cc-pvdz", "--threads", "1", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert main(arguments) == 0
    assert calls == [("cpu", 1)]
    assert main([*arguments, "--calibrate"]) == 0
    assert len(calls) == 2


@pytest.mark.parametrize("gradient", [False, True])
def test_files_have_the_planned_size(gradient, measured, tmp_path):
    """Within a tenth; a gradient leaves its relaxed densities in the file."""
    molecule = MOLECULES["methanol radical in a field"]
    given = {**BASIS, "threads": 1, "allow_poor_fit": True}
    planned = dfmp2.plan(molecule, **given, gradient=gradient).to_dict()
    if gradient:
        result = dfmp2.gradient(molecule, **given).result
    else:
        result = dfmp2.run(molecule, **given)
    dfmp2.write(result, tmp_path / "x.h5")
    written = (tmp_path / "x.h5").stat().st_size
    assert planned["memory_bytes"]["disk"] == pytest.approx(written, rel=0.1)


def test_plan_measures_the_folder_when_arrays_go_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rates, "measure_rates", lambda backend, count: Rates())
    monkeypatch.setattr(rates, "SIZE", rates.CHUNK)
    command = [
        "plan",
        str(INPUTS / "h2o.xyz"),
        "--basis",
        "cc-pvdz",
        "--threads",
        "1",
        "--scratch",
        str(tmp_path),
    ]
    assert main(command) == 0
    assert "traffic:" not in capsys.readouterr().out
    assert rates.load_disk(tmp_path) is None
    set_variant(monkeypatch, disk=True)
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["scratch"]
    assert facts["rates"] == "measured on this host"
    assert facts["read_bytes"] > facts["written_bytes"] > 0
    assert rates.load_disk(tmp_path).read == facts["bytes_per_second"]["read"]
    assert rates.load_disk(tmp_path).cached > 1e7
    assert main([*command, "--memory", "200MB"]) == 0  # far less than is free
    assert "it stays in the system's memory" in capsys.readouterr().out
    monkeypatch.setattr(planning.resources, "available_memory", lambda: 0)
    assert main([*command, "--memory", "200MB"]) == 0
    said = capsys.readouterr().out
    assert " written at " in said and "no memory free for it" in said


def test_bytes_foreseen_are_the_bytes_moved(monkeypatch, tmp_path):
    plans = []
    make_plan = planning.make_plan

    def remember(*given, **more):
        plans.append(make_plan(*given, **more))
        return plans[-1]

    set_variant(monkeypatch, disk=True)
    monkeypatch.setattr(planning, "make_plan", remember)
    given = {"precision": "fp64", "threads": 1, "scratch": str(tmp_path), "stability": "off"}
    result = dfmp2.run(INPUTS / "nh2.xyz", "sto-3g", memory=3 * 10**9, **given)
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    assert result.memory.measured_peak == pytest.approx(peak, rel=0.05)
    [plan] = plans
    foreseen = plan.traffic
    assert result.memory.budget == 3 * 10**9
    assert result.memory.predicted_peak == plan.memory.predicted_peak
    assert result.storage.predicted == plan.memory.scratch
    assert result.predicted == plan.timings
    assert foreseen.written == result.storage.written
    # Except for the number of iterations
    others = result.storage.read - (foreseen.read - foreseen.scf_read)
    builds = others / foreseen.scf_written
    assert builds == pytest.approx(result.reference.cycles + 1, rel=1e-4)


@pytest.mark.usefixtures("measured")
def test_a_disk_without_room_for_scratch_files_is_what_has_to_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Down to the byte: the size written, and the space left free beside it; another disk does not
    matter. Two plans of one process may differ by what earlier runs left in memory."""
    monkeypatch.setattr(rates, "SIZE", rates.CHUNK)
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


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    "asked", [("nh2.xyz",), ("h2o.xyz", "--method", "ks", "--xc", "pbe")], ids=["UHF", "KS"]
)
def test_the_least_memory_of_a_plan_suffices_for_the_run(
    asked: tuple[str, ...], tmp_path: Path
) -> None:
    """The process of a run has loaded more than that of its plan when it checks memory."""
    molecule, *options = asked
    command = (str(INPUTS / molecule), "--basis", "cc-pvdz", "--threads", "1", *options)
    planned = succeed(run_command("plan", *command, "--json", cwd=tmp_path))
    least = -(-planned.json["memory_bytes"]["least"] // 10**6)
    files = ("--output", "x.h5", "--quiet")
    done = run_command("run", *command, *files, "--memory", f"{least}MB", cwd=tmp_path)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("asked", "weighed"),
    [
        ({"precision": "mixed"}, True),
        ({"precision": "fp64"}, False),
        ({"precision": "mixed", "backend": "cpu"}, False),
        ({"method": "drpa"}, False),
    ],
)
def test_only_pair_energies_that_may_be_float32_are_weighed_for_trainium(
    asked: dict[str, Any], weighed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def weigh(*given: Any) -> tuple[None, str]:
        calls.append(given)
        return None, "the host is faster"

    monkeypatch.setattr("dfmp2.planning.plan.weigh_trainium", weigh)
    monkeypatch.setattr(rates, "measure_rates", lambda backend, count: Rates())
    molecule = Molecule(("H", "F"), [[0.0, 0.0, 0.0], [0.1, 0.2, 1.7]])
    planning.foresee(
        molecule, make_options(basis="sto-3g", threads=1, **asked), Silent(), calibrate=False
    )
    assert bool(calls) == weighed


def test_a_plan_doubts_units_as_a_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of atoms that are too far apart for their element, as lengths in bohr read as angstrom."""
    monkeypatch.setattr(rates, "measure_rates", lambda backend, count: Rates())
    stretched = Molecule(("H", "F"), [[0.0, 0.0, 0.0], [0.1, 0.2, 3.3]])
    options = make_options(basis="sto-3g", threads=1)
    heard = Heard()
    planning.foresee(stretched, options, heard, calibrate=False)
    of_a_run = Heard()
    dfmp2.run(stretched, "sto-3g", threads=1, allow_small_gap=True, listener=of_a_run)
    (warning,) = heard.warnings
    doubt, _, _ = warning.partition(": ")  # what to do about it is said in the words of Python
    assert "covalent radii" in doubt
    assert any(one.startswith(doubt) for one in of_a_run.warnings)


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("disk", [False, True])
def test_numbers_of_a_plan_in_json(disk, monkeypatch, tmp_path):
    """A radical with frozen orbitals of both kinds, among ghosts: sizes as in PySCF, everything
    else by the names of its parts."""
    set_variant(monkeypatch, disk=disk)
    monkeypatch.setattr(rates, "SIZE", rates.CHUNK)
    monkeypatch.setattr("dfmp2.output.plan.free_disk", only_free_in(tmp_path, 10**13, 0))
    molecule = read("multiplicity=2", "C 0.1 0 0", "N 0 0.2 1.17", "@He 1.5 0.3 -1.1")
    given = {**BASIS, "frozen_core": "2", "frozen_virtual": 1, "allow_poor_fit": True}
    given |= {"threads": 3, "memory": "3GB", "scratch": str(tmp_path), "gradient": True}
    outlook = dfmp2.plan(molecule, **given)
    found, plan, memory = outlook.to_dict(), outlook.plan, outlook.plan.memory
    assert found["sizes"] == {
        "natom": 3,
        "nelectron": 13,
        "nao": 9 + 9 + 2,
        "naux_scf": mole_of(molecule, BASIS["scf_auxbasis"]).nao,
        "naux": mole_of(molecule, BASIS["auxbasis"]).nao,
        "frozen_core": 2,
        "nocc": [5, 4],
        "nvir": [12, 13],
        "tiles": plan.tiles,
    }
    orbitals = "5 alpha and 4 beta occupied, 12 alpha and 13 beta virtual orbitals"
    assert orbitals in " ".join(str(outlook).split())
    pairs, densities = 5**2 + 4**2 + 5 * 4, 2 * 2 * 20**2
    fitted = (5 * 12 + 4 * 13) * plan.work.naux
    assert found["memory_bytes"] == {
        "program": memory.program,
        "scf": memory.scf,
        "scf_gathered": 0,
        "mp2": memory.mp2,
        "gradient": memory.gradient.peak,
        "peak": memory.predicted_peak,
        "budget": 3 * 10**9,
        "least": memory.least,
        "comfortable": memory.comfortable,
        "device": 0,
        "disk": 116_000 + 8 * (2 * 20 * 22 + pairs + densities),
        "prepared": 75_000 + 8 * (2 * 20 * 22 + fitted),
    }
    traffic = plan.traffic
    scratch = found["scratch"]
    assert scratch["bytes"] == memory.scratch and (scratch["bytes"] > 0) == disk
    assert scratch["written_bytes"] == traffic.scf_written + traffic.fit_written
    taken = traffic.scf_read + traffic.fit_read + traffic.pairs_read
    assert scratch["read_bytes"] == taken and (taken > 0) == disk
    assert (scratch["free_bytes"], scratch["cached"]) == (10**13, traffic.cached)
    places = (scratch["scf_integrals"], scratch["fitted_tensor"])
    assert places == (("disk", "disk") if disk else ("memory", "memory"))
    speed = plan.disk or rates.BUILT_IN
    assert scratch["bytes_per_second"] == {
        "write": speed.write,
        "read": speed.read,
        "cached": speed.cached,
        "date": speed.date,
    }
    assert found["flops"] == plan.work.flops() and found["flops"]["transform"] > 0
    stages = ("scf", "integrals", "fit", "transform", "pair_energies", "fitting_certificate")
    seconds = {name: getattr(plan.timings, name) for name in (*stages, "gradient", "total")}
    command = seconds["total"] + plan.rates.launch
    assert found["seconds"] == {**seconds, "command": command} and plan.rates.launch > 0
    assert found["rates_measured"]["foreign_cores"] == plan.rates.foreign
    assert found["threads"] == 3
    for name in ("scf_fitting", "mp2_fitting"):
        of = found[f"{name}_error"]["elements"]
        assert of == {symbol: getattr(outlook.system, name).errors[symbol] for symbol in "CN"}
        assert found[f"{name}_error"]["sum"] == pytest.approx(of["C"] + of["N"], rel=1e-12)
