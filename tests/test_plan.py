"""Plans: operations counted by hand, memory that refuses and advises, rates measured once and kept."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import dfmp2
from dfmp2 import calibration, forecast, host_cache, memory
from dfmp2.backends.cpu import CpuBackend
from dfmp2.cli.main import main
from dfmp2.errors import ResourceError
from dfmp2.record import Timings
from dfmp2.workload import CYCLES, Spin, Workload

WATER = Workload(nao=24, naux_scf=116, naux=84, spins=(Spin(5, 5, 19),), precision="fp64", block_functions=84)
MEGABYTE = 10**6


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_operations_of_water_counted_by_hand():
    assert WATER.pairs_of_functions == 300
    assert WATER.elements == 95
    flops = WATER.flops()
    assert flops["pairs_fp64"] == 15 * 19 * 19 * 84 * 2  # 15 pairs i <= j, one multiply-add per (a, b, P)
    assert flops["pairs_mixed"] == 0
    assert flops["scf_fit"] == 116 * 116 * 300
    assert flops["fit"] == 84 * 84 * 95
    assert flops["transform"] == 2 * 84 * 5 * 24 * (24 + 19)
    assert flops["exchange"] == (CYCLES + 1) * (3 * 116 * 24 * 24 * 5 + 4 * 116 * 300)
    assert WATER.integrals() == {"scf": 116 * 300, "integrals": 84 * 300}


def test_open_shell_counts_three_channels():
    work = replace(WATER, spins=(Spin(5, 4, 19), Spin(4, 3, 20)))
    pairs = 10 * 19 * 19 + 6 * 20 * 20 + 4 * 3 * 19 * 20
    assert work.flops()["pairs_fp64"] == 2 * 84 * pairs


def test_mixed_precision_adds_the_certificate():
    flops = replace(WATER, precision="auto").flops()
    assert flops["pairs_mixed"] == WATER.flops()["pairs_fp64"]
    assert flops["pairs_fp64"] == flops["pairs_mixed"]  # 15 pairs: all are redone


def test_conventional_scf_counts_four_centre_integrals():
    assert replace(WATER, naux_scf=0).integrals()["scf"] == 300 * 301 // 2


def planned(work, budget):
    return memory.plan(work, program=100 * MEGABYTE, budget=budget, workers=2, limits=CpuBackend(2).limits)


LARGE = Workload(nao=490, naux_scf=2366, naux=1708, spins=(Spin(81, 81, 409),), precision="auto", block_functions=66)


def test_memory_counts_the_large_arrays():
    plan = planned(LARGE, 10**10)
    b = 81 * 409 * 1708
    assert plan.mp2 > b * 12
    assert plan.scf_in_core > 2366 * 490 * 491 // 2 * 8
    assert plan.fits
    assert plan.predicted_peak == pytest.approx(2.6e9, rel=0.1)  # 2.54 GB were measured


def test_scf_goes_to_disk_before_a_run_is_refused():
    plan = planned(LARGE, 1_300 * MEGABYTE)
    assert plan.fits
    assert not plan.scf_fits_in_core
    assert plan.predicted_peak <= plan.budget


def test_impossible_budget_is_refused_with_the_smallest_that_works():
    plan = planned(LARGE, 200 * MEGABYTE)
    with pytest.raises(ResourceError, match=rf"--memory {-(-plan.least // MEGABYTE)}MB") as error:
        plan.require()
    assert "200.00 MB may be used" in str(error.value)
    planned(LARGE, -(-plan.least // MEGABYTE) * MEGABYTE).require()


def test_time_is_operations_over_rate():
    rates = forecast.Rates()
    slow, fast = (forecast.seconds(LARGE, r) for r in (rates, replace(rates, pairs_mixed=2 * rates.pairs_mixed)))
    assert slow.total - fast.total == pytest.approx(LARGE.flops()["pairs_mixed"] / rates.pairs_mixed / 2)
    stages = (slow.scf, slow.integrals, slow.fit, slow.transform, slow.pair_energies)
    assert slow.total == pytest.approx(sum(stages) + rates.start)
    assert all(stage > 0 for stage in stages)


def test_rates_are_kept_per_backend_and_threads():
    rates = replace(forecast.Rates(), integrals=1.25e8)
    assert calibration.load("cpu", 2) is None
    calibration._store("cpu", 2, rates)
    calibration._store("torch", 2, forecast.Rates())
    assert calibration.load("cpu", 2) == rates
    assert calibration.load("cpu", 1) is None


def test_damaged_cache_is_measured_again():
    calibration._store("cpu", 2, forecast.Rates())
    host_cache.path().write_text("{ not json")
    assert calibration.load("cpu", 2) is None
    calibration._store("cpu", 2, forecast.Rates())
    assert calibration.load("cpu", 2) == forecast.Rates()


def test_unwritable_cache_does_not_stop_a_plan(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    calibration._store("cpu", 2, forecast.Rates())
    assert calibration.load("cpu", 2) is None


def test_measured_rates_are_positive_and_mixed_is_faster():
    rates = calibration.measure(CpuBackend(1), 1)
    assert all(value > 0 for value in (rates.integrals, rates.exchange, rates.solve, rates.transform, rates.eigen))
    assert rates.pairs_mixed > 1.2 * rates.pairs_fp64
    assert calibration.load("cpu", 1) == rates


def fixed_rates(monkeypatch, calls):
    def measure(backend, count):
        calls.append((backend.name, count))
        calibration._store(backend.name, count, forecast.Rates())
        return forecast.Rates()

    monkeypatch.setattr(calibration, "measure", measure)


def test_plan_command_measures_once_and_prints_every_key(monkeypatch, capsys):
    calls = []
    fixed_rates(monkeypatch, calls)
    arguments = ["plan", "inputs/h2o.xyz", "--basis", "cc-pvdz", "--threads", "1", "--json"]
    assert main(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts) >= {"sizes", "memory_bytes", "flops", "seconds", "backend", "reason", "fits"}
    assert facts["sizes"]["nao"] == 24
    assert facts["fits"] is True
    assert facts["seconds"]["total"] > 0
    assert main(arguments) == 0
    assert calls == [("cpu", 1)]
    assert main([*arguments, "--calibrate"]) == 0
    assert len(calls) == 2


def test_plan_names_the_smallest_change(monkeypatch, capsys):
    fixed_rates(monkeypatch, [])
    assert main(["plan", "inputs/c20h42.xyz", "--basis", "cc-pvdz", "--memory", "150MB", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fits"] is False
    assert facts["change"].startswith("--memory ")
    assert main(["plan", "inputs/c20h42.xyz", "--basis", "cc-pvdz", "--memory", "150MB"]) == 0
    assert "does not fit: use --memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["missing.xyz", "--basis", "cc-pvdz"], 3),
        (["inputs/h2o.xyz", "--basis", "nonsense"], 3),
        (["inputs/h2o.xyz", "--basis", "cc-pvdz", "--backend", "nki"], 6),
        (["inputs/h2o.xyz"], 2),
    ],
)
def test_plan_refuses_what_a_run_refuses(arguments, code, capsys):
    assert main(["plan", *arguments]) == code
    assert capsys.readouterr().out == ""


def test_a_run_stores_prediction_beside_measurement():
    result = dfmp2.run("inputs/h2o.xyz", "cc-pvdz", stability="off")
    assert isinstance(result.predicted, Timings)
    assert result.predicted.total > result.predicted.scf > 0
    assert result.memory.predicted_peak == pytest.approx(result.memory.measured_peak, rel=0.5)
