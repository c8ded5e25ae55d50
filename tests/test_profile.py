"""`--profile`: times and tracks of runs, rates counted by hand, and runs that end early."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import df, gto

import dfmp2
from dfmp2.errors import ResourceError
from dfmp2.host.scratch import Room, Space
from dfmp2.host.threads import Workers, each
from dfmp2.mp2 import fitting_certificate
from dfmp2.output.checkpoint import FileCheckpoint
from dfmp2.output.profile import Profile
from dfmp2.scf import jk
from dfmp2.scf.integrals import ScfIntegrals
from tests.conftest import PATIENCE, Heard, Runner, succeed
from tests.recorded import recorded_error, recorded_failure, recorded_texts

Event = dict[str, Any]


def read(path: Path) -> dict[str, list[Event]]:
    """Events of a file by track name, nested within each track; counters under "counters"."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    found: dict[str, list[Event]] = {name: [] for name in [*names.values(), "counters"]}
    for event in events:
        if event["ph"] != "M":
            found["counters" if event["ph"] == "C" else names[event["tid"]]].append(event)
    for track in names.values():
        ends: list[float] = []
        for event in found[track]:
            ends = [end for end in ends if end > event["ts"]]
            assert all(event["ts"] + event["dur"] <= end for end in ends), event
            ends.append(event["ts"] + event["dur"])
    return found


