"""SIGTERM and Ctrl-C at any point: one line, the documented exit code, and at most a checkpoint
left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dfmp2.cli import batch_run, signals
from dfmp2.cli.main import main
from dfmp2.errors import InputError, Interrupted
from dfmp2.interop import python
from tests.conftest import (
    INPUTS,
    PATIENCE,
    Runner,
    listing,
    run_here,
    succeed,
    wait_until,
)
from tests.faults import EACH, start
from tests.recorded import recorded_error, recorded_texts

LINES = {
    signal.SIGTERM: "dfmp2: terminated (SIGTERM): nothing was written; run it again",
    signal.SIGINT: "dfmp2: interrupted (Ctrl-C): nothing was written",
}
# s: a stopped run ends within a few; several times that if the machine is slow or busy
SECONDS = 60.0


# --- with a checkpoint on disk --------------------------------------------------------------------

GLYCINE = (
    "run",
    str(INPUTS / "glycine.xyz"),
    "--basis",
    "sto-3g",
    "--threads",
    "1",
    "--output",
    "x.h5",
)
SAVED = "x.h5.checkpoint holds what was done; repeat the command to continue"


def test_what_is_done_is_saved(tmp_path: Path) -> None:
    """After the first checkpoint: the run stops at the next safe point, and is resumed."""
    process = start(tmp_path, *GLYCINE, **{EACH: "0"})
    wait_until(lambda: (tmp_path / "x.h5.checkpoint").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75 and time.monotonic() - begun < SECONDS
    assert out == "" and "Traceback" not in err
    assert err.splitlines()[-1] == f"dfmp2: interrupted (Ctrl-C): {SAVED}"
    assert list(listing(tmp_path)) == ["x.h5.checkpoint"]
    assert succeed(run_here(*GLYCINE, "--resume", cwd=tmp_path)).went_on
    assert list(listing(tmp_path)) == ["x.h5"]


@pytest.fixture
def listening() -> Iterator[None]:
    """Install the command line's handlers in this process."""
    with signals.as_before():
        signals.listen()
        yield
        signals.settle_signal()


@dataclass
class Run:
    """The checkpoint of a run that may be writing a file, and may be asked to stop."""

    saving: bool = False
    stops: bool = True
    saved: ClassVar[bool] = True
    path: ClassVar[str] = "x.h5.checkpoint"

    def ask_to_stop(self) -> bool:
        return self.stops


@pytest.mark.usefixtures("listening")
def test_a_study_does_not_begin_another_run() -> None:
    """If the run ends before its next tile, the study stops there."""
    signals.finish_first(Run())
    os.kill(os.getpid(), signal.SIGTERM)
    signals.check_signals()  # nothing is raised yet
    with pytest.raises(Interrupted):
        signals.finish_first(Run())


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_deferred_while_a_file_is_replaced(number: signal.Signals) -> None:
    steps = []

    def replace_file() -> None:
        with signals.deferred("x.h5 is new"):
            os.kill(os.getpid(), number)
            steps.append("replaced")
        steps.append("went on")

    with pytest.raises((Interrupted, KeyboardInterrupt)):
        replace_file()
    assert steps == ["replaced"] and not signals._state.deferring
    recorded_texts([str(signals.received())])


@pytest.mark.usefixtures("listening")
def test_an_iteration_that_takes_too_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler stops waiting, and the last checkpoint stays."""
    monkeypatch.setattr(signals, "PATIENCE", 0.2)
    signals.finish_first(Run())
    begun = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    signals.check_signals()  # nothing is raised yet
    with recorded_error(Interrupted):
        time.sleep(PATIENCE)
    assert 0.15 < time.monotonic() - begun < SECONDS
    assert signals.received() == (f"terminated (SIGTERM): {SAVED}", 75)


TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize(
    ("run", "deferring", "sent", "raised", "finishing"),
    [
        (None, False, (TERM,), Interrupted, False),
        (None, False, (INT,), KeyboardInterrupt, False),
        (None, True, (TERM,), None, False),
        (None, True, (INT, TERM), None, False),
        (Run(saving=False, stops=True), False, (TERM,), None, True),
        (Run(saving=False, stops=True), False, (INT, INT), KeyboardInterrupt, False),
        (Run(saving=False, stops=False), False, (TERM,), Interrupted, False),
        (Run(saving=True, stops=True), False, (TERM,), None, True),
        (Run(saving=True, stops=True), False, (TERM, INT), None, True),
        (Run(saving=True, stops=False), False, (TERM,), Interrupted, False),
        (Run(saving=True, stops=True), True, (TERM,), None, False),
    ],
)
def test_a_signal_stops_at_once_or_when_something_is_complete(
    run: Any,
    deferring: bool,
    sent: tuple[signal.Signals, ...],
    raised: type[BaseException] | None,
    finishing: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second signal does not wait for a tile, but does wait for a file."""
    alarms: list[tuple[int, float]] = []
    monkeypatch.setattr(signal, "setitimer", lambda *given: alarms.append(given))
    state = signals._state
    state.run, state.deferring = run, deferring
    for number in sent[:-1]:
        signals._remember(number, None)
    if raised is None:
        signals._remember(sent[-1], None)
    else:
        with pytest.raises(raised):
            signals._remember(sent[-1], None)
    assert state.finishing == finishing and tuple(state.received) == sent
    recorded_texts([str(signals.received())])
    waits = run is not None and run.stops and not deferring
    assert alarms == [(signal.ITIMER_REAL, signals.PATIENCE)] * waits
    saving = deferring or bool(run and run.saving)
    assert state.saving == saving
    if saving:
        signals._out_of_patience(0, None)
    else:
        with pytest.raises((Interrupted, KeyboardInterrupt)):
            signals._out_of_patience(0, None)
    assert not state.finishing


