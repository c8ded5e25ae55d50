"""Time left and who hears of progress: synthetic runs on a fake clock."""

from __future__ import annotations

import io
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dfmp2
from dfmp2.cli import console
from dfmp2.cli.console import Console
from dfmp2.errors import InputError
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.planning.time import Pace, TimeLeft, Timings
from dfmp2.progress import Stopwatch
from dfmp2.studies import task
from dfmp2.studies.task import Step
from tests.awkward import MOLECULES
from tests.conftest import Heard, Terminal, wait_until
from tests.test_batch_parts import OneByOne

FORESEEN = Timings(
    scf=60.0, integrals=10.0, fit=5.0, transform=10.0, pair_energies=40.0, total=126.0
)
PACE = Pace(integrals=8.0, cycle=4.0, certificate=4.0)


class Clock:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Steps(Heard):
    """Also records steps and the time left."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[str, list[tuple[int, int]]] = {}
        self.left: list[float | None] = []

    def step(self, done: int, total: int, what: str) -> None:
        self.steps.setdefault(what, []).append((done, total))

    def time_left(self, seconds: float | None) -> None:
        self.left.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "perf_counter", found)
    return found


LONG = replace(PACE, starts=3, examined=12.0)
AFTER_SCF = 10 + 5 + 10 + 40 + 1  # s
Report = tuple[Any, ...]  # the kind of report and its arguments


def play(clock: Clock, forecast: TimeLeft, *events: tuple[float, Report, float | None]) -> None:
    """Report after some seconds each, and compare the time left thereafter (None: whatever it
    is)."""
    for seconds, (kind, *given), left in events:
        clock.wait(seconds)
        if kind:
            getattr(forecast, kind)(*given)
        if left is not None:
            assert forecast.left() == pytest.approx(left)


def of_scf(done: float, own: float) -> float:
    """Seconds left of an SCF with a finished fraction: 8 s of integrals, 40 s of iterations, and
    12 s of analyses."""
    return ((1 - done) * 48 + 12) * own


def test_time_left_of_an_scf_counted_by_hand(clock: Clock) -> None:
    """Parts of the integrals, then the digits by which the gradient has fallen in each of three
    starts, are the finished fraction; measured iterations correct the forecast of later phases."""
    watch = Stopwatch()
    begun = 1 / 6 + 5 / 6 * 1 / 6 / 3
    one_start = 1 / 6 + 5 / 6 / 3
    mixed = 1 + 1 / 6 / 0.2 * (9 / (1 / 6 * 48) - 1)
    slower = (36 + 0.2) / (12 + 0.2) * AFTER_SCF
    with watch("scf"):
        play(
            clock,
            TimeLeft(watch, FORESEEN, LONG, 1e-6),
            (1.0, ("step", 0, 4), None),
            (9.0, ("step", 4, 4), of_scf(1 / 6, mixed) + AFTER_SCF),
            (0.0, ("cycle", 1, 1.0), None),
            (
                3.0,
                ("cycle", 2, 1e-1),
                of_scf(begun, 12 / (begun * 48)) + (3 + 0.2) / (4 + 0.2) * AFTER_SCF,
            ),
            (3.0, ("cycle", 3, 1.0), None),  # rises: nothing more is done
            (30.0, ("cycle", 4, 1e-7), of_scf(one_start, 45 / (one_start * 48)) + slower),
            (2.0, ("cycle", 1, 1e-3), None),  # the second start, of which nothing is done
            (4.0, ("",), of_scf(one_start, 47 / (one_start * 48)) - 4 + slower),
        )


def test_time_left_of_pair_energies_and_gradient_counted_by_hand(clock: Clock) -> None:
    """The more of the phase is done, the more its own speed counts; the certificate comes on top,
    a repetition starts afresh, and an SCF of a later phase is not that of the run."""
    watch = Stopwatch()
    forecast = TimeLeft(watch, replace(FORESEEN, gradient=30.0, total=156.0), LONG, 1e-6)
    with watch("integrals"):
        play(
            clock,
            forecast,
            (1.0, ("step", 0, 20), None),
            # of 20 s of integrals before 5 s of the fit
            (20.0, ("step", 10, 20), (0.5 * 20 + 5) * 2 + 71),
            (29.0, ("",), None),
        )
    ratio = (50 + 0.2) / (25 + 0.2)
    mixed = ratio + 0.5 * (3 / (0.1 * 36) - ratio)
    with watch("pair_energies"):
        play(
            clock,
            forecast,
            (1.0, ("",), 40 * ratio - 1 + ratio * 31),
            (0.0, ("step", 0, 10), None),
            (3.0, ("step", 1, 10), (0.9 * 36 + 4) * mixed + ratio * 31),
            (9.0, ("step", 4, 10), None),
            (1.0, ("",), (0.6 * 36 + 4) * 12 / (0.4 * 36) - 1 + ratio * 31),
            # all pairs again, in float64
            (0.0, ("step", 1, 10), (0.9 * 36 + 4) * ratio + ratio * 31),
        )
    ratio = (50 + 14 + 0.2) / (25 + 40 + 0.2)
    with watch("gradient"):
        play(
            clock,
            forecast,
            (1.0, ("step", 0, 100), None),
            (24.0, ("step", 40, 100), None),
            (0.0, ("cycle", 1, 1.0), None),
            (0.0, ("cycle", 2, 1e-3), 0.6 * 30 * 24 / (0.4 * 30) + ratio * 1),
        )


def test_nothing_is_said_where_nothing_is_known(clock: Clock) -> None:
    watch = Stopwatch()
    forecast = TimeLeft(watch, FORESEEN, PACE, 1e-6)
    assert forecast.left() == pytest.approx(126.0)
    with watch("scf"):
        clock.wait(61.0)  # longer than the whole SCF, and no iteration yet
        assert forecast.left() is None
        forecast.cycle(1, 0.0)  # of one electron
        assert forecast.left() is not None


def test_a_series_counts_the_runs_to_come(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs of 100, 50 and 50 s; all take twice as long, which the second learns from the
    first."""
    forecasts = {"a": 100.0, "b": 50.0, "c": 50.0}

    def planned(step: Step, task: str) -> Any:
        if step.name == "d":
            raise InputError("refused when it is its turn")
        return None, SimpleNamespace(timings=SimpleNamespace(total=forecasts[step.name]))

    monkeypatch.setattr(task, "_planned", planned)
    molecule = Molecule(("He",), [[0.0, 0.0, 0.0]])
    steps = [Step(name, name, molecule, Options(basis=name)) for name in ("a", "b", "c", "d")]
    told = Steps()
    series = task.Series(told, steps, "energy")
    series.begin("a")
    series.time_left(100.0)
    assert told.left[-1] == pytest.approx(200.0)
    clock.wait(100.0)
    series.time_left(100.0)
    assert told.left[-1] == pytest.approx(100.0 + 2 * 100.0, rel=0.02)
    clock.wait(100.0)
    series.end(
        SimpleNamespace(
            timings=SimpleNamespace(total=200.0), predicted=SimpleNamespace(total=100.0)
        )
    )  # type: ignore[arg-type]
    series.begin("b")
    for own in (50.0, None):  # its own forecast lacks that, or is missing
        series.time_left(own)
        assert told.left[-1] == pytest.approx(200.0, rel=0.03)
    clock.wait(60.0)
    series.time_left(40.0)
    assert told.left[-1] == pytest.approx(140.0, rel=0.03)


