"""Stopped at any safe point and resumed, a run gives the bits of one that was never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dfmp2 import memory, pipeline
from dfmp2.checkpoint import journal as journals
from dfmp2.checkpoint.encoding import HEAD, Section, assemble, encode, newest
from dfmp2.checkpoint.journal import Journal
from dfmp2.errors import InputError, Interrupted
from dfmp2.io import hdf5
from dfmp2.io.checkpoint import VARIABLE, checkpointing
from dfmp2.io.xyz import read_xyz
from dfmp2.options import Options
from dfmp2.progress import Listener
from dfmp2.reference import exchange_schedule, mean_field
from dfmp2.scratch.space import Space
from tests.conftest import Runner, listing, succeed
from tests.faults import numbers

INPUTS = Path(__file__).parent.parent / "inputs"


class InMemory:
    """A file that keeps every version of itself."""

    path = "in memory"

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    def save(self, content: bytes) -> None:
        self.contents.append(content)


class Quiet(Listener):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def warning(self, text: str) -> None:
        self.stages.append(text)


def compute(name: str, options: Options, journal: Journal | None = None) -> dict[str, bytes]:
    molecule = read_xyz(INPUTS / f"{name}.xyz").molecule
    return numbers(hdf5.to_bytes(pipeline.run(molecule, options, listener=Quiet(), journal=journal)))


def small_ladder(patch: pytest.MonkeyPatch) -> None:
    """All three rungs on an easy molecule."""
    for name, value in {"DIIS_LEAST": 3, "DIIS_SHARE": 0.15, "SHIFT_SHARE": 0.2}.items():
        patch.setattr(mean_field, name, value)


def early_single(patch: pytest.MonkeyPatch) -> None:
    """Float32 exchange in a molecule of any size."""
    patch.setattr(exchange_schedule, "SINGLE_LEAST", 1)
    patch.setattr(exchange_schedule, "SINGLE_UNTIL", 1e-2)


def unchanged(patch: pytest.MonkeyPatch) -> None:
    pass


@pytest.mark.parametrize(
    ("name", "options", "prepare", "step"),
    [
        ("h2o", {}, early_single, 9),
        ("h2o", {"scf": "conventional"}, unchanged, 12),
        ("nh2", {"scf_max_cycles": 30}, small_ladder, 17),
        pytest.param("nh2", {"tolerance": 1e-12}, unchanged, 40, marks=pytest.mark.slow),  # repeated in float64
        ("nh2", {"stability": "full", "precision": "fp64"}, unchanged, 23),
    ],
    ids=["float32 exchange", "conventional", "ladder", "repeated", "full stability"],
)
def test_resumed_from_any_saved_state(
    name: str, options: dict[str, Any], prepare: Any, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(monkeypatch)
    chosen = Options(basis="cc-pvdz", threads=1, **options)
    whole, file = compute(name, chosen), InMemory()
    assert compute(name, chosen, Journal(file, every=0.0)) == whole  # saving changes nothing
    states = [newest(content) for content in file.contents]
    assert [state.serial for state in states] == list(range(1, len(states) + 1))
    assert {"scf", "reference", "pairs 0"} <= {section for state in states for section in state.sections}
    for state in states[::step]:
        assert compute(name, chosen, Journal(InMemory(), state, every=0.0)) == whole, state.serial


@pytest.mark.slow
def test_stopped_again_and_again_with_everything_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B is taken over from the run before, and nothing is left in the end."""
    for name in ("scf_fits_in_core", "mp2_fits_in_core"):
        monkeypatch.setattr(memory.MemoryPlan, name, property(lambda _: False))
    monkeypatch.setenv(VARIABLE, "0")
    scratch, target = tmp_path / "scratch", tmp_path / "x.h5"
    scratch.mkdir()
    options = Options(basis="cc-pvdz", threads=1, scratch=str(scratch))
    whole, adopted, points = compute("nh2", options), [], [0]
    safe_point, adopt = Journal.safe_point, Space.adopt

    def stopping(journal: Journal) -> None:
        points[0] += 1
        journal.stop_asked = points[0] % 13 == 0
        safe_point(journal)

    monkeypatch.setattr(Journal, "safe_point", stopping)
    monkeypatch.setattr(Space, "adopt", lambda space, folder: adopted.append(adopt(space, folder)) or adopted[-1])
    stops = 0
    while True:
        try:
            with checkpointing(target, resume=True, note=lambda _: None, warn=pytest.fail) as kept:
                found = compute("nh2", options, kept.journal)
                kept.complete()
            break
        except Interrupted:
            stops += 1
            assert [path.name for path in tmp_path.iterdir() if path != scratch] == ["x.h5.checkpoint"]
    assert found == whole and stops > 3 and adopted.count(True) > 1
    assert list(tmp_path.iterdir()) == [scratch] and list(scratch.iterdir()) == []


