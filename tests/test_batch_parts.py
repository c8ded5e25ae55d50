"""Order, shards, devices, locks and messages of a batch, without computing anything."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from dfmp2.errors import InputError
from dfmp2.execution import parts
from dfmp2.execution.batch import BatchRun
from dfmp2.execution.items import ItemStatus, read_inputs
from dfmp2.execution.manifest import make_batch
from dfmp2.execution.schedule import Work, arrange, read_shard, shard_of_job, shards, works
from dfmp2.host.resources import pinning
from dfmp2.options import Options
from tests.conftest import MOLECULES


def of_costs(costs):
    return [Work(place, value, f"series {place}") for place, value in enumerate(costs)]


def places(items, parts, *, chained):
    return [
        tuple(work.place for work in piece)
        for piece in arrange(items, parts=parts, chained=chained)
    ]


def test_large_items_first():
    assert places(of_costs([1.0, 9.0, 1.9, 1.1]), 2, chained=False) == [(1,), (2,), (3,), (0,)]


def test_series_stay_together_in_as_many_pieces_as_there_are_workers():
    items = [Work(place, 1.0, "even" if place % 2 == 0 else "odd") for place in range(10)]
    assert set(places(items, 1, chained=True)) == {(0, 2, 4, 6, 8), (1, 3, 5, 7, 9)}
    assert set(places(items, 2, chained=True)) == {(0, 2, 4), (6, 8), (1, 3, 5), (7, 9)}


@pytest.mark.parametrize("chained", [False, True])
def test_shards_are_a_partition_and_balanced(chained):
    rng = random.Random(7)
    items = of_costs([rng.paretovariate(1.2) for _ in range(200)])
    parts = shards(items, 8, chained=chained)
    assert sorted(work.place for part in parts for work in part) == list(range(200))
    loads = [sum(work.cost for work in part) for part in parts]
    largest, mean = max(work.cost for work in items), sum(loads) / 8
    assert max(loads) <= max(largest, 4 / 3 * mean)  # Graham 1969: the bound of this rule
    assert shards(items[::-1], 8, chained=chained) == parts
    # Nothing known of them: dealt out
    assert [len(part) for part in shards(of_costs([0.0] * 4), 2)] == [2, 2]


def test_shards_are_taken_from_the_scheduler():
    assert read_shard("2/5") == (2, 5)
    assert shard_of_job({}) is None
    slurm = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "4"}
    assert shard_of_job(slurm) == (2, 4)
    assert shard_of_job({"AWS_BATCH_JOB_ARRAY_INDEX": "0", "AWS_BATCH_JOB_ARRAY_SIZE": "3"}) == (
        0,
        3,
    )
    for job, said in (
        ({**slurm, "SLURM_ARRAY_TASK_ID": "11"}, "11 is not one of 4"),
        ({**slurm, "SLURM_ARRAY_TASK_COUNT": "four"}, "7 is not one of four"),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "0"}, "of 0"),
    ):
        with pytest.raises(InputError, match=said):
            shard_of_job(job)
    for text in ("", "1", "1/1", "-1/2", "1/0", "a/b", "0/1000000"):
        with pytest.raises(InputError, match="--shard"):
            read_shard(text)


def test_one_device_per_worker(tmp_path):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    found = [pinning("auto", worker, 3, {}, nvidia=tmp_path) for worker in range(3)]
    assert found == [{"CUDA_VISIBLE_DEVICES": number} for number in ("0", "1", "0")]
    given = {"CUDA_VISIBLE_DEVICES": "GPU-8f2c,5,-1,3"}
    assert [pinning("cuda", k, 2, given)["CUDA_VISIBLE_DEVICES"] for k in range(2)] == [
        "GPU-8f2c",
        "5",
    ]
    assert pinning("cuda", 0, 1, {"CUDA_VISIBLE_DEVICES": ""}) == {}
    assert pinning("cpu", 0, 1, given) == {}
    for chip in ("neuron0", "neuron1", "neuron_other"):
        (tmp_path / chip).touch()
    cores = [
        pinning("nki", k, 4, {}, devices=tmp_path)["NEURON_RT_VISIBLE_CORES"] for k in range(4)
    ]
    assert cores == ["0", "1", "2", "3"]
    assert pinning("nki", 2, 3, {"NEURON_RT_VISIBLE_CORES": "1,4-6"}) == {
        "NEURON_RT_VISIBLE_CORES": "5"
    }
    with pytest.raises(InputError, match="at most --workers 1"):
        pinning("nki", 0, 2, {"NEURON_RT_VISIBLE_CORES": "3"})
    with pytest.raises(InputError, match="expected cores"):
        pinning("nki", 0, 1, {"NEURON_RT_VISIBLE_CORES": "5-2"})


def test_sizes_are_those_of_the_molecule(tmp_path, water, radical, monkeypatch):
    """They are what the calculations stored; the order of atoms is no matter, and what is refused
    costs nothing.

    Neither a device nor the scratch folder of the hosts that compute need be here.
    """
    monkeypatch.setenv("DFMP2_REQUIRE_NKI", "1")
    monkeypatch.setenv("DFMP2_SCRATCH", "/no such folder")
    for name, stored in (("h2o", water), ("nh2", radical)):
        sizes, (first, *rest) = stored.json["sizes"], MOLECULES[name].splitlines()[2:]
        for file, atoms in (("given", [first, *rest]), ("turned", [*rest, first])):
            (tmp_path / f"{file}.xyz").write_text(
                "\n".join([*MOLECULES[name].splitlines()[:2], *atoms]) + "\n"
            )
        options = {"basis": "sto-3g", "frozen_core": str(sizes["frozen_core"]), "backend": "nki"}
        batch = make_batch(["given.xyz", "turned.xyz"], options, tmp_path / "out", tmp_path)
        given, turned = works(read_inputs(batch))
        found = given.load
        assert found is not None and found is turned.load and given.series != turned.series
        assert (found.nao, found.naux_scf, found.naux) == (
            sizes["nao"],
            sizes["naux_scf"],
            sizes["naux"],
        )
        spins = 1 if name == "h2o" else 2
        assert [s.nocc for s in found.spins] == sizes["nocc"][:spins]
        assert [s.nvir for s in found.spins] == sizes["nvir"][:spins]
    refused = make_batch(["given.xyz"], {"basis": "no-such-basis"}, tmp_path / "out", tmp_path)
    assert [(work.cost, work.load) for work in works(read_inputs(refused))] == [(0.0, None)]


@pytest.mark.parametrize(("workers", "count"), [(3, 2), (1, 1)])
def test_steps_share_what_the_options_say(monkeypatch, workers, count):
    """Never more processes than steps, with the threads and the memory of all of them."""
    asked: list[Any] = []
    monkeypatch.setattr(
        parts,
        "local_pool",
        lambda *arguments: nullcontext(SimpleNamespace(grow=asked.append, given=arguments)),
    )
    monkeypatch.setattr(parts, "share_out", lambda pool, calls: [(pool.given, calls)])
    options = Options("sto-3g", threads=5, memory=7 * 10**9, backend="cpu")
    units = [SimpleNamespace(step=SimpleNamespace(options=options), name=name) for name in "ab"]
    ((given, calls),) = parts.steps(workers, units)  # type: ignore[arg-type]
    assert given == ("cpu", count, 5, 7 * 10**9) and asked == [count]
    assert [call.given[0].name for call in calls] == ["a", "b"]


@pytest.mark.parametrize(("length", "shown"), [(299, 299), (300, 300), (301, 300), (900, 300)])
def test_what_is_told_of_an_item_that_failed(length: int, shown: int) -> None:
    """The time left is what is spent times the cost left over the cost done; messages are cut."""
    told: dict[str, Any] = {}
    listener = SimpleNamespace(
        time_left=lambda seconds: told.update(left=seconds),
        stage=lambda text: told.update(stage=text),
        warning=lambda text: told.update(warning=str(text)),
        step=lambda *place: told.update(step=place),
    )
    run = SimpleNamespace(
        rows=[None] * 5,
        complete_before=2,
        listener=listener,
        _began=time.monotonic() - 300,
        _cost=100.0,
        _cost_done=25.0,
        _ended=1,
    )
    row = ItemStatus("a", "a.xyz", "failed", 5, "x" * length, notes=("on the host",))
    BatchRun._tell(run, 0, row)  # type: ignore[arg-type]
    assert told["left"] == pytest.approx(900, rel=0.01)
    assert told["stage"] == "a: on the host" and told["step"] == (1, 3, "items")
    assert told["warning"] == f"a failed with code 5: {'x' * shown}"
    run._cost_done = 0.0
    BatchRun._tell(run, 0, row)  # type: ignore[arg-type]
    assert told["left"] is None
