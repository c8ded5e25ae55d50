"""`bench --shape`, `--scaling`, `--gemm`: known energies, counted operations, and what `auto` does with the record."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dfmp2 import calibration, host_cache, product_rates
from dfmp2.bench import gemm, limits, machine, products, scaling, shapes
from dfmp2.bench.alkane import alkane
from dfmp2.bench.limits import Ceilings
from dfmp2.errors import ComparisonFailed, InputError
from dfmp2.forecast import Rates
from dfmp2.io import hdf5
from dfmp2.io.xyz import read_xyz
from dfmp2.product_rates import ProductRates
from dfmp2.progress import Listener
from tests.conftest import Runner, Stored, succeed

TABLES = str(Path(__file__).parent.parent / "scripts" / "benchmark_tables.py")
INPUTS = Path(__file__).parent.parent / "inputs"


class Quiet(Listener):
    def warning(self, text: str) -> None:
        """Other processes may be at work while the tests run."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Products and waits that take no time, and a cache of our own."""
    monkeypatch.setattr(products, "SQUARE_HOST", 256)
    monkeypatch.setattr(products, "SHAPED_SECONDS", 0.02)
    monkeypatch.setattr(machine, "WATCHED", 0.05)
    monkeypatch.setattr(limits, "EVALUATED", 100_000)
    monkeypatch.setattr(limits, "STREAMED", 1 << 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- the pair step ---


@pytest.mark.parametrize(
    ("name", "sizes"),  # nocc, nvir, naux: of the shapes (nvir = nao - nocc) and of the GAMESS mini-app
    [
        ("small", (16, 112, 384)),
        ("medium", (64, 448, 1536)),
        ("large", (96, 672, 2304)),
        ("benz", (15, 93, 420)),
        ("cor", (54, 282, 1512)),
        ("c60", (120, 360, 3960)),
        ("w30", (120, 570, 2520)),
        ("w60", (240, 1140, 5040)),
        ("50/190/840", (50, 190, 840)),
    ],
)
def test_shapes_are_the_published_ones(name: str, sizes: tuple[int, int, int]):
    task = shapes.problem(name)
    nocc, nvir, naux = sizes
    assert (task.kernel.nocc, task.kernel.nvir, task.kernel.naux) == sizes
    # 2 nvir^2 naux per product, nocc (nocc + 1) / 2 products.
    assert task.operations == 2 * nvir**2 * naux * sum(range(1, nocc + 1))
    if task.kernel.recipe == "closed-form":
        assert task.energy == pytest.approx(-0.5 * nvir**2 * nocc**2 / naux**2, rel=1e-13)


def test_the_pair_step_is_timed_and_its_energy_checked():
    found = shapes.measure(
        "benz", backends=["cpu"], precisions=["fp64", "mixed"], repeats=2, count=2, memory=None, listener=Quiet()
    )
    assert [(one.backend, one.precision) for one in found.measurements] == [("cpu", "fp64"), ("cpu", "mixed")] * 2
    for one in found.measurements:
        assert one.pairs > 0 and one.square > 1e8 and one.shaped > 1e8
        assert abs(one.difference) < (1e-11 if one.precision == "fp64" else 1e-4)
    shapes.judge(found)
    wrong = replace(found.measurements[0], difference=1e-9)
    with pytest.raises(ComparisonFailed, match=r"benz on cpu in fp64: the energy is off by 1\.0e-09 Eh"):
        shapes.judge(replace(found, measurements=(wrong,)))


def test_shape_on_the_command_line(call: Runner, folder: Path):
    done = succeed(call("bench", "--shape", "benz", "--repeats", "1", "--threads", "1", "--json", "shape.json"))
    found = json.loads((folder / "shape.json").read_text())
    assert "never timed here" in done.out and set(found["not_timed"]) >= {"nki"}
    by = {(row["backend"], row["precision"]): row for row in found["results"]}
    assert {("cpu", "fp64"), ("cpu", "mixed"), ("torch", "fp64"), ("torch", "mixed")} <= set(by)
    one = by["cpu", "fp64"]
    operations = 15 * 16 * 93**2 * 420
    assert one["gflops"]["median"] == pytest.approx(operations / one["seconds"]["median"] / 1e9)
    table = subprocess.run(
        [sys.executable, TABLES, "shape.json"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert "| benz (15/93/420) | cpu | fp64 |" in table.stdout
    assert one["percent_of_square"]["median"] == pytest.approx(
        100 * one["gflops"]["median"] / one["square_gflops"]["median"]
    )


# --- the record of products, and auto ---

RECORD = ProductRates(
    products={},
    pairs={"cpu fp64": 1.0e11, "cpu mixed": 2.0e11, "torch fp64": 1.0e11, "torch mixed": 4.0e11},
    torch_import=1.0,
    foreign=0.0,
    date="2026-01-01",
)


def test_auto_takes_torch_only_where_it_is_clearly_faster_and_pays():
    # At twice the rate, half the time is saved: 1.2e12 operations take 6 s with NumPy, 3 s are saved.
    assert product_rates.torch_reason(RECORD, "auto", 1.19e12) is None
    reason = product_rates.torch_reason(RECORD, "auto", 1.21e12)
    assert reason is not None and "400 GF/s and NumPy at 200" in reason and "3 s" in reason
    assert product_rates.torch_reason(RECORD, "mixed", 1e14) is not None
    assert product_rates.torch_reason(RECORD, "fp64", 1e14) is None  # equal rates
    slightly = replace(RECORD, pairs={**RECORD.pairs, "torch mixed": 2.2e11})
    assert product_rates.torch_reason(slightly, "auto", 1e16) is None
    assert product_rates.torch_reason(replace(RECORD, foreign=0.5), "auto", 1e16) is None
    assert product_rates.torch_reason(replace(RECORD, torch_import=None), "auto", 1e16) is None
    assert product_rates.torch_reason(None, "auto", 1e16) is None


def test_the_record_is_kept_per_number_of_threads_and_survives_damage():
    assert product_rates.load(2) is None
    product_rates.store(2, RECORD)
    assert product_rates.load(2) == RECORD and product_rates.load(1) is None
    host_cache.store(host_cache.key("products 2 threads", product_rates.LIBRARIES), {"products": 1})
    assert product_rates.load(2) is None
    host_cache.path().write_text("[1, 2")
    assert product_rates.load(2) is None
    product_rates.store(2, RECORD)
    assert product_rates.load(2) == RECORD


@pytest.mark.parametrize("faster", [True, False])
def test_auto_acts_on_the_record_and_says_so(dfmp2: Runner, faster: bool):
    product_rates.store(1, replace(RECORD, torch_import=0.0) if faster else replace(RECORD, pairs={}))
    arguments = ("--basis", "sto-3g", "--threads", "1", "--json", "--quiet")
    found = succeed(dfmp2("run", "h2o.xyz", *arguments)).json
    assert found["backend"] == ("torch" if faster else "cpu")
    assert ("PyTorch does the pair step at 400 GF/s" in found["backend_reason"]) is faster
    calibration._store(found["backend"], 1, Rates())  # plan measures nothing then
    plan = succeed(dfmp2("plan", "h2o.xyz", "--basis", "sto-3g", "--threads", "1", "--json")).json
    assert plan["backend"] == found["backend"]


def test_without_a_reason_torch_is_never_imported(folder: Path):
    product_rates.store(1, replace(RECORD, pairs={**RECORD.pairs, "torch mixed": 1e11}))
    code = (
        "import sys, dfmp2; dfmp2.run('h2o.xyz', basis='sto-3g', threads=1); raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], cwd=folder, check=False).returncode == 0


def test_gemm_measures_both_libraries_and_keeps_the_record(call: Runner, monkeypatch: pytest.MonkeyPatch):
    plan = {"cpu": Rates(pairs_mixed=3e11), "torch": Rates(pairs_mixed=5e11)}
    monkeypatch.setattr(gemm.calibration, "measure", lambda backend, count: plan[backend.name])
    monkeypatch.setattr(machine.Meter, "foreign", lambda self: 0.0)
    found = succeed(call("bench", "--gemm", "--threads", "2", "--repeats", "1", "--json", "-", "--quiet")).json
    measured = {(row["library"], row["precision"], row["threads"]) for row in found["rates"]}
    assert measured == {(lib, p, n) for lib in ("numpy", "torch") for p in ("float64", "float32") for n in (1, 2)}
    assert all(row["flops_per_second"]["median"] > 1e8 for row in found["rates"])
    record = product_rates.load(2)
    assert record is not None
    assert record.pairs["torch mixed"] == 5e11 and record.pairs["cpu mixed"] == 3e11
    assert 0.1 < (record.torch_import or 0.0) < 60
    assert found["auto"].startswith("auto takes PyTorch for long runs")


# --- growth ---


def test_the_least_time_of_each_stage(water: Stored):
    """Operations counted by hand: 5 occupied, 2 virtual, 7 functions; all 15 pairs are also redone in float64."""
    result = hdf5.read(water.path)
    least = limits.least_seconds(result, Ceilings(fp64=1e6, fp32=2e6, memory=1e6, integrals=1e3, eigen=0.1))
    naux, naux_scf, builds = result.sizes.naux, result.sizes.naux_scf, result.reference.cycles + 1
    pairs = 2 * 15 * 2 * 2 * naux
    assert sum(least["pair_energies"].values()) == pytest.approx(pairs / 2e6 + pairs / 1e6)
    assert least["integrals"] == {"integrals": pytest.approx(naux * 28 / 1e3)}
    assert sum(least["fit"].values()) == pytest.approx(naux**2 * 5 * 2 / 1e6)
    assert sum(least["transform"].values()) == pytest.approx(2 * naux * 5 * (7 * 7 + 7 * 2) / 1e6)
    exchange = 3 * naux_scf * 49 * 5  # half transformation, and half of a symmetric product
    fit = naux_scf**2 * 28
    assert least["scf"]["matrix products"] == pytest.approx(fit / 1e6 + exchange * ((builds - 1) / 2e6 + 1 / 1e6))
    assert least["scf"]["memory bandwidth"] == pytest.approx(builds * 2 * 8 * naux_scf * 28 / 1e6)
    assert least["scf"]["diagonalisation"] == pytest.approx(0.1 * builds)


def test_a_series_of_alkanes(call: Runner):
    options = ("--sizes", "4,2", "--basis", "sto-3g", "--threads", "1", "--precision", "fp64", "--json", "-", "--quiet")
    found = succeed(call("bench", "--scaling", *options)).json
    members = found["members"]
    assert [(m["carbons"], m["nao"]) for m in members] == [(2, 16), (4, 30)]  # 5 per C, 1 per H
    for member in members:
        seconds = member["seconds"]
        assert seconds["total"] == pytest.approx(sum(s for name, s in seconds.items() if name != "total"))
        assert member["peak"] > 50e6
    stage = found["stages"]["pair_energies"]
    assert stage["bound_by"] == ["matrix products"] * 2 and all(f > 0 for f in stage["fraction_of_limit"])
    expected = scaling.exponent([2, 4], [m["seconds"]["total"] for m in members])
    assert found["stages"]["total"]["exponent_in_carbons"] == pytest.approx(expected)


def test_sizes_are_sorted_and_checked():
    assert scaling.parse_sizes(" 20,10,10") == (10, 20)
    for wrong in ("", "10,", "1", "1001", "10 20", "-10", "ten", "٣"):
        with pytest.raises(InputError, match="--sizes"):
            scaling.parse_sizes(wrong)


def test_the_generator_gives_the_alkane_that_is_shipped():
    shipped = read_xyz(INPUTS / "c20h42.xyz").molecule
    made = alkane(20)
    assert [atom[0] for atom in made] == list(shipped.symbols)
    assert made[1][3] == pytest.approx(1.53 * (2 / 3) ** 0.5)  # r sin(half of the tetrahedral angle)