# --- what is shown (and the session `progress`) ---------------------------------------------------


def test_a_terminal_shows_the_seconds_of_a_stage_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(console, "TICK", 0.04)
    with Console(quiet=False, log=None, passing=True) as shown:
        shown.stage("RHF (df)")
        wait_until(lambda: "RHF (df)  0:0" in stream.getvalue())
    assert stream.getvalue().endswith("\r")


def test_lines_of_a_log_tell_the_time_left_every_half_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stages that follow each other every 20 s."""
    clock = Clock()
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=clock))
    log = io.StringIO()
    with Console(quiet=True, log=log) as shown:
        shown.time_left(3600.0)
        for name in "abcde":
            shown.stage(name)
            clock.wait(20.0)
    told = [line for line in log.getvalue().splitlines() if line.endswith(" min left")]
    assert [line[0] for line in told] == ["a", "c", "e"]


def test_a_batch_shows_its_items_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three items that cost the same and take 90 s each."""
    from dfmp2.execution import batch
    from dfmp2.execution.items import ItemStatus, read_inputs
    from dfmp2.execution.manifest import make_batch

    clock = Clock()
    rows = {
        "a": ItemStatus("a", "a.xyz", "complete", seconds=2.0),
        "b": ItemStatus("b", "b.xyz", "failed", 4, "no convergence"),
        "c": ItemStatus("c", "c.xyz", "complete", energy=-1.5),
    }

    for name in rows:
        (tmp_path / f"{name}.xyz").write_text("2\n\nH 0 0 0\nH 0 0 0.74\n")
    given = make_batch(
        [f"{name}.xyz" for name in rows], {"basis": "sto-3g"}, tmp_path / "out", tmp_path
    )
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(console, "BAR_EVERY", 0.0)
    with Console(quiet=False, log=None) as shown:
        pool: Any = OneByOne(rows, partial(clock.wait, 90.0))
        batch.BatchRun(given, read_inputs(given), range(3), shown).compute(pool, 1)
    text = stream.getvalue()
    assert (
        "[1/3] a: complete, 2.0 s\n\r  items [##########....................] 1/3, about 3 min left"
        in text
    )
    assert "warning: b failed with code 4: no convergence" in text
    assert "\r  items [####################..........] 2/3, about 90 s left" in text
    assert "[3/3] c: E(MP2) = -1.5000000000 Eh, 0.0 s\n" in text and text.endswith("\r")


@pytest.mark.parametrize(
    ("compute", "how", "what"),
    [
        (dfmp2.run, {"method": "drpa"}, "frequencies"),
        (
            dfmp2.run,
            {"method": "sos-laplace", "tolerance": 1e-3},
            "points of the Laplace transform",
        ),
        (dfmp2.gradient, {}, "pairs"),
    ],
)
def test_steps_are_counted_to_their_end(compute: Any, how: dict[str, Any], what: str) -> None:
    """Steps count from 1; a refined quadrature starts again. The time left is told throughout."""
    heard = Steps()
    result = compute(MOLECULES["methylene"], "sto-3g", listener=heard, threads=1, **how)
    if compute is dfmp2.gradient:
        result = result.result
    sizes = result.sizes
    assert heard.steps["SCF integrals"][-1] == (sizes.naux_scf, sizes.naux_scf)
    assert heard.steps["integrals"][-1] == (sizes.naux, sizes.naux)
    assert len(heard.left) > result.reference.cycles
    assert all(seconds is None or 0 <= seconds < 60 for seconds in heard.left)
    numbers = heard.steps[what]
    ends = [k + 1 for k, (done, total) in enumerate(numbers) if done == total]
    assert ends[-1] == len(numbers)
    for begin, end in pairwise([0, *ends]):
        assert numbers[begin:end] == [(k + 1, end - begin) for k in range(end - begin)]
    percent = heard.steps.get("gradient, %", [])
    assert len(percent) == (4 if compute is dfmp2.gradient else 0)
    assert percent == sorted(percent) and percent[:1] in ([], [(0, 100)])
