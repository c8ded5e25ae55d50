"""`dfmp2 bench`: known shapes and energies, rates of products; and the scripts that time whole
programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from dfmp2.backends.cpu import CpuBackend
from dfmp2.errors import BackendUnavailable, ResourceError
from dfmp2.planning import rates
from dfmp2.planning.rates import Rates
from dfmp2.validation import bench
from dfmp2.validation.bench import spread
from tests.conftest import ROOT, Heard, Runner, Stored, succeed
from tests.recorded import recorded_error

SCRIPTS = ROOT / "scripts" / "benchmarks"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Products and waits that take no time, and a separate cache."""
    monkeypatch.setattr(bench, "SQUARE_HOST", 256)
    monkeypatch.setattr(bench, "WATCHED", 0.05)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- the pair step ---


def test_a_shape_on_the_command_line(call: Runner, folder: Path):
    pytest.importorskip("torch")
    done = succeed(
        call(
            "bench", "--shape", "small", "--repeats", "2", "--threads", "1", "--json", "shape.json"
        )
    )
    found = json.loads((folder / "shape.json").read_text())
    assert "never timed here" in done.out and set(found["not_timed"]) >= {"nki"}
    order = [(one["backend"], one["precision"]) for one in found["measurements"]]
    assert order == [(b, p) for b in ("cpu", "torch") for p in ("fp64", "mixed")] * 2  # alternating
    for row in found["results"]:
        assert abs(row["energy_difference"]) < 1e-9  # digits of the published energy
        assert row["gflops"]["median"] > 0.1
        lane = (row["backend"], row["precision"])
        of_lane = [
            one for one, name in zip(found["measurements"], order, strict=True) if name == lane
        ]
        for name, key in (("s", "pairs"), ("put_s", "put"), ("certificate_s", "certificate")):
            assert row[f"{name}econds"] == asdict(spread([one[key] for one in of_lane]))
        assert (row["certificate_seconds"]["low"] > 0) == (row["precision"] == "mixed")
    seconds = [one["pairs"] for one in found["measurements"][::4]]  # of the cpu in fp64
    rates = [16 * 17 * 112**2 * 384 / one / 1e9 for one in seconds]
    assert found["results"][0]["gflops"] == pytest.approx(asdict(spread(rates)), rel=1e-12)
    assert set(found["ratios"]) == {
        "cpu mixed / cpu fp64",
        "torch fp64 / cpu fp64",
        "torch mixed / torch fp64",
    }


@pytest.mark.parametrize("name", ["cpu", "pytorch", "torch", "cuda", "cuda-tf32"])
def test_backends_that_are_timed(name: str):
    """By both words; each must hold B in float64 and a copy for float32, to the byte."""
    task = bench.problem("small")
    with suppress(BackendUnavailable):
        (chosen,), unused = bench._backends(task, [name], 1)
        assert (chosen.name, unused) == (name.removeprefix("py"), {})
    single = 8 if name == "cuda-tf32" else 4
    needed = (8 + single) * 16 * 112 * 384
    devices: Any = [
        SimpleNamespace(name=name, limits=SimpleNamespace(memory=memory, single_bytes=single))
        for memory in (None, needed, needed - 1)
    ]
    bench._require_memory(task, 10**12, devices[:2])
    with recorded_error(ResourceError):
        bench._require_memory(task, 10**12, devices)


# --- products ---


