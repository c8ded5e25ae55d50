"""Shards, memory, workers and ends of a batch, without computing anything; what needs no stand-ins
is the session `parts-of-batches`."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from contextlib import nullcontext
from dataclasses import make_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

import dfmp2
from dfmp2.errors import (
    DiskFull,
    InputError,
    Interrupted,
    ResourceError,
)
from dfmp2.execution import batch, items, parts, pool
from dfmp2.execution.batch import (
    BatchRun,
    memory_needed,
    works,
)
from dfmp2.execution.items import ItemStatus, read_inputs
from dfmp2.execution.manifest import make_batch
from dfmp2.execution.outlook import foresee_shards
from dfmp2.execution.pool import Died, Slot, WorkerShare
from dfmp2.host import processes
from dfmp2.host.files import acquire_lock, release_lock
from dfmp2.options import Options
from dfmp2.planning.rates import Rates, store_rates
from dfmp2.progress import Listener
from tests import awkward
from tests.conftest import MOLECULES, Stored, listing
from tests.recorded import recorded_error, recorded_texts


def test_sizes_are_those_of_the_molecule(tmp_path, radical, monkeypatch):
    """They agree with those stored by the calculations; the order of atoms does not matter, and
    rejected items cost nothing.

    Neither a device nor the scratch folder of the computing hosts need be present.
    """
    monkeypatch.setenv("DFMP2_REQUIRE_NKI", "1")
    monkeypatch.setenv("DFMP2_SCRATCH", "/no such folder")
    sizes = radical.json["sizes"]
    count, comment, first, *rest = MOLECULES["nh2"].splitlines()
    for file, atoms in (("given", [first, *rest]), ("turned", [*rest, first])):
        (tmp_path / f"{file}.xyz").write_text("\n".join([count, comment, *atoms, ""]))
    options = {"basis": "sto-3g", "frozen_core": str(sizes["frozen_core"]), "backend": "nki"}
    batch = make_batch(["given.xyz", "turned.xyz"], options, tmp_path / "out", tmp_path)
    given, turned = works(read_inputs(batch))
    found = given.load
    assert found is not None and found is turned.load and given.series != turned.series
    for name in ("nao", "naux_scf", "naux"):
        assert getattr(found, name) == sizes[name]
    for name in ("nocc", "nvir"):
        assert [getattr(spin, name) for spin in found.spins] == sizes[name]
    (one,) = read_inputs(make_batch(["given.xyz"], {"basis": "6-31g"}, tmp_path / "out", tmp_path))
    frozen = replace(one.item, options=replace(one.item.options, frozen_core="1"))
    molecules = [one.molecule.with_state(*state) for state in ((0, 2), (2, 2), (0, 4))]
    molecules.append(replace(one.molecule, ghost=(False, False, True), multiplicity=1))
    asked = [one._replace(molecule=molecule) for molecule in molecules]
    found = works([*asked, one._replace(item=frozen)])
    electrons = [[s.nocc for s in work.load.spins] for work in found]
    assert electrons == [[5, 4], [4, 3], [6, 3], [4], [4, 3]]  # of NH2, and once of NH
    assert len({work.series for work in found}) == 5
    refused = make_batch(["given.xyz"], {"basis": "no-such-basis"}, tmp_path / "out", tmp_path)
    assert [(work.cost, work.load) for work in works(read_inputs(refused))] == [(0.0, None)]


def test_sets_of_numbered_atoms_follow_their_order(tmp_path):
    """6-31G for the first of two atoms, which have 9 and 2 functions in it, and 5 and 1 in
    STO-3G."""
    for name, order in (("oh", "OH"), ("ho", "HO")):
        lines = [f"{symbol} 0 0 {0.97 * place}" for place, symbol in enumerate(order)]
        (tmp_path / f"{name}.xyz").write_text("\n".join(["2", "", *lines, ""]))
    options = {"basis": "sto-3g,1=6-31g", "charge": -1, "allow_poor_fit": True}
    batch = make_batch(["oh.xyz", "ho.xyz"], options, tmp_path / "out", tmp_path)
    assert [work.load.nao for work in works(read_inputs(batch))] == [9 + 1, 2 + 5]
    rows = foresee_shards(batch, 1, WorkerShare(1, 10**9))["items"]
    assert [row["nao"] for row in rows] == [9 + 1, 2 + 5]


def test_the_memory_of_an_item_is_that_of_its_task(tmp_path, monkeypatch):
    """What `dfmp2 plan` says of a single run of each kind; also where a worker has died. The rates are
    those of this host if they have been measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("dfmp2.host.resources.resident_memory", lambda: 100 * 10**6)
    radical = awkward.MOLECULES["cyano radical"]
    (tmp_path / "radical.xyz").write_text(radical.to_xyz())
    kinds = (  # options of an item, and of a plan
        ({"task": "optimize"}, {"gradient": True}),
        ({"properties": True}, {"properties": True}),
        ({"method": "b2plyp"}, {"method": "b2plyp"}),
    )
    share = WorkerShare(1, 10**9)
    options = {"charge": radical.charge, "multiplicity": radical.multiplicity, "basis": "6-31g*"}
    options["scratch"] = "/only/there"  # on the host that computes it
    batches = [
        make_batch(["radical.xyz"], options | of_item, tmp_path / "out", tmp_path)
        for of_item, _ in kinds
    ]
    batch = replace(batches[0], items=tuple(one.items[0] for one in batches))
    outlook, inputs = foresee_shards(batch, 1, share), read_inputs(batch)
    store_rates("cpu", 1, Rates(date="2026-11-30"))
    assert [outlook["measured"], foresee_shards(batch, 1, share)["measured"]] == [False, True]
    for row, given, (_, of_plan) in zip(outlook["items"], inputs, kinds, strict=True):
        alone = dfmp2.plan(radical, "6-31g*", memory="1GB", threads=1, **of_plan).plan.memory
        planned = alone.predicted_peak, alone.least, alone.comfortable, alone.scratch
        assert tuple(row["memory_bytes"].values()) == planned
        assert memory_needed(given, share) == planned[1:3]
    # Within 140 MB a larger set needs a scratch folder, which may be full
    larger = make_batch(["radical.xyz"], {**options, "basis": "cc-pvqz"}, tmp_path, tmp_path)
    for free, code in ((10**12, 0), (10**7, 7)):
        monkeypatch.setattr("dfmp2.host.scratch.free_disk", lambda folder, free=free: free)
        (row,) = foresee_shards(larger, 1, WorkerShare(1, 140 * 10**6))["items"]
        assert row["memory_bytes"]["scratch"] > 0 and row["code"] == code
        assert row["error"].startswith("scratch folder") == (row["seconds"] == 0) == bool(code)


