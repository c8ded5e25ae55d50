"""Estimates for other machines: the queue against closed forms, batches against their shards, files that are wrong."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dfmp2 import calibration
from dfmp2.backends.base import Tile
from dfmp2.backends.cpu import CpuBackend
from dfmp2.batch.manifest import read_manifest
from dfmp2.batch.order import Work
from dfmp2.batch.outlook import foresee
from dfmp2.cli.main import main
from dfmp2.errors import InputError
from dfmp2.fleet import many
from dfmp2.fleet.instances import Fleet, Instance, read_fleet
from dfmp2.fleet.item import share_of, timings
from dfmp2.fleet.job import IMPORT_TORCH, make_job
from dfmp2.fleet.large import Job, Network, Pieces, falls_under, spread_out
from dfmp2.fleet.outlook import estimate_many
from dfmp2.fleet.queue import Store, drain
from dfmp2.fleet.rates import Host, rates_on
from dfmp2.fleet.strips import Channel
from dfmp2.fleet.tile_file import read_tiles, write_tiles
from dfmp2.fleet.tiles import drawn, from_rates, measure, queue
from dfmp2.forecast import Rates, seconds
from dfmp2.scratch.speed import DiskRates
from dfmp2.workload import Spin, Workload
from tests.conftest import write_molecules

NO_WAIT = Store()
GLYCINE = Workload(95, 467, 350, (Spin(20, 20, 75),), "mixed", 350)
RADICAL = Workload(24, 116, 84, (Spin(5, 5, 19), Spin(4, 4, 20)), "fp64", 84)
HOST = Host(Rates(), 2, DiskRates(), True)
PLAIN = Instance("plain", 2, 2, 8 * 10**9, 0.5, "2026-11-21", "a test", "2026-11-21")
EXAMPLE = Path(__file__).parent.parent / "inputs" / "fleet" / "example.toml"
LONE = Network(NO_WAIT, math.inf, None, 10**6)  # one huge instance


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# The queue


@pytest.mark.parametrize(("tiles", "ranks"), [(1, 1), (7, 1), (7, 7), (7, 2), (378, 16), (378, 256), (5, 1024)])
def test_identical_tiles_take_whole_rounds(tiles, ranks):
    course = drain([0.25] * tiles, ranks, NO_WAIT)
    assert course.makespan == pytest.approx(0.25 * math.ceil(tiles / ranks))
    assert sum(course.tiles) == tiles and max(course.tiles) == math.ceil(tiles / ranks)


def test_one_rank_takes_the_sum_and_a_request_more_than_there_are_tiles():
    times = [0.5, 0.25, 0.125]
    assert drain(times, 1, NO_WAIT).makespan == sum(times)
    assert drain(times, 1, Store(0.01, 0.001)).makespan == pytest.approx(sum(times) + 4 * 0.01)


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_order_keeps_grahams_bound_and_large_first_the_sharper_one(ranks):
    chance = random.Random(ranks)
    for _ in range(10):
        times = [chance.random() for _ in range(7)]
        best = min(
            max(sum(time for time, owner in zip(times, owners, strict=True) if owner == k) for k in range(ranks))
            for owners in itertools.product(range(ranks), repeat=len(times))
        )
        assert best * 0.999 <= drain(times, ranks, NO_WAIT).makespan <= (2 - 1 / ranks) * best * 1.001
        large_first = drain(sorted(times, reverse=True), ranks, NO_WAIT).makespan
        assert best * 0.999 <= large_first <= (4 / 3 - 1 / (3 * ranks)) * best * 1.001


def test_the_counter_limits_many_ranks_to_one_request_per_service():
    tiles, ranks, store = 500, 100, Store(latency=10.0, service=1.0)
    course = drain([0.0] * tiles, ranks, store)
    assert course.makespan == pytest.approx(store.latency + (tiles + ranks - 1) * store.service)
    slower = drain([0.0] * tiles, 2 * ranks, store)
    assert slower.makespan > course.makespan  # every rank more asks once more


def test_few_ranks_wait_for_the_wire_and_never_for_each_other():
    course = drain([1.0] * 10, 2, Store(latency=0.5, service=0.0))
    assert course.makespan == pytest.approx(5 * 1.5 + 0.5)
    assert course.asking == pytest.approx(12 * 0.5)


def test_a_counter_busier_than_its_latency_is_refused():
    with pytest.raises(ValueError, match="service"):
        Store(1e-5, 2e-5)


# Tiles


def test_the_queue_holds_every_pair_once():
    for work, pairs in ((GLYCINE, 20 * 21 // 2), (RADICAL, 15 + 10 + 20)):
        assert sum(kind.pairs for kind in queue(work, CpuBackend(1).limits)) == pairs


def test_tile_times_from_rates_add_up_to_the_forecast():
    kinds = queue(GLYCINE, CpuBackend(1).limits)
    work = replace(GLYCINE, precision="fp64")
    assert sum(from_rates(work, kinds, Rates())) == pytest.approx(seconds(work, Rates()).pair_energies)


def test_measured_tiles_are_kept_drawn_and_replayed(tmp_path):
    times = measure(RADICAL, CpuBackend(1), 1, "here")
    kinds = queue(RADICAL, CpuBackend(1).limits)
    assert set(times.seconds) == {kind.name() for kind in kinds}
    write_tiles(tmp_path / "tiles.json", times, overwrite=False)
    assert read_tiles(str(tmp_path / "tiles.json")) == times
    assert drawn(kinds, times, 1) == drawn(kinds, times, 1) != drawn(kinds, times, 2)
    assert drawn(kinds, times, None)[0] == times.seconds[kinds[0].name()][0]
    broken = {**json.loads((tmp_path / "tiles.json").read_text()), "seconds": {"00 1x1": [-1]}}
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    with pytest.raises(InputError, match="not a positive number"):
        read_tiles(str(tmp_path / "broken.json"))


# One molecule on many ranks


PIECES = {"integrals": Pieces(2.0, 10, 1), "fit": Pieces(10.0, 1, 1)}


def one_row(seconds):
    """A channel of tiles in a row: as many columns as tiles."""
    return Channel(tuple(Tile(0, 1, j, j + 1, False) for j in range(len(seconds))), tuple(seconds), 0)


def triangle(edge, seconds, row_bytes=0):
    """A channel of whole tiles i <= j."""
    tiles = tuple(Tile(i, i + 1, j, j + 1, False) for i in range(edge) for j in range(i, edge))
    return Channel(tiles, (seconds,) * len(tiles), row_bytes)


JOB = Job({"start": 1.0, "scf": 9.0}, PIECES, (triangle(15, 0.5, 10**6),), 1, 10**9, 10**5)


@pytest.mark.parametrize("ranks", [1, 2, 5, 8, 64, 1024])
def test_losses_explain_all_that_is_missing(ranks):
    network = Network(Store(1e-3, 1e-4), 1e9, DiskRates(2e9, 4e9), 4)
    row = spread_out(JOB, ranks, network)
    assert row.single == pytest.approx(100.0)
    assert row.total == pytest.approx(row.single / ranks + sum(row.losses.values()))
    assert all(loss > -1e-12 for loss in row.losses.values())
    assert row.efficiency <= 1.0 + 1e-12


def test_the_whole_job_follows_amdahl_where_everything_else_is_free():
    job = Job({"scf": 10.0}, {}, (one_row((0.01,) * 9000),), 1, 0, 0)
    assert job.serial_fraction == pytest.approx(0.1)
    for ranks in (2, 10, 100):
        assert spread_out(job, ranks, LONE).speedup == pytest.approx(1 / (0.1 + 0.9 / ranks))


@pytest.mark.parametrize(
    ("tiles", "network", "ranks", "reason"),
    [
        ((1.0,) * 10, LONE, 32, "too few tiles (10 for 32)"),
        ((12.0,) + (0.1,) * 100, LONE, 4, "the longest tile (12 s)"),
        ((1e-3,) * 5000, Network(Store(1e-4 / 6, 1e-4 / 6), math.inf, None, 10**6), 32, "shared counter"),
        ((1e-2,) * 5000, Network(NO_WAIT, 1e9, None, 1, tiles_only=True), 2, "B has to be written"),
    ],
)
def test_the_pair_step_says_why_it_stops_scaling(tiles, network, ranks, reason):
    job = Job({}, {}, (one_row(tiles),), 1, 4 * 10**10 if "B has" in reason else 0, 0)
    rows = [spread_out(job, 2**k, network) for k in range(11)]
    first = falls_under(rows, pairs_only=True)
    assert first is not None
    assert first.ranks == ranks
    assert reason in first.reason(pairs_only=True)


def test_on_several_instances_ranks_take_strips_of_rows():
    apart = Network(NO_WAIT, math.inf, None, 1)
    job = Job({}, {}, (triangle(8, 1.0),), 1, 0, 0)
    assert spread_out(job, 1, apart).stages["pairs"] == 36.0
    # 36 tiles in strips of 8, 7, ..., 1: nobody ends before the first strip does
    assert [spread_out(job, ranks, apart).stages["pairs"] for ranks in (2, 3, 4, 8)] == [18.0, 13.0, 9.0, 8.0]
    rows = [spread_out(job, 2**k, apart) for k in range(5)]
    assert falls_under(rows, pairs_only=True).ranks == 16
    assert rows[-1].reason(pairs_only=True) == "too few strips of rows (8 for 16)"
    assert spread_out(job, 16, replace(apart, tiles_only=True)).stages["pairs"] == 3.0


def test_b_goes_through_common_storage_once_more_than_it_is_written():
    shared = Network(NO_WAIT, 1e9, DiskRates(1e9, 4e9), 8)
    assert spread_out(JOB, 8, shared).stages["B"] == 0.0
    assert spread_out(JOB, 16, shared).stages["B"] == pytest.approx(2.0 + 0.5)  # two links give 2 GB/s
    assert spread_out(JOB, 64, shared).stages["B"] == pytest.approx(2.0 + 0.25)  # storage gives 4 GB/s
    slow = Network(NO_WAIT, math.inf, DiskRates(1e9, 16e6), 1)
    # fifteen strips of one row share 16 MB/s, and the first one reads all rows, 15 MB; the sixteenth rank has nothing
    assert spread_out(JOB, 16, slow).stages["pairs"] == pytest.approx(15.0 / (16 / 15))


def test_a_job_on_one_rank_is_a_run_without_ranks():
    job = make_job(GLYCINE, PLAIN, HOST)
    assert job.single == pytest.approx(seconds(GLYCINE, HOST.rates).total + IMPORT_TORCH)
    assert job.at_once == 2
    halves = make_job(GLYCINE, replace(PLAIN, ranks=2), HOST)
    assert halves.at_once == 1
    assert halves.channels == job.channels
    assert halves.serial["scf"] > 1.3 * job.serial["scf"]  # rank 0 has half of the cores
    assert make_job(GLYCINE, replace(PLAIN, factor=2.0), HOST).computing == pytest.approx(job.computing / 2)


def test_nothing_to_correlate_is_nothing_to_spread_out():
    with pytest.raises(InputError, match="nothing to share"):
        make_job(replace(GLYCINE, spins=(Spin(1, 0, 94),)), PLAIN, HOST)


def test_a_rank_with_threads_takes_several_tiles_at_once():
    job = Job({}, {}, (one_row((1.0,) * 8),), 4, 0, 0)
    assert [spread_out(job, ranks, LONE).stages["pairs"] for ranks in (1, 2, 3)] == [2.0, 1.0, 1.0]


# Many molecules


def works(costs):
    return [many.Molecule(f"m{k}", GLYCINE, Work(k, cost, "s", "")) for k, cost in enumerate(costs)]


def test_identical_items_divide_among_instances_and_cost_the_same():
    one = timings(GLYCINE, PLAIN, share_of(PLAIN, 1), HOST).total - Rates().start + 0.1
    found, misfits = many.estimate(works([1.0] * 8), replace(PLAIN, boot=30.0), (1, 2, 8), HOST)
    assert not misfits
    for row in found:
        assert row.wall == pytest.approx(30.0 + Rates().start + one * 8 / row.count)
        assert row.hours == pytest.approx((row.count * (30.0 + Rates().start) + 8 * one) / 3600)
        assert row.cost == pytest.approx(0.5 * row.hours)
        assert row.balance == pytest.approx(1.0)


def test_spot_interruptions_are_paid_for():
    calm, rough = (
        many.estimate(works([1.0] * 8), replace(PLAIN, boot=30.0, interruptions=rate), (2,), HOST)[0][0]
        for rate in (0.0, 60.0)
    )
    assert rough.interruptions == pytest.approx(60.0 * calm.hours)
    assert rough.hours == pytest.approx(calm.hours + rough.interruptions * 35.0 / 3600)  # a boot and 5 s of work
    assert rough.wall > calm.wall


def test_what_does_not_fit_is_named_with_what_it_needs():
    large = replace(GLYCINE, nao=2000, naux_scf=9000, naux=7000, spins=(Spin(300, 300, 1700),))
    items = [*works([1.0]), many.Molecule("giant", large, Work(1, 9.0, "s", ""))]
    [row], [misfit] = many.estimate(items, replace(PLAIN, memory=400 * 10**6), (1,), HOST)
    assert row.items == 1
    assert misfit.item == "giant" and misfit.instance == "plain"
    assert "needs" in misfit.reason and "360.00 MB" in misfit.reason


def test_workers_of_an_instance_take_the_next_item():
    assert many.makespan([4.0, 3.0, 2.0, 1.0], 2) == 5.0
    assert many.makespan([4.0, 3.0, 2.0, 1.0], 1) == 10.0
    assert many.makespan([], 3) == 0.0


def test_trainium_replaces_pair_energies_only_and_refuses_fp64():
    chip = replace(PLAIN, accelerator="trn1", accelerators=2)
    work = replace(GLYCINE, spins=(Spin(20, 20, 75),))
    ours, host = (timings(work, one, share_of(one, 1), HOST) for one in (chip, PLAIN))
    assert ours.scf == host.scf and ours.pair_energies != host.pair_energies
    exact = [many.Molecule("exact", replace(work, precision="fp64"), Work(0, 1.0, "s", ""))]
    assert "fp64" in many.estimate(exact, chip, (1,), HOST)[1][0].reason


# The command


MANIFEST = 'basis = "cc-pvdz"\noutput = "out"\n' + "".join(
    f'[[item]]\nmolecule = "{name}.xyz"\n' for name in ("h2o", "nh2", "h2", "o2", "nah")
)


@pytest.fixture
def batch(tmp_path, monkeypatch):
    write_molecules(tmp_path)
    (tmp_path / "batch.toml").write_text(MANIFEST)
    monkeypatch.chdir(tmp_path)
    return read_manifest("batch.toml")


def test_an_instance_like_this_host_takes_what_batch_plan_says(batch):
    count = estimate_many(batch, Fleet("", "USD", (PLAIN,)), (1,), chained=False)[2].threads
    calibration._store("cpu", count, replace(Rates(), integrals=3.0e7))
    alike = replace(PLAIN, vcpus=count, cores=count, boot=7.0)
    found, misfits, host = estimate_many(batch, Fleet("", "USD", (alike,)), (1, 2, 3), chained=False)
    assert host.measured and not misfits
    for row in found:
        loads = foresee(batch, row.count).loads
        assert row.wall == pytest.approx(7.0 + host.rates.start + max(loads))


def test_fleet_command_prints_prices_dates_and_the_word_predicted(batch, capsys):
    assert main(["batch", "plan", "batch.toml", "--fleet", str(EXAMPLE), "--instances", "1,4"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("predicted, not measured")
    assert "2026-11-21 (example value, not a quotation)" in text
    assert "no device has confirmed" in text
    assert main(["batch", "plan", "batch.toml", "--fleet", str(EXAMPLE), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {(row["instance"], row["count"]) for row in facts["estimates"]} >= {("example-8", 1), ("example-64", 8)}
    assert all(row["items"] == 5 for row in facts["estimates"])


def test_one_molecule_is_spread_over_ranks(batch, capsys):
    common = ["--store-latency", "100,20", "--json"]
    one = ["batch", "plan", "h2o.xyz", "--basis", "cc-pvdz", "--threads", "1"]
    assert main([*one, "--measure-tiles", "tiles.json", "--ranks", "1,2,64", *common]) == 0
    facts = json.loads(capsys.readouterr().out)
    [here] = facts["instances"]
    assert [row["ranks"] for row in here["ranks"]] == [1, 2, 64]
    assert here["ranks"][0]["pair_efficiency"] == pytest.approx(1.0)
    assert here["ranks"][2]["cost"] is None
    assert here["under_half"]["pairs"] == {
        "ranks": 2,
        "reason": "requests to the shared counter",
    }  # tiles of microseconds
    assert any("drawn with seed 0" in line for line in facts["assumptions"])
    fleet = ["--fleet", str(EXAMPLE), "--instances", "1,2", "--tiles", "tiles.json", "--replay"]
    assert main(["batch", "plan", "batch.toml", "--molecule", "nh2", *fleet, *common]) == 3
    assert "tile times of nocc, nvir, naux 5/19/84" in capsys.readouterr().err
    assert main([*one, *fleet, *common]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["ranks"] for row in facts["instances"][0]["ranks"]] == [1, 2]
    trainium = facts["instances"][-1]
    assert trainium["instance"] == "example-trn1"
    assert [(row["ranks"], row["instances"]) for row in trainium["ranks"]] == [(2, 1), (4, 2)]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["batch.toml", "--molecule", "nobody"], 3, "--molecule nobody"),
        (["batch.toml", "--ranks", "4"], 3, "expected one of the batch's items"),
        (["batch.toml", "--basis", "cc-pvdz"], 3, "--basis belongs to FILE.xyz"),
        (["batch.toml", "--instances", "2"], 3, "--instances without --fleet"),
        (["batch.toml", "--fleet", str(EXAMPLE), "--shards", "2"], 3, "--shards belongs to this machine"),
        (["h2o.xyz"], 3, "no --basis"),
        (["h2o.xyz", "--basis", "cc-pvdz", "--ranks", "0"], 3, "--ranks '0'"),
        (["batch.toml", "--fleet", "missing.toml"], 3, "missing.toml: no such file"),
    ],
)
def test_wrong_requests_are_named(batch, capsys, arguments, code, named):
    assert main(["batch", "plan", *arguments]) == code
    assert named in capsys.readouterr().err


# The file of machines


def test_the_example_says_that_its_prices_are_none():
    fleet = read_fleet(str(EXAMPLE))
    assert all("not a quotation" in one.price_source for one in fleet.instances)
    assert {one.accelerator for one in fleet.instances} == {"", "trn1"}


GOOD = {
    "currency": "EUR",
    "instance": [
        {
            "name": "a", "vcpus": 4, "memory": "8GB", "price_per_hour": 1, "price_date": "2026-11-21",
            "price_source": "a bill", "rate_factor": 1.5, "rates_date": "2026-11-20",
        }
    ],
}  # fmt: skip
WRONG = {
    "no price_date": {"price_date": None},
    "price_date = 'soon': expected a date": {"price_date": "soon"},
    "unknown key 'price_per_hours': expected price_per_hour": {"price_per_hours": 1},
    "price_per_hour = -1": {"price_per_hour": -1},
    "vcpus = 2.5: expected a whole number": {"vcpus": 2.5},
    "has no unit": {"memory": "8"},
    "either rate_factor": {"rate_factor": None},
    "rates without": {"rate_factor": None, "rates": {"integrals": 1e8}},
    "accelerator 'tpu'": {"accelerator": "tpu", "accelerators": 1},
    "belong together": {"accelerator": "trn1"},
}


@pytest.mark.parametrize("named", WRONG)
def test_a_wrong_fleet_names_the_key(tmp_path, named):
    table = {key: value for key, value in {**GOOD["instance"][0], **WRONG[named]}.items() if value is not None}
    (tmp_path / "fleet.json").write_text(json.dumps({**GOOD, "instance": [table]}))
    with pytest.raises(InputError) as error:
        read_fleet(str(tmp_path / "fleet.json"))
    assert named in str(error.value)


def test_absolute_rates_are_those_of_the_whole_instance(tmp_path):
    rates = {**asdict(Rates()), "pairs_mixed": 8.0e11}
    table = {**GOOD["instance"][0], "rates": rates}
    del table["rate_factor"]
    (tmp_path / "fleet.json").write_text(json.dumps({**GOOD, "instance": [table]}))
    [found] = read_fleet(str(tmp_path / "fleet.json")).instances
    assert rates_on(found, 4, HOST).pairs_mixed == 8.0e11
    assert rates_on(found, 1, HOST).pairs_mixed == 2.0e11
    assert rates_on(found, 1, HOST).eigen == Rates().eigen  # a diagonalisation gains nothing from more cores
