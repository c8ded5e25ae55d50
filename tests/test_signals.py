"""SIGTERM and Ctrl-C, wherever they hit: one line, the documented exit code, nothing at or beside the output path."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from dfmp2.errors import InputError, Interrupted
from tests.conftest import COMMAND, Runner, Stored, listing, succeed

CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}
LINES = {
    signal.SIGTERM: "dfmp2: terminated (SIGTERM): nothing was written; run it again",
    signal.SIGINT: "dfmp2: interrupted (Ctrl-C): nothing was written",
}
SECONDS = 10.0  # "a few" on a busy machine
INPUTS = Path(__file__).parent.parent / "inputs"

# Seconds of work in either stage; the loose SCF keeps the way to the pair energies short.
LONG = (str(INPUTS / "water-8.xyz"), "--basis", "cc-pvdz", "--output", "x.h5")
LOOSE = ("--scf-conv-tol", "1e-1", "--stability", "off", "--precision", "fp64", "--threads", "1")


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """The command, running; like a shell's foreground job it listens to Ctrl-C."""
    return subprocess.Popen(
        [COMMAND, *arguments],
        cwd=cwd,
        env={**os.environ, "DFMP2_CHECKPOINT_SECONDS": "1000"},  # with a checkpoint: test_checkpoint_signals.py
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        restore_signals=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def stderr_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stderr is not None
    return process.stderr


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Read the progress until a line holds `words`."""
    for line in stderr_of(process):
        if words in line:
            return
    raise AssertionError(f"{words!r} was never shown")


def stopped(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """What the process printed on stderr after the signal, which must have ended it in time and in order."""
    begun = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < SECONDS
    assert process.returncode == CODES[number], err
    assert out == "" and "Traceback" not in err and "Exception ignored" not in err
    assert [line for line in err.splitlines() if line.startswith("dfmp2: ")] == [LINES[number]]
    assert err.splitlines()[-1] == LINES[number]
    return err


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize(
    ("words", "options"), [("  SCF   2 ", ()), ("pair energies", LOOSE)], ids=["SCF", "pair-energies"]
)
def test_stopped_in_a_stage(
    number: signal.Signals, words: str, options: tuple[str, ...], dfmp2: Runner, folder: Path
) -> None:
    before = listing(folder)
    with start("run", *LONG, *options, cwd=folder) as process:
        wait_for(process, words)
        process.send_signal(number)
        stopped(process, number)
    assert listing(folder) == before
    succeed(dfmp2("run", "h2.xyz", "--basis", "sto-3g", "--output", "x.h5"))


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_old_result_survives_an_interrupted_overwrite(number: signal.Signals, dfmp2: Runner, folder: Path) -> None:
    succeed(dfmp2("run", "h2.xyz", "--basis", "sto-3g", "--output", "x.h5"))
    before = listing(folder)
    with start("run", *LONG, "--overwrite", cwd=folder) as process:
        wait_for(process, "RHF")
        process.send_signal(number)
        stopped(process, number)
    assert listing(folder) == before


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_stopped_while_waiting_for_standard_input(number: signal.Signals, folder: Path) -> None:
    before = listing(folder)
    with start("run", "-", "--basis", "sto-3g", cwd=folder) as process:
        time.sleep(1.0)  # nothing is shown before the input is there
        process.send_signal(number)
        process.wait(SECONDS)
        stopped(process, number)
    assert listing(folder) == before


def test_stopped_in_compare(water: Stored, folder: Path) -> None:
    with start("compare", str(water.path), cwd=folder) as process:
        wait_for(process, "RHF with PySCF")
        process.send_signal(signal.SIGTERM)
        stopped(process, signal.SIGTERM)


def test_any_moment(folder: Path) -> None:
    """From the first line to the last: stopped, or finished with a whole file; nothing in between."""
    for step in range(8):
        number = list(CODES)[step % 2]
        with start("run", "h2o.xyz", "--basis", "cc-pvdz", "--output", "x.h5", cwd=folder) as process:
            wait_for(process, "H2O, charge 0")
            time.sleep(0.1 * step)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert "Traceback" not in err and "Exception ignored" not in err, err
        if process.returncode == 0:
            assert "dfmp2 finished" in out
            (folder / "x.h5").unlink()
        else:
            assert process.returncode == CODES[number] and err.splitlines()[-1] == LINES[number] and out == ""
        assert not (folder / "x.h5").exists() and not list(folder.glob(".*"))


def test_both_at_once(folder: Path) -> None:
    """Impatience is no error: the first signal counts, or the second, but never both and never a traceback."""
    for pause in (0.0, 0.005):
        with start("run", *LONG, cwd=folder) as process:
            wait_for(process, "RHF")
            process.send_signal(signal.SIGTERM)
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert process.returncode in CODES.values() and out == ""
        assert "Traceback" not in err and sum(line.startswith("dfmp2: ") for line in err.splitlines()) == 1
        assert not (folder / "x.h5").exists() and not list(folder.glob(".*"))


# --- the interpreter's blind spots, one by one, in this process --------------------------------------


@pytest.fixture
def stop(call: Runner, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], Runner]:
    """The command line with something else in place of the calculation's first step."""

    def plan(step: Callable[[], object]) -> Runner:
        from dfmp2 import api

        run = api.run_options

        def run_options(*given: object, **named: object) -> object:
            step()
            return run(*given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(api, "run_options", run_options)
        return call

    return plan


def test_dropped_in_a_finaliser_it_is_raised_again(
    stop: Callable[[Callable[[], object]], Runner], folder: Path
) -> None:
    """`__del__` swallows exceptions; the next event of the run brings them back, and no trace is shown."""

    class Grave:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):  # where the handler runs
                pass

    before = listing(folder)
    done = stop(Grave)("run", "h2.xyz", "--basis", "sto-3g")
    assert (done.code, done.message) == (75, LINES[signal.SIGTERM])
    assert "Exception ignored" not in done.err and listing(folder) == before


@pytest.mark.parametrize("disguise", [RuntimeError, ImportError, SystemError, InputError])
def test_in_disguise_it_is_recognised(
    disguise: type[Exception], stop: Callable[[Callable[[], object]], Runner], folder: Path
) -> None:
    """Python 3.11 makes a RuntimeError of what `__set_name__` raises, C code an ImportError, the shield its own."""

    def wrapped() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
        except KeyboardInterrupt as error:
            raise disguise("initialization failed") from error

    before = listing(folder)
    done = stop(wrapped)("run", "h2.xyz", "--basis", "sto-3g")
    assert (done.code, done.message) == (130, LINES[signal.SIGINT])
    assert listing(folder) == before


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_from_the_writing_on_a_signal_changes_nothing(
    step: str, call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the renaming of the file and the last line there is no way back, so the run finishes."""
    original = getattr(os, step)

    def late(*given: object, **named: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        return original(*given, **named)

    monkeypatch.setattr(os, step, late)
    assert "dfmp2 finished" in succeed(call("run", "h2.xyz", "--basis", "sto-3g")).out
    assert (folder / "h2.dfmp2.h5").is_file() and not list(folder.glob(".*"))


def test_exit_code_of_the_error_tree() -> None:
    assert Interrupted.exit_code == CODES[signal.SIGTERM] == os.EX_TEMPFAIL  # sysexits.h: try again later