def test_steps_share_what_the_options_say(monkeypatch):
    """With the memory of all of them; the share of a worker is no option of the study."""
    pool = Mock()
    local_pool = Mock(return_value=nullcontext(pool))
    monkeypatch.setattr(parts, "local_pool", local_pool)
    monkeypatch.setattr(parts, "share_out", lambda pool, calls: [calls])
    options = Options("sto-3g", threads=5, memory=7 * 10**9, backend="cpu")
    made = make_dataclass("Made", ["options"])
    how = {"start": None, "command": "", "compute": lambda _, options, **given: made(options)}
    step = SimpleNamespace(options=options, molecule=None)
    units = [SimpleNamespace(step=step, name=name, **how) for name in "ab"]
    (calls,) = parts.StepWorkers().steps(units, 2, 3)  # type: ignore[arg-type]
    local_pool.assert_called_once_with("cpu", 2, 3, 7 * 10**9)
    pool.grow.assert_called_once_with(2)
    assert [call.given[0].name for call in calls] == ["a", "b"]
    assert calls[0].run(WorkerShare(1, 10**6))[1].options == options


class OneByOne(nullcontext[None]):
    """A pool whose only worker calls `during` for each item and ends it as `rows` say."""

    slots, busy = (None,), ()

    def __init__(self, rows: dict[str, ItemStatus], during: Callable[[], None]) -> None:
        super().__init__()
        self.rows, self.during, self.tried = rows, during, list[str]()

    def grow(self, size: int) -> None:
        assert size == 1

    def work(self, queue: Any) -> Any:
        if queue:
            call = queue.popleft()
            name = call.given[0].item.name
            self.tried.append(name)
            self.during()
            yield call, self.rows[name]


@pytest.mark.parametrize(
    ("stops", "row", "first"),
    [
        (True, {"status": "complete"}, "complete"),
        (False, {"status": "failed", "exit_code": 6, "device_fault": True}, "failed"),
        (False, {"status": "pending", "blocked": DiskFull}, "pending"),
        (False, {"status": "pending", "blocked": ResourceError}, "pending"),
    ],
    ids=["stopped", "device", "disk full", "unwritable"],
)
def test_what_ends_a_batch_leaves_the_rest_as_it_is_then(
    stops: bool, row: dict[str, Any], first: str, tmp_path: Path
) -> None:
    """Of four items the first ends the batch, while other processes begin the second one and fail
    with the third one; if nothing can be written any more, all incomplete ones are counted."""
    for name in "abcd":
        (tmp_path / f"{name}.xyz").write_text(MOLECULES["h2"])
    out = tmp_path / "out"

    def elsewhere() -> None:
        if not pool_of_one.tried[1:]:
            assert acquire_lock(out / "b.h5") is None
            (out / "c.error.json").write_text('{"code": 5, "message": "no convergence"}')

    ended = ItemStatus("a", "a.xyz", error="it was said", **row)
    pool_of_one = OneByOne({"a": ended}, elsewhere)
    given = make_batch([f"{name}.xyz" for name in "abcd"], {"basis": "sto-3g"}, out, tmp_path)
    run = BatchRun(
        given,
        read_inputs(given),
        range(4),
        Listener(),
        chained=True,
        stop_asked=lambda: int(stops and bool(pool_of_one.tried)),
    )
    run.compute(cast(Any, pool_of_one), 1)
    starts = {"complete": [out / "a.h5"], "failed": [None], "pending": []}
    assert [call.given[1] for call in run._queue] == starts[first]
    release_lock(out / "b.h5")
    assert pool_of_one.tried == ["a"]
    assert [one.status for one in run.rows.values()] == [first, "running", "failed", "pending"]
    if run.blocked is not None:
        recorded_texts([str(run.unwritable(run.blocked))])


