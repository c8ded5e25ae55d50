"""Once there is a checkpoint, SIGTERM and Ctrl-C save what is done and leave just it; a second one does not wait."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import COMMAND, listing, run_command, succeed
from tests.faults import EACH, numbers

INPUTS = Path(__file__).parent.parent / "inputs"
RUN = ("run", str(INPUTS / "glycine.xyz"), "--basis", "cc-pvdz", "--threads", "1", "--output", "x.h5")
SECONDS = 10.0
LINES = {
    signal.SIGTERM: "dfmp2: terminated (SIGTERM): x.h5.checkpoint holds what was done; the same command with --resume "
    "goes on",
    signal.SIGINT: "dfmp2: interrupted (Ctrl-C): x.h5.checkpoint holds what was done; the same command with --resume "
    "goes on",
}


def start(folder: Path) -> subprocess.Popen[str]:
    """A run that has just saved its first checkpoint."""
    process = subprocess.Popen(
        [COMMAND, *RUN],
        cwd=folder,
        env={**os.environ, EACH: "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while not (folder / "x.h5.checkpoint").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    return process


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    succeed(run_command(*RUN, cwd=folder))
    return numbers(folder / "x.h5")


@pytest.mark.parametrize(("number", "pause"), [(signal.SIGTERM, 0.0), (signal.SIGINT, 0.05), (signal.SIGTERM, 0.1)])
def test_stopped_and_resumed(number: signal.Signals, pause: float, tmp_path: Path, whole: dict[str, bytes]) -> None:
    process = start(tmp_path)
    time.sleep(pause)
    process.send_signal(number)
    begun = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75 and time.monotonic() - begun < SECONDS
    assert out == "" and "Traceback" not in err and err.splitlines()[-1] == LINES[number]
    assert list(listing(tmp_path)) == ["x.h5.checkpoint"]
    succeed(run_command(*RUN, "--resume", cwd=tmp_path, env={EACH: "0"}))
    assert list(listing(tmp_path)) == ["x.h5"] and numbers(tmp_path / "x.h5") == whole


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < SECONDS and out == "" and "Traceback" not in err
    assert process.returncode == 130
    assert err.splitlines()[-1] == (
        "dfmp2: stopped at once by a second signal: x.h5.checkpoint holds what was saved before"
    )
    assert list(listing(tmp_path)) == ["x.h5.checkpoint"]


def test_an_iteration_that_takes_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler's patience ends, and what was saved before stays."""
    from dfmp2.cli import signals
    from dfmp2.errors import Interrupted

    class Slow:
        saved, saving, path = True, False, "x.h5.checkpoint"

        def ask_to_stop(self) -> bool:
            return True

    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    monkeypatch.setattr(signals, "PATIENCE", 0.2)
    try:
        signals.listen()
        signals.finish_first(Slow())
        begun = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        signals.check()  # nothing is raised yet
        with pytest.raises(Interrupted, match=r"x\.h5\.checkpoint holds what was done"):
            time.sleep(5)
        assert 0.15 < time.monotonic() - begun < 3
        assert signals.received() == (LINES[signal.SIGTERM][len("dfmp2: ") :], 75)
    finally:
        signals.settle()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signals._received.clear()
        signals._journals.clear()
        signals._finishing.clear()