@pytest.mark.usefixtures("listening")
def test_what_cannot_be_raised_is_shown_where_no_signal_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("sys.__unraisablehook__", shown.append)
    signals._unraisable("lost")
    assert shown == ["lost"]
    signals._state.received.append(TERM)
    signals._unraisable("of the signal")
    assert shown == ["lost"]


# --- the interpreter's blind spots, one by one, in this process -----------------------------------


class Grave:
    """Python swallows what is raised while it is being deleted."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # the handler runs here
            pass


def disguised(error: type[Exception]) -> None:
    """Raise an exception of Python or of C code that hides that of the signal."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    except KeyboardInterrupt as interrupt:
        raise error("initialization failed") from interrupt


@pytest.mark.parametrize(
    ("step", "number", "code"),
    [
        (Grave, signal.SIGTERM, 75),
        (partial(disguised, RuntimeError), signal.SIGINT, 130),
        (partial(disguised, InputError), signal.SIGINT, 130),
    ],
)
def test_swallowed_or_in_disguise_it_is_raised_again(
    step: Callable[[], object],
    number: signal.Signals,
    code: int,
    call: Runner,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the first step of the calculation, without a traceback. The result to be replaced stays,
    and the last line is also that of the log.

    Python 3.11 turns an exception in `__set_name__` into a RuntimeError, and the shield into its own
    error.
    """
    run = python.run_options

    def run_options(*given: Any, **named: Any) -> Any:
        step()
        return run(*given, **named)

    monkeypatch.setattr(python, "run_options", run_options)
    (folder / "x.h5").write_text("old")
    before = listing(folder)
    arguments = ("--output", "x.h5", "--overwrite", "--log", f"{folder}.log")
    done = call("run", "h2.xyz", "--basis", "sto-3g", *arguments)
    assert (done.code, done.message) == (code, LINES[number])
    assert "Exception ignored" not in done.err and listing(folder) == before
    assert Path(f"{folder}.log").read_text().splitlines()[-1] == LINES[number]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_from_the_writing_on_a_signal_changes_nothing(
    step: str, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the file has been renamed there is no way back, so the run finishes."""
    original = getattr(os, step)

    def late(*given: object, **named: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        return original(*given, **named)

    monkeypatch.setattr(os, step, late)
    assert "dfmp2 finished" in succeed(call("run", "h2.xyz", "--basis", "sto-3g")).out
    assert (folder / "h2.dfmp2.h5").is_file() and not list(folder.glob(".*"))


def test_a_program_that_calls_the_command_line_keeps_its_handlers(folder: Path) -> None:
    """Also if it fails: children of the program would otherwise inherit an ignored signal."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    assert main(["show", str(folder / "nowhere.h5")]) == 3
    assert [signal.getsignal(number) for number in numbers] == before


def test_sigterm_of_scheduler_and_script_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second of the last one; Ctrl-C always counts."""
    arriving = [
        (10.0, signal.SIGTERM, 1),
        (11.0, signal.SIGTERM, 1),
        (12.5, signal.SIGTERM, 2),
        (12.6, signal.SIGINT, 3),
        (12.7, signal.SIGINT, 4),
    ]
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    counted = batch_run.Signals()
    for seconds, number, count in arriving:
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: seconds)
        counted._take(number, None)
        assert counted.count == count