def test_what_is_said_of_a_death_is_of_its_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.xyz").write_text(MOLECULES["h2"])
    given = make_batch(["a.xyz", "b.xyz"], {"basis": "sto-3g"}, tmp_path / "out", tmp_path)
    run = BatchRun(given, read_inputs(given), range(2), Listener())
    needs = {"a": (1, 2), "b": (10**9, 3 * 10**9)}
    monkeypatch.setattr(batch, "memory_needed", lambda one, share: needs[one.item.name])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".b.lock").write_text('{"pid": 7, "host": "h", "since": "s"}')
    row = run._after_death(1, Died("died", 7, WorkerShare(1, 10**9), errors="its last words"))
    assert (row.name, row.status, row.exit_code) == ("b", "failed", 7)
    assert "about 3.00 GB per worker would fit (1.00 GB with" in str(row.error)
    assert "its last words" in (tmp_path / "out" / "b.error.json").read_text()
    assert run._after_death(0, Died("told to", 75, None, terminated=True)).status == "pending"
    assert not (tmp_path / "out" / ".b.lock").exists()


# --- what a worker leaves behind ------------------------------------------------------------------

SHARE = WorkerShare(threads=2, memory=4 * 10**9)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make processes report at once how they ended."""
    monkeypatch.setattr("dfmp2.execution.pool.exit_code", lambda process: process.exitcode)


def ended_slot(tmp_path: Path, error: BaseException) -> Any:
    """A slot whose process was killed after writing 20,000 letters."""
    slot: Any = Slot.__new__(Slot)
    file = tmp_path / "errors"
    file.write_text("a" * 4000 + "b" * 15_999 + "\u00e9")
    slot.share, slot._peak = SHARE, 5
    slot._errors = open(file, "rb")  # noqa: SIM115 - as long as the slot
    slot._process = SimpleNamespace(pid=None, exitcode=-9, kill=lambda: None)
    slot._executor = SimpleNamespace(shutdown=lambda **how: None)
    slot._loaded = Future()
    slot._loaded.set_result(None)
    slot.future = Future()
    slot.future.set_exception(error)
    return slot


@pytest.mark.usefixtures("ended")
def test_the_last_that_a_worker_wrote_is_kept(tmp_path: Path) -> None:
    slot = ended_slot(tmp_path, BrokenExecutor())
    slot.look_at_memory()  # too late
    with pytest.raises(Died) as caught:
        slot.result()
    assert slot.future is None
    died = caught.value
    assert died.errors == "b" * 15_998 + "\u00e9"
    assert (died.exit_code, died.peak, died.terminated) == (7, 5, False)
    slot.close()


@pytest.mark.usefixtures("ended")
def test_errors_of_a_call_come_back_and_a_fault_ends_the_worker(tmp_path: Path) -> None:
    with recorded_error(InputError):
        ended_slot(tmp_path, InputError("wrong")).result()
    slot = ended_slot(tmp_path, ZeroDivisionError("by hand"))
    with recorded_error(Died) as caught:
        slot.result()
    assert (caught.value.exit_code, caught.value.share) == (1, None) and slot._errors.closed


def test_what_another_process_has_finished_is_not_computed_again(
    water: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the items and the lock of one of them: its file stays as it is."""
    (tmp_path / "h2o.xyz").write_text(MOLECULES["h2o"])
    options = {"basis": "sto-3g", "check": True}
    (given,) = read_inputs(make_batch(["h2o.xyz"], options, tmp_path / "out", tmp_path))
    target = given.item.target
    target.parent.mkdir()
    shutil.copy(water.path, target)
    before = listing(target.parent)
    monkeypatch.setattr(items, "_function_of", lambda *asked: None)  # nothing computes it
    row = items.compute_item(given, None, None, "dfmp2 batch run", SHARE)
    assert (row.status, row.energy) == ("complete", water.json["total_energy"])
    assert row.notes == ("another process has finished it meanwhile",)
    assert listing(target.parent) == before


@pytest.mark.parametrize("of", [pool, processes], ids=["worker", "process of a device"])
def test_a_process_ends_with_its_parent_and_not_before(
    of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its parent is process 1, as the command of a container is."""
    happened: list[Any] = []
    parent = SimpleNamespace(join=lambda: happened.append("the parent has ended"))
    monkeypatch.setattr("multiprocessing.parent_process", lambda: parent)
    monkeypatch.setattr("os.getppid", lambda: 1)
    monkeypatch.setattr("os._exit", happened.append)
    monkeypatch.setattr(pool, "stops", set())
    monkeypatch.setattr(pool, "at_work", threading.Lock())
    errors = tmp_path / "errors"
    if of is pool:
        errors.touch()
        pool._end_with_parent(str(errors))
        assert pool.stops == {signal.SIGTERM}
    else:
        processes._end_with_parent()
    assert happened == ["the parent has ended", Interrupted.exit_code]
    assert not errors.exists()