def test_integrals_that_changed_on_disk_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.MemoryPlan, "mp2_fits_in_core", property(lambda _: False))
    monkeypatch.setenv(VARIABLE, "0")
    target, options = tmp_path / "x.h5", Options(basis="cc-pvdz", threads=1, scratch=str(tmp_path))
    whole, safe_point = compute("h2o", options), Journal.safe_point

    def stopping(journal: Journal) -> None:
        journal.stop_asked = "scratch" in journal._sections and "pairs 0" in journal._sections
        safe_point(journal)

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "safe_point", stopping)
        with (
            pytest.raises(Interrupted),
            checkpointing(target, resume=False, note=said.append, warn=pytest.fail) as kept,
        ):
            compute("h2o", options, kept.journal)
    (file,) = tmp_path.glob("*/b-0.h5")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with checkpointing(target, resume=True, note=said.append, warn=pytest.fail) as kept:
        assert compute("h2o", options, kept.journal) == whole
        kept.complete()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"threads": 2}, r"--threads \(1 there, 2 here\)"),
        ({"basis": "6-31g"}, "orbital basis differs"),
        ({"auxbasis": "weigend"}, "MP2 fitting set differs"),
        ({"precision": "fp64"}, r"--precision \(auto there, fp64 here\)"),
        ({"frozen_core": "auto"}, r"frozen core \(0 there, 1 here\)"),
        ({"backend": "torch"}, r"--backend \(cpu there, torch here\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_foreign_checkpoint_is_refused(change: dict[str, Any], named: str) -> None:
    options = {"basis": "sto-3g", "threads": 1, "backend": "cpu"}
    file = InMemory()
    compute("h2o", Options(**options), Journal(file, every=0.0))
    with pytest.raises(InputError, match=f"in memory belongs to another calculation: .*{named}"):
        compute("h2o", Options(**{**options, **change}), Journal(InMemory(), newest(file.contents[-1]), every=0.0))


def test_bases_count_by_their_numbers() -> None:
    """Two spellings of one name are one basis."""
    file = InMemory()
    whole = compute("h2o", Options(basis="cc-pvdz", threads=1), Journal(file, every=0.0))
    found = compute("h2o", Options(basis="CC-PVDZ", threads=1), Journal(InMemory(), newest(file.contents[-1])))
    assert found["scf/e_tot"] == whole["scf/e_tot"]


# --- when it is saved -------------------------------------------------------------------------------------------


def test_what_is_quick_leaves_no_checkpoint() -> None:
    file = InMemory()
    compute("h2o", Options(basis="sto-3g", threads=1), Journal(file))
    assert file.contents == []


def test_saving_takes_one_percent_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk on which a save takes 2 s is asked every 200 s, whatever the clock on the wall does."""
    now = [0.0]
    monkeypatch.setattr(journals.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(journals.time, "time", lambda: -now[0])

    class Slow(InMemory):
        def save(self, content: bytes) -> None:
            now[0] += 2.0
            super().save(content)

    file = Slow()
    journal = Journal(file)
    journal.begin({}, Quiet())
    while now[0] < 10_000:
        now[0] += 1.0
        journal.safe_point()
    assert len(file.contents) == pytest.approx(10_000 / 202, abs=2)


# --- the file -------------------------------------------------------------------------------------------------------


def two_generations() -> tuple[bytes, int]:
    """A file, and where its newest generation begins."""
    rng = np.random.default_rng(0)
    blocks = [
        encode(k, {"part": Section({"k": k}, {"a": rng.random((3, 4)), "b": rng.random(5) > 0.5})}) for k in (6, 7)
    ]
    return assemble(blocks[0], blocks[1], "/scratch/here"), len(assemble(blocks[0], b"", "/scratch/here"))


def test_file_gives_back_what_was_written() -> None:
    content, _ = two_generations()
    rng = np.random.default_rng(0)
    rng.random((3, 4)), rng.random(5)
    state = newest(content)
    assert (state.serial, state.damaged, state.sections["part"].values) == (7, False, {"k": 7})
    np.testing.assert_array_equal(state.sections["part"].arrays["a"], rng.random((3, 4)))
    np.testing.assert_array_equal(state.sections["part"].arrays["b"], rng.random(5) > 0.5)


def test_damage_of_any_byte_is_found() -> None:
    content, second = two_generations()
    head = content.index(b"\n", len(HEAD)) + 1
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        if place < len(HEAD):
            with pytest.raises(ValueError, match=r"begin|version"):
                newest(bytes(damaged))
        elif place >= head:
            state = newest(bytes(damaged))
            assert (state.serial, state.damaged) == ((6, True) if place >= second else (7, True)), place


def test_a_file_cut_short_holds_the_older_generation_or_none() -> None:
    content, second = two_generations()
    for length in range(len(content)):
        if length < second:
            with pytest.raises(ValueError, match=r"begin|version|hash"):
                newest(content[:length])
        else:
            assert newest(content[:length]).serial == 6


# --- the command ----------------------------------------------------------------------------------------------------

RUN = ("run", "h2o.xyz", "--basis", "sto-3g", "--threads", "1", "--output", "x.h5")


@pytest.fixture
def stopped(call: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """`x.h5.checkpoint` of a run that was stopped among its tiles."""
    safe_point, points = Journal.safe_point, [0]

    def stopping(journal: Journal) -> None:
        points[0] += 1
        journal.stop_asked = points[0] == 15
        safe_point(journal)

    monkeypatch.setenv(VARIABLE, "0")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "safe_point", stopping)
        done = call(*RUN)
    assert done.code == 75 and done.out == "" and "x.h5.checkpoint" in done.message


@pytest.mark.usefixtures("stopped")
def test_resume_goes_on_and_then_prints(call: Runner, folder: Path) -> None:
    first = succeed(call(*RUN, "--resume"))
    assert "going on from x.h5.checkpoint" in first.err and "SCF   1" not in first.err
    assert not (folder / "x.h5.checkpoint").exists()
    before = listing(folder)
    again = succeed(call(*RUN, "--resume"))
    assert "is complete: nothing is computed" in again.err and again.out == first.out and listing(folder) == before
    succeed(call(*RUN[:-1], "y.h5"))
    assert numbers(folder / "x.h5") == numbers(folder / "y.h5")


@pytest.mark.usefixtures("stopped")
def test_without_resume_it_is_replaced(call: Runner, folder: Path) -> None:
    done = succeed(call(*RUN))
    assert "x.h5.checkpoint of an earlier run is not used: --resume would go on from it" in done.err
    assert not (folder / "x.h5.checkpoint").exists()


@pytest.mark.usefixtures("stopped")
def test_resume_of_something_else(call: Runner, folder: Path) -> None:
    before = listing(folder)
    done = call("run", "nh2.xyz", *RUN[2:], "--resume")
    assert done.code == 3 and "x.h5.checkpoint belongs to another calculation: geometry differs" in done.message
    assert listing(folder) == before
    succeed(call(*RUN, "--resume"))
    done = call("run", "nh2.xyz", *RUN[2:], "--resume")
    assert done.code == 3 and "x.h5 is the result of another calculation: geometry" in done.message


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda c: c[:-7] + bytes([c[-7] ^ 1]) + c[-6:], "damaged in part: going on from the state saved before"),
        (lambda c: c[: len(c) // 3], "is damaged: its content does not have the stored hash: it is not used"),
        (lambda c: b"", "is damaged: it does not begin like a checkpoint of dfmp2: it is not used"),
    ],
    ids=["newest", "both", "empty"],
)
def test_damaged_checkpoint_is_named_and_not_used(damage: Any, said: str, call: Runner, folder: Path) -> None:
    path = folder / "x.h5.checkpoint"
    path.write_bytes(damage(path.read_bytes()))
    done = succeed(call(*RUN, "--resume"))
    assert f"warning: x.h5.checkpoint {'' if 'in part' not in said else 'is '}{said}" in done.err
    succeed(call(*RUN[:-1], "y.h5"))
    assert numbers(folder / "x.h5") == numbers(folder / "y.h5")


def test_damaged_result_is_named_and_not_used(call: Runner, folder: Path) -> None:
    succeed(call(*RUN))
    content = bytearray((folder / "x.h5").read_bytes())
    place = content.index(np.float64(numbers_energy(folder / "x.h5")).tobytes())
    content[place] ^= 1
    (folder / "x.h5").write_bytes(content)
    done = call(*RUN, "--resume")
    assert done.code == 3 and "x.h5: the content does not have its stored hash" in done.message
    assert (folder / "x.h5").read_bytes() == bytes(content)
    done = succeed(call(*RUN, "--resume", "--overwrite"))
    assert "does not have its stored hash: compute it again: it will be replaced" in done.err


def numbers_energy(path: Path) -> float:
    return float(np.frombuffer(numbers(path)["scf/e_tot"])[0])


def test_python_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dfmp2

    monkeypatch.setenv(VARIABLE, "0")
    given: dict[str, Any] = {"basis": "sto-3g", "threads": 1, "checkpoint": tmp_path / "x.h5", "listener": Quiet()}
    safe_point, points = Journal.safe_point, [0]

    def stopping(journal: Journal) -> None:
        points[0] += 1
        journal.stop_asked = points[0] == 4
        safe_point(journal)

    monkeypatch.setattr(Journal, "safe_point", stopping)
    with pytest.raises(Interrupted, match=r"x\.h5\.checkpoint holds what was done"):
        dfmp2.run(INPUTS / "h2o.xyz", **given)
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5.checkpoint"]
    result = dfmp2.run(INPUTS / "h2o.xyz", **given, resume=True)
    assert result.mp2_total_energy == dfmp2.run(INPUTS / "h2o.xyz", basis="sto-3g", threads=1).mp2_total_energy
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="resume=True needs checkpoint=FILE"):
        dfmp2.run(INPUTS / "h2o.xyz", basis="sto-3g", resume=True)


def test_interval_must_be_a_time(call: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "often")
    done = call(*RUN)
    assert done.code == 3 and "DFMP2_CHECKPOINT_SECONDS='often': expected seconds" in done.message