def test_each_worker_has_its_track_and_nothing_is_wrapped_without_a_profile(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)
    with Profile(Heard(), tmp_path / "t.json", overwrite=False) as profile:
        profile.stage("tasks")
        each(6, lambda number: both.wait(), 2)  # a single worker cannot do two of them at once
    found = read(tmp_path / "t.json")
    assert len(found["worker_0"]) == len(found["worker_1"]) == 3
    with Workers(1) as pool:
        assert pool.submit(lambda: threading.current_thread().name).result() == "worker_0"
        assert Workers.watch is None


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_operations_of_the_scf_are_those_of_its_products(where: str, tmp_path: Path) -> None:
    mole = gto.M(atom="O 0 0 0; H 0 0 1; H 0 1 0", basis="6-31g", verbose=0)
    auxmole = df.addons.make_auxmol(mole, "def2-universal-jkfit")
    n, p = mole.nao, auxmole.nao
    with Space(tmp_path, 10**6) as space:
        room = Room(space, 10**6, 10**6)
        fitted: jk.JKFitting = ScfIntegrals(auxmole, where, threads=1, room=room).builder(mole)
        fitted.matrices([np.eye(n)[:, :5].copy(), np.eye(n)[:, :4].copy()])
        # Fit, J, K
        once = [p * p * n * (n + 1) // 2 + 2 * p * n * (n + 1) + 3 * p * n * n * 9, 0]
        assert fitted.operations == once
        fitted.single = True
        fitted.matrices([np.eye(n)[:, :5].copy()])
        assert fitted.operations == [once[0] + p * n * (n + 1), 3 * p * n * n * 5]
        fitted.discard()


def test_operations_of_a_run_are_those_of_its_cycles() -> None:
    """One fit, J of each density, and K of its orbitals: all functions in the atomic densities of
    the start, nine occupied orbitals afterwards; in float64."""
    hydroxyl = dfmp2.Molecule.from_string("O 0 0 0; H 0.3 0.8 0.5", multiplicity=2)
    options = {"precision": "fp64", "stability": "off", "threads": 1, "listener": Heard()}
    found = dfmp2.run(hydroxyl, "sto-3g", **options)
    n, p, cycles = found.sizes.nao, found.sizes.naux_scf, found.reference.cycles
    columns = 2 * n + cycles * (5 + 4)
    coulomb = (cycles + 1) * 2 * p * n * (n + 1)
    expected = p * p * n * (n + 1) // 2 + coulomb + 3 * p * n * n * columns
    assert list(found.reference.operations) == [expected, 0]
    assert cycles > 4


def test_a_run_is_timed_as_its_result_says(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the microseconds of a profile; the total, by another clock. The certificate of a
    sample fits all integrals again, in a stage of its own."""
    monkeypatch.setattr(fitting_certificate, "exact_row_shares", lambda counts: [[3]])
    options = (
        "--basis",
        "cc-pvdz",
        "--certify-fit",
        "--json",
        "--threads",
        "1",
        "--precision",
        "fp64",
    )
    begin = time.perf_counter()
    done = succeed(call("gradient", "h2o.xyz", *options, "--profile", "t.json"))
    wall = time.perf_counter() - begin
    found, timings = read(folder / "t.json"), done.json["timings"]
    titles = {
        "scf": "SCF",
        "integrals": "integrals",
        "fit": "metric and fit",
        "transform": "transformation",
        "pair_energies": "pair energies",
        "fitting_certificate": "fitting certificate",
        "gradient": "gradient and densities",
    }
    assert timings.keys() == {*titles, "total"}
    for stage, title in titles.items():
        seconds = sum(event["dur"] for event in found["stages"] if event["name"] == title) / 1e6
        assert seconds == pytest.approx(timings[stage], rel=3e-4, abs=5e-6), stage
    order = [event["name"] for event in found["stages"]]
    assert "transformation" not in order[order.index("pair energies") :]
    assert sum(timings[stage] for stage in titles) < timings["total"] < wall
    assert 0.9 * timings["gradient"] < done.json["gradient_seconds"] <= timings["gradient"]
    cycles = [event for event in found["run"] if event["name"].startswith("SCF iteration")]
    first, second = (event["args"] for event in cycles[:2])
    assert second["change"] == pytest.approx(second["energy"] - first["energy"], abs=1e-9)
    assert second["energy"] == pytest.approx(done.json["scf_total_energy"], abs=0.1)
    assert 0 < second["gradient"] < first["gradient"]
    assert {"done": 15, "of": 15} in [event.get("args") for event in found["run"]]  # pairs
    assert "WorkerMatrices.add" in {event["name"] for event in found["worker_0"]}
    # 5 x 6 / 2 pairs of 19^2 integrals, each a product over naux counted as two operations.
    rate = 5 * 6 * 19**2 * done.json["sizes"]["naux"] / timings["pair_energies"] / 1e9
    rates = [e["args"]["rate"] for e in found["counters"] if e["name"] == "pair energies, 10^9/s"]
    assert rates == [pytest.approx(rate, rel=1e-3), 0.0]
    memory = [event["args"] for event in found["counters"] if event["name"] == "memory / MB"]
    assert all(30 < one["resident"] <= 1.01 * one["peak"] < 30_000 for one in memory)
    existing = ("--output", "other.h5", "--profile", "t.json")
    recorded_failure(call("run", "h2o.xyz", "--basis", "cc-pvdz", *existing), 3)


def test_a_file_that_cannot_be_written_in_the_end_is_said_and_hides_no_other_error(
    tmp_path: Path,
) -> None:
    folder, heard = tmp_path / "sub", Heard()

    def run_without_folder(error: Exception | None) -> None:
        folder.mkdir()
        with Profile(heard, folder / "t.json", overwrite=False) as profile:
            profile.stage("RHF")
            folder.rmdir()
            if error is not None:
                raise error

    with recorded_error(ResourceError):
        run_without_folder(None)
    assert not heard.warnings
    with recorded_error(ValueError):
        run_without_folder(ValueError("first"))
    recorded_texts(heard.warnings)


def test_ctrl_c_leaves_the_timeline_of_a_command(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the SCF, whose iterations are in the file that the command was to write."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FileCheckpoint, "add_reference", interrupted)
    done = call("run", "h2.xyz", "--basis", "sto-3g", "--threads", "1", "--profile", "t.json")
    assert done.code == 130 and not (folder / "h2.dfmp2.h5").exists()
    found = read(folder / "t.json")
    assert {"RHF (df)", "SCF iteration 1"} <= {event["name"] for event in found["run"]}
    assert [event["name"] for event in found["stages"]] == ["SCF"]