def test_gemm_measures_both_libraries(call: Runner, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    plan = {"cpu": Rates(pairs_mixed=3e11), "torch": Rates(pairs_mixed=5e11)}
    monkeypatch.setattr(rates, "measure_rates", lambda backend, n: {3: plan[backend.name]}[n])
    monkeypatch.setattr(
        bench, "square_rate", lambda backend, precision, n: 1e9 * n + backend.limits.workers
    )
    found = succeed(
        call("bench", "--gemm", "--threads", "3", "--repeats", "1", "--json", "-", "--quiet")
    ).json
    measured = {
        (row["library"], row["precision"], row["threads"]): row["flops_per_second"]["median"]
        for row in found["rates"]
    }
    assert measured == {
        (library, precision, n): 1e9 * n + (n if library == "numpy" else 1)
        for library in ("numpy", "torch")
        for precision in ("float64", "float32")
        for n in (1, 2, 3)
    }
    assert found["pair_step_flops_per_second"]["torch mixed"] == 5e11


@pytest.mark.parametrize(("threads", "seconds"), [(1, [0.25]), (2, [0.5, 0.25]), (2, [0.25, 0.5])])
def test_the_faster_way_of_a_product_counts(
    threads: int, seconds: list[float], monkeypatch: pytest.MonkeyPatch
):
    """Rows distributed over threads, or all threads in the BLAS."""
    monkeypatch.setattr(rates, "shortest", Mock(side_effect=seconds))
    assert bench.square_rate(CpuBackend(threads), "mixed", threads) == 2 * 256**3 / 0.25


# --- whole programs: scripts/benchmarks ---


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of scripts/benchmarks can be imported; they are forgotten afterwards."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield
    for name in {"programs", "race", "scaling", "tables", "pyscf_script", "make_alkane"} - known:
        sys.modules.pop(name, None)


def run_script(name: str, *arguments: str, folder: Path) -> dict[str, object]:
    command = [
        sys.executable,
        SCRIPTS / name,
        *arguments,
        "--json",
        "found.json",
        "--scratch",
        str(folder),
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    assert not list(folder.glob("dfmp2-bench-*"))
    return dict(json.loads((folder / "found.json").read_text()))


def test_a_child_is_measured_alone(scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither the memory of the process that measures nor the thread settings of the shell appear
    in a child."""
    from programs import FOLDER, STANDARD_LIBRARY, run_child

    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.setenv("PYSCF_EXT_PATH", "7")
    ballast = np.ones(12_500_000)  # 100 MB
    show = (
        "import os, sys, time; time.sleep(0.3); print([k for k in os.environ if os.environ[k] "
        "== '7']); sys.exit(3)"
    )
    small = run_child([*STANDARD_LIBRARY, show], tmp_path, {"HOME": FOLDER})
    burn = (
        "import time; x = b'x' * 60_000_000; t = time.process_time()\nwhile "
        "time.process_time() < t + 0.3: pass"
    )
    large = run_child([*STANDARD_LIBRARY, burn], tmp_path, {})
    assert ballast[-1] == 1.0
    assert (small.code, small.out.strip()) == (3, "[]")
    assert small.wall >= 0.3 and small.cpu < small.wall - 0.2 and small.peak < 60e6
    assert 0.25 < large.cpu - small.cpu < 2.0 and 60e6 < large.peak < 120e6
    with recorded_error(SystemExit):
        run_child(["no-such-program"], tmp_path, {})


def test_programs_with_other_grids_are_not_raced(scripts: None):
    from race import Outcome, require_same

    ours = {"sizes": (24, 84, 5, 19), "points": 1000}
    found = Outcome("Psi4", -76.0, -0.2, (24, 84, 5, 19), {}, None, 1099)
    require_same("psi4", found, ours)
    require_same("pyscf", replace(found, correlation_energy=None, sizes=(24, 0, 5, 19)), ours)
    for other in ({"points": 899}, {"sizes": (24, 85, 5, 19)}):
        with recorded_error(SystemExit):
            require_same("psi4", replace(found, **other), ours)


@pytest.mark.slow
def test_a_race_with_pyscf(water: Stored, folder: Path):
    arguments = (
        "h2o.xyz",
        "--basis",
        "sto-3g",
        "--against",
        "pyscf",
        "--precision",
        "fp64",
        "--repeats",
        "2",
    )
    found = run_script("race.py", *arguments, "--threads", "1", folder=folder)
    runs = found["runs"]
    assert [run["lane"] for run in runs] == ["dfmp2 fp64", "pyscf"] * 2
    for run in runs:  # the stored result was computed in another run, with PySCF's check
        outcome = run["outcome"]
        assert outcome["scf_energy"] == pytest.approx(water.json["scf_total_energy"], abs=1e-9)
        assert outcome["correlation_energy"] == pytest.approx(
            water.json["mp2_correlation_energy"], abs=1e-7
        )
        assert (
            outcome["stages"]["scf"] > 0 and sum(outcome["stages"].values()) < run["child"]["wall"]
        )
        assert 50e6 < run["child"]["peak"] < 300e6
    walls = [run["child"]["wall"] for run in runs]
    ratio = found["ratios"]["dfmp2 fp64 / pyscf"]["total"]
    assert ratio["low"] == pytest.approx(min(walls[0] / walls[1], walls[2] / walls[3]))
    assert abs(found["differences"]["dfmp2 fp64 - pyscf"]["correlation"]) < 1e-8


@pytest.mark.slow
def test_a_series_of_alkanes(scripts: None, folder: Path):
    from scaling import exponent

    options = ("--sizes", "4,2", "--basis", "sto-3g", "--threads", "1", "--precision", "fp64")
    found = run_script("scaling.py", *options, folder=folder)
    members = found["members"]
    assert [(m["carbons"], m["nao"]) for m in members] == [(2, 16), (4, 30)]  # 5 per C, 1 per H
    for member in members:
        seconds = member["seconds"]
        assert seconds["total"] == pytest.approx(
            sum(s for name, s in seconds.items() if name != "total")
        )
        assert member["fraction_of_products"]["pair_energies"] > 0 and member["peak"] > 50e6
    sizes = [58.0, 106.0, 202.0, 490.0]
    assert exponent(sizes, [3e-9 * n**2.5 for n in sizes]) == pytest.approx(2.5)
    assert exponent([10, 20], [0.0, 2]) is None  # a stage too short to be seen has no exponent


def test_the_generator_gives_the_alkane_that_is_shipped():
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_alkane.py", "20"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == (ROOT / "inputs" / "c20h42.xyz").read_text()


@pytest.mark.parametrize(("foreign", "warned"), [(0.0999, False), (0.1001, True)])
def test_others_on_the_machine_are_warned_of(
    foreign: float, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a tenth of a core on; the measured value is always recorded. A library without a
    version is not named."""
    monkeypatch.setattr(bench, "WATCHED", 0.01)
    monkeypatch.setattr(bench.provenance, "installed_version", {"scipy": "1.0"}.get)
    heard = Heard()
    meter = bench.Meter(heard)
    heard.warnings.clear()
    monkeypatch.setattr(meter._others, "used", lambda: foreign)
    monkeypatch.setattr(bench.os, "getloadavg", lambda: (7.25, 0.0, 0.0))
    record = meter.record()
    assert record["foreign_cores"] == foreign
    said = " ".join(bench.header(record))
    assert f"load average: {meter.machine.load:.2f} before, 7.25 after" in said
    assert len(heard.warnings) == warned
    versions = meter.machine.versions
    assert versions.keys() == {"dfmp2", "Python", "scipy", "BLAS of NumPy"}
    assert (versions["dfmp2"], versions["scipy"]) == ("not installed", "1.0")
